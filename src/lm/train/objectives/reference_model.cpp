#include "lm/train/objectives/reference_model.h"

#include "base/check.h"
#include "lm/train/step/session.h"

namespace primus {

ScoredModel reference_of(TrainingSession& session) {
  const bool adapters = static_cast<bool>(session.model().config().lora);
  return {adapters ? session.trained() : session.frozen("reference"), {.adapters = !adapters}};
}

StepSettings scorer_settings(const TrainingSession& session) {
  StepSettings step = session.settings().step;
  step.compute = session.settings().compute;
  return step;
}

std::vector<FrozenModel> ReferenceModel::frozen_models(const ModelConfig& model) const {
  if (!used_ || model.lora) return {};
  PRIMUS_CHECK("ReferenceModel", load_ != nullptr);
  return {{.name = "reference", .model = model}};
}

void ReferenceModel::prepare(TrainingSession& session) {
  if (!used_) return;
  const ScoredModel reference = reference_of(session);
  scorer_.emplace(session.rank(), reference.model, scorer_settings(session), reference.options);
}

void ReferenceModel::load_weights(TrainingSession& session) const {
  if (!frozen_models(session.model().config()).empty()) load_(session, session.frozen("reference"));
}

}  // namespace primus
