// Tests of checks before a job starts: missing subcommands, wrong values of options and settings, and missing
// files are refused. A request for a dry run anywhere in a chain starts no job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/launch_fixture.h"

namespace primus {
namespace {

using test::kExperiment;
using test::kTrain;
using test::ProgramResult;
using test::Words;
using test::operator+;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchValues : public test::LaunchFixture {
 protected:
  LaunchValues() {
    for (const char* name : {"srun", "sbatch", "docker", "kubectl"}) tool(name);
  }
  std::string started() const { return log("srun") + log("sbatch") + log("docker") + log("kubectl"); }
  ProgramResult planned(const Words& words) const {
    ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }
};

const Words kSrun = {"slurm", "srun", "-N", "2", "--", "direct", "--"};
const Words kDocker = {"container", "--image", "a/b:1", "--"};

// A group without a subcommand is refused. Otherwise the job would print the group's help and look
// successful.
TEST_F(LaunchValues, AGroupNeedsItsSubcommand) {
  for (const Words& chain : {kSrun, Words{"slurm", "sbatch", "-N2", "--", "direct", "--"},
                             Words{"slurm", "srun", "--", "container", "--"}, kDocker, Words{"direct", "--"},
                             Words{"direct", "--single", "--"}, Words{"k8s", "--image", "a/b:1", "--"},
                             Words{"k8s", "apply", "--image", "a/b:1", "--"}}) {
    for (const Words& dry : {Words{}, Words{"--dry-run"}}) {
      expect_refused(dry + chain + Words{"train"}, "'train' needs a subcommand");
      expect_refused(dry + chain + Words{"--debug", "data"}, "'data' needs a subcommand");
      expect_refused(dry + chain + Words{"benchmark", "--device", "cpu"}, "choose one of");
    }
  }
  EXPECT_EQ(started(), "");
  // If help is requested, it is printed.
  EXPECT_THAT(planned({"direct", "--", "train", "--help"}).out, HasSubstr("pretrain"));
  EXPECT_THAT(planned({"train"}).out, HasSubstr("pretrain"));
}

TEST_F(LaunchValues, ADryRunOfAnyModeStartsNoJob) {
  const auto expect_plan = [&](const Words& words, const std::string& said) {
    const ProgramResult result = planned(words);
    EXPECT_THAT(result.out, HasSubstr("1. ")) << words[0];
    EXPECT_THAT(result.err, AllOf(HasSubstr("note: nothing is run: "), HasSubstr(said)));
    EXPECT_EQ(started(), "") << words[0];
  };
  settings("main: {debug: false}\ndirect: {env: [A=1],\n  dry_run: true}\n");
  const Words batch = {"slurm", "sbatch", "--", "direct", "--"};
  for (const Words& chain : {kSrun, batch, kDocker, Words{"slurm", "srun", "--"}, Words{"direct", "--"}})
    expect_plan(chain + kTrain, ".primus.yaml:3:12 has direct.dry_run: true");
  settings("container: {dry_run: true}\n");
  expect_plan(Words{"slurm", "srun", "--", "container", "--"} + kTrain,
              ".primus.yaml:1:22 has container.dry_run: true");
  settings("slurm: {dry_run: true}\n");
  expect_plan(kSrun + kTrain, "has slurm.dry_run: true");
  settings("main: {dry_run: true}\n");
  expect_plan(kSrun + kTrain, "has main.dry_run: true");
  settings("{}\n");
  expect_plan(Words{"slurm", "srun", "--", "direct", "--dry-run", "--"} + kTrain,
              "--dry-run must come before 'direct'");
  expect_plan(Words{"slurm", "srun", "--", "container", "--dry-run", "--"} + kTrain,
              "--dry-run must come before 'container'");
  expect_plan(Words{"slurm", "srun", "--", "container", "--", "direct", "--dry-run", "--"} + kTrain,
              "--dry-run must come before 'direct'");
  expect_plan(Words{"k8s", "apply", "--image", "a/b:1", "--", "direct", "--dry-run", "--"} + kTrain,
              "--dry-run must come before 'direct'");
  write_file(folder_.path() / "here/within.yaml", "direct: {dry_run: true}\n");
  expect_plan(Words{"slurm", "srun", "--", "direct", "--config", "within.yaml", "--"} + kTrain,
              "within.yaml:1:19 has direct.dry_run: true");
  // A setting of a mode that is not in the chain has no effect.
  settings("container: {dry_run: true}\n");
  planned(kSrun + kTrain);
  EXPECT_NE(started(), "");
}

TEST_F(LaunchValues, InvalidValuesOfOptionsAreRefused) {
  const auto with = [](const Words& mode, const Words& options, const Words& rest) {
    return mode + options + rest;
  };
  struct Case {
    Words options;
    std::string said;
  };
  for (const Case& c : {Case{{"-N", "two"}, "-N of srun must be a number of nodes"},
                        {{"-t", "abc"}, "-t of srun must be a duration"},
                        {{"--mem=64X"}, "--mem of srun must be a size"},
                        {{"--cpus-per-task", "1.5"}, "must be a number of at least 1"},
                        {{"--gpus-per-node=-1"}, "must be a number of GPUs"},
                        {{"--multi-prog"}, "remove it"},
                        {{"--requeue"}, "which belongs to sbatch"},
                        {{"--wait-all-nodes=1"}, "which belongs to sbatch"}})
    for (const Words& dry : {Words{}, Words{"--dry-run"}})
      expect_refused(dry + with({"slurm", "srun"}, c.options, {"--", "direct", "--", "version"}), c.said);
  for (const Case& c : {Case{{"--shm-size", "foo"}, "--shm-size must be a size"},
                        {{"--memory", "lots"}, "--memory must be a size"},
                        {{"--cpus", "two"}, "--cpus must be a number of cores"},
                        {{"--image", "A B"}, "--image must be an image"},
                        {{"--volume", "/tmp:/data:foo"}, "--volume must be"},
                        {{"--publish", "x:80"}, "--publish of the container's runtime must be"},
                        {{"--ulimit", "nofile"}, "--ulimit of the container's runtime must be"},
                        {{"--cap-add", "FOO"}, "--cap-add must be a capability"},
                        {{"--env-file", "nofile"}, "must be a file of this machine"},
                        {{"--restart", "always"}, "--restart of the container's runtime must be one of no"}})
    for (const Words& chain : {Words{"container"}, Words{"slurm", "srun", "--", "container"}})
      expect_refused(with(chain, c.options, {"--", "version"}), c.said);
  for (const Case& c : {Case{{"--memory", "64GB"}, "--memory must be a quantity"},
                        {{"--cpus", "two"}, "--cpus must be a quantity"},
                        {{"--shm-size", "foo"}, "--shm-size must be a quantity"},
                        {{"--image", "A/b"}, "--image must be an image"},
                        {{"--queue", "My Queue"}, "--queue must be a name"},
                        {{"--topology-key", "a/b/c"}, "--topology-key must be the name of a label"}})
    expect_refused(with({"k8s"}, c.options, {"--", "version"}), c.said);
  EXPECT_EQ(started(), "");
}

TEST_F(LaunchValues, InvalidValuesOfSettingsAreRefusedWithTheirLocation) {
  struct Case {
    std::string yaml, said;
  };
  for (const Case& c :
       {Case{"slurm:\n  nodes: two\n", ".primus.yaml:2:10: error: nodes must be a number of nodes"},
        {"slurm: {time: abc}\n", ".primus.yaml:1:15: error: time must be a duration"},
        {"slurm: {mem: 64X}\n", "mem must be a size"},
        {"slurm: {exclusive: maybe}\n", "exclusive must be one of user, mcs, topo"},
        {"slurm: {exclusive: yes}\n", "write true or false"},
        {"container: {options: {shm-size: foo}}\n", ".primus.yaml:1:33: error: shm-size must be a size"},
        {"container: {options: {ulimit: [nofile=1:2, nofile]}}\n", ":1:44: error: ulimit must be NAME="},
        {"container: {options: {image: 'A B'}}\n", "image must be an image"},
        {"k8s: {memory: 64GB}\n", ".primus.yaml:1:15: error: memory must be a quantity"},
        {"k8s: {cpus: two}\n", "cpus must be a quantity"},
        {"k8s: {topology_key: a/b/c}\n", "topology_key must be"},
        {"k8s: {volumes: [pvc/data:/data, data]}\n", ":1:33: error: volumes must be"},
        {"k8s: {secrets: [HF_TOKEN=x]}\n", "secrets must be NAME=SECRET/KEY"},
        {"k8s: {rdma_resource: hca}\n", "rdma_resource must be DOMAIN/NAME"}}) {
    settings(c.yaml);
    for (const Words& chain : {kSrun, kDocker, Words{"direct", "--"}})
      expect_refused(Words{"--dry-run"} + chain + Words{"version"}, c.said);
  }
  settings(
      "slurm: {nodes: 2-4, time: 1-12:00:00, mem: 64G, exclusive: true, signal: 'B:USR1@60', gpus-per-node: "
      "'a100:8'}\n"
      "container: {options: {image: a/b:1, shm-size: 64g, cpus: 1.5, ulimit: [memlock=-1, "
      "'stack=67108864'],\n"
      "  publish: '8080:80'}}\nk8s: {memory: 1Ti, cpus: '96', shm_size: 64Gi}\n");
  planned({"--dry-run", "slurm", "sbatch", "--", "version"});
}

// Settings apply to srun and sbatch. With sbatch, options that only srun has go to the job's step.
TEST_F(LaunchValues, OptionsOfSrunApplyToTheStepOfABatchJob) {
  settings("slurm: {nodes: 2, label: true, mpi: none, wait: 30, requeue: true}\n");
  const ProgramResult batch = planned(Words{"--dry-run", "slurm", "sbatch", "--", "direct", "--"} + kTrain);
  EXPECT_THAT(batch.out,
              AllOf(HasSubstr("\n   sbatch --nodes=2 --requeue --ntasks-per-node=1"),
                    HasSubstr("srun --label --mpi=none --wait=30 --ntasks-per-node=1 --kill-on-bad-exit=1")));
  const ProgramResult now = planned(Words{"--dry-run", "slurm", "srun", "--", "direct", "--"} + kTrain);
  EXPECT_THAT(now.out,
              AllOf(HasSubstr("without --requeue of the settings, which only sbatch has"),
                    HasSubstr("\n   srun --nodes=2 --label --mpi=none --wait=30 --ntasks-per-node=1")));
  settings("slurm: {wait: true}\n");
  EXPECT_THAT(planned({"--dry-run", "slurm", "sbatch", "--", "direct", "--", "version"}).out,
              HasSubstr("\n   sbatch --wait --ntasks-per-node=1\n"));
  EXPECT_THAT(planned({"--dry-run", "slurm", "srun", "--", "direct", "--", "version"}).out,
              HasSubstr("without --wait of the settings"));
}

// By default srun waits for ever for a node that died and came back, so --wait is passed (slurm_test.cpp).
TEST_F(LaunchValues, AStepDoesNotWaitForLostRanks) {
  const Words batch = {"--dry-run", "slurm", "sbatch", "-N2", "--", "direct"};
  EXPECT_THAT(planned(batch + Words{"--"} + kTrain).out, HasSubstr(" --kill-on-bad-exit=1 --wait=60 "));
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + kTrain).out, HasSubstr(" --wait=60 "));
  write_file(folder_.path() / "here/job.py", "");
  EXPECT_THAT(planned(batch + Words{"--script", "job.py", "--", "--steps", "3"}).out,
              HasSubstr(" --wait=600 "));
  EXPECT_THAT(
      planned(Words{"--dry-run", "slurm", "srun", "-N2", "--wait=5", "--", "direct", "--"} + kTrain).out,
      AllOf(HasSubstr(" --wait=5 "), Not(HasSubstr("--wait=60"))));
  // Separate processes run independently: a failing process does not end the other processes.
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + Words{"benchmark", "gemm"}).out,
              Not(AnyOf(HasSubstr("--wait"), HasSubstr("--kill-on-bad-exit"))));
  environment_["SLURM_WAIT"] = "7";
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + kTrain).out, Not(HasSubstr("--wait")));
}

