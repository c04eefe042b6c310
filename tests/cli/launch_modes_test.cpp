// Tests of the modes container, slurm and k8s. Dry runs are compared with goldens in tests/cli/golden/launch,
// which PRIMUS_UPDATE_GOLDEN=1 rewrites. Real runs call stand-ins for the tools on PATH, which log their
// arguments, environment and input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <regex>
#include <sstream>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "cli/launch_fixture.h"
#include "launch/options/tables.h"
#include "launch/plan.h"

namespace primus {
namespace {

using test::ProgramOptions;
using test::ProgramResult;
using test::run_program;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

using test::kExperiment;
using test::kTrain;
using test::Words;
using test::operator+;

class Launch : public test::LaunchFixture {};

// The user's settings of `direct` apply inside a container, where their file is not found by default.
TEST_F(Launch, ContainersSeeTheUsersSettings) {
  tool("docker");
  make_folders(folder_.path() / "home");
  write_file(folder_.path() / "home/.primus.yaml", "direct: {env: [FOO=1]}\n");
  const Words words{"--dry-run", "container", "--runtime", "docker", "--image",
                    "a/b:1",     "--",        "direct",    "--",     "version"};
  const ProgramResult single = run(words);
  ASSERT_EQ(single.exit_code, 0) << single.err;
  const std::string file = (folder_.path() / "home/.primus.yaml").string();
  EXPECT_THAT(single.out, AllOf(HasSubstr("--volume " + file + ":" + file + ":ro"),
                                HasSubstr("--config " + file + " direct"), HasSubstr("FOO=1")));
  // Inside the container, several settings files are merged as outside, and the launcher uses only these
  // files.
  settings("direct: {env: [BAR=2], gpus_per_node: 3}\n");
  make_folders(folder_.path() / "elsewhere");
  const std::string more = (folder_.path() / "elsewhere/more.yaml").string();
  const std::string last = (folder_.path() / "elsewhere/last.yaml").string();
  write_file(more, "direct: {env: [BAZ=3], log_file: more.log}\n");
  write_file(last, "direct: {log_file: last.log}\n");
  const std::string project = (folder_.path() / "here/.primus.yaml").string();
  const ProgramResult all = run(Words{"--config", more, "--config", last} + words);
  ASSERT_EQ(all.exit_code, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("--volume " + file + ":" + file + ":ro"),
                             HasSubstr("--volume " + more + ":" + more + ":ro"),
                             HasSubstr("--volume " + last + ":" + last + ":ro"),
                             HasSubstr(" --config " + file + " --config " + project + " --config " + more +
                                       " --config " + last + " direct"),
                             HasSubstr("BAZ=3"), Not(HasSubstr("BAR=2")), HasSubstr("last.log")));
  // A file that is given to the launcher inside the container is mounted, too.
  const ProgramResult within = run({"--dry-run", "container", "--runtime", "docker", "--image", "a/b:1", "--",
                                    "direct", "--config", more, "--", "version"});
  ASSERT_EQ(within.exit_code, 0) << within.err;
  EXPECT_THAT(within.out, AllOf(HasSubstr("--volume " + more + ":" + more + ":ro"), HasSubstr("BAZ=3")));
  // The stand-in runs on this machine what docker would run, so the files are at the same paths.
  tool("docker", "while [ \"$1\" != a/b:1 ]; do shift; done; shift; exec \"$@\"");
  write_file(last, "direct: {log_file: '" + (folder_.path() / "here/last.log").string() + "'}\n");
  const ProgramResult done = run({"--config", more, "--config", last, "container", "--runtime", "docker",
                                  "--image", "a/b:1", "--", "direct", "--", "version"});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "here/last.log"));
  expect_refused(Words{"--config", more, "--config", "nowhere.yaml"} + words,
                 "the file 'nowhere.yaml' with launcher settings does not exist");
}

