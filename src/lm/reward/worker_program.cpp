#include "lm/reward/worker_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/system/child_groups.h"

namespace primus {
namespace {

using WorkerClock = std::chrono::steady_clock;

void close_end(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

struct PipeEnds {
  PipeEnds() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
  }
  ~PipeEnds() {
    for (int& end : ends) close_end(end);
  }
  PipeEnds(const PipeEnds&) = delete;
  PipeEnds& operator=(const PipeEnds&) = delete;
  // Returns an end of the pipe, made non-blocking; the caller closes it.
  int take(std::size_t end) {
    ::fcntl(ends[end], F_SETFL, O_NONBLOCK);
    return std::exchange(ends[end], -1);
  }
  std::array<int, 2> ends{-1, -1};
};

// Blocks SIGPIPE in this thread, and removes a SIGPIPE that a write has raised.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec now{};
    while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace

WorkerProgram::WorkerProgram(std::vector<std::string> command, std::string folder)
    : command_(std::move(command)), folder_(std::move(folder)) {}

WorkerProgram::~WorkerProgram() { stop(); }

void WorkerProgram::start() {
  PipeEnds in, out, err;
  // Allocate before the fork: the child of a multi-threaded process must not allocate.
  std::vector<char*> argv;
  for (std::string& word : command_) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) {
    throw io_error("cannot start '" + command_.front() + "'", errno, "check 'ulimit -u' and free memory");
  }
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(in.ends[0], 0);
    ::dup2(out.ends[1], 1);
    ::dup2(err.ends[1], 2);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    if (::chdir(folder_.c_str()) == 0) ::execv(argv[0], argv.data());
    const char* const reason = std::strerror(errno);
    if (::write(2, reason, std::strlen(reason)) < 0) ::_exit(126);
    ::_exit(127);
  }
  ::setpgid(child, child);  // parent and child both make this call, because either may run first
  add_child_group(child);
  pid_ = child;
  received_.clear();
  error_text_.clear();
  input_ = in.take(1);
  output_ = out.take(0);
  errors_ = err.take(0);
}

void WorkerProgram::stop() {
  close_end(input_);
  close_end(output_);
  close_end(errors_);
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  remove_child_group(pid_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

// Returns how the program ended, and waits up to a second for its end.
std::string WorkerProgram::ending() {
  int status = 0;
  for (int i = 0; i < 200; ++i) {
    const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == pid_) {
      remove_child_group(pid_);
      ::kill(-pid_, SIGKILL);  // ends the other processes of the group
      pid_ = -1;
      return WIFSIGNALED(status) ? fmt::format("the program was killed by signal {}", WTERMSIG(status))
                                 : fmt::format("the program ended with exit code {}", WEXITSTATUS(status));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "the program closed its input or its output";
}

WorkerProgram::Reply WorkerProgram::failed(Outcome outcome, std::string problem) {
  if (errors_ >= 0) read_errors();  // the last message may explain the failure
  stop();
  return {outcome, {}, std::move(problem)};
}

bool WorkerProgram::write_some(std::string_view& rest) const {
  const NoBrokenPipe guard;
  const ssize_t count = ::write(input_, rest.data(), rest.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  rest.remove_prefix(static_cast<std::size_t>(count));
  return true;
}

bool WorkerProgram::read_output() {
  std::array<char, 16384> buffer;
  const ssize_t count = ::read(output_, buffer.data(), buffer.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  received_.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

bool WorkerProgram::read_errors() {
  constexpr std::size_t kKept = 4096;
  std::array<char, 16384> buffer;
  const ssize_t count = ::read(errors_, buffer.data(), buffer.size());
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  error_text_.append(buffer.data(), static_cast<std::size_t>(count));
  if (error_text_.size() > kKept) error_text_.erase(0, error_text_.size() - kKept);
  return count > 0;
}

WorkerProgram::Reply WorkerProgram::exchange(std::string_view line, std::chrono::milliseconds timeout,
                                             const std::atomic<bool>* stop) {
  constexpr std::int64_t kMaxPoll = 60'000, kStopPoll = 50;  // ms
  if (pid_ < 0) start();
  const auto end = WorkerClock::now() + timeout;
  const std::string request = std::string(line) + "\n";
  std::string_view rest = request;
  // A line that arrived after the last reply belongs to no request.
  if (read_output() && !received_.empty()) {
    return failed(Outcome::kWrong, "the program wrote more than one line for an answer");
  }
  for (;;) {
    const std::size_t line_end = received_.find('\n');
    if (line_end != std::string::npos) {
      if (line_end + 1 != received_.size() || !rest.empty()) {
        return failed(Outcome::kWrong, rest.empty() ? "the program wrote more than one line for an answer"
                                                    : "the program replied before it read the answer");
      }
      std::string reply = std::move(received_);
      received_.clear();
      reply.pop_back();
      return {Outcome::kLine, std::move(reply), {}};
    }
    if (received_.size() > kMaxLineBytes) {
      return failed(Outcome::kWrong,
                    fmt::format("the program wrote a line of more than {} bytes", kMaxLineBytes));
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - WorkerClock::now()).count();
    if (stop && stop->load(std::memory_order_relaxed))
      return failed(Outcome::kTimeout, "the request was cancelled");
    if (left <= 0) {
      return failed(Outcome::kTimeout, fmt::format("the program did not reply within {} s",
                                                   std::chrono::duration<double>(timeout).count()));
    }
    std::array<pollfd, 3> waiting{pollfd{output_, POLLIN, 0}, pollfd{errors_, POLLIN, 0},
                                  pollfd{rest.empty() ? -1 : input_, POLLOUT, 0}};
    const auto wait = std::min<std::int64_t>(left, stop ? kStopPoll : kMaxPoll);
    const int ready = ::poll(waiting.data(), waiting.size(), static_cast<int>(wait));
    if (ready <= 0) continue;
    if (waiting[1].revents != 0 && !read_errors()) close_end(errors_);
    const bool writes = waiting[2].revents == 0 || write_some(rest);
    const bool reads = waiting[0].revents == 0 || read_output();
    if (!writes || !reads) {
      std::string how = ending();
      return failed(Outcome::kEnded, std::move(how));
    }
  }
}

}  // namespace primus
