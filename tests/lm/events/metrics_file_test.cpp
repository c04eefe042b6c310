#include "lm/events/metrics_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <limits>
#include <string>
#include <vector>

#include "base/fault_env.h"

namespace primus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;
using ::testing::Not;
using ::testing::Pair;

const Path kFile = "/run/metrics.jsonl";

IterationRecord record(std::int64_t iteration) {
  IterationRecord r;
  r.iteration = iteration;
  r.lm_loss = 1.0 / static_cast<double>(iteration);
  return r;
}

std::string text(Env& env, const Path& path = kFile) { return read_file(path, 1U << 30, env); }

// Returns the iteration of each line. A last line without newline gives -2.
std::vector<std::int64_t> iterations(Env& env, const Path& path = kFile) {
  std::vector<std::int64_t> result;
  const std::string all = text(env, path);
  std::size_t begin = 0;
  while (begin < all.size()) {
    const std::size_t end = all.find('\n', begin);
    if (end == std::string::npos) {
      result.push_back(-2);
      break;
    }
    result.push_back(iteration_of_line(std::string_view(all).substr(begin, end - begin)));
    begin = end + 1;
  }
  return result;
}

TEST(ToJson, RoutingIsListsOverLayers) {
  IterationRecord r = record(7);
  EXPECT_THAT(to_json(r), Not(HasSubstr("routing")));
  r.routing = {{.layer = 1, .imbalance = 1.5, .dropped = 0.25, .balance_loss = 1.125},
               {.layer = 3, .balance_loss = 1}};
  EXPECT_THAT(to_json(r), HasSubstr(R"("routing":{"layer":[1,3],"imbalance":[1.5,1.0],"dropped":[0.25,0.0],)"
                                    R"("balance_loss":[1.125,1.0]})"));
  r.routing = {{.layer = 0}};
  EXPECT_THAT(to_json(r), HasSubstr(R"("routing":{"layer":[0],"imbalance":[1.0],"dropped":[0.0]})"));
}

TEST(ToJson, KeepsEveryBitOfNumbers) {
  IterationRecord r = record(7);
  r.lm_loss = static_cast<float>(1.0F / 3.0F);
  r.grad_norm = std::numeric_limits<double>::quiet_NaN();
  r.num_zeros = 5;
  r.other_losses = {{"load_balancing_loss", -std::numeric_limits<double>::infinity()}};
  r.throughput.now = {
      .seconds_per_iteration = 0.5, .tokens_per_second = 8, .flops_per_second = 2e12, .mfu = 0.25};
  const std::string line = to_json(r);
  EXPECT_EQ(
      line,
      R"({"iteration":7,"consumed_samples":0,"global_batch_size":0,"lm_loss":0.3333333432674408,)"
      R"("load_balancing_loss":"-Infinity","learning_rate":0.0,"loss_scale":1.0,"grad_norm":"NaN","num_zeros":5,)"
      R"("skipped_iterations":0,"nan_iterations":0,"elapsed_time_per_iteration_ms":500.0,)"
      R"("tokens_per_second_per_device":8.0,"tflops_per_device":2.0,"mfu":0.25,"data_wait_share":0.0})");
  EXPECT_EQ(iteration_of_line(line), 7);
}

TEST(ToJson, InvalidUtf8DoesNotStopARun) {
  IterationRecord r = record(1);
  r.other_losses = {{"bad\xff\nname", 1.0}};
  const std::string line = to_json(r);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(iteration_of_line(line), 1);
}

