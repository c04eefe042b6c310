// Two machines, as far as networks go: namespaces of this one, each with interfaces and a host name of its
// own, and a cable between them. preflight on them, healthy and with faults, and a training over the cable.
// Needs root and Debian's iproute2; skipped otherwise.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Program;
using test::ProgramResult;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr const char* kPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

// A thread with namespaces of its own; what it starts runs in them, and they end with the last of these.
class Machine {
 public:
  explicit Machine(std::string name) : name_(std::move(name)), thread_([this] { serve(); }) {
    why_not_ = call([this] { return enter(); });
  }
  ~Machine() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // Empty, or why this machine cannot be made.
  const std::string& why_not() const { return why_not_; }
  // Its network, for `ip link ... netns PATH`.
  std::string network() const {
    return "/proc/" + std::to_string(getpid()) + "/task/" + std::to_string(id_) + "/ns/net";
  }

  template <class Body>
  std::invoke_result_t<Body> call(Body body) {
    std::packaged_task<std::invoke_result_t<Body>()> task(std::move(body));
    auto result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      work_ = [&task] { task(); };
    }
    changed_.notify_one();
    return result.get();
  }
  // Throws when the tool fails: a test's own mistake.
  void ip(const Words& words) {
    Words command = {"ip"};
    command.insert(command.end(), words.begin(), words.end());
    const SubprocessResult result = call([&] { return run_subprocess(command, {.path = kPath}); });
    if (!result.ok()) throw std::runtime_error("ip failed: " + result.err);
  }
  std::unique_ptr<Program> start(const Words& words, const test::ProgramOptions& options) {
    return call([&] { return std::make_unique<Program>(words, options); });
  }

 private:
  void serve() {
    id_ = static_cast<pid_t>(syscall(SYS_gettid));
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return work_ || over_; });
      if (!work_) return;
      const auto work = std::exchange(work_, nullptr);
      lock.unlock();
      work();
    }
  }
  std::string enter() {
    if (unshare(CLONE_FS | CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        // Shows the interfaces of its own network.
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0 ||
        sethostname(name_.data(), name_.size()) != 0) {
      return std::string("no namespaces can be made here: ") + std::strerror(errno);
    }
    return {};
  }

  const std::string name_;
  std::string why_not_;
  pid_t id_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool over_ = false;
  std::thread thread_;
};

class Machines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find_program("ip", kPath).empty()) GTEST_SKIP() << "iproute2 is not installed";
    for (const char* name : {"node-a", "node-b"}) {
      machines_.push_back(std::make_unique<Machine>(name));
      if (!machines_.back()->why_not().empty()) GTEST_SKIP() << machines_.back()->why_not();
    }
    a().ip({"link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b().network()});
    int last = 0;
    for (const auto& machine : machines_) {
      machine->ip({"address", "add", "10.77.0." + std::to_string(++last) + "/24", "dev", "eth0"});
      machine->ip({"link", "set", "lo", "up"});
      machine->ip({"link", "set", "eth0", "up"});
    }
    for (const auto& machine : machines_) {  // the kernel says so a moment later
      for (int i = 0; i < 100 && machine->call(state_of_eth0) != "up\n"; ++i)
        std::this_thread::sleep_for(50ms);
    }
  }

  static std::string state_of_eth0() { return read_file("/sys/class/net/eth0/operstate", 4096); }

  Machine& a() { return *machines_[0]; }
  Machine& b() { return *machines_[1]; }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  // A rank on each machine.
  std::vector<std::unique_ptr<Program>> start(const Words& words,
                                              const std::map<std::string, std::string>& more = {}) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int rank = 0; rank < 2; ++rank) {
      test::ProgramOptions options{.folder = folder_.path().string(),
                                   .environment = {{"RANK", std::to_string(rank)},
                                                   {"WORLD_SIZE", "2"},
                                                   {"LOCAL_RANK", "0"},
                                                   {"LOCAL_WORLD_SIZE", "1"},
                                                   {"GROUP_RANK", std::to_string(rank)},
                                                   {"MASTER_ADDR", "10.77.0.1"},
                                                   {"MASTER_PORT", "29400"},
                                                   {"PRIMUS_JOB_TOKEN", "between machines"}}};
      for (const auto& [name, value] : more) options.environment[name] = value;
      programs.push_back(machines_[static_cast<std::size_t>(rank)]->start(words, options));
    }
    return programs;
  }
  struct Report {
    int exit_code;
    json report;
    std::string err;
    // The findings of a check with this verdict, on all nodes and of the cluster.
    std::string of(const std::string& check, const std::string& verdict) const {
      std::string text;
      const auto look = [&](const json& list) {
        for (const json& f : list) {
          if (f["check"] == check && f["verdict"] == verdict) text += f.dump() + "\n";
        }
      };
      for (const json& node : report["nodes"]) look(node["findings"]);
      look(report["cluster"]);
      return text;
    }
  };
  Report preflight(Words words, const std::map<std::string, std::string>& more = {}) {
    words.insert(words.begin(), "preflight");
    words.insert(words.end(), {"--skip-dmesg", "--dump-path", file("out"), "--no-html", "--json"});
    const auto programs = start(words, more);
    const ProgramResult first = programs[0]->wait();
    programs[1]->wait();
    return {first.exit_code, json::parse(first.out, nullptr, false), first.err};
  }

  test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<Machine>> machines_;
};

