#include "config/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>

#include "base/check.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

constexpr Stage kStages[] = {
#define PRIMUS_STAGE(...) __VA_ARGS__,
#include "config/stage_rows.def"  // generated from lm/train/objectives
#undef PRIMUS_STAGE
};

std::vector<std::string_view> stages_of(std::initializer_list<Material> materials) {
  std::vector<std::string_view> names;
  for (const Stage& stage : kStages) {
    if (std::ranges::find(materials, stage.material) != materials.end()) names.push_back(stage.name);
  }
  return names;
}

}  // namespace

std::span<const Stage> stages() { return kStages; }

std::vector<std::string_view> names_of_stages() {
  std::vector<std::string_view> names;
  for (const Stage& stage : kStages) names.push_back(stage.name);
  return names;
}

std::vector<std::string_view> stages_with_dataset_name() {
  return stages_of({Material::kConversations, Material::kPreferences, Material::kPrompts});
}

std::vector<std::string_view> stages_with_answers() {
  return stages_of({Material::kConversations, Material::kPreferences});
}

std::vector<std::string_view> stages_with_rewards() { return stages_of({Material::kPrompts}); }

std::string_view help_of_stages() {
  static const std::string help = [] {
    std::string text = "kind of training: ";
    for (const Stage& stage : kStages) {
      if (&stage != std::begin(kStages)) text += &stage == std::end(kStages) - 1 ? "; or " : "; ";
      text += stage.name;
      if (!stage.meaning.empty()) text += fmt::format(", {}", stage.meaning);
    }
    return text;
  }();
  return help;
}

const Stage& stage_of(const TrainerConfig& config) {
  const auto* const stage = std::ranges::find(kStages, config.stage, &Stage::name);
  PRIMUS_CHECK("config::stage_of", stage != std::end(kStages));
  return *stage;
}

bool generates_answers(const TrainerConfig& config) {
  const Stage& stage = stage_of(config);
  return stage.material == Material::kPrompts ||
         (stage.has_teacher && config.distillation_on_policy_share > 0);
}

bool separates_documents(const TrainerConfig& config) {
  if (generates_answers(config)) return true;
  switch (stage_of(config).material) {
    case Material::kText:
      return config.reset_attention_mask;
    case Material::kConversations:
      return config.enable_packed_sequences && config.use_packed_attention;
    case Material::kPreferences:
    case Material::kPrompts:
      return true;
  }
  return false;
}

}  // namespace primus::config