TEST_F(LaunchValues, InvalidValuesOfCommandsAreRefused) {
  struct Case {
    Words command;
    std::string said;
  };
  const std::string model = PRIMUS_SOURCE_DIR "/tests/golden/models/llama";
  for (const Case& c :
       {Case{{"preflight", "--tests", "nonsense"}, "there is no test 'nonsense'"},
        {{"preflight", "--comm-sizes-mb", "x"}, "'x' is not a number"},
        {{"preflight", "--device", "nosuch"}, "unknown kind of device 'nosuch'"},
        {{"preflight", "--expected-gpus", "-1"}, "--expected-gpus must be"},
        {{"preflight", "--root", "nowhere"}, "--root: there is no 'nowhere'"},
        {{"preflight", "--config", kExperiment, "lrr=3"}, "lrr"},
        {{"node_smoke", "--hbm-gbs-min", "3"}, "only with --tier2-perf"},
        {{"node_smoke", "--expected-nodelist-file", "nofile"}, "there is no 'nofile'"},
        {{"benchmark", "gemm", "--baseline", "compare", "nofile"}, "--baseline: there is no 'nofile'"},
        {{"benchmark", "attention", "--shapes-json-path", "nofile"}, "there is no 'nofile'"},
        {{"eval", "loss", model, "--data", "x", "--device", "no such"}, "is not a device name"},
        {{"generate", "nosuchmodel"}, "MODEL: there is no 'nosuchmodel'"},
        {{"generate", model, "--prompt-file", "nofile"}, "--prompt-file: there is no 'nofile'"},
        {kTrain + Words{"--backend_path", "../nosuch"}, "there is no '../nosuch'"},
        {kTrain + Words{"device=nosuch"}, "unknown kind of device"}})
    for (const Words& chain :
         {kSrun, kDocker, Words{"direct", "--"}, Words{"slurm", "sbatch", "--", "direct", "--"}})
      for (const Words& dry : {Words{}, Words{"--dry-run"}}) {
        // Skipped: without --dry-run, `direct` starts the command, which then refuses the value itself.
        if (dry.empty() && chain[0] == "direct") continue;
        expect_refused(dry + chain + c.command, c.said);
      }
  EXPECT_EQ(started(), "");
}

