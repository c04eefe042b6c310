// Tests that the number of nodes is derived from Slurm's options.
#include "launch/slurm/slurm.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "launch/slurm/slurm_time.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

SlurmPlan plan_with(const std::vector<GivenOption>& given, bool batch = false,
                    const std::map<std::string, std::string>& variables = {}, bool has_ranks = true,
                    const SlurmSettings& settings = {}) {
  test::Machine machine;
  machine.variables = variables;
  machine.file("bin/srun", "#!/bin/sh\n");
  machine.file("bin/sbatch", "#!/bin/sh\n");
  for (const char* tool : {"bin/srun", "bin/sbatch"})
    std::filesystem::permissions(machine.folder.path() / tool, std::filesystem::perms::owner_all);
  machine.variables["PATH"] = (machine.folder.path() / "bin").string();
  return plan_slurm(settings,
                    {.batch = batch,
                     .given = given,
                     .inner = {"direct", "--", "train"},
                     .has_ranks = has_ranks,
                     .own_ranks = has_ranks},
                    machine.surroundings());
}

int nodes_with(const std::vector<GivenOption>& given) {
  return plan_with(given, false, {}, false).nodes.nodes;
}
std::optional<int> gpus_with(const std::vector<GivenOption>& given) { return plan_with(given).nodes.gpus; }

// Expects that the options are refused with an error that contains `text`.
void expect_refusal(const std::vector<GivenOption>& given, const std::string& text,
                    const SlurmSettings& settings = {}) {
  try {
    plan_with(given, true, {}, true, settings);
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(SlurmPlan, CountsARepeatedNodeOnce) { EXPECT_EQ(nodes_with({{"nodelist", "n1,n[1-2]"}}), 2); }

TEST(SlurmPlan, CountsNodesByTasks) {
  EXPECT_EQ(nodes_with({}), 1);
  EXPECT_EQ(nodes_with({{"ntasks", "5"}, {"ntasks-per-node", "2"}}), 3);
  EXPECT_EQ(nodes_with({{"ntasks", "4"}, {"ntasks-per-node", "2"}}), 2);
  EXPECT_EQ(nodes_with({{"ntasks", "1"}, {"ntasks-per-node", "8"}}), 1);
  EXPECT_EQ(nodes_with({{"ntasks", "5"}}), 0) << "only Slurm decides the number";
}

// Slurm's tasks are the ranks if there are more tasks than nodes.
TEST(SlurmPlan, SeveralTasksPerNodeAreRanks) {
  const auto tasks_with = [](const std::vector<GivenOption>& given) { return plan_with(given).nodes.tasks; };
  EXPECT_EQ(tasks_with({{"nodes", "2"}, {"ntasks", "16"}}), 8);
  EXPECT_EQ(tasks_with({{"ntasks", "16"}, {"ntasks-per-node", "8"}}), 8);
  EXPECT_EQ(tasks_with({{"nodes", "2"}, {"ntasks", "2"}}), std::nullopt);
  EXPECT_EQ(tasks_with({{"nodes", "2"}, {"ntasks", "2"}, {"ntasks-per-node", "8"}}), std::nullopt)
      << "--ntasks-per-node is a maximum here";
  EXPECT_EQ(tasks_with({{"nodes", "2"}, {"ntasks-per-node", "4"}}), 4);
  EXPECT_THROW(tasks_with({{"nodes", "2"}, {"ntasks", "3"}, {"ntasks-per-node", "2"}}), Error);
  EXPECT_THROW(tasks_with({{"nodes", "2"}, {"ntasks", "1"}}), Error);
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"ntasks", "16"}, {"gpus-per-task", "1"}}), 8);
}

TEST(SlurmPlan, CountsNodesByNumberAndByName) {
  EXPECT_EQ(nodes_with({{"nodes", "4"}, {"ntasks", "5"}, {"ntasks-per-node", "2"}}), 4);
  EXPECT_EQ(nodes_with({{"nodes", "2-4"}}), 0) << "only Slurm decides the number";
  EXPECT_EQ(nodes_with({{"nodelist", "gpu-[01-03],login"}}), 4);
  EXPECT_THROW(nodes_with({{"ntasks", "5"}, {"ntasks-per-node", "0"}}), Error);
}

