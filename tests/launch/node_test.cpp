#include "launch/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/hardware.h"
#include "launch/numa.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  return "no error";
}

NodePlace place_of(const std::map<std::string, std::string>& variables, const NodeDefaults& defaults = {},
                   const Accelerators& gpus = {}) {
  test::Machine machine;
  machine.variables = variables;
  return find_node(machine.surroundings(), defaults, gpus);
}

TEST(Node, IsAloneWhereNothingIsSaid) {
  const NodePlace place = place_of({});
  EXPECT_EQ(place.nodes, 1);
  EXPECT_EQ(place.ranks, 1);
  EXPECT_EQ(place.master_address, "");
  EXPECT_EQ(place.master_port, 0);
  Accelerators gpus;
  gpus.count = 8;
  EXPECT_EQ(place_of({}, {}, gpus).ranks, 8);
  EXPECT_EQ(place_of({}, {.ranks = 4}, gpus).ranks, 4);
  EXPECT_EQ(place_of({{"GPUS_PER_NODE", "2"}}, {.ranks = 4}, gpus).ranks, 2);
}

TEST(Node, PrimusVariables) {
  const NodePlace place = place_of({{"NNODES", "3"}, {"NODE_RANK", "2"}, {"MASTER_ADDR", "host1"}});
  EXPECT_EQ(place.nodes, 3);
  EXPECT_EQ(place.node, 2);
  EXPECT_EQ(place.master_address, "host1");
  EXPECT_EQ(place.master_port, kMasterPort);
}