TEST(IterationOfLine, RefusesOtherLines) {
  for (const char* line :
       {"", "{", "[]", "3", "{\"iteration\":1.5}", "{\"iteration\":\"1\"}", "{\"iter\":1}",
        "{\"iteration\":18446744073709551615}", "{\"iteration\":-5}", "{\"iteration\":3}x"}) {
    EXPECT_EQ(iteration_of_line(line), -1) << line;
  }
  EXPECT_EQ(iteration_of_line(std::string(100'000, '[')), -1);
}

TEST(MetricsFile, ResumeDropsLinesThatWillBeWrittenAgain) {
  FaultEnv env;
  {
    MetricsFile file(kFile, 0, env);
    for (int i = 1; i <= 7; ++i) EXPECT_TRUE(file.write(record(i)));
  }
  {
    MetricsFile file(kFile, 5, env);
    for (int i = 6; i <= 8; ++i) EXPECT_TRUE(file.write(record(i)));
  }
  EXPECT_THAT(iterations(env), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST(MetricsFile, ANewStartKeepsTheEarlierFile) {
  FaultEnv env;
  for (int i = 1; i <= 3; ++i) MetricsFile(kFile, 0, env).write(record(i));
  EXPECT_THAT(iterations(env), ElementsAre(3));
  EXPECT_THAT(iterations(env, "/run/metrics.previous.jsonl"), ElementsAre(1));
  EXPECT_THAT(iterations(env, "/run/metrics.previous-2.jsonl"), ElementsAre(2));
}

TEST(MetricsFile, ARemovedFileIsWrittenAgain) {
  FaultEnv env;
  MetricsFile file(kFile, 0, env);
  for (int i = 1; i <= 3; ++i) file.write(record(i));
  EXPECT_EQ(file.take_trouble(), "");
  env.remove_file(kFile);
  file.write(record(4));
  EXPECT_THAT(file.take_trouble(), HasSubstr("has been rewritten"));
  file.write(record(5));
  EXPECT_EQ(file.take_trouble(), "");
  EXPECT_THAT(iterations(env), ElementsAre(1, 2, 3, 4, 5));
  // Changes by another program cannot be repaired, only reported.
  env.open(kFile, OpenMode::kUpdate)->truncate(3);
  file.write(record(6));
  EXPECT_THAT(file.take_trouble(), HasSubstr("changed by another program"));
  file.write(record(7));
  EXPECT_EQ(file.take_trouble(), "");
}

TEST(MissingIterations, AreNamed) {
  FaultEnv env;
  make_folders("/run", env);
  const auto missing = [&](const std::vector<int>& there, std::int64_t last) {
    std::string all;
    for (const int iteration : there) all += to_json(record(iteration)) + "\n";
    write_file(kFile, all, env);
    return missing_iterations(kFile, last, env);
  };
  EXPECT_EQ(missing({1, 2, 3}, 3), "");
  EXPECT_EQ(missing({1, 2, 3, 4}, 3), "");
  EXPECT_EQ(missing({1, 2}, 3), "3");
  EXPECT_EQ(missing({1, 5, 6, 8}, 9), "2-4, 7, 9");
  EXPECT_EQ(missing({21, 22}, 23), "23") << "a run that started from the checkpoint of another run";
  EXPECT_EQ(missing({}, 3), "1-3");
  EXPECT_EQ(missing({}, 0), "");
  EXPECT_EQ(missing({1, 3, 5, 7, 9, 11, 13}, 13), "2, 4, 6, 8, 10, ...");
  env.remove_file(kFile);
  EXPECT_EQ(missing_iterations(kFile, 2, env), "1-2");
}

TEST(EvaluatedLosses, BelongToTheirIteration) {
  FaultEnv env;
  EXPECT_THAT(evaluated_losses(kFile, 4, env), ElementsAre());
  MetricsFile file(kFile, 0, env);
  for (const auto& [iteration, set] : {std::pair(2, "validation"), {4, "validation"}, {4, "test"}}) {
    EvaluationRecord r;
    r.iteration = iteration;
    r.data_set = set;
    r.lm_loss = r.data_set == "test" ? std::numeric_limits<double>::infinity() : 0.5 * iteration;
    file.write(r);
  }
  EXPECT_THAT(evaluated_losses(kFile, 4, env), ElementsAre(Pair("test", IsNan()), Pair("validation", 2.0)));
  EXPECT_THAT(evaluated_losses(kFile, 3, env), ElementsAre());
}

TEST(MetricsFile, EvaluationsMayHaveBitsPerByte) {
  EvaluationRecord record{.iteration = 3, .lm_loss = 2};
  EXPECT_EQ(to_json(record).find("bits_per_byte"), std::string::npos);
  EXPECT_EQ(format_evaluation(record).find("bits per byte"), std::string::npos);
  record.bits_per_byte = 1.25;
  EXPECT_NE(to_json(record).find("\"bits_per_byte\":1.25"), std::string::npos);
  EXPECT_NE(format_evaluation(record).find(" | bits per byte: 1.2500"), std::string::npos);
}

TEST(MetricsFile, ATornLastLineIsRemoved) {
  const std::string good = "{\"iteration\":1}\n{\"iteration\":2}\n";
  for (const std::string tail :
       {"{\"iterat", "{\"iteration\":3}", "garbage\n", "\n", "\n\n", "{\"iteration\":9}\n{\"iter"}) {
    FaultEnv env;
    make_folders("/run", env);
    write_file(kFile, good + tail, env);
    MetricsFile file(kFile, 5, env);
    EXPECT_EQ(text(env), good) << tail;
    file.write(record(6));
    EXPECT_THAT(iterations(env), ElementsAre(1, 2, 6)) << tail;
  }
}

TEST(MetricsFile, AFileWithoutValidLinesBecomesEmpty) {
  for (const std::string all :
       {"{\"iteration\":9}\n", "junk", "\n\n\n", "{\"iteration\":9}\n{\"iteration\":10}\n"}) {
    FaultEnv env;
    make_folders("/run", env);
    write_file(kFile, all, env);
    MetricsFile(kFile, 5, env);
    EXPECT_EQ(text(env), "") << all;
  }
}

// Lines are read backwards in blocks. The result must not depend on the block borders.
TEST(MetricsFile, LongFilesAndLongLines) {
  FaultEnv env;
  make_folders("/run", env);
  std::string all;
  std::size_t end_of_500 = 0;
  for (int i = 1; i <= 2000; ++i) {
    all += fmt::format("{{\"iteration\":{},\"note\":\"{}\"}}\n", i,
                       std::string(static_cast<std::size_t>(i * 7 % 301), 'x'));
    if (i == 500) end_of_500 = all.size();
  }
  write_file(kFile, all, env);
  { MetricsFile file(kFile, 2000, env); }
  EXPECT_EQ(text(env).size(), all.size());
  { MetricsFile file(kFile, 500, env); }
  EXPECT_EQ(text(env), all.substr(0, end_of_500));
  // The file ends with an incomplete line that is far too long.
  write_file(kFile, all + "{\"iteration\":" + std::string(3 << 20, '1'), env);
  { MetricsFile file(kFile, 2000, env); }
  EXPECT_EQ(text(env).size(), all.size());
}

TEST(MetricsFile, AFullDiskDelaysLinesAndLosesNone) {
  FaultEnv env;
  MetricsFile file(kFile, 0, env);
  EXPECT_TRUE(file.write(record(1)));
  env.set_capacity(text(env).size() + 10);
  EXPECT_FALSE(file.write(record(2)));
  EXPECT_FALSE(file.write(record(3)));
  EXPECT_THAT(file.last_error(), HasSubstr("No space left"));
  EXPECT_THAT(iterations(env), ElementsAre(1));
  env.set_capacity(1 << 20);
  EXPECT_TRUE(file.write(record(4)));
  EXPECT_THAT(iterations(env), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(file.dropped(), 0U);
}

TEST(MetricsFile, MemoryForWaitingLinesIsBounded) {
  FaultEnv env;
  env.set_capacity(0);
  MetricsFile file(kFile, 0, env);
  IterationRecord large = record(1);
  large.other_losses = {{std::string(100'000, 'x'), 1.0}};
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(file.write(large));
  EXPECT_GT(file.dropped(), 5U);
}

TEST(MetricsFile, SyncOutlivesAPowerFailure) {
  FaultEnv env;
  MetricsFile file(kFile, 0, env);
  file.write(record(1));
  file.write(record(2));
  EXPECT_TRUE(file.sync());
  file.write(record(3));
  env.crash_at(env.operations());
  EXPECT_THROW(file.write(record(4)), SimulatedCrash);
  env.reboot(FaultEnv::Survivors::kSynced);
  EXPECT_THAT(iterations(env), ElementsAre(1, 2));
}

// A run of 12 iterations saves a checkpoint at every fourth iteration. The run is killed at each single file
// operation, and then restarted. After SIGKILL, completed writes stay, and one write may be partial. The file
// must have exactly one line per iteration.
TEST(MetricsFile, HasOneLinePerIterationAfterAnyKill) {
  constexpr int kLast = 12, kEvery = 4;
  const auto run = [](FaultEnv& env, std::int64_t& checkpoint) {
    MetricsFile file(kFile, checkpoint, env);
    for (std::int64_t i = checkpoint + 1; i <= kLast; ++i) {
      file.write(record(i));
      if (i % kEvery == 0 && file.sync()) checkpoint = i;
    }
  };
  std::uint64_t total = 0;
  {
    FaultEnv env;
    std::int64_t checkpoint = 0;
    run(env, checkpoint);
    total = env.operations();
  }
  ASSERT_GT(total, 12U);
  for (const auto survivors :
       {FaultEnv::Survivors::kAll, FaultEnv::Survivors::kSynced, FaultEnv::Survivors::kRandom}) {
    for (std::uint64_t first = 0; first < total; ++first) {
      FaultEnv env;
      std::int64_t checkpoint = 0;
      env.crash_at(first);
      EXPECT_THROW(run(env, checkpoint), SimulatedCrash);
      env.reboot(survivors, first);
      // The restart is killed, too, during the repair or soon after.
      env.crash_at(env.operations() + first % 5);
      try {
        run(env, checkpoint);
      } catch (const SimulatedCrash&) {
      }
      env.reboot(survivors, first + 1000);
      run(env, checkpoint);
      ASSERT_THAT(iterations(env), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
          << "killed at " << first;
    }
  }
}

}  // namespace
}  // namespace primus
