// Temporary folders and small corpora for the data tests.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace primus::data {

using test::TemporaryFolder;

inline std::string read_all(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Runs `action`, which must throw an Error, and returns the text of the error.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  ADD_FAILURE() << "the action threw no error";
  return "";
}

}  // namespace primus::data
