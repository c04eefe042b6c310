// Logs of ranks, read from both ends, merged, and followed while they grow and rotate.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/log.h"
#include "base/temporary_folder.h"
#include "safe/jobs/log_view.h"

namespace primus::jobs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RankLogs : public ::testing::Test {
 protected:
  Path file(int rank, const std::string& name = "info.log") const {
    const Path folder = run_.path() / "logs/pre_trainer" / fmt::format("rank-{}", rank);
    std::filesystem::create_directories(folder);
    return folder / name;
  }
  void append(const Path& path, const std::string& text) const {
    std::ofstream(path, std::ios::binary | std::ios::app) << text;
  }
  static std::string line(int rank, int second, const std::string& text, const std::string& level = "INFO") {
    return fmt::format("[20261128 12:{:02}:{:02}][rank-{}/8]{:<11}[---------------trainer.cpp:118] : {}\n",
                       second / 60, second % 60, rank, "[" + level + "]", text);
  }
  LogView view(LogLevel level = LogLevel::kInfo) const {
    return LogView({.run = run_.path(), .level = level, .wanted = {}, .matches = {}});
  }
  static EntryFn into(std::vector<std::string>& texts) {
    return [&texts](const LogEntry& entry) {
      const auto header = read_header(entry.text);
      texts.push_back(header ? std::string(header->message) : entry.text);
    };
  }
  std::vector<std::string> last(std::size_t count, LogLevel level = LogLevel::kInfo) const {
    std::vector<std::string> texts;
    view(level).last(count, into(texts));
    return texts;
  }
  std::vector<std::string> all() const {
    std::vector<std::string> texts;
    view().all(into(texts));
    return texts;
  }

  test::TemporaryFolder run_;
};

TEST_F(RankLogs, ReadTheHeaderOfTheLogger) {
  {
    Logger log({.folder = file(3).parent_path().string(), .rank = 3, .world_size = 8});
    log.warning("disk [{}] : full\nsecond", "a");
  }
  std::vector<LogEntry> entries;
  view().all([&](const LogEntry& entry) { entries.push_back(entry); });
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].rank, 3);
  EXPECT_EQ(entries[0].module, "pre_trainer");
  EXPECT_EQ(entries[0].level, LogLevel::kWarning);
  EXPECT_GT(entries[0].time, 20260101000000);
  const auto header = read_header(entries[0].text);
  ASSERT_TRUE(header);
  EXPECT_TRUE(header->place.starts_with("rank_log_test.cpp:")) << header->place;
  EXPECT_TRUE(header->message.starts_with("disk [a] : full")) << header->message;
}

TEST_F(RankLogs, OtherTextIsNoHeader) {
  const std::string good = line(0, 1, "x");
  ASSERT_TRUE(read_header(good));
  for (std::size_t size = 0; size < good.find("INFO]") + 5; ++size)
    EXPECT_FALSE(read_header(good.substr(0, size))) << size;
  for (const char* text : {"", "[", "[20261128 12:00:00]", "[20261128 12:00:00][rank-0/1][LOUD] x",
                           "[2026112a 12:00:00][rank-0/1][INFO] x", "[20261128 12:00:00][node-0][INFO] x"})
    EXPECT_FALSE(read_header(text)) << text;
  EXPECT_TRUE(read_header("[20261128 12:00:00][rank-0/1][INFO]"));  // damaged, but its time is known
}

TEST_F(RankLogs, MergesByTimeAndKeepsContinuationLines) {
  append(file(0), line(0, 1, "a") + line(0, 3, "d") + "  more of d\n\n" + line(0, 3, "e"));
  append(file(1), line(1, 2, "b") + line(1, 2, "c") + line(1, 3, "f"));
  const std::vector<std::string> expected{"a", "b", "c", "d\n  more of d\n", "e", "f"};
  EXPECT_EQ(all(), expected);
  for (std::size_t count = 0; count <= 8; ++count) {
    const std::size_t from = expected.size() - std::min(count, expected.size());
    EXPECT_EQ(last(count),
              std::vector<std::string>(expected.begin() + static_cast<std::ptrdiff_t>(from), expected.end()));
  }
}

TEST_F(RankLogs, ChoosesTheFileOfTheLevel) {
  append(file(0, "debug.log"), line(0, 1, "d", "DEBUG") + line(0, 2, "i") + line(0, 3, "e", "ERROR"));
  append(file(0, "error.log"), line(0, 3, "e", "ERROR"));
  EXPECT_THAT(last(9, LogLevel::kError), ElementsAre("e"));
  EXPECT_THAT(last(9, LogLevel::kInfo), ElementsAre("i", "e"));  // from debug.log
  EXPECT_THAT(last(9, LogLevel::kDebug), ElementsAre("d", "i", "e"));
}

