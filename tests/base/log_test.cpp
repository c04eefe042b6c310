// Tests of the logger: files by level, rotation, full disks, consoles and threads.
#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/temporary_folder.h"

namespace primus {
namespace {

namespace fs = std::filesystem;

class LogTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name);
    std::vector<std::string> result;
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }

  const test::TemporaryFolder temporary_;
  const std::string root_ = temporary_.path().string(), folder_ = root_ + "/logs/pre_trainer/rank-0";
};

TEST_F(LogTest, EachFileHoldsItsLevelAndAbove) {
  Logger log({.folder = folder_});
  log.debug("one {}", 1);
  log.info("two");
  log.warning("three");
  log.error("four {:.1f}", 4.0);
  EXPECT_EQ(lines("debug.log").size(), 4U);
  EXPECT_EQ(lines("info.log").size(), 3U);
  EXPECT_EQ(lines("warning.log").size(), 2U);
  ASSERT_EQ(lines("error.log").size(), 1U);
  EXPECT_THAT(lines("error.log")[0], ::testing::EndsWith(" : four 4.0"));
  EXPECT_EQ(log.dropped(), 0U);
}

TEST_F(LogTest, ALineHasAmdPrimussForm) {
  Logger log({.folder = folder_, .rank = 7, .world_size = 8});
  log.info(" iteration        1/      50 | lm loss: 1.0E+00");
  const int line_number = __LINE__ - 1;
  const std::vector<std::string> text = lines("info.log");
  ASSERT_EQ(text.size(), 1U);
  const std::string& line = text[0];
  // [YYYYMMDD HH:MM:SS]
  ASSERT_GE(line.size(), 19U);
  const std::string mask = "[########_##:##:##]";
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == '#') {
      EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(line[i]))) << line;
    } else {
      EXPECT_EQ(line[i], mask[i] == '_' ? ' ' : mask[i]) << line;
    }
  }
  const std::string place = "log_test.cpp:" + std::to_string(line_number);
  EXPECT_EQ(line.substr(19), "[rank-7/8][INFO]     [" + std::string(23 - place.size(), '-') + place +
                                 "] :  iteration        1/      50 | lm loss: 1.0E+00");
}

TEST_F(LogTest, LevelsFilter) {
  Logger log({.folder = folder_, .file_level = LogLevel::kWarning});
  EXPECT_FALSE(log.enabled(LogLevel::kInfo));
  EXPECT_TRUE(log.enabled(LogLevel::kError));
  log.info("no");
  log.warning("yes");
  EXPECT_FALSE(fs::exists(folder_ + "/info.log"));
  EXPECT_EQ(lines("warning.log").size(), 1U);

  Logger silent({});
  EXPECT_FALSE(silent.enabled(LogLevel::kError));
  silent.error("nowhere");
  EXPECT_EQ(silent.dropped(), 0U);
}

TEST_F(LogTest, Rotates) {
  Logger log({.folder = folder_, .file_level = LogLevel::kError, .rotate_bytes = 1000, .rotations_kept = 2});
  for (int i = 0; i < 100; ++i) log.error("message number {:04}", i);
  EXPECT_TRUE(fs::exists(folder_ + "/error.log"));
  EXPECT_TRUE(fs::exists(folder_ + "/error.1.log"));
  EXPECT_TRUE(fs::exists(folder_ + "/error.2.log"));
  EXPECT_FALSE(fs::exists(folder_ + "/error.3.log"));
  for (const char* name : {"error.log", "error.1.log", "error.2.log"}) {
    EXPECT_LE(fs::file_size(folder_ + "/" + name), 1000U);
  }
  EXPECT_THAT(lines("error.log").back(), ::testing::EndsWith("0099"));
  // No line is lost or repeated between the files.
  std::vector<std::string> all = lines("error.2.log");
  for (const char* name : {"error.1.log", "error.log"}) {
    for (const std::string& line : lines(name)) all.push_back(line);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_THAT(all[i], ::testing::EndsWith(fmt::format("{:04}", 100 - all.size() + i)));
  }
}

TEST_F(LogTest, ContinuesAnExistingFile) {
  { Logger({.folder = folder_}).info("first run"); }
  { Logger({.folder = folder_}).info("second run"); }
  EXPECT_EQ(lines("info.log").size(), 2U);
}

TEST_F(LogTest, AFailedFileLosesLinesAndRecovers) {
  // A file has the folder's name, so that opening fails even for root.
  fs::create_directories(root_ + "/logs");
  std::ofstream(root_ + "/logs/pre_trainer") << "in the way";
  Logger log({.folder = folder_});
  log.info("lost");
  EXPECT_EQ(log.dropped(), 2U);  // debug.log and info.log
  fs::remove(root_ + "/logs/pre_trainer");
  log.info("kept");
  EXPECT_EQ(log.dropped(), 2U);
  EXPECT_EQ(lines("info.log").size(), 1U);
}

TEST_F(LogTest, AFullDiskLosesOnlyLines) {
  // Writing to /dev/full fails with ENOSPC every time.
  fs::create_directories(folder_);
  fs::create_symlink("/dev/full", folder_ + "/error.log");
  Logger log({.folder = folder_, .file_level = LogLevel::kError});
  for (int i = 0; i < 3; ++i) log.error("no room");
  EXPECT_EQ(log.dropped(), 3U);
}

TEST_F(LogTest, TheConsoleIsQuietByDefault) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  {
    Logger quiet({.console = {.fd = ends[1]}});
    quiet.info("not shown");
    Logger loud({.console_level = LogLevel::kInfo,
                 .console = {.fd = ends[1], .tty = true, .ansi = true, .color = true}});
    loud.info("shown");
    loud.write_to_files(LogLevel::kError, "not shown either");
  }
  close(ends[1]);
  std::array<char, 4096> buffer{};
  const ssize_t count = read(ends[0], buffer.data(), buffer.size());
  close(ends[0]);
  const std::string text(buffer.data(), static_cast<std::size_t>(count));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("not shown")));
  EXPECT_THAT(text, ::testing::StartsWith("\r\x1b[K["));
  EXPECT_THAT(text, ::testing::HasSubstr("\x1b[36mrank-0/1\x1b[0m"));
  EXPECT_THAT(text, ::testing::EndsWith(" : shown\n"));
}

TEST_F(LogTest, AClosedConsoleDoesNotEndTheProgram) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  Logger log({.folder = folder_, .console = {.fd = ends[1]}});
  log.error("to the file at least");
  close(ends[1]);
  EXPECT_EQ(log.dropped(), 1U);
  EXPECT_EQ(lines("error.log").size(), 1U);
}

TEST_F(LogTest, ControlCharactersAreEscaped) {
  Logger log({.folder = folder_});
  log.info("file '{}'", "evil\x1b]0;title\x07\r.txt");
  EXPECT_THAT(lines("info.log")[0], ::testing::EndsWith("file 'evil\\x1b]0;title\\x07\\x0d.txt'"));
}

TEST_F(LogTest, ThreadsDoNotMixLines) {
  Logger log(
      {.folder = folder_, .file_level = LogLevel::kInfo, .rotate_bytes = 20'000, .rotations_kept = 100});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log, t] {
      for (int i = 0; i < 250; ++i) log.info("thread {} says {:03} end", t, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    for (const std::string& line : lines(entry.path().filename().string())) {
      ++count;
      ASSERT_THAT(line, ::testing::AllOf(::testing::StartsWith("["), ::testing::EndsWith(" end")));
    }
  }
  EXPECT_EQ(count, 1000U);
}

}  // namespace
}  // namespace primus
