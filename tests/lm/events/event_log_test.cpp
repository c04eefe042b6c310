#include "lm/events/event_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/fault_env.h"
#include "base/temporary_folder.h"
#include "base/terminal/terminal.h"

namespace primus {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Path kFile = "/run/events/rank-00000.jsonl";

RunEvent event(std::int64_t step, RunEvent::Facts facts, std::string cause = {}) {
  return {.step = step, .rank = 0, .time = 1000.5, .cause = std::move(cause), .facts = std::move(facts)};
}

RunEvent step(std::int64_t iteration) {
  IterationRecord record{.iteration = iteration, .lm_loss = 1.0 / static_cast<double>(iteration)};
  record.throughput.now = {.seconds_per_iteration = 0.5, .tokens_per_second = 100, .data_wait_share = 0.25};
  return event(iteration, record);
}

std::string name(const EventLine& line) { return fmt::format("{}@{}", line.event, line.step); }

std::vector<std::string> in_order(const Path& file, Env& env, std::int64_t* damaged = nullptr) {
  std::vector<std::string> names;
  const std::int64_t bad = read_events(
      file, [&](const EventLine& line) { names.push_back(name(line)); }, env);
  if (damaged) *damaged = bad;
  return names;
}

std::vector<std::string> rare(const Path& file, Env& env) {
  std::vector<std::string> names;
  read_rare_events(
      file,
      [&](const EventLine& line) {
        names.push_back(name(line));
        return true;
      },
      env);
  return names;
}

TEST(EventLog, WritesEveryKindAsALineThatIsReadBack) {
  FaultEnv env;
  const std::vector<RunEvent> all = {
      event(0,
            RunFacts{.folder = "/run", .train_iters = 5, .mesh = "data 2", .experiment = "lr: \"1\"\n\xff"}),
      event(0, PhaseFacts{.what = "loading weights", .share = 0.5}),
      step(1),
      event(1, EvaluationStart{.data_set = "validation"}),
      event(1, EvaluationRecord{.iteration = 1, .lm_loss = 2}),
      event(1, SampleRecord{.iteration = 1, .prompt = "a", .text = "b"}),
      event(1, CheckpointFacts{.state = CheckpointFacts::State::kDurable}),
      event(1, RunWarning{.iteration = 1, .detector = "loss_growth", .text = "t"}, "loss_growth"),
      event(1, FaultFacts{.text = "NaN", .first_operator = "layers.3.attention"}, "NaN"),
      event(1, StopFacts{}, "SIGTERM"),
      event(1, RunEnding{.state = RunEnding::State::kStopped, .reason = "SIGTERM", .iteration = 1},
            "SIGTERM")};
  {
    EventLog log(kFile, env);
    for (const RunEvent& one : all) log.write(one);
  }
  EXPECT_THAT(in_order(kFile, env),
              ElementsAre("begin@0", "phase@0", "step@1", "evaluation_start@1", "evaluation@1", "sample@1",
                          "checkpoint@1", "warning@1", "fault@1", "stop@1", "end@1"));
  std::vector<json> lines;
  read_events(
      kFile, [&](const EventLine& line) { lines.push_back(json::parse(line.facts)); }, env);
  EXPECT_EQ(lines[0].at("mesh"), "data 2");
  EXPECT_EQ(lines[2].at("lm_loss"), 1.0);
  EXPECT_EQ(lines[6].at("state"), "durable");
  EXPECT_EQ(lines[8].at("operator"), "layers.3.attention");
  const std::string text = read_file(kFile, 1 << 20, env);
  EXPECT_THAT(text, HasSubstr(R"({"event":"stop","step":1,"rank":0,"time":1000.500000,"cause":"SIGTERM")"));
}

TEST(EventLog, OtherRanksWriteTheirOwnEvents) {
  RunEvent own = step(7);
  own.rank = 3;
  EXPECT_EQ(facts_json(own), R"({"iteration":7,"nan_iterations":0,"elapsed_time_per_iteration_ms":500.0,)"
                             R"("data_wait_share":0.25})");
}

// Steps after the checkpoint from which a process resumed are void.
TEST(EventLog, AResumedRunVoidsLaterSteps) {
  FaultEnv env;
  {
    EventLog log(kFile, env);
    log.write(event(0, RunFacts{}));
    for (int i = 1; i <= 5; ++i) log.write(step(i));
    log.write(event(4, EvaluationRecord{.iteration = 4}));
    log.write(event(2, CheckpointFacts{.state = CheckpointFacts::State::kDurable}));
  }
  {
    EventLog log(kFile, env);
    log.write(event(2, RunFacts{}));
    log.write(step(3));
  }
  EXPECT_THAT(in_order(kFile, env),
              ElementsAre("begin@0", "step@1", "step@2", "checkpoint@2", "begin@2", "step@3"));
  EXPECT_THAT(rare(kFile, env), ElementsAre("begin@2", "checkpoint@2", "begin@0"));
  EventLog(kFile, env).write(event(0, RunFacts{}));  // a new run
  EXPECT_THAT(in_order(kFile, env), ElementsAre("begin@0", "begin@0"));
  std::string text;
  EventLine last;
  EXPECT_FALSE(read_last_step(kFile, text, last, env));
}

TEST(EventLog, ATornLineDoesNotAffectOtherLines) {
  // The cut removes at least the newline, and at most all characters except the first.
  const std::string stop =
      R"({"event":"stop","step":1,"rank":0,"time":1000.500000,"cause":"SIGTERM","before":0,"facts":{}})";
  for (std::size_t cut = 2; cut <= stop.size(); ++cut) {
    FaultEnv env;
    {
      EventLog log(kFile, env);
      log.write(event(0, RunFacts{}));
      log.write(event(1, StopFacts{}, "SIGTERM"));
    }
    {
      const auto file = env.open(kFile, OpenMode::kUpdate);
      file->truncate(file->size() - std::min<std::uint64_t>(cut, file->size()));
    }
    EventLog(kFile, env).write(event(1, RunEnding{.iteration = 1}));
    std::int64_t damaged = 0;
    EXPECT_THAT(in_order(kFile, env, &damaged), ElementsAre("begin@0", "end@1")) << cut;
    EXPECT_LE(damaged, 1) << cut;
    EXPECT_THAT(rare(kFile, env), ElementsAre("end@1", "begin@0")) << cut;
  }
}

// If offsets are wrong, as in an edited file, reading takes longer but loses no event.
TEST(EventLog, WrongOffsetsAreDetected) {
  FaultEnv env;
  {
    EventLog log(kFile, env);
    log.write(event(0, RunFacts{}));
    log.write(step(1));
    log.write(event(1, StopFacts{}, "SIGTERM"));
    log.write(event(1, RunEnding{.iteration = 1}));
  }
  const std::string text = read_file(kFile, 1 << 20, env);
  for (const std::string& broken : {text.substr(0, text.find("{\"event\":\"step\"")) + "\n" +
                                        text.substr(text.find("{\"event\":\"step\"")),
                                    "rubbish\n" + text}) {
    write_file_atomic(kFile, broken, env);
    EXPECT_THAT(rare(kFile, env), ElementsAre("end@1", "stop@1", "begin@0"));
  }
}

TEST(EventLog, AFullDiskLosesNoRareEvent) {
  FaultEnv env;
  EventLog log(kFile, env);
  log.write(event(0, RunFacts{}));
  env.set_capacity(0);
  EXPECT_THROW(log.write(event(0, StopFacts{}, "SIGTERM")), Error);
  for (int i = 1; i <= 20000; ++i) {
    try {
      log.write(step(i));
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("No space left"));
    }
  }
  EXPECT_THROW(log.write(event(9, RunEnding{.iteration = 9})), Error);
  EXPECT_GT(log.dropped(), 0U);
  EXPECT_LT(log.dropped(), 20000U);
  env.set_capacity(1 << 30);
  log.sync();
  EXPECT_THAT(rare(kFile, env), ElementsAre("end@9", "stop@0", "begin@0"));
}

