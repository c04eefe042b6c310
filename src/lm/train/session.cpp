#include "lm/train/session.h"

#include <algorithm>

namespace primus {

TrainingSession::TrainingSession(engine::Rank& rank, const SessionSettings& settings,
                                 const FamilyRegistry& families)
    : rank_(rank), model_(settings.model, families, store_) {
  std::unique_ptr<UpdateRule> rule = adamw_rule(settings.adam);
  const engine::Mesh& mesh = rank.mesh();
  store_.allocate({.compute = settings.compute,
                   .train = true,
                   .states = rule->states(),
                   .sharding = settings.sharding,
                   .ranks = mesh.size(),
                   .rank = mesh.rank(),
                   .shards = mesh.shards(),
                   .reduce_each_microbatch = settings.reduce_each_microbatch},
                  rank.persistent());
  model_.allocate_tables(rank, std::max(settings.step.sequence, settings.sample_capacity));
  parallel_ = std::make_unique<engine::DataParallel>(rank, store_, settings.parallel);
  optimizer_ =
      std::make_unique<Optimizer>(std::move(rule), settings.adam.clip_norm, store_, *parallel_, rank);
  step_ = std::make_unique<TrainingStep>(rank, *parallel_, model_, *optimizer_, settings.step);
  if (settings.sample_capacity > 0) {
    constexpr std::int64_t kChunk = 32;  // of a prompt, which is short
    reader_.emplace(
        rank, model_,
        ReaderSettings{.compute = settings.compute, .capacity = settings.sample_capacity, .chunk = kChunk});
  }
}

StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families) {
  SessionSettings measured = settings;
  // All microbatches between the first and the last do the same.
  measured.step.microbatches = std::min<std::int64_t>(settings.step.microbatches, 3);
  TrainingSession session(rank, measured, families);
  session.store().initialize(rank.context(), 0);
  TrainingStep& step = session.step();
  turbo::Meter& meter = rank.meter();
  turbo::Meter first, second;  // after the first and the second microbatch
  const auto whole_step = [&] {
    meter.reset();
    step.begin();
    step.microbatch(0, {});
    first = meter;
    if (measured.step.microbatches > 1) step.microbatch(1, {});
    second = meter;
    if (measured.step.microbatches > 2) step.microbatch(2, {});
    step.finish_gradients();
    step.update(1, 0, 0);
  };
  const auto evaluate = [&] {
    if (!settings.evaluation) return;
    step.begin_evaluation();
    step.evaluate({});
    step.evaluation_loss();
  };
  whole_step();
  turbo::Meter kernels = meter;
  const auto more = static_cast<double>(settings.step.microbatches - measured.step.microbatches);
  for (std::size_t i = 0; i < kernels.lines.size(); ++i) {
    kernels.lines[i].calls +=
        static_cast<std::int64_t>(more) * (second.lines[i].calls - first.lines[i].calls);
    kernels.lines[i].flops += more * (second.lines[i].flops - first.lines[i].flops);
  }
  evaluate();
  if (settings.sharding == engine::Sharding::kParameters) {
    // The passes so far have taught which parameters are gathered ahead, which takes memory.
    whole_step();
    evaluate();
  }
  if (session.reader()) session.reader()->measure();
  return {.memory = rank.high_water(), .kernels = kernels, .parameters = session.store().elements()};
}

std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families) {
  rank.reserve(measure_session(rank, settings, families).memory);
  return std::make_unique<TrainingSession>(rank, settings, families);
}

}  // namespace primus