TEST_F(LaunchValues, AVariableOfAPodHasOneValue) {
  const auto k8s = [](const std::string& inner) {
    return Words{"--dry-run", "k8s",    "--image", "a/b:1", "--env", "FOO=x",
                 "--",        "direct", "--env",   inner,   "--"};
  };
  expect_refused(k8s("FOO=y") + kTrain, "--env sets FOO for the container and for 'direct'");
  planned(k8s("FOO=x") + kTrain);
}

TEST_F(LaunchValues, LostOutputOfPodsIsNoted) {
  environment_["NNODES"] = "7";
  const ProgramResult plan = planned(Words{"--dry-run", "k8s", "--image", "a/b:1", "--", "direct",
                                           "--log_file", "/x/y.log", "--silent", "--"} +
                                     kTrain);
  EXPECT_THAT(plan.out, AllOf(HasSubstr("the log file '/x/y.log' is in no volume"),
                              HasSubstr("'kubectl logs' does not show the output"),
                              HasSubstr("NNODES=7 of the environment is not used")));
}

// Each of two processes has its own baseline file with its number in the name. One such file is enough for
// the check.
TEST_F(LaunchValues, BaselinesOfSeveralProcessesAreFound) {
  const Words compare = kSrun + Words{"benchmark", "gemm", "--baseline", "compare", "b.json"};
  const Path here = folder_.path() / "here";
  for (const char* other : {"b.x-of-2.json", "b.0-of-2.csv", "c.0-of-2.json", "b..json"})
    write_file(here / other, "{}");
  expect_refused(Words{"--dry-run"} + compare, "--baseline: there is no 'b.json'");
  write_file(here / "b.0-of-2.json", "{}");
  planned(Words{"--dry-run"} + compare);
  planned(compare);
  EXPECT_NE(started(), "");
}

