// Tests of `primus container` with a real podman, as the user who runs the tests. The image, kept in a
// temporary folder, has a shell, a few tools and this program's libraries. Where podman is missing or cannot
// start containers, the tests are skipped with its error message. One test asks docker's client about values
// of options.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "cli/program_names.h"
#include "launch/option_samples.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using test::Program;
using Words = std::vector<std::string>;

const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
constexpr const char* kPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
constexpr const char* kImage = "localhost/primus-test:1";

SubprocessResult run_tool(Words command) { return run_subprocess(command, {.timeout = 60s, .path = kPath}); }

// Copies the libraries that a program is linked with to the same paths below `root`, and the program itself
// if `itself`.
void copy_program(const std::string& program, const Path& root, bool itself = true) {
  std::set<std::string> files;
  if (itself) files.insert(program);
  const std::string linked = run_tool({"ldd", program}).out;
  const std::regex path("/[^ ]+");
  for (std::sregex_iterator match(linked.begin(), linked.end(), path), end; match != end; ++match) {
    files.insert(match->str());
  }
  for (const std::string& file : files) {
    const Path to = root / file.substr(1);
    if (std::filesystem::exists(to)) continue;
    make_folders(to.parent_path());
    std::filesystem::copy_file(std::filesystem::canonical(file), to);
  }
}

class Podman : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TemporaryFolder>();
    why_not_ = prepare();
  }
  static void TearDownTestSuite() {
    if (!find_program("podman", kPath).empty()) run_tool({"podman", "rm", "--all", "--force"});
    // The files of image layers belong to subordinate user ids, so only podman can delete them.
    if (getuid() != 0) run_tool({"podman", "unshare", "rm", "-rf", (folder_->path() / "storage").string()});
    folder_.reset();
  }
  void SetUp() override {
    if (!why_not_.empty()) GTEST_SKIP() << why_not_;
    work_ = folder_->path() / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    make_folders(work_);
  }

  // Sets up the image. Returns why no container can be started here, or "".
  static std::string prepare() {
    if (find_program("podman", kPath).empty()) return "podman is not installed";
    const Path& f = folder_->path();
    // Gives podman its own folders for images and state, and limits that this user may set.
    write_file(f / "storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = \"" + (f / "storage").string() +
                                       "\"\nrunroot = \"" + (f / "run").string() + "\"\n");
    rlimit files{}, processes{};
    getrlimit(RLIMIT_NOFILE, &files);
    getrlimit(RLIMIT_NPROC, &processes);
    const auto limit = [](const char* name, rlim_t highest) {
      const std::string value = std::to_string(std::min<rlim_t>(highest, 4096));
      return std::string("\"") + name + "=" + value + ":" + value + "\"";
    };
    write_file(f / "containers.conf",
               "[containers]\ndefault_ulimits = [" + limit("nofile", files.rlim_max) + ", " +
                   limit("nproc", processes.rlim_max) +
                   "]\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n" +
                   (find_program("runc", kPath).empty() ? "" : "runtime = \"runc\"\n"));
    setenv("CONTAINERS_STORAGE_CONF", (f / "storage.conf").c_str(), 1);
    setenv("CONTAINERS_CONF", (f / "containers.conf").c_str(), 1);
    const Path root = f / "root";
    for (const char* name : {"tmp", "etc", "proc", "sys", "dev", "bin"}) make_folders(root / name);
    for (const char* tool : {"bash", "sh", "env", "ls"}) {
      std::filesystem::copy_file(std::filesystem::canonical(find_program(tool, kPath)), root / "bin" / tool);
      copy_program(find_program(tool, kPath), root, false);
    }
    copy_program(PRIMUS_PROGRAM, root, false);
    const std::string image = (f / "image.tar").string();
    for (const Words& command :
         {Words{"tar", "-C", root.string(), "-cf", image, "."}, Words{"podman", "import", image, kImage},
          Words{"podman", "run", "--rm", "--network", "none", kImage, "ls", "/"}}) {
      const SubprocessResult result = run_tool(command);
      if (!result.ok()) return "this machine starts no containers: " + result.err;
    }
    return {};
  }

  static Words in_container(const Words& options, const Words& command) {
    Words words = {"container",
                   "--runtime",
                   "podman",
                   "--image",
                   kImage,
                   "--network",
                   "none",
                   "--shm-size",
                   "64m",
                   "--volume",
                   PRIMUS_SOURCE_DIR ":" PRIMUS_SOURCE_DIR ":ro"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }
  ProgramResult run(const Words& words, const std::map<std::string, std::string>& environment = {}) const {
    return run_program(words, {.folder = work_.string(), .environment = environment});
  }
  static std::string containers() { return run_tool({"podman", "ps", "--all", "--quiet"}).out; }

  static std::unique_ptr<test::TemporaryFolder> folder_;
  static std::string why_not_;
  Path work_;
};

std::unique_ptr<test::TemporaryFolder> Podman::folder_;
std::string Podman::why_not_;

