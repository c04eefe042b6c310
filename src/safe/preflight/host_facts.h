// Facts about the host: processor, memory, limits, kernel, clock, file systems. These facts are collected
// once from /proc, /sys and /etc. host_checks.cpp judges the facts. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/machine.h"

namespace primus::preflight {

struct NumaNode {
  int number = 0, cpus = 0;
  std::int64_t memory = 0, free = 0;  // bytes
};

struct Limit {
  std::optional<std::int64_t> soft;  // nullopt: unlimited
};

// A kernel log line that indicates a problem.
struct KernelProblem {
  std::string kind, line, fix;
  bool serious = false;
};

struct FileSystem {
  std::string use;   // purpose of the file system: "checkpoints"
  std::string path;  // an existing folder on the file system
  std::string type;  // "ext4", "nfs4"; empty: unknown
  std::optional<Space> space;
};

struct HostFacts {
  std::string name, system, kernel, libc, container;  // container: "docker"; empty: none
  std::string cpu_model, governor;
  int sockets = 0, cores = 0, cpus = 0;  // cpus: online hardware threads
  int usable_cpus = 0;                   // CPUs in this process's affinity mask
  double cpu_quota = 0;                  // CPU time allowed by control groups, in cpus; 0: no limit
  std::vector<NumaNode> numa;

  std::int64_t memory = 0, available = 0;  // bytes; within limits of control groups
  std::string memory_limited_by;           // the control group's folder
  std::int64_t swap = 0, swap_used = 0;
  std::int64_t huge_pages = 0, huge_page_bytes = 0;
  std::string transparent_huge_pages;                                       // "madvise"
  std::int64_t corrected_memory_errors = 0, uncorrected_memory_errors = 0;  // host memory errors (EDAC)

  std::optional<Space> shared_memory;
  std::map<std::string, Limit> limits;    // keyed by their names in /proc/self/limits
  std::optional<std::int64_t> pids_left;  // further processes that control groups allow
  std::optional<double> load;             // runnable processes, averaged over a minute
  ClockState clock;
  std::vector<FileSystem> file_systems;
  std::optional<std::vector<KernelProblem>> kernel_problems;  // nullopt: reading the log is not permitted
  std::string why_no_kernel_log;
};

struct HostQuestions {
  std::vector<std::pair<std::string, std::string>> folders = {};  // pairs (use, path) of file systems to
                                                                  // check
  bool read_kernel_log = true;
  int kernel_log_minutes = 15;
};

HostFacts collect_host(const Machine& machine, const HostQuestions& questions);
void add_facts(const HostFacts& host, std::vector<Fact>& facts);

// Returns the problems in a kernel log (dmesg lines, "[ 123.45] text") that are at most `seconds` old at an
// uptime of `uptime` seconds.
std::vector<KernelProblem> kernel_problems(std::string_view log, double uptime, double seconds);

}  // namespace primus::preflight
