// Tests that the dashboard follows the records of a run while they grow.
#include "safe/dashboard/run_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "safe/dashboard/rank_times.h"
#include "safe/dashboard/runs.h"

namespace primus::dashboard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::append;
using test::begin_event;
using test::step_event;
using test::step_line;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Followed : public ::testing::Test {
 protected:
  void steps(std::int64_t from, std::int64_t to, double loss = 2) const {
    std::string text;
    for (std::int64_t step = from; step <= to; ++step) text += step_line(step, loss);
    append(metrics(), text);
  }
  Path metrics() const { return folder_.path() / "metrics.jsonl"; }
  static std::int64_t points(const RunHistory& run) {
    std::int64_t count = 0;
    for (const Bucket& bucket : run.metrics.curves().at("lm_loss")) count += bucket.finite;
    return count;
  }
  static void read(RunIndex& index) {
    while (index.advance(seconds(1))) {
    }
  }

  test::TemporaryFolder folder_;
};

TEST_F(Followed, AGrowingFileIsReadOnlyOnce) {
  RunIndex index(folder_.path());
  read(index);
  EXPECT_EQ(index.history().metrics.positions().size(), 0U);
  steps(1, 3);
  read(index);
  EXPECT_EQ(points(index.history()), 3);
  const std::uint64_t version = index.version();
  read(index);
  EXPECT_EQ(index.version(), version);
  const std::string line = step_line(4, 1);
  append(metrics(), line.substr(0, 20));  // a line that is being written
  read(index);
  EXPECT_EQ(points(index.history()), 3);
  append(metrics(), line.substr(20));
  read(index);
  EXPECT_EQ(points(index.history()), 4);
  EXPECT_EQ(index.last_step(), 4);
  EXPECT_THAT(index.history().notes, ElementsAre());
}

TEST_F(Followed, ATruncatedFileIsReadAgain) {
  steps(1, 100, 2);
  RunIndex index(folder_.path());
  read(index);
  // The run resumes from step 50, and is already at its old size when the dashboard looks again.
  std::string text = read_file(metrics());
  const std::size_t size = text.size();
  text.resize(text.find("{\"iteration\":51,"));
  for (std::int64_t step = 51; step <= 100; ++step) text += step_line(step, 3);
  ASSERT_EQ(text.size(), size);
  Env::posix().remove_file(metrics());
  write_file(metrics(), text);
  read(index);
  const RunHistory run = index.history();
  EXPECT_EQ(points(run), 100);
  EXPECT_EQ(run.metrics.curves().at("lm_loss").back().largest, 3);
  EXPECT_EQ(run.metrics.curves().at("lm_loss").front().largest, 2);
  Env::posix().remove_file(metrics());
  read(index);
  EXPECT_EQ(index.history().metrics.positions().size(), 0U);
}

TEST_F(Followed, DamagedLinesAreCounted) {
  steps(1, 2);
  append(metrics(),
         "not json\n{\"iteration\":\"x\"}\n" + std::string(3 << 20, 'x') + "\n" + std::string("\0\xff\n", 3));
  steps(3, 4);
  RunIndex index(folder_.path());
  read(index);
  EXPECT_EQ(points(index.history()), 4);
  ASSERT_EQ(index.history().notes.size(), 1U);
  EXPECT_THAT(index.history().notes[0], HasSubstr("damaged"));
}