TEST_F(Podman, TrainsAndWritesFilesOfTheUser) {
  const ProgramResult result =
      run(in_container({}, {"direct", "--", "train", "pretrain", "--config", kExperiment, "train_iters=2",
                            "exp_name=in-a-container", "workspace=out"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("done after iteration 2"));
  Path weights;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(work_)) {
    if (entry.path().filename() == "model.safetensors") weights = entry.path();
  }
  ASSERT_FALSE(weights.empty()) << result.out;
  struct stat status {};
  ASSERT_EQ(::stat(weights.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, getuid());
  EXPECT_EQ(containers(), "");
}

TEST_F(Podman, TwoRanksTrainInOneContainer) {
  const ProgramResult result = run(in_container(
      {"--env", "GPUS_PER_NODE=2"}, {"direct", "--", "train", "pretrain", "--config", kExperiment,
                                     "train_iters=2", "exp_name=two-ranks", "workspace=out", "device=cpu"}));
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out + result.err, HasSubstr("[rank-0/2]"));
}

TEST_F(Podman, ExitCodesAreReturned) {
  EXPECT_EQ(run(in_container({}, {"direct", "--single", "--", "train", "pretrain", "--config", "none.yaml"}))
                .exit_code,
            2);
  const ProgramResult absent =
      run(in_container({"--program", "primus-that-is-not-there"}, {"direct", "--", "version"}));
  EXPECT_EQ(absent.exit_code, 42);
  EXPECT_THAT(absent.err, HasSubstr("this container has no Primus"));
  EXPECT_EQ(containers(), "");
}

// A secret reaches the run through the environment, and appears in no command line and no log.
TEST_F(Podman, SecretsStayInTheEnvironment) {
  write_file(work_ / "hook.sh", "#!/bin/sh\nenv > " + (work_ / "seen").string() + "\n");
  std::filesystem::permissions(work_ / "hook.sh", std::filesystem::perms::owner_all);
  const ProgramResult result =
      run(in_container({}, {"direct", "--single", "--patch", "hook.sh", "--", "version"}),
          {{"HF_TOKEN", "hf_a_secret"}, {"UNRELATED", "stays outside"}});
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::string seen = read_file(work_ / "seen");
  EXPECT_THAT(seen, HasSubstr("HF_TOKEN=hf_a_secret"));
  EXPECT_THAT(seen, ::testing::Not(HasSubstr("UNRELATED")));
  EXPECT_THAT(result.out + result.err, ::testing::Not(HasSubstr("hf_a_secret")));
}

// SIGTERM ends a job with a checkpoint, and its container is removed.
TEST_F(Podman, ASignalSavesAndEndsTheContainer) {
  Program program(in_container({}, {"direct", "--", "train", "pretrain", "--config", kExperiment,
                                    "train_iters=100000", "exp_name=stopped", "workspace=out"}),
                  {.folder = work_.string()});
  const auto find_file = [&](const std::string& name) {
    std::error_code gone;
    for (auto entry = std::filesystem::recursive_directory_iterator(work_, gone);
         entry != std::filesystem::recursive_directory_iterator(); entry.increment(gone)) {
      if (gone) break;
      if (entry->path().filename() == name) return true;
    }
    return false;
  };
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (!find_file("metrics.jsonl") && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(100ms);
  }
  ASSERT_TRUE(find_file("metrics.jsonl"));
  program.send(SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.signal << result.out << result.err;
  EXPECT_TRUE(find_file("model.safetensors")) << result.out << result.err;
  EXPECT_EQ(containers(), "");
}

// A requeued job removes the container that its first start left running. The test kills the launcher with
// SIGKILL, as Slurm kills a job that does not end in time.
TEST_F(Podman, ARequeuedJobHasTheNodeToItself) {
  const Words training = in_container({}, {"direct", "--", "train", "pretrain", "--config", kExperiment,
                                           "train_iters=100000", "exp_name=left", "workspace=out"});
  const std::map<std::string, std::string> job{{"SLURM_JOB_ID", "7"}};
  Program program(training, {.folder = work_.string(), .environment = job});
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (containers().empty() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(100ms);
  ASSERT_NE(containers(), "");
  EXPECT_EQ(run(in_container({"--clean"}, {"version"}), job).exit_code, 0);
  EXPECT_NE(containers(), "") << "--clean removed the container of a running job";
  program.send(SIGKILL);
  program.wait();
  ASSERT_NE(containers(), "");
  std::map<std::string, std::string> again = job;
  again["SLURM_RESTART_COUNT"] = "1";
  const ProgramResult result = run(in_container({}, {"version"}), again);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(containers(), "");
}

// docker's client, where installed, accepts and refuses the values that option_samples.h states. The client
// checks values before it connects to its server, whose address is invalid here.
TEST(OptionsOfDocker, HaveTheValuesOfDockersHelp) {
  if (find_program("docker", kPath).empty()) GTEST_SKIP() << "docker is not installed";
  const auto says = [&](const std::string& option, const std::string& value) {
    return run_tool({"env", "DOCKER_HOST=tcp://127.0.0.1:1", "docker", "run", "--rm",
                     "--" + option + "=" + value, "busybox", "true"})
        .err;
  };
  const auto is_value_error = [](const std::string& text) {
    return text.find("127.0.0.1:1") == std::string::npos &&
           text.find("unknown server OS") == std::string::npos;
  };
  if (is_value_error(says("memory", "64m"))) GTEST_SKIP() << says("memory", "64m");
  for (const test::OptionSample& sample : test::container_samples()) {
    for (const std::string& value : sample.taken) {
      const std::string said = says(sample.option, value);
      EXPECT_FALSE(is_value_error(said)) << "--" << sample.option << "=" << value << ": " << said;
    }
    for (const std::string& value : sample.refused) {
      if (!sample.by_tool) continue;
      EXPECT_TRUE(is_value_error(says(sample.option, value))) << "--" << sample.option << "=" << value;
    }
  }
}

}  // namespace
}  // namespace primus