// An experiment in another folder is mounted, for both spellings of the option.
TEST_F(Launch, ContainersSeeAnExperimentInAnotherFolder) {
  tool("docker");
  make_folders(folder_.path() / "elsewhere");
  const std::string file = (folder_.path() / "elsewhere/exp.yaml").string();
  write_file(file, read_file(PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml"));
  const Words chain{"--dry-run", "container", "--runtime", "docker", "--image", "a/b:1", "--"};
  for (const Words& named : {Words{"--config", file}, Words{"--config=" + file}}) {
    const ProgramResult result = run(chain + Words{"train", "pretrain"} + named);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("--volume " + file + ":" + file + ":ro")) << named.front();
  }
}

// ---- slurm -----------------------------------------------------------------------------------------

TEST_F(Launch, SlurmChains) {
  tool("srun");
  tool("sbatch");
  environment_["PRIMUS_JOB_TOKEN"] = "a-token";
  expect_golden(run(Words{"--dry-run", "slurm", "srun", "-N", "2", "-p", "gpu", "--", "direct", "--env",
                          "GPUS_PER_NODE=8", "--"} +
                    kTrain),
                "srun_direct");
  expect_golden(run(Words{"slurm", "--dry-run", "sbatch", "-N2", "--requeue", "-t", "8:00:00", "--", "direct",
                          "--env", "GPUS_PER_NODE=2", "--"} +
                    kTrain),
                "sbatch_direct");
  settings(
      "slurm: {nodes: 4, gpus_per_node: 8, account: me, time: '1:00:00'}\ncontainer: {options: {image: "
      "'a/b:1'}}\n");
  expect_golden(run(Words{"--dry-run", "slurm", "-t", "2:00:00", "--"} + kTrain), "slurm_container");
  expect_golden(run({"--dry-run", "slurm", "srun", "-N", "1", "--", "direct", "--", "version"}),
                "srun_one_process");
  expect_golden(run(Words{"--dry-run", "slurm", "srun", "-N2", "--ntasks-per-node=4", "--", "direct", "--env",
                          "A=1", "--"} +
                    kTrain),
                "srun_tasks");
  settings("{}\n");
  expect_golden(run(Words{"--dry-run", "slurm", "srun", "-N", "2", "--"} + kTrain), "slurm_usual_image");
  EXPECT_EQ(log("srun") + log("sbatch"), "") << "a dry run started a tool";
}

TEST_F(Launch, SrunGetsTheModesAsArgumentsAndTheSecretAsAVariable) {
  tool("srun", "exit 5");
  environment_["HF_TOKEN"] = "hf_secret";
  settings("slurm: {gpus_per_node: 2}\n");
  const ProgramResult result =
      run(Words{"--debug", "slurm", "srun", "-N", "2", "--", "direct", "--numa", "--"} + kTrain);
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(neutral(arguments("srun")),
            "FOLDER/bin/"
            "srun\n--nodes=2\n--ntasks-per-node=1\n--kill-on-bad-exit=1\n--wait=60\nPROGRAM\n--"
            "debug\ndirect\n--numa\n--\n"
            "train\npretrain\n--config\nSOURCE/examples/native/configs/CPU/llama_tiny-pretrain.yaml\n"
            "micro_batch_size=1\nglobal_batch_size=32");
  EXPECT_THAT(log("srun"), AllOf(HasSubstr("\nGPUS_PER_NODE=2\n"), HasSubstr("\nHF_TOKEN=hf_secret\n")));
  EXPECT_TRUE(std::regex_search(log("srun"), std::regex("\nPRIMUS_JOB_TOKEN=[0-9a-f]{64}\n")));
}

TEST_F(Launch, SbatchReadsItsScript) {
  tool("sbatch", "cat >> " + (folder_.path() / "script").string());
  const ProgramResult result = run(Words{"slurm", "sbatch", "-N", "2", "--requeue", "--signal=USR2@60",
                                         "--cpus-per-task", "4", "--", "direct", "--"} +
                                   kTrain);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(
      neutral(arguments("sbatch")),
      "FOLDER/bin/sbatch\n--nodes=2\n--requeue\n--signal=USR2@60\n--cpus-per-task=4\n--ntasks-per-node=1\n"
      "--open-mode=append");
  const std::string script = read_file(folder_.path() / "script");
  EXPECT_THAT(
      script,
      AllOf(HasSubstr("#!/bin/sh\n"), HasSubstr("scontrol requeue \"$SLURM_JOB_ID\""),
            HasSubstr(
                "srun --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=60 --export=ALL --cpus-per-task=4 ")));
  EXPECT_EQ(log("sbatch").find("PRIMUS_JOB_TOKEN"), std::string::npos) << "the job makes its own token";
}

// A job may wait for hours, so the notes of the plan are shown when it is submitted.
TEST_F(Launch, SlurmShowsItsNotesWhenTheJobIsSubmitted) {
  tool("srun");
  tool("sbatch", "cat");
  const Words options = {"-N", "2", "--gpus-per-node=4", "--", "direct", "--env", "GPUS_PER_NODE=2", "--"};
  const Words command = {"data_path=data/typo", "mock_data=false"};
  const auto notes = AllOf(HasSubstr("note: each node starts 2 ranks, so 2 of the 4 GPUs"),
                           HasSubstr("note: data_path is 'data/typo' (command line), which does not exist"));
  const ProgramResult interactive = run(Words{"slurm", "srun"} + options + kTrain + command);
  EXPECT_EQ(interactive.exit_code, 0);
  EXPECT_THAT(interactive.err, notes);
  const ProgramResult batch =
      run(Words{"slurm", "sbatch", "--signal=B:TERM@300"} + options + kTrain + command);
  EXPECT_EQ(batch.exit_code, 0);
  EXPECT_THAT(batch.err,
              AllOf(notes, HasSubstr("note: --signal=B:TERM@300: the batch script does not pass")));
}

// A signal would end a program that does not handle it, without a checkpoint.
TEST_F(Launch, OnlyRanksThatSaveGetTheSignalBeforeTheTimeLimit) {
  const Words start = {"--dry-run", "slurm", "sbatch", "--requeue", "--", "direct"};
  write_file(folder_.path() / "here/job.py", "");
  const auto plan_of = [&](const Words& more) {
    const ProgramResult result = run(start + more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const auto silent = AllOf(HasSubstr("does not save at a signal, so Slurm sends none"),
                            Not(HasSubstr("--signal=B:USR1@120")));
  EXPECT_THAT(plan_of({"--script", "job.py", "--"}), AllOf(HasSubstr("the program of --script"), silent));
  EXPECT_THAT(plan_of(Words{"--"} + kTrain), HasSubstr("--signal=B:USR1@120"));
  write_file(folder_.path() / "here/megatron.yaml",
             "modules: {pre_trainer: {framework: megatron, model: llama3.1_8B.yaml, overrides: {mock_data: "
             "true, global_batch_size: 8}}}\n");
  const Words megatron = {"--", "train", "pretrain", "--config", "megatron.yaml"};
  EXPECT_THAT(plan_of(megatron), HasSubstr("--signal=B:USR1@120"));
  EXPECT_THAT(plan_of(megatron + Words{"exit_signal_handler=false"}),
              AllOf(HasSubstr("Megatron-LM"), silent));
}

TEST_F(Launch, JobsThatStartAnewHaveANote) {
  const Words requeued = {"--dry-run", "slurm", "sbatch", "--requeue", "--", "direct", "--"};
  const Words pods = {"--dry-run", "k8s", "--image", "a/b:1", "--"};
  const Words anew = {"auto_continue_train=false"};
  EXPECT_THAT(run(requeued + kTrain + anew).out, HasSubstr("continues from its own checkpoints"));
  EXPECT_THAT(run(requeued + kTrain).out, Not(HasSubstr("auto_continue_train")));
  EXPECT_THAT(run(pods + kTrain + anew).out,
              HasSubstr("auto_continue_train is false, so pods that are started again"));
}

// Runs the batch script with a stand-in for srun, and checks how it handles signals and exit codes.
TEST_F(Launch, TheBatchScriptWaitsForItsRanks) {
  const std::string script = (folder_.path() / "script").string();
  tool("sbatch", "cat > " + script);
  tool("scontrol");
  const auto submit = [&] {
    const ProgramResult result = run(Words{"slurm", "sbatch", "--requeue", "--", "direct", "--"} + kTrain);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  };
  submit();
  const std::string path = environment_["PATH"], up = (folder_.path() / "up").string();
  const std::string when_up = "while [ ! -e " + up + " ]; do sleep 0.05; done; ";
  const std::string waits = "; touch " + up + "; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; done; exit 6";
  struct Case {
    std::string srun, signals, variables;
    int code;
    bool queued_again;
  };
  const Case cases[] = {
      {"exit 0", "", "", 0, false},
      {"exit 2", "", "", 2, false},                        // an error in the command
      {"exit 9", "", "", 0, true},                         // a lost rank: scontrol requeues the job
      {"exit 9", "", "SLURM_RESTART_COUNT=3 ", 9, false},  // too many restarts
      {"trap 'sleep 0.3; exit 0' USR1" + waits, when_up + "kill -USR1 $pid; ", "SLURM_RESTART_COUNT=9 ", 0,
       true},
      {"trap 'exit 2' USR1" + waits, when_up + "kill -USR1 $pid; ", "", 2, false},
      // Slurm ends the ranks of a cancelled job, which must not be requeued.
      {"trap 'exit 1' TERM" + waits, when_up + "kill -TERM $pid; ", "", 6, false},
  };
  for (const Case& c : cases) {
    std::filesystem::remove(folder_.path() / "scontrol.log");
    std::filesystem::remove(up);
    tool("srun", c.srun);
    const std::string command = "env -u SLURM_RESTART_COUNT PATH=" + path + " SLURM_JOB_ID=77 " +
                                c.variables + "sh " + script + " & pid=$!; " + c.signals + "wait $pid";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), c.code) << c.srun;
    EXPECT_EQ(arguments("scontrol").find("requeue\n77") != std::string::npos, c.queued_again) << c.srun;
  }
  EXPECT_TRUE(std::regex_search(log("srun"), std::regex("\nPRIMUS_JOB_TOKEN=[0-9a-f]{64}\n")));
}

TEST_F(Launch, SlurmRefusesImpossibleOptions) {
  environment_["PATH"] = (folder_.path() / "bin").string();
  expect_refused(Words{"slurm", "srun", "--", "direct", "--"} + kTrain, "'srun' is not installed here", 1);
  tool("srun");
  tool("sbatch");
  expect_refused({"slurm"}, "has no command");
  expect_refused({"slurm", "srun", "-N", "2"}, "has no command");
  expect_refused({"slurm", "srun", "-N", "2", "--", "direct", "--"}, "has no command");
  expect_refused({"slurm", "srun", "--", "direct", "--", "trian", "pretrain"}, "did you mean 'train'?");
  expect_refused({"slurm", "srun", "--", "direct", "--pacth", "x", "--", "train"}, "did you mean '--patch'?");
  expect_refused(Words{"slurm", "srun", "--nodse", "2", "--", "direct", "--"} + kTrain,
                 "did you mean '--nodes'?");
  expect_refused(Words{"slurm", "srn", "-N", "2", "--", "direct", "--"} + kTrain, "'srn' is not an option");
  expect_refused(Words{"slurm", "srun", "-N", "0", "--", "direct", "--"} + kTrain,
                 "--nodes=0 is not a number");
  expect_refused(Words{"slurm", "sbatch", "--wrap=x", "--", "direct", "--"} + kTrain, "remove it");
  expect_refused(Words{"slurm", "srun", "--export=NONE", "-N2", "--", "direct", "--"} + kTrain,
                 "--export=ALL,");
  expect_refused(Words{"slurm", "srun", "--", "direct", "--env", "HF_TOKEN=x", "--"} + kTrain,
                 "HF_TOKEN is a secret");
  expect_refused(Words{"slurm", "srun", "--", "slurm", "--"} + kTrain, "cannot start 'slurm'");
  EXPECT_EQ(log("srun") + log("sbatch"), "");
}

// If the number of ranks is known, the experiment's batch and mesh are checked before the launch.
TEST_F(Launch, BatchesThatRanksCannotShareAreRefusedBeforeTheStart) {
  tool("srun");
  tool("sbatch");
  tool("docker");
  const std::string said = "is not a multiple of micro_batch_size (1) times 6 data-parallel ranks";
  const Words batch = {"global_batch_size=4", "micro_batch_size=1"};
  const Words three = {"direct", "--env", "GPUS_PER_NODE=3", "--"};
  for (const Words& start :
       {Words{"--dry-run", "slurm", "srun", "-N", "2", "--"} + three,
        Words{"slurm", "srun", "-N", "2", "--"} + three, Words{"slurm", "sbatch", "-N2", "--"} + three,
        Words{"slurm", "srun", "-N2", "--ntasks-per-node=3", "--", "direct", "--"}})
    expect_refused(start + kTrain + batch, said);
  EXPECT_EQ(log("srun") + log("sbatch"), "");
  environment_["GPUS_PER_NODE"] = "6";
  expect_refused(Words{"--dry-run", "direct", "--"} + kTrain + batch, said);
  expect_refused(Words{"--dry-run", "slurm", "srun", "-N1", "--", "container", "--"} + kTrain + batch, said);
  expect_refused(Words{"--dry-run", "slurm", "srun", "-N1", "--", "direct", "--"} + kTrain +
                     Words{"global_batch_size=6", "tensor_model_parallel_size=4"},
                 "tensor_model_parallel_size is 4, which does not divide");
  environment_.erase("GPUS_PER_NODE");

  const auto is_planned = [&](const Words& words) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  const Words nodes = {"--dry-run", "slurm", "srun", "-N", "2", "--"};
  is_planned(nodes + three + kTrain + Words{"global_batch_size=12", "micro_batch_size=2"});
  // The number of ranks is only known on the nodes.
  is_planned(nodes + Words{"direct", "--"} + kTrain + batch);
  // The experiment exists only on the nodes.
  is_planned(nodes + three + Words{"train", "pretrain", "--config", "/of/the/nodes.yaml"} + batch);
  // A hook may change the experiment.
  make_folders(folder_.path() / "here/hooks");
  is_planned(nodes + Words{"direct", "--env", "GPUS_PER_NODE=3", "--hooks", "hooks", "--"} + kTrain + batch);
}

// Options and variables that state the job's size are compared with the job before it starts.
TEST_F(Launch, AnotherPlaceInTheJobIsRefusedBefore) {
  tool("srun");
  tool("docker");
  const Words batch = {"global_batch_size=64"};
  const Words slurm = {"--dry-run", "slurm", "srun", "-N", "2", "--gpus-per-node=8", "--"};
  const Words direct = slurm + Words{"direct", "--"} + kTrain + batch;
  const Words pods = {"k8s", "--image",        "a/b:1", "--nodes", "2", "--gpus-per-node",
                      "8",   "--gpu-resource", "amd"};
  const Words k8s = pods + Words{"--"} + kTrain + batch;
  for (const Words& job : {direct, k8s}) {
    expect_refused(job + Words{"--nnodes", "4"}, "--nnodes is 4, but the job has 2 nodes");
    expect_refused(job + Words{"--node_rank", "0"}, "--node_rank is 0 on all nodes of the job");
    expect_refused(job + Words{"--nproc", "16"}, "--nproc is 16, but the job requests 8 GPUs per node");
    expect_refused(job + Words{"--dry-run", "--world", "8"}, "the job has 16 ranks (2 nodes, 8 per node)");
    const ProgramResult agrees = run(job + Words{"--nnodes", "2", "--nproc", "8"});
    EXPECT_EQ(agrees.exit_code, 0) << agrees.err;
  }
  const std::string said = "--env NNODES is 3, but the job has 2 nodes";
  for (const char* mode : {"direct", "container"})
    expect_refused(slurm + Words{mode, "--env", "NNODES=3", "--"} + kTrain + batch, said);
  expect_refused(pods + Words{"--", "direct", "--env", "NNODES=3", "--"} + kTrain + batch, said);
  expect_refused(pods + Words{"--env", "NNODES=3", "--"} + kTrain + batch, said);
  expect_refused(pods + Words{"--env", "GPUS_PER_NODE=4", "--"} + kTrain + batch, "--gpus-per-node is 8");
  for (const Words& job :
       {slurm + Words{"direct", "--env", "WORLD_SIZE=3", "--"}, pods + Words{"--env", "WORLD_SIZE=3", "--"}})
    expect_refused(job + kTrain + batch, "--env WORLD_SIZE is 3, but the job has 16");
  const std::string agreed = run(pods + Words{"--env", "NNODES=2", "--"} + kTrain + batch).out;
  const std::size_t once = agreed.find("name: \"NNODES\"");
  ASSERT_NE(once, std::string::npos);
  EXPECT_EQ(agreed.find("name: \"NNODES\"", once + 1), std::string::npos) << agreed;
  // Whether the batch can be divided depends on the number of GPUs.
  expect_refused(slurm + Words{"direct", "--"} + kTrain + Words{"global_batch_size=8"},
                 "times 16 data-parallel ranks");
  const ProgramResult idle = run(direct + Words{"--nproc", "4"});
  EXPECT_EQ(idle.exit_code, 0) << idle.err;
  EXPECT_THAT(idle.out, HasSubstr("4 of the 8 GPUs that the job requests per node stay idle"));
}

// ---- container -------------------------------------------------------------------------------------

TEST_F(Launch, ContainersHaveFewRights) {
  tool("docker");
  environment_["HF_TOKEN"] = "hf_secret";
  environment_["NCCL_DEBUG"] = "INFO";
  environment_["UNRELATED"] = "1";
  const std::vector<std::string> own = {"--image", "a/b:1", "--accelerator", "none"};
  expect_golden(run(Words{"--dry-run", "container"} + own + Words{"--"} + kTrain), "docker");
  expect_golden(run(Words{"container", "--dry-run"} + own +
                    Words{"--volume", "cache:/data:ro", "--volume", "./data", "-e", "A=b c", "--env",
                          "HF_TOKEN", "--shm-size", "64g", "--ulimit", "stack=67108864", "--network", "none",
                          "--privileged", "--", "direct", "--single", "--"} +
                    kTrain),
                "docker_options");
  expect_golden(
      run(Words{"container", "--dry-run", "--privileged-set", "--clean"} + own + Words{"--", "version"}),
      "docker_privileged_set");
  EXPECT_EQ(log("docker"), "");
  tool("podman");
  expect_golden(run(Words{"container", "--dry-run", "--runtime", "podman"} + own + Words{"version"}),
                "podman");
  tool("apptainer");
  expect_golden(run(Words{"container", "--dry-run", "--runtime", "apptainer", "--cpus", "4", "--cap-add",
                          "SYS_PTRACE", "--volume", "./data"} +
                    own + Words{"--", "version"}),
                "apptainer");
}

// The container gets the Slurm variables from which preflight and node_smoke name nodes. It does not get
// SLURM_PROCID: the launcher inside numbers its processes.
TEST_F(Launch, ContainersGetTheirSlurmNode) {
  tool("docker");
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_PROCID"})
    environment_[name] = "0";
  environment_["SLURMD_NODENAME"] = environment_["SLURM_STEP_NODELIST"] = "node0";
  const std::string plan =
      run({"container", "--dry-run", "--image", "a/b:1", "--accelerator", "none", "--", "version"}).out;
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID", "SLURM_LOCALID",
                           "SLURMD_NODENAME", "SLURM_STEP_NODELIST"})
    EXPECT_THAT(plan, HasSubstr(std::string("--env ") + name + " "));
  EXPECT_THAT(plan, Not(HasSubstr("SLURM_PROCID")));
}

