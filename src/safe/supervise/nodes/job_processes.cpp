#include "safe/supervise/nodes/job_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/system/control_groups.h"
#include "base/system/subprocess.h"

namespace primus::supervise {
namespace {

using namespace std::chrono_literals;

// Returns the content of a file of /proc; empty if the process has ended or the kernel refuses.
std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string one_line(const std::string& path) {
  std::string text = content(path);
  std::replace(text.begin(), text.end(), '\0', ' ');
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

std::vector<pid_t> numbers(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<pid_t>(words), {}};
}

// Names of folders that are numbers: threads of a process.
std::vector<pid_t> threads_of(pid_t pid) {
  std::vector<pid_t> threads;
  std::error_code ended;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), ended)) {
    const std::string name = entry.path().filename().string();
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc())
      threads.push_back(thread);
  }
  std::sort(threads.begin(), threads.end());
  return threads;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> all;
  for (const pid_t thread : threads_of(pid)) {
    const auto some = numbers(content(fmt::format("/proc/{}/task/{}/children", pid, thread)));
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

// The fields of a stat file (proc(5)) after the program's name.
struct Stat {
  char state = '?';
  double processor_seconds = 0;
};
Stat stat_of(const std::string& path) {
  const std::string text = content(path);
  const std::size_t name_end = text.rfind(')');
  if (name_end == text.npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Stat stat;
  std::string skipped;
  fields >> stat.state;
  constexpr int kBetween = 10;  // fields between the state and utime
  for (int i = 0; i < kBetween; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  stat.processor_seconds = (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return stat;
}

std::uint64_t bytes_of(pid_t pid) {
  std::istringstream lines(content(fmt::format("/proc/{}/io", pid)));
  std::uint64_t sum = 0, value = 0;
  for (std::string key; lines >> key >> value;) {
    if (key == "rchar:" || key == "wchar:") sum += value;
  }
  return sum;
}

// Returns whether the thread waits in a write to its standard output or error.
bool writes_output(const std::string& task) {
  std::istringstream words(content(task + "/syscall"));
  long number = -1;
  std::string descriptor;
  words >> number >> descriptor;
  return (number == SYS_write || number == SYS_writev) && (descriptor == "0x1" || descriptor == "0x2");
}

// Adds the children of processes, their children, and so on. A process that starts another one meanwhile is
// seen at the next call.
std::vector<pid_t> with_descendants(std::vector<pid_t> found) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto more = children_of(found[i]);
    found.insert(found.end(), more.begin(), more.end());
  }
  return found;
}

// Stacks in user space, from a debugger that takes at most `time`.
std::string stacks_of(pid_t pid, std::chrono::milliseconds time) {
  if (time <= 0ms) return "  no stacks in user space: those of other processes took too long\n";
  const char* const path = std::getenv("PATH");
  const SubprocessOptions options{.timeout = std::min(time, std::chrono::milliseconds(10s)),
                                  .output_limit = std::size_t{256} << 10,
                                  .path = path ? path : "/usr/bin:/bin"};
  const std::string number = std::to_string(pid);
  const std::vector<std::vector<std::string>> tools = {
      {"eu-stack", "-p", number},
      {"gdb", "--batch", "-nx", "-iex", "set debuginfod enabled off", "-p", number, "-ex",
       "thread apply all bt 64"}};
  for (const std::vector<std::string>& tool : tools) {
    if (find_program(tool[0], options.path).empty()) continue;
    const SubprocessResult result = run_subprocess(tool, options);
    if (!result.out.empty()) return fmt::format("  stacks by {}:\n{}\n", tool[0], result.out);
  }
  return "  no stacks in user space: neither eu-stack nor gdb could read them\n";
}

}  // namespace

JobProcesses::JobProcesses(const sigset_t& mask) : mask_(mask) {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw io_error("cannot adopt the processes of a job", errno);
  guard_ = std::make_unique<launch::GroupGuard>();
  own_ = children_of(::getpid());
}

JobProcesses::~JobProcesses() {
  std::vector<pid_t> remaining;
  if (pid_ > 0) end_all(remaining);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

// Prepares all data before the fork. execvp() allocates no memory in glibc 2.24 and later.
void JobProcesses::start(const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& variables) {
  const auto pointers = [](const std::vector<std::string>& words) {
    std::vector<char*> all;
    for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
    all.push_back(nullptr);
    return all;
  };
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) environment.push_back(text);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(command), envp = pointers(environment);
  const comm::Socket nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw io_error("cannot start the job", errno, "check 'ulimit -u' and free memory");
  if (pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);  // the parent died before prctl
    ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::dup2(nothing.fd(), 0);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // in parent and child, because either may run first
  guard_->add(pid);
  pid_ = pid;
  ended_ = comm::Socket(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!ended_.valid()) throw io_error("cannot watch a process", errno);
}

void JobProcesses::send(int signal_number) const {
  if (pid_ > 0) ::kill(pid_, signal_number);
}

bool JobProcesses::is_of_job(pid_t child) const {
  return std::find(own_.begin(), own_.end(), child) == own_.end();
}

std::vector<pid_t> JobProcesses::all() const {
  std::vector<pid_t> found;
  for (const pid_t child : children_of(::getpid())) {
    if (is_of_job(child)) found.push_back(child);
  }
  return with_descendants(std::move(found));
}

void JobProcesses::reap() {
  for (const pid_t child : children_of(::getpid())) {
    if (child != pid_ && is_of_job(child)) ::waitpid(child, nullptr, WNOHANG);
  }
}

void JobProcesses::end_orphans() {
  // A process may start another one between the search and its end, and keeps its ports until it has ended.
  const auto until = std::chrono::steady_clock::now() + 2s;
  for (;;) {
    reap();
    std::vector<pid_t> found;
    for (const pid_t child : children_of(::getpid())) {
      if (child != pid_ && is_of_job(child)) found.push_back(child);
    }
    if (found.empty() || std::chrono::steady_clock::now() > until) return;
    for (const pid_t pid : with_descendants(std::move(found))) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(2ms);
  }
}

int JobProcesses::end_all(std::vector<pid_t>& remaining) {
  int status = pid_ > 0 ? SIGKILL : 0;  // also if the kernel does not end it
  const auto until = std::chrono::steady_clock::now() + 30s;
  if (pid_ > 0) ::kill(-pid_, SIGKILL);
  for (;;) {
    remaining = all();
    for (const pid_t pid : remaining) ::kill(pid, SIGKILL);
    // Reaps this process's children, but not the guard.
    for (const pid_t pid : remaining) {
      int ended = 0;
      if (::waitpid(pid, &ended, WNOHANG) == pid && pid == pid_) status = ended;
    }
    remaining = all();
    if (remaining.empty() || std::chrono::steady_clock::now() > until) break;
    std::this_thread::sleep_for(2ms);
  }
  if (pid_ > 0) guard_->remove(pid_);
  pid_ = -1;
  ended_.close();
  return status;
}

bool JobProcesses::wait_for_end(std::vector<pid_t>& remaining) {
  for (const pid_t pid : all()) ::waitpid(pid, nullptr, WNOHANG);
  remaining = all();
  return remaining.empty();
}

std::string remaining_text(const std::vector<pid_t>& remaining) {
  return fmt::format("process{} {} cannot be ended: the kernel waits for a device or a file system",
                     remaining.size() == 1 ? "" : "es", fmt::join(remaining, ", "));
}

JobSample JobProcesses::sample(double now) {
  JobSample sample{.time = now};
  for (const pid_t pid : all()) {
    const Stat stat = stat_of(fmt::format("/proc/{}/stat", pid));
    sample.processor_seconds += stat.processor_seconds;
    traffic_.add(pid, now, bytes_of(pid));
    if (stat.state == 'T') sample.stopped = pid;
    for (const pid_t thread : threads_of(pid)) {
      const std::string task = fmt::format("/proc/{}/task/{}", pid, thread);
      sample.waits_for_disk = sample.waits_for_disk || stat_of(task + "/stat").state == 'D';
      sample.waits_for_reader = sample.waits_for_reader || writes_output(task);
    }
  }
  sample.bytes = traffic_.total();
  return sample;
}

std::optional<int> JobProcesses::rank_of(pid_t pid) {
  constexpr std::string_view kName("\0RANK=", 6);
  const std::string text = '\0' + content(fmt::format("/proc/{}/environ", pid));
  const std::size_t at = text.find(kName);
  int rank = 0;
  if (at == text.npos) return std::nullopt;
  const char* const begin = text.data() + at + kName.size();
  return std::from_chars(begin, text.data() + text.size(), rank).ec == std::errc() ? std::optional(rank)
                                                                                   : std::nullopt;
}

std::string JobProcesses::describe() const {
  const auto until = std::chrono::steady_clock::now() + 30s;
  std::string text;
  for (const pid_t pid : all()) {
    const std::string folder = fmt::format("/proc/{}", pid);
    const std::optional<int> rank = rank_of(pid);
    text += fmt::format("process {}{}: {}\n", pid, rank ? fmt::format(", rank {}", *rank) : "",
                        one_line(folder + "/cmdline"));
    for (const pid_t thread : threads_of(pid)) {
      const std::string task = fmt::format("{}/task/{}", folder, thread);
      const Stat stat = stat_of(task + "/stat");
      text += fmt::format("  thread {} ({}): state {}, processor time {:.2f} s, wchan {}, syscall {}\n",
                          thread, one_line(task + "/comm"), stat.state, stat.processor_seconds,
                          one_line(task + "/wchan"), one_line(task + "/syscall"));
      const std::string kernel = content(task + "/stack");
      if (!kernel.empty()) text += "  stack in the kernel:\n" + kernel;
    }
    text += stacks_of(
        pid, std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()));
  }
  return text;
}

int exit_code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

std::optional<std::int64_t> memory_kills(const std::string& root) {
  const auto kills_in = [](const std::string& file) -> std::optional<std::int64_t> {
    std::istringstream lines(content(file));
    std::int64_t value = 0;
    for (std::string key; lines >> key >> value;) {
      if (key == "oom_kill") return value;
    }
    return std::nullopt;
  };
  // The own group comes first. In version 1 of control groups, a parent does not count the kills of its
  // children. In version 2 it does, and some groups have no counter.
  for (const ControlGroup& group : control_groups("memory", root)) {
    if (const auto kills = kills_in(group.folder + (group.v2 ? "/memory.events" : "/memory.oom_control")))
      return kills;
    if (!group.v2) break;
  }
  return kills_in(root + "/proc/vmstat");
}

}  // namespace primus::supervise
