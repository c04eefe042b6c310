#include "lm/events/training_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "base/fault_env.h"
#include "lm/events/event_log.h"
#include "lm/events/metrics_file.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const RunIdentity kRun = {"/work", "amd", "root", "test"};

IterationRecord record(std::int64_t iteration) {
  IterationRecord r;
  r.iteration = iteration;
  r.train_iters = 10;
  r.lm_loss = 3.0 / static_cast<double>(iteration);
  r.grad_norm = 1.0;
  r.throughput.now = {
      .seconds_per_iteration = 0.5, .tokens_per_second = 100, .flops_per_second = 1e12, .mfu = 0.5};
  return r;
}

struct MonitoredRun {
  explicit MonitoredRun(FaultEnv& env, MonitorOptions options = {})
      : folder(kRun),
        log({.folder = folder.rank_logs("pre_trainer", 0).string()}, env),
        monitor(folder, options, log, env) {}
  RunFolder folder;
  Logger log;
  TrainingMonitor monitor;
};

std::string read(FaultEnv& env, const Path& path) { return read_file(path, 1 << 20, env); }

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TrainingMonitor, WritesEverySink) {
  FaultEnv env;
  MonitoredRun run(env, {.log_interval = 2, .tensorboard_log_interval = 5});
  for (int i = 1; i <= 10; ++i) run.monitor.iteration(record(i));
  run.monitor.evaluation({.iteration = 10, .lm_loss = 0.5, .tokens = 100, .seconds = 1.0});
  EXPECT_TRUE(run.monitor.sync());
  EXPECT_EQ(run.monitor.dropped(), 0U);

  EXPECT_EQ(count(read(env, run.folder.metrics_file()), "\n"), 10U);
  EXPECT_EQ(
      read(env, run.folder.evaluations_file()),
      "{\"iteration\":10,\"data_set\":\"validation\",\"lm_loss\":0.5,\"tokens\":100,\"seconds\":1.0}\n");
  const std::string log = read(env, run.folder.rank_logs("pre_trainer", 0) / "info.log");
  EXPECT_EQ(count(log, "| consumed samples:"), 5U);
  EXPECT_THAT(log, HasSubstr(" validation loss at iteration 10 | lm loss value: 5.000000E-01"));
  const std::vector<std::string> files = env.list(run.folder.tensorboard());
  ASSERT_EQ(files.size(), 1U);
  const std::string events = read(env, run.folder.tensorboard() / files[0]);
  for (const char* tag : {"learning-rate", "grad-norm", "iteration-time", "throughput/tokens-per-second",
                          "throughput/mfu", "lm loss validation ppl"}) {
    EXPECT_THAT(events, HasSubstr(tag));
  }
  EXPECT_EQ(count(events, "grad-norm"), 2U);
}

TEST(TrainingMonitor, TensorboardCanBeOff) {
  FaultEnv env;
  MonitoredRun run(env, {.tensorboard = false});
  run.monitor.iteration(record(1));
  EXPECT_FALSE(env.status(run.folder.tensorboard()).has_value());
}

// In turn, a file blocks the folder of each sink, so that the sink cannot write. The other sinks are not
// affected.
TEST(TrainingMonitor, AFailedSinkDoesNotAffectOthers) {
  const RunFolder folder(kRun);
  for (const char* dead : {"logs", "tensorboard"}) {
    FaultEnv env;
    folder.create(env);
    write_file(folder.root() / dead, "in the way", env);
    MonitoredRun run(env);
    for (int i = 1; i <= 3; ++i) run.monitor.iteration(record(i));
    EXPECT_GT(run.monitor.dropped(), 0U) << dead;
    EXPECT_EQ(count(read(env, folder.metrics_file()), "\n"), 3U) << dead;
    if (dead == std::string("tensorboard")) {
      // The failure is logged once, with its reason.
      const std::string log = read(env, folder.rank_logs("pre_trainer", 0) / "warning.log");
      EXPECT_EQ(count(log, "the TensorBoard file cannot be written, training continues"), 1U);
    }
  }
}

TEST(TrainingMonitor, AFullDiskStopsNothing) {
  FaultEnv env;
  MonitoredRun run(env);
  run.monitor.iteration(record(1));
  env.set_capacity(0);
  for (int i = 2; i <= 5; ++i) run.monitor.iteration(record(i));
  EXPECT_FALSE(run.monitor.sync());
  env.set_capacity(1 << 30);
  run.monitor.iteration(record(6));
  EXPECT_TRUE(run.monitor.sync());
  EXPECT_EQ(count(read(env, run.folder.metrics_file()), "\n"), 6U);
  EXPECT_THAT(read(env, run.folder.rank_logs("pre_trainer", 0) / "info.log"),
              HasSubstr("metrics.jsonl is written again"));
}

