#include "lm/model/family.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/suggest.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {

const Family& FamilyRegistry::find(std::string_view model_type) const {
  std::vector<std::string_view> names;
  std::string known;
  for (const Family& family : families_) {
    if (family.model_type == model_type) return family;
    if (std::ranges::find(family.other_names, model_type) != family.other_names.end()) return family;
    names.push_back(family.model_type);
    known += (known.empty() ? "" : ", ") + family.model_type;
  }
  const std::string nearest = did_you_mean(model_type, names);
  // The presets whose names begin with these words train another architecture than the published weights
  // have.
  std::string other;
  for (const std::string_view name : {"grok", "minimax"}) {
    if (model_type.starts_with(name))
      other = "the preset of this name trains another architecture, which does not fit these weights; ";
  }
  throw unsupported("model_type '" + printable(model_type) + "' is not a supported model family",
                    other + (nearest.empty() ? "" : nearest + " ") + "families: " + known);
}

#include "lm/model/families.def"  // generated: kAllFamilyEntry

FamilyRegistry builtin_families() {
  FamilyRegistry registry;
  for (const FamilyEntry* entry : kAllFamilyEntry) registry.add(entry->make());
  return registry;
}

engine::Parameter& declare(engine::ParameterStore& store, int chunk, std::string name, Shape shape,
                           engine::Initializer initializer, std::vector<engine::CheckpointPart> parts,
                           engine::Placement placement) {
  const auto group = placement.is_whole() ? engine::ReduceGroup::kTokens : engine::ReduceGroup::kData;
  engine::Parameter& parameter =
      store.add(std::move(name), shape, initializer, std::move(parts), std::move(placement));
  parameter.group = group;
  parameter.uses.push_back(chunk);
  return parameter;
}

void refuse_unless(const nlohmann::json& json, const char* key, const nlohmann::json& neutral) {
  const auto it = json.find(key);
  if (it == json.end() || it->is_null() || *it == neutral) return;
  throw ConfigReader(json).not_supported(key, ": " + it->dump() + " is not supported for this model family",
                                         "only " + neutral.dump() + " is");
}

void write_rotary_fraction(const ModelConfig& config, nlohmann::json& json) {
  json["partial_rotary_factor"] = json["rope_parameters"]["partial_rotary_factor"] = config.rotary_fraction;
}

double shortest(float value) {
  const std::string text = fmt::format("{}", value);
  double same = 0;
  std::from_chars(text.data(), text.data() + text.size(), same);
  return same;
}

void read_expert_counts(const ConfigReader& reader, const char* key, ModelConfig& config) {
  using turbo::RouterRule;
  config.moe.experts = reader.integer(key, 1, RouterRule::kMaxExperts);
  config.moe.router.top_k = static_cast<std::int32_t>(
      reader.integer("num_experts_per_tok", 1, std::min(config.moe.experts, RouterRule::kMaxTopK)));
  config.set_layers(&LayerSpec::feed_forward, &kMixture);
}

}  // namespace primus
