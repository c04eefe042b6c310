// Tests of scripts/build-progress.sh, which shows the progress of a first build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

#include "base/files/file.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

using ::testing::HasSubstr;

std::string shown(const std::string& lines, const std::string& log, const char* environment) {
  const std::string command = "printf '%b' '" + lines + "' | " + environment +
                              " " PRIMUS_SOURCE_DIR "/scripts/build-progress.sh '" + log + "' 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> part;
  for (std::size_t count; (count = std::fread(part.data(), 1, part.size(), pipe)) > 0;)
    text.append(part.data(), count);
  EXPECT_EQ(::pclose(pipe), 0);
  return text;
}

TEST(BuildProgress, ReportsTheFinishedShare) {
  const test::TemporaryFolder folder;
  const std::string log = (folder.path() / "build.log").string();
  std::string lines = "-- Configuring done\\n[x/y] odd\\n[0/0] odd\\n";
  for (int i = 1; i <= 40; ++i) lines += "[" + std::to_string(i) + "/40] Building CXX object\\n";
  const std::string often = shown(lines, log, "PRIMUS_PROGRESS_SECONDS=0");
  EXPECT_THAT(often, HasSubstr("\n25 %, step 10 of 40\n")) << "too few steps for an estimate";
  EXPECT_THAT(often, HasSubstr("\n50 %, step 20 of 40, about 1 min left\n"));
  EXPECT_THAT(often, HasSubstr("\n100 %, step 40 of 40\n"));
  EXPECT_THAT(read_file(log), testing::StartsWith("-- Configuring done\n[x/y] odd\n"));
  EXPECT_THAT(read_file(log), testing::EndsWith("[40/40] Building CXX object\n"));
  EXPECT_EQ(shown(lines, log, ""), "") << "by default, one line in 20 seconds";
}

}  // namespace
}  // namespace primus
