#include "lm/train/session.h"

namespace primus {

TrainingSession::TrainingSession(engine::Rank& rank, const SessionSettings& settings,
                                 const FamilyRegistry& families)
    : rank_(rank), model_(settings.model, families, store_) {
  store_.allocate({.compute = settings.compute, .gradients = true, .optimizer_states = true},
                  rank.persistent());
  model_.allocate_tables(rank, settings.step.sequence);
  optimizer_ = std::make_unique<Optimizer>(settings.adam, store_, rank);
  step_ = std::make_unique<TrainingStep>(rank, store_, model_, *optimizer_, settings.step);
}

StepMeasurement measure_session(engine::Rank& rank, const SessionSettings& settings,
                                const FamilyRegistry& families) {
  TrainingSession session(rank, settings, families);
  session.store().initialize(rank.context(), 0);
  rank.meter().reset();
  TrainingStep& step = session.step();
  step.begin();
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) step.microbatch(i, {});
  step.finish_gradients();
  step.update(1, 0, 0);
  StepMeasurement measurement{
      .memory = {}, .kernels = rank.meter(), .parameters = session.store().elements()};
  if (settings.evaluation) {
    step.begin_evaluation();
    step.evaluate({});
  }
  measurement.memory = rank.high_water();
  return measurement;
}

std::unique_ptr<TrainingSession> open_session(engine::Rank& rank, const SessionSettings& settings,
                                              const FamilyRegistry& families) {
  rank.reserve(measure_session(rank, settings, families).memory);
  return std::make_unique<TrainingSession>(rank, settings, families);
}

}  // namespace primus
