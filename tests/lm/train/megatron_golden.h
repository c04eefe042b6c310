// Reads results of Megatron-LM (tests/golden/megatron), and translates its settings to those of Primus.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "config/experiment.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus::test {

inline const std::filesystem::path kMegatronGoldens =
    std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/megatron";

// Returns the model for settings with the names of Megatron's command line.
inline ModelConfig golden_model(const nlohmann::json& settings) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  const std::string text =
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: " +
      settings.dump() + "}}}";
  return model_config_of(config::load_experiment_text(text, "golden.yaml", {}, options), std::nullopt,
                         builtin_families());
}

}  // namespace primus::test