// An option that only docker has is refused for podman, and the reverse.
TEST_F(Launch, OptionsOfDockerAndPodmanAreDistinguished) {
  tool("docker");
  tool("podman");
  const auto with = [](const std::string& runtime, const Words& options) {
    // With --accelerator none, --gpus would be refused.
    const bool has_gpus = !options.empty() && options.front() == "--gpus";
    return Words{"--dry-run", "container", "--runtime",     runtime,
                 "--image",   "a/b:1",     "--accelerator", has_gpus ? "auto" : "none"} +
           options + Words{"--", "version"};
  };
  expect_refused(with("podman", {"--link", "other"}),
                 "podman has no option '--link', which belongs to docker");
  expect_refused(with("docker", {"--tz", "local"}), "docker has no option '--tz', which belongs to podman");
  EXPECT_THAT(run(with("podman", {"--tz", "local"})).out, HasSubstr(" --tz=local "));
  // Options in a settings file may be meant for either tool, so a foreign one is left out with a note.
  settings("container: {options: {tz: local, http-proxy: false, sig-proxy: false, network: host}}\n");
  const ProgramResult docker = run(with("docker", {"--network", "a", "--net", "b"}));
  EXPECT_EQ(docker.exit_code, 0) << docker.err;
  EXPECT_THAT(docker.out, AllOf(HasSubstr("ignores them: --http-proxy --tz"),
                                HasSubstr(" --sig-proxy=false "), Not(HasSubstr("--tz=")),
                                HasSubstr(" --network=a --network=b "), Not(HasSubstr("=host"))));
  EXPECT_THAT(run(with("podman", {})).out,
              AllOf(HasSubstr(" --http-proxy=false "), HasSubstr(" --tz=local ")));
  settings("container: {options: {sig-proxy: maybe}}\n");
  expect_refused(with("docker", {}), "sig-proxy must be true or false");
  std::filesystem::remove(folder_.path() / "here/.primus.yaml");
  // Podman accepts Docker's --gpus, but older versions ignore it, so it is translated to --device.
  for (const auto& [gpus, devices] : std::map<std::string, std::string>{
           {"all", " --device nvidia.com/gpu=all "},
           {"2", " --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 "},
           {"\"device=0,GPU-3a23\"", " --device nvidia.com/gpu=0 --device nvidia.com/gpu=GPU-3a23 "}}) {
    const ProgramResult podman = run(with("podman", {"--gpus", gpus}));
    EXPECT_EQ(podman.exit_code, 0) << podman.err;
    EXPECT_THAT(podman.out, AllOf(HasSubstr(devices), Not(HasSubstr("--gpus")))) << gpus;
  }
  EXPECT_THAT(run(with("docker", {"--gpus", "2"})).out, HasSubstr(" --gpus=2 "));
  for (const char* gpus : {"0", "device=", "capabilities=utility", "2,driver=x"})
    expect_refused(with("podman", {"--gpus", gpus}), "podman has no counterpart");
}