// Errors that would occur on the nodes, in the launchers or in the command, are reported before the launch.
TEST_F(LaunchValues, ErrorsThatNodesWouldReportAreReportedEarly) {
  make_folders(folder_.path() / "here/sources");
  const Words direct = {"slurm", "srun", "-N2", "--", "direct"};
  for (const Words& dry : {Words{}, Words{"--dry-run"}}) {
    expect_refused(
        dry + Words{"slurm", "srun", "-N2", "--ntasks-per-node=2", "--", "container", "--"} + kTrain,
        "one container runs all ranks of its node");
    expect_refused(dry + Words{"container", "-d", "--image", "a/b:1", "--"} + kTrain,
                   "--detach does not wait");
    expect_refused(dry + direct + Words{"--env", "MASTER_PORT=x", "--"} + kTrain, "MASTER_PORT");
    expect_refused(dry + direct + Words{"--env", "RUN_MODE=x", "--"} + kTrain, "RUN_MODE");
    expect_refused(dry + Words{"slurm", "srun", "--", "container", "--env", "NNODES=x", "--"} + kTrain,
                   "NNODES");
    expect_refused(
        dry + Words{"slurm", "srun", "-N1", "--", "container", "--env", "GPUS_PER_NODE=7", "--"} + kTrain,
        "times 7 data-parallel ranks");
    for (const auto& [words, said] : std::vector<std::pair<Words, std::string>>{
             {{"--backend_path", "sources"}, "this run is native"},
             {{"--fit-memory", "much"}, "much"},
             {{"--world", "4"}, "--world needs --dry-run"},
             {{"--backend", "megatron", "--force"}, "--force is for the native engine"}})
      expect_refused(dry + direct + Words{"--"} + kTrain + words, said);
  }
  EXPECT_EQ(started(), "");
  const Words single = Words{"--dry-run"} + direct + Words{"--env", "RUN_MODE=single", "--"} + kTrain;
  EXPECT_THAT(planned(single).out, Not(HasSubstr("--nproc")));
}

// Missing inputs are named as in a dry run of the command. srun's nodes are assumed to share this folder, but
// not paths outside it.
TEST_F(LaunchValues, MissingInputsAreNamed) {
  const Words inputs = {"mock_data=false", "data_path=gone/text", "load=/nodes/model",
                        "tokenizer_type=HuggingFaceTokenizer", "tokenizer_model=gone/tokenizer"};
  const std::string plan = planned(Words{"--dry-run"} + kSrun + kTrain + inputs).out;
  EXPECT_THAT(
      plan,
      AllOf(HasSubstr("data_path is 'gone/text' (command line), which does not exist: training will need it"),
            HasSubstr("tokenizer_model is 'gone/tokenizer' (command line), which does not exist"),
            HasSubstr("load '/nodes/model' was not checked, because the job reads it on its nodes")));
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + kTrain).out, Not(HasSubstr("is not there")));
  // A patch may create the inputs, so they are not checked.
  const std::string with_hooks =
      planned(Words{"--dry-run", "slurm", "srun", "--", "direct", "--patch", "/nodes/p.sh", "--"} + kTrain +
              inputs)
          .out;
  EXPECT_THAT(with_hooks, Not(HasSubstr("which does not exist"))) << "a patch may create them";
}

