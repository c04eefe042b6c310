// Batches of answers that were generated before the steps that learn from them (max_staleness above 0). While
// reward functions score these batches in the background, the run generates further batches and trains.
//
// Batch n is the batch from which its steps would learn without this class: steps (n - 1) * period + 1 and
// following. The schedule depends only on the numbers of steps, and never on the time that rewards take:
// before the first step of batch n, the run generates batch n + ahead with the current weights, and waits for
// the rewards of batch n. The first such step also generates the batches up to this one that do not exist.
// Checkpoints contain the batches whose steps are still to come, with the rewards that have arrived;
// functions whose rewards have not arrived are called again after the run has resumed.
//
// All ranks of the mesh make the same calls. Not thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/reward/background_rewards.h"
#include "lm/train/objectives/rollouts/answer_scoring.h"
#include "lm/train/objectives/rollouts/rollouts.h"

namespace primus {

class AnswersAhead {
 public:
  struct Place {
    std::int64_t sequence = 1;  // number of tokens of a row
    std::int64_t vocab = 1;     // number of token ids of the model
    std::int64_t answers = 1;   // number of answers of a batch on all data ranks
    std::int64_t functions = 1;
    std::int64_t ahead = 1;   // number of batches that are generated before their steps
    std::int64_t period = 1;  // number of steps that learn from a batch
    // For each row of this data rank, the number of its answer within the batch, ascending.
    std::vector<std::int64_t> numbers;
    bool tells = true;      // whether this rank calls the reward functions, and writes into checkpoints
    bool episodes = false;  // whether answers have Rollout::episode
    // Whether the log-probabilities of the sampler are the old log-probabilities of the loss.
    bool sampled_is_old = true;
  };
  struct Batch {
    std::int64_t number = 1;
    std::int64_t version = 0;              // number of updates of the weights that generated the answers
    std::vector<Rollout> own;              // the answers of this data rank, in the order of its rows
    std::vector<double> divergences = {};  // of `own`; empty if the advantages need none
    // The results of functions, whose rewards are in the order of `own`; empty: they have not arrived. An
    // answer whose episode failed has none.
    std::vector<std::optional<BackgroundRewards::Scored>> scored = {};
    bool asked = false;  // whether the functions without results were called
  };

  explicit AnswersAhead(Place place) : place_(std::move(place)) {}

  // Returns the number of the batch from which a step learns.
  std::int64_t batch_of(std::int64_t step) const { return (step - 1) / place_.period + 1; }
  // Returns the first of the steps that learn from a batch.
  std::int64_t first_step_of(std::int64_t number) const { return (number - 1) * place_.period + 1; }

  // Returns a batch; null if it does not exist.
  Batch* find(std::int64_t number);
  void add(Batch batch);
  // Forgets the batches before this one. Their rewards must have arrived.
  void forget_before(std::int64_t number);

  // Begins to score all batches whose functions were not called. `lanes`: makes the functions of one lane.
  // Does nothing on ranks that do not call the functions.
  void ask(const AnswerScoring& scoring, const std::function<BackgroundRewards::Functions()>& lane);
  // Waits for the rewards of a batch, at most `time`. Returns whether Batch::scored is complete. Throws the
  // error of a function. Returns true on ranks that do not call the functions.
  bool wait(Batch& batch, std::chrono::milliseconds time);
  // Returns for how many seconds the functions of a batch have run on this rank.
  double seconds(const Batch& batch) const;

  // Returns the rows of the answers that functions score: all answers whose episodes have not failed.
  static std::vector<std::size_t> scored_rows(std::span<const Rollout> own);

  // Returns the tensors of a checkpoint after step `done`. They are copies.
  std::vector<TensorSource> state(std::int64_t done);
  // Reads the batches of a checkpoint. Leaves out batches of other extents, or that would be older than
  // the bound. Throws Error(kInvalid) for tensors with impossible values.
  void restore(const CheckpointReader& checkpoint);

 private:
  struct Tables;

  // Takes the results that have arrived from background_.
  void collect(Batch& batch);
  void write(const Batch& batch, std::int64_t row, Tables& tables) const;
  Rollout read(const CheckpointReader& checkpoint, Tables& tables, std::int64_t row) const;
  void read_rewards(Tables& tables, std::int64_t first, Batch& batch) const;
  std::int64_t columns() const;

  const Place place_;
  std::map<std::int64_t, Batch> batches_;
  std::optional<BackgroundRewards> background_;
};

}  // namespace primus
