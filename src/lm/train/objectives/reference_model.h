// The reference model of an objective: the trained model without its adapters. If the run has no adapters, it
// is a frozen model with the name "reference", whose weights the caller loads. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lm/train/step/loss_rule.h"
#include "lm/train/step/model_instance.h"
#include "lm/train/step/token_scorer.h"

namespace primus {

// Loads the weights of the frozen reference model. Called on every rank of the mesh.
using LoadReference = std::function<void(TrainingSession& session, ModelInstance& reference)>;

// A model of a session, and the way to evaluate it.
struct ScoredModel {
  ModelInstance& model;
  TokenScorer::Options options = {};
};
// Returns the reference model of a session whose rule has one.
ScoredModel reference_of(TrainingSession& session);
// Returns the settings of a TokenScorer for the batches of the session's steps.
StepSettings scorer_settings(const TrainingSession& session);

// Most functions correspond to those of a LossRule, which calls them in the same order.
class ReferenceModel {
 public:
  // `used`: whether the objective has a reference model. If not, the other functions do nothing.
  ReferenceModel(bool used, LoadReference load) : used_(used), load_(std::move(load)) {}

  bool used() const { return used_; }
  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const;
  void prepare(TrainingSession& session);
  void load_weights(TrainingSession& session) const;
  // Enqueues out = -ln p(label) of each token under the reference model; see TokenScorer::score(). Requires
  // used() and prepare().
  void score(const data::BatchView& batch, const Tensor& out) { scorer_->score(batch, out); }

 private:
  bool used_;
  LoadReference load_;
  std::optional<TokenScorer> scorer_;
};

}  // namespace primus
