#include "launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "comm/rendezvous/socket.h"

namespace primus::launch {
namespace {

using comm::Socket;  // any descriptor that is closed at the end

constexpr std::size_t kMaxLine = 64 << 10;

// A file without a name that holds `text`, to read from its beginning.
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
    throw io_error("cannot hand the input to a program", errno);
  }
  return file;
}

// Only what is safe between fork and exec, too. Returns where it failed.
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
    return {ErrorKind::kDependency, fmt::format("there is no program '{}' here", program),
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

// The child's variables are set in the parent before: a step is the last thing that needs them.
pid_t start(const Step& step, int input, int output) {
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
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read what it writes
    if (getppid() != parent) _exit(127);
    if (output >= 0) {
      dup2(output, 1);
      dup2(output, 2);
    }
    const int error = replace_process(argv.data(), input);
    [[maybe_unused]] const ssize_t written = write(failure_end.fd(), &error, sizeof(error));
    _exit(127);
  }
  failure_end.close();
  int error = 0;
  if (read(failure_read.fd(), &error, sizeof(error)) == sizeof(error)) {
    wait_for(pid);
    throw cannot_run(step.argv[0], error);
  }
  return pid;
}

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
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw io_error("cannot make a pipe", errno);
  const Socket from(ends[0]);
  Socket to(ends[1]);
  const Socket nothing(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const pid_t pid = start(step, nothing.fd(), to.fd());
  to.close();
  std::string text;
  for (;;) {
    std::array<char, 16 << 10> buffer{};
    const ssize_t got = read(from.fd(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(std::string_view(text).substr(begin, end - begin));
    }
    text.erase(0, begin);
    if (text.size() > kMaxLine) {
      line(text);
      text.clear();
    }
  }
  if (!text.empty()) line(text);
  return wait_for(pid);
}

}  // namespace primus::launch
