// Computes values of each token by a model on this rank, without gradients: log-probabilities of a reference
// model or of the trained model without its adapters, entropies, or the hidden states of a teacher. The
// forward passes run between steps. All ranks of the mesh make the same passes in the same order. Not
// thread-safe.
#pragma once

#include <cstdint>

#include "engine/parallel/schedule_runner.h"
#include "engine/runtime/tape.h"
#include "lm/train/step/model_instance.h"
#include "lm/train/step/step_inputs.h"

namespace primus {

class TokenScorer : private engine::ChunkedModel {
 public:
  // The values of a token.
  enum class Values : std::uint8_t {
    kLosses,      // -ln p(label)
    kEntropies,   // -sum p ln p of the token's distribution p
    kHeadInputs,  // LanguageModel::head_inputs(), a row of the model's width in the compute type
  };
  struct Options {
    bool adapters = true;  // false: LoRA adapters are ignored, so that the base model is evaluated
    Values values = Values::kLosses;
  };

  // `settings`: the settings of the training step whose batches are scored. All arguments must outlive this
  // object.
  TokenScorer(engine::Rank& rank, ModelInstance& model, const StepSettings& settings, const Options& options);

  // Enqueues out = the values of each token of the batch: fp32 [tokens()], or for kHeadInputs
  // [tokens(), width]. Written only on ranks with the last part of the model; other ranks may pass an absent
  // tensor. Waits for the previous batch, because the host copy of that batch is reused. Does not read the
  // batch while measuring.
  void score(const data::BatchView& batch, const Tensor& out);
  std::int64_t tokens() const { return inputs_.held_tokens(); }

 private:
  Outputs forward(engine::Tape& tape, int chunk, std::int64_t microbatch, engine::Value x) override;
  void losses_ready(const std::vector<engine::Value>& losses) override;

  engine::Rank& rank_;
  ModelInstance& model_;
  const Values values_;
  StepInputs inputs_;
  StepInputs::Staging staging_;
  engine::ScheduleRunner runner_;
  engine::Tape tape_;
  Tensor out_;
};

}  // namespace primus
