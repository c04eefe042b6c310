// Runs another program for a limited time and captures its output. The programs are tools of drivers and of
// the system. Such tools may hang if the hardware is broken. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace primus {

struct SubprocessOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  // Maximum size of each of the two outputs, in bytes. Further output is read and dropped.
  std::size_t output_limit = std::size_t{4} << 20;
  // Folders, separated by colons, to search for a program without '/' in its name.
  std::string path = {};
  // Text for the program's standard input, at most kMaxInputBytes; empty: /dev/null.
  std::string input = {};
  static constexpr std::size_t kMaxInputBytes = std::size_t{1} << 20;
  // If this process runs as root, the program runs as the user with the id 65534, without root's rights.
  bool unprivileged = false;
  // If not null, the program is killed soon after another thread has set it, as at the end of the time.
  const std::atomic<bool>* stop = nullptr;
};

struct SubprocessResult {
  bool found = false;  // the program exists and could be started
  // the program exceeded the time limit and was killed, with all processes of its process group
  bool timed_out = false;
  int exit_code = -1;  // its exit code, or 128 + the signal that killed it
  std::string out, err;
  double seconds = 0;
  bool ok() const { return found && !timed_out && exit_code == 0; }
};

// Returns the path of `program` in the folders of `path`; empty if none is executable.
std::string find_program(const std::string& program, const std::string& path);

// Runs `command`, a program and its arguments, and waits for its end. The program inherits this process's
// environment. Failures of the program are reported in the result. Throws Error(kIo) if the system cannot
// start a process.
SubprocessResult run_subprocess(const std::vector<std::string>& command, const SubprocessOptions& options);

}  // namespace primus