TEST_F(Followed, ALongRunHasSamplesAtOnceAndEverySpikeLater) {
  constexpr std::int64_t kSteps = 60'000;
  steps(1, 30'000);
  append(metrics(), step_line(30'001, 50));
  steps(30'002, kSteps);
  RunIndex index(folder_.path());
  EXPECT_TRUE(index.advance(milliseconds(0)));
  const RunHistory samples = index.history();
  EXPECT_LT(index.progress(), 1);
  EXPECT_GT(samples.metrics.positions().size(), 500U);
  EXPECT_GT(samples.metrics.positions().back().last, kSteps - 200);
  read(index);
  EXPECT_EQ(index.progress(), 1);
  const RunHistory run = index.history();
  EXPECT_EQ(points(run), kSteps);
  EXPECT_LE(run.metrics.positions().size(), kReportBuckets);
  double largest = 0;
  for (const Bucket& bucket : run.metrics.curves().at("lm_loss")) largest = std::max(largest, bucket.largest);
  EXPECT_EQ(largest, 50);
  // A part of the steps is read again with every step.
  const auto part = index.range(29'900, 30'100);
  ASSERT_TRUE(part.run) << part.problem;
  EXPECT_EQ(part.run->metrics.points_per_bucket(), 1);
  EXPECT_EQ(part.run->metrics.positions().front().last, 29'900);
  EXPECT_EQ(part.run->metrics.positions().back().last, 30'100);
  // No step is outside of the range, and a range without steps is empty.
  EXPECT_TRUE(index.range(kSteps + 1, 1'000'000'000).run->metrics.positions().empty());
  EXPECT_EQ(index.range(kSteps, 1'000'000'000).run->metrics.positions().size(), 1U);
  EXPECT_TRUE(index.range(0, 0).run->metrics.positions().empty());
}

TEST_F(Followed, SecretsInSettingsAreNotShown) {
  steps(1, 1);
  write_file(folder_.path() / "experiment.yaml",
             "modules:\n  pre_trainer:\n    overrides:\n      lr: 0.5\n      hf_token: "
             "hf_abcdefghijklmnopqrstuvwxyz\n"
             "      load: https://me:word@host/x\n");
  RunIndex index(folder_.path());
  read(index);
  EXPECT_EQ(index.history().settings.at("lr"), "0.5");
  EXPECT_EQ(index.history().settings.at("hf_token"), "<redacted>");
  EXPECT_EQ(index.history().settings.at("load"), "<redacted>");
}

class Ranks : public Followed {
 protected:
  Path file(int rank) const { return folder_.path() / "events" / fmt::format("rank-{:05}.jsonl", rank); }
  static nlohmann::ordered_json read(RankTimes& times) {
    while (times.advance(seconds(1))) {
    }
    return times.json();
  }
};

TEST_F(Ranks, StepTimesOfEachRank) {
  RankTimes times(folder_.path());
  EXPECT_EQ(read(times).at("ranks").size(), 0U);
}

TEST_F(Ranks, TheSlowestStepOfAColumnIsKept) {
  for (int rank = 0; rank < 3; ++rank) {
    std::string text = begin_event(rank, 0);
    for (int step = 1; step <= 1000; ++step)
      text += step_event(rank, step, rank == 2 && step == 500 ? 900 : 100);
    append(file(rank), text);
  }
  append(folder_.path() / "events" / "rank-x.jsonl", "");
  append(folder_.path() / "events" / "supervisor.jsonl", "");
  RankTimes times(folder_.path());
  const auto table = read(times);
  EXPECT_EQ(table.at("ranks").size(), 3U);
  const auto width = table.at("steps_per_column").get<int>();
  EXPECT_EQ(width, 8);
  const auto& slow = table.at("ranks").at(2);
  EXPECT_EQ(slow.at("seconds").at((500 - 1) / 8), 0.9);
  EXPECT_EQ(slow.at("seconds").at(0), 0.1);
  EXPECT_EQ(slow.at("wait").at(0), 0.25);
  EXPECT_EQ(slow.at("memory").at(0), 1000);
  EXPECT_EQ(table.at("ranks").at(1).at("seconds").at((500 - 1) / 8), 0.1);
}

TEST_F(Ranks, StepsThatARestartRepeatsAreVoid) {
  append(file(0), begin_event(0, 0) + step_event(0, 1, 100) + step_event(0, 2, 100) + step_event(0, 3, 5000));
  RankTimes times(folder_.path());
  EXPECT_EQ(read(times).at("ranks").at(0).at("seconds").size(), 3U);
  append(file(0), begin_event(0, 1) + step_event(0, 2, 200));
  EXPECT_THAT(read(times).at("ranks").at(0).at("seconds"), ElementsAre(0.1, 0.2));
}

}  // namespace
}  // namespace primus::dashboard