TEST_F(Machines, HealthyOnesPass) {
  const Report network = preflight({"--network"});
  ASSERT_TRUE(network.report.is_object()) << network.err;
  EXPECT_EQ(network.exit_code, 0) << network.report.dump(1);
  ASSERT_EQ(network.report["nodes"].size(), 2U);
  EXPECT_EQ(network.report["nodes"][0]["host"], "node-a");
  EXPECT_EQ(network.report["nodes"][1]["host"], "node-b");
  EXPECT_THAT(network.of("network.way", "pass"), HasSubstr("eth0 leads to 10.77.0.1"));
  const Report speeds = preflight({"--tests", "inter-allreduce,inter-p2p", "--device", "cpu",
                                   "--comm-sizes-mb", "1", "--inter-group-sizes", "all"});
  ASSERT_TRUE(speeds.report.is_object()) << speeds.err;
  EXPECT_EQ(speeds.exit_code, 0) << speeds.report.dump(1);
  EXPECT_THAT(speeds.report.dump(), HasSubstr("all-reduce between nodes, 2 nodes, 1 MiB"));
}

TEST_F(Machines, AWrongInterfaceIsNamed) {
  // One that is on no machine, and one that leads nowhere.
  const Report absent = preflight({"--network"}, {{"NCCL_SOCKET_IFNAME", "ib0"}});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.of("network.interface-variables", "fail"),
              HasSubstr("NCCL_SOCKET_IFNAME=ib0 names no interface of this machine"));
  for (const auto& machine : machines_) machine->ip({"link", "add", "ib0", "type", "veth"});
  const Report down = preflight({"--network"}, {{"NCCL_SOCKET_IFNAME", "ib0"}});
  EXPECT_EQ(down.exit_code, 2);
  EXPECT_THAT(down.of("network.interface-variables", "fail"), HasSubstr("which is down"));
}

TEST_F(Machines, PacketsOfAnotherSizeAreNamed) {
  b().ip({"link", "set", "eth0", "mtu", "1400"});
  const Report report = preflight({"--network"});
  ASSERT_TRUE(report.report.is_object()) << report.err;
  EXPECT_THAT(report.of("cluster.drift", "warn") + report.of("cluster.drift", "fail"),
              ::testing::AllOf(HasSubstr("1400"), HasSubstr("1500")))
      << report.report.dump(1);
}

TEST_F(Machines, ACableThatIsOutIsNamedOnBothSides) {
  b().ip({"link", "set", "eth0", "down"});
  const auto began = std::chrono::steady_clock::now();
  const Words words = {"preflight",   "--network", "--skip-dmesg", "--dist-timeout-sec", "4", "--no-html",
                       "--dump-path", file("out"), "--json"};
  const auto programs = start(words);
  const ProgramResult first = programs[0]->wait(), second = programs[1]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 60s);
  EXPECT_EQ(first.exit_code, 2);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(first.out, AllOf(HasSubstr("cluster.missing"), HasSubstr("rank 1")));
  EXPECT_THAT(second.out + second.err,
              AnyOf(HasSubstr("no route leads to MASTER_ADDR"), HasSubstr("leads to rank 0, is down"),
                    HasSubstr("Network is unreachable")));
}

TEST_F(Machines, ATrainingCrossesTheCable) {
  const auto programs = start({"train", "pretrain", "--config", kExperiment, "train_iters=3",
                               "exp_name=two-machines", "workspace=" + file("runs"), "device=cpu"});
  for (const auto& program : programs) {
    ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

// Nobody closes a connection when a cable is pulled: the silence is noticed, and the silent rank named.
TEST_F(Machines, AMachineThatFallsSilentInATrainingIsNamed) {
  const auto programs = start({"train", "pretrain", "--config", kExperiment, "train_iters=1000000",
                               "exp_name=silent", "workspace=" + file("runs"), "device=cpu"});
  ASSERT_TRUE(programs[0]->wait_for_error("iteration        2/", 60) || !programs[0]->running());
  ASSERT_TRUE(programs[0]->running());
  const auto cut = std::chrono::steady_clock::now();
  b().ip({"link", "set", "eth0", "down"});
  const ProgramResult first = programs[0]->wait(), second = programs[1]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 60s);
  EXPECT_NE(first.exit_code, 0);
  EXPECT_NE(second.exit_code, 0);
  EXPECT_THAT(first.err, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace primus
