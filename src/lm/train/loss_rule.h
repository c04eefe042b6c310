// How an objective shapes a training step: what happens before it (rollouts, log-probabilities of other
// models), and what each token's loss weighs, computed on the device.
//
// Every loss that is trained on is a weighted sum of -ln p(label) over tokens, whose gradient is that of the
// weights as they are. So preference and policy-gradient losses are weights that depend on log-probabilities:
// with L(s_1, ..., s_n) of sequences' log-probabilities s_i, the weight of a token of sequence i is -dL/ds_i.
//
// A rule belongs to one session. The same calls are made on a measuring rank, whose kernels do not run: a
// rule must not read device memory there. Not thread-safe.
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

// A model beside the one that is trained: it is only read, and the mesh shares it in the same way.
struct FrozenModel {
  std::string name;  // "reference"
  ModelConfig model;
};

// The arguments of LossRule::before_step.
struct BeforeStep {
  TrainingSession& session;
  std::int64_t step = 1;
  // This rank's microbatches of the step. A rule may write others in their place (rollouts), of the same
  // size. Empty ones on a measuring rank.
  std::span<data::Batch> batches;
};

// The arguments of LossRule::weigh, on ranks that have the last part of the model. Values of tokens are
// fp32 [T], T tokens of this rank's sequences (of a context rank, its own part of them).
struct TokenLosses {
  engine::Rank& rank;
  std::int64_t microbatch = 0;  // index in BeforeStep::batches
  Tensor losses;                // -ln p(label) of every token, by the weights that are trained
  Tensor weights;               // in: the mask, divided by its sum over the step; out: what each loss weighs
  Tensor metrics;               // [metrics().size()] fp32: sums over microbatches and ranks, to be added to
};

class LossRule {
 public:
  virtual ~LossRule() = default;

  // The models that are frozen beside the trained one.
  virtual std::vector<FrozenModel> frozen_models(const ModelConfig&) const { return {}; }
  // Takes persistent memory. The session is complete but for its first step.
  virtual void prepare(TrainingSession&) {}
  // Loads the weights of frozen models; those of the trained one are there, of this run or its checkpoint.
  virtual void load_weights(TrainingSession&) {}
  // Runs before the microbatches of each step, with its batches at hand.
  virtual void before_step(const BeforeStep&) {}
  // Names of what weigh() adds up, for the metrics of a step. One named "loss" stands for the step's loss.
  virtual std::vector<std::string> metrics() const { return {}; }
  // Enqueues kernels that write `weights`.
  virtual void weigh(const TokenLosses& tokens) = 0;
};

// Makes a rule for a session; null: the mean of -ln p(label), without a rule.
using MakeLossRule = std::function<std::unique_ptr<LossRule>()>;

}  // namespace primus
