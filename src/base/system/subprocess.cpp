#include "base/system/subprocess.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <thread>

#include "base/check.h"
#include "base/error.h"

namespace primus {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  void set(int fd) {
    close();
    fd_ = fd;
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
    read.set(ends[0]);
    write.set(ends[1]);
  }
  Descriptor read, write;
};

bool executable(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(file.c_str(), X_OK) == 0;
}

// Sets `input` to /dev/null, or to a pipe or a file in memory that holds `text`. The pipe is read
// only when the program runs, so it must be able to hold the complete text.
void open_input(const std::string& text, Descriptor& input) {
  PRIMUS_CHECK("run_subprocess", text.size() <= SubprocessOptions::kMaxInputBytes);
  if (text.empty()) {
    input.set(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (input.get() < 0) throw io_error("cannot open '/dev/null'", errno);
    return;
  }
  if (text.size() > PIPE_BUF) {  // the capacity of a pipe is at least PIPE_BUF
    input.set(::memfd_create("input", MFD_CLOEXEC));
    if (input.get() < 0) throw io_error("cannot make a file in memory", errno);
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t count =
          ::pwrite(input.get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) throw io_error("cannot write to a file in memory", errno);
      done += static_cast<std::size_t>(count);
    }
    return;
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
  input.set(ends[0]);
  const Descriptor write(ends[1]);
  if (::write(write.get(), text.data(), text.size()) < 0) throw io_error("cannot write to a pipe", errno);
}

// Gives up the rights of root, if this process has them. Returns false if the system refuses.
bool drop_root() {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() != 0) return true;
  return ::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
         ::setresuid(kNobody, kNobody, kNobody) == 0;
}

// Returns the milliseconds until `end`, for poll().
int left(Clock::time_point end) {
  const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return time <= 0 ? 0 : static_cast<int>(std::min<decltype(time)>(time, 60'000));
}

// The end of the time of a program.
struct Limit {
  Clock::time_point end;
  const std::atomic<bool>* stop = nullptr;

  bool reached() const {
    return Clock::now() >= end || (stop != nullptr && stop->load(std::memory_order_relaxed));
  }
  // Returns the milliseconds for poll().
  int wait() const { return stop == nullptr ? left(end) : std::min(left(end), 50); }
};

// Reads both outputs until they are closed. Returns false if the limit is reached first.
bool read_outputs(Pipe& out, Pipe& err, const Limit& time, std::size_t limit, SubprocessResult& result) {
  std::array<Descriptor*, 2> ends{&out.read, &err.read};
  const std::array<std::string*, 2> texts{&result.out, &result.err};
  while (ends[0]->get() >= 0 || ends[1]->get() >= 0) {
    std::array<pollfd, 2> waiting{pollfd{ends[0]->get(), POLLIN, 0}, pollfd{ends[1]->get(), POLLIN, 0}};
    const int ready = ::poll(waiting.data(), waiting.size(), time.wait());
    if (ready < 0 && errno == EINTR) continue;
    if (time.reached()) return false;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i]->get() < 0 || waiting[i].revents == 0) continue;
      std::array<char, 16384> buffer;
      const ssize_t count = ::read(ends[i]->get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        ends[i]->close();
      } else if (texts[i]->size() < limit) {
        texts[i]->append(buffer.data(), std::min(static_cast<std::size_t>(count), limit - texts[i]->size()));
      }
    }
  }
  return true;
}

// Waits for the child. Returns true if it ended before the limit.
bool reap(pid_t child, const Limit& time, int& status) {
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return true;
    if (time.reached()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

std::string find_program(const std::string& program, const std::string& path) {
  if (program.find('/') != std::string::npos) return executable(program) ? program : std::string();
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string file = path.substr(begin, end - begin) + "/" + program;
    if (end > begin && executable(file)) return file;
    begin = end + 1;
  }
  return {};
}

SubprocessResult run_subprocess(const std::vector<std::string>& command, const SubprocessOptions& options) {
  SubprocessResult result;
  const std::string file = find_program(command.front(), options.path);
  if (file.empty()) return result;
  const auto start = Clock::now();
  const Limit time{.end = start + options.timeout, .stop = options.stop};

  Pipe out, err;
  Descriptor input;
  open_input(options.input, input);
  // Allocate before the fork: the child of a multi-threaded process must not allocate.
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw io_error("cannot start '" + file + "'", errno, "check 'ulimit -u' and free memory");
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(input.get(), 0);
    ::dup2(out.write.get(), 1);
    ::dup2(err.write.get(), 2);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    if (!options.unprivileged || drop_root()) ::execv(file.c_str(), argv.data());
    ::_exit(127);
  }
  input.close();
  ::setpgid(child, child);  // also in the child, because either may run first
  out.write.close();
  err.write.close();

  int status = 0;
  result.found = true;
  const bool whole = read_outputs(out, err, time, options.output_limit, result);
  if (!whole || !reap(child, time, status)) {
    result.timed_out = true;
    ::kill(-child, SIGKILL);
    // This wait is short, because a process that hangs in a broken driver cannot be killed.
    reap(child, {.end = Clock::now() + std::chrono::milliseconds(500)}, status);
  } else {
    result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace primus
