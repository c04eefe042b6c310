// Tests of plans of mode `direct`: the settings, the environment, and the resulting command line.
#include "launch/direct/direct.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "launch/options/assignment.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

DirectCommand training() {
  return {.words = {"train", "pretrain", "--config", "exp.yaml"},
          .has_ranks = true,
          .hooks = {.group = "train", .name = "pretrain", .words = {"train", "pretrain"}}};
}

std::string line_of(const DirectSettings& settings, const DirectCommand& command,
                    const std::map<std::string, std::string>& variables, int gpus = 0) {
  test::Machine machine;
  machine.variables = variables;
  if (gpus > 0) machine.nvidia_gpus(gpus);
  return shell_line(plan_direct(settings, command, machine.surroundings()).plan.steps.at(0).argv);
}

std::string error_of(const std::function<void()>& call, int exit_code = 2) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), exit_code);
    return error.render();
  }
  return "no error";
}

const std::map<std::string, std::string> kSecondOfTwo = {
    {"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "host1"}, {"PRIMUS_JOB_TOKEN", "t"}};

// ENABLE_NUMA_BINDING=1, which AMD Primus's scripts read, enables --numa.
TEST(Direct, AmdPrimussNumaVariableBindsMemory) {
  test::Machine machine;
  machine.amd_gpus(2);
  const DirectCommand command{.words = {"train"}, .has_ranks = true};
  EXPECT_THAT(plan_direct({}, command, machine.surroundings()).plan.steps[0].argv,
              testing::Not(testing::Contains("--numa")));
  machine.variables["ENABLE_NUMA_BINDING"] = "1";
  EXPECT_THAT(plan_direct({}, command, machine.surroundings()).plan.steps[0].argv,
              testing::Contains("--numa"));
  DirectSettings off;
  off.numa = Numa::kOff;
  EXPECT_THAT(plan_direct(off, command, machine.surroundings()).plan.steps[0].argv,
              testing::Not(testing::Contains("--numa")));
}

TEST(DirectPlan, ACommandGetsItsPlaceInTheJob) {
  const std::string train = "/opt/primus/bin/primus train pretrain --config exp.yaml";
  const std::string nodes = " --nnodes 2 --node_rank 1 --master_addr host1 --master_port 1234";
  EXPECT_EQ(line_of({}, training(), {}), train);
  EXPECT_EQ(line_of({}, training(), {}, 4), train + " --nproc 4");
  EXPECT_EQ(line_of({}, training(), {{"GPUS_PER_NODE", "2"}}, 4), train + " --nproc 2");
  EXPECT_EQ(line_of({.environment = {"GPUS_PER_NODE=3"}}, training(), {{"GPUS_PER_NODE", "2"}}, 4),
            train + " --nproc 3");
  EXPECT_EQ(line_of({.single = true}, training(), {}, 4), train);
  EXPECT_EQ(line_of({.numa = Numa::kOn}, training(), {}, 4), train + " --nproc 4 --numa");
  EXPECT_EQ(line_of({}, training(), kSecondOfTwo), train + " --nproc 1" + nodes);
  EXPECT_EQ(line_of({}, training(), kSecondOfTwo, 8), train + " --nproc 8" + nodes);
  EXPECT_EQ(line_of({.single = true}, training(), {{"RUN_MODE", "torchrun"}}, 4), train + " --nproc 4")
      << "RUN_MODE wins over --single";
  DirectCommand own = training();
  own.words.insert(own.words.end(), {"--nproc", "2"});
  EXPECT_EQ(line_of({}, own, {}, 4), train + " --nproc 2");
  own.debug = true;
  own.words = {"version"};
  own.has_ranks = false;
  own.one_process = true;
  EXPECT_EQ(line_of({}, own, kSecondOfTwo, 4), "/opt/primus/bin/primus --debug version");
}

TEST(DirectPlan, SlurmTasksAreRanks) {
  test::Machine machine;
  machine.variables = {{"SLURM_JOB_ID", "7"},
                       {"SLURM_PROCID", "3"},
                       {"SLURM_NNODES", "2"},
                       {"SLURM_NTASKS", "4"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_LOCALID", "1"},
                       {"SLURM_STEP_NODELIST", "localhost"},
                       {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                       {"PRIMUS_JOB_TOKEN", "t"}};
  const Step step = plan_direct({}, training(), machine.surroundings()).plan.steps.at(0);
  EXPECT_EQ(shell_line(step.argv), "/opt/primus/bin/primus train pretrain --config exp.yaml");
  EXPECT_EQ(step.environment.at("RANK"), "3");
  EXPECT_EQ(step.environment.at("WORLD_SIZE"), "4");
  EXPECT_EQ(step.environment.at("LOCAL_RANK"), "1");
  EXPECT_EQ(step.environment.at("LOCAL_WORLD_SIZE"), "2");
  EXPECT_EQ(step.environment.at("GROUP_RANK"), "1");
  EXPECT_EQ(step.environment.at("MASTER_PORT"), "20007");
}

TEST(DirectPlan, ScriptsAreStartedByTorchrunOrDirectly) {
  test::Machine machine;
  machine.file("job.py");
  machine.file("job");
  std::filesystem::permissions(machine.folder.path() / "job", std::filesystem::perms::owner_all);
  for (const char* tool : {"torchrun", "python3"}) {
    machine.file(std::string("bin/") + tool);
    std::filesystem::permissions(machine.folder.path() / "bin" / tool, std::filesystem::perms::owner_all);
  }
  machine.variables = kSecondOfTwo;
  machine.variables["GPUS_PER_NODE"] = "8";
  machine.variables["PATH"] = (machine.folder.path() / "bin").string();
  const std::string python = (machine.folder.path() / "job.py").string();
  const std::string program = (machine.folder.path() / "job").string();
  const DirectCommand steps{.words = {"--steps", "3"}};
  const auto plan = [&](const DirectSettings& settings) {
    return plan_direct(settings, steps, machine.surroundings());
  };
  EXPECT_EQ(shell_line(plan({.script = python}).plan.steps[0].argv),
            "torchrun --nproc_per_node 8 --nnodes 2 --node_rank 1 --master_addr host1 --master_port 1234 "
            "--local-ranks-filter 7 " +
                python + " --steps 3");
  EXPECT_EQ(shell_line(plan({.single = true, .script = python}).plan.steps[0].argv),
            "python3 " + python + " --steps 3");
  const DirectPlan ranks = plan({.script = program});
  EXPECT_EQ(shell_line(ranks.plan.steps[0].argv), program + " --steps 3");
  ASSERT_TRUE(ranks.ranks);
  EXPECT_EQ(ranks.ranks->hosts, 2);
  EXPECT_EQ(ranks.ranks->host, 1);
  EXPECT_EQ(ranks.ranks->ranks, 8);
  EXPECT_EQ(ranks.ranks->master_address, "host1");
  EXPECT_EQ(ranks.ranks->master_port, 1234);
  machine.variables["VENV_ACTIVATE"] = (machine.folder.path() / "venv/bin/activate").string();
  EXPECT_THAT(error_of([&] { plan({.script = python}); }), HasSubstr("VENV_ACTIVATE"));
  machine.variables.erase("VENV_ACTIVATE");
  machine.variables["PATH"] = "/nowhere";
  EXPECT_THAT(error_of([&] { plan({.script = python}); }, 1), HasSubstr("the program 'torchrun'"));
}

TEST(DirectPlan, RefusesPlansThatWouldFail) {
  const auto error = [](const DirectSettings& settings, std::map<std::string, std::string> variables = {}) {
    return error_of([&] { line_of(settings, training(), variables); });
  };
  EXPECT_THAT(error({.script = "/nowhere/a.py"}), HasSubstr("there is no script '/nowhere/a.py'"));
  EXPECT_THAT(error({.patches = {"/nowhere/a.sh"}}), HasSubstr("there is no patch '/nowhere/a.sh'"));
  EXPECT_THAT(error({.hooks = {"/nowhere"}}), HasSubstr("there is no folder of hooks"));
  EXPECT_THAT(error({.environment_files = {"/nowhere.env"}}), HasSubstr("there is no file of variables"));
  EXPECT_THAT(error({.numa = Numa::kOn}), HasSubstr("this node has no GPU"));
  EXPECT_THAT(error({}, {{"RUN_MODE", "twice"}}), HasSubstr("neither single nor torchrun"));
  auto without_token = kSecondOfTwo;
  without_token.erase("PRIMUS_JOB_TOKEN");
  EXPECT_THAT(error({}, without_token), HasSubstr("PRIMUS_JOB_TOKEN is not set"));
  without_token["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(error({}, without_token), "no error") << "one machine needs no token";
}

// These variables differ between ranks. Without this check, all ranks would get the same value.
TEST(DirectPlan, RefusesVariablesOfARank) {
  const auto error = [](const std::vector<std::string>& environment) {
    return error_of([&] { line_of({.environment = environment}, training(), {{"GPUS_PER_NODE", "2"}}); });
  };
  EXPECT_THAT(error({"RANK=1"}), HasSubstr("--env RANK is 1 in all ranks of the job"));
  EXPECT_THAT(error({"LOCAL_RANK=1"}), HasSubstr("--env LOCAL_RANK is 1 in all ranks"));
  EXPECT_THAT(error({"WORLD_SIZE=8"}), HasSubstr("--env WORLD_SIZE is 8, but the job has 2"));
  EXPECT_EQ(error({"WORLD_SIZE=2"}), "no error");
  // A single process may be a rank of a job that the user starts.
  const DirectSettings single{.single = true, .environment = {"RANK=0", "WORLD_SIZE=1"}};
  EXPECT_EQ(error_of([&] { line_of(single, training(), {}); }), "no error");
  EXPECT_THAT(error_of([] { line_of({.single = true, .environment = {"RANK=0"}}, training(), {}); }),
              HasSubstr("RANK is set, but WORLD_SIZE is not"));
}

TEST(DirectPlan, ASingleProcessHasNoNumberOfRanks) {
  const auto error = [](const DirectCommand& command, const char* count) {
    const DirectSettings settings{.single = true, .environment = {std::string("GPUS_PER_NODE=") + count}};
    return error_of([&] { line_of(settings, command, {}); });
  };
  EXPECT_THAT(error(training(), "4"),
              HasSubstr("starts a single process (--single, run_mode or RUN_MODE), but "
                        "--env GPUS_PER_NODE is 4"));
  EXPECT_EQ(error(training(), "1"), "no error");
  EXPECT_EQ(error({.words = {"version"}, .one_process = true}, "4"), "no error");
}

TEST(DirectPlan, ChecksSettingsOfTheRanksCommunication) {
  const auto error = [](const char* name, const char* value, const char* ranks = "2") {
    return error_of([&] { line_of({}, training(), {{name, value}, {"GPUS_PER_NODE", ranks}}); });
  };
  EXPECT_THAT(error("PRIMUS_TRANSPORT", "foo"), HasSubstr("PRIMUS_TRANSPORT 'foo' is not a known transport"));
  EXPECT_THAT(error("PRIMUS_COPY_ENGINES", "maybe"), HasSubstr("PRIMUS_COPY_ENGINES='maybe'"));
  EXPECT_THAT(error("PRIMUS_JOB_TOKEN_FILE", "/nope"), HasSubstr("'/nope'"));
  EXPECT_EQ(error("PRIMUS_JOB_TOKEN_FILE", "/nope", "1"), "no error") << "one rank has no connections";
}

TEST(DirectPlan, ANodeWithoutGpusBindsNoRanks) {
  const std::map<std::string, std::string> variables{{"ENABLE_NUMA_BINDING", "1"}};
  EXPECT_THAT(
      error_of([&] { line_of({}, training(), variables); }),
      HasSubstr("ENABLE_NUMA_BINDING=1 binds each rank to the memory next to its GPU, but this node has "
                "no GPU"));
  EXPECT_EQ(error_of([&] { line_of({.numa = Numa::kOff}, training(), variables); }), "no error");
  EXPECT_EQ(error_of([&] { line_of({}, {.words = {"version"}, .one_process = true}, variables); }),
            "no error");
}

TEST(DirectPlan, ComparesRanksWithTheGpusOfAPlan) {
  test::Machine machine;
  machine.variables = {{"PRIMUS_GPU_MODEL", "MI355X"}, {"GPUS_PER_NODE", "16"}};
  Surroundings here = machine.surroundings();
  here.dry_run = true;
  const auto notes = [&](const DirectCommand& command) {
    return plan_direct({}, command, here).plan.steps.at(0).notes;
  };
  const auto with = [](const std::vector<std::string>& more) {
    DirectCommand command = training();
    command.words.insert(command.words.end(), more.begin(), more.end());
    return command;
  };
  EXPECT_THAT(error_of([&] { notes(training()); }),
              HasSubstr("the node starts 16 ranks, but the plan is for a host with 8 MI355X GPUs"));
  EXPECT_EQ(error_of([&] { notes(with({"device=cpu"})); }), "no error");
  EXPECT_THAT(notes(with({"--nproc", "4"})),
              testing::Contains("this node starts 4 ranks, so 4 of its 8 GPUs stay idle"));
  machine.variables["GPUS_PER_NODE"] = "8";
  EXPECT_THAT(notes(training()), Not(testing::Contains(HasSubstr("stay idle"))));
  machine.variables["PRIMUS_GPU_MODEL"] = "H900";
  EXPECT_THAT(error_of([&] { notes(training()); }),
              HasSubstr("PRIMUS_GPU_MODEL: no hardware is called 'H900'"));
}

TEST(DirectPlan, NotesValuesWithoutEffect) {
  test::Machine machine;
  const auto notes = [&](const DirectSettings& settings) {
    return plan_direct(settings, training(), machine.surroundings()).notes;
  };
  EXPECT_THAT(notes({.environment = {"MASTER_ADDR=h", "MASTER_PORT=5000"}}),
              ElementsAre("--env MASTER_ADDR has no effect: all ranks of the job are on this node",
                          "--env MASTER_PORT has no effect: all ranks of the job are on this node"));
  EXPECT_THAT(
      notes({.environment = {"GPUS_PER_NODE=3"}, .ranks_per_node = 2}),
      ElementsAre(HasSubstr("GPUS_PER_NODE=3 of the environment or of --env overrides gpus_per_node: 2")));
  EXPECT_THAT(notes({.environment = {"GPUS_PER_NODE=2"}, .ranks_per_node = 2}), ElementsAre());
  const ElsewhereNodes nodes{.nodes = 1, .address = "a", .port = "1", .node = "0"};
  EXPECT_THAT(plan_direct_elsewhere({.environment = {"GPUS_PER_NODE=3"}, .ranks_per_node = 2}, training(),
                                    nodes, "primus")
                  .steps.at(0)
                  .notes,
              testing::Contains(HasSubstr("overrides gpus_per_node: 2")));
}

TEST(DirectPlan, ADryRunChecksTheLogFolderAndTheScript) {
  test::Machine machine;
  machine.file("job");
  Surroundings here = machine.surroundings();
  here.dry_run = true;
  const auto error = [&](const DirectSettings& settings) {
    return error_of([&] { plan_direct(settings, training(), here); });
  };
  EXPECT_THAT(error({.log_file = "/proc/nope/x"}),
              HasSubstr("files cannot be created in the folder '/proc/nope'"));
  EXPECT_THAT(error({.log_file = machine.folder.path() / "job/x"}), HasSubstr("files cannot be created"));
  EXPECT_EQ(error({.log_file = machine.folder.path() / "new/folder/x"}), "no error");
  EXPECT_FALSE(std::filesystem::exists(machine.folder.path() / "new"));
  const std::string job = machine.folder.path() / "job";
  EXPECT_THAT(error({.script = job}), HasSubstr("the file is not executable"));
  std::filesystem::permissions(job, std::filesystem::perms::owner_all);
  EXPECT_EQ(error({.script = job}), "no error");
  // A name without '/' is a file of the current folder, and not a program of PATH.
  const Path before = std::filesystem::current_path();
  std::filesystem::current_path(machine.folder.path());
  EXPECT_EQ(plan_direct({.script = "job"}, training(), here).plan.steps.at(0).argv.at(0), "./job");
  std::filesystem::current_path(before);
}

TEST(DirectPlan, AnErrorNamesTheFilesThatThePlanReads) {
  DirectCommand command = training();
  command.notes = {looked_for_in_this_folder("the experiment", "exp.yaml")};
  command.check_job = [](int, int, const auto&) { throw invalid("the batch does not fit"); };
  const ElsewhereNodes nodes{.nodes = 2, .ranks = 4, .address = "a", .port = "1", .node = "<n>", .gpus = 8};
  EXPECT_THAT(error_of([&] { plan_direct_elsewhere({}, command, nodes, "primus"); }),
              HasSubstr("the plan reads the experiment 'exp.yaml' of this folder"));
  command.check_job = {};
  command.words.emplace_back("device=cpu");
  EXPECT_THAT(plan_direct_elsewhere({}, command, nodes, "primus").steps.at(0).notes,
              testing::Contains("device is cpu, so the 8 GPUs that the job requests per node stay idle"));
}

TEST(DirectPlan, ReadsFilesOfVariables) {
  const test::Machine machine;
  machine.file("a.env", "# comment\n\nA=1\nexport B='two words $x'\nC=\"three\"\r\n  D=\nE=a=b\n");
  EXPECT_THAT(read_environment_file(machine.folder.path() / "a.env"),
              ElementsAre("A=1", "B=two words $x", "C=three", "D=", "E=a=b"));
  for (const char* bad :
       {"A=$(date)", "A=`date`", "A=a b", "A", "1A=2", "A=\"x", "A=\"$x\"", "if true; then", "A=1;B=2"}) {
    machine.file("bad.env", std::string("X=1\n") + bad + "\n");
    EXPECT_THAT(error_of([&] { read_environment_file(machine.folder.path() / "bad.env"); }),
                HasSubstr("bad.env:2: error: this line is not NAME=VALUE"))
        << bad;
  }
}

TEST(DirectPlan, ShowsNoSecrets) {
  test::Machine machine;
  machine.file("s.env", "HF_TOKEN=hf_verysecret\n");
  DirectSettings settings;
  settings.environment_files = {machine.folder.path() / "s.env"};
  settings.environment = {"NCCL_DEBUG=INFO"};
  const Plan plan = plan_direct(settings, training(), machine.surroundings()).plan;
  EXPECT_EQ(plan.steps[0].environment.at("HF_TOKEN"), "hf_verysecret");
  const std::string text = render(plan);
  EXPECT_THAT(text, HasSubstr("export HF_TOKEN=<redacted>\n"));
  EXPECT_THAT(text, HasSubstr("export NCCL_DEBUG=INFO\n"));
  EXPECT_THAT(text, Not(HasSubstr("verysecret")));
}

// The launcher adds an option for the job's size or a node's place in the job (--nnodes, --node_rank and so
// on) only if the command lacks it, so no option is given twice.
TEST(DirectPlan, AnOptionOfTheCommandIsNotAddedAgain) {
  DirectCommand own = training();
  own.words.insert(own.words.end(), {"--nnodes", "2", "--master-addr=10.0.0.7"});
  const std::string start = "primus train pretrain --config exp.yaml --nnodes 2 --master-addr=10.0.0.7";
  EXPECT_EQ(line_of({}, own, kSecondOfTwo),
            "/opt/primus/bin/" + start + " --nproc 1 --node_rank 1 --master_port 1234");
  ElsewhereNodes nodes{
      .nodes = 2, .ranks = 4, .tasks = {}, .address = "<first>", .port = "<port>", .node = "<number>"};
  EXPECT_EQ(shell_line(plan_direct_elsewhere({}, own, nodes, "primus").steps.at(0).argv),
            start + " --nproc 4 --node_rank '<number>' --master_port '<port>'");
  const auto refused = [&](const DirectSettings& settings, const std::vector<std::string>& more) {
    DirectCommand command = training();
    command.words.insert(command.words.end(), more.begin(), more.end());
    return error_of([&] { plan_direct_elsewhere(settings, command, nodes, "primus"); });
  };
  EXPECT_THAT(refused({}, {"--nnodes", "4"}), HasSubstr("the job has 2 nodes"));
  EXPECT_THAT(refused({}, {"--world", "16"}), HasSubstr("the job has 8 ranks"));
  EXPECT_THAT(refused({.environment = {"NNODES=3"}}, {}), HasSubstr("the job has 2 nodes"));
  EXPECT_THAT(refused({.environment = {"GPUS_PER_NODE=2"}}, {"--nproc", "4"}),
              HasSubstr("--nproc is 4, but --env GPUS_PER_NODE is 2"));
  EXPECT_THAT(error_of([&] {
                DirectCommand command = training();
                command.words.insert(command.words.end(), {"--nproc", "4"});
                line_of({.environment = {"GPUS_PER_NODE=2"}}, command, {});
              }),
              HasSubstr("--env GPUS_PER_NODE is 2"));
  EXPECT_THAT(error_of([&] {
                DirectCommand command = training();
                command.words.insert(command.words.end(), {"--node_rank", "0"});
                line_of({}, command, kSecondOfTwo);
              }),
              HasSubstr("this node has the number 1"));
  EXPECT_THAT(refused({.environment = {"WORLD_SIZE=3"}}, {}), HasSubstr("the job has 8"));
  const auto notes_with = [&](int set) {
    return plan_direct_elsewhere({.nodes = set}, training(), nodes, "primus").steps.at(0).notes;
  };
  EXPECT_THAT(notes_with(4), testing::Contains(HasSubstr("nnodes: 4 in the section direct")));
  EXPECT_TRUE(notes_with(2).empty());
  EXPECT_TRUE(notes_with(1).empty());
  const DirectSettings other_master{.environment = {"MASTER_ADDR=h", "MASTER_PORT=4000"}};
  EXPECT_THAT(shell_line(plan_direct_elsewhere(other_master, training(), nodes, "primus").steps.at(0).argv),
              HasSubstr(" --master_addr h --master_port 4000"));
  // Options of a script are the script's own.
  EXPECT_EQ(refused({.script = "x", .environment_files = {}}, {"--nnodes", "4"}).find("the job has"),
            std::string::npos);
}

TEST(DirectPlan, PlansForNodesThatAreNotKnownYet) {
  const Plan plan = plan_direct_elsewhere(
      {}, training(),
      {.nodes = 2, .ranks = 4, .address = "<first node>", .port = "<of the job>", .node = "<its number>"},
      "primus");
  EXPECT_EQ(render(plan),
            "1. process, on each node\n"
            "   primus train pretrain --config exp.yaml --nproc 4 --nnodes 2 --node_rank '<its number>' "
            "--master_addr '<first node>' --master_port '<of the job>'\n"
            "   node 0: RANK=0..3 WORLD_SIZE=8 LOCAL_RANK=0..3 LOCAL_WORLD_SIZE=4\n"
            "   node 1: RANK=4..7 WORLD_SIZE=8 LOCAL_RANK=0..3 LOCAL_WORLD_SIZE=4\n");
}

TEST(DirectPlan, ContradictionsBetweenNumbersOfRanksAreReported) {
  const ElsewhereNodes tasks{.nodes = 2, .tasks = 8, .address = "a", .port = "1", .node = "<n>", .gpus = 8};
  const auto with_option = [](const std::string& count) {
    DirectCommand command = training();
    command.words.insert(command.words.end(), {"--nproc", count});
    return command;
  };
  EXPECT_THAT(error_of([&] {
                plan_direct_elsewhere({.environment = {"GPUS_PER_NODE=4"}}, training(), tasks, "primus");
              }),
              HasSubstr("--env GPUS_PER_NODE is 4, but Slurm starts 8 ranks per node"));
  const Plan plan = plan_direct_elsewhere({}, with_option("8"), tasks, "primus");
  EXPECT_EQ(plan.ranks.size(), 2U) << "the tasks are the ranks";
  const DirectSettings single{.single = true};
  EXPECT_THAT(
      error_of([&] { line_of(single, with_option("4"), {}); }),
      HasSubstr("the launcher starts a single process (--single, run_mode or RUN_MODE), but --nproc is 4"));
  const ElsewhereNodes nodes{.nodes = 2, .ranks = 8, .address = "a", .port = "1", .node = "<n>", .gpus = 8};
  EXPECT_THAT(error_of([&] { plan_direct_elsewhere(single, with_option("4"), nodes, "primus"); }),
              HasSubstr("but --nproc is 4"));
  EXPECT_EQ(error_of([&] { line_of(single, with_option("1"), {}); }), "no error");
  const auto notes_of = [](const Plan& p) { return p.steps.at(0).notes; };
  EXPECT_THAT(notes_of(plan_direct_elsewhere(single, training(), nodes, "primus")),
              ElementsAre(HasSubstr("each node starts 1 rank, so 7 of the 8 GPUs"),
                          HasSubstr("each of the 2 nodes runs the command separately")));
  EXPECT_THAT(notes_of(plan_direct_elsewhere({.ranks_per_node = 4}, training(), nodes, "primus")),
              ElementsAre(HasSubstr("gpus_per_node: 4 in the section direct of the settings is not used")));
  test::Machine machine;
  machine.variables["GPUS_PER_NODE"] = "8";
  EXPECT_THAT(plan_direct({}, with_option("4"), machine.surroundings()).notes,
              testing::Contains("--nproc 4 overrides GPUS_PER_NODE=8"));
  EXPECT_THAT(plan_direct({}, with_option("8"), machine.surroundings()).notes,
              Not(testing::Contains(HasSubstr("overrides"))));
}

TEST(DirectPlan, RanksFollowFromTheGpusThatAJobRequests) {
  const ElsewhereNodes nodes{.nodes = 2, .address = "a", .port = "1", .node = "<n>", .gpus = 8};
  const Plan plan = plan_direct_elsewhere({}, training(), nodes, "primus");
  EXPECT_THAT(shell_line(plan.steps.at(0).argv), HasSubstr(" --nproc 8 "));
  EXPECT_THAT(plan.ranks, ElementsAre(HasSubstr("RANK=0..7 WORLD_SIZE=16"), HasSubstr("RANK=8..15")));
}

TEST(DirectPlan, AVariableHasOneValue) {
  EXPECT_NO_THROW(refuse_repeated({"A=1", "B=2", "A=1", "file.env"}, "--env"));
  const std::string error = error_of([] { refuse_repeated({"A=1", "A=secret"}, "--env"); });
  EXPECT_THAT(error, HasSubstr("--env sets A twice, to different values"));
  EXPECT_THAT(error, Not(HasSubstr("secret")));
}

}  // namespace
}  // namespace primus::launch
