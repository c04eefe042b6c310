// Preflight checks. A check is data and a function. The function judges the collected facts and reports pass,
// skip, warn or fail. A finding has the measured value, the required value and its source, and the way to fix
// the problem. Checks fail closed: a check that throws or has no findings counts as failed.
#pragma once

#include <any>
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

// A threshold and its source.
struct Wanted {
  double value = 0;
  std::string source;
};

// Requirements on the machine. Without the user's settings, checks choose defaults by the machine's role. An
// optional member that the user sets is a demand. The check of a demand runs even if its section was not
// selected. This check fails if the value cannot be measured.
struct Requirements {
  int local_ranks = 1, nodes = 1;                              // ranks on this machine; number of machines in
                                                               // the job
  std::optional<Wanted> shared_memory_gib, locked_memory_gib;  // the value 0 switches the check off
  std::optional<Wanted> gpus;                                  // number of GPUs
  std::optional<Wanted> rdma_ports;
  std::optional<Wanted> free_gpu_memory_gib;  // GiB per GPU
  double usual_free_gpu_memory_gib = 0;       // default without a demand; 0: not checked
  static constexpr double kUsualBusyGib = 2, kUsualBusyPercent = 20;  // defaults of the next two members
  std::optional<Wanted> busy_memory_gib;  // limit for other processes' memory on a GPU
  std::optional<Wanted> busy_percent;     // maximum utilization of a GPU
  double slow_tool_seconds = 1;           // limit for the run time of a driver's tool
  // Minimum speeds that replace the hardware table's: TFLOP/s and GB/s per device, GB/s between a node's
  // GPUs.
  std::optional<Wanted> min_tflops, min_memory, min_all_reduce;
  bool allow_foreign_processes = false;
  std::vector<std::string> allowed_processes;  // names of processes that may use a GPU
  std::vector<std::string> required_tools;
};

struct CheckInput {
  const Machine& machine;
  const Inventory& found;
  const Requirements& wanted;
  std::any subject = {};  // a pointer to the group's facts; see facts()

  // Returns the facts that the check's group judges, as given to judge_group(). Throws if they have another
  // type.
  template <class Facts>
  const Facts& facts() const {
    return *std::any_cast<const Facts*>(subject);
  }
};

// Collects the findings of one check.
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
  // These functions report a finding, and set its check, category and verdict.
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

// A command-line option that sets a check's threshold. A threshold that the user sets is a demand.
struct ThresholdOption {
  // The quantity that the threshold limits: a property of the machine, the speed of a device, or the speed of
  // an exchange between ranks. Speeds are measured only on request.
  enum class About : std::uint8_t { kMachine, kDevice, kExchange };
  std::string_view name, value, help;  // "--shm-min-gb", "G"
  std::optional<Wanted> Requirements::*field = nullptr;
  int place = 0;  // position among the options in help
  About about = About::kMachine;
};

// A check is defined next to its function, as `extern const Check kName{...}` at the start of a line. The
// build collects the list (primus_entry_list). Checks of a group run in the order of files and lines.
struct Check {
  std::string_view name, category;
  std::string_view question;  // the question that the check answers, in one sentence
  void (*judge)(const CheckInput& input, Judge& judge);
  // Returns whether this check judges a demand of the user; null: the check has no demand.
  bool (*demanded)(const Requirements& wanted) = nullptr;
  ThresholdOption threshold = {};  // without a name: the check has no option
  // True: the check passes if it reports no finding. False: the check fails in this case.
  bool may_be_silent = false;
  // Checks of a group judge the same facts and run together ("device"). Empty: the group has the name of the
  // category.
  std::string_view group = {};
};

// Returns all checks of a group ("host"); empty if the group does not exist.
std::span<const Check> checks_of(std::string_view group);
inline std::span<const Check> host_checks() { return checks_of("host"); }
inline std::span<const Check> network_checks() { return checks_of("network"); }
inline std::span<const Check> gpu_checks() { return checks_of("gpu"); }

// Returns the threshold options of all checks, in order of `place`.
std::span<const ThresholdOption> threshold_options();

// Returns the input of checks that do not judge the machine: an empty inventory and no demands.
CheckInput without_machine();
// Runs checks and appends their findings. `only_demanded`: runs only checks that judge a demand of the user.
void run_checks(std::span<const Check> checks, const CheckInput& input, std::vector<Finding>& findings,
                bool only_demanded = false);
// Runs the checks of a group that judges `facts` instead of the machine, and appends their findings. Neither
// the group nor the type of its facts needs any other declaration.
template <class Facts>
void judge_group(std::string_view group, const Facts& facts, std::vector<Finding>& findings) {
  CheckInput input = without_machine();
  input.subject = &facts;
  run_checks(checks_of(group), input, findings);
}
// Returns whether any check judges a demand of the user.
bool any_demanded(const Requirements& wanted);

}  // namespace primus::preflight
