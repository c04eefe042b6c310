// Tests of `primus direct`, as a user runs it: hooks, patches, log files, ranks and exit codes.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/files/file.h"
#include "cli/program_names.h"

namespace primus {
namespace {

using test::ProgramOptions;

const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

struct Folder : test::TemporaryFolder {
  std::string file(const std::string& name, const std::string& content) const {
    const Path file = path() / name;
    make_folders(file.parent_path());
    write_file(file, content);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  ProgramOptions options() const {
    return {.folder = path().string(),
            .environment = {
                {"HOME", path().string()}, {"CUDA_VISIBLE_DEVICES", ""}, {"HIP_VISIBLE_DEVICES", ""}}};
  }
  ProgramResult run(const std::vector<std::string>& words) const { return run_program(words, options()); }
};

// Returns whether the process has ended or is a zombie. Waits a moment, because a killed process may take
// time to end.
bool has_ended(pid_t pid) {
  for (int tries = 0; tries < 100; ++tries) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), {});
    const std::size_t at = stat.rfind(") ");
    if (at == std::string::npos || stat[at + 2] == 'Z') return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST(Direct, RunsTheCommandHere) {
  const ProgramResult help = run_program({"model", "info", "--help"});
  EXPECT_EQ(run_program({"direct", "--", "model", "info", "--help"}).out, help.out);
  EXPECT_EQ(run_program({"direct", "model", "info", "--help"}).out, help.out)
      << "AMD Primus accepts a command without '--'";
  EXPECT_EQ(run_program({"--debug", "direct", "--single", "--", "config", "schema"}).exit_code, 0);
  EXPECT_EQ(run_program({"direct", "--", "--help"}).out, run_program({"--help"}).out);
  EXPECT_EQ(run_program({"direct", "--", "train", "--help"}).out, run_program({"train"}).out);
}

TEST(Direct, SetsTheEnvironment) {
  const Folder folder;
  folder.file("more.env", "PRIMUS_TEAM=from-file\nPRIMUS_EXP_NAME=from-file\n");
  const ProgramResult result =
      folder.run({"direct", "--env", "more.env", "--env", "PRIMUS_EXP_NAME=named here", "--", "config",
                  "show", "--config", kExperiment});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("named here"), HasSubstr("from-file")));
}

TEST(Direct, DryRunShowsTheCommandsAndChangesNothing) {
  const Folder folder;
  const std::string hook = folder.file("hooks/00_global.sh", "touch ran\n");
  folder.file("hooks/train/pretrain/10_own.py", "open('ran', 'w')\n");
  const std::string patch = folder.file("patch.sh", "touch ran\n");
  const ProgramResult result = folder.run({"--dry-run", "direct", "--hooks", "hooks", "--patch", "patch.sh",
                                           "--env", "A=b c", "--env", "GPUS_PER_NODE=2", "--log_file",
                                           "x/log.txt", "--", "train", "pretrain", "--config", kExperiment});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "1. process, on this node\n"
            "   hook hooks/00_global.sh\n"
            "   hook hooks/train/pretrain/10_own.py\n"
            "   patch patch.sh\n"
            "   output to x/log.txt\n"
            "   export A='b c'\n"
            "   export GPUS_PER_NODE=2\n"
            "   export NNODES=1\n"
            "   export NODE_RANK=0\n"
            "   " +
                std::filesystem::canonical(PRIMUS_PROGRAM).string() + " train pretrain --config " +
                kExperiment +
                " --nproc 2\n"
                "   node 0: RANK=0..1 WORLD_SIZE=2 LOCAL_RANK=0..1 LOCAL_WORLD_SIZE=2\n");
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "ran"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "x"));
}

// Lines env.NAME= and extra.key= in the output of hooks and patches change what runs. Other lines are shown.
TEST(Direct, HooksAndPatchesChangeTheCommand) {
  const Folder folder;
  folder.file("hooks/10_b.sh",
              "echo second $FIRST $1 $2; echo env.PRIMUS_TEAM=team; echo env.PRIMUS_EXP_NAME=lost\n");
  folder.file("hooks/00_a.sh", "echo first; echo env.FIRST=sees; echo env.HF_TOKEN=hidden\n");
  folder.file("hooks/train/other/x.sh", "exit 1\n");
  folder.file("hooks/config/show/x.sh", "echo extra.train_iters=17 >&2\n");
  const std::string patch = folder.file("p.sh", "echo extra.lr=0.5; echo patched\n");
  const std::string skipped = folder.file("s.sh", "echo extra.lr=0.25; exit 2\n");
  const ProgramResult result =
      folder.run({"direct", "--hooks", "hooks", "--patch", patch, "--patch", skipped, "--env",
                  "PRIMUS_EXP_NAME=mine", "--", "config", "show", "--config", kExperiment});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("first\n"), HasSubstr("second sees config show\n"), HasSubstr("patched\n"),
                    HasSubstr("adds --train_iters 17"), HasSubstr("s.sh: not needed")));
  EXPECT_THAT(result.err, AllOf(HasSubstr("HF_TOKEN=<redacted>"), Not(HasSubstr("hidden"))));
  EXPECT_THAT(result.out, AllOf(HasSubstr("team"), HasSubstr("mine"), HasSubstr("17"), HasSubstr("0.5")));
  EXPECT_THAT(result.out, Not(HasSubstr("lost")));
  EXPECT_THAT(result.out, Not(HasSubstr("0.25")));
}

