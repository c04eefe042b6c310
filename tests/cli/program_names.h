// Using-declarations for tests that run the program.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {

using nlohmann::json;
using test::ProgramResult;
using test::run_program;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

}  // namespace primus
