// Lists the keys of an experiment that are not trainer keys: the keys at its top level and the keys of a
// module. The loader, the command line, the JSON Schema and the reference all use this table.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace primus::config {

struct ExperimentKey {
  std::string_view name;
  std::string_view help;
  bool required;
};

inline constexpr std::array kExperimentKeys = {
    ExperimentKey{"work_group", "team, the first folder below workspace (default: primus)", false},
    ExperimentKey{"user_name",
                  "user, the second folder below workspace (default: the user's name on this machine)",
                  false},
    ExperimentKey{
        "exp_name",
        "name of the run, the third folder below workspace (default: the file's name without its ending)",
        false},
    ExperimentKey{"workspace", "folder for everything that the run writes (default: ./output)", false},
    ExperimentKey{"modules",
                  "what to run: pre_trainer or post_trainer; if a file has both, the command chooses", true},
    ExperimentKey{"env", "environment variables to set for the run", false},
    ExperimentKey{"platform", "variable names of AMD Primus's launcher; accepted and ignored", false},
    ExperimentKey{"extends",
                  "file or files to inherit from, relative to this file; later files override earlier ones",
                  false},
};

inline constexpr std::array kModuleKeys = {
    ExperimentKey{"framework",
                  "engine that trains: native, megatron, torchtitan or maxtext (default: native); the native "
                  "engine also "
                  "runs experiments for megatron_bridge",
                  false},
    ExperimentKey{"config", "module preset", false},
    ExperimentKey{"model", "model preset", false},
    ExperimentKey{"overrides", "trainer keys", false},
};

inline bool is_experiment_key(std::string_view name) {
  return std::any_of(kExperimentKeys.begin(), kExperimentKeys.end(),
                     [&](const auto& key) { return key.name == name; });
}

inline bool is_module_key(std::string_view name) {
  return std::any_of(kModuleKeys.begin(), kModuleKeys.end(),
                     [&](const auto& key) { return key.name == name && name != "overrides"; });
}

}  // namespace primus::config
