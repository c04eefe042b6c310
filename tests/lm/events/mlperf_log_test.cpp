#include "lm/events/mlperf_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "base/fault_env.h"

namespace primus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const Path kFile = "/run/mlperf.log";

MlperfOptions options() {
  return {.file = kFile,
          .init_ms = unix_milliseconds() - 5000,
          .entries = {{"submission_org", "a \"b\"\n\xff"}, {"seed", std::int64_t{7}}, {"lr", 0.1}},
          .global_batch_size = 4,
          .train_iters = 6,
          .loss_interval = 2,
          .throughput = false};
}

struct LoggedRun {
  explicit LoggedRun(FaultEnv& fault_env, MlperfOptions what = options()) : env(fault_env) {
    make_folders(kFile.parent_path(), env);
    log = std::make_unique<MlperfLog>(std::move(what), env);
  }
  void train(std::int64_t first, std::int64_t last) const {
    for (std::int64_t i = first; i <= last; ++i) {
      IterationRecord record;
      record.iteration = i;
      record.lm_loss = 1.0 / static_cast<double>(i);
      record.learning_rate = 0.5;
      EXPECT_TRUE(log->iteration(record));
    }
  }
  void evaluate(std::int64_t iteration, double loss, bool reached) const {
    EXPECT_TRUE(log->begin_evaluation(iteration));
    EXPECT_TRUE(log->evaluation({.iteration = iteration, .lm_loss = loss}, reached));
  }
  FaultEnv& env;
  std::unique_ptr<MlperfLog> log;
};

std::string text(FaultEnv& env, const Path& file = kFile) { return read_file(file, 1 << 20, env); }

std::vector<json> events(FaultEnv& env) {
  std::vector<json> all;
  std::istringstream lines(text(env));
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) continue;
    EXPECT_THAT(line, StartsWith(":::MLLOG {"));
    all.push_back(json::parse(line.substr(9)));
  }
  return all;
}

std::vector<std::string> keys(FaultEnv& env) {
  std::vector<std::string> names;
  for (const json& event : events(env)) names.push_back(event.at("key"));
  return names;
}

// Removes the times and source lines, which vary.
std::string without_times(std::string log) {
  log = std::regex_replace(log, std::regex(R"("time_ms": \d+)"), "\"time_ms\": T");
  return std::regex_replace(log, std::regex(R"("lineno": \d+)"), "\"lineno\": N");
}

TEST(MlperfLog, HasTheFormOfMlperf) {
  FaultEnv env;
  const LoggedRun run(env);
  EXPECT_FALSE(env.status(kFile).has_value()) << "the file must not exist before the run begins";
  const std::int64_t before = unix_milliseconds();
  run.log->begin(0);
  run.train(1, 2);
  run.evaluate(2, 3.5, false);
  run.train(3, 4);
  run.evaluate(4, 3.25, true);
  EXPECT_TRUE(run.log->end());
  const auto line = [](const std::string& type, const std::string& key, const std::string& value,
                       const std::string& metadata) {
    return R"(:::MLLOG {"namespace": "", "time_ms": T, "event_type": ")" + type + R"(", "key": ")" + key +
           R"(", "value": )" + value +
           R"(, "metadata": {"file": "src/lm/events/mlperf_log.cpp", "lineno": N)" + metadata + "}}\n";
  };
  const std::string start = "INTERVAL_START", end = "INTERVAL_END", point = "POINT_IN_TIME";
  const auto samples = [](int count) { return ", \"samples_count\": " + std::to_string(count); };
  EXPECT_EQ(
      without_times(text(env)),
      line(point, "cache_clear", "false", "") + line(start, "init_start", "null", "") +
          line(point, "submission_org", "\"a \\\"b\\\"\\n\xef\xbf\xbd\"", "") + line(point, "seed", "7", "") +
          line(point, "lr", "0.1", "") + line(end, "init_stop", "null", "") +
          line(start, "run_start", "null", "") + line(start, "block_start", "null", samples(0)) +
          line(point, "tracked_stats", "{\"train_loss\": 0.5}",
               samples(8) + ", \"step_num\": 2, \"lr\": 0.5") +
          line(end, "block_stop", "null", samples(8)) + line(start, "eval_start", "null", samples(8)) +
          line(point, "eval_accuracy", "3.5", samples(8)) + line(end, "eval_stop", "null", samples(8)) +
          line(start, "block_start", "null", samples(8)) +
          line(point, "tracked_stats", "{\"train_loss\": 0.25}",
               samples(16) + ", \"step_num\": 4, \"lr\": 0.5") +
          line(end, "block_stop", "null", samples(16)) + line(start, "eval_start", "null", samples(16)) +
          line(point, "eval_accuracy", "3.25", samples(16)) + line(end, "eval_stop", "null", samples(16)) +
          line(end, "run_stop", "null", samples(16) + ", \"status\": \"success\""));
  const std::vector<json> all = events(env);
  EXPECT_EQ(all[0].at("time_ms"), all[1].at("time_ms"));
  EXPECT_LE(all[1].at("time_ms").get<std::int64_t>(), before - 5000)
      << "init_start must have the time when the process started";
  for (std::size_t i = 2; i < all.size(); ++i) {
    EXPECT_GE(all[i].at("time_ms").get<std::int64_t>(), before);
    EXPECT_GE(all[i].at("time_ms"), all[i - 1].at("time_ms"));
    EXPECT_LE(all[i].at("time_ms").get<std::int64_t>(), unix_milliseconds());
  }
}

