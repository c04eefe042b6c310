// A loss rule is the part of an objective that runs in a training step. A rule may do work before the step
// (rollouts, log-probabilities of other models). On the device, a rule computes the weight of each token's
// loss.
//
// A rule fits losses that depend on the log-probabilities of labels and on the entropies of the tokens'
// distributions. Such a loss has the gradient of a weighted sum of -ln p(label) and of entropies over tokens,
// with constant weights. For a loss L(s_1, ..., s_n) of the log-probabilities s_i of sequences, such as a
// preference or policy-gradient loss, the weight of each token of sequence i is -dL/ds_i. A bonus for entropy
// is a negative weight of the entropy. Further statistics of the distributions (LossRule::needs) may
// determine weights, but have no gradient. For models with a score per token in place of logits (reward and
// value models), a rule fits every loss of the scores. A rule with a teacher (LossRule::teacher) learns the
// teacher's distributions instead. Losses of other values of the logits are not supported.
//
// A rule belongs to one session. A measuring rank makes the same calls but runs no kernels, so a rule must
// not read device memory there. Not thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/runtime/rank.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/data/batch.h"
#include "lm/model/language_model.h"
#include "lm/model/model_config.h"
#include "tensor/tensor.h"

namespace primus {

class TrainingSession;

// A model that is only read, in addition to the trained model. Both models are sharded over the mesh in the
// same way.
struct FrozenModel {
  std::string name;  // name of the model: "reference", "teacher" or "reward_model"
  ModelConfig model;
  std::filesystem::path folder = {};  // of the weights; empty: the weights at the start of the run
  std::int64_t positions = 0;         // max number of tokens of a sequence; 0: as for the trained model
  // Whether the model differs from the trained one only by its adapters, so that it may use the frozen
  // weights of the trained model in memory.
  bool shares_base = false;
};

// The arguments of LossRule::before_step.
struct BeforeStep {
  TrainingSession& session;
  std::int64_t step = 1;
  // This rank's microbatches of the step. A rule may replace the batches by other batches of the same size
  // (rollouts). Empty on a measuring rank.
  std::span<data::Batch> batches;
};

// The arguments of LossRule::weigh, which runs on ranks with the last part of the model. Tensors with one
// value per token are fp32 [T], where T is the number of tokens on this rank (with context parallelism, a
// slice of each sequence).
struct TokenLosses {
  engine::Rank& rank;
  std::int64_t microbatch = 0;  // index in BeforeStep::batches
  // -ln p(label) of every token under the trained weights. For a model with scores (ModelConfig::scores), the
  // score of every token.
  Tensor losses;
  // At the call: the mask divided by its sum over the step. weigh() replaces it with the weight of each loss,
  // or with the derivative of the rule's loss with respect to each score.
  Tensor weights;
  // With TokenNeeds::statistics: the entropy -sum p ln p and the sum of p^2 of each token's distribution p.
  Tensor entropies = {}, collisions = {};
  // With TokenNeeds::entropy_weights: the weight of each entropy in the loss, 0 at the call.
  Tensor entropy_weights = {};
  Tensor metrics;  // [metrics().size()] fp32: weigh() adds its values; the sums over microbatches and ranks
                   // are the step's metrics
};

// An answer that a rule has generated, for people who watch the run.
struct GeneratedAnswer {
  std::int64_t step = 0;  // the step for which it was generated
  std::string prompt, text;
  std::int64_t tokens = 0;                                             // number of generated tokens
  bool finished = false;                                               // whether the model ended the answer
  std::vector<std::pair<std::string, std::optional<double>>> rewards;  // by function; empty: no reward
};

class LossRule;

// A second model that is trained in the same steps as the trained model, with its own optimizer states. The
// gradient norm, and therefore clipping, covers both models. Both models are sharded in the same way.
struct SecondModel {
  std::string name;  // name of the model: "value_model"
  ModelConfig model;
  LossRule* rule = nullptr;  // computes the weights of the model's losses
};

class LossRule {
 public:
  virtual ~LossRule() = default;

  // Returns the frozen models that the rule needs.
  virtual std::vector<FrozenModel> frozen_models(const ModelConfig&) const { return {}; }
  // Returns the second model that the run trains. The metrics of its rule follow this rule's metrics, and the
  // step's loss is the sum of both rules' losses. The second rule's before_step() is not called.
  virtual std::optional<SecondModel> second_model(const ModelConfig&) { return {}; }
  // Allocates persistent memory. Called when the session is complete, before its first step.
  virtual void prepare(TrainingSession&) {}
  // Loads the weights of frozen models. Called after the trained weights were loaded or initialized.
  virtual void load_weights(TrainingSession&) {}
  // Runs before the microbatches of each step.
  virtual void before_step(const BeforeStep&) {}
  // After before_step(): returns the number of the step's microbatches that have losses on any rank. The
  // weights of the later microbatches are 0, so a step may skip these microbatches (TrainingStep::may_skip).
  // The result is the same on all ranks and at least 1. Empty: all microbatches.
  virtual std::optional<std::int64_t> filled_microbatches() const { return {}; }
  // Returns metrics that the rule has computed on the host for the step of the last before_step(). In
  // StepResult::metrics, these metrics follow the metrics of weigh().
  virtual std::vector<std::pair<std::string, double>> host_metrics() const { return {}; }
  // Returns a second name under which StepResult::metrics contain the loss of that step; empty: there is
  // none.
  virtual std::string_view name_of_loss() const { return {}; }
  // Returns some answers of the newest generation on this rank, and removes them.
  virtual std::vector<GeneratedAnswer> take_answers() { return {}; }
  // Returns the names of the sums that weigh() accumulates for the metrics of a step. The sum named "loss" is
  // the loss of the step.
  virtual std::vector<std::string> metrics() const { return {}; }
  // Returns what weigh() needs besides the losses. Statistics cost a second pass over the logits.
  virtual TokenNeeds needs() const { return {}; }
  // Returns the teacher's operands for a microbatch, on ranks with the last part of the model. The loss is
  // then LanguageModel::distilled_loss(), and weigh() is not called. The result stays in place until the end
  // of the step. Null: the rule has no teacher.
  virtual const engine::Teacher* teacher(std::int64_t /*microbatch*/) const { return nullptr; }
  // Enqueues kernels that write `weights`, and perhaps `entropy_weights`.
  virtual void weigh(const TokenLosses& tokens) = 0;

  // Returns the tensors that a checkpoint after step `done` needs besides weights and optimizer states, so
  // that the next step does the same as without a pause. They are stored among the optimizer's tensors. All
  // ranks call this function, and list the same tensors.
  virtual std::vector<TensorSource> state(TrainingSession&, std::int64_t /*done*/) { return {}; }
  // Reads the tensors of state() from a checkpoint. Returns a warning for the log if the next step differs
  // from the step that the saved run would have done; otherwise "". Throws the errors of the checkpoint.
  virtual std::string restore(TrainingSession&, const CheckpointReader&) { return {}; }
};

// Creates the rule of a session. If null, there is no rule, and the loss is the mean of -ln p(label).
using MakeLossRule = std::function<std::unique_ptr<LossRule>()>;

}  // namespace primus