TEST_F(LaunchValues, FilesThatOnlyTheNodesHaveAreNamed) {
  const auto expect_note = [&](const Words& words, const std::string& said) {
    EXPECT_THAT(planned(Words{"--dry-run"} + words).out, HasSubstr(said));
  };
  const std::string there = " was not checked, because the job reads it on its nodes";
  expect_note(kSrun + Words{"train", "pretrain", "--config", "/nodes/exp.yaml"},
              "the experiment '/nodes/exp.yaml'" + there);
  expect_note(kSrun + Words{"benchmark", "gemm", "--baseline", "compare", "/nodes/a.json"},
              "--baseline '/nodes/a.json'" + there);
  expect_note(kDocker + Words{"benchmark", "attention", "--shapes-json-path", "/image/a.json"},
              "'/image/a.json'" + there);
  expect_note(Words{"slurm", "srun", "--", "direct", "--script", "/nodes/job.py", "--"},
              "--script '/nodes/job.py'" + there);
  expect_note(Words{"slurm", "srun", "--", "direct", "--patch", "/nodes/p.sh", "--"} + kTrain,
              "--patch '/nodes/p.sh'" + there);
  expect_note(Words{"slurm", "srun", "--", "direct", "--hooks", "/nodes/h", "--"} + kTrain,
              "--hooks '/nodes/h'" + there);
  expect_note(Words{"slurm", "srun", "--", "direct", "--env", "/nodes/env", "--"} + kTrain,
              "--env '/nodes/env'" + there);
  // Files in this folder must exist, because the nodes share it.
  for (const char* option : {"--script", "--patch", "--hooks", "--env"})
    for (const std::string& file :
         {std::string("nowhere"), (std::filesystem::canonical(folder_.path()) / "here/nowhere").string()})
      expect_refused(Words{"slurm", "srun", "--", "direct", option, file, "--"} + kTrain,
                     "there is no '" + file + "'");
  // With --chdir, a relative path may name a file in another folder, so only a note appears.
  expect_note(Words{"slurm", "srun", "--chdir=/elsewhere", "--", "direct", "--patch", "p.sh", "--"} + kTrain,
              "--patch 'p.sh'" + there);
  EXPECT_EQ(started(), "");
}

// A relative name is a file of the job's folder, not of the current one.
TEST_F(LaunchValues, FilesOfTheJobsFolderAreChecked) {
  const Path here = folder_.path() / "here";
  make_folders(here / "full");
  make_folders(here / "empty");
  const Words train = {"train", "pretrain", "--config", "exp.yaml", "micro_batch_size=1"};
  const Words wrong = train + Words{"global_batch_size=193"};
  const auto srun = [](const std::string& folder) {
    return Words{"--dry-run", "slurm",           "srun", "-N", "2", "--chdir=" + folder, "--", "direct",
                 "--env",     "GPUS_PER_NODE=2", "--"};
  };
  const Words docker = {"--dry-run", "container", "--image",         "a/b:1", "--workdir",
                        "/nowhere",  "--env",     "GPUS_PER_NODE=2", "--"};
  const std::string note = "the experiment 'exp.yaml' was not checked, because the job reads it on its nodes";
  for (const bool is_here : {false, true}) {
    if (is_here) write_file(here / "exp.yaml", read_file(kExperiment));
    EXPECT_THAT(planned(srun("/nowhere") + wrong).out, HasSubstr(note)) << is_here;
    EXPECT_THAT(planned(srun("empty") + wrong).out, HasSubstr(note)) << is_here;
    EXPECT_THAT(planned(docker + wrong).out, HasSubstr(note)) << is_here;
  }
  write_file(here / "exp.yaml", "modules: [");
  write_file(here / "full/exp.yaml", read_file(kExperiment));
  for (const std::string& folder : {std::string("full"), (here / "full").string()}) {
    expect_refused(srun(folder) + wrong, "193");
    EXPECT_THAT(planned(srun(folder) + train + Words{"global_batch_size=192"}).out, Not(HasSubstr(note)));
  }
  // A file in the current folder is not used instead of a file in the job's folder.
  write_file(here / "p.sh", "");
  EXPECT_THAT(planned(Words{"--dry-run", "slurm", "srun", "--chdir=/nowhere", "--", "direct", "--patch",
                            "p.sh", "--"} +
                      kTrain)
                  .out,
              HasSubstr("--patch 'p.sh' was not checked"));
  EXPECT_EQ(started(), "");
}

// Every user of a machine can read the command line of srun or docker.
TEST_F(LaunchValues, OptionsOfOtherProgramsContainNoSecret) {
  const std::string token = "HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678";
  for (const char* tool : {"srun", "sbatch"}) {
    const Words begin = {"--dry-run", "slurm", tool, "-N", "2"}, end = {"--", "direct", "--"};
    expect_refused(begin + Words{"--export=ALL," + token} + end + kTrain, "--export: HF_TOKEN is a secret");
    expect_refused(begin + Words{"--export=ALL,WANDB_API_KEY=0123"} + end + kTrain,
                   "export WANDB_API_KEY in this shell first");
    expect_refused(begin + Words{"--comment=" + token.substr(9)} + end + kTrain,
                   "--comment: the value is a secret");
  }
  expect_refused({"--dry-run", "container", "--image", "a/b:1", "--label", token, "--", "version"},
                 "--label: HF_TOKEN is a secret");
  settings("slurm: {export: 'ALL," + token + "'}\n");
  expect_refused(Words{"--dry-run"} + kSrun + kTrain, "--export: HF_TOKEN is a secret");
  EXPECT_EQ(started(), "");
}

