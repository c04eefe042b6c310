#include "lm/model/model_size.h"

#include "lm/model/language_model.h"

namespace primus {

ModelSize model_size(const ModelConfig& config, const FamilyRegistry& families) {
  engine::ParameterStore store;
  const LanguageModel model(config, families, store);
  ModelSize size;
  for (const engine::ParameterStore::Group& group : store.groups()) {
    for (const engine::Parameter* p : group.parameters) {
      const std::int64_t elements = p->shape.elements();
      size.parameters += elements;
      size.active += p->per_expert ? elements / config.moe.experts * config.moe.router.top_k : elements;
    }
  }
  return size;
}

}  // namespace primus