// When any single file operation fails, training continues, and the metrics have every line.
TEST(TrainingMonitor, AnySingleFailureLosesNoMetrics) {
  const auto work = [](FaultEnv& env, bool& started) {
    MonitoredRun run(env);
    started = true;
    for (int i = 1; i <= 4; ++i) run.monitor.iteration(record(i));
    run.monitor.sync();
  };
  FaultEnv dry;
  bool started = false;
  work(dry, started);
  for (std::uint64_t at = 0; at < dry.operations(); ++at) {
    FaultEnv env;
    env.fail_at(at, EIO);
    started = false;
    try {
      work(env, started);
    } catch (const Error&) {
      // Throws only before the first step, while the metrics file is repaired.
      ASSERT_FALSE(started) << "operation " << at;
      continue;
    }
    EXPECT_EQ(count(read(env, RunFolder(kRun).metrics_file()), "\n"), 4U) << "operation " << at;
  }
}

class Failing final : public RunListener {
 public:
  bool wants(EventKind kind) const override { return kind == EventKind::kStep; }
  void on(const RunEvent& event) override {
    ++calls;
    if (event.step < 4) throw std::runtime_error("the screen is gone");
  }
  int calls = 0;
};

TEST(TrainingMonitor, AFailedListenerIsNamedOnceAndDelaysNothing) {
  FaultEnv env;
  Failing view;
  MonitoredRun run(env, {.view = &view});
  for (int i = 1; i <= 5; ++i) run.monitor.iteration(record(i));
  EXPECT_EQ(view.calls, 5) << "the view must be called again";
  EXPECT_EQ(count(read(env, run.folder.metrics_file()), "\n"), 5U);
  const std::string log = read(env, run.folder.rank_logs("pre_trainer", 0) / "info.log");
  EXPECT_EQ(count(log, "the live view fails, training continues: the screen is gone"), 1U);
  EXPECT_EQ(count(log, "the live view works again"), 1U);
}

TEST(TrainingMonitor, EveryRankHasItsEvents) {
  FaultEnv env;
  const MonitoredRun first(env);
  MonitoredRun third(env, {.rank = 2});
  third.monitor.begin({.device = "CPU"});
  third.monitor.iteration(record(1));
  third.monitor.evaluation({.iteration = 1, .lm_loss = 0.5});
  third.monitor.end({.state = RunEnding::State::kFinished, .iteration = 1});
  EXPECT_EQ(count(read(env, event_file(third.folder.root(), 2)), "\n"), 4U);
  EXPECT_FALSE(env.status(third.folder.metrics_file())) << "only rank 0 writes metrics";
  EXPECT_FALSE(env.status(third.folder.root() / kEndingFile));
}

// Faults and detector findings are recorded in the event stream.
TEST(TrainingMonitor, WarningsAndFaultsAreEvents) {
  FaultEnv env;
  RunFolder(kRun).create(env);
  MonitoredRun run(env);
  run.monitor.begin();
  EXPECT_EQ(read_ending(run.folder.root(), env)->state, RunEnding::State::kRunning);
  for (int i = 1; i <= 30; ++i) {
    IterationRecord one = record(i);
    one.lm_loss = i < 20 ? 3 : 50;
    run.monitor.iteration(one);
  }
  const NumericsFault fault{.iteration = 31,
                            .quantity = "lm loss",
                            .value = std::numeric_limits<double>::quiet_NaN(),
                            .first_operator = "layers.3.attention"};
  run.monitor.fault(fault);
  run.monitor.end(ending_of(fault.to_error(), 31));
  EXPECT_EQ(read_ending(run.folder.root(), env)->reason, "NaN");
  std::vector<std::string> names;
  read_rare_events(
      event_file(run.folder.root(), 0),
      [&](const EventLine& line) {
        names.push_back(line.event + " " + line.cause);
        return true;
      },
      env);
  EXPECT_THAT(names, ::testing::ElementsAre("end NaN", "fault NaN", "warning loss_growth", "begin "));
  EXPECT_EQ(recorded_warnings(run.folder.warnings_file(), env).size(), 1U);
}

// Writes a run for tests/lm/events/check_tensorboard.py, which runs this test and reads the run with the real
// TensorBoard.
TEST(TrainingMonitor, WritesARunForTensorboard) {
  const char* workspace = std::getenv("PRIMUS_TENSORBOARD_CHECK");
  if (workspace == nullptr) GTEST_SKIP() << "runs only under check_tensorboard.py";
  const RunFolder folder({workspace, "amd", "root", "check"});
  folder.create();
  Logger log({});
  TrainingMonitor first(folder, {}, log);
  for (int i = 1; i <= 300; ++i) first.iteration(record(i));
  first.evaluation({.iteration = 300, .lm_loss = 0.5});
  // The first process was killed. The second resumes from iteration 200 and replaces the later data.
  TrainingMonitor second(folder, {.resume_iteration = 200}, log);
  for (int i = 201; i <= 250; ++i) {
    IterationRecord again = record(i);
    again.lm_loss = 100.0 + i;
    second.iteration(again);
  }
  EXPECT_EQ(first.dropped() + second.dropped(), 0U);
}

}  // namespace
}  // namespace primus