// A killed process loses no event: each is written to the file before the run continues.
TEST(MlperfLog, LosesNothingWhenKilled) {
  FaultEnv env;
  const LoggedRun run(env);
  run.log->begin(0);
  EXPECT_EQ(keys(env).back(), "block_start");
  run.train(1, 2);
  EXPECT_EQ(keys(env).back(), "tracked_stats");
  EXPECT_TRUE(run.log->begin_evaluation(2));
  EXPECT_EQ(keys(env).back(), "eval_start");
  EXPECT_TRUE(run.log->evaluation({.iteration = 2, .lm_loss = 1}, false));
  EXPECT_EQ(keys(env).back(), "block_start");
}

TEST(MlperfLog, WithoutItsTargetARunIsAborted) {
  FaultEnv env;
  {
    const LoggedRun run(env);
    run.log->begin(0);
    run.train(1, 6);
    run.evaluate(6, 9, false);
    EXPECT_EQ(keys(env).back(), "eval_stop") << "no block may start after the last step";
    EXPECT_TRUE(run.log->end());
    EXPECT_TRUE(run.log->end());
  }
  const std::vector<json> all = events(env);
  EXPECT_EQ(all.back().at("key"), "run_stop");
  EXPECT_EQ(all.back().at("metadata").at("status"), "aborted");
  EXPECT_EQ(all.back().at("metadata").at("samples_count"), 24);
  EXPECT_EQ(std::ranges::count(keys(env), "run_stop"), 1);
}

TEST(MlperfLog, AnErrorClosesOpenIntervals) {
  FaultEnv env;
  {
    const LoggedRun run(env);
    run.log->begin(0);
    run.train(1, 2);
    EXPECT_TRUE(run.log->begin_evaluation(2));
  }
  const std::vector<json> all = events(env);
  EXPECT_EQ(all[all.size() - 2].at("key"), "eval_stop");
  EXPECT_EQ(all.back().at("key"), "run_stop");
  EXPECT_EQ(all.back().at("metadata").at("status"), "aborted");
}

TEST(MlperfLog, AResumedRunAppends) {
  FaultEnv env;
  {
    const LoggedRun first(env);
    first.log->begin(0);
    first.train(1, 3);
  }
  const std::string before = text(env);
  {
    const LoggedRun second(env);
    second.log->begin(2);
    second.train(3, 3);
  }
  EXPECT_THAT(text(env), StartsWith(before + "\n:::MLLOG "));
  const std::vector<json> all = events(env);
  EXPECT_EQ(std::ranges::count(keys(env), "init_start"), 2);
  EXPECT_EQ(all.back().at("metadata").at("samples_count"), 12);
  const auto block = std::ranges::find(all.rbegin(), all.rend(), "block_start",
                                       [](const json& event) { return event.at("key"); });
  EXPECT_EQ(block->at("metadata").at("samples_count"), 8);
}

