// Helpers for the config tests: experiments from text, a private environment, and errors as users see them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "../base/temporary_folder.h"
#include "base/error.h"
#include "config/experiment.h"

namespace primus::config {

using test::TemporaryFolder;

// Returns a minimal valid experiment. `overrides` are indented lines such as "      lr: 1e-5\n".
inline std::string experiment_text(const std::string& overrides) {
  return "work_group: g\n"
         "user_name: u\n"
         "exp_name: e\n"
         "workspace: ./output\n"
         "modules:\n"
         "  pre_trainer:\n"
         "    framework: native\n"
         "    overrides:\n"
         "      num_layers: 2\n"
         "      hidden_size: 64\n"
         "      num_attention_heads: 4\n"
         "      vocab_size: 256\n"
         "      mock_data: true\n" +
         overrides;  // from line 14
}

using Variables = std::map<std::string, std::string>;

inline LoadOptions options_with(Variables variables = {},
                                std::vector<std::filesystem::path> preset_dirs = {}) {
  LoadOptions options;
  options.environment = [variables](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  options.preset_dirs = std::move(preset_dirs);
  return options;
}

inline Experiment load_text(const std::string& text, const std::vector<std::string>& arguments = {},
                            const Variables& variables = {}, const std::string& name = "exp.yaml") {
  return load_experiment_text(text, name, arguments, options_with(variables));
}

// Returns the rendered error of loading, or "" if it succeeds.
inline std::string error_of(const std::string& text, const std::vector<std::string>& arguments = {},
                            const Variables& variables = {}, const std::string& name = "exp.yaml") {
  try {
    load_text(text, arguments, variables, name);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
}

// Writes folder/name and returns its path.
inline std::filesystem::path write_file(const TemporaryFolder& folder, const std::string& name,
                                        const std::string& text) {
  const std::filesystem::path file = folder.path() / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
  return file;
}

}  // namespace primus::config
