#include "lm/events/supervision.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>

#include "base/temporary_folder.h"

namespace primus {
namespace {

using test::TemporaryFolder;

void append(const Path& run, const std::string& text) {
  std::filesystem::create_directories(supervision_file(run).parent_path());
  std::ofstream(supervision_file(run), std::ios::app | std::ios::binary) << text;
}

TEST(Supervision, ReadsBackTheNewestLine) {
  const TemporaryFolder folder;
  EXPECT_FALSE(read_supervision(folder.path()));
  const RunTimes times{.wall = 100, .useful = 90.5, .repeated = 4, .restart = 3, .other = 2.5};
  append(folder.path(),
         R"({"event":"supervise_start","step":0,"time":1,"facts":{"restarts":0}})"
         "\n"
         R"({"event":"supervise_end","step":7,"time":2,"cause":"finished","facts":{"restarts":3,"times":)" +
             to_json(times) + "}}\n{torn");
  const auto read = read_supervision(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->restarts, 3);
  EXPECT_EQ(read->ended, "finished");
  EXPECT_EQ(to_json(read->times), to_json(times));
  EXPECT_EQ(describe(read->times),
            "useful 90.5 % of 1m 40s; lost: repeated steps 4.0 %, restart 3.0 %, other 2.5 %");
}

TEST(Supervision, ForeignContentIsNoError) {
  const TemporaryFolder folder;
  append(folder.path(),
         "[]\n{\"event\":\"supervise_end\",\"step\":1,\"facts\":{\"restarts\":-5,\"times\":[1]}}\n\xff\n");
  const auto read = read_supervision(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->restarts, 0);
  EXPECT_EQ(read->times.wall, 0);
}

// Each percentage is rounded, and their sum is 100.0.
TEST(Supervision, PercentagesAddUp) {
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    std::mt19937 random(seed);
    RunTimes times;
    times.wall = times.useful = static_cast<double>(random() % 1000);
    for (const RunTimes::Part& part : RunTimes::lost()) {
      const double seconds = random() % 3 == 0 ? 0 : 0.001 * static_cast<double>(random() % 100'000);
      times.*part.seconds = seconds;
      times.wall += seconds;
    }
    const std::string text = describe(times);
    int tenths = 0;
    for (std::size_t at = text.find(" %"); at != text.npos; at = text.find(" %", at + 1)) {
      const std::size_t begin = text.rfind(' ', at - 1) + 1;
      tenths += static_cast<int>(std::lround(10 * std::stod(text.substr(begin, at - begin))));
    }
    EXPECT_EQ(tenths, times.wall > 0 ? 1000 : 0) << text;
  }
}

TEST(Supervision, ARunWithoutTimesHasNoGoodput) {
  const TemporaryFolder folder;
  append(folder.path(), R"({"event":"supervise_start","step":0,"time":1,"facts":{"restarts":0}})"
                        "\n");
  ASSERT_TRUE(read_supervision(folder.path()));
  EXPECT_FALSE(read_supervision(folder.path())->goodput());
}

TEST(Supervision, ReadsWhyTheSupervisorGaveUp) {
  const TemporaryFolder folder;
  append(
      folder.path(),
      R"({"event":"supervise_action","step":7,"time":2,"cause":"lost node","facts":{"action":"give up","text":"node 1 is missing"}})"
      "\n"
      R"({"event":"supervise_end","step":7,"time":3,"cause":"lost node","facts":{"exit_code":3,"restarts":2}})"
      "\n");
  const auto read = read_supervision(folder.path());
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ended, "lost node");
  EXPECT_EQ(read->text, "node 1 is missing");
  EXPECT_EQ(read->restarts, 2);
}

TEST(Supervision, ReadsThePendingRestart) {
  const TemporaryFolder folder;
  append(
      folder.path(),
      R"({"event":"supervise_detection","step":7,"time":100,"cause":"disk full","facts":{"text":"no space"}})"
      "\n"
      R"({"event":"supervise_action","step":7,"time":101,"cause":"disk full","facts":{"action":"restart","delay":8,"needs_free_bytes":5000,"supervisor":)" +
          to_json(this_job()) +
          "}}\n"
          R"({"event":"supervise_node","step":7,"time":102,"cause":"lost","facts":{"node":1}})"
          "\n");
  auto found = read_supervision(folder.path());
  ASSERT_TRUE(found && found->pending);
  EXPECT_EQ(found->pending->fault, "disk full");
  EXPECT_EQ(found->pending->text, "no space");
  EXPECT_EQ(found->pending->at, 109);
  EXPECT_EQ(found->pending->free_bytes, 5000U);
  EXPECT_EQ(found->time, 102);
  ASSERT_TRUE(found->pending->supervisor);
  EXPECT_EQ(found->pending->supervisor->process, this_job().process);
  append(folder.path(), R"({"event":"supervise_recovered","step":8,"time":120,"facts":{"restarts":1}})"
                        "\n");
  found = read_supervision(folder.path());
  ASSERT_TRUE(found);
  EXPECT_FALSE(found->pending);
}

}  // namespace
}  // namespace primus
