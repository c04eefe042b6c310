// Tests of the device option. The guard device, a plug-in for tests, is loaded like a GPU and runs whole
// trainings.
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::ProgramOptions;
using test::train;

ProgramOptions with_plugins(const std::string& folders = PRIMUS_TEST_PLUGINS) {
  return {.environment = {{"PRIMUS_PLUGIN_PATH", folders}}};
}

TEST(Devices, AreListed) {
  const ProgramResult text = run_program({"device", "list"}, with_plugins());
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("guard:0"));
  EXPECT_THAT(text.out, HasSubstr("auto      takes cpu"));
  const json listed = json::parse(run_program({"device", "list", "--json"}, with_plugins()).out);
  EXPECT_EQ(listed.at("auto"), "cpu");
  ASSERT_EQ(listed.at("kinds").size(), 2U);
  EXPECT_EQ(listed["kinds"][0]["devices"][0]["device"], "cpu");
  EXPECT_GT(listed["kinds"][0]["devices"][0]["memory"].get<std::int64_t>(), 0);
  EXPECT_EQ(listed["kinds"][1]["devices"][0]["name"], "guarded host memory");
}

TEST(Devices, ARunOnAPluginEqualsARunOnCpu) {
  const TemporaryFolder folder;
  const std::vector<std::string> settings{"train_iters=3", "eval_iters=0"};
  auto words = settings;
  words.insert(words.end(), {"device=guard", "exp_name=guarded"});
  const ProgramResult guarded = run_program(train(folder.path(), words), with_plugins());
  ASSERT_EQ(guarded.exit_code, 0) << guarded.err;
  EXPECT_THAT(guarded.err, HasSubstr("guard: 1 threads"));
  ASSERT_EQ(run_program(train(folder.path(), settings)).exit_code, 0);
  const Path on_cpu = test::run_folder(folder.path()), on_guard = test::run_folder(folder.path(), "guarded");
  EXPECT_EQ(test::losses(on_guard).size(), 3U);
  EXPECT_EQ(test::losses(on_guard), test::losses(on_cpu));
  EXPECT_EQ(test::final_weights(on_guard, 3), test::final_weights(on_cpu, 3));

  const auto generate = [&](const char* device) {
    return run_program(
               {"generate", on_guard.string(), "-p", "abc", "-n", "8", "--device", device, "--threads", "1"},
               with_plugins())
        .out;
  };
  EXPECT_EQ(generate("guard"), generate("cpu"));
}

// The value model and its optimizer states are also copied to and from a device whose memory the host cannot
// read. The second run stops between two steps that learn from the same answers.
TEST(Devices, PpoOnAPluginEqualsPpoOnCpuAlsoInTwoParts) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=2", "eval_iters=0", "exp_name=base"})).exit_code,
            0);
  std::ofstream(folder.path() / "prompts.jsonl")
      << "{\"prompt\": \"1+\"}\n{\"prompt\": \"2+\"}\n{\"prompt\": \"3+\"}\n";
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words{"train",
                                   "ppo",
                                   "load=" + test::run_folder(folder.path(), "base").string(),
                                   "value_load=" + test::run_folder(folder.path(), "base").string(),
                                   "data=" + (folder.path() / "prompts.jsonl").string(),
                                   "reward=['regex:^[A-Za-z]']",
                                   "workspace=" + folder.path().string(),
                                   "work_group=w",
                                   "user_name=u",
                                   "exp_name=" + name,
                                   "bf16=false",
                                   "num_threads=1",
                                   "lr=1e-3",
                                   "lr_warmup_iters=0",
                                   "seq_length=32",
                                   "global_batch_size=16",
                                   "micro_batch_size=4",
                                   "max_completion_length=6",
                                   "num_ppo_epochs=2",
                                   "num_mini_batches=2",
                                   "train_iters=6"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words, with_plugins());
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  run("cpu", {"device=cpu"});
  run("guarded", {"device=guard"});
  run("parts", {"device=guard", "exit_interval=2"});
  run("parts", {"device=guard"});
  const Path on_cpu = test::run_folder(folder.path(), "cpu");
  ASSERT_EQ(test::losses(on_cpu).size(), 6U);
  EXPECT_THAT(test::final_weights(on_cpu, 6), HasSubstr("value_model.score.weight"));
  for (const char* name : {"guarded", "parts"}) {
    const Path other = test::run_folder(folder.path(), name);
    EXPECT_EQ(test::losses(other), test::losses(on_cpu)) << name;
    EXPECT_TRUE(test::final_weights(other, 6) == test::final_weights(on_cpu, 6)) << name;
  }
}

