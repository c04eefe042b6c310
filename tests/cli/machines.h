// Two simulated machines for network tests: namespaces of this machine, each with its own interfaces and host
// name, joined by a virtual cable. Needs root and Debian's iproute2; tests are skipped otherwise.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "base/temporary_folder.h"
#include "cli/program.h"

namespace primus::test {

constexpr const char* kToolPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

// A thread in its own namespaces. Programs that it starts run in these namespaces, which end with their last
// process.
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

  // Returns why the namespaces cannot be made, or "".
  const std::string& why_not() const { return why_not_; }
  // Returns the path of the "net", "mnt" or "uts" namespace, for `ip link ... netns FILE` and `nsenter`.
  std::string space(const std::string& kind) const {
    return "/proc/" + std::to_string(getpid()) + "/task/" + std::to_string(id_) + "/ns/" + kind;
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
  // Runs `ip` on this machine. Throws if it fails, which is an error of the test.
  void ip(const std::vector<std::string>& words) {
    std::vector<std::string> command = {"ip"};
    command.insert(command.end(), words.begin(), words.end());
    const SubprocessResult result = call([&] { return run_subprocess(command, {.path = kToolPath}); });
    if (!result.ok()) throw std::runtime_error("ip failed: " + result.err);
  }
  std::unique_ptr<Program> start(const std::vector<std::string>& words, const test::ProgramOptions& options) {
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
        // After this mount, /sys shows the interfaces of this network namespace.
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0 ||
        sethostname(name_.data(), name_.size()) != 0) {
      return std::string("cannot create namespaces here: ") + std::strerror(errno);
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

// Two machines with the addresses 10.77.0.1 (node-a) and 10.77.0.2 (node-b) on eth0.
class TwoMachines : public ::testing::Test {
 protected:
  void SetUp() override {
    if (find_program("ip", kToolPath).empty()) GTEST_SKIP() << "iproute2 is not installed";
    for (const char* name : {"node-a", "node-b"}) {
      machines_.push_back(std::make_unique<Machine>(name));
      if (!machines_.back()->why_not().empty()) GTEST_SKIP() << machines_.back()->why_not();
    }
    a().ip({"link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b().space("net")});
    int last = 0;
    for (const auto& machine : machines_) {
      machine->ip({"address", "add", "10.77.0." + std::to_string(++last) + "/24", "dev", "eth0"});
      machine->ip({"link", "set", "lo", "up"});
      machine->ip({"link", "set", "eth0", "up"});
    }
    for (const auto& machine : machines_) {  // the kernel reports the state a moment later
      for (int i = 0; i < 100 && machine->call(state_of_eth0) != "up\n"; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  static std::string state_of_eth0() { return read_file("/sys/class/net/eth0/operstate", 4096); }

  Machine& a() { return *machines_[0]; }
  Machine& b() { return *machines_[1]; }
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }

  TemporaryFolder folder_;
  std::vector<std::unique_ptr<Machine>> machines_;
};

}  // namespace primus::test