// The words of the command appear on the command lines of srun, of docker and of each node, and in manifests.
TEST_F(LaunchValues, SettingsOfACommandContainNoSecret) {
  const std::string value = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678";
  const Words starts[] = {{"direct", "--"},
                          {"slurm", "srun", "-N", "2", "--", "direct", "--"},
                          {"slurm", "sbatch", "-N", "2", "--", "direct", "--"},
                          {"slurm", "srun", "-N", "2", "--", "container", "--image", "a/b:1", "--"},
                          {"container", "--image", "a/b:1", "--"},
                          {"k8s", "--image", "a/b:1", "--"},
                          {"k8s", "--image", "a/b:1", "--", "direct", "--"}};
  for (const Words& start : starts) {
    for (const Words& dry_run : {Words{"--dry-run"}, Words{}}) {
      const std::string refusal = "env.HF_TOKEN: the value is a secret";
      expect_refused(dry_run + start + kTrain + Words{"env.HF_TOKEN=" + value}, refusal);
      expect_refused(dry_run + start + kTrain + Words{"--env.HF_TOKEN", "x"}, refusal);
      expect_refused(dry_run + start + kTrain + Words{"hf_access_token=" + value},
                     "hf_access_token: the value is a secret");
      expect_refused(dry_run + start + kTrain + Words{"load=https://me:" + value + "@host/model"},
                     "load: the value is a secret");
    }
  }
  const ProgramResult result =
      run(Words{"--dry-run", "direct", "--"} + kTrain + Words{"env.OMP_NUM_THREADS=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(started(), "");
}

class LaunchedExperiment : public LaunchValues {
 protected:
  // Writes a file of the working folder.
  void file(const std::string& name, const std::string& text) const {
    const Path path = folder_.path() / "here" / name;
    make_folders(path.parent_path());
    write_file(path, text);
  }
  Words train(const std::string& config, const Words& overrides = {}) const {
    return Words{"train", "pretrain", "--config", config, "micro_batch_size=1"} + overrides;
  }
  void experiment_with_placeholders() const {
    file("ph.yaml", "extends: " + kExperiment +
                        "\nmodules: {pre_trainer: {overrides: {lr: \"${LR:2.0e-3}\", global_batch_size: "
                        "\"${GBS:16}\"}}}\n");
  }
};

TEST_F(LaunchedExperiment, AContainerGetsTheVariablesThatTheExperimentReads) {
  experiment_with_placeholders();
  environment_["LR"] = "0.5";
  const Words words = train("ph.yaml");
  const auto passes = HasSubstr(" --env LR ");
  EXPECT_THAT(planned(Words{"--dry-run"} + kDocker + words).out, AllOf(passes, Not(HasSubstr("--env GBS"))));
  EXPECT_THAT(
      planned({Words{"--dry-run", "slurm", "srun", "-N", "2", "--", "container", "--image", "a/b:1", "--"} +
               words})
          .out,
      passes);
  const Words other = {"--dry-run", "container", "--image", "a/b:1", "--env", "LR=0.25", "--"};
  EXPECT_THAT(planned(other + words).out, AllOf(HasSubstr("--env LR=0.25"), Not(passes)));
}

TEST_F(LaunchedExperiment, APodGetsTheVariablesThatTheExperimentReads) {
  experiment_with_placeholders();
  environment_["LR"] = "0.5";
  const Words pod = {"--dry-run", "k8s", "--image", "a/b:1", "--gpu-resource", "none", "--"};
  const ProgramResult plan = planned(pod + train("ph.yaml"));
  EXPECT_THAT(plan.out, AllOf(HasSubstr("- name: \"LR\""), HasSubstr("value: \"0.5\""),
                              HasSubstr("the pods get these variables of this shell, which the experiment "
                                        "reads: LR")));
  // A manifest contains no secret.
  environment_["LR"] = "2.0e-3";
  environment_["MY_TOKEN"] = "word";
  file("secret.yaml", "extends: ph.yaml\nenv: {MY_TOKEN: \"${MY_TOKEN:}\"}\n");
  EXPECT_THAT(planned(pod + train("secret.yaml")).out,
              AllOf(HasSubstr("--secret MY_TOKEN=SECRET/KEY"), Not(HasSubstr("word"))));
}

TEST_F(LaunchedExperiment, APlanNotesARunFolderThatIsLostWithTheContainer) {
  const auto plan = [&](const Words& options, const Words& overrides) {
    return planned(Words{"--dry-run", "container", "--image", "a/b:1"} + options + Words{"--"} + kTrain +
                   overrides)
        .out;
  };
  const std::string here = std::filesystem::canonical(folder_.path() / "here").string();
  const auto lost = HasSubstr("is in no volume of the container, so its logs and checkpoints are lost");
  EXPECT_THAT(plan({}, {}), Not(lost));
  EXPECT_THAT(plan({}, {"workspace=/scratch/out"}), lost);
  EXPECT_THAT(plan({}, {"workspace=../out"}), lost);
  EXPECT_THAT(plan({"--workdir", "/w"}, {}), lost);
  EXPECT_THAT(plan({"--volume", here + ":/w", "--workdir", "/w"}, {}), Not(lost));
  EXPECT_THAT(plan({"--volume", here + ":" + here + ":ro"}, {}),
              HasSubstr("the volume " + here + " is read-only"));
}

TEST_F(LaunchedExperiment, APlanNotesARunFolderThatIsLostWithThePod) {
  const auto plan = [&](const std::string& volume, const Words& overrides) {
    return planned(Words{"--dry-run", "k8s", "--image", "a/b:1", "--gpu-resource", "none", "--volume", volume,
                         "--"} +
                   kTrain + overrides)
        .out;
  };
  const auto lost = HasSubstr("is in no volume of the pod, so its logs and checkpoints are lost");
  EXPECT_THAT(plan("pvc/data:/data", {}), AllOf(lost, HasSubstr("such as workspace=/data/output")));
  EXPECT_THAT(plan("pvc/data:/data", {"workspace=/data/out"}), Not(lost));
  EXPECT_THAT(plan("pvc/data:/data:ro", {"workspace=/data/out"}), HasSubstr("the volume /data is read-only"));
}

TEST_F(LaunchedExperiment, AContainerGetsTheFilesOutsideTheCurrentFolder) {
  const Path outside = folder_.path() / "outside";
  make_folders(outside / "hk");
  for (const char* name : {"p0.sh", "job.py", "v.env"}) write_file(outside / name, "");
  write_file(outside / "base.yaml", "extends: " + kExperiment + "\n");
  write_file(outside / "a.yaml", "extends: base.yaml\n");
  const std::string shown = std::filesystem::canonical(outside).string() + "/";
  const auto mounts = [&](const std::string& name) { return HasSubstr(shown + name + ":ro"); };
  const ProgramResult plan = planned(Words{"--dry-run"} + kDocker +
                                     Words{"direct", "--patch", "../outside/p0.sh", "--hooks",
                                           "../outside/hk", "--env", "../outside/v.env", "--"} +
                                     train("../outside/a.yaml"));
  EXPECT_THAT(plan.out,
              AllOf(mounts("p0.sh"), mounts("hk"), mounts("v.env"), mounts("a.yaml"), mounts("base.yaml")));
  EXPECT_THAT(
      planned(Words{"--dry-run"} + kDocker + Words{"direct", "--script", "../outside/job.py", "--"}).out,
      AllOf(mounts("job.py"), HasSubstr("--master_addr localhost --master_port 1234")));
  EXPECT_THAT(planned(Words{"--dry-run"} + kDocker + Words{"generate", "../outside/hk", "--prompt", "x"}).out,
              mounts("hk"));
}

TEST_F(LaunchedExperiment, APlanHasTheNotesOfTheExperiment) {
  const Words saves_nothing = {"disable_last_saving=true", "save_interval=20000"};
  const auto notes = HasSubstr("no checkpoint is written: disable_last_saving is true");
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + kTrain + saves_nothing).out, notes);
  EXPECT_THAT(planned(Words{"--dry-run", "direct", "--"} + kTrain + saves_nothing).out, notes);
  file("megatron.yaml", "extends: " + kExperiment + "\nmodules: {pre_trainer: {framework: megatron}}\n");
  EXPECT_THAT(
      planned({Words{"--dry-run", "slurm", "srun", "-N", "2", "--gpus-per-node=8", "--", "direct", "--"} +
               train("megatron.yaml", {"tensor_model_parallel_size=3"})})
          .out,
      HasSubstr("Megatron-LM will refuse this"));
}

