// An objective's part of a training step: the work before the step (rollouts, log-probabilities of other
// models), and the weight of each token's loss, which is computed on the device.
//
// Every training loss is a weighted sum of -ln p(label) over tokens, and weights are constants in its
// gradient. So preference and policy-gradient losses are weights that depend on log-probabilities: for a loss
// L(s_1, ..., s_n) of sequence log-probabilities s_i, the weight of a token of sequence i is -dL/ds_i.
//
// A rule belongs to one session. A measuring rank makes the same calls but runs no kernels, so a rule must
// not read device memory there. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/rank.h"
#include "lm/data/batch.h"
#include "lm/model/model_config.h"
#include "tensor/tensor.h"

namespace primus {

class TrainingSession;

// A read-only model next to the trained one, sharded over the mesh in the same way.
struct FrozenModel {
  std::string name;  // name of the model: "reference"
  ModelConfig model;
};

// The arguments of LossRule::before_step.
struct BeforeStep {
  TrainingSession& session;
  std::int64_t step = 1;
  // This rank's microbatches of the step. A rule may replace the batches by other batches of the same size
  // (rollouts). Empty on a measuring rank.
  std::span<data::Batch> batches;
};

// The arguments of LossRule::weigh, on ranks with the last part of the model. Per-token tensors are fp32 [T]
// for the T tokens of this rank's sequences (with context parallelism, this rank's part of them).
struct TokenLosses {
  engine::Rank& rank;
  std::int64_t microbatch = 0;  // index in BeforeStep::batches
  Tensor losses;                // -ln p(label) of every token under the trained weights
  Tensor weights;               // in: the mask divided by its sum over the step; out: the weight of each loss
  Tensor metrics;  // [metrics().size()] fp32: weigh() adds to it; the result is summed over microbatches and
                   // ranks
};

class LossRule {
 public:
  virtual ~LossRule() = default;

  // Returns the frozen models that the rule needs.
  virtual std::vector<FrozenModel> frozen_models(const ModelConfig&) const { return {}; }
  // Allocates persistent memory. The session is complete except for its first step.
  virtual void prepare(TrainingSession&) {}
  // Loads the weights of frozen models. The trained weights, of this run or its checkpoint, are already
  // loaded.
  virtual void load_weights(TrainingSession&) {}
  // Runs before the microbatches of each step.
  virtual void before_step(const BeforeStep&) {}
  // Names of the sums that weigh() accumulates, for a step's metrics. The sum named "loss" is the step's
  // loss.
  virtual std::vector<std::string> metrics() const { return {}; }
  // Enqueues kernels that write `weights`.
  virtual void weigh(const TokenLosses& tokens) = 0;
};

// Creates a rule for a session. Null: no rule; the loss is the mean of -ln p(label).
using MakeLossRule = std::function<std::unique_ptr<LossRule>()>;

}  // namespace primus
