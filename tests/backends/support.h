// Helpers for tests of other frameworks: experiments from text, with the presets of the source tree.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "../base/temporary_folder.h"
#include "backends/job.h"
#include "base/error.h"
#include "config/experiment.h"

namespace primus::backends {

inline std::vector<Path> preset_dirs() { return {Path(PRIMUS_SOURCE_DIR) / "presets"}; }

inline config::BackendFields fields_of(const std::string& framework) {
  return config::BackendFields::load(framework, preset_dirs());
}

// Returns an experiment with the lines `module` in its module and the lines `overrides` in its overrides.
inline std::string experiment_text(const std::string& module, const std::string& overrides) {
  const auto indented = [](const std::string& lines, const std::string& by) {
    std::string text;
    for (std::size_t begin = 0; begin < lines.size();) {
      const std::size_t end = std::min(lines.find('\n', begin), lines.size());
      text += by + lines.substr(begin, end - begin) + "\n";
      begin = end + 1;
    }
    return text;
  };
  return "work_group: g\nuser_name: u\nexp_name: e\nworkspace: ./output\nmodules:\n  pre_trainer:\n" +
         indented(module, "    ") + "    overrides:\n" + indented(overrides, "      ");
}

inline config::Experiment load(const std::string& module, const std::string& overrides,
                               const std::vector<std::string>& arguments = {}, int ranks = 1) {
  config::LoadOptions options;
  options.preset_dirs = preset_dirs();
  options.environment = [ranks](const std::string& name) -> std::optional<std::string> {
    return name == "WORLD_SIZE" ? std::optional(std::to_string(ranks)) : std::nullopt;
  };
  return config::load_experiment_text(experiment_text(module, overrides), "exp.yaml", arguments, options);
}

inline ExternalJob render(const config::Experiment& experiment, const Path& checkout = "/sources") {
  return render_job(experiment, fields_of(experiment.framework), checkout, {});
}

// Returns the error of `call` as a user sees it, or "" if it succeeds.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.render();
  }
  return "";
}

}  // namespace primus::backends
