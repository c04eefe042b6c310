// Reward models of a run with rewards: frozen models whose score of a text, at its last token, is the reward
// of an answer (the function model:FOLDER). A reward model has its own architecture and its own tokenizer. It
// is divided over tensor, pipeline and expert ranks like the trained model; data ranks hold the same weights
// unless parameters are sharded. Each data rank scores its own answers.
//
// Texts are packed into rows. Attention stays within a text, so the other texts of a row do not change its
// score, except for rounding. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/reward/reward.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/model_instance.h"

namespace primus {

struct RewardModel {
  std::int64_t function = 0;  // index of the reward function
  std::string name;           // name of the frozen model (FrozenModel::name)
  std::filesystem::path folder;
  ModelConfig model;
  // A pass has `rows` rows of `sequence` tokens. Longer texts have no reward.
  std::int64_t rows = 1, sequence = 1;
  // Loads the weights. Called on every rank of the mesh.
  std::function<void(TrainingSession& session, ModelInstance& model)> load;
};

// The tokens that a reward model reads for an answer.
struct RewardTokens {
  std::vector<std::int32_t> ids;
  std::string problem = {};  // why there are no tokens; empty if there are
};

// Most functions correspond to functions of a LossRule, which calls them in the same order.
class RewardModels {
 public:
  explicit RewardModels(std::vector<RewardModel> models);
  ~RewardModels();

  // Returns the index of the model of a reward function; -1 for other functions.
  std::int64_t model_of(std::int64_t function) const;
  std::int64_t size() const { return static_cast<std::int64_t>(models_.size()); }
  std::vector<FrozenModel> frozen_models() const;
  void prepare(TrainingSession& session);
  void load_weights(TrainingSession& session) const;
  // Adds one hash per model, over its weights, to the tensors of a checkpoint (LossRule::state).
  void add_state(TrainingSession& session, std::vector<TensorSource>& sources);
  // Returns a warning if the weights differ from the saved run's; otherwise "". Compares nothing if the
  // saved run had another number of reward models.
  std::string restore(const CheckpointReader& checkpoint);

  // Makes the calls of score() for a step on a rank that measures memory.
  void measure(TrainingSession& session);
  // Returns the score of each text, as its reward. A text that is too long, and a score that is not finite,
  // have no reward. All ranks call it together; ranks with the same data pass the same texts.
  std::vector<Reward> score(TrainingSession& session, std::int64_t model,
                            std::span<const RewardTokens> texts);

 private:
  struct Running;  // what computes the scores of a model
  const std::vector<std::int64_t>& fingerprints();
  // Returns the largest `passes` of all data ranks.
  std::int64_t most_passes(TrainingSession& session, std::int64_t passes);

  std::vector<RewardModel> models_;
  std::vector<std::unique_ptr<Running>> running_;
  std::vector<std::int64_t> fingerprints_;  // one hash per model; empty: not computed yet
  Tensor passes_;                           // fp32 [1]; absent with one data rank
};

}  // namespace primus
