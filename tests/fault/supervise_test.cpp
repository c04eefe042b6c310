// Tests of supervised runs (--supervise): faults at random moments, after which the run continues,
// bit for bit; and faults that a restart cannot cure, which are named. scripts/inject-faults.py injects many
// more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "fault/ranks.h"
#include "lm/events/run_ending.h"
#include "lm/events/supervision.h"

namespace primus {
namespace {

using test::children_of;
using test::job_of;
using test::losses;
using test::Program;
using test::ProgramResult;
using test::run_folder;
using test::run_program;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

// About a second of steps, so that a busy machine injects its faults in time.
constexpr int kSteps = 600;

// Trains a model of a few thousand parameters. --quiet, because the tests do not read a running program's
// output, and a full pipe would block it.
std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, int ranks,
                               std::vector<std::string> more) {
  more.insert(more.begin(), {"num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2",
                             "train_iters=" + std::to_string(kSteps), "keep_latest=2", "--quiet"});
  return test::train_ranks(folder, name, ranks, "optim", std::move(more));
}

pid_t rank_process(pid_t supervisor, int ranks, int rank) {
  const pid_t job = job_of(supervisor);
  return job == 0 || ranks == 1 ? job : test::process_of_rank(job, rank);
}

std::string supervisor_events(const Path& run) { return read_file(supervision_file(run)); }

class Supervise : public testing::TestWithParam<int> {};

TEST_P(Supervise, ARunRecoversFromKillsBitForBit) {
  const int ranks = GetParam();
  const TemporaryFolder folder;
  constexpr int kSlower = 400;  // steps of two ranks take longer
  const int steps = ranks == 1 ? kSteps : kSlower;
  const std::vector<std::string> more = {"save_interval=30", "train_iters=" + std::to_string(steps)};
  test::expect_done(run_program(train(folder, "whole", ranks, more)));
  const Path run = run_folder(folder.path(), "killed"), whole = run_folder(folder.path(), "whole");
  std::vector<std::string> supervised = more;
  supervised.emplace_back("--supervise");
  const Path sent = folder.path() / "alerts";
  supervised.push_back("alerts=[\"rank_lost, restarted -> run:cat >> " + sent.string() + "\"]");
  Program program(train(folder, "killed", ranks, supervised));
  std::mt19937 random(static_cast<unsigned>(ranks));
  std::vector<pid_t> seen;
  constexpr int kKills = 3;
  for (int killed = 0; killed < kKills; ++killed) {
    // A kill follows a new checkpoint, because kills without one in between are a crash loop.
    const std::size_t before = losses(run).size();
    pid_t victim = 0;
    ASSERT_TRUE(wait_until([&] { return !program.running() || losses(run).size() >= before + 61; }));
    ASSERT_TRUE(program.running());
    const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
    ASSERT_TRUE(wait_until([&] { return (victim = rank_process(program.pid(), ranks, rank)) != 0; }));
    seen.push_back(victim);
    kill(victim, killed == 1 ? SIGSEGV : SIGKILL);
    ASSERT_TRUE(wait_until([&] { return rank_process(program.pid(), ranks, rank) != victim; }));
  }
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("supervise: restart 3 of at most 20"),
                                HasSubstr("supervise: 3 restarts; useful")));
  for (const pid_t process : seen) EXPECT_NE(kill(process, 0), 0) << "a process still runs";
  EXPECT_EQ(losses(run), losses(whole));
  EXPECT_FALSE(test::final_weights(run, steps).empty());
  EXPECT_EQ(test::final_weights(run, steps), test::final_weights(whole, steps));
  const auto recorded = read_supervision(run);
  ASSERT_TRUE(recorded);
  EXPECT_EQ(recorded->restarts, kKills);
  EXPECT_EQ(recorded->ended, "finished");
  EXPECT_GT(recorded->times.goodput(), 0);
  // Later messages of a condition are left out for a minute.
  EXPECT_THAT(read_file(sent),
              AllOf(HasSubstr(R"("condition":"rank_lost")"), HasSubstr(R"("condition":"restarted")")));
  EXPECT_THAT(supervisor_events(run),
              AllOf(HasSubstr("supervise_detection"), HasSubstr("supervise_recovered")));
  const ProgramResult list = run_program({"runs", run.string(), "--json"});
  EXPECT_THAT(list.out, AllOf(HasSubstr("\"restarts\": 3"), HasSubstr("\"goodput\": 0.")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Supervise, testing::Values(1, 2));

// A restart continues the run, although the command asks for a new start, and does not write the exported
// experiment again.
TEST(SuperviseEnds, ANewStartIsNotRepeated) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "new");
  test::expect_done(run_program(train(folder, "new", 1, {"save_interval=60"})));
  const Path exported = folder.path() / "exported.yaml";
  Program program(train(folder, "new", 1,
                        {"save_interval=30", "auto_continue_train=false", "exit_duration_in_mins=10",
                         "--export-config=" + exported.string(), "--supervise"}));
  const auto began = [&] { return std::filesystem::exists(run / "checkpoints" / "previous-1"); };
  ASSERT_TRUE(wait_until([&] { return began() && losses(run).size() >= 61 && losses(run).size() < kSteps; }));
  kill(job_of(program.pid()), SIGKILL);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("supervise: 1 restart; useful"));
  EXPECT_TRUE(std::filesystem::exists(exported));
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints" / "previous-2"));
  EXPECT_EQ(losses(run).size(), kSteps);
  // A run that is done is no early exit.
  const ProgramResult again = run_program(train(folder, "new", 1, {"save_interval=30", "--supervise"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing left to do"));
}

// SIGKILL of the supervisor ends all processes; the same command continues.
TEST(SuperviseEnds, NoProcessSurvivesTheSupervisor) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "orphans");
  const std::vector<std::string> command = train(folder, "orphans", 2, {"save_interval=30", "--supervise"});
  std::vector<pid_t> processes;
  {
    Program program(command);
    ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 8; }));
    for (processes = children_of(program.pid()); const pid_t child : std::vector<pid_t>(processes)) {
      for (const pid_t rank : children_of(child)) processes.push_back(rank);
    }
    ASSERT_GE(processes.size(), 5U);  // two guards, the job, two ranks
    program.send(SIGKILL);
    program.wait();
  }
  const auto gone = [](pid_t process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.empty() || text.find(") Z ") != std::string::npos;
  };
  for (const pid_t process : processes) EXPECT_TRUE(wait_until([&] { return gone(process); })) << process;
  test::expect_done(run_program(command));
  EXPECT_EQ(losses(run).size(), kSteps);
}

