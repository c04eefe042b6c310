// Losses of single tokens by a model of this rank, without gradients: log-probabilities of a reference model,
// or of the trained one without its adapters. Passes run outside of a step's schedule, between steps; all
// ranks of the mesh make the same ones in the same order. Not thread-safe.
#pragma once

#include <cstdint>

#include "engine/schedule_runner.h"
#include "engine/tape.h"
#include "lm/train/model_instance.h"
#include "lm/train/step_inputs.h"

namespace primus {

class TokenScorer : private engine::ChunkedModel {
 public:
  struct Options {
    bool adapters = true;  // false: leaves LoRA's adapters out, so the base model answers
  };

  // `settings`: of the training step, whose batches it scores. All must outlive this.
  TokenScorer(engine::Rank& rank, ModelInstance& model, const StepSettings& settings, const Options& options);

  // out = -ln p(label) of each token of the batch, for kernels enqueued from now on: fp32 [tokens()], on
  // ranks that have the last part of the model; others leave it as it is. Waits for the batch before, whose
  // copy on the host it takes. The batch is not looked at while measuring.
  void score(const data::BatchView& batch, const Tensor& out);
  std::int64_t tokens() const { return inputs_.held_tokens(); }

 private:
  Outputs forward(engine::Tape& tape, int chunk, std::int64_t microbatch, engine::Value x) override;
  void losses_ready(const std::vector<engine::Value>& losses) override;

  engine::Rank& rank_;
  ModelInstance& model_;
  StepInputs inputs_;
  StepInputs::Staging staging_;
  engine::ScheduleRunner runner_;
  engine::Tape tape_;
  Tensor out_;
};

}  // namespace primus