// srun in an allocation uses all nodes of the allocation; sbatch requests new nodes.
TEST(SlurmPlan, CountsTheNodesOfAnAllocation) {
  const std::map<std::string, std::string> allocation{{"SLURM_JOB_ID", "7"}, {"SLURM_NNODES", "4"}};
  EXPECT_EQ(plan_with({}, false, allocation).nodes.nodes, 4);
  EXPECT_EQ(plan_with({{"nodes", "2"}}, false, allocation).nodes.nodes, 2);
  EXPECT_EQ(plan_with({}, true, allocation).nodes.nodes, 1);
}

TEST(SlurmPlan, CountsTheGpusThatANodeGets) {
  EXPECT_EQ(gpus_with({}), std::nullopt);
  EXPECT_EQ(gpus_with({{"gpus-per-node", "8"}}), 8);
  EXPECT_EQ(gpus_with({{"gpus-per-node", "mi300x:4"}}), 4);
  EXPECT_EQ(gpus_with({{"gpus-per-node", "a100:2,h100:2"}}), 4);
  EXPECT_EQ(gpus_with({{"gres", "gpu:8"}}), 8);
  EXPECT_EQ(gpus_with({{"gres", "nic:2,gres:gpu:h100:4"}}), 4);
  EXPECT_EQ(gpus_with({{"gres", "gpu"}}), 1);
  EXPECT_EQ(gpus_with({{"gres", "nic:2"}}), std::nullopt);
}

// Totals are divided by the number of nodes, and numbers per task are multiplied by the tasks per node.
TEST(SlurmPlan, CountsTheGpusOfTotalsAndOfTasks) {
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus", "16"}}), 8);
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus", "h100:4,a100:4"}}), 4);
  EXPECT_EQ(gpus_with({{"nodes", "2-4"}, {"gpus", "16"}}), std::nullopt) << "only Slurm decides the nodes";
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus-per-task", "2"}}), 2);
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus-per-task", "1"}, {"ntasks-per-node", "8"}}), 8);
  EXPECT_EQ(gpus_with({{"gres", "gpu:8"}, {"gpus-per-task", "4"}}), 4) << "the launcher is the task";
  EXPECT_THROW(gpus_with({{"nodes", "2"}, {"gpus", "1"}}), Error);
}

TEST(SlurmPlan, RefusesNumbersOfGpusThatContradictEachOther) {
  expect_refusal({{"nodes", "2"}, {"gpus", "7"}}, "--gpus=7 cannot be shared equally by 2 nodes");
  expect_refusal({{"nodes", "2"}, {"gpus", "16"}, {"gpus-per-node", "4"}},
                 "--gpus-per-node=4 and --gpus=16 request different numbers of GPUs per node (4 and 8)");
  expect_refusal(
      {{"gpus-per-node", "4"}, {"gpus-per-task", "8"}},
      "--gpus-per-task=8 with 1 task per node needs 8 GPUs per node, but --gpus-per-node=4 requests 4");
  expect_refusal({{"nodes", "2"}, {"gpus", "4"}, {"gpus-per-task", "4"}}, "needs 4 GPUs per node");
  EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus", "16"}, {"gres", "gpu:8"}, {"gpus-per-task", "8"}}), 8);
  const std::vector<std::string> notes = plan_with({{"gres", "gpu:8"}, {"gpus-per-task", "4"}}).step.notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("uses 4 of the 8 GPUs"), std::string::npos) << notes[0];
}

// If only the number of tasks is known, each node may start one of them or all.
TEST(SlurmPlan, DoesNotGuessTheRanksOfTasksWithoutNodes) {
  const SlurmPlan plan = plan_with({{"ntasks", "16"}, {"gpus-per-task", "1"}});
  EXPECT_EQ(plan.nodes.nodes, 0);
  EXPECT_EQ(plan.nodes.gpus, std::nullopt);
  EXPECT_EQ(plan.nodes.tasks, std::nullopt);
  ASSERT_EQ(plan.step.notes.size(), 1U);
  EXPECT_NE(plan.step.notes[0].find("--ntasks=16 without a number of nodes"), std::string::npos);
}