// Whichever single operation fails or ends the process, every line written before it is complete.
TEST(EventLog, SurvivesEverySingleFailure) {
  const auto work = [](FaultEnv& env) {
    for (int start = 0; start < 2; ++start) {
      EventLog log(kFile, env);
      for (const RunEvent& one : {event(0, RunFacts{}), step(1), event(1, StopFacts{}, "a")}) {
        try {
          log.write(one);
        } catch (const Error&) {
        }
      }
    }
  };
  FaultEnv dry;
  work(dry);
  const std::vector<std::string> expected = in_order(kFile, dry);
  for (std::uint64_t at = 0; at < dry.operations(); ++at) {
    FaultEnv env;
    env.fail_at(at, EIO);
    work(env);
    env.reboot(FaultEnv::Survivors::kAll);  // clears the fault before the reader runs
    EXPECT_EQ(in_order(kFile, env), expected) << at;
    FaultEnv killed;
    killed.crash_at(at);
    try {
      work(killed);
    } catch (const SimulatedCrash&) {
    }
    killed.reboot(FaultEnv::Survivors::kAll);
    if (!killed.status(kFile)) continue;
    EventLog(kFile, killed).write(event(0, RunFacts{}));
    std::int64_t damaged = 0;
    EXPECT_EQ(in_order(kFile, killed, &damaged).back(), "begin@0") << at;
    EXPECT_LE(damaged, 1) << at;
  }
}

