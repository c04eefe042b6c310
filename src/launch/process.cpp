#include "launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/error.h"
#include "comm/rendezvous/socket.h"
#include "launch/direct/group_guard.h"
#include "launch/ranks/signals.h"

namespace primus::launch {
namespace {

using comm::Socket;  // also used for descriptors that are not sockets

constexpr std::size_t kMaxOutputLine = 64 << 10;
constexpr std::chrono::seconds kGrace{5};  // time between a signal and SIGKILL

// Returns an anonymous file that contains `text`, positioned at its start.
Socket file_of(const std::string& text) {
  Socket file(memfd_create("primus-input", MFD_CLOEXEC));
  std::size_t written = 0;
  while (file.valid() && written < text.size()) {
    const ssize_t count = write(file.fd(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<std::size_t>(count);
  }
  if (written < text.size() || lseek(file.fd(), 0, SEEK_SET) != 0) {
    throw io_error("cannot pass the input to a program", errno);
  }
  return file;
}

// Makes only calls that work between fork and exec: dup2(), and execvp(), which POSIX does not list as
// async-signal-safe, but which allocates no memory in glibc 2.24 and later. Returns an error code after a
// failure.
int replace_process(char* const* argv, int input) {
  if (input >= 0) dup2(input, 0);
  execvp(argv[0], argv);
  return errno;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

Error cannot_run(const std::string& program, int error) {
  if (error == ENOENT) {
    return {ErrorKind::kDependency, fmt::format("the program '{}' is not installed here", program),
            "install it, or add its folder to PATH"};
  }
  return io_error(fmt::format("cannot run '{}'", program), error);
}

int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw io_error("cannot wait for a program", errno);
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// The child's variables are set in the parent, which no longer needs the old values. `group`: the signal mask
// of a child in a separate process group; null: the child stays in this process's group.
pid_t start(const Step& step, int input, int output, const sigset_t* group = nullptr) {
  apply_environment(step);
  const std::vector<char*> argv = pointers(step.argv);
  std::array<int, 2> failure{};
  if (pipe2(failure.data(), O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
  const Socket failure_read(failure[0]);
  Socket failure_end(failure[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw io_error(fmt::format("cannot start '{}'", step.argv[0]), errno);
  if (pid == 0) {
    // if this process ends, nothing reads the child's output, so the child is killed
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    if (group) {
      setpgid(0, 0);
      sigprocmask(SIG_SETMASK, group, nullptr);
    }
    if (output >= 0) {
      dup2(output, 1);
      dup2(output, 2);
    }
    const int error = replace_process(argv.data(), input);
    [[maybe_unused]] const ssize_t written = write(failure_end.fd(), &error, sizeof(error));
    _exit(127);
  }
  if (group) setpgid(pid, pid);  // in parent and child, because either may run first
  failure_end.close();
  int error = 0;
  if (read(failure_read.fd(), &error, sizeof(error)) == sizeof(error)) {
    wait_for(pid);
    throw cannot_run(step.argv[0], error);
  }
  return pid;
}

// Splits a program's output into lines.
class Lines {
 public:
  explicit Lines(const std::function<void(std::string_view)>& line) : line_(line) {}

  // Reads once; returns false at the end.
  bool read_from(int fd) {
    std::array<char, 16 << 10> buffer{};
    const ssize_t got = read(fd, buffer.data(), buffer.size());
    if (got < 0) return errno == EINTR;
    if (got == 0) return false;
    text_.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line_(std::string_view(text_).substr(begin, end - begin));
    }
    text_.erase(0, begin);
    if (text_.size() > kMaxOutputLine) end();
    return true;
  }
  // Flushes an unfinished line.
  void end() {
    if (!text_.empty()) line_(text_);
    text_.clear();
  }

 private:
  const std::function<void(std::string_view)>& line_;
  std::string text_;
};

// The pipe that receives a program's standard output and standard error. start() starts the program with
// empty input.
class Outputs {
 public:
  Outputs() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
    from_ = Socket(ends[0]);
    to_ = Socket(ends[1]);
  }
  pid_t start(const Step& step, const sigset_t* group = nullptr) {
    const Socket nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const pid_t pid = launch::start(step, nothing.fd(), to_.fd(), group);
    to_.close();
    return pid;
  }
  int from() const { return from_.fd(); }

 private:
  Socket from_, to_;
};

// A program and all processes that stay in its process group.
class ProcessGroup {
 public:
  ProcessGroup(const Step& step, const std::function<void(std::string_view)>& line)
      : lines_(line), leader_(outputs_.start(step, &signals_.before())) {
    guard_.add(leader_);
  }

  int run() {
    for (bool open = true; open && !stop_;) {
      std::array<pollfd, 2> polled{pollfd{outputs_.from(), POLLIN, 0}, pollfd{signals_.fd(), POLLIN, 0}};
      poll(polled.data(), polled.size(), kLookMs);
      if (polled[0].revents != 0) open = lines_.read_from(outputs_.from());
      pass_on();
      look();
    }
    while (!stop_ && !status_) {  // the output is closed, but the program is still running
      std::array<pollfd, 1> polled{pollfd{signals_.fd(), POLLIN, 0}};
      poll(polled.data(), polled.size(), kWaitMs);
      pass_on();
      look();
    }
    if (stop_) end_by_signal();
    lines_.end();
    reclaim_terminal();
    const int status = *status_;
    if (had_terminal_ && WIFSIGNALED(status) && asks_to_stop(WTERMSIG(status))) raise_own(WTERMSIG(status));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  static constexpr int kLookMs = 200, kWaitMs = 5;
  // Maximum number of reads between two checks for the end, since some programs write without pause.
  static constexpr int kMaxReads = 64;

  void pass_on() {
    while (const auto signal = signals_.next()) {
      kill(-leader_, *signal);
      if (asks_to_stop(*signal)) stop_ = *signal;
    }
  }

  // Checks whether the leader has ended. If the leader was stopped because it used the terminal, makes the
  // leader's group the terminal's foreground group.
  void look() {
    int status = 0;
    if (status_ || waitpid(leader_, &status, WNOHANG | WUNTRACED) != leader_) return;
    if (!WIFSTOPPED(status)) {
      status_ = status;
    } else if (WSTOPSIG(status) == SIGTTIN || WSTOPSIG(status) == SIGTTOU) {
      terminal_ = Socket(open("/dev/tty", O_RDWR | O_CLOEXEC));
      had_terminal_ = terminal_.valid() && tcsetpgrp(terminal_.fd(), leader_) == 0;
      kill(-leader_, had_terminal_ ? SIGCONT : SIGKILL);
    }
  }

  void reclaim_terminal() {
    if (!had_terminal_) return;
    sigset_t set, before;
    sigemptyset(&set);
    sigaddset(&set, SIGTTOU);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    tcsetpgrp(terminal_.fd(), getpgrp());
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  [[noreturn]] void end_by_signal() {
    const auto kill_at = std::chrono::steady_clock::now() + kGrace;
    fcntl(outputs_.from(), F_SETFL, O_NONBLOCK);
    const auto gone = [&] { return kill(-leader_, 0) != 0 && errno == ESRCH; };
    for (bool killed = false; !gone() && !killed;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kWaitMs));
      for (int reads = 0; reads < kMaxReads && lines_.read_from(outputs_.from()); ++reads) continue;
      look();
      killed = std::chrono::steady_clock::now() >= kill_at;
      if (killed) kill(-leader_, SIGKILL);
    }
    lines_.end();
    reclaim_terminal();
    raise_own(*stop_);
  }

  // Ends this process by the signal.
  [[noreturn]] static void raise_own(int signal) {
    ::signal(signal, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    kill(getpid(), signal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    _exit(128 + signal);
  }

  GroupGuard guard_;
  Signals signals_;
  Outputs outputs_;
  Lines lines_;
  pid_t leader_;
  std::optional<int> stop_, status_;
  Socket terminal_;
  bool had_terminal_ = false;
};

}  // namespace

void apply_environment(const Step& step) {
  for (const std::string& name : step.unset) unsetenv(name.c_str());
  for (const auto& [name, value] : step.environment) setenv(name.c_str(), value.c_str(), 1);
}

void become(const Step& step) {
  apply_environment(step);
  const Socket input = step.input.empty() ? Socket() : file_of(step.input);
  const std::vector<char*> argv = pointers(step.argv);
  throw cannot_run(step.argv[0], replace_process(argv.data(), input.fd()));
}

int run_and_wait(const Step& step) {
  const Socket input = step.input.empty() ? Socket() : file_of(step.input);
  return wait_for(start(step, input.fd(), -1));
}

int run_and_read(const Step& step, const std::function<void(std::string_view)>& line) {
  Outputs outputs;
  const pid_t pid = outputs.start(step);
  Lines lines(line);
  while (lines.read_from(outputs.from())) continue;
  lines.end();
  return wait_for(pid);
}

int run_group_and_read(const Step& step, const std::function<void(std::string_view)>& line) {
  return ProcessGroup(step, line).run();
}

}  // namespace primus::launch