TEST(SlurmPlan, UsesTheVariablesThatExportPassesOn) {
  const std::map<std::string, std::string> shell{{"GPUS_PER_NODE", "8"}};
  const auto ranks_with = [&](const std::string& value, bool batch) {
    return plan_with({{"export", value}}, batch, shell).nodes.ranks;
  };
  EXPECT_EQ(plan_with({}, true, shell).nodes.ranks, 8);
  for (const bool batch : {false, true}) {
    EXPECT_EQ(ranks_with("ALL", batch), 8);
    EXPECT_EQ(ranks_with("ALL,GPUS_PER_NODE=4,HOME", batch), 4);
  }
  EXPECT_EQ(ranks_with("HOME,GPUS_PER_NODE", true), 8);
  EXPECT_EQ(ranks_with("NONE", true), std::nullopt);
  EXPECT_EQ(ranks_with("HOME", true), std::nullopt);
  const std::vector<std::string> notes = plan_with({{"export", "NONE"}}, true, shell).step.notes;
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "GPUS_PER_NODE=8 of the environment is not used: --export=NONE does not pass it on");
  EXPECT_NE(notes[1].find("keeps this shell's variables from the job"), std::string::npos) << notes[1];
}

TEST(SlurmPlan, ReadsTimesOfSlurm) {
  EXPECT_EQ(seconds_of("90"), 5400);
  EXPECT_EQ(seconds_of("5:30"), 330);
  EXPECT_EQ(seconds_of("1:00:01"), 3601);
  EXPECT_EQ(seconds_of("2-12"), 60 * 3600);
  EXPECT_EQ(seconds_of("1-0:30"), 24 * 3600 + 1800);
  EXPECT_EQ(seconds_of("UNLIMITED"), std::nullopt);
}

TEST(SlurmPlan, TheWarningComesWithinTheTimeLimit) {
  const auto signal_with = [](const std::vector<GivenOption>& given) {
    for (const std::string& word : plan_with(given, true).step.argv)
      if (word.starts_with("--signal=")) return word;
    return std::string();
  };
  EXPECT_EQ(signal_with({}), "--signal=B:USR1@120");
  EXPECT_EQ(signal_with({{"time", "1:00:00"}}), "--signal=B:USR1@120");
  EXPECT_EQ(signal_with({{"time", "1"}}), "--signal=B:USR1@30");
  expect_refusal({{"time", "1:00"}, {"signal", "B:USR1@90"}, {"requeue"}},
                 "--time=1:00 is not longer than the warning before it (--signal=B:USR1@90, 90 seconds): the "
                 "ranks would stop as soon as they start, and --requeue would start them again without end");
  const std::vector<std::string> notes = plan_with({{"signal", "USR1@90"}, {"requeue"}}, true).step.notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("--signal=USR1@90 does not reach the batch script"), std::string::npos) << notes[0];
  EXPECT_TRUE(plan_with({{"signal", "USR1@90"}}, true).step.notes.empty());
}

TEST(SlurmPlan, NotesRanksThatAlternateBetweenNodes) {
  const auto notes_with = [](const char* order) {
    return plan_with({{"nodes", "2"}, {"ntasks", "4"}, {"distribution", order}}).step.notes;
  };
  EXPECT_TRUE(notes_with("block:cyclic").empty());
  ASSERT_EQ(notes_with("cyclic").size(), 1U);
  EXPECT_NE(notes_with("cyclic")[0].find("do not follow each other"), std::string::npos);
}