TEST_F(LaunchedExperiment, APlanNotesMissingInputsInEveryMode) {
  const Words absent = {"load=nomodel"};
  const auto noted = HasSubstr("load is 'nomodel' (command line), which does not exist");
  EXPECT_THAT(planned(Words{"--dry-run", "direct", "--"} + kTrain + absent).out, noted);
  const Words batch = {"--dry-run", "slurm", "sbatch", "-N", "2", "--gpus-per-node=2", "--", "direct", "--"};
  EXPECT_THAT(planned(batch + Words{"train", "pretrain", "load=nomodel", "data_path=nofile"}).out,
              AllOf(noted, HasSubstr("'nofile'")));
  expect_refused(
      batch + Words{"train", "pretrain", "load=nomodel", "data_path=a.txt", "tensor_model_parallel_size=3"},
      "tensor_model_parallel_size");
}

TEST_F(LaunchedExperiment, PosttrainDoesNotPreTrainWithAnotherFramework) {
  expect_refused({"train", "posttrain", "--config", kExperiment, "--backend", "megatron", "--dry-run"},
                 "'train posttrain' fine-tunes with framework: native; with megatron it would pre-train");
}

constexpr const char* kMaxText =
    "work_group: g\nuser_name: u\nexp_name: x\nworkspace: ./output\nmodules:\n  pre_trainer:\n"
    "    framework: maxtext\n    config: pre_trainer.yaml\n    model: llama3_8B.yaml\n    overrides: {}\n";

