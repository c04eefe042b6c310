// Helpers for tests of runs with several processes: their command, process ids and shared memory.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_folder.h"
#include "cli/program.h"
#include "cli/runs.h"
#include "fault/long_runs.h"

namespace primus::test {

// Returns the command that trains `name` with `ranks` processes.
inline std::vector<std::string> train_ranks(const TemporaryFolder& folder, const std::string& name, int ranks,
                                            const std::string& level, std::vector<std::string> more) {
  for (const std::string& word :
       {"exp_name=" + name, "--nproc=" + std::to_string(ranks), "data_parallel_sharding_strategy=" + level,
        std::string("reduce_gradients_each_microbatch=false")})
    more.push_back(word);
  return train(folder.path(), more);
}

inline void expect_done(const ProgramResult& result) { ASSERT_EQ(result.exit_code, 0) << result.err; }

// Returns the child processes of `parent`.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// Returns the process that a supervisor watches; 0: there is none at the moment.
inline pid_t job_of(pid_t supervisor) {
  for (const pid_t child : children_of(supervisor)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/comm");
    std::string name;
    if (file >> name && !name.starts_with("primus-")) return child;  // guards, and the sender of alerts
  }
  return 0;
}

// Finds the rank's process by its environment. Returns 0 if it does not exist yet.
inline pid_t process_of_rank(pid_t launcher, int rank) {
  for (const pid_t child : children_of(launcher)) {
    std::ifstream file("/proc/" + std::to_string(child) + "/environ", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find(std::string("\0RANK=", 6) + std::to_string(rank) + '\0') != std::string::npos) return child;
  }
  return 0;
}

inline std::size_t shared_memory_segments() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    count += entry.path().filename().string().starts_with("primus") ? 1 : 0;
  return count;
}

}  // namespace primus::test