TEST(SlurmPlan, SaysWhatAnArrayDoes) {
  const std::vector<std::string> notes = plan_with({{"array", "0-3"}}, true).step.notes;
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_NE(notes[0].find("--array=0-3: each element is a separate job"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("different runs"), std::string::npos) << notes[1];
  EXPECT_TRUE(plan_with({}, true).step.notes.empty());
}

TEST(SlurmPlan, RefusesOptionsThatContradictEachOther) {
  expect_refusal({{"gres", "gpu:8"}, {"gpus-per-node", "4"}},
                 "--gpus-per-node=4 and --gres=gpu:8 request different numbers of GPUs");
  EXPECT_EQ(gpus_with({{"gres", "gpu:8,nic:2"}, {"gpus-per-node", "8"}}), 8);
  expect_refusal({{"nodes", "2"}, {"ntasks", "16"}, {"ntasks-per-node", "4"}},
                 "--ntasks=16 is more than 2 nodes with --ntasks-per-node=4 can start");
  expect_refusal({{"requeue"}, {"no-requeue"}}, "--requeue and --no-requeue contradict each other");
  expect_refusal({{"exclusive"}, {"oversubscribe"}}, "--exclusive and --oversubscribe contradict each other");
  expect_refusal({{"mem", "10G"}, {"mem-per-cpu", "1G"}},
                 "--mem=10G and --mem-per-cpu=1G contradict each other");
  expect_refusal({{"mem-per-gpu", "10G"}, {"mem-per-cpu", "1G"}}, "contradict each other");
  expect_refusal({{"nodelist", "n[1-3]"}, {"exclude", "n9,n2"}},
                 "--nodelist=n[1-3] and --exclude=n9,n2 both name the node n2");
  EXPECT_EQ(nodes_with({{"nodelist", "n[1-3]"}, {"exclude", "n[4-5]"}}), 3);
  // The command line overrides the settings.
  const SlurmSettings requeue{.options = {{"requeue"}}};
  const std::vector<std::string> words = plan_with({{"no-requeue"}}, true, {}, true, requeue).step.argv;
  EXPECT_EQ(std::count(words.begin(), words.end(), "--requeue"), 0);
  EXPECT_EQ(std::count(words.begin(), words.end(), "--no-requeue"), 1);
  const SlurmSettings memory{.options = {{"mem", "10G"}}};
  const std::vector<std::string> per_core =
      plan_with({{"mem-per-cpu", "1G"}}, true, {}, true, memory).step.argv;
  EXPECT_EQ(std::count(per_core.begin(), per_core.end(), "--mem=10G"), 0);
  EXPECT_EQ(std::count(per_core.begin(), per_core.end(), "--mem-per-cpu=1G"), 1);
}

TEST(SlurmPlan, NotesValuesWithoutTheExpectedEffect) {
  const auto notes_with = [](const std::vector<GivenOption>& given, bool batch, const std::string& nodes,
                             const SlurmSettings& settings = {}) {
    std::string text;
    const std::map<std::string, std::string> variables{{"NNODES", nodes}};
    for (const std::string& note : plan_with(given, batch, variables, true, settings).step.notes)
      text += note + "\n";
    return text;
  };
  EXPECT_EQ(notes_with({{"nodes", "2"}}, false, "4"),
            "NNODES=4 of the environment is not used: the job has 2 nodes (-N sets their number)\n");
  EXPECT_EQ(notes_with({{"nodes", "2"}}, false, "2"), "");
  EXPECT_EQ(notes_with({{"nodes", "2-4"}}, false, "4"), "") << "only Slurm decides the number";
  const SlurmSettings eight{.ranks_per_node = 8};
  EXPECT_EQ(
      notes_with({}, false, "1", eight),
      "gpus_per_node in the section slurm of the settings is the number of ranks, and requests no GPUs: "
      "write gpus-per-node, or --gpus-per-node, to request them\n");
  EXPECT_EQ(notes_with({{"gres", "gpu:8"}}, false, "1", eight), "");
  EXPECT_EQ(
      notes_with({{"signal", "B:TERM@30"}}, true, "1"),
      "--signal=B:TERM@30: the batch script does not pass TERM on to the ranks, so they do not save before "
      "the time limit; B:USR1@SECONDS makes them save\n");
  for (const char* signal : {"B:USR1@30", "B:10@30", "TERM@30"})
    EXPECT_EQ(notes_with({{"signal", signal}}, true, "1"), "") << signal;
}

TEST(SlurmPlan, NotesWarningsThatMayComeAtOnce) {
  const auto notes_with = [](const std::vector<GivenOption>& given) {
    return plan_with(given, true).step.notes;
  };
  ASSERT_EQ(notes_with({{"time", "1:00"}, {"requeue"}}).size(), 1U);
  EXPECT_EQ(
      notes_with({{"time", "1:00"}, {"requeue"}})[0],
      "Slurm may send the warning --signal=B:USR1@30 up to 60 seconds early: with --time=1:00, the ranks "
      "may stop as soon as they start, and --requeue would start them again without end; set a longer "
      "--time");
  EXPECT_TRUE(notes_with({{"time", "5:00"}, {"requeue"}}).empty());
  EXPECT_EQ(plan_with({{"signal", "KILL@90"}}).step.notes,
            std::vector<std::string>{"--signal=KILL@90: the ranks do not save on the signal KILL; "
                                     "USR1@SECONDS makes them save"});
  EXPECT_TRUE(plan_with({{"signal", "TERM@90"}}).step.notes.empty());
}

TEST(SlurmPlan, KnowsTheRanksOfTasksWithOneGpu) {
  const SlurmPlan plan = plan_with({{"ntasks", "16"}, {"gpus-per-task", "1"}});
  EXPECT_EQ(plan.nodes.all_tasks, 16);
  ASSERT_EQ(plan.step.notes.size(), 1U);
  EXPECT_NE(plan.step.notes[0].find("the plan checks the 16 ranks of the job"), std::string::npos);
  EXPECT_EQ(plan_with({{"ntasks", "16"}, {"gpus-per-task", "2"}}).nodes.all_tasks, std::nullopt);
  EXPECT_EQ(plan_with({{"nodes", "2"}, {"ntasks", "16"}, {"gpus-per-task", "1"}}).nodes.all_tasks,
            std::nullopt);
  int ranks = 0;
  const DirectCommand command{.words = {"train", "pretrain"},
                              .has_ranks = true,
                              .check_job = [&](int nodes, int count, const auto&) { ranks = nodes * count; }};
  const Plan direct = plan_direct_elsewhere({}, command, plan.nodes, "primus");
  EXPECT_EQ(ranks, 16);
  EXPECT_EQ(shell_line(direct.steps.at(0).argv), "primus train pretrain") << "each task is a rank";
}

TEST(SlurmPlan, RefusesNodesAndArraysThatDoNotFit) {
  expect_refusal({{"nodes", "1"}, {"nodelist", "n1,n2"}}, "--nodelist=n1,n2 names 2 nodes, but --nodes=1");
  EXPECT_EQ(nodes_with({{"nodes", "3"}, {"nodelist", "n1,n2"}}), 3);
  expect_refusal({{"array", "0-3%0"}}, "--array=0-3%0: 0 is not a limit");
  EXPECT_THROW(plan_with({{"overlap"}, {"exclusive"}}), Error);
  EXPECT_NO_THROW(plan_with({{"overlap"}, {"exclusive"}}, true)) << "of the step and of the job";
}

TEST(SlurmPlan, NotesJobsWithoutGpus) {
  for (const GivenOption& option : {GivenOption{"gres", "gpu:0"}, GivenOption{"gpus-per-node", "0"}})
    EXPECT_EQ(
        plan_with({option}).step.notes,
        std::vector<std::string>{written(option) + " requests no GPU: each node starts one rank, unless "
                                                   "GPUS_PER_NODE sets more"});
}

TEST(SlurmPlan, NotesAModelThatRequestsNoGpus) {
  test::Machine machine;
  machine.variables["PRIMUS_GPU_MODEL"] = "MI300X";
  Surroundings here = machine.surroundings();
  here.dry_run = true;
  const auto is_noted = [&](const std::vector<GivenOption>& given) {
    const SlurmRequest request{.given = given, .inner = {"direct", "--", "train"}, .has_ranks = true};
    const std::vector<std::string> notes = plan_slurm({}, request, here).step.notes;
    return std::ranges::any_of(notes, [](const std::string& note) {
      return note.starts_with("PRIMUS_GPU_MODEL=MI300X does not set");
    });
  };
  EXPECT_TRUE(is_noted({{"nodes", "2"}}));
  EXPECT_FALSE(is_noted({{"nodes", "2"}, {"gpus-per-node", "8"}}));
}

TEST(SlurmPlan, ReadsTheCoresAndTheMemoryOfANode) {
  const ElsewhereNodes nodes = plan_with({{"cpus-per-task", "4"}, {"mem", "4G"}}).nodes;
  EXPECT_EQ(nodes.cores, 4);
  EXPECT_EQ(nodes.memory, 4.0 * (1LL << 30));
  EXPECT_EQ(plan_with({{"mem", "512"}}).nodes.memory, 512.0 * (1 << 20));
  EXPECT_EQ(plan_with({{"mem", "0"}}).nodes.memory, std::nullopt) << "all memory of the node";
  EXPECT_EQ(plan_with({{"cpus-per-gpu", "4"}, {"gpus-per-node", "8"}}).nodes.cores, 32);
}

TEST(SlurmPlan, NotesRanksThatShareCores) {
  const auto notes_with = [](const std::vector<GivenOption>& given, bool has_ranks = true) {
    return plan_with(given, false, {}, has_ranks).step.notes;
  };
  EXPECT_EQ(notes_with({{"cpus-per-task", "1"}, {"gpus-per-node", "8"}}),
            std::vector<std::string>{
                "--cpus-per-task=1: the 8 ranks of a node share 1 core; request at least one core per rank"});
  for (const std::vector<GivenOption>& enough : std::vector<std::vector<GivenOption>>{
           {{"cpus-per-task", "8"}, {"gpus-per-node", "8"}},
           {{"cpus-per-task", "1"}, {"gpus-per-node", "8"}, {"ntasks-per-node", "8"}},
           {{"cpus-per-task", "1"}}})
    EXPECT_TRUE(notes_with(enough).empty());
  EXPECT_TRUE(notes_with({{"cpus-per-task", "1"}, {"gpus-per-node", "8"}}, false).empty());
}

TEST(SlurmPlan, TasksOfGpusAreRanks) {
  EXPECT_EQ(plan_with({{"nodes", "2"}, {"gpus-per-node", "8"}, {"ntasks-per-gpu", "1"}}).nodes.tasks, 8);
  EXPECT_EQ(plan_with({{"nodes", "2"}, {"gpus", "8"}, {"ntasks-per-gpu", "2"}}).nodes.tasks, 8);
}

// The launcher is the only task of a node, and its ranks get the launcher's GPUs.
TEST(SlurmPlan, RefusesBindingTheLauncherToFewerGpus) {
  for (const char* binding : {"single:1", "verbose,per_task:2", "map_gpu:0"})
    expect_refusal({{"nodes", "2"}, {"gpus-per-node", "8"}, {"gpu-bind", binding}}, "of the node's 8 GPUs");
  for (const char* binding : {"single:8", "closest", "none"})
    EXPECT_EQ(gpus_with({{"nodes", "2"}, {"gpus-per-node", "8"}, {"gpu-bind", binding}}), 8) << binding;
  EXPECT_EQ(
      gpus_with({{"nodes", "2"}, {"gpus-per-node", "8"}, {"ntasks-per-node", "8"}, {"gpu-bind", "single:1"}}),
      8);
}

TEST(SlurmPlan, UsesThePortOfTheShellAndNotesOtherPlaces) {
  const SlurmPlan plan = plan_with({{"nodes", "2"}}, false,
                                   {{"MASTER_PORT", "12345"}, {"MASTER_ADDR", "myhost"}, {"NODE_RANK", "1"}});
  EXPECT_EQ(plan.nodes.port, "12345");
  std::string notes;
  for (const std::string& note : plan.step.notes) notes += note + "\n";
  EXPECT_NE(notes.find("MASTER_ADDR=myhost of the environment is not used"), std::string::npos) << notes;
  EXPECT_NE(notes.find("NODE_RANK=1 of the environment is not used"), std::string::npos) << notes;
}

// Slurm ends a job without any output if it cannot create the file.
TEST(SlurmPlan, NotesAMissingFolderOfTheOutput) {
  const auto notes_with = [](const char* file) {
    return plan_with({{"output", file}, {"exclusive"}}, true).step.notes;
  };
  ASSERT_EQ(notes_with("no/such/folder/x-%j.txt").size(), 1u);
  EXPECT_NE(notes_with("no/such/folder/x-%j.txt")[0].find("'no/such/folder' does not exist here"),
            std::string::npos);
  for (const char* file : {"x-%j.txt", "/tmp/x.txt", "logs-%j/x.txt"}) EXPECT_TRUE(notes_with(file).empty());
}

}  // namespace
}  // namespace primus::launch
