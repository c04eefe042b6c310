#include "lm/train/objectives/reference_model.h"

#include <utility>

#include "base/check.h"
#include "lm/model/stated_adapters.h"
#include "lm/train/step/session.h"

namespace primus {

ScoredModel reference_of(TrainingSession& session) {
  const bool apart = session.has_frozen("reference");
  return {apart ? session.frozen("reference") : session.trained(), {.adapters = apart}};
}

StepSettings scorer_settings(const TrainingSession& session) {
  StepSettings step = session.settings().step;
  step.compute = session.settings().compute;
  return step;
}

std::vector<FrozenModel> ReferenceModel::frozen_models(const ModelConfig& model) const {
  const bool own_adapters = !weights_.adapters.empty();
  if (!used_ || (model.lora && !own_adapters)) return {};
  PRIMUS_CHECK("ReferenceModel", weights_.load != nullptr);
  if (!own_adapters) return {{.name = "reference", .model = model}};
  ModelConfig reference = model;
  reference.lora = {};
  reference.lora = read_adapters(weights_.adapters, reference, builtin_families());
  return {
      {.name = "reference", .model = std::move(reference), .folder = weights_.adapters, .shares_base = true}};
}

void ReferenceModel::prepare(TrainingSession& session) {
  if (!used_) return;
  const ScoredModel reference = reference_of(session);
  scorer_.emplace(session.rank(), reference.model, scorer_settings(session), reference.options);
}

void ReferenceModel::load_weights(TrainingSession& session) const {
  if (session.has_frozen("reference")) weights_.load(session, session.frozen("reference"));
}

}  // namespace primus
