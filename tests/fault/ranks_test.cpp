// Tests of training with several processes. The results equal those of one process. Any number of ranks can
// resume any checkpoint. An error of one rank ends all ranks.
#include "fault/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace primus {
namespace {

using test::children_of;
using test::expect_done;
using test::losses;
using test::process_of_rank;
using test::Program;
using test::ProgramResult;
using test::run_program;
using test::shared_memory_segments;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

constexpr const char* kLevels[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, int ranks,
                               const std::string& level, std::vector<std::string> more) {
  more.emplace_back("global_batch_size=24");
  return test::train_ranks(folder, name, ranks, level, std::move(more));
}

TEST(Ranks, EqualOneRankAndSaveTheSameFilesOnEveryShardingLevel) {
  const TemporaryFolder folder;
  const std::vector<std::string> more = {"train_iters=6", "save_interval=3", "eval_iters=1",
                                         "eval_interval=4"};
  expect_done(run_program(train(folder, "one", 1, "no_shard", more)));
  const auto one = losses(test::run_folder(folder.path(), "one"));
  ASSERT_EQ(one.size(), 6U);
  for (const int ranks : {2, 3}) {
    std::string weights;
    for (const std::string level : kLevels) {
      const std::string name = level + std::to_string(ranks);
      expect_done(run_program(train(folder, name, ranks, level, more)));
      const Path run = test::run_folder(folder.path(), name);
      const auto steps = losses(run);
      ASSERT_EQ(steps.size(), one.size()) << name;
      for (const auto& [iteration, step] : steps) {
        EXPECT_NEAR(step.loss, one.at(iteration).loss, 1e-5 * one.at(iteration).loss) << name;
        EXPECT_NEAR(step.gradient_norm, one.at(iteration).gradient_norm,
                    1e-4 * one.at(iteration).gradient_norm)
            << name;
      }
      if (weights.empty()) weights = test::final_weights(run, 6);
      EXPECT_EQ(test::final_weights(run, 6), weights) << name;
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_TRUE(Env::posix().status(run / "logs" / "pre_trainer" / ("rank-" + std::to_string(rank)) /
                                        "output.log"));
    }
  }
}

// Returns the samples that the run wrote, without their times.
std::string samples(const Path& run, const std::string& name) {
  std::string texts;
  std::istringstream lines(read_file(run / "samples.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record.at("tokens"), 10) << name;
    record.erase("seconds");
    texts += record.dump() + "\n";
  }
  EXPECT_EQ(std::count(texts.begin(), texts.end(), '\n'), 2) << name;
  return texts;
}

// Writing samples does not change the training, and the texts are equal on every mesh.
TEST(Ranks, GenerateTheSameTextsOnEveryMesh) {
  struct Way {
    std::string name, level;
    int ranks;
    std::vector<std::string> mesh = {};
  };
  const Way ways[] = {
      {"no_shard", "no_shard", 3},
      {"optim", "optim", 3},
      {"optim_grads", "optim_grads", 3},
      {"optim_grads_params", "optim_grads_params", 3},
      {"tensor", "optim", 4, {"tensor_model_parallel_size=2", "sequence_parallel=true"}},
      {"stages", "no_shard", 2, {"pipeline_model_parallel_size=2"}},
      {"v",
       "no_shard",
       2,
       {"pipeline_model_parallel_size=2", "patch_primus_pipeline=true", "pp_algorithm=zbv-formatted"}},
      {"context", "no_shard", 2, {"context_parallel_size=2"}},
  };
  const TemporaryFolder folder;
  std::string expected;
  for (const Way& way : ways) {
    std::vector<std::string> silent = {"train_iters=4", "eval_iters=1", "eval_interval=2"};
    silent.insert(silent.end(), way.mesh.begin(), way.mesh.end());
    std::vector<std::string> writing = silent;
    writing.insert(writing.end(), {"sample_interval=2", "sample_tokens=10"});
    expect_done(run_program(train(folder, "silent-" + way.name, way.ranks, way.level, silent)));
    expect_done(run_program(train(folder, way.name, way.ranks, way.level, writing)));
    const Path run = test::run_folder(folder.path(), way.name);
    EXPECT_EQ(losses(run), losses(test::run_folder(folder.path(), "silent-" + way.name))) << way.name;
    const std::string texts = samples(run, way.name);
    if (expected.empty()) expected = texts;
    EXPECT_EQ(texts, expected) << way.name;
  }
}

// A pipeline trains and evaluates like one rank. The pipeline resumes from checkpoints of one rank, and vice
// versa.
TEST(Ranks, PipelineStagesEqualOneRank) {
  const TemporaryFolder folder;
  const std::vector<std::string> more = {"train_iters=6", "save_interval=3", "eval_iters=1",
                                         "eval_interval=4"};
  const auto with = [&](std::vector<std::string> words) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::string> stages = {"pipeline_model_parallel_size=2"};
  const std::vector<std::string> v_shaped = {"pipeline_model_parallel_size=2", "patch_primus_pipeline=true",
                                             "pp_algorithm=zbv-formatted"};
  expect_done(run_program(train(folder, "one", 1, "no_shard", more)));
  const auto one = losses(test::run_folder(folder.path(), "one"));
  const auto expect_as_one = [&](const std::string& name) {
    const auto steps = losses(test::run_folder(folder.path(), name));
    ASSERT_EQ(steps.size(), one.size()) << name;
    for (const auto& [iteration, step] : steps)
      EXPECT_NEAR(step.loss, one.at(iteration).loss, 1e-5 * one.at(iteration).loss) << name;
  };
  expect_done(run_program(train(folder, "stages", 2, "no_shard", with(stages))));
  expect_as_one("stages");
  expect_done(run_program(train(folder, "v", 4, "optim", with(v_shaped))));
  expect_as_one("v");
  // The first half runs on one rank, the second on two stages with two ranks each.
  expect_done(run_program(train(folder, "mixed", 1, "no_shard", with({"exit_interval=3"}))));
  expect_done(run_program(train(folder, "mixed", 4, "optim_grads", with(stages))));
  expect_as_one("mixed");
  expect_done(run_program(
      train(folder, "back", 2, "no_shard", with({"pipeline_model_parallel_size=2", "exit_interval=3"}))));
  expect_done(run_program(train(folder, "back", 1, "no_shard", more)));
  expect_as_one("back");
}

TEST(Ranks, ImpossiblePipelinesAreRefusedWithTheNumberToChange) {
  const TemporaryFolder folder;
  const auto refusal = [&](int ranks, const std::vector<std::string>& more) {
    const ProgramResult result = run_program(train(folder, "refused", ranks, "no_shard", more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refusal(3, {"pipeline_model_parallel_size=2"}), HasSubstr("does not divide the 3 ranks"));
  EXPECT_THAT(refusal(2, {"pipeline_model_parallel_size=2", "pp_algorithm=v-half"}),
              HasSubstr("no effect without patch_primus_pipeline"));
  EXPECT_THAT(refusal(2, {"pipeline_model_parallel_size=2", "pipeline_model_parallel_layout=Et|t"}),
              HasSubstr("does not go from embedding to loss"));
  EXPECT_THAT(refusal(1, {"virtual_pipeline_model_parallel_size=2"}),
              HasSubstr("no effect with one pipeline stage"));
}

TEST(Ranks, MinutesBecomeStepsOnEveryMesh) {
  const TemporaryFolder folder;
  int number = 0;
  for (const std::vector<std::string>& mesh :
       {std::vector<std::string>{}, {"tensor_model_parallel_size=2"}, {"pipeline_model_parallel_size=2"}}) {
    auto more = mesh;
    more.insert(more.end(), {"train_iters=null", "train_minutes=0.02", "exit_interval=2"});
    const ProgramResult result =
        run_program(train(folder, "minutes" + std::to_string(number++), 2, "no_shard", more));
    expect_done(result);
    EXPECT_THAT(result.err, HasSubstr("for 0.02 minutes; the clock ends the run"));
  }
}

TEST(Ranks, AnyNumberResumesFromAnyOther) {
  const TemporaryFolder folder;
  expect_done(run_program(train(folder, "whole", 1, "no_shard", {"train_iters=8", "save_interval=4"})));
  const auto whole = losses(test::run_folder(folder.path(), "whole"));
  int number = 0;
  for (const int before : {1, 2, 3, 4}) {
    for (const int after : {1, 2, 3, 4}) {
      if (before == after) continue;
      const std::string name = "run" + std::to_string(before) + std::to_string(after);
      expect_done(run_program(train(folder, name, before, kLevels[number % 4],
                                    {"train_iters=8", "save_interval=4", "exit_interval=4"})));
      expect_done(run_program(
          train(folder, name, after, kLevels[(number + 1) % 4], {"train_iters=8", "save_interval=4"})));
      ++number;
      const auto steps = losses(test::run_folder(folder.path(), name));
      ASSERT_EQ(steps.size(), 8U) << name;
      for (const auto& [iteration, step] : steps)
        EXPECT_NEAR(step.loss, whole.at(iteration).loss, 1e-5 * whole.at(iteration).loss) << name;
    }
  }
}

// Each mesh resumes the checkpoint of a mesh with another layout of layers and experts.
TEST(Ranks, AnyMeshResumesFromAnyOther) {
  const TemporaryFolder folder;
  struct Mesh {
    int ranks;
    std::vector<std::string> settings;
  };
  const std::string experts = "expert_model_parallel_size=", tensor = "tensor_model_parallel_size=",
                    width = "expert_tensor_parallel_size=";
  const std::vector<Mesh> meshes = {{1, {}},
                                    {2, {tensor + "2"}},
                                    {2, {experts + "2"}},
                                    {4, {tensor + "2", experts + "2", width + "1"}},
                                    {4, {tensor + "2", experts + "2"}},
                                    {4, {tensor + "4", experts + "4", width + "1"}}};
  const std::vector<std::string> model = {
      "model_type=mixtral", "num_experts=4",         "moe_router_topk=2",  "ffn_hidden_size=48",
      "num_layers=2",       "num_attention_heads=4", "num_query_groups=4", "moe_aux_loss_coeff=0.01"};
  const auto run = [&](const std::string& name, std::size_t mesh, const std::string& level,
                       std::vector<std::string> more) {
    more.insert(more.end(), model.begin(), model.end());
    more.insert(more.end(), meshes[mesh].settings.begin(), meshes[mesh].settings.end());
    more.push_back("save_interval=2");
    expect_done(run_program(train(folder, name, meshes[mesh].ranks, level, more)));
  };
  const auto iterations = static_cast<int>(2 * meshes.size());
  run("whole", 0, "no_shard", {"train_iters=" + std::to_string(iterations)});
  const auto whole = losses(test::run_folder(folder.path(), "whole"));
  ASSERT_EQ(whole.size(), static_cast<std::size_t>(iterations));
  for (const std::size_t stride : {1U, 5U}) {
    const std::string name = "stride" + std::to_string(stride);
    std::size_t mesh = 0;
    for (int end = 2; end <= iterations; end += 2) {
      run(name, mesh, kLevels[mesh % 4],
          {"train_iters=" + std::to_string(iterations), "exit_interval=" + std::to_string(end)});
      mesh = (mesh + stride) % meshes.size();
    }
    const auto steps = losses(test::run_folder(folder.path(), name));
    ASSERT_EQ(steps.size(), whole.size()) << name;
    for (const auto& [iteration, step] : steps) {
      EXPECT_NEAR(step.loss, whole.at(iteration).loss, 1e-5 * whole.at(iteration).loss) << name << iteration;
      EXPECT_NEAR(step.gradient_norm, whole.at(iteration).gradient_norm,
                  1e-4 * whole.at(iteration).gradient_norm)
          << name << iteration;
    }
  }
}

// Two ranks need at most three seconds of CPU time from the start of the command to its end, for one
// step and a save. CPU time does not count other work on the machine.
TEST(Ranks, BeginWithinThreeSecondsOfWork) {
  const TemporaryFolder folder;
  const auto used = [] {
    rusage all{};
    getrusage(RUSAGE_CHILDREN, &all);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(all.ru_utime) + seconds(all.ru_stime);
  };
  const double before = used();
  expect_done(run_program(train(folder, "first", 2, "optim", {"train_iters=1"})));
  EXPECT_LT(used() - before, 3.0);
}

// If a process hangs, the others name it and the operation that they waited for.
TEST(Ranks, AHangingRankIsNamedAndTheRestartLosesNothing) {
  const TemporaryFolder folder;
  const std::size_t segments = shared_memory_segments();
  const Path run = test::run_folder(folder.path(), "hung");
  const std::vector<std::string> more = {"train_iters=100000", "save_interval=5"};
  Program program(train(folder, "hung", 3, "optim", more));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 12; }));
  const std::vector<pid_t> all = children_of(program.pid());
  const pid_t victim = process_of_rank(program.pid(), 1);
  ASSERT_NE(victim, 0);
  ASSERT_EQ(kill(victim, SIGSTOP), 0);
  const auto began = std::chrono::steady_clock::now();
  const ProgramResult result = program.wait();
  const auto lasted = std::chrono::steady_clock::now() - began;
  EXPECT_NE(result.exit_code, 0);
  // The timeout is ten seconds here, because three steps take less time. A busy machine may notice the
  // timeout later.
  EXPECT_GT(lasted, 9s);
  EXPECT_LT(lasted, 20s);
  EXPECT_THAT(result.err, AllOf(HasSubstr("did not complete within 1"), HasSubstr("rank 1 ")));
  EXPECT_THAT(result.err, Not(HasSubstr("rank 2 is missing")));
  for (const pid_t process : all) EXPECT_NE(kill(process, 0), 0) << "a rank still runs";
  EXPECT_EQ(shared_memory_segments(), segments);
  const std::size_t saved = losses(run).size() / 5 * 5;
  std::vector<std::string> a_little_more = more;
  a_little_more.push_back("exit_interval=5");
  expect_done(run_program(train(folder, "hung", 3, "optim", a_little_more)));
  EXPECT_GE(losses(run).size(), saved);
}

TEST(Ranks, StopTogether) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path(), "run");
  Program program(train(folder, "run", 2, "optim", {"train_iters=100000", "save_interval=100000"}));
  ASSERT_TRUE(wait_until([&] { return losses(run).size() >= 3; }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("run the same command again to continue"));
  const auto done = losses(run).size();
  expect_done(run_program(train(folder, "run", 2, "optim", {"train_iters=100000", "exit_interval=1"})));
  EXPECT_EQ(losses(run).size(), done + 1);
}

