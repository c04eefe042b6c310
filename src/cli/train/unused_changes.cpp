#include "cli/train/unused_changes.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/error.h"

namespace primus::cli {

void refuse_unused_changes(const TrainingSummary& summary) {
  const bool did_something = summary.first_step != summary.last_step || summary.interrupted ||
                             summary.validation_loss || summary.test_loss;
  // "seed was 1, and is 2". Other changes, such as newer checkpoints of `load`, are not made by the command.
  const auto trains_otherwise = [](const std::string& change) {
    constexpr auto kLengths = std::to_array<std::string_view>(
        {"train_iters", "train_samples", "train_tokens", "train_epochs", "train_minutes"});
    const std::size_t end = change.find(" was ");
    return end != std::string::npos && change.find(' ') == end &&
           std::ranges::find(kLengths, std::string_view(change).substr(0, end)) == kLengths.end();
  };
  if (did_something || std::ranges::none_of(summary.unused_changes, trains_otherwise)) return;
  throw invalid(
      "the run had ended before, so the changes of its settings or data had no effect",
      "choose another name for a new run (exp_name=...), train this run longer, or take the changes "
      "back");
}

}  // namespace primus::cli
