#include "cli/train/unused_changes.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace primus::cli {

void refuse_unused_changes(const TrainingSummary& summary) {
  const bool did_something = summary.first_step != summary.last_step || summary.interrupted ||
                             summary.validation_loss || summary.test_loss;
  const auto is_length = [](const std::string& change) { return change.starts_with("train_"); };
  if (did_something || std::ranges::all_of(summary.unused_changes, is_length)) return;
  throw invalid(
      "the run had ended before, so the changes of its settings or data had no effect",
      "choose another name for a new run (exp_name=...), train this run longer, or take the changes "
      "back");
}

}  // namespace primus::cli
