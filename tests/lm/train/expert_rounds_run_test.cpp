// Tests that a resumed run keeps the number of rounds in which tokens travel to experts (moe_expert_rounds).
// The number depends on the free memory, so the ranks of these runs get limits. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/job.h"
#include "comm/rendezvous/socket.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/snapshot_folder.h"
#include "lm/train/whole_runs.h"

namespace primus {
namespace {

using Words = std::vector<std::string>;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;

struct ExpertRoundsRun : test::WholeRuns {
  config::Experiment experiment(const std::string& name, const Words& overrides) const {
    Words all = {"model_type=mixtral",
                 "num_experts=8",
                 "moe_ffn_hidden_size=48",
                 "moe_router_topk=2",
                 "seq_length=256",
                 "max_position_embeddings=256",
                 "device=cpu",
                 "num_threads=1",
                 "expert_model_parallel_size=2",
                 "train_iters=6",
                 "global_batch_size=4",
                 "moe_expert_capacity_margin=1.5",
                 "moe_token_dispatcher_type=alltoall"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return config::load_experiment_text(yaml_of(name), "experiment.yaml", all);
  }

  // Returns the forecast of a start of the run.
  TrainingForecast forecast(const std::string& name, const Words& overrides) const {
    Logger quiet(LogOptions{.console_level = LogLevel::kError});
    return Trainer(experiment(name, overrides), families_, quiet).forecast(kRanks, kRanks);
  }

  // Returns an amount of memory that is enough for `rounds` rounds, and not for half as many.
  std::int64_t room_for(int rounds, const Words& overrides = {}) const {
    const auto need = [&](int number) {
      Words all = overrides;
      all.push_back("moe_expert_rounds=" + std::to_string(number));
      return forecast("none", all).memory.need.total();
    };
    const std::int64_t enough = need(rounds), too_much = need(rounds / 2);
    EXPECT_LT(enough, too_much);
    // fits() leaves a twentieth free.
    return (enough + too_much) / 2 * 20 / 19;
  }

  // Starts the ranks of a run with this memory for each rank. Returns the error of a rank; "" if none.
  std::string start(const std::string& name, std::int64_t memory, const Words& overrides = {}) {
    comm::Socket listener = comm::listen_on("127.0.0.1", 0);
    comm::JobEnvironment environment;
    environment.world = environment.local_world = kRanks;
    environment.master_port = comm::port_of(listener);
    std::vector<std::string> errors(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      environment.rank = environment.local_rank = rank;
      environment.listening_socket = rank == 0 ? listener.release() : -1;
      threads.emplace_back([&, rank, environment] {
        std::unique_ptr<comm::Job> job;
        try {
          job = comm::Job::connect(environment, {.start_timeout = std::chrono::seconds(60)});
          Logger log(LogOptions{.folder = (folder_.path() / "logs" / name / std::to_string(rank)).string()});
          Trainer trainer(experiment(name, overrides), families_, log,
                          {.job = job.get(), .memory_of_rank = memory});
          trainer.prepare();
          const std::atomic<bool> stop = false;
          trainer.run(stop);
          job->leave();
        } catch (const Error& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
          if (job) job->abort(error.what(), error.kind());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors[0].empty() ? errors[1] : errors[0];
  }

  // Returns what all starts of the run have logged on rank 0.
  std::string log_of(const std::string& name) const {
    return read_file(folder_.path() / "logs" / name / "0/info.log");
  }
  Path newest(const std::string& name) const {
    const CheckpointRoot root(folder_.path() / "w/u" / name / "checkpoints");
    return root.folder(root.latest().value());
  }
  std::int64_t recorded_rounds(const std::string& name) const {
    return nlohmann::json::parse(read_file(newest(name) / "trainer_state.json")).value("expert_rounds", 0);
  }
  std::string weights(const std::string& name) const { return read_file(newest(name) / "model.safetensors"); }
};

TEST_F(ExpertRoundsRun, AResumedRunKeepsItsRoundsForAnyMemory) {
  constexpr std::int64_t kAmple = std::int64_t{1} << 34;
  const std::int64_t small = room_for(4);
  ASSERT_EQ(start("whole", small), "");
  EXPECT_EQ(recorded_rounds("whole"), 4);
  EXPECT_THAT(log_of("whole"), AllOf(HasSubstr("in 4 rounds (moe_expert_rounds), because buffers for all"),
                                     HasSubstr("A resumed run keeps it. Set moe_expert_rounds=4")));

  ASSERT_EQ(start("resumed", small, {"exit_interval=3"}), "");
  EXPECT_EQ(forecast("resumed", {}).experiment.trainer->moe_expert_rounds, 4);
  EXPECT_EQ(forecast("other", {}).experiment.trainer->moe_expert_rounds, std::nullopt);
  ASSERT_EQ(start("resumed", kAmple), "");
  EXPECT_THAT(log_of("resumed"), HasSubstr("in 4 rounds (moe_expert_rounds), as before"));
  EXPECT_EQ(weights("resumed"), weights("whole"));
  EXPECT_EQ(losses("resumed"), losses("whole"));
  EXPECT_EQ(recorded_rounds("resumed"), 4);
}

// A run that lost its checkpoints continues from snapshots in memory, of which the last may be on any rank.
TEST_F(ExpertRoundsRun, SnapshotsInMemoryHaveTheNumberToo) {
  ASSERT_EQ(start("whole", room_for(4)), "");
  const Path memory = folder_.path() / "memory";
  make_folders(memory);
  ASSERT_EQ(setenv(kSnapshotVariable, memory.c_str(), 1), 0);
  const Words snapshots = {"snapshot_interval=1"};
  EXPECT_EQ(start("resumed", room_for(4, snapshots), {"snapshot_interval=1", "exit_interval=3"}), "");
  remove_tree(folder_.path() / "w/u/resumed/checkpoints");
  EXPECT_EQ(start("resumed", std::int64_t{1} << 34, snapshots), "");
  unsetenv(kSnapshotVariable);
  EXPECT_THAT(log_of("resumed"), AllOf(HasSubstr("in 4 rounds (moe_expert_rounds), as before"),
                                       HasSubstr("continuing from " + memory.string())));
  EXPECT_EQ(weights("resumed"), weights("whole"));
}

TEST_F(ExpertRoundsRun, MoreRoundsAreChosenWithAWarningIfTheRecordedNumberDoesNotFit) {
  constexpr std::int64_t kAmple = std::int64_t{1} << 34;
  ASSERT_EQ(start("run", kAmple, {"exit_interval=3"}), "");
  EXPECT_EQ(recorded_rounds("run"), 1);
  EXPECT_THAT(log_of("run"), Not(HasSubstr("moe_expert_rounds")));
  ASSERT_EQ(start("run", room_for(4)), "");
  EXPECT_THAT(log_of("run"),
              AllOf(HasSubstr("with the 1 round (moe_expert_rounds) that this run had, the run needs"),
                    HasSubstr("are free: a rank now sends its tokens to the experts in 4 rounds, so results "
                              "differ by rounding from those of an uninterrupted run")));
  EXPECT_EQ(recorded_rounds("run"), 4);
  // A setting takes precedence, and is a logged change.
  ASSERT_EQ(start("run", kAmple, {"train_iters=7", "moe_expert_rounds=2"}), "");
  EXPECT_THAT(log_of("run"), HasSubstr("moe_expert_rounds was unset, and is 2 from here on"));
  EXPECT_EQ(recorded_rounds("run"), 2);
  // Without the setting, the run keeps what it had.
  ASSERT_EQ(start("run", kAmple, {"train_iters=8"}), "");
  EXPECT_THAT(log_of("run"), HasSubstr("moe_expert_rounds was 2, and is unset: the run has 2 rounds, as"));
  EXPECT_EQ(recorded_rounds("run"), 2);
  EXPECT_THAT(start("run", 1 << 20, {"train_iters=9"}), HasSubstr("the run needs"));
}

// Each choice is measured without the memory of the measurements before it.
TEST_F(ExpertRoundsRun, FewerRowsAreKeptBeforeRoundsAreChosen) {
  const auto need = [&](const std::string& margin) {
    return forecast("none", {"num_layers=12", "moe_expert_rounds=1", "moe_expert_capacity_margin=" + margin})
        .memory.need.total();
  };
  const std::int64_t fewer = need("1.5"), all = need("1000");
  ASSERT_LT(fewer, all);
  ASSERT_EQ(start("run", (fewer + all) / 2 * 20 / 19, {"num_layers=12", "moe_expert_capacity_margin=null"}),
            "");
  EXPECT_EQ(recorded_rounds("run"), 1);
  EXPECT_THAT(log_of("run"), HasSubstr("a rank keeps the activations of 1.5 times its equal share"));
}

// A checkpoint of a run on one rank, like an older checkpoint, has no number.
TEST_F(ExpertRoundsRun, ACheckpointWithoutANumberLeavesTheChoiceToTheMemory) {
  const Path saved = run("single", {"model_type=mixtral", "num_experts=8", "moe_ffn_hidden_size=48",
                                    "moe_router_topk=2", "seq_length=256", "max_position_embeddings=256",
                                    "device=cpu", "num_threads=1", "global_batch_size=4", "train_iters=2"});
  EXPECT_EQ(recorded_rounds("single"), 0);
  ASSERT_EQ(start("single", room_for(2)), "");
  EXPECT_EQ(recorded_rounds("single"), 2);
  EXPECT_THAT(log_of("single"), HasSubstr("A resumed run keeps it. Set moe_expert_rounds=2"));
}

}  // namespace
}  // namespace primus
