// Checks: what preflight asks of a machine, and what it makes of the answer. A check is data and a function:
// it looks at what was collected, and says pass, skip, warn or fail, with what it found, what it wants, where
// that comes from, and how to put it right. Checks fail closed: one that throws, or says nothing, has failed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safe/preflight/finding.h"
#include "safe/preflight/gpu_facts.h"
#include "safe/preflight/host_facts.h"
#include "safe/preflight/network_facts.h"

namespace primus::preflight {

struct Inventory {
  HostFacts host;
  NetworkFacts network;
  GpuFacts gpu;
};

// A threshold, and who set it.
struct Wanted {
  double value = 0;
  std::string source;
};

// What the machine must have. Where the user set nothing, checks choose by what the machine is for. What is
// set in an optional is a demand: its check runs whichever sections were asked for, and what cannot be seen
// has failed.
struct Requirements {
  int local_ranks = 1, nodes = 1;  // processes of the job on this machine; machines of the job
  std::optional<Wanted> shared_memory_gib, locked_memory_gib;  // 0 switches the check off
  std::optional<Wanted> gpus;                                  // so many
  std::optional<Wanted> rdma_ports;
  std::optional<Wanted> free_gpu_memory_gib;  // of each GPU
  double usual_free_gpu_memory_gib = 0;       // likewise, where nobody demands any; 0: not checked
  static constexpr double kUsualBusyGib = 2, kUsualBusyPercent = 20;  // where the next two are not set
  std::optional<Wanted> busy_memory_gib;                              // that somebody else may hold of a GPU
  std::optional<Wanted> busy_percent;                                 // that a GPU may be busy
  double slow_tool_seconds = 1;                                       // that a tool of a driver may take
  // Speeds in place of the hardware table's: TFLOP/s and GB/s of each device, GB/s between a node's GPUs.
  std::optional<Wanted> least_tflops, least_memory, least_all_reduce;
  bool allow_foreign_processes = false;
  std::vector<std::string> allowed_processes;  // on a GPU, by name
  std::vector<std::string> required_tools;
};

struct StorageFacts;     // safe/preflight/storage.cpp
struct ExperimentFacts;  // safe/preflight/experiment_checks.cpp
struct ClusterFacts;     // safe/preflight/cluster.cpp
struct SearchFacts;      // safe/preflight/slow_search.cpp
struct DriverFacts;      // safe/preflight/performance.cpp
struct DeviceFacts;      // safe/preflight/performance.cpp
struct AllReduceFacts;   // safe/preflight/all_reduce.h

struct CheckInput {
  const Machine& machine;
  const Inventory& found;
  const Requirements& wanted;
  // Each is set for the checks of its group alone.
  const StorageFacts* storage = nullptr;
  const ExperimentFacts* experiment = nullptr;
  const ClusterFacts* cluster = nullptr;
  const SearchFacts* search = nullptr;
  const DriverFacts* drivers = nullptr;
  const DeviceFacts* device = nullptr;
  const AllReduceFacts* all_reduce = nullptr;
};
// For checks that judge no facts of the machine: an empty inventory, and no demand.
CheckInput without_machine();

// Collects what one check says.
class Judge {
 public:
  Judge(std::string_view check, std::string_view category, std::vector<Finding>& findings)
      : check_(check), category_(category), findings_(findings) {}

  void pass(std::string measured, std::string wanted = {}, std::string where = {}) {
    add({.verdict = Verdict::kPass, .where = where, .measured = measured, .wanted = wanted});
  }
  void pass(Finding finding) { add(with(std::move(finding), Verdict::kPass)); }
  void skip(std::string why, std::string where = {}) {
    add({.verdict = Verdict::kSkip, .where = where, .measured = why});
  }
  // What is not set of `finding`: its check and category.
  void warn(Finding finding) { add(with(std::move(finding), Verdict::kWarn)); }
  void fail(Finding finding) { add(with(std::move(finding), Verdict::kFail)); }
  void say(Verdict verdict, Finding finding) { add(with(std::move(finding), verdict)); }
  bool silent() const { return said_ == 0; }

 private:
  static Finding with(Finding finding, Verdict verdict) {
    finding.verdict = verdict;
    return finding;
  }
  void add(Finding finding) {
    finding.check = check_;
    finding.category = category_;
    findings_.push_back(std::move(finding));
    ++said_;
  }

  std::string check_, category_;
  std::vector<Finding>& findings_;
  int said_ = 0;
};

// An option that sets a check's threshold. Setting it is a demand.
struct ThresholdOption {
  // What it is about: the machine, the speed of a device, or that of an exchange. Speeds are not always
  // measured.
  enum class About : std::uint8_t { kMachine, kDevice, kExchange };
  std::string_view name, value, help;  // "--shm-min-gb", "G"
  std::optional<Wanted> Requirements::*field = nullptr;
  int place = 0;  // among the options in help
  About about = About::kMachine;
};

// Each is defined where its function is, as `extern const Check kName{...}` at the beginning of a line; the
// build makes the list (primus_entry_list). Checks of one group run in the order of files and lines.
struct Check {
  std::string_view name, category;
  std::string_view question;  // what it looks at, in one sentence
  void (*judge)(const CheckInput& input, Judge& judge);
  // Whether the user demands something that this check judges; null: nothing that it judges can be demanded.
  bool (*demanded)(const Requirements& wanted) = nullptr;
  ThresholdOption threshold = {};  // without a field: none
  // Saying nothing means that there was nothing to judge; otherwise a silent check has failed.
  bool may_be_silent = false;
  // Those that judge the same facts, and run together ("device"); empty: the checks of the category.
  std::string_view group = {};
};

// All checks of a group ("host"); none where there is no such group.
std::span<const Check> checks_of(std::string_view group);
inline std::span<const Check> host_checks() { return checks_of("host"); }
inline std::span<const Check> network_checks() { return checks_of("network"); }
inline std::span<const Check> gpu_checks() { return checks_of("gpu"); }

// The thresholds of all checks that have one, by place.
std::span<const ThresholdOption> threshold_options();

// Runs them and appends their findings; with `only_demanded`, those alone that the user demands something of.
void run_checks(std::span<const Check> checks, const CheckInput& input, std::vector<Finding>& findings,
                bool only_demanded = false);
// Whether the user demands something of any check.
bool any_demanded(const Requirements& wanted);

}  // namespace primus::preflight
