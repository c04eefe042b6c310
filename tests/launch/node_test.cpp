// Tests of what a launcher detects about a node: rank in the job, GPUs, network and NUMA nodes.
#include "launch/node/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "launch/node/hardware.h"
#include "launch/node/numa.h"
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

TEST(Node, IsTheOnlyNodeByDefault) {
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

TEST(Node, ReadsAmdPrimussVariables) {
  const NodePlace place = place_of({{"NNODES", "3"}, {"NODE_RANK", "2"}, {"MASTER_ADDR", "host1"}});
  EXPECT_EQ(place.nodes, 3);
  EXPECT_EQ(place.node, 2);
  EXPECT_EQ(place.master_address, "host1");
  EXPECT_EQ(place.master_port, kMasterPort);
}

TEST(Node, SlurmsVariablesAreTheDefaults) {
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
  // The shell of salloc has no SLURM_PROCID, so it is not a task.
  auto shell = step;
  shell.erase("SLURM_PROCID");
  EXPECT_EQ(place_of(shell).nodes, 1);
}

TEST(Node, TasksOfAStepAreDistinguishedFromShells) {
  const std::map<std::string, std::string> step = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}};
  const auto task_of = [](const std::map<std::string, std::string>& variables) {
    return task_of_step({.variable = [&](const std::string& name) -> std::optional<std::string> {
                           const auto found = variables.find(name);
                           return found == variables.end() ? std::nullopt : std::optional(found->second);
                         },
                         .variable_names = [] { return std::vector<std::string>(); }});
  };
  const auto task = task_of(step);
  ASSERT_TRUE(task);
  EXPECT_EQ(task->task, 3);
  EXPECT_EQ(task->tasks, 4);
  EXPECT_EQ(task->step, "7.2");
  EXPECT_FALSE(task->launched);
  const auto changed = [&](const std::string& name, const std::string& value) {
    auto variables = step;
    variables[name] = value;
    return task_of(variables);
  };
  EXPECT_TRUE(changed(kLaunchedStep, "7.2")->launched);
  EXPECT_FALSE(changed(kLaunchedStep, "7.1")->launched) << "another step, started inside";
  EXPECT_FALSE(changed("RANK", "0"));
  EXPECT_FALSE(changed("WORLD_SIZE", "4"));
  EXPECT_FALSE(changed("SLURM_STEP_NUM_TASKS", "1"));
  for (const char* missing : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) {
    auto variables = step;
    variables.erase(missing);
    EXPECT_FALSE(task_of(variables)) << missing;
  }
  EXPECT_THROW(changed("SLURM_STEP_NUM_TASKS", "many"), Error);
}