// Weights and moments are copied for a checkpoint while the next step runs. In this test, a copy takes longer
// than a step. An update that did not wait for the copy would change the previous step's checkpoint.
TEST(Devices, ACheckpointInFlightDoesNotContainTheNextUpdate) {
  const TemporaryFolder folder;
  const std::vector<std::string> settings{"train_iters=3", "eval_iters=0", "save_interval=1",
                                          "async_save=true", "keep_latest=0"};
  ASSERT_EQ(run_program(train(folder.path(), settings)).exit_code, 0);
  auto words = settings;
  words.insert(words.end(), {"device=guard", "exp_name=slow"});
  ProgramOptions slow_copies = with_plugins();
  slow_copies.environment["PRIMUS_GUARD_COPY_DELAY"] = "5000";
  const ProgramResult slow = run_program(train(folder.path(), words), slow_copies);
  ASSERT_EQ(slow.exit_code, 0) << slow.err;
  for (int iteration = 1; iteration <= 3; ++iteration) {
    const std::string expected = test::final_weights(test::run_folder(folder.path()), iteration);
    ASSERT_FALSE(expected.empty());
    EXPECT_TRUE(test::final_weights(test::run_folder(folder.path(), "slow"), iteration) == expected)
        << iteration;
  }
}

// The host waits for an asynchronous device once per step. It also waits before and after all steps: for
// weights, tables and the measured peak rate.
TEST(Devices, TheHostWaitsOnceInAStep) {
  const TemporaryFolder folder;
  // Returns how often the host waits for a stream. Expects one wait for an event per step.
  const auto other_waits = [&](std::int64_t steps) {
    const std::string name = "run" + std::to_string(steps);
    const Path file = folder.path() / (name + "_waits");
    ProgramOptions counting = with_plugins();
    counting.environment["PRIMUS_GUARD_WAITS"] = file.string();
    const ProgramResult run =
        run_program(train(folder.path(), {"train_iters=" + std::to_string(steps), "device=guard",
                                          "seq_length=8", "disable_last_saving=true", "exp_name=" + name}),
                    counting);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(test::losses(test::run_folder(folder.path(), name)).size(), static_cast<std::size_t>(steps));
    std::int64_t streams = 0, events = 0;
    std::ifstream(file) >> streams >> events;
    EXPECT_EQ(events, steps);
    EXPECT_GT(streams, 0);
    return streams;
  };
  const std::int64_t few = other_waits(6), many = other_waits(36);
  // Measuring the peak rate takes a fixed time, so the numbers of its products and waits vary.
  EXPECT_LT(many - few, 15);
}