TEST(Node, SlurmVariablesFillWhatIsOpen) {
  const std::map<std::string, std::string> step = {{"SLURM_JOB_ID", "70123"},
                                                   {"SLURM_PROCID", "1"},
                                                   {"SLURM_NNODES", "2"},
                                                   {"SLURM_NTASKS", "2"},
                                                   {"SLURM_NODEID", "1"},
                                                   {"SLURM_LOCALID", "0"},
                                                   {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                                   {"SLURM_STEP_NODELIST", "localhost,no-such-node"},
                                                   {"SLURM_GPUS_ON_NODE", "4"}};
  NodePlace place = place_of(step);
  EXPECT_EQ(place.nodes, 2);
  EXPECT_EQ(place.node, 1);
  EXPECT_EQ(place.ranks, 4);
  EXPECT_EQ(place.master_address, "localhost");
  EXPECT_EQ(place.master_port, 20123);
  EXPECT_FALSE(place.task);
  auto more = step;
  more.insert({{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "9999"}, {"GPUS_PER_NODE", "2"}});
  place = place_of(more);
  EXPECT_EQ(place.master_address, "10.0.0.7");
  EXPECT_EQ(place.master_port, 9999);
  EXPECT_EQ(place.ranks, 2);
  // A shell of salloc is no task.
  auto shell = step;
  shell.erase("SLURM_PROCID");
  EXPECT_EQ(place_of(shell).nodes, 1);
}

TEST(Node, SlurmsTasksAreRanksWhereThereAreMoreThanNodes) {
  const NodePlace place = place_of({{"SLURM_JOB_ID", "7"},
                                    {"SLURM_PROCID", "4"},
                                    {"SLURM_NNODES", "3"},
                                    {"SLURM_NTASKS", "5"},
                                    {"SLURM_NODEID", "2"},
                                    {"SLURM_LOCALID", "0"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                    {"SLURM_STEP_NODELIST", "localhost"}});
  ASSERT_TRUE(place.task);
  EXPECT_EQ(place.task->rank, 4);
  EXPECT_EQ(place.task->world, 5);
  EXPECT_EQ(place.task->local_world, 1);
}

TEST(Node, WhatMakesNoSenseIsNamed) {
  const auto error = [](const std::map<std::string, std::string>& variables) {
    return error_of([&] { place_of(variables); });
  };
  EXPECT_THAT(error({{"NNODES", "two"}}), HasSubstr("NNODES='two' is not a number from 1"));
  EXPECT_THAT(error({{"NNODES", "0"}}), HasSubstr("NNODES='0'"));
  EXPECT_THAT(error({{"GPUS_PER_NODE", "99999999999"}}), HasSubstr("GPUS_PER_NODE"));
  EXPECT_THAT(error({{"NNODES", "2"}}), HasSubstr("NODE_RANK is not set"));
  EXPECT_THAT(error({{"NNODES", "2"}, {"NODE_RANK", "2"}}), HasSubstr("NODE_RANK=2 is not below NNODES=2"));
  EXPECT_THAT(error({{"NNODES", "2"}, {"NODE_RANK", "0"}}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error({{"NNODES", "2"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}}),
              HasSubstr("MASTER_PORT='x'"));
}

TEST(NodeList, Expands) {
  EXPECT_THAT(expand_nodes("n1"), ElementsAre("n1"));
  EXPECT_THAT(expand_nodes("n[01-03,7],login"), ElementsAre("n01", "n02", "n03", "n7", "login"));
  EXPECT_THAT(expand_nodes("r[1-2]-n[08-10]x"),
              ElementsAre("r1-n08x", "r1-n09x", "r1-n10x", "r2-n08x", "r2-n09x", "r2-n10x"));
  EXPECT_EQ(first_node("gpu[030,058],x"), "gpu030");
  EXPECT_EQ(first_node("n[000000001-999999999]"), "n000000001");
  EXPECT_EQ(expand_nodes("n[1-999999999]").size(), static_cast<std::size_t>(kMaxNodes));
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* list : {"", ",", "n[", "n]", "n[1", "n[[1]]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[-1]",
                           "a,,b", "n[99999999999999999999]"}) {
    EXPECT_THAT(error_of([&] { expand_nodes(list); }), HasSubstr("is no list of nodes")) << list;
  }
}

TEST(NodeList, TasksOfANode) {
  EXPECT_EQ(tasks_of_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3), 1);
  EXPECT_THAT(error_of([] { tasks_of_node("2(x3),1", 4); }), HasSubstr("says nothing of node 4"));
  EXPECT_THAT(error_of([] { tasks_of_node("2(x", 0); }), HasSubstr("is no list"));
}

TEST(Hardware, CountsGpusByTheirFiles) {
  test::Machine machine;
  EXPECT_FALSE(find_accelerators(machine.surroundings()).any());
  EXPECT_TRUE(environment_defaults({}, machine.surroundings()).empty());
  machine.nvidia_gpus(4);
  Accelerators gpus = find_accelerators(machine.surroundings());
  EXPECT_EQ(gpus.vendor, Vendor::kNvidia);
  EXPECT_EQ(gpus.count, 4);
  EXPECT_EQ(gpus.model, "H100");
  EXPECT_THAT(gpus.numa_nodes, ElementsAre(0, 1, 0, 1));
  machine.variables["CUDA_VISIBLE_DEVICES"] = "3,0";
  gpus = find_accelerators(machine.surroundings());
  EXPECT_EQ(gpus.count, 2);
  EXPECT_THAT(gpus.numa_nodes, ElementsAre(1, 0));
  for (const auto& [mask, count] :
       {std::pair("", 0), std::pair("-1", 0), std::pair("1,9,2", 1), std::pair("GPU-aa,GPU-bb", 2)}) {
    machine.variables["CUDA_VISIBLE_DEVICES"] = mask;
    EXPECT_EQ(find_accelerators(machine.surroundings()).count, count) << mask;
  }
}

TEST(Hardware, AmdGpusBringPrimusDefaults) {
  test::Machine machine;
  machine.amd_gpus(8);
  machine.variables["NCCL_IB_GID_INDEX"] = "1";
  Accelerators gpus = find_accelerators(machine.surroundings());
  EXPECT_EQ(gpus.vendor, Vendor::kAmd);
  EXPECT_EQ(gpus.count, 8);
  EXPECT_EQ(gpus.model, "MI300X");
  auto defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("HSA_NO_SCRATCH_RECLAIM"), "1");
  EXPECT_FALSE(defaults.contains("NCCL_IB_GID_INDEX")) << "what is set stays";
  EXPECT_FALSE(defaults.contains("RCCL_WARP_SPEED_AUTO"));
  machine.variables["PRIMUS_GPU_MODEL"] = "MI355X";
  machine.variables["PRIMUS_DETERMINISTIC"] = "1";
  gpus = find_accelerators(machine.surroundings());
  defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("RCCL_WARP_SPEED_AUTO"), "0");
  EXPECT_EQ(defaults.at("NCCL_ALGO"), "Ring");
}

TEST(Numa, ARankIsBoundBesideItsGpu) {
  test::Machine machine;
  machine.nvidia_gpus(2);
  machine.file("sys/devices/system/node/node1/cpulist", "0-2,7\n");
  machine.variables["LOCAL_RANK"] = "1";
  EXPECT_EQ(numa_node_of_rank(machine.surroundings()), 1);
  EXPECT_THAT(cores_of_numa_node(machine.surroundings(), 1), ElementsAre(0, 1, 2, 7));
  machine.variables["LOCAL_RANK"] = "9";
  EXPECT_EQ(numa_node_of_rank(machine.surroundings()), -1);
  machine.variables["LOCAL_RANK"] = "x";
  EXPECT_THAT(error_of([&] { numa_node_of_rank(machine.surroundings()); }), HasSubstr("LOCAL_RANK='x'"));
}

}  // namespace
}  // namespace primus::launch
