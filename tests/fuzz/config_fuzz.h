// Checks one input of the config fuzzers and of the corpus test.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/experiment.h"

namespace primus::config {

// Loads `text` as the experiment `name`. It must load or throw an Error with a message. A loaded experiment
// must stay equal when it is written and read again. Any other outcome aborts.
inline void fuzz_experiment(std::string_view text, const std::string& name) {
  LoadOptions options;
  options.environment = [](const std::string& variable) -> std::optional<std::string> {
    if (variable == "NUMBER") return "7";
    if (variable == "LIST") return "[a, 1]";
    return std::nullopt;
  };
  options.preset_dirs.emplace();
  std::optional<Experiment> experiment;
  try {
    experiment = load_experiment_text(text, name, {}, options);
  } catch (const Error& error) {
    if (error.render().empty() || error.exit_code() == 0) std::abort();
    return;
  }
  const std::string yaml = to_yaml(*experiment);
  // The written experiment has no secrets. Environment variables supply the secrets when it is read again.
  options.environment = [&](const std::string& variable) -> std::optional<std::string> {
    const auto found = experiment->env.find(variable);
    return found == experiment->env.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  const Experiment again = load_experiment_text(yaml, "again.yaml", {}, options);
  if (!(again.trainer == experiment->trainer) || to_yaml(again) != yaml) std::abort();
  if (show(*experiment, true).empty()) std::abort();
}

}  // namespace primus::config
