#include "engine/runtime/shared_parameters.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"

namespace primus::engine {

bool is_shared(const ParameterStore& store, const Parameter& parameter) {
  if (!parameter.unit) return false;
  const auto number = static_cast<std::size_t>(parameter.unit->number);
  return number >= store.units().size() || &store.units()[number] != parameter.unit;
}

void allocate_beside(ParameterStore& store, const ParameterStore& base, const ParameterStore::Layout& layout,
                     Arena& arena, Shared which) {
  PRIMUS_CHECK("allocate_beside", !layout.train && layout.sharding == Sharding::kNone);
  std::map<std::string_view, const Parameter*> known;
  for (const Parameter& p : base.parameters()) known.emplace(p.name, &p);
  const auto wide = [](const Parameter& p) { return p.full_precision || p.reads_full_precision; };
  std::vector<std::pair<Parameter*, const Parameter*>> shared;
  for (ParameterStore::Group& group : store.groups()) {
    const std::size_t moved = std::erase_if(group.parameters, [&](Parameter* p) {
      if (p->trainable) return false;
      const auto found = known.find(p->name);
      if (found == known.end() || found->second->shape != p->shape || !found->second->unit ||
          wide(*found->second) != wide(*p)) {
        throw invalid("the base model has no parameter " + p->name + " of this shape",
                      "the adapters belong to another base model");
      }
      if (which == Shared::kFrozen && found->second->trainable) return false;
      shared.emplace_back(p, found->second);
      return true;
    });
    // The advice is about missing tensors of a complete group.
    if (moved > 0) group.if_missing.clear();
  }
  store.allocate(layout, arena);
  for (const auto& [own, of_base] : shared) {
    own->unit = of_base->unit;
    own->offset = of_base->offset;
    own->value = of_base->value;
  }
}

}  // namespace primus::engine