TEST_F(RankLogs, ALineThatIsBeingWrittenIsNotShown) {
  append(file(0), line(0, 1, "a") + "[20261128 12:00:02][rank-0/8][INFO]   [--tr");
  EXPECT_THAT(last(5), ElementsAre("a"));
  EXPECT_THAT(all(), ElementsAre("a"));
}

TEST_F(RankLogs, HostileFilesAreText) {
  std::string garbage(3 << 20, 'x');  // no line end
  garbage[100] = '\0';
  append(file(0), garbage + "\n" + line(0, 9, "a"));
  append(file(1), "\n\n" + std::string(100, '\xff') + "\n");
  std::filesystem::create_directories(file(2, "info.log"));
  std::filesystem::create_symlink("/etc/passwd", file(3, "info.log"));
  std::filesystem::create_directories(run_.path() / "logs/pre_trainer/rank-99999999999999");
  std::filesystem::create_directories(run_.path() / "logs/pre_trainer/rank--1");
  const auto bytes = [](const std::vector<std::string>& texts) {
    std::size_t sum = 0;
    for (const std::string& text : texts) sum += text.size();
    return sum;
  };
  EXPECT_GE(bytes(all()), garbage.size());
  EXPECT_GE(bytes(last(1000)), garbage.size());
  EXPECT_THAT(last(1), ElementsAre(::testing::EndsWith(std::string(100, '\xff'))));
}

// The last entries equal the end of all entries, for random logs with rotations, foreign lines and clocks.
TEST_F(RankLogs, BothDirectionsAgree) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int rank = 0; rank < 5; ++rank) {
    int second = 0;
    for (int part = below(4); part >= 0; --part) {
      const Path path = file(rank, part == 0 ? "info.log" : fmt::format("info.{}.log", part));
      for (int i = below(400); i > 0; --i) {
        second += below(4);
        append(path, line(rank, second,
                          fmt::format("r{} p{} i{} {}", rank, part, i,
                                      std::string(static_cast<std::size_t>(below(900)), 'y'))));
        for (int more = below(20); more > 15; --more) append(path, fmt::format("  more {}\n", more));
      }
    }
  }
  const std::vector<std::string> expected = all();
  ASSERT_GT(expected.size(), 200U);
  for (const std::size_t count : {1U, 2U, 17U, 200U, 100000U}) {
    const std::size_t from = expected.size() - std::min<std::size_t>(count, expected.size());
    EXPECT_EQ(last(count),
              std::vector<std::string>(expected.begin() + static_cast<std::ptrdiff_t>(from), expected.end()))
        << count;
  }
}

