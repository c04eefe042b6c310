// Tests of `primus train pretrain` with another framework, and of `primus deps`. A shell script replaces
// Python, and local repositories replace remote ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../cli/program.h"
#include "backends/dependencies.h"
#include "comm/rendezvous/socket.h"
#include "support.h"

namespace primus::backends {
namespace {

using test::ProgramOptions;
using test::ProgramResult;
using test::TemporaryFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void write(const Path& path, const std::string& text, bool executable = false) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
  if (executable) std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

std::string read(const Path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int lines_of(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

// A stand-in for Megatron-LM, and for Python: a script that logs its arguments and prints twenty steps on the
// last rank.
struct FakeMegatron {
  TemporaryFolder folder;
  Path root = folder.path();

  explicit FakeMegatron(const std::string& end = "exit 0") {
    write(root / "Megatron-LM/pretrain_gpt.py", "");
    write(root / "env/bin/activate", "");
    write(root / "env/bin/python3",
          "#!/bin/sh\n"
          "echo \"$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR ${PRIMUS_RENDEZVOUS_FD:-none} $*\" >>" +
              (root / "calls").string() +
              "\n"
              "echo started\n"
              "if [ $((RANK + 1)) = \"$WORLD_SIZE\" ]; then\n"
              "  i=1\n"
              "  while [ $i -le 20 ]; do\n"
              "    echo \" iteration $i/ 20 | consumed samples: $((i * 4)) | elapsed time per iteration "
              "(ms): 10.0 | learning "
              "rate: 1.0E-04 | global batch size: 4 | lm loss: 1.${i}E+00 | loss scale: 1.0 | grad norm: 0.5 "
              "| number of "
              "skipped iterations: 0 | number of nan iterations: 0 |\"\n"
              "    i=$((i + 1))\n"
              "  done\n"
              "fi\n" +
              end + "\n",
          true);
    write(root / "exp.yaml",
          experiment_text(
              "framework: megatron\nmodel: llama_tiny.yaml",
              "train_iters: 20\nmock_data: true\nvocab_size: 257\nlr_warmup_iters: 2\nglobal_batch_size: 4\n"
              "micro_batch_size: 1\nseq_length: 64\nsave: null"));
  }

  ProgramResult run(std::vector<std::string> words) const {
    ProgramOptions options;
    options.folder = root.string();
    options.environment = {{"VENV_ACTIVATE", (root / "env/bin/activate").string()},
                           {"PRIMUS_THIRDPARTY_DIR", root.string()},
                           {"HOME", root.string()}};
    return test::run_program(words, options);
  }
};

TEST(ExternalRun, StepsOfTheLastRankAreInTheMetrics) {
  const FakeMegatron fake;
  const ProgramResult result = fake.run({"train", "pretrain", "--config", "exp.yaml", "--nproc", "2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("iteration 20/ 20"), HasSubstr("done after iteration 20")));
  const Path run = fake.root / "output/g/u/e";
  const std::string metrics = read(run / "metrics.jsonl");
  EXPECT_EQ(lines_of(metrics), 20);
  const nlohmann::json last =
      nlohmann::json::parse(metrics.substr(metrics.rfind('\n', metrics.size() - 2) + 1));
  EXPECT_EQ(last["iteration"], 20);
  EXPECT_DOUBLE_EQ(last["lm_loss"], 1.20);
  EXPECT_DOUBLE_EQ(last["elapsed_time_per_iteration_ms"], 10);
  EXPECT_THAT(read(run / "logs/pre_trainer/rank-0/output.log"), HasSubstr("started"));
  EXPECT_THAT(read(run / "logs/pre_trainer/rank-1/output.log"), HasSubstr("iteration 20/"));
  const std::string calls = read(fake.root / "calls");
  EXPECT_EQ(lines_of(calls), 2);
  EXPECT_THAT(calls, AllOf(HasSubstr("0 2 0 127.0.0.1 none -u "), HasSubstr("1 2 1 127.0.0.1 none -u "),
                           HasSubstr("Megatron-LM/pretrain_gpt.py --"), HasSubstr("--num-layers 4")));
  const ProgramResult runs = fake.run({"runs", "output", "--json"});
  EXPECT_THAT(runs.out, HasSubstr("\"finished\"")) << runs.err;
}

TEST(ExternalRun, ItsPythonIsActivated) {
  const FakeMegatron fake("echo \"first: $(command -v python3), of ${VIRTUAL_ENV:-none}.\"; exit 0");
  const std::string env = (fake.root / "env").string();
  // A Python without pyvenv.cfg belongs to the system, so no virtual environment is set.
  const ProgramResult system = fake.run({"train", "pretrain", "--config", "exp.yaml"});
  ASSERT_EQ(system.exit_code, 0) << system.err;
  EXPECT_THAT(system.out, AllOf(HasSubstr(", of none.\n"), Not(HasSubstr("first: " + env))));
  write(fake.root / "env/pyvenv.cfg", "");
  const ProgramResult result =
      fake.run({"train", "pretrain", "--config", "exp.yaml", "--exp_name", "activated"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("first: " + env + "/bin/python3, of " + env + ".\n"));
}

TEST(ExternalRun, ItsExitCodeIsReturned) {
  const FakeMegatron fake("echo 'CUDA out of memory' >&2; exit 7");
  const ProgramResult result = fake.run({"train", "pretrain", "--config", "exp.yaml"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 ended with exit code 7"), HasSubstr("CUDA out of memory")));
}

TEST(ExternalRun, ADryRunShowsTheCommandAndChangesNothing) {
  const FakeMegatron fake;
  const ProgramResult result = fake.run({"train", "pretrain", "--config", "exp.yaml", "--dry-run", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["framework"], "megatron");
  EXPECT_EQ(json["command"][0], (fake.root / "env/bin/python3").string());
  EXPECT_FALSE(std::filesystem::exists(fake.root / "output"));
  EXPECT_FALSE(std::filesystem::exists(fake.root / "calls"));
}

TEST(ExternalRun, BackendChoosesTheEngine) {
  const FakeMegatron fake;
  const ProgramResult native =
      fake.run({"train", "pretrain", "--config", "exp.yaml", "--backend", "native", "--dry-run"});
  EXPECT_EQ(native.exit_code, 0) << native.err;
  EXPECT_THAT(native.out, HasSubstr("framework: native"));
  const ProgramResult missing =
      fake.run({"train", "pretrain", "--config", "exp.yaml", "--backend_path", "nowhere"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("is not a checkout of Megatron-LM"));
  std::filesystem::remove_all(fake.root / "Megatron-LM");
  const ProgramResult none = fake.run({"train", "pretrain", "--config", "exp.yaml"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err,
              AllOf(HasSubstr("Megatron-LM is not on this machine"), HasSubstr("primus deps sync megatron")));
}

// ---- Started by `primus direct` or by Slurm ---------------------------------------------------------

// Stand-ins: an empty file for each framework, and for Python a script that logs its rank, its node, and
// whether the framework's port becomes free.
struct FakeFrameworks {
  TemporaryFolder folder;
  Path root = folder.path();

  FakeFrameworks() {
    write(root / "Megatron-LM/pretrain_gpt.py", "");
    write(root / "torchtitan/torchtitan/train.py", "");
    write(root / "maxtext/src/maxtext/trainers/pre_train/train.py", "");
    write(root / "env/bin/activate", "");
    write(root / "env/bin/python3",
          "#!/bin/sh\n"
          "taken=1 round=0\n"
          "while [ $taken != 0 ] && [ $round -lt 200 ]; do\n"
          "  taken=$(grep -c \":$(printf %04X \"${MASTER_PORT:-0}\") 00000000:0000 0A\" /proc/net/tcp)\n"
          "  [ \"$taken\" = 0 ] || sleep 0.1\n"
          "  round=$((round + 1))\n"
          "done\n"
          "echo \"rank $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, node ${NODE_RANK:-0} of "
          "${NNODES:-1}, at $MASTER_ADDR, port taken $taken, rendezvous ${PRIMUS_RENDEZVOUS_FD:-none}\" >>" +
              (root / "calls").string() + "\n",
          true);
    const auto experiment = [&](const char* framework, const std::string& rest, const std::string& settings) {
      write(root / (std::string(framework) + ".yaml"),
            experiment_text("framework: " + std::string(framework) + "\n" + rest, settings));
    };
    experiment("megatron", "model: llama_tiny.yaml",
               "train_iters: 20\nmock_data: true\nvocab_size: 257\nlr_warmup_iters: 2\nglobal_batch_size: 8\n"
               "micro_batch_size: 1\nseq_length: 64\nsave: null");
    experiment("torchtitan", "config: pre_trainer.yaml\nmodel: llama3.1_8B.yaml",
               "training: {steps: 50, seq_len: 4096, local_batch_size: 2, mock_data: true}");
    experiment("maxtext", "config: pre_trainer.yaml\nmodel: llama3_8B.yaml",
               "steps: 50\nmax_target_length: 2048\nper_device_batch_size: 2\ndataset_type: synthetic");
  }

  ProgramOptions options(const std::map<std::string, std::string>& more) const {
    ProgramOptions options;
    options.folder = root.string();
    options.environment = {{"VENV_ACTIVATE", (root / "env/bin/activate").string()},
                           {"PRIMUS_THIRDPARTY_DIR", root.string()},
                           {"CUDA_VISIBLE_DEVICES", ""},
                           {"HIP_VISIBLE_DEVICES", ""},
                           {"HOME", root.string()}};
    options.environment.insert(more.begin(), more.end());
    return options;
  }
  std::vector<std::string> words(const std::string& framework) const {
    return {"direct", "--", "train", "pretrain", "--config", framework + ".yaml", "--backend", framework};
  }
  // Returns the logged lines, in the order of ranks.
  std::vector<std::string> calls() const {
    std::istringstream lines(read(root / "calls"));
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) all.push_back(line);
    std::sort(all.begin(), all.end());
    return all;
  }
};

TEST(ExternalRun, DirectGivesEachProcessAUniqueRank) {
  for (const char* framework : {"megatron", "torchtitan"}) {
    const FakeFrameworks fake;
    const ProgramResult result =
        test::run_program(fake.words(framework), fake.options({{"GPUS_PER_NODE", "2"}}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(
        fake.calls(),
        testing::ElementsAre("rank 0 of 2, 0 of 2, node 0 of 1, at 127.0.0.1, port taken 0, rendezvous none",
                             "rank 1 of 2, 1 of 2, node 0 of 1, at 127.0.0.1, port taken 0, rendezvous none"))
        << framework;
  }
}

// Runs the launchers of two nodes on this machine.
TEST(ExternalRun, DirectOnSeveralNodes) {
  const auto on_two_nodes = [](const FakeFrameworks& fake, const std::string& framework) {
    const std::string port = std::to_string(comm::port_of(comm::listen_on("127.0.0.1", 0)));
    const auto node = [&](const char* number) {
      return test::run_program(fake.words(framework), fake.options({{"GPUS_PER_NODE", "2"},
                                                                    {"NNODES", "2"},
                                                                    {"NODE_RANK", number},
                                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                                    {"MASTER_PORT", port}}));
    };
    for (const char* number : {"0", "1"}) {
      const ProgramResult result = node(number);
      EXPECT_EQ(result.exit_code, 0) << result.err;
    }
  };
  const FakeFrameworks fake;
  on_two_nodes(fake, "megatron");
  EXPECT_THAT(
      fake.calls(),
      testing::ElementsAre("rank 0 of 4, 0 of 2, node 0 of 2, at 127.0.0.1, port taken 0, rendezvous none",
                           "rank 1 of 4, 1 of 2, node 0 of 2, at 127.0.0.1, port taken 0, rendezvous none",
                           "rank 2 of 4, 0 of 2, node 1 of 2, at 127.0.0.1, port taken 0, rendezvous none",
                           "rank 3 of 4, 1 of 2, node 1 of 2, at 127.0.0.1, port taken 0, rendezvous none"));
  // MaxText has one process per node, whatever GPUS_PER_NODE says.
  const FakeFrameworks max;
  on_two_nodes(max, "maxtext");
  EXPECT_THAT(
      max.calls(),
      testing::ElementsAre("rank 0 of 2, 0 of 1, node 0 of 2, at 127.0.0.1, port taken 0, rendezvous none",
                           "rank 1 of 2, 0 of 1, node 1 of 2, at 127.0.0.1, port taken 0, rendezvous none"));
}

// With srun --ntasks-per-node=2, Slurm's tasks are the ranks, and no further processes start.
TEST(ExternalRun, SlurmsTasksAreTheProcesses) {
  const FakeFrameworks fake;
  for (const char* task : {"0", "1"}) {
    const ProgramResult result =
        test::run_program(fake.words("megatron"), fake.options({{"SLURM_JOB_ID", "7"},
                                                                {"SLURM_PROCID", task},
                                                                {"SLURM_LOCALID", task},
                                                                {"SLURM_NODEID", "0"},
                                                                {"SLURM_NNODES", "1"},
                                                                {"SLURM_NTASKS", "2"},
                                                                {"SLURM_STEP_NODELIST", "127.0.0.1"},
                                                                {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                                {"MASTER_ADDR", "127.0.0.1"},
                                                                {"PRIMUS_JOB_TOKEN", "a-token"}}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_THAT(
      fake.calls(),
      testing::ElementsAre("rank 0 of 2, 0 of 2, node 0 of 1, at 127.0.0.1, port taken 0, rendezvous none",
                           "rank 1 of 2, 1 of 2, node 0 of 1, at 127.0.0.1, port taken 0, rendezvous none"));
}

// A repository with two commits. The first one is the pinned commit.
struct FakePins {
  TemporaryFolder folder;
  Path root = folder.path();
  Pin pin{
      .framework = "megatron", .name = "Megatron-LM", .repository = (root / "origin").string(), .commit = ""};
  std::vector<std::string> shown;

  FakePins() {
    const std::string git =
        "cd " + root.string() +
        " && git init -q origin && cd origin && git config user.email a@b && git config user.name c && "
        "echo 1 >file && git add file && git commit -qm one && git rev-parse HEAD >../first && "
        "echo 2 >file && git commit -qam two";
    EXPECT_EQ(std::system(git.c_str()), 0);
    pin.commit = read(root / "first").substr(0, 40);
  }
  void sync() {
    sync_sources(pin, root / "deps", [&](std::string_view line) { shown.emplace_back(line); });
  }
  PinStatus status() const { return pin_status(pin, root / "deps", "python3"); }
};

TEST(Dependencies, APinIsFetchedAndFound) {
  FakePins fake;
  EXPECT_EQ(fake.status().state, PinState::kMissing);
  fake.sync();
  EXPECT_EQ(fake.status().state, PinState::kReady);
  EXPECT_EQ(read(fake.root / "deps/Megatron-LM/file"), "1\n");
  EXPECT_FALSE(std::filesystem::exists(fake.root / "deps/Megatron-LM.partial"));
  fake.sync();  // already done
}

TEST(Dependencies, OtherCommitsAreUpdatedToThePinUnlessFilesWereChanged) {
  FakePins fake;
  fake.sync();
  const Path clone = fake.root / "deps/Megatron-LM";
  ASSERT_EQ(
      std::system(("cd " + clone.string() + " && git fetch -q origin && git checkout -q FETCH_HEAD").c_str()),
      0);
  EXPECT_EQ(fake.status().state, PinState::kOtherCommit);
  write(clone / "file", "mine\n");
  EXPECT_THAT(error_of([&] { fake.sync(); }), HasSubstr("has changed files"));
  EXPECT_EQ(read(clone / "file"), "mine\n");
  ASSERT_EQ(std::system(("cd " + clone.string() + " && git checkout -q .").c_str()), 0);
  fake.sync();
  EXPECT_EQ(fake.status().state, PinState::kReady);
}

TEST(Dependencies, AFailureLeavesNoFolderWithThePinsName) {
  FakePins fake;
  fake.pin.commit = std::string(40, '0');
  EXPECT_THAT(error_of([&] { fake.sync(); }),
              AllOf(HasSubstr("cannot fetch 000000000000"), HasSubstr("exit code")));
  EXPECT_FALSE(std::filesystem::exists(fake.root / "deps/Megatron-LM"));
}

TEST(Dependencies, ThePinsOfTheProgramAreComplete) {
  const std::vector<Pin> pins = read_pins(preset_dirs());
  ASSERT_EQ(pins.size(), 9u);
  int engines = 0;
  for (const Pin& pin : pins) {
    if (!pin.purpose.empty()) continue;
    EXPECT_EQ(fields_of(pin.framework).keys().find("checkout")->text, pin.name);
    ++engines;
  }
  EXPECT_EQ(engines, 3);
}

TEST(Dependencies, CheckReportsMissingPartsAndTheNextStep) {
  const FakeMegatron fake;
  const ProgramResult result = fake.run({"deps", "check", "torchtitan"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("the sources are not in"), HasSubstr("next: primus deps sync torchtitan")));
  EXPECT_EQ(fake.run({"deps", "list", "megatrn"}).exit_code, 2);
  EXPECT_THAT(fake.run({"deps", "sync", "--dry-run"}).out,
              AllOf(HasSubstr("github.com"),
                    HasSubstr("mamba: for Megatron-LM's state-space layers, fetched only by name")));
  EXPECT_THAT(fake.run({"deps", "sync", "--dry-run", "mamba"}).out, HasSubstr("AndreasKaratzas/mamba.git"));
}

}  // namespace
}  // namespace primus::backends