TEST(Ranks, OneRankWritesTheExportedExperiment) {
  const TemporaryFolder folder;
  const Path file = folder.path() / "exported.yaml";
  const std::vector<std::string> more = {"train_iters=2", "--export-config", file.string()};
  expect_done(run_program(train(folder, "run", 2, "optim", more)));
  EXPECT_THAT(read_file(file), HasSubstr("data_parallel_sharding_strategy: optim"));
}

TEST(Ranks, IndivisibleBatchesAreRefused) {
  const TemporaryFolder folder;
  ProgramResult result = run_program(train(folder, "run", 5, "optim", {"train_iters=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("global_batch_size (24) is not a multiple of micro_batch_size (2) times 5"),
                    HasSubstr("set it to a multiple of 10")));
  result = run_program(train(folder, "run", 3, "optim", {"num_distributed_optimizer_instances=2"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("set it to one of 1, 3"));
  result = run_program(train(folder, "run", 0, "optim", {}));
  EXPECT_EQ(result.exit_code, 2);
  result = run_program(train(folder, "run", 2, "optim", {"--dry-run"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("data 2"));
}

TEST(Ranks, AMeshThatDoesNotFitTheModelIsRefused) {
  const TemporaryFolder folder;
  const auto refusal = [&](std::vector<std::string> more) {
    const ProgramResult result = run_program(train(folder, "refused", 4, "no_shard", std::move(more)));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(refusal({"tensor_model_parallel_size=4", "num_attention_heads=4", "num_query_groups=2"}),
              AllOf(HasSubstr("2 key/value heads (num_query_groups) cannot be divided evenly among 4 ranks"),
                    HasSubstr("set tensor_model_parallel_size to 2")));
  EXPECT_THAT(refusal({"tensor_model_parallel_size=3"}),
              AllOf(HasSubstr("does not divide the 4 ranks"), HasSubstr("set it to one of 1, 2, 4")));
  EXPECT_THAT(refusal({"expert_model_parallel_size=2"}), HasSubstr("the model has no experts"));
}

TEST(Ranks, ThatDifferAreRefused) {
  const TemporaryFolder folder;
  // Starts the ranks as torchrun does, with different learning rates.
  const auto rank = [&](int number) {
    return Program(train(folder, "run", 1, "optim", {"train_iters=2", "lr=0." + std::to_string(number + 1)}),
                   {.environment = {{"RANK", std::to_string(number)},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "127.0.0.1"},
                                    {"MASTER_PORT", "29731"}}});
  };
  Program first = rank(0), second = rank(1);
  for (Program* program : {&first, &second}) {
    const ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("ranks 0 and 1 differ in lr: 0.1, 0.2"));
    EXPECT_LT(result.err.size(), 2000U) << "settings that agree are not listed";
  }
}

// The results do not depend on the numbers of threads, which may differ between ranks.
TEST(Ranks, MayHaveDifferentThreads) {
  const TemporaryFolder folder;
  const auto rank = [&](int number) {
    std::vector<std::string> words = train(folder, "run", 1, "optim", {"train_iters=2"});
    std::erase(words, "num_threads=1");
    return Program(words, {.environment = {{"RANK", std::to_string(number)},
                                           {"WORLD_SIZE", "2"},
                                           {"OMP_NUM_THREADS", std::to_string(number + 1)},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", "29733"}}});
  };
  Program first = rank(0), second = rank(1);
  expect_done(first.wait());
  expect_done(second.wait());
}

// The order of cyclic data depends on the number of ranks. A resumed run keeps the order for its original
// number of ranks.
TEST(Ranks, CyclicDataKeepTheirOrderOnOtherRanks) {
  const TemporaryFolder folder;
  const std::vector<std::string> cyclic = {"dataloader_type=cyclic", "train_iters=6", "save_interval=3"};
  expect_done(run_program(train(folder, "whole", 1, "no_shard", cyclic)));
  const auto whole = losses(test::run_folder(folder.path(), "whole"));
  for (const int ranks : {2, 3}) {
    const std::string name = "on" + std::to_string(ranks);
    auto half = cyclic;
    half.emplace_back("exit_interval=3");
    expect_done(run_program(train(folder, name, 1, "no_shard", half)));
    const ProgramResult rest = run_program(train(folder, name, ranks, "no_shard", cyclic));
    expect_done(rest);
    EXPECT_THAT(rest.err, HasSubstr("the data keep the order of 1 data-parallel ranks"));
    for (const auto& [iteration, step] : losses(test::run_folder(folder.path(), name)))
      EXPECT_NEAR(step.loss, whole.at(iteration).loss, 1e-5 * whole.at(iteration).loss) << name << iteration;
  }
}

}  // namespace
}  // namespace primus