TEST(SuperviseEnds, AStoppedProcessIsAHangWithStacks) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "hung");
  Program program(train(folder, "hung", 1, {"save_interval=30", "--supervise"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 61; }));
  const pid_t victim = job_of(program.pid());
  ASSERT_NE(victim, 0);
  kill(victim, SIGSTOP);
  const auto began = std::chrono::steady_clock::now();
  const ProgramResult result = program.wait();
  EXPECT_GT(std::chrono::steady_clock::now() - began, 9s);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("supervise: hang (step"), HasSubstr("a signal has stopped process")));
  EXPECT_EQ(losses(run).size(), kSteps);
  std::string stacks;
  for (const auto& entry : std::filesystem::directory_iterator(run / "logs")) {
    if (entry.path().filename().string().starts_with("hang-")) stacks = read_file(entry.path());
  }
  EXPECT_THAT(stacks, AllOf(HasSubstr("process " + std::to_string(victim)), HasSubstr("state T")));
}

TEST(SuperviseEnds, ARequestStopsOnceAndIsNotUndone) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "asked");
  Program program(train(folder, "asked", 2, {"save_interval=1000", "train_iters=100000", "--supervise"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 5; }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("run the same command again to continue"));
  EXPECT_THAT(result.err, AllOf(HasSubstr("supervise: 0 restarts"), Not(HasSubstr("restart 1"))));
  EXPECT_EQ(read_supervision(run)->ended, "stopped");
}

TEST(SuperviseEnds, ASecondRequestEndsAtOnce) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "twice");
  Program program(train(folder, "twice", 2, {"save_interval=1000", "train_iters=100000", "--supervise"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 5; }));
  kill(rank_process(program.pid(), 2, 1), SIGSTOP);  // so that the ranks cannot stop by themselves
  program.send(SIGINT);
  std::this_thread::sleep_for(300ms);
  program.send(SIGINT);
  const auto asked = std::chrono::steady_clock::now();
  const ProgramResult result = program.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - asked, 5s);
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1")));
}

