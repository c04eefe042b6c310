// Runs Python code of a language model in a sandbox (bubblewrap): without network, with a read-only system,
// in its own namespaces, with limits for time, memory, processes and output.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct SandboxLimits {
  double seconds = 30;    // wall-clock time of the run; the CPU time of each process has the same limit
  int memory_mib = 1024;  // address space of one process
  int files_mib = 64;     // total size of all files in /tmp, which are held in memory
  int processes = 16;     // number of concurrent processes
  int output_kib = 1024;  // size of the standard output, and size of the standard error
};

// A run of code. `code` runs as the module __main__; then `checks` run in the same module.
struct SandboxRun {
  std::string code;
  std::string checks;
  std::string input;  // standard input of the code
};

struct SandboxResult {
  // false: the code did not run, because the sandbox did not start or the checks are no Python code.
  // `problem` is the reason.
  bool started = false;
  bool passed = false;  // the code and the checks ran to their end
  std::string problem;  // why `passed` or `started` is false: a sentence without a period
  std::string output;   // what the code wrote to its standard output
};

// Writes the code to a folder in the system's folder of temporary files, and runs it. `stop`, if not null,
// ends the run soon after another thread has set it; the result then says that the time is over. Thread-safe.
SandboxResult run_in_sandbox(const SandboxRun& run, const SandboxLimits& limits,
                             const std::atomic<bool>* stop = nullptr);

}  // namespace primus
