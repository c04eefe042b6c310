#include "config/stages.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "config/trainer_config.h"

namespace primus::config {
namespace {

constexpr std::array<Stage, 3> kStages = {{
    {.name = "pretrain"},
    {.name = "mlperf_pretrain", .mlperf_log = true},
    {.name = "sft", .material = Material::kConversations, .fine_tunes = true},
}};

}  // namespace

std::span<const Stage> stages() { return kStages; }

const Stage& stage_of(const TrainerConfig& config) {
  const auto* const stage = std::ranges::find(kStages, config.stage, &Stage::name);
  PRIMUS_CHECK("config::stage_of", stage != kStages.end());
  return *stage;
}

bool separates_documents(const TrainerConfig& config) {
  switch (stage_of(config).material) {
    case Material::kText:
      return config.reset_attention_mask;
    case Material::kConversations:
      return config.enable_packed_sequences && config.use_packed_attention;
  }
  return false;
}

}  // namespace primus::config