TEST(SuperviseEnds, WhatARestartCannotCureIsNamed) {
  const TemporaryFolder folder;
  // A limit on the size of files simulates a disk that stays full.
  const ProgramResult limited = run_program(train(folder, "limited", 1, {"save_interval=40", "--supervise"}),
                                            {.file_size_limit = 60 << 10});
  EXPECT_EQ(limited.exit_code, 2);
  EXPECT_THAT(limited.err, AllOf(HasSubstr("supervise: file size limit:"), HasSubstr("ulimit -f"),
                                 Not(HasSubstr("restart 1"))));
  const ProgramResult nan =
      run_program(train(folder, "nan", 1,
                        {"save_interval=1", "lr=1000", "min_lr=1000", "lr_warmup_iters=0", "clip_grad=0",
                         "weight_decay=0", "optimizer=sgd", "--supervise"}));
  EXPECT_EQ(nan.exit_code, 3) << nan.err;
  EXPECT_THAT(nan.err, AllOf(HasSubstr("supervise: restart 1"), HasSubstr("supervise: deterministic NaN:"),
                             Not(HasSubstr("supervise: restart 2"))));
  const ProgramResult refused = run_program(train(folder, "refused", 1, {"lr=1e30", "--supervise"}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, Not(HasSubstr("supervise:")));
  EXPECT_FALSE(std::filesystem::exists(run_folder(folder.path(), "refused")));
}

// The job of one rank makes no folder before its data are read, but the run is listed with the reason.
TEST(SuperviseEnds, ARunThatIsRefusedAtItsStartIsRecorded) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const TemporaryFolder folder;
    const Path run = run_folder(folder.path(), "nothing");
    const ProgramResult refused = run_program(
        train(folder, "nothing", ranks,
              {"mock_data=false", "data_path=" + (folder.path() / "nothing.txt").string(), "--supervise"}));
    EXPECT_EQ(refused.exit_code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("supervise: refused:"));
    ASSERT_TRUE(std::filesystem::exists(supervision_file(run))) << refused.err;
    EXPECT_THAT(supervisor_events(run),
                AllOf(HasSubstr("supervise_start"), HasSubstr(R"("event":"supervise_end")"),
                      HasSubstr(R"("cause":"refused")")));
    const auto ending = read_ending(run);
    ASSERT_TRUE(ending);
    EXPECT_EQ(ending->state, RunEnding::State::kFailed);
    EXPECT_EQ(ending->reason, "refused");
  }
}

TEST(SuperviseEnds, ACrashLoopIsNamed) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "loop");
  const Path sent = folder.path() / "alerts";
  Program program(train(folder, "loop", 1,
                        {"save_interval=1000", "train_iters=100000", "--supervise",
                         "alerts=[\"rank_lost, gave_up -> run:cat >> " + sent.string() +
                             "\", \"failed -> run:cat >> " + sent.string() + ".failed\"]"}));
  std::int64_t began = 0;
  for (int killed = 0; killed < 3; ++killed) {
    // Waits for the steps of this attempt: its events have one more `begin`.
    ASSERT_TRUE(wait_until([&] {
      std::error_code none;
      const Path file = run / "events" / "rank-00000.jsonl";
      if (!std::filesystem::exists(file, none)) return false;
      const std::string text = read_file(file);
      began = 0;
      for (std::size_t at = text.find("\"event\":\"begin\""); at != text.npos;
           at = text.find("\"event\":\"begin\"", at + 1))
        ++began;
      return began == killed + 1;
    }));
    kill(job_of(program.pid()), SIGKILL);
  }
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(result.err, AllOf(HasSubstr("supervise: crash loop: "), HasSubstr("killed by signal 9"),
                                HasSubstr("hint: ")));
  EXPECT_EQ(read_supervision(run)->ended, "crash loop");
  // Later messages of a condition are left out for a minute, except for the end.
  const std::string alerts = read_file(sent);
  EXPECT_THAT(alerts, AllOf(HasSubstr(R"("condition":"rank_lost")"), HasSubstr(R"("condition":"gave_up")"),
                            HasSubstr("killed by signal 9")));
  const std::string failed = read_file(sent.string() + ".failed");
  EXPECT_EQ(std::count(failed.begin(), failed.end(), '\n'), 1) << failed;
  EXPECT_THAT(failed, HasSubstr(R"("cause":"gave_up: crash loop")"));
}

TEST(SuperviseOptions, RefuseWhatTheyCannotDo) {
  const TemporaryFolder folder;
  const auto refusal = [&](const std::vector<std::string>& more) {
    const ProgramResult result = run_program(train(folder, "no", 1, more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refusal({"--max-restarts", "3"}), HasSubstr("--max-restarts needs --supervise"));
  EXPECT_THAT(
      refusal({"--supervise", "--nnodes=2", "--node_rank=0", "--master_addr=10.0.0.1", "--master_port=1234"}),
      AllOf(HasSubstr("needs a secret that they share"), HasSubstr("PRIMUS_JOB_TOKEN")));
  EXPECT_THAT(refusal({"--supervise", "--backend", "megatron"}),
              HasSubstr("--supervise is for the native engine"));
  const ProgramResult rank = run_program(
      test::train(folder.path(), {"--supervise"}),
      {.environment = {
           {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}}});
  EXPECT_EQ(rank.exit_code, 2);
  EXPECT_THAT(rank.err, HasSubstr("as one of 2 ranks"));
}

TEST(SuperviseOptions, ADryRunShowsThePlan) {
  const TemporaryFolder folder;
  const ProgramResult text =
      run_program(train(folder, "plan", 2, {"--supervise", "--max-restarts=5", "--dry-run"}));
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr("at most 5 within 24 hours"), HasSubstr("no step for 15 s or 3 step times")));
  const ProgramResult json = run_program(train(folder, "plan", 2, {"--supervise", "--dry-run", "--json"}));
  EXPECT_THAT(json.out, HasSubstr("\"max_restarts\": 20"));
  EXPECT_FALSE(std::filesystem::exists(run_folder(folder.path(), "plan")));
}

}  // namespace
}  // namespace primus
