// Rollouts: the answers that a model generates to prompts, and how they fill the microbatches of a step. Host
// functions whose results depend only on their arguments. Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lm/data/batch.h"
#include "lm/reward/reward.h"

namespace primus {

// The end of a conversation with an environment (episodes.h).
struct EpisodeOutcome {
  Reward reward;
  bool failed = false;  // whether the environment failed, so that the answer must have no reward at all
  std::int64_t turns = 0, calls = 0,
               invalid_calls = 0;  // numbers of turns of the model and of its tool calls
};

// A generated answer and its prompt.
struct Rollout {
  std::int64_t record = -1;  // index of the prompt's record in the data
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> answer;  // includes the token that ends the answer, if the model wrote it
  std::vector<float> log_probs;      // [answer] ln p of each token at the temperature of sampling
  // [answer] With an environment: 1 for tokens that the model has generated, 0 for appended tokens, which are
  // only read, and whose log-probabilities are 0. Empty: the model has generated all tokens.
  std::vector<std::uint8_t> generated = {};
  std::optional<EpisodeOutcome> episode = {};  // set with an environment
  // [answer] ln p of each token in the training pass of the weights that generated the answer; empty if these
  // are the current weights.
  std::vector<float> old_log_probs = {};
  bool finished = false;  // whether the model ended the answer; false: the answer was cut off
  // For PPO: whether the last token of the answer is also an input, so that a value follows the answer; and
  // the estimates of ppo_rule.h, [answer + 1] each. Empty: there are none yet.
  bool last_is_input = false;
  std::vector<float> values = {}, advantages = {}, returns = {};

  // Returns the number of input tokens in a microbatch. The last token of the answer is only a label, unless
  // last_is_input is set.
  std::int64_t inputs() const { return std::ssize(prompt) + std::ssize(answer) - (last_is_input ? 0 : 1); }
  // Returns the number of tokens of the answer that the model has generated.
  std::int64_t generated_tokens() const {
    return std::ssize(answer) - std::ranges::count(generated, std::uint8_t{0});
  }
  // Returns the tokens of the model's last turn, which ends the answer.
  std::span<const std::int32_t> last_turn() const;
};

// Numbers of a conversation: generated tokens, turns, tool calls, invalid tool calls, and 1 if the
// environment failed.
enum EpisodeColumn : std::int64_t { kGenerated, kTurns, kCalls, kInvalidCalls, kFailed, kEpisodeColumns };
// Returns the numbers of a rollout with an episode.
std::array<double, kEpisodeColumns> episode_values(const Rollout& rollout);

// Returns the answer as reward functions read it, without prompt and record: its text is the last turn of the
// model, without the token that ends it. `text` returns the text of tokens. The rollout must outlive the
// result.
ScoredAnswer scored_answer(const Rollout& rollout, std::span<const std::int32_t> stop_ids,
                           const std::function<std::string(std::span<const std::int32_t>)>& text);

// The rows of the microbatches of one data rank.
struct RolloutRows {
  std::int64_t micro_batch = 1;   // number of rows of a microbatch
  std::int64_t sequence = 1;      // number of tokens of a row
  std::int64_t microbatches = 1;  // number of microbatches

  std::int64_t count() const { return micro_batch * microbatches; }
};

// Places each text in the first row that has enough room (first fit). Returns the index of each text's first
// token among the tokens of all rows. `lengths`: the number of tokens of each text, at most `sequence`. Uses
// no more rows than there are texts.
std::vector<std::int64_t> first_fit(std::span<const std::int64_t> lengths, std::int64_t sequence);

// Returns the number of microbatches with texts, if first_fit() chooses the places. The other microbatches
// come last.
std::int64_t filled_microbatches(std::span<const std::int64_t> lengths, const RolloutRows& rows);

// Returns which of the step's answers is in row `row` of a data rank. Microbatch i of data rank r contains
// the answers (i * ranks + r) * micro_batch and following.
std::int64_t number_of_answer(std::int64_t row, const RolloutRows& rows, int data_ranks, int data_rank);

// Returns the largest number of microbatches that the answers of these rows fill on any data rank.
// `inputs_of`: returns the number of input tokens of an answer of the step (Rollout::inputs()).
std::int64_t most_filled_microbatches(const RolloutRows& rows, std::int64_t begin_row, std::int64_t end_row,
                                      int data_ranks,
                                      const std::function<std::int64_t(std::int64_t answer)>& inputs_of);

// Returns the record of the document with which row `row` of these microbatches begins.
std::int64_t record_of_row(std::span<const data::Batch> batches, const RolloutRows& rows, std::int64_t row);

// Numbers about the lengths of answers, and the names of their metrics. `lengths`: number of generated tokens
// of each answer. `cut_off`: number of answers that were cut off.
std::vector<std::pair<std::string, double>> length_metrics(std::span<const double> lengths, double cut_off);

// Writes the answers into the microbatches, as documents with the role kAnswer at the places of first_fit().
// Labels are learned where they are generated tokens of the answer. If `mask_truncated` is set, no label of
// an answer that was cut off is learned. The rest of each row is padding. `advantages`: one value for each
// answer; no label of an answer with the value NaN is learned, and the document's value is then 0.
// Either all answers have old log-probabilities, or none has. Either all have PPO's estimates, or none has.
void pack_rollouts(std::span<const Rollout> rollouts, std::span<const double> advantages,
                   const RolloutRows& rows, bool mask_truncated, std::span<data::Batch> batches);

// Copies old log-probabilities and PPO's estimates from the batches of pack_rollouts() into the answers.
void read_estimates(std::span<const data::Batch> batches, const RolloutRows& rows,
                    std::span<Rollout> rollouts);

}  // namespace primus
