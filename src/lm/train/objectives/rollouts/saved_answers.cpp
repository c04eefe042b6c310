#include "lm/train/objectives/rollouts/saved_answers.h"

#include <fmt/format.h>

namespace primus {
namespace {

// The first columns of the texts: the index of the prompt's record, the number of tokens of the prompt, the
// number of tokens of the answer, and whether the model ended the answer. The tokens of both follow.
enum Column : std::int64_t { kRecord, kPrompt, kAnswer, kFinished, kTokens };

}  // namespace

Error impossible_answer(const CheckpointReader& checkpoint, std::int64_t number) {
  return invalid(fmt::format("{}: the saved answer {} has impossible lengths or tokens",
                             checkpoint.folder().string(), number),
                 "set no_load_optim: true to continue without the saved answers and optimizer states, or "
                 "remove this checkpoint to continue from the one before it");
}

std::int64_t text_columns(std::int64_t sequence) { return kTokens + sequence + 1; }

void write_text(const Rollout& answer, std::span<std::int32_t> row) {
  row[kRecord] = static_cast<std::int32_t>(answer.record);
  row[kPrompt] = static_cast<std::int32_t>(answer.prompt.size());
  row[kAnswer] = static_cast<std::int32_t>(answer.answer.size());
  row[kFinished] = answer.finished ? 1 : 0;
  const auto begin = std::ranges::copy(answer.prompt, row.begin() + kTokens).out;
  std::ranges::copy(answer.answer, begin);
  // An appended token is stored as the complement of its id, which is negative.
  for (std::size_t t = 0; t < answer.generated.size(); ++t)
    if (answer.generated[t] == 0) begin[static_cast<std::ptrdiff_t>(t)] = ~answer.answer[t];
}

Rollout read_text(const CheckpointReader& checkpoint, std::int64_t number, std::span<const std::int32_t> row,
                  std::int64_t sequence, std::int64_t vocab) {
  const std::span<const std::int32_t> tokens = row.subspan(kTokens);
  const std::int64_t prompt = row[kPrompt], answer = row[kAnswer];
  const bool fits = prompt > 0 && answer > 0 && prompt <= sequence && answer <= sequence &&
                    prompt + answer <= sequence + 1 &&
                    std::ranges::all_of(tokens.first(static_cast<std::size_t>(prompt + answer)),
                                        [vocab](std::int32_t id) { return std::max(id, ~id) < vocab; }) &&
                    std::ranges::none_of(tokens.first(static_cast<std::size_t>(prompt)),
                                         [](std::int32_t id) { return id < 0; });
  if (!fits) throw impossible_answer(checkpoint, number);
  const auto middle = tokens.begin() + prompt;
  Rollout read{.record = row[kRecord],
               .prompt = {tokens.begin(), middle},
               .answer = {middle, middle + answer},
               .log_probs = {},
               .old_log_probs = {},
               .finished = row[kFinished] != 0};
  if (std::ranges::any_of(read.answer, [](std::int32_t id) { return id < 0; })) {
    for (std::int32_t& id : read.answer) {
      read.generated.push_back(id >= 0 ? 1 : 0);
      id = std::max(id, ~id);
    }
  }
  return read;
}

}  // namespace primus
