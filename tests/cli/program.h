// Runs the built program as a user does. Takes arguments; returns the exit code, standard output and standard
// error.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace primus::test {

struct ProgramOptions {
  std::string folder = ".";                        // working folder
  std::map<std::string, std::string> environment;  // variables that are added to the test's own environment
  std::string input;                               // standard input, through a pipe
  std::string input_file;                          // standard input from this file; "": through the pipe
  std::string output;                              // standard output to this file; "": captured
  bool closed_errors = false;                      // standard error is closed (2>&-)
  bool terminal = false;                           // standard output is a terminal, and still captured
  bool error_terminal = false;                     // standard error is a terminal
  rlim_t file_size_limit = RLIM_INFINITY;          // max bytes of a written file (ulimit -f)
  rlim_t memory_limit = RLIM_INFINITY;             // max bytes of address space (ulimit -v)
  rlim_t open_files_limit = 0;                     // max open files (ulimit -n); 0: unchanged
};

struct ProgramResult {
  int exit_code = -1;  // the exit code, if the program exited
  int signal = 0;      // if a signal killed it
  std::string out, err;
};

// A running process. The destructor kills and reaps it if it still runs.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const ProgramOptions& options = {}) {
    int out[2], err[2], in[2];
    if ((options.terminal ? open_terminal(out) : pipe(out)) != 0 ||
        (options.error_terminal ? open_terminal(err) : pipe(err)) != 0 || pipe(in) != 0)
      throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ == 0) {
      dup2(options.input_file.empty() ? in[0] : open(options.input_file.c_str(), O_RDONLY), 0);
      dup2(options.output.empty() ? out[1] : open(options.output.c_str(), O_WRONLY), 1);
      dup2(err[1], 2);
      for (const int* ends : {out, err, in}) {
        close(ends[0]);
        close(ends[1]);
      }
      if (options.closed_errors) close(2);
      signal(SIGHUP, SIG_DFL);  // the tests' environment may ignore it
      const rlimit limit{options.file_size_limit, options.file_size_limit};
      const rlimit memory{options.memory_limit, options.memory_limit};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || setrlimit(RLIMIT_AS, &memory) != 0 ||
          chdir(options.folder.c_str()) != 0)
        _exit(126);
      const rlimit files{options.open_files_limit, options.open_files_limit};
      if (options.open_files_limit > 0 && setrlimit(RLIMIT_NOFILE, &files) != 0) _exit(126);
      for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> argv{const_cast<char*>(PRIMUS_PROGRAM)};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(PRIMUS_PROGRAM, argv.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    close(in[0]);
    // Test inputs fit into a pipe's buffer. SIGPIPE is ignored, because a program that has ended does not
    // read.
    signal(SIGPIPE, SIG_IGN);
    [[maybe_unused]] const ssize_t written = ::write(in[1], options.input.data(), options.input.size());
    close(in[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Program() {
    if (pid_ > 0) {
      send(SIGKILL);
      wait();
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void send(int signal_number) const { kill(pid_, signal_number); }
  pid_t pid() const { return pid_; }

  // Returns whether the process still runs. Its output is left for wait().
  bool running() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }

  // Reads standard error until `text` appears. Returns false if the process ended or `seconds` passed.
  bool wait_for_error(const std::string& text, int seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (seen_errors_.find(text) == std::string::npos) {
      pollfd ready{err_, POLLIN, 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0 || poll(&ready, 1, static_cast<int>(left.count())) <= 0) return false;
      std::array<char, 4096> buffer{};
      const ssize_t count = read(err_, buffer.data(), buffer.size());
      if (count <= 0) return false;
      seen_errors_.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return true;
  }

  // Returns the CPU time of all threads in seconds.
  double processor_seconds() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    std::istringstream fields(text.substr(text.rfind(')') + 1));
    std::string skipped;
    for (int i = 3; i < 14; ++i) fields >> skipped;
    double user = 0, system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }

  // Reads all output and reaps the process.
  ProgramResult wait() {
    ProgramResult result;
    result.err = std::move(seen_errors_);
    std::array<pollfd, 2> ends{pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
    std::array<std::string*, 2> texts{&result.out, &result.err};
    for (int open = 2; open > 0;) {
      if (poll(ends.data(), ends.size(), -1) < 0 && errno != EINTR) throw std::runtime_error("poll");
      for (std::size_t i = 0; i < ends.size(); ++i) {
        if (ends[i].fd < 0 || ends[i].revents == 0) continue;
        std::array<char, 4096> buffer{};
        const ssize_t count = read(ends[i].fd, buffer.data(), buffer.size());
        if (count > 0) {
          texts[i]->append(buffer.data(), static_cast<std::size_t>(count));
        } else {
          close(ends[i].fd);
          ends[i].fd = -1;
          --open;
        }
      }
    }
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
    return result;
  }

 private:
  // Opens both ends of a terminal; the program's end is the second.
  static int open_terminal(int ends[2]) {
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
    if (ends[0] < 0 || grantpt(ends[0]) != 0 || unlockpt(ends[0]) != 0) return -1;
    ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
    return ends[1] < 0 ? -1 : 0;
  }

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  std::string seen_errors_;  // read by wait_for_error
};

inline ProgramResult run_program(const std::vector<std::string>& arguments,
                                 const ProgramOptions& options = {}) {
  return Program(arguments, options).wait();
}

}  // namespace primus::test
