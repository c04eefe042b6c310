#include "lm/decode/adapter_batch.h"

#include <algorithm>

#include "engine/runtime/parameters.h"
#include "lm/model/language_model.h"

namespace primus {

std::optional<std::string> needs_own_batch(const ModelConfig& base, const ModelConfig& model,
                                           const FamilyRegistry& families) {
  ModelConfig without = model;
  without.lora = {};
  if (without != base) return "its architecture has other settings than that of the base model";
  if (base.rope_scaling.kind == RopeScaling::Kind::kLongrope)
    return "its rotary factors depend on its longest text (longrope)";
  if (!model.lora.by_matrix.saved.empty()) return "some of its modules are trained without adapters";
  engine::ParameterStore store;  // only declared, never allocated
  const LanguageModel declared(model, families, store);
  if (std::ranges::any_of(store.parameters(),
                          [](const engine::Parameter& p) { return p.per_expert && p.low_rank; }))
    return "its experts have adapters";
  return {};
}

std::vector<std::size_t> models_of_one_batch(std::span<const ModelConfig> models,
                                             const FamilyRegistry& families) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (i == 0 || !needs_own_batch(models.front(), models[i], families)) found.push_back(i);
  }
  if (found.size() < 2) found.clear();
  return found;
}

}  // namespace primus