// Steps replayed as graphs give the same losses and weights as steps run kernel by kernel. This holds with
// evaluations, samples and checkpoints in flight, and in a resumed run. The log says which steps were
// replayed.
TEST(Devices, GraphsDoNotChangeResults) {
  const TemporaryFolder folder;
  const std::vector<std::string> settings{
      "train_iters=10",  "device=guard",    "eval_interval=3", "eval_iters=1",  "sample_interval=4",
      "sample_tokens=4", "save_interval=3", "async_save=true", "keep_latest=0", "split=80,20,0"};
  const Path file = folder.path() / "graphs";
  const auto run = [&](const char* name, std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    more.push_back(std::string("exp_name=") + name);
    ProgramOptions recording = with_plugins();
    recording.environment["PRIMUS_GUARD_GRAPHS"] = file.string();
    const ProgramResult result = run_program(train(folder.path(), more), recording);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  const auto graphs = [&] {
    std::pair<int, int> recorded_and_launched;
    std::ifstream(file) >> recorded_and_launched.first >> recorded_and_launched.second;
    return recorded_and_launched;
  };
  run("plain", {});
  EXPECT_EQ(graphs(), std::pair(0, 0));
  const std::string log = run("graphs", {"enable_cuda_graph=true"});
  // Four graphs: two microbatches, the sum of their gradients, and the update. Each is launched in the fourth
  // step and in six more.
  EXPECT_EQ(graphs(), std::pair(4, 4 * 7));
  EXPECT_THAT(log, HasSubstr("iteration 4 was recorded, and later ones are replayed"));
  EXPECT_THAT(log, HasSubstr("graphs: 6 steps replayed up to iteration 10"));
  const std::vector<std::string> early{"enable_cuda_graph=true", "cuda_graph_warmup_steps=1"};
  auto half = early;
  half.emplace_back("exit_interval=5");
  run("parts", half);
  EXPECT_EQ(graphs(), std::pair(4, 4 * 4));
  run("parts", early);
  EXPECT_EQ(graphs(), std::pair(4, 4 * 4));
  const Path plain = test::run_folder(folder.path(), "plain");
  ASSERT_EQ(test::losses(plain).size(), 10U);
  for (const char* name : {"graphs", "parts"}) {
    const Path other = test::run_folder(folder.path(), name);
    EXPECT_EQ(test::losses(other), test::losses(plain)) << name;
    for (const int iteration : {6, 9, 10}) {
      const std::string weights = test::final_weights(plain, iteration);
      EXPECT_FALSE(weights.empty());
      EXPECT_TRUE(test::final_weights(other, iteration) == weights) << name << ", " << iteration;
    }
  }
}

// If steps cannot be recorded, the log gives the reason, and the run continues without graphs.
TEST(Devices, ImpossibleGraphsAreReported) {
  const TemporaryFolder folder;
  const auto log_of = [&](const char* name, std::vector<std::string> more) {
    more.insert(more.end(), {"train_iters=4", "eval_iters=0", "enable_cuda_graph=true",
                             "cuda_graph_warmup_steps=1", std::string("exp_name=") + name});
    ProgramOptions recording = with_plugins();
    recording.environment["PRIMUS_GUARD_GRAPHS"] = (folder.path() / "graphs").string();
    const ProgramResult result = run_program(train(folder.path(), more), recording);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(test::losses(test::run_folder(folder.path(), name)).size(), 4U);
    return result.err;
  };
  EXPECT_THAT(log_of("cpu", {"device=cpu"}),
              HasSubstr("steps are not recorded: cpu does not support recorded graphs"));
  EXPECT_THAT(
      log_of("traced", {"device=guard", "profile=true", "profile_step_start=2", "profile_step_end=3"}),
      HasSubstr("steps are not recorded: profile tells their kernels apart"));
  EXPECT_THAT(log_of("ranks", {"device=cpu", "--nproc", "2"}),
              HasSubstr("steps are not recorded: the run has several ranks"));
}

// A non-finite loss ends the run at its own step, although the next step is already running.
TEST(Devices, ABadStepIsReportedAsOnTheCpu) {
  const TemporaryFolder folder;
  const auto end_of = [&](const char* device, const char* name) {
    const ProgramResult run = run_program(
        train(folder.path(), {"train_iters=9", "lr=1000", "lr_warmup_iters=0", "clip_grad=0", "optimizer=sgd",
                              std::string("device=") + device, std::string("exp_name=") + name}),
        with_plugins());
    EXPECT_NE(run.exit_code, 0);
    const std::size_t steps = test::losses(test::run_folder(folder.path(), name)).size();
    EXPECT_LT(steps, 9U);
    const auto message = run.err.rfind(" is ", run.err.find(" at iteration "));
    return std::pair(steps, message == std::string::npos ? run.err : run.err.substr(message));
  };
  const auto on_cpu = end_of("cpu", "plain"), on_guard = end_of("guard", "guarded");
  EXPECT_EQ(on_guard, on_cpu);
  EXPECT_THAT(on_cpu.second, HasSubstr("iteration " + std::to_string(on_cpu.first + 1)));
}

// A dry run needs a device's plug-in, but not the device.
TEST(Devices, ADryRunNeedsNoDevice) {
  const TemporaryFolder folder;
  const ProgramResult plan =
      run_program(train(folder.path(), {"train_iters=3", "device=guard", "--dry-run"}), with_plugins());
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
}

TEST(Devices, MissingDevicesAreNamed) {
  const TemporaryFolder folder;
  const ProgramResult missing =
      run_program(train(folder.path(), {"device=cuda", "train_iters=1"}), with_plugins());
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("libprimus_cuda.so"));
  const ProgramResult second =
      run_program(train(folder.path(), {"device=guard:7", "train_iters=1"}), with_plugins());
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(second.err, HasSubstr("there is only guard:0"));
  const ProgramResult nonsense = run_program(train(folder.path(), {"device=gpu!", "train_iters=1"}));
  EXPECT_EQ(nonsense.exit_code, 2);
  EXPECT_THAT(nonsense.err, HasSubstr("'gpu!' is not a device name"));
  EXPECT_THAT(nonsense.err, HasSubstr("primus device list"));
}

}  // namespace
}  // namespace primus