TEST(MlperfLog, ARunThatOnlyEvaluatesBeginsWithTheEvaluation) {
  FaultEnv env;
  const LoggedRun run(env);
  EXPECT_TRUE(run.log->end()) << "end() must succeed before any event";
  EXPECT_FALSE(env.status(kFile).has_value());
  run.evaluate(6, 1, true);
  const std::vector<std::string> names = keys(env);
  EXPECT_THAT(std::vector(names.begin() + 6, names.end()),
              ElementsAre("run_start", "block_start", "block_stop", "eval_start", "eval_accuracy",
                          "eval_stop", "run_stop"));
}

TEST(MlperfLog, ANewRunKeepsTheOldFile) {
  FaultEnv env;
  make_folders("/run", env);
  write_file(kFile, "old\n", env);
  const LoggedRun run(env);
  run.log->begin(0);
  EXPECT_EQ(text(env, "/run/mlperf.previous.log"), "old\n");
  EXPECT_EQ(keys(env).front(), "cache_clear");
}

TEST(MlperfLog, ThroughputCoversTheBlock) {
  FaultEnv env;
  MlperfOptions what = options();
  what.throughput = true;
  what.loss_interval = 0;
  const LoggedRun run(env, what);
  run.log->begin(0);
  const std::int64_t began = events(env).back().at("time_ms");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.train(1, 3);
  EXPECT_TRUE(run.log->begin_evaluation(3));
  const std::vector<json> all = events(env);
  const json& stats = all[all.size() - 3];
  EXPECT_EQ(stats.at("key"), "tracked_stats");
  const double seconds = 1e-3 * static_cast<double>(stats.at("time_ms").get<std::int64_t>() - began);
  EXPECT_DOUBLE_EQ(stats.at("value").at("throughput").get<double>(), 3 * 4 / seconds);
  EXPECT_EQ(all[all.size() - 2].at("key"), "block_stop");
}

TEST(MlperfLog, NanAndInfinityAreText) {
  FaultEnv env;
  const LoggedRun run(env);
  run.log->begin(0);
  run.evaluate(2, std::numeric_limits<double>::quiet_NaN(), false);
  run.evaluate(4, std::numeric_limits<double>::infinity(), false);
  EXPECT_THAT(text(env), HasSubstr(R"("key": "eval_accuracy", "value": "NaN")"));
  EXPECT_THAT(text(env), HasSubstr(R"("key": "eval_accuracy", "value": "Infinity")"));
}

TEST(MlperfLog, AFullDiskIsFoundBeforeTheFirstStepAndWaitedForLater) {
  FaultEnv env;
  {
    const LoggedRun run(env);
    env.set_capacity(10);
    try {
      run.log->begin(0);
      FAIL() << "it began";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("the MLPerf log cannot be written"));
      EXPECT_THAT(error.hint(), HasSubstr("MLLOG_OUTPUT_FILE"));
    }
  }
  EXPECT_EQ(text(env), "");
  env.set_capacity(1 << 20);
  const LoggedRun run(env);
  run.log->begin(0);
  env.set_capacity(0);
  EXPECT_FALSE(run.log->begin_evaluation(2));
  env.set_capacity(1 << 20);
  EXPECT_TRUE(run.log->evaluation({.iteration = 2, .lm_loss = 1}, false));
  const std::vector<std::string> names = keys(env);
  EXPECT_THAT(std::vector(names.end() - 5, names.end()),
              ElementsAre("block_stop", "eval_start", "eval_accuracy", "eval_stop", "block_start"));
  EXPECT_EQ(run.log->dropped(), 0U);
}

TEST(MlperfLog, AFolderIsNotAccepted) {
  FaultEnv env;
  make_folders(kFile, env);
  MlperfLog log(options(), env);
  try {
    log.begin(0);
    FAIL() << "it began";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
    EXPECT_THAT(error.what(), HasSubstr("is not a file"));
  }
}

}  // namespace
}  // namespace primus
