#include "lm/train/session.h"

#include <algorithm>

namespace primus {

TrainingSession::TrainingSession(engine::Rank& rank, const SessionSettings& settings,
                                 const FamilyRegistry& families)
    : rank_(rank), model_(settings.model, families, store_) {
  store_.allocate({.compute = settings.compute, .gradients = true, .optimizer_states = true},
                  rank.persistent());
  model_.allocate_tables(rank, std::max(settings.step.sequence, settings.sample_capacity));
  optimizer_ = std::make_unique<Optimizer>(settings.adam, store_, rank);
  step_ = std::make_unique<TrainingStep>(rank, store_, model_, *optimizer_, settings.step);
  if (settings.sample_capacity > 0) {
    constexpr std::int64_t kChunk = 32;  // of a prompt, which is short
    reader_.emplace(
        rank, model_,
        ReaderSettings{.compute = settings.compute, .capacity = settings.sample_capacity, .chunk = kChunk});
  }
}

StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families) {
  TrainingSession session(rank, settings, families);
  session.store().initialize(rank.context(), 0);
  rank.meter().reset();
  TrainingStep& step = session.step();
  step.begin();
  // From the second one on, all microbatches do the same.
  step.microbatch(0, {});
  if (settings.step.microbatches > 1) {
    const turbo::Meter first = rank.meter();
    step.microbatch(1, {});
    const auto more = settings.step.microbatches - 2;
    for (std::size_t i = 0; i < first.lines.size(); ++i) {
      turbo::Meter::Line& line = rank.meter().lines[i];
      line.calls += more * (line.calls - first.lines[i].calls);
      line.flops += static_cast<double>(more) * (line.flops - first.lines[i].flops);
    }
  }
  step.finish_gradients();
  step.update(1, 0, 0);
  StepMeasurement measurement{
      .memory = {}, .kernels = rank.meter(), .parameters = session.store().elements()};
  if (settings.evaluation) {
    step.begin_evaluation();
    step.evaluate({});
  }
  if (session.reader()) session.reader()->measure();
  measurement.memory = rank.high_water();
  return measurement;
}

std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families) {
  rank.reserve(measure_session(rank, settings, families).memory);
  return std::make_unique<TrainingSession>(rank, settings, families);
}

}  // namespace primus
