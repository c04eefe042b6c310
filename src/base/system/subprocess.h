// Runs another program and catches what it prints, for a limited time: for the tools of drivers and of the
// system, which may hang when what they ask about is broken. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace primus {

struct SubprocessOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
  // Of each of the two outputs; the rest is read and dropped.
  std::size_t output_limit = std::size_t{4} << 20;
  // Folders, separated by colons, in which a program without '/' is looked up.
  std::string path = {};
};

struct SubprocessResult {
  bool found = false;      // the program is there and could be started
  bool timed_out = false;  // it was killed, with all that it started in its process group
  int exit_code = -1;      // where it ended by itself; 128 + the signal that killed it otherwise
  std::string out, err;
  double seconds = 0;
  bool ok() const { return found && !timed_out && exit_code == 0; }
};

// The file that `program` names within the folders of `path`; empty where none can be executed.
std::string find_program(const std::string& program, const std::string& path);

// `command`: the program and its arguments; it reads nothing (/dev/null), and gets this process's
// environment. Never throws for what the program does. Throws Error(kIo) where the system starts no process.
SubprocessResult run_subprocess(const std::vector<std::string>& command, const SubprocessOptions& options);

}  // namespace primus