// The table of options agrees with the help texts of docker and podman, where installed: which options have a
// value, their letters, and which tool has them. Other versions may have a few options more or fewer.
TEST_F(Launch, ContainerOptionsEqualTheToolsHelp) {
  int tools = 0;
  for (const char* name : {"docker", "podman"}) {
    if (find_program(name, "/usr/local/bin:/usr/bin:/bin").empty()) continue;
    const SubprocessResult help =
        run_subprocess({name, "run", "--help"},
                       {.timeout = std::chrono::seconds(20), .path = "/usr/local/bin:/usr/bin:/bin"});
    std::istringstream lines(help.out);
    const std::regex form("^ +(-([a-zA-Z]), )?--([a-z0-9-]+)( [^ ]+)?  .*");
    int options = 0;
    std::string newer;
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (!std::regex_match(line, match, form) || match[3] == "help") continue;
      ++options;
      const launch::ForeignOption* const known =
          launch::find_option(launch::container_options(), match[3].str());
      if (!known) newer += " --" + match[3].str();
      if (!known) continue;
      EXPECT_EQ(known->letter, match[2].matched ? match[2].str()[0] : 0) << name << " " << match[3];
      using Takes = launch::ForeignOption::Takes;
      EXPECT_EQ(known->takes == Takes::kValue, match[4].matched) << name << " " << match[3];
      EXPECT_TRUE(known->only.empty() || known->only == name) << name << " " << match[3];
    }
    tools += options > 50;
    EXPECT_LT(std::count(newer.begin(), newer.end(), ' '), 10) << name << " also has" << newer;
  }
  if (tools == 0) GTEST_SKIP() << "neither docker nor podman is installed";
}