// A file of 64 GiB whose last lines are read at once.
TEST_F(RankLogs, TheLastLinesOfALargeFileCostLittle) {
  append(file(0), line(0, 1, "first"));
  std::filesystem::resize_file(file(0), std::uint64_t{64} << 30);
  std::string text = "\n";
  for (int i = 0; i < 10; ++i) text += line(0, 2, fmt::format("{}", i));
  append(file(0), text);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(last(3), ElementsAre("7", "8", "9"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(RankLogs, FollowsRotationsAndNewRanks) {
  append(file(0), line(0, 1, "a") + line(0, 2, "b"));
  LogView following = view();
  std::vector<std::string> texts;
  const auto seen = [&] { return std::exchange(texts, {}); };
  following.last(1, into(texts));
  EXPECT_THAT(seen(), ElementsAre("b"));
  following.follow(into(texts));
  EXPECT_THAT(seen(), IsEmpty());
  append(file(0), "[20261128 12:00:03][rank-0/8][INFO]     [--t.cpp:1] : ha");
  following.follow(into(texts));
  EXPECT_THAT(seen(), IsEmpty());
  append(file(0), "lf\n  and more\n");
  append(file(1), line(1, 2, "new rank"));
  following.follow(into(texts));
  EXPECT_THAT(seen(), ElementsAre("new rank", "half\n  and more"));
  append(file(0), line(0, 4, "before"));
  std::filesystem::rename(file(0), file(0, "info.1.log"));
  append(file(0), line(0, 5, "between"));
  std::filesystem::rename(file(0, "info.1.log"), file(0, "info.2.log"));
  std::filesystem::rename(file(0), file(0, "info.1.log"));
  append(file(0), line(0, 6, "after"));
  following.follow(into(texts));
  EXPECT_THAT(seen(), ElementsAre("before", "between", "after"));
  std::filesystem::resize_file(file(0), 0);  // a new run in the same folder
  append(file(0), line(0, 7, "z"));
  following.follow(into(texts));
  EXPECT_THAT(seen(), ElementsAre("z"));
}

TEST_F(RankLogs, FollowingKeepsAnEntryTogetherThatIsWrittenSlowly) {
  LogView following = view();
  std::vector<std::string> texts;
  const auto seen = [&](double now) {
    following.follow(into(texts), now);
    return std::exchange(texts, {});
  };
  append(file(0), line(0, 1, "stack of rank 0"));
  EXPECT_THAT(seen(10), IsEmpty());
  append(file(0), "  frame 1\n");
  EXPECT_THAT(seen(10.8), IsEmpty());
  append(file(0), "  frame");
  EXPECT_THAT(seen(11.6), IsEmpty());
  EXPECT_THAT(seen(13), IsEmpty());  // its last line is unfinished
  append(file(0), " 2\n" + line(0, 2, "next"));
  EXPECT_THAT(seen(14), ElementsAre("stack of rank 0\n  frame 1\n  frame 2"));
  EXPECT_THAT(seen(14.5), IsEmpty());
  EXPECT_THAT(seen(15.1), ElementsAre("next"));
  append(file(0), line(0, 3, "last"));
  EXPECT_THAT(seen(16), IsEmpty());
  following.follow(into(texts));  // the user ends the command
  EXPECT_THAT(texts, ElementsAre("last"));
}

TEST_F(RankLogs, FollowsAfterAll) {
  append(file(0), line(0, 1, "a"));
  LogView following = view();
  std::vector<std::string> texts;
  following.all(into(texts));
  append(file(0), line(0, 2, "b"));
  following.follow(into(texts));
  EXPECT_THAT(texts, ElementsAre("a", "b"));
}

// A process that was killed leaves a last line without an end, which may tell why.
TEST_F(RankLogs, TheLastLineOfAnEndedRunIsShown) {
  append(file(0), line(0, 1, "one") + "[20261128 12:00:02][rank-0/8][INFO]     [x.cpp:1] : tor");
  const auto ended = [&] {
    return LogView({.run = run_.path(), .wanted = {}, .matches = {}, .unfinished = true});
  };
  std::vector<std::string> texts;
  ended().last(10, into(texts));
  EXPECT_THAT(texts, ElementsAre("one", "tor"));
  texts.clear();
  ended().all(into(texts));
  EXPECT_THAT(texts, ElementsAre("one", "tor"));
}

TEST_F(RankLogs, FollowingHoldsALineUntilItIsComplete) {
  append(file(0), line(0, 1, "one") + "second li");
  LogView followed = view();
  std::vector<std::string> texts;
  followed.last(10, into(texts));
  for (double now = 0; now < 60; now += 0.5) followed.follow(into(texts), now);
  EXPECT_THAT(texts, ElementsAre("one"));
  append(file(0), "ne\nthird");
  for (double now = 60; now < 80; now += 0.5) followed.follow(into(texts), now);
  EXPECT_THAT(texts, ElementsAre("one", "second line"));
  followed.finish(into(texts));
  EXPECT_THAT(texts, ElementsAre("one", "second line", "third"));
}

// Lines that come later belong to the entry before, and have its level.
TEST_F(RankLogs, FollowingKeepsTheLevelOfLateLines) {
  append(file(0), line(0, 1, "bad", "ERROR"));
  LogView followed = view(LogLevel::kError);
  std::vector<std::string> texts;
  followed.all(into(texts));
  append(file(0), line(0, 2, "info"));
  for (double now = 0; now < 5; ++now) followed.follow(into(texts), now);
  append(file(0), "more of info\n");
  for (double now = 5; now < 9; ++now) followed.follow(into(texts), now);
  append(file(0), line(0, 3, "worse", "ERROR"));
  for (double now = 10; now < 15; ++now) followed.follow(into(texts), now);
  append(file(0), "more of worse\n");
  for (double now = 15; now < 20; ++now) followed.follow(into(texts), now);
  EXPECT_THAT(texts, ElementsAre("bad", "worse", "more of worse"));
}

TEST_F(RankLogs, ATruncatedFileJoinsNoLines) {
  append(file(0), line(0, 1, "one") + "a line without end");
  LogView followed = view();
  std::vector<std::string> texts;
  followed.last(10, into(texts));
  followed.follow(into(texts), 0);
  std::filesystem::resize_file(file(0), 0);
  append(file(0), line(0, 2, "two"));
  followed.follow(into(texts), 1);
  followed.finish(into(texts));
  EXPECT_THAT(texts, ElementsAre("one", "a line without end", "two"));
}

}  // namespace
}  // namespace primus::jobs
