#include "safe/supervise/observation/wait_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace primus::supervise {
namespace {

using ::testing::ElementsAre;

TEST(WaitNotice, SaysWhatIsAwaitedAtGrowingIntervals) {
  std::vector<std::string> lines;
  const std::function<void(const std::string&)> say = [&](const std::string& line) { lines.push_back(line); };
  WaitNotice notice(say);
  std::vector<double> times;
  for (double now = 100; now < 1600; now += 0.5) {
    const std::size_t before = lines.size();
    notice.waits("node 1", now, 1600);
    if (lines.size() > before) times.push_back(now - 100);
  }
  EXPECT_THAT(times, ElementsAre(10, 30, 70, 150, 310, 610, 910, 1210));
  EXPECT_EQ(lines.at(0), "supervise: waiting for node 1 (10.0 s so far); the job ends in 24m 50s without it");
}

TEST(WaitNotice, AWaitMayHaveNoEnd) {
  std::string last;
  const std::function<void(const std::string&)> say = [&](const std::string& line) { last = line; };
  WaitNotice notice(say);
  for (const double now : {100, 110}) notice.waits("a file", now);
  EXPECT_EQ(last, "supervise: waiting for a file (10.0 s so far)");
}

TEST(WaitNotice, AnotherWaitBeginsAnew) {
  int lines = 0;
  const std::function<void(const std::string&)> say = [&](const std::string&) { ++lines; };
  WaitNotice notice(say);
  for (int i = 0; i < 100; ++i) {
    notice.waits(i % 2 == 0 ? "node 1" : "node 2", i, 1000);
    notice.waits("node 1", i, 1000);
    notice.over();
  }
  EXPECT_EQ(lines, 0);
}

}  // namespace
}  // namespace primus::supervise