TEST(Direct, AHookThatFailsEndsTheLaunch) {
  const Folder folder;
  const std::string bad = folder.file("bad.sh", "echo why; exit 3\n");
  const ProgramResult result = folder.run({"direct", "--patch", bad, "--", "version"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("why\n"), HasSubstr("bad.sh failed with exit code 3")));
  EXPECT_EQ(result.out, "");
  const std::string skip = folder.file("skip.sh", "echo env.PRIMUS_SKIP_MAIN_LAUNCH=1\n");
  const ProgramResult skipped = folder.run({"direct", "--patch", skip, "--", "version"});
  EXPECT_EQ(skipped.exit_code, 0);
  EXPECT_EQ(skipped.out, "");
}

TEST(Direct, ReturnsTheCommandsExitCode) {
  const Folder folder;
  const std::string script =
      folder.file("job", "#!/bin/sh\necho out $1; [ $1 = kill ] && kill -9 $$; exit $1\n");
  for (const bool captured : {false, true}) {
    std::vector<std::string> words{"direct", "--single", "--script", script};
    if (captured) words.insert(words.end(), {"--log_file", "log.txt"});
    words.insert(words.end(), {"--", "7"});
    const ProgramResult seven = folder.run(words);
    EXPECT_EQ(seven.exit_code, 7) << seven.err;
    EXPECT_EQ(seven.out, "out 7\n");
    words.back() = "kill";
    const ProgramResult killed = folder.run(words);
    if (captured) {
      EXPECT_EQ(killed.exit_code, 137);
      EXPECT_THAT(killed.err, HasSubstr("was killed by signal 9"));
    } else {
      EXPECT_EQ(killed.signal, 9);
    }
  }
  EXPECT_EQ(read_file(folder.path() / "log.txt"), "out 7\nout kill\n");
}