TEST_F(LaunchedExperiment, MaxTextStartsOneProcessPerNode) {
  file("mx.yaml", kMaxText);
  environment_["GPUS_PER_NODE"] = "8";
  const Words words = {"train", "pretrain", "--config", "mx.yaml"};
  EXPECT_THAT(planned(Words{"--dry-run"} + kSrun + words).out,
              AllOf(HasSubstr("node 1: RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"),
                    HasSubstr("MaxText runs one process per node"), Not(HasSubstr("RANK=0..7"))));
  EXPECT_THAT(planned({Words{"--dry-run", "slurm", "srun", "-N", "2", "--", "container", "--"} + words}).out,
              AllOf(HasSubstr("AMD GPUs use rocm/jax-training:maxtext-v26.8"),
                    HasSubstr("has no Python, which maxtext needs")));
}

TEST_F(LaunchedExperiment, TheCommandLineOfMaxTextAcceptsTrainIters) {
  file("mx.yaml", kMaxText);
  const Words plan = {"train", "pretrain", "--config", "mx.yaml", "--dry-run"};
  const ProgramResult result = planned(plan + Words{"train_iters=5"});
  EXPECT_THAT(result.out, HasSubstr("steps"));
  EXPECT_THAT(result.out, testing::ContainsRegex("steps[=:] ?5"));
  expect_refused(plan + Words{"lr_warmup_iters=3"}, "use the settings of maxtext instead, such as steps=100");
  EXPECT_THAT(planned(plan + Words{"steps=9", "train_iters=8"}).err,
              HasSubstr("train_iters and steps are one setting: the value 8 of train_iters is used, not 9"));
}

TEST_F(LaunchValues, AContainerWithAmdGpusHasNoOptionForNvidiaGpus) {
  expect_refused({"--dry-run", "slurm", "srun", "-N", "2", "--", "container", "--accelerator", "amd",
                  "--image", "a/b:1", "--gpus", "2", "--", "version"},
                 "--gpus=2 selects NVIDIA GPUs, but the container gets AMD GPUs");
}

TEST_F(LaunchValues, AFileOfTheRuntimeDoesNotSetVariablesOfTheLauncher) {
  write_file(folder_.path() / "here/v.env", "A=1\nGPUS_PER_NODE=4\n");
  expect_refused({"--dry-run", "container", "--image", "a/b:1", "--env-file", "v.env", "--", "version"},
                 "v.env:2: error: --env-file sets GPUS_PER_NODE");
}

TEST_F(LaunchValues, KubernetesUnitsAreNotThoseOfDocker) {
  const auto refused = [&](const Words& options, const std::string& said) {
    expect_refused(Words{"--dry-run", "k8s", "--image", "a/b:1", "--gpu-resource", "none"} + options +
                       Words{"--"} + kTrain,
                   said);
  };
  refused({"--shm-size", "64m"}, "--shm-size is 64m, which is 0.064 bytes in Kubernetes");
  refused({"--memory", "64m"}, "write a unit of Kubernetes: 64Mi or 64Gi");
  refused({"--memory", "64"}, "--memory is 64, which is 64 bytes in Kubernetes");
  refused({"--cpus", "1Gi"}, "--cpus is 1Gi");
}

// A mistyped name of a shared disk would otherwise become a folder of the local disk.
TEST_F(LaunchValues, PreflightMeasuresOnlyAnExistingFolder) {
  const std::string absent = (folder_.path() / "nosuch/deeper").string();
  const Words words = {"preflight", "--tests", "storage", "--device", "cpu", "--storage-path", absent};
  expect_refused(words, "--storage-path: there is no folder '" + absent + "'");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "nosuch"));
  expect_refused(Words{"--dry-run", "direct", "--"} + words, "--storage-path: there is no '" + absent + "'");
}

TEST_F(LaunchValues, APodGetsNoVariableByName) {
  expect_refused(Words{"--dry-run", "k8s", "--image", "a/b:1", "--env", "HF_TOKEN", "--"} + kTrain,
                 "--secret HF_TOKEN=SECRET/KEY");
}

TEST_F(LaunchValues, ANetworkOfOneHostIsNotedForSeveralNodes) {
  EXPECT_THAT(planned({Words{"--dry-run", "slurm", "srun", "-N", "2", "--", "container", "--image", "a/b:1",
                             "--network", "bridge", "--"} +
                       kTrain})
                  .out,
              HasSubstr("--network bridge: the ranks of different nodes cannot reach each other"));
}

TEST_F(LaunchValues, EachTaskOfASingleCommandRunsSeparately) {
  EXPECT_THAT(planned({Words{"--dry-run", "slurm", "srun", "-N", "2", "--ntasks-per-node=8", "--", "direct",
                             "--single", "--"} +
                       kTrain})
                  .out,
              HasSubstr("each of the 16 tasks runs the command separately"));
}

}  // namespace
}  // namespace primus