TEST(Node, SlurmsNodesOverrideTheSubmittingShell) {
  const std::map<std::string, std::string> stale = {
      {"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "1"}, {"SLURM_NNODES", "2"},
      {"SLURM_NTASKS", "2"}, {"SLURM_NODEID", "1"}, {"SLURM_STEP_NODELIST", "localhost,n[01-03]"},
      {"NNODES", "1"},       {"NODE_RANK", "0"},    {"MASTER_ADDR", "oldhost"}};
  NodePlace place = place_of(stale);
  EXPECT_EQ(place.nodes, 2);
  EXPECT_EQ(place.node, 1);
  EXPECT_EQ(place.master_address, "localhost");
  EXPECT_THAT(place.notes,
              ElementsAre(HasSubstr("NNODES=1 of the environment is ignored, because it is 2"),
                          HasSubstr("NODE_RANK=0 of the environment is ignored, because it is 1"),
                          HasSubstr("MASTER_ADDR=oldhost is ignored")));
  // The address is kept if it names a node of the job. Any IP address is kept, because it may belong to
  // another network.
  for (const char* address : {"n02", "n02.cluster.example", "10.0.0.7", "fd00::7"}) {
    auto variables = stale;
    variables["MASTER_ADDR"] = address;
    EXPECT_EQ(place_of(variables).master_address, address);
    EXPECT_EQ(place_of(variables).notes.size(), 2U);
  }
  // Options of the launcher's command line override Slurm's variables.
  place = place_of(stale, {.typed = {"NNODES", "NODE_RANK", "MASTER_ADDR"}});
  EXPECT_EQ(place.nodes, 1);
  EXPECT_EQ(place.node, 0);
  EXPECT_EQ(place.master_address, "oldhost");
  EXPECT_TRUE(place.notes.empty());
  // Variables that agree with Slurm give no note.
  place = place_of({{"SLURM_JOB_ID", "7"},
                    {"SLURM_PROCID", "1"},
                    {"SLURM_NNODES", "2"},
                    {"SLURM_NODEID", "1"},
                    {"SLURM_STEP_NODELIST", "localhost,n1"},
                    {"NNODES", "2"},
                    {"NODE_RANK", "1"},
                    {"MASTER_ADDR", "localhost"}});
  EXPECT_TRUE(place.notes.empty());
}

TEST(Node, SlurmsTasksAreRanksIfThereAreMoreThanNodes) {
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

TEST(Node, InvalidVariablesAreNamed) {
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

TEST(NodeList, RefusesOtherText) {
  for (const char* list : {"", ",", "n[", "n]", "n[1", "n[[1]]", "n[]", "n[3-1]", "n[a-b]", "n[1-]", "n[-1]",
                           "a,,b", "n[99999999999999999999]"}) {
    EXPECT_THAT(error_of([&] { expand_nodes(list); }), HasSubstr("is not a Slurm list of nodes")) << list;
  }
}

TEST(NodeList, CountsTasksOfANode) {
  EXPECT_EQ(tasks_of_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", 3), 1);
  EXPECT_THAT(error_of([] { tasks_of_node("2(x3),1", 4); }), HasSubstr("has no entry for node 4"));
  EXPECT_THAT(error_of([] { tasks_of_node("2(x", 0); }), HasSubstr("is not a Slurm list"));
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

// On a login node without GPUs, PRIMUS_GPU_MODEL names the GPUs of the job's nodes.
TEST(Hardware, ANamedModelNeedsNoGpusHere) {
  test::Machine machine;
  machine.variables["PRIMUS_GPU_MODEL"] = "MI355X";
  const Accelerators gpus = find_accelerators(machine.surroundings());
  EXPECT_EQ(gpus.vendor, Vendor::kAmd);
  EXPECT_EQ(gpus.model, "MI355X");
  EXPECT_FALSE(gpus.any());
  const auto defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("RCCL_WARP_SPEED_AUTO"), "0");
  EXPECT_EQ(defaults.at("HSA_NO_SCRATCH_RECLAIM"), "1");
  machine.variables["PRIMUS_GPU_MODEL"] = "mi355x";
  EXPECT_EQ(find_accelerators(machine.surroundings()).model, "MI355X");
  machine.variables["PRIMUS_GPU_MODEL"] = "H100";
  EXPECT_EQ(find_accelerators(machine.surroundings()).vendor, Vendor::kNvidia);
}

TEST(Hardware, AmdGpusGetAmdPrimussDefaults) {
  test::Machine machine;
  machine.amd_gpus(8);
  machine.variables["NCCL_IB_GID_INDEX"] = "1";
  Accelerators gpus = find_accelerators(machine.surroundings());
  EXPECT_EQ(gpus.vendor, Vendor::kAmd);
  EXPECT_EQ(gpus.count, 8);
  EXPECT_EQ(gpus.model, "MI300X");
  auto defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("HSA_NO_SCRATCH_RECLAIM"), "1");
  EXPECT_FALSE(defaults.contains("NCCL_IB_GID_INDEX")) << "a set variable is kept";
  EXPECT_FALSE(defaults.contains("RCCL_WARP_SPEED_AUTO"));
  machine.variables["PRIMUS_GPU_MODEL"] = "MI355X";
  machine.variables["PRIMUS_DETERMINISTIC"] = "1";
  gpus = find_accelerators(machine.surroundings());
  defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("RCCL_WARP_SPEED_AUTO"), "0");
  EXPECT_EQ(defaults.at("NCCL_ALGO"), "Ring");
  EXPECT_EQ(defaults.at("PRIMUS_TURBO_AUTO_TUNE"), "0");
  machine.variables["NCCL_ALGO"] = "Tree";
  defaults = environment_defaults(gpus, machine.surroundings());
  EXPECT_EQ(defaults.at("NCCL_ALGO"), "Ring") << "PRIMUS_DETERMINISTIC wins over NCCL_ALGO";
  EXPECT_THAT(environment_notes(defaults, machine.surroundings()),
              Contains(HasSubstr("NCCL_ALGO=Ring instead of Tree")));
}

// On a login node without GPUs, only a dry run assumes the GPUs that PRIMUS_GPU_MODEL names.
TEST(Hardware, APlanMayAssumeTheGpusThatAVariableNames) {
  test::Machine machine;
  machine.variables["PRIMUS_GPU_MODEL"] = "MI355X";
  launch::Surroundings here = machine.surroundings();
  EXPECT_FALSE(find_accelerators(here).any()) << "a run uses the existing GPUs";
  here.dry_run = true;
  const Accelerators gpus = find_accelerators(here);
  EXPECT_EQ(gpus.vendor, Vendor::kAmd);
  EXPECT_EQ(gpus.count, 8);
  EXPECT_EQ(gpus.model, "MI355X");
  EXPECT_TRUE(gpus.assumed);
  EXPECT_TRUE(environment_defaults(gpus, here).contains("RCCL_WARP_SPEED_AUTO"));
  machine.variables["PRIMUS_GPU_MODEL"] = "H100";
  EXPECT_EQ(find_accelerators(here).vendor, Vendor::kNvidia);
  machine.variables["PRIMUS_GPU_MODEL"] = "XYZ";
  EXPECT_THROW(find_accelerators(here), Error);
  machine.variables.erase("PRIMUS_GPU_MODEL");
  EXPECT_FALSE(find_accelerators(here).any());
  machine.amd_gpus(2);
  machine.variables["PRIMUS_GPU_MODEL"] = "H100";
  EXPECT_EQ(find_accelerators(here).count, 2);
  EXPECT_FALSE(find_accelerators(here).assumed);
}

// The defaults equal those of AMD Primus's base_env.sh.
TEST(Hardware, AmdDefaultsAreComplete) {
  test::Machine machine;
  machine.amd_gpus(8);
  machine.file("opt/rocm/lib/librccl.so");
  machine.variables["LD_LIBRARY_PATH"] = "/usr/lib/other";
  const auto defaults =
      environment_defaults(find_accelerators(machine.surroundings()), machine.surroundings());
  for (const auto& [name, value] : {std::pair("RCCL_MSCCLPP_FORCE_ENABLE", "0"),
                                    {"RCCL_MSCCLPP_THRESHOLD", "1073741824"},
                                    {"MSCCLPP_DISABLE_CHANNEL_CACHE", "FALSE"},
                                    {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "0"},
                                    {"NVTE_USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE", "0"},
                                    {"PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32", "0"},
                                    {"PRIMUS_TURBO_DEEPEP_TIMEOUT", "600"},
                                    {"LD_LIBRARY_PATH", "/opt/rocm/lib:/usr/lib/other"}}) {
    ASSERT_TRUE(defaults.contains(name)) << name;
    EXPECT_EQ(defaults.at(name), value) << name;
  }
  EXPECT_FALSE(defaults.contains("NCCL_IB_HCA")) << "the machine has no InfiniBand device";
  EXPECT_FALSE(defaults.contains("NCCL_IB_TC")) << "USING_AINIC is not set";
}

TEST(Hardware, DevicesAndInterfaceOfTheNetworkAreFound) {
  test::Machine machine;
  machine.amd_gpus(8);
  for (const char* device : {"mlx5_bond_0", "xeth0", "mlx5_1", "mlx5_0"})
    machine.file("sys/class/infiniband/" + std::string(device) + "/ports/1/state", "4: ACTIVE\n");
  machine.file("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
  // The default route uses eth0, 10.1.0.0/16 uses ib0, and 10.1.2.0/24 uses docker0.
  machine.file("proc/net/route",
               "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
               "docker0\t0002010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
               "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
               "ib0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n");
  const auto defaults = [&] {
    return environment_defaults(find_accelerators(machine.surroundings()), machine.surroundings());
  };
  EXPECT_EQ(defaults().at("NCCL_IB_HCA"), "mlx5_0:1,mlx5_1:1");
  EXPECT_EQ(defaults().at("GLOO_SOCKET_IFNAME"), "eth0");
  machine.variables["MASTER_ADDR"] = "10.1.2.3";
  EXPECT_EQ(defaults().at("NCCL_SOCKET_IFNAME"), "ib0");
  EXPECT_THAT(environment_notes(defaults(), machine.surroundings()),
              Contains(HasSubstr("NCCL_IB_HCA=mlx5_0:1,mlx5_1:1 NCCL_SOCKET_IFNAME=ib0")));
  machine.variables["NCCL_SOCKET_IFNAME"] = "bond0";
  machine.variables["NCCL_IB_HCA"] = "mlx5_7";
  EXPECT_FALSE(defaults().contains("NCCL_SOCKET_IFNAME"));
  EXPECT_FALSE(defaults().contains("NCCL_IB_HCA"));
}

// The values equal those of AMD Primus's 03_enable_ainic.sh. Switches that are not supported give a note.
TEST(Hardware, SwitchesOfAmdPrimusAreAppliedOrNamed) {
  test::Machine machine;
  machine.amd_gpus(8);
  machine.variables = {{"USING_AINIC", "1"}, {"NCCL_IB_TC", "96"}, {"REBUILD_BNXT", "1"}, {"USING_UEP", "0"}};
  auto defaults = environment_defaults(find_accelerators(machine.surroundings()), machine.surroundings());
  EXPECT_FALSE(defaults.contains("NCCL_IB_TC")) << "a set variable is kept";
  for (const auto& [name, value] : {std::pair("NCCL_NET_PLUGIN", "none"),
                                    {"NCCL_IB_FIFO_TC", "192"},
                                    {"NCCL_IB_GID_INDEX", "1"},
                                    {"NCCL_IB_ROCE_VERSION_NUM", "2"},
                                    {"NCCL_MAX_P2P_CHANNELS", "56"},
                                    {"NCCL_IB_SL", "0"},
                                    {"NET_OPTIONAL_RECV_COMPLETION", "1"},
                                    {"NCCL_IB_USE_INLINE", "1"},
                                    {"RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "0"},
                                    {"NCCL_GDR_FLUSH_DISABLE", "1"},
                                    {"NCCL_DMABUF_ENABLE", "0"},
                                    {"NCCL_IGNORE_CPU_AFFINITY", "1"},
                                    {"NCCL_IB_QPS_PER_CONNECTION", "1"}}) {
    ASSERT_TRUE(defaults.contains(name)) << name;
    EXPECT_EQ(defaults.at(name), value) << name;
  }
  const auto notes = environment_notes(defaults, machine.surroundings());
  EXPECT_THAT(notes, Contains(HasSubstr("REBUILD_BNXT=1 has no effect in Primus")));
  EXPECT_THAT(notes, testing::Not(Contains(HasSubstr("USING_UEP"))));
  machine.variables["RCCL_AINIC_ROCE"] = "0";
  defaults = environment_defaults(find_accelerators(machine.surroundings()), machine.surroundings());
  EXPECT_EQ(defaults.at("NCCL_NET_PLUGIN"), "librccl-anp.so");
}

TEST(Numa, ARankIsBoundNearItsGpu) {
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