TEST(Direct, SilentKeepsTheOutputInAFile) {
  const Folder folder;
  const ProgramResult result = folder.run({"direct", "--silent", "--", "version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out + result.err, "");
  std::string log;
  for (const auto& file : std::filesystem::directory_iterator(folder.path() / "logs"))
    log = read_file(file.path());
  EXPECT_EQ(log, run_program({"version"}).out);
}

TEST(Direct, AProgramIsStartedForEachRank) {
  const Folder folder;
  const std::string script = folder.file("job", "#!/bin/sh\necho $RANK of $WORLD_SIZE on $NODE_RANK: $*\n");
  const ProgramResult result =
      folder.run({"direct", "--script", script, "--env", "GPUS_PER_NODE=2", "--", "a b", "c"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("[rank 0] 0 of 2 on 0: a b c\n"), HasSubstr("[rank 1] 1 of 2 on 0: a b c\n")));
}

TEST(Direct, TheProjectsSettingsAreRead) {
  const Folder folder;
  folder.file(".primus.yaml", "direct: {env: {PRIMUS_TEAM: of-the-project}}\n");
  ProgramResult result = folder.run({"direct", "--", "config", "show", "--config", kExperiment});
  EXPECT_THAT(result.out, HasSubstr("of-the-project"));
  // A file that all users may write to is ignored, because another user could name programs to run in it.
  std::filesystem::permissions(folder.path() / ".primus.yaml", std::filesystem::perms::all);
  result = run_program({"direct", "--", "config", "show", "--config", kExperiment},
                       {.folder = folder.path().string(), .environment = {{"HOME", "/nonexistent"}}});
  EXPECT_THAT(result.out, Not(HasSubstr("of-the-project")));
  EXPECT_THAT(result.err, HasSubstr("is writable by all users and is ignored"));
}

// Settings files that other users own, or that their group may write to, are ignored, also for root.
TEST(Direct, SettingsFilesOfOtherUsersAreNotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may change a file's owner";
  const Folder folder;
  const std::string settings = folder.file(".primus.yaml", "direct: {env: {PRIMUS_TEAM: of-the-project}}\n");
  const auto run = [&] {
    return run_program({"direct", "--", "config", "show", "--config", kExperiment},
                       {.folder = folder.path().string(), .environment = {{"HOME", "/nonexistent"}}});
  };
  const auto expect_not_read = [&](const char* why) {
    const ProgramResult result = run();
    EXPECT_THAT(result.out, Not(HasSubstr("of-the-project")));
    EXPECT_THAT(result.err, HasSubstr(why));
    EXPECT_THAT(result.err, HasSubstr("is ignored; '--config "));
  };
  constexpr uid_t kOther = 1000;
  constexpr gid_t kShared = 65534;  // nogroup, the first group with several users
  ASSERT_EQ(::chown(settings.c_str(), kOther, 0), 0);
  expect_not_read("belongs to another user");
  ASSERT_EQ(::chown(settings.c_str(), 0, kShared), 0);
  ASSERT_EQ(::chmod(settings.c_str(), 0664), 0);
  expect_not_read("is writable by other members of its group");
  ASSERT_EQ(::chmod(settings.c_str(), 0644), 0);
  EXPECT_THAT(run().out, HasSubstr("of-the-project"));
  // Root's group has no other members, so its write permission is harmless.
  ASSERT_EQ(::chown(settings.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(settings.c_str(), 0664), 0);
  EXPECT_THAT(run().out, HasSubstr("of-the-project"));
  // A link that belongs to another user is ignored, although its target is good.
  std::filesystem::rename(settings, folder.path() / "good.yaml");
  std::filesystem::create_symlink("good.yaml", settings);
  EXPECT_THAT(run().out, HasSubstr("of-the-project"));
  ASSERT_EQ(::lchown(settings.c_str(), kOther, kOther), 0);
  expect_not_read("belongs to another user");
}

// A hook's processes end with the launcher, whichever signal stops it. Background jobs of a shell ignore
// SIGINT, and some programs ignore SIGTERM: they are killed 5 seconds later.
TEST(Direct, HooksEndWithTheirLauncher) {
  const std::string stubborn = "(trap '' TERM; sleep 72 >/dev/null 2>&1; sleep 73) &\necho $! >> pids\n";
  for (const auto& [signal, more] :
       {std::pair(SIGTERM, stubborn), {SIGINT, ""}, {SIGHUP, "sleep 71 &\necho $! >> pids\n"}}) {
    const Folder folder;
    folder.file("hooks/slow.sh", "echo $$ > pids\n" + more + "echo started\nsleep 74\n");
    test::Program program({"direct", "--hooks", "hooks", "--", "version"}, folder.options());
    ASSERT_TRUE(program.wait_for_error("started", 20));
    program.send(signal);
    EXPECT_EQ(program.wait().signal, signal);
    std::istringstream pids(read_file(folder.path() / "pids"));
    int count = 0;
    for (pid_t pid = 0; pids >> pid; ++count) EXPECT_TRUE(has_ended(pid)) << signal << " " << pid;
    EXPECT_EQ(count, signal == SIGINT ? 1 : 2);
  }
}

TEST(Direct, AHookThatClosedItsOutputIsWaitedFor) {
  const Folder folder;
  folder.file("hooks/quiet.sh", "echo hello\nexec >/dev/null 2>&1\nsleep 0.3\ntouch done\n");
  const ProgramResult result = folder.run({"direct", "--hooks", "hooks", "--", "version"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("hello"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "done"));
}

TEST(Direct, TrainsOnTwoRanks) {
  const Folder folder;
  const std::vector<std::string> command{"train",
                                         "pretrain",
                                         "--config",
                                         kExperiment,
                                         "train_iters=2",
                                         "micro_batch_size=1",
                                         "global_batch_size=2",
                                         "seq_length=32"};
  std::vector<std::string> words{"direct", "--env", "GPUS_PER_NODE=2", "--log_file", "run.log", "--"};
  words.insert(words.end(), command.begin(), command.end());
  const ProgramResult result = folder.run(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done after iteration 2"));
  const std::string log = read_file(folder.path() / "run.log");
  EXPECT_THAT(log, AllOf(HasSubstr("[rank-0/2]"), HasSubstr("done after iteration 2")));
}

TEST(Direct, ScriptsNeedNoArguments) {
  const Folder folder;
  const std::string script = folder.file("e.sh", "#!/bin/sh\necho ran $#\n");
  EXPECT_EQ(folder.run({"direct", "--single", "--script", script}).out, "ran 0\n");
  EXPECT_EQ(folder.run({"direct", "--single", "--script", script, "--"}).out, "ran 0\n");
  EXPECT_EQ(folder.run({"direct", "--single"}).exit_code, 2);
}

// Other frameworks' ranks connect without this engine, so they need no PRIMUS_JOB_TOKEN.
TEST(Direct, OtherFrameworksNeedNoTokenOnSeveralNodes) {
  const Folder folder;
  ProgramOptions options = folder.options();
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"NNODES", "2"}, {"NODE_RANK", "1"}, {"MASTER_ADDR", "host1"}, {"GPUS_PER_NODE", "2"}})
    options.environment[name] = value;
  const auto plan = [&](const std::string& backend) {
    return run_program({"--dry-run", "direct", "--", "train", "pretrain", "--config", kExperiment,
                        "--backend", backend, "micro_batch_size=1", "global_batch_size=8"},
                       options);
  };
  EXPECT_THAT(plan("native").err, HasSubstr("PRIMUS_JOB_TOKEN is not set"));
  const ProgramResult other = plan("megatron");
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, HasSubstr("--nnodes 2 --node_rank 1 --master_addr host1"));
}

// Returns the environment of a task that srun started on two nodes without a launcher.
ProgramOptions bare_task(const Folder& folder) {
  ProgramOptions options = folder.options();
  for (const auto& [name, value] : std::map<std::string, std::string>{{"SLURM_JOB_ID", "4711"},
                                                                      {"SLURM_STEP_ID", "3"},
                                                                      {"SLURM_NNODES", "2"},
                                                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                                                      {"SLURM_PROCID", "0"},
                                                                      {"SLURM_NODEID", "0"},
                                                                      {"SLURM_LOCALID", "0"},
                                                                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                                                                      {"SLURM_STEP_NODELIST", "host1,host2"}})
    options.environment[name] = value;
  return options;
}

const std::vector<std::vector<std::string>> kBareCommands{
    {"preflight", "--host", "--skip-dmesg"},
    {"benchmark", "collectives", "--device", "cpu", "--op", "all_reduce", "--sizes", "1M"},
    {"train", "pretrain", "--config", kExperiment, "micro_batch_size=1", "global_batch_size=2"}};

// The missing secret is reported at once. A rank that tried to reach the others would wait a minute.
TEST(Direct, TasksWithoutAModeReportAMissingSecret) {
  const Folder folder;
  for (const std::vector<std::string>& words : kBareCommands) {
    const auto start = std::chrono::steady_clock::now();
    const ProgramResult result = run_program(words, bare_task(folder));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << words[0];
    EXPECT_EQ(result.exit_code, 2) << words[0] << result.err;
    EXPECT_EQ(result.out, "") << words[0];
    EXPECT_THAT(result.err, AllOf(HasSubstr("PRIMUS_JOB_TOKEN is not set"),
                                  HasSubstr("export PRIMUS_JOB_TOKEN with the same random text"),
                                  HasSubstr("'primus slurm' does this automatically")))
        << words[0];
  }
}

// The setting `dry_run` applies only to launchers, and not to tasks that srun starts directly, because a task
// that did nothing would look successful.
TEST(Direct, TheSettingDryRunDoesNotApplyToTasksWithoutAMode) {
  const Folder folder;
  for (const char* settings : {"main: {dry_run: true}\n", "direct: {dry_run: true}\n"}) {
    folder.file(".primus.yaml", settings);
    // The error about the secret shows that the command would have run.
    for (const std::vector<std::string>& words : kBareCommands) {
      const ProgramResult bare = run_program(words, bare_task(folder));
      EXPECT_EQ(bare.exit_code, 2) << words[0] << settings;
      EXPECT_THAT(bare.err, AllOf(HasSubstr("PRIMUS_JOB_TOKEN is not set"),
                                  HasSubstr("note: the setting dry_run applies only to launchers")))
          << words[0] << settings;
      EXPECT_EQ(bare.out, "") << words[0] << settings;
    }
    ProgramOptions typed = bare_task(folder);
    typed.environment["PRIMUS_JOB_TOKEN"] = "shared";
    const ProgramResult plan = run_program({"direct", "--", "preflight", "--host"}, typed);
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    EXPECT_THAT(plan.out, HasSubstr("1. process, on this node")) << settings;
  }
}

// Each node's launcher starts its own ranks. In this test, both nodes are this machine.
TEST(Direct, TrainsOnTwoNodes) {
  const Folder folder;
  const auto node = [&](int number, int port) {
    ProgramOptions options = folder.options();
    options.environment["PRIMUS_JOB_TOKEN"] = "shared by both";
    return std::make_unique<test::Program>(
        std::vector<std::string>{"direct", "--env", "NNODES=2", "--env",
                                 "NODE_RANK=" + std::to_string(number), "--env", "MASTER_ADDR=127.0.0.1",
                                 "--env", "MASTER_PORT=" + std::to_string(port), "--", "train", "pretrain",
                                 "--config", kExperiment, "train_iters=2", "micro_batch_size=1",
                                 "global_batch_size=2", "seq_length=32"},
        options);
  };
  const int port = 20000 + static_cast<int>(getpid()) % 10000;
  const auto first = node(0, port), second = node(1, port);
  const ProgramResult one = first->wait(), two = second->wait();
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(one.out, HasSubstr("done after iteration 2"));
}

}  // namespace
}  // namespace primus