TEST(EventLog, AKilledProcessLeavesCompleteLines) {
  const test::TemporaryFolder folder;
  const Path file = event_file(folder.path(), 3);
  EXPECT_EQ(file.filename(), "rank-00003.jsonl");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    EventLog log(file);
    log.write(event(0, RunFacts{}));
    for (std::int64_t i = 1;; ++i) {
      log.write(step(i));
      if (i % 10 == 0) log.write(event(i, CheckpointFacts{}));
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  std::int64_t next = 1;
  const std::int64_t damaged = read_events(file, [&](const EventLine& line) {
    if (line.event == "step") {
      EXPECT_EQ(line.step, next++);
    }
  });
  EXPECT_EQ(damaged, 0);
  EXPECT_GT(next, 10);
}

TEST(EventLog, HostileLinesAreNoEvents) {
  EventLine line;
  const std::string good = R"({"event":"step","step":1,"rank":0,"time":1.5,"facts":{"iteration":1}})";
  EXPECT_TRUE(read_event(good, line));
  EXPECT_EQ(line.facts, R"({"iteration":1})");
  for (const std::string& bad :
       {std::string(), std::string("\0\0", 2), std::string("null"), std::string("[]"),
        std::string(R"({"event":1,"step":1,"facts":{}})"),
        std::string(R"({"event":"step","step":-1,"facts":{}})"),
        std::string(R"({"event":"step","step":1.5,"facts":{}})"),
        std::string(R"({"event":"step","step":1e300,"facts":{}})"),
        std::string(R"({"event":"step","step":99999999999999999999,"facts":{}})"),
        std::string(R"({"event":"step","step":"1","facts":{}})"),
        std::string(R"({"event":"step","step":1,"facts":[]})"), std::string(R"({"event":"step","step":1})"),
        good + "}", good.substr(0, good.size() - 1), "{\"facts\":" + std::string(100000, '['),
        "{\"facts\":" + std::string(100000, '{'),
        "{\"event\":\"" + std::string("\0", 1) + "\",\"step\":1,\"facts\":{}}"}) {
    EXPECT_FALSE(read_event(bad, line)) << bad.substr(0, 80);
  }
}

// With any bytes changed, a line is refused, or its facts are a JSON object within the line.
TEST(EventLog, ChangedBytesAreRefusedOrRead) {
  const std::string good =
      R"({"event":"step","step":12,"rank":3,"time":1.5,"cause":"a\u00e9\"","before":7,"facts":{"iteration":1,"x":[1,"b"]}})";
  std::mt19937 random(1);
  EventLine line;
  int read = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text = good;
    for (int changes = static_cast<int>(random() % 3); changes >= 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, "\"{}[]:,0\\"[random() % 9]);
      }
    }
    if (!read_event(text, line)) continue;
    ++read;
    ASSERT_GE(line.facts.data(), text.data());
    ASSERT_LE(line.facts.data() + line.facts.size(), text.data() + text.size());
    const bool ascii = std::ranges::all_of(text, [](char c) { return static_cast<signed char>(c) >= 0; });
    if (ascii) {
      ASSERT_TRUE(json::accept(line.facts)) << text;
    }
    ASSERT_GE(line.step, 0);
  }
  EXPECT_GT(read, 100);
}

TEST(EventLog, AMillionHostileLinesNeedBoundedTimeAndMemory) {
  const test::TemporaryFolder folder;
  const Path file = folder.path() / "events.jsonl";
  std::string text;
  const std::string begin = R"({"event":"begin","step":0,"facts":{}})", stop = R"({"event":"stop","step":1,)";
  text += begin + "\n";
  for (int i = 0; i < 1'000'000; ++i) {
    switch (i % 4) {
      case 0:
        text += "{\"event\":\"step\",\"step\":1,\"before\":0,\"facts\":{}}\n";
        break;
      case 1:
        text += stop + fmt::format("\"before\":{},\"facts\":{{}}}}\n", text.size() + 5);
        break;
      case 2:
        text += stop + "\"facts\":{}}\n";
        break;
      default:
        text += std::string("\0[[[[\xff\n", 7);
    }
  }
  text += std::string(3 << 20, '[') + "\n" + std::string(1 << 20, 'x');
  write_file(file, text);
  text.clear();
  text.shrink_to_fit();
  struct rusage before {
  }, after{};
  getrusage(RUSAGE_SELF, &before);
  const double began = steady_seconds();
  std::int64_t events = 0;
  const std::int64_t damaged = read_events(file, [&](const EventLine&) { ++events; });
  EXPECT_EQ(events, 750'001);
  EXPECT_EQ(damaged, 250'001);
  EXPECT_EQ(rare(file, Env::posix()).size(), 500'001U);
  std::string last;
  EventLine line;
  EXPECT_TRUE(read_last_step(file, last, line));
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(steady_seconds() - began, 60);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200 << 10) << "KiB";
}

// Prints the time to log one step. For an overhead of 0.5 %, steps must take 200 times as long.
TEST(EventLog, AStepCostsLittle) {
  const test::TemporaryFolder folder;
  for (const int rank : {0, 1}) {
    EventLog log(event_file(folder.path(), rank));
    constexpr int kSteps = 20000;
    const double began = steady_seconds();
    for (int i = 1; i <= kSteps; ++i) {
      RunEvent one = step(i);
      one.rank = rank;
      log.write(one);
    }
    const double microseconds = 1e6 * (steady_seconds() - began) / kSteps;
    RecordProperty(rank == 0 ? "microseconds_rank_0" : "microseconds_other_rank",
                   std::to_string(microseconds));
    fmt::print("rank {}: {:.1f} microseconds per step\n", rank, microseconds);
    EXPECT_LT(microseconds, 500);
  }
}

}  // namespace
}  // namespace primus
