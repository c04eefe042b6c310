#include "lm/train/step/token_scorer.h"

#include <utility>

#include "base/check.h"
#include "engine/parallel/parallel_operators.h"

namespace primus {

TokenScorer::TokenScorer(engine::Rank& rank, ModelInstance& model, const StepSettings& settings,
                         const Options& options)
    : rank_(rank),
      model_(model),
      values_(options.values),
      inputs_(rank, model.model(), settings),
      runner_(rank, model.parallel(), static_cast<engine::ChunkedModel&>(*this),
              {.schedule = engine::make_schedule(settings.pipeline.schedule, rank.mesh().shape().pipeline,
                                                 settings.pipeline.chunks, settings.microbatches),
               .stage = rank.mesh().place().stage,
               .pipeline = rank.mesh().pipeline(),
               .dtype = settings.compute,
               .shape = {inputs_.held_tokens() / rank.mesh().shape().tensor,
                         model.model().config().streams() * model.model().config().hidden},
               .adapters = options.adapters}),
      tape_(rank.context(), rank.stash()) {}

void TokenScorer::score(const data::BatchView& batch, const Tensor& out) {
  PRIMUS_CHECK("TokenScorer::score", out.absent() || out.shape[0] == tokens());
  if (!rank_.measuring()) rank_.compute().synchronize();  // waits for the copies of the previous batch
  inputs_.stage(staging_, batch, 0, 1.0, false);
  // The weights are 1, so that every token has its unweighted loss.
  staging_.loss_weights.assign(staging_.loss_weights.size(), 1.0F);
  out_ = out;
  try {
    runner_.evaluate(tape_, 0);
  } catch (...) {
    inputs_.abandon();
    throw;
  }
}

engine::ChunkedModel::Outputs TokenScorer::forward(engine::Tape& tape, int chunk, std::int64_t,
                                                   engine::Value x) {
  const ModelInputs in = inputs_.place(tape, chunk, false, staging_);
  const LanguageModel& model = model_.model();
  engine::Value hidden = model.forward(chunk, in, std::move(x));
  if (!model.last(chunk)) return {.next = std::move(hidden), .losses = {}};
  switch (values_) {
    case Values::kLosses:
      return {.next = {}, .losses = {model.loss(hidden, in)}};
    case Values::kEntropies:
      return {.next = {}, .losses = {model.entropies(hidden, in)}};
    case Values::kHeadInputs:
      return {.next = {}, .losses = {model.head_inputs(hidden)}};
  }
  PRIMUS_CHECK("TokenScorer::forward", false);
  return {};
}

void TokenScorer::losses_ready(const std::vector<engine::Value>& losses) {
  if (rank_.measuring()) return;
  rank_.compute().copy_on_device(out_.data, losses.front().tensor().data, out_.bytes());
}

}  // namespace primus
