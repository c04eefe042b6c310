// Reads a config.json that a test makes.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/files/file.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus::test {

// Returns the config.json of a golden model.
inline nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(
      read_file(Path(PRIMUS_SOURCE_DIR) / "tests/golden/models" / name / "config.json"));
}

inline ModelConfig read(const nlohmann::json& root) {
  return read_model_config(root.dump(), "config.json", builtin_families());
}

// Returns the text of the error that reading `root` gives.
inline std::string refusal(const nlohmann::json& root) {
  try {
    read(root);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_TRUE(error.location().starts_with("config.json")) << error.location();
    return error.what();
  }
  return "accepted";
}

}  // namespace primus::test
