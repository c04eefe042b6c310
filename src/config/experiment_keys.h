// The keys of an experiment outside the trainer's: its top level and a module. One table for the loader, the
// command line, the JSON Schema and the reference.
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
    ExperimentKey{"work_group", "team; first folder below workspace; primus when left out", false},
    ExperimentKey{"user_name",
                  "user; second folder below workspace; the user's name on this machine when left out",
                  false},
    ExperimentKey{
        "exp_name",
        "name of the run; third folder below workspace; the file's name without its ending when left out",
        false},
    ExperimentKey{"workspace", "folder for everything the run writes; ./output when left out", false},
    ExperimentKey{"modules",
                  "what to run: a trainer, pre_trainer or post_trainer; of several the command's own", true},
    ExperimentKey{"env", "environment variables to set for the run", false},
    ExperimentKey{"platform", "names of the launcher's variables; accepted for Primus and ignored", false},
    ExperimentKey{"extends", "file or files to inherit from, relative to this one; later ones win", false},
};

inline constexpr std::array kModuleKeys = {
    ExperimentKey{"framework",
                  "engine that trains: native, megatron, torchtitan or maxtext (native when left out)",
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