TEST_F(Launch, DockerGetsSecretsByName) {
  tool("docker", "exit 7");
  environment_["HF_TOKEN"] = "hf_secret";
  settings("container: {options: {image: 'of/settings:1', env: ['WANDB_API_KEY=w_secret', 'A=1']}}\n");
  ProgramResult result = run({"container", "--accelerator", "none", "--", "version"});
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(arguments("docker"),
              AllOf(HasSubstr("--env\nHF_TOKEN\n"), HasSubstr("--env\nWANDB_API_KEY\n"),
                    HasSubstr("--env\nA=1\n"), HasSubstr("\nof/settings:1\n"), Not(HasSubstr("secret"))));
  EXPECT_THAT(log("docker"), AllOf(HasSubstr("HF_TOKEN=hf_secret"), HasSubstr("WANDB_API_KEY=w_secret")));
  result = run({"--dry-run", "container", "--accelerator", "none", "--", "version"});
  EXPECT_THAT(result.out, AllOf(HasSubstr("WANDB_API_KEY=<redacted>"), Not(HasSubstr("secret"))));
  // --image overrides the variable, and the variable overrides the settings file.
  environment_["DOCKER_IMAGE"] = "of/variable:1";
  EXPECT_THAT(run({"--dry-run", "container", "--", "version"}).out, HasSubstr(" of/variable:1 "));
  EXPECT_THAT(run({"--dry-run", "container", "--image", "typed:1", "--", "version"}).out,
              HasSubstr(" typed:1 "));
}

