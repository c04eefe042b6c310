// The reference model of an objective: the trained model without its adapters. It is a frozen model with the
// name "reference", whose weights the caller loads, if the run has no adapters, or if the reference model has
// its own adapters (reference_adapters). A model with own adapters uses the frozen weights of the trained
// model, if possible. Not thread-safe.
#pragma once

#include <concepts>
#include <filesystem>
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

struct ReferenceWeights {
  ReferenceWeights() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): most callers have only a function
  template <std::convertible_to<LoadReference> F>
  ReferenceWeights(F function, std::filesystem::path folder = {})
      : load(std::move(function)), adapters(std::move(folder)) {}

  LoadReference load;
  std::filesystem::path adapters;  // PEFT folder of the reference model's own adapters; empty: it has none
};

// A model of a session, and the way to evaluate it.
struct ScoredModel {
  ModelInstance& model;
  TokenScorer::Options options = {};
};
// Returns the reference model of a session whose rule has one.
ScoredModel reference_of(TrainingSession& session);
// Returns the settings of a TokenScorer for the batches of the session's steps.
StepSettings scorer_settings(const TrainingSession& session);

// Most functions correspond to functions of a LossRule, which calls them in the same order.
class ReferenceModel {
 public:
  // `used`: whether the objective has a reference model. If not, the other functions do nothing.
  ReferenceModel(bool used, ReferenceWeights weights) : used_(used), weights_(std::move(weights)) {}

  bool used() const { return used_; }
  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const;
  void prepare(TrainingSession& session);
  void load_weights(TrainingSession& session) const;
  // Enqueues out = -ln p(label) of each token under the reference model; see TokenScorer::score(). Requires
  // used() and prepare().
  void score(const data::BatchView& batch, const Tensor& out) { scorer_->score(batch, out); }

 private:
  bool used_;
  ReferenceWeights weights_;
  std::optional<TokenScorer> scorer_;
};

}  // namespace primus
