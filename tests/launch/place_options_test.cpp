// Tests that options and variables which state a node's place in a job are compared with the job.
#include "launch/options/place_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace primus::launch {
namespace {

using ::testing::HasSubstr;

using Words = std::vector<std::string>;

// Returns the error message, or "" if the job accepts the options.
std::string options_error(const Words& words, const JobShape& job) {
  try {
    check_place_options(words, job);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  return "";
}

std::string variable_error(const std::string& name, const std::string& value, const JobShape& job) {
  try {
    check_job_variables({{name, value}}, job);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  return "";
}

TEST(PlaceOptions, AreFoundInEverySpelling) {
  EXPECT_EQ(place_option({"train", "--nproc_per_node", "4"}, "--nproc"), "4");
  EXPECT_EQ(place_option({"--node-rank=1"}, "--node_rank"), "1");
  EXPECT_EQ(place_option({"--master-addr", "host"}, "--master_addr"), "host");
  EXPECT_EQ(place_option({"nproc=4", "--nprocs", "3"}, "--nproc"), std::nullopt);
  EXPECT_EQ(place_option({"--nproc"}, "--nproc"), "");
}

TEST(PlaceOptions, AreAcceptedIfTheyAgreeWithTheJob) {
  const JobShape two{.nodes = 2, .gpus = 8};
  EXPECT_EQ(options_error({"train", "lr=1"}, two), "");
  EXPECT_EQ(options_error({"--nnodes", "2", "--nproc", "8", "--world", "16"}, two), "");
  EXPECT_EQ(options_error({"--nnodes", "2", "--nproc", "4", "--world=8"}, two), "");
  EXPECT_EQ(options_error({"--nnodes", "1", "--node_rank", "0"}, {.nodes = 1}), "");
  EXPECT_EQ(options_error({"--node_rank", "1"}, {.nodes = 2, .node = 1}), "");
  EXPECT_EQ(options_error({"--nproc", "4"}, {.nodes = 2, .tasks = 4}), "");
  EXPECT_EQ(options_error({"--nproc", "4"}, {.nodes = 2, .ranks = 8}), "") << "8 are the node's GPUs";
  EXPECT_EQ(options_error({"--nproc", "4"}, {.nodes = 2, .given_ranks = 4}), "");
  // A single rank can plan for any number of ranks.
  EXPECT_EQ(options_error({"--world", "64"}, {.nodes = 1, .ranks = 1}), "");
  // The job has one node, and the user may start the command on two nodes separately.
  const JobShape here{.nodes = 1, .node = 0};
  Words words = {"--nnodes", "2", "--node_rank", "1", "--master_addr", "a", "--master_port", "1"};
  EXPECT_EQ(options_error(words, here), "");
  words.resize(6);
  EXPECT_THAT(options_error(words, here), HasSubstr("--nnodes needs --master_port"));
  words.resize(4);
  EXPECT_THAT(options_error(words, here), HasSubstr("--nnodes needs --master_addr"));
  words.emplace_back("--dry-run");
  EXPECT_EQ(options_error(words, here), "") << "a plan";
  // If Slurm chooses the number of nodes, options that state a number are accepted.
  EXPECT_EQ(options_error({"--nnodes", "3", "--world", "7"}, {.nodes = 0}), "");
}

TEST(PlaceOptions, AreRefusedIfTheyContradictTheJob) {
  const JobShape two{.nodes = 2, .gpus = 8};
  EXPECT_THAT(options_error({"--nnodes", "4"}, two), HasSubstr("--nnodes is 4, but the job has 2 nodes"));
  EXPECT_THAT(options_error({"--nnodes", "2"}, {.nodes = 1}), HasSubstr("but the job has 1 node\n"));
  EXPECT_THAT(options_error({"--node_rank", "0"}, two),
              HasSubstr("--node_rank is 0 on all nodes of the job"));
  EXPECT_THAT(options_error({"--node-rank", "0"}, {.nodes = 2, .node = 1}),
              HasSubstr("--node_rank is 0, but this node has the number 1"));
  EXPECT_THAT(options_error({"--node_rank", "1"}, {.nodes = 1}), HasSubstr("this node has the number 0"));
  EXPECT_THAT(options_error({"--nproc", "16"}, two), HasSubstr("the job requests 8 GPUs per node"));
  EXPECT_THAT(options_error({}, {.nodes = 2, .ranks = 8, .gpus = 4}),
              HasSubstr("the number of ranks per node is 8, but the job requests 4 GPUs per node"));
  EXPECT_THAT(options_error({}, {.nodes = 2, .gpus = 4, .tasks = 8}),
              HasSubstr("the number of tasks per node is 8, but the job requests 4 GPUs per node"));
  EXPECT_THAT(options_error({"--nproc", "3"}, {.nodes = 2, .tasks = 4}),
              HasSubstr("Slurm starts 4 ranks per node"));
  EXPECT_THAT(options_error({"--nproc", "4"}, {.nodes = 2, .given_ranks = 2}),
              HasSubstr("--nproc is 4, but --env GPUS_PER_NODE is 2"));
  EXPECT_THAT(options_error({"--world", "8"}, two),
              HasSubstr("--world is 8, but the job has 16 ranks (2 nodes, 8 per node)"));
  EXPECT_THAT(options_error({"--world", "16"}, {.nodes = 2, .ranks = 4, .gpus = 8}),
              HasSubstr("the job has 8 ranks (2 nodes, 4 per node)"));
  EXPECT_THAT(options_error({"--world", "7"}, {.nodes = 2}),
              HasSubstr("--world is 7, which 2 nodes cannot share equally"));
}

TEST(PlaceOptions, VariablesAreComparedLikeOptions) {
  const JobShape two{.nodes = 2, .gpus = 8};
  EXPECT_EQ(variable_error("NNODES", "2", two), "");
  EXPECT_EQ(variable_error("GPUS_PER_NODE", "8", two), "");
  EXPECT_EQ(variable_error("GPUS_PER_NODE", "4", two), "");
  EXPECT_EQ(variable_error("NODE_RANK", "0", {.nodes = 1}), "");
  EXPECT_THAT(variable_error("NNODES", "3", two), HasSubstr("--env NNODES is 3, but the job has 2 nodes"));
  EXPECT_THAT(variable_error("NODE_RANK", "0", two), HasSubstr("--env NODE_RANK is 0 on all nodes"));
  EXPECT_THAT(variable_error("GPUS_PER_NODE", "16", two), HasSubstr("the job requests 8 GPUs per node"));
}

// --env sets one value in all ranks, so it cannot set a variable that differs between ranks.
TEST(PlaceOptions, VariablesOfARankAreRefused) {
  const auto error_with = [](const std::string& name, const std::string& value, const Words& words = {}) {
    try {
      check_rank_variables({{name, value}}, words, {.nodes = 2, .ranks = 8});
    } catch (const Error& error) {
      return error.render();
    }
    return std::string();
  };
  EXPECT_THAT(error_with("WORLD_SIZE", "3"), HasSubstr("--env WORLD_SIZE is 3, but the job has 16"));
  EXPECT_THAT(error_with("WORLD_SIZE", "16", {"--nproc", "4"}), HasSubstr("but the job has 8"));
  EXPECT_THAT(error_with("LOCAL_WORLD_SIZE", "4"), HasSubstr("but the job has 8"));
  for (const char* name : {"RANK", "LOCAL_RANK", "GROUP_RANK"})
    EXPECT_THAT(error_with(name, "0"), HasSubstr("is 0 in all ranks of the job"));
  EXPECT_EQ(error_with("WORLD_SIZE", "16"), "");
  EXPECT_EQ(error_with("LOCAL_WORLD_SIZE", "8"), "");
  EXPECT_EQ(error_with("NCCL_DEBUG", "INFO"), "");
  EXPECT_THROW(check_rank_variables({{"WORLD_SIZE", "4"}}, {}, {.nodes = 0}), Error) << "unknown";
}

TEST(PlaceOptions, IdleGpusAreNoted) {
  const JobShape eight{.nodes = 2, .gpus = 8};
  EXPECT_EQ(idle_gpus({"--nproc", "4"}, eight),
            "each node starts 4 ranks, so 4 of the 8 GPUs that the job requests per node stay idle");
  EXPECT_EQ(idle_gpus({}, {.nodes = 2, .ranks = 1, .gpus = 8}),
            "each node starts 1 rank, so 7 of the 8 GPUs that the job requests per node stay idle");
  EXPECT_EQ(idle_gpus({"--nproc", "8"}, eight), std::nullopt);
  EXPECT_EQ(idle_gpus({}, eight), std::nullopt);
  EXPECT_EQ(idle_gpus({"--nproc", "4"}, {.nodes = 2}), std::nullopt);
}

}  // namespace
}  // namespace primus::launch