// The stand-in runs on this machine what docker would run.
TEST_F(Launch, TheContainersPrimusRunsTheCommand) {
  const std::string shift = "while [ \"$1\" != a/b:1 ]; do shift; done; shift; exec \"$@\"";
  tool("docker", shift);
  ProgramResult result = run({"container", "--image", "a/b:1", "--", "version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, run_program({"version"}).out);
  result = run({"container", "--image", "a/b:1", "--program", "/no/primus/here", "--", "version"});
  EXPECT_EQ(result.exit_code, 42);
  EXPECT_THAT(result.err, HasSubstr("this container has no Primus: /no/primus/here"));
}

TEST_F(Launch, TheDefaultImageIsLogged) {
  tool("docker");
  const ProgramResult result = run({"container", "--", "version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(arguments("docker"), HasSubstr("\ndebian:12\n"));
  EXPECT_THAT(result.err, HasSubstr("note: no image is named: Primus uses debian:12, for nodes without GPUs; "
                                    "choose another one by --image"));
}

TEST_F(Launch, LoginAndCleanupComeFirst) {
  const std::string log_file = (folder_.path() / "order").string();
  tool("docker", "echo $1 >> " + log_file + "; case $1 in login) cat >> " + log_file +
                     ";; ps) echo abc123;; rm) echo $3 >> " + log_file + ";; esac");
  environment_["DOCKER_LOGIN_USER"] = "me";
  environment_["DOCKER_LOGIN_KEY"] = "key-secret";
  const ProgramResult result = run({"container", "--clean", "--image", "a/b:1", "--", "version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(read_file(log_file), "ps\ninspect\nrm\nabc123\nlogin\nkey-secretrun\n");
  EXPECT_THAT(result.err + run({"--dry-run", "container", "--image", "a/b:1", "--", "version"}).out,
              Not(HasSubstr("key-secret")));
  environment_["DOCKER_LOGIN_USER"] = "";
  expect_refused({"container", "--image", "a/b:1", "--", "version"}, "DOCKER_LOGIN_USER is not");
}

// Slurm may end a container's client and leave the container running. The launcher finds old containers by
// the job's number, which a requeued job keeps.
TEST_F(Launch, ARequeuedJobRemovesItsOldContainers) {
  // A container is labelled with its launcher's process id and start time. The stand-in lists one with this
  // process's values, whose launcher runs, and one with another start time, whose launcher has ended.
  const std::string line = read_file("/proc/self/stat");
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  const std::string process = std::to_string(getpid());
  const std::string calls = (folder_.path() / "calls").string();
  tool("docker", "case $1 in ps) echo \"ps $4\" >> " + calls +
                     "; echo runs; echo ended; echo old;; inspect) case $4 in runs) echo " + process + "." +
                     words.at(19) + ";; ended) echo " + process +
                     ".1;; *) echo;; esac;; *) echo \"$1 $3 $4\" >> " + calls + ";; esac");
  const Words start{"container", "--image", "a/b:1", "--accelerator", "none", "--", "version"};
  environment_["SLURM_JOB_ID"] = "7";
  EXPECT_EQ(run(start).exit_code, 0);
  EXPECT_THAT(read_file(calls), MatchesRegex("run --name primus-7-[0-9]+\n"));
  std::filesystem::remove(calls);
  environment_["SLURM_RESTART_COUNT"] = "1";
  EXPECT_EQ(run(start).exit_code, 0);
  const std::string removed = "rm ended \nrm old \n";
  EXPECT_THAT(read_file(calls),
              MatchesRegex("ps label=io.primus.job=7\n" + removed + "run --name primus-7-[0-9]+\n"));
  std::filesystem::remove(calls);
  EXPECT_EQ(run(Words{"container", "--clean"} + Words(start.begin() + 1, start.end())).exit_code, 0);
  EXPECT_THAT(read_file(calls),
              MatchesRegex("ps label=io.primus.job\n" + removed + "run --name primus-7-[0-9]+\n"));
}

// Dry runs need no Slurm, no containers and no PyTorch on this machine.
TEST_F(Launch, PlansNeedNoToolsOfTheCluster) {
  environment_["PATH"] = (folder_.path() / "bin").string();
  const auto planned = [&](const Words& words) {
    const ProgramResult result = run(Words{"--dry-run"} + words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_THAT(
      planned(Words{"slurm", "srun", "-N", "4", "--", "direct", "--env", "GPUS_PER_NODE=8", "--"} + kTrain),
      AllOf(HasSubstr("srun"),
            HasSubstr("'srun' is not installed here: the plan is for a machine of the cluster"),
            HasSubstr("WORLD_SIZE=32")));
  EXPECT_THAT(
      planned({"container", "--image", "a/b:1", "--", "version"}),
      AllOf(HasSubstr("docker run"), HasSubstr("docker, podman and apptainer are not installed here")));
  EXPECT_THAT(planned({"container", "--runtime", "podman", "--image", "a/b:1", "--", "version"}),
              AllOf(HasSubstr("podman run"), HasSubstr("podman is not installed here")));
  write_file(folder_.path() / "here/x.py", "print()\n");
  EXPECT_THAT(planned({"direct", "--script", "x.py"}),
              AllOf(HasSubstr("torchrun"),
                    HasSubstr("the run needs the program 'torchrun', which is not installed here")));
  expect_refused({"direct", "--script", "x.py"}, "the program 'torchrun' is not installed here", 1);
}

TEST_F(Launch, ContainersRefuseImpossibleOptions) {
  environment_["PATH"] = (folder_.path() / "bin").string();
  const std::vector<std::string> image = {"container", "--dry-run", "--image", "a/b:1"};
  const std::vector<std::string> command = {"--", "version"};
  const Words real = {"container", "--image", "a/b:1"};
  expect_refused(real + command, "docker, podman and apptainer are not installed here", 1);
  expect_refused(real + Words{"--runtime", "podman"} + command, "podman is not installed here", 1);
  tool("docker");
  tool("apptainer");
  expect_refused({"container", "--program", "primus", "--", "version"}, "no image is named");
  expect_refused(image, "has no command");
  expect_refused(image + Words{"--", "vresion"}, "did you mean 'version'?");
  expect_refused(image + Words{"--volume", "/nowhere"} + command, "'/nowhere' does not exist on this node");
  expect_refused(image + Words{"--volume", "/tmp:x"} + command, "INSIDE is an absolute path");
  expect_refused(image + Words{"--device", "/dev/none"} + command, "this node has no device '/dev/none'");
  expect_refused(image + Words{"--env", "A B=1"} + command, "is not the name of a variable");
  expect_refused(image + Words{"--env", "HF_TOKEN=x"} + command, "pass it on by name");
  expect_refused(image + Words{"--shm-szie", "8g"} + command, "did you mean '--shm-size'?");
  expect_refused(image + Words{"--runtime", "dockr"} + command, "did you mean 'docker'?");
  expect_refused({"container", "--runtime", "apptainer", "--image", "none.sif", "--", "version"},
                 "there is no image 'none.sif'");
  environment_["NNODES"] = "2";
  expect_refused(image + command, "NODE_RANK is not set");
}

// ---- chains as users of AMD Primus write them ----------------------------------------------------------

TEST_F(Launch, OptionsOfDirectNeedNoWordDirect) {
  tool("docker");
  tool("srun");
  make_folders(folder_.path() / "logs");
  const std::string log = (folder_.path() / "logs/run.log").string();
  const Words image = {"--image", "a/b:1", "--accelerator", "none"};
  struct Case {
    Words words;
    std::vector<std::string> said;
  };
  const Words container = Words{"--dry-run", "container"} + image;
  const Words slurm = {"--dry-run", "slurm", "-N", "4", "--"};
  const Case cases[] = {
      {container + Words{"--volume", "./data:/data", "--", "--log_file", "/data/run.log", "--"} + kTrain,
       {"direct --log_file /data/run.log -- train pretrain", "output to /data/run.log"}},
      {container + Words{"--", "--log_file", "run.log", "train", "pretrain"} + Words{"--config", kExperiment},
       {"direct --log_file run.log -- train pretrain"}},
      // The log file's folder is mounted; otherwise the log would be lost with the container.
      {container + Words{"--log_file", log, "--"} + kTrain,
       {"direct --log_file " + log + " -- train pretrain", "/logs:/", "output to " + log}},
      {container + Words{"--", "--env", "UPSTREAMS_OWN", "--env", "A=1", "--"} + kTrain,
       {"direct --env A=1 -- train pretrain", "export A=1"}},
      {slurm + image + Words{"--clean", "--", "--numa", "--"} + kTrain, {"direct --numa -- train pretrain"}},
      {slurm + image + Words{"--log_file", "run.log", "--"} + kTrain, {"output to run.log"}},
      {slurm + Words{"direct", "--script", "./tool", "--single"}, {"./tool\n"}},
      {container + Words{"--", "--version"}, {"-- --version"}},
  };
  write_file(folder_.path() / "here/tool", "#!/bin/sh\n");
  std::filesystem::permissions(folder_.path() / "here/tool", std::filesystem::perms::owner_all);
  for (const Case& c : cases) {
    const ProgramResult result = run(c.words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const std::string& said : c.said) EXPECT_THAT(result.out, HasSubstr(said));
  }
  environment_["UPSTREAMS_OWN"] = "1";
  EXPECT_THAT(run(cases[3].words).out, HasSubstr("--env UPSTREAMS_OWN "));
  expect_refused(container + Words{"--", "--nmua", "--"} + kTrain, "did you mean '--numa'?");
  expect_refused(container + Words{"--", "direct", "--single"}, "has no command");
  expect_refused(container + Words{"--log_file", "/nowhere/run.log", "--"} + kTrain, "the folder '/nowhere'");
}

// Errors that the command would have in the container are found before anything starts.
TEST_F(Launch, PlansRefuseErrorsOfInnerModes) {
  tool("docker");
  tool("srun");
  const Words container = {"--dry-run", "container", "--image", "a/b:1", "--"};
  const Words slurm = {"--dry-run", "slurm", "srun", "-N", "2", "--", "direct", "--"};
  const Words nothing = {"train", "pretrain"};
  write_file(folder_.path() / "here/other.yaml",
             "work_group: a\nuser_name: b\nexp_name: c\nworkspace: ./output\nmodules:\n  pre_trainer:\n"
             "    framework: megatron\n    config: pre_trainer.yaml\n    model: llama3.1_8B.yaml\n"
             "    overrides: {mock_data: true, stage: sft}\n");
  for (const Words& chain : {Words{"--dry-run", "direct", "--"}, slurm, container}) {
    expect_refused(chain + nothing + Words{"--config", "nosuch.yaml"},
                   "there is no experiment 'nosuch.yaml'");
    expect_refused(chain + nothing, "there is neither an experiment nor a model");
    expect_refused(chain + Words{"preflight", "--qick"}, "'--qick' is not an option of preflight");
    expect_refused(chain + Words{"preflight", "nonsense"}, "'nonsense' is not an option of preflight");
    expect_refused(chain + Words{"preflight", "--dist-timeout-sec", "0"}, "not a time from 1 to 86400");
    expect_refused(chain + Words{"preflight", "--report-file-name", "a/b"}, "is not a file name");
    expect_refused(chain + nothing + Words{"--config", "other.yaml"}, "stage cannot be 'sft'");
    // Option values that are invalid on every machine.
    struct Case {
      Words words;
      std::string said;
    };
    const Words train = {"train", "--config", kExperiment}, data = {"data", "--config", kExperiment};
    for (const Case& c : std::initializer_list<Case>{
             {{"gemm", "--shape", "4x4"}, "'4x4' is not the shape of a matrix product"},
             {{"gemm", "--seconds", "0"}, "must be above 0"},
             {{"gemm", "--device", "CUDA!"}, "'CUDA!' is not a device name"},
             {{"gemm", "--threads", "-1"}, "--threads must be from 0"},
             {{"gemm", "--output", "a.txt"}, "does not have an ending that chooses a format"},
             {{"gemm", "--baseline", "keep", "a.json"}, "--baseline needs two words"},
             {{"gemm-dense", "--model", "llama3.1_8X"}, "llama3.1_8X"},
             {{"gemm-dense", "--mbs", "0"}, "0 sequences of"},
             {{"attention", "--mbs-list", "1,x"}, "'x' is not a number of sequences"},
             {{"attention", "--heads", "12"}, "not a multiple of"},
             {{"grouped-gemm", "--experts", "0"}, "the number of experts must be from 1"},
             {{"collectives", "--op", "all_redcue"}, "unknown collective operation"},
             {{"collectives", "--sizes", "1Q"}, "1Q"},
             {{"collectives", "--iters", "0"}, "--iters 0: not a number of calls"},
             {{"strided-allgather", "--stride", "0"}, "--stride must be"},
             {{"memory", "--sizes", "0"}, "--sizes"},
             {{"checkpoint", "--repeat", "0"}, "--repeat must be"},
             {{"decode", "--tokens", "0"}, "--tokens must be"},
             {train + Words{"--steps", "0"}, "--steps must be"},
             {train + Words{"lrr=3"}, "lrr"},
             {data + Words{"--seconds", "0"}, "must be above 0"},
         })
      expect_refused(chain + Words{"benchmark"} + c.words, c.said);
    // Files that may exist only on the nodes are not checked, except with `direct`, which runs here.
    for (const Words& words : {Words{"gemm-dense", "--model", "/on/the/nodes"},
                               {"attention", "--shapes-json-path", "/on/the/nodes.json"},
                               {"gemm", "--baseline", "compare", "/on/the/nodes.json"}}) {
      const ProgramResult result = run(chain + Words{"benchmark"} + words);
      EXPECT_EQ(result.exit_code, chain[1] == "direct" ? 2 : 0) << words[0] << result.err;
    }
  }
  expect_refused({"config", "validate", "--config", "other.yaml"}, "stage cannot be 'sft'");
  expect_refused({"--dry-run", "container", "--image", "a/b:1", "--foo", "bar", "--", "version"},
                 "has no option '--foo'");
  expect_refused({"--dry-run", "container", "--image", "a/b:1", "--numa", "--", "version"},
                 "container ... -- direct --numa");
  expect_refused({"--dry-run", "container", "--image", "a/b:1", "--volume", "/:/", "--", "version"},
                 "not '/:/'");
  const ProgramResult root = run_program({"--dry-run", "container", "--image", "a/b:1", "--", "version"},
                                         {.folder = "/", .environment = environment_});
  EXPECT_EQ(root.exit_code, 2);
  EXPECT_THAT(root.err, HasSubstr("the current folder"));
}

TEST_F(Launch, AnExperimentInAnotherFolderIsMounted) {
  tool("docker");
  write_file(folder_.path() / "exp.yaml", read_file(kExperiment));
  const ProgramResult result = run(
      {"--dry-run", "container", "--image", "a/b:1", "--", "train", "pretrain", "--config", "../exp.yaml"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string file = (std::filesystem::canonical(folder_.path()) / "exp.yaml").string();
  EXPECT_THAT(result.out, HasSubstr("--volume " + file + ":" + file + ":ro "));
}

TEST_F(Launch, MessagesNameReplacementsForMissingFeatures) {
  expect_refused({"--dry-run", "--config", "nosuch.yaml", "direct", "--", "version"}, "launcher settings");
  expect_refused({"projection", "memory"}, "--dry-run --hardware mi355x --world N");
  expect_refused({"data", "diffusion-cache"}, "it does not train diffusion models");
}

// ---- k8s -------------------------------------------------------------------------------------------

TEST_F(Launch, KubernetesManifests) {
  const std::vector<std::string> job = {"--image", "a/b:1",          "-N", "2", "--gpus-per-node",
                                        "8",       "--gpu-resource", "amd"};
  expect_golden(run(Words{"k8s"} + job + Words{"--"} + kTrain), "jobset");
  expect_golden(run(Words{"k8s",
                          "render",
                          "--kind",
                          "pytorchjob",
                          "--name",
                          "llama",
                          "--namespace",
                          "team",
                          "--queue",
                          "gpus",
                          "--env",
                          "A=b: 'c' $(X)",
                          "--secret",
                          "HF_TOKEN=hugging-face/token",
                          "--secret",
                          "more",
                          "--volume",
                          "pvc/data:/data",
                          "--volume",
                          "/nfs:/nfs:ro",
                          "--memory",
                          "128Gi",
                          "--service-account",
                          "trainer"} +
                    job + Words{"--", "direct", "--numa", "--"} + kTrain),
                "pytorchjob");
  expect_golden(run(Words{"--dry-run", "k8s", "--image", "a/b:1", "--", "version"}), "k8s_chain");
  expect_refused({"k8s", "--image", "a/b:1", "--env", "HF_TOKEN=x", "--", "version"},
                 "--secret HF_TOKEN=SECRET/KEY");
}

TEST_F(Launch, RdmaOnKubernetesLocksMemory) {
  const Words job = {"k8s", "--image", "a/b:1", "--rdma-resource", "rdma/hca", "--", "version"};
  EXPECT_THAT(run(job).out, AllOf(HasSubstr("rdma/hca: 1"), HasSubstr("- \"IPC_LOCK\"")));
  EXPECT_THAT(run(Words{"k8s", "--image", "a/b:1", "--", "version"}).out, Not(HasSubstr("IPC_LOCK")));
}

TEST_F(Launch, KubectlGetsTheManifestAndTheSecret) {
  const std::string inputs = (folder_.path() / "inputs").string();
  tool("kubectl", "case \"$1\" in get) exit 1;; esac; cat >> " + inputs + "; echo >> " + inputs);
  const std::vector<std::string> words =
      Words{"k8s", "apply", "--image", "a/b:1", "-N", "2", "--namespace", "team", "--"} + kTrain;
  ProgramResult result = run(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string given = read_file(inputs);
  EXPECT_THAT(given, AllOf(HasSubstr("\"kind\":\"Secret\""), HasSubstr("kind: \"JobSet\"")));
  EXPECT_TRUE(std::regex_search(given, std::regex("\"token\":\"[0-9a-f]{64}\"")));
  EXPECT_THAT(log("kubectl"), AllOf(HasSubstr("get\nsecret\nprimus-job-token\n--namespace\nteam\n"),
                                    HasSubstr("create\n-f\n-\n--namespace\nteam\n"),
                                    HasSubstr("apply\n-f\n-\n--namespace\nteam\n")));
  // An existing secret is kept.
  tool("kubectl", "cat >> " + inputs);
  std::filesystem::remove(inputs);
  EXPECT_EQ(run(words).exit_code, 0);
  EXPECT_THAT(read_file(inputs), Not(HasSubstr("\"kind\":\"Secret\"")));
}

TEST_F(Launch, KubernetesRefusesImpossibleOptions) {
  environment_["PATH"] = (folder_.path() / "bin").string();
  const std::vector<std::string> image = {"k8s", "--image", "a/b:1"};
  const std::vector<std::string> command = {"--", "version"};
  expect_refused({"k8s", "--", "version"}, "no image is named");
  expect_refused({"k8s", "aply", "--image", "a", "--", "version"}, "did you mean 'apply'?");
  expect_refused(image + Words{"--", "vresion"}, "did you mean 'version'?");
  expect_refused(image + Words{"--name", "Not_A_Name"} + command, "is not a valid Kubernetes name");
  expect_refused(image + Words{"--nodes", "0"} + command, "--nodes must be a number from 1");
  expect_refused(image + Words{"--gpus-per-node", "8"} + command, "--gpu-resource to amd, nvidia");
  expect_refused(image + Words{"--gpu-resource", "foo"} + command, "'foo' is not a Kubernetes resource");
  expect_refused(image + Words{"--rdma-resource", "hca"} + command, "write DOMAIN/NAME");
  expect_refused(image + Words{"--env", "HF_TOKEN=x"} + command, "HF_TOKEN is a secret");
  expect_refused(image + Words{"--secret", "HF_TOKEN=x"} + command, "NAME=SECRET/KEY");
  expect_refused(image + Words{"--volume", "data"} + command, "'data' is not a volume");
  expect_refused(image + Words{"apply"} + command, "kubectl is not installed here", 1);
  settings("k8s: {env: ['HF_TOKEN=x']}\n");
  expect_refused(image + command, "the manifest would show it");
}

}  // namespace
}  // namespace primus
