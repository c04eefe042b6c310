// primus node_smoke
#include "safe/preflight/node_smoke.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"
#include "cli/command.h"
#include "cli/options/own_command.h"
#include "cli/preflight/node_options.h"

namespace primus::cli {
namespace {

using namespace preflight;

constexpr int kSmokeFailed = 1;  // exit code of AMD Primus's node_smoke

class NodeSmoke final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--per-gpu-timeout-sec", "S", &gpu_timeout_, "time limit for each step on a GPU");
    args.flag(
        "--tier2-perf", tier2_,
        "also measure the speed of matrix products, of memory, and of the all-reduce between the node's "
        "GPUs");
    declare_thresholds(args, ThresholdOption::About::kDevice);
    args.option("--rccl-size-mb", "N", &reduce_mib_, "with --tier2-perf: MiB of the all-reduce")
        .between(1, 65536)
        .default_note(kReduceMib);
    declare_thresholds(args, ThresholdOption::About::kExchange);
    args.option("--rccl-timeout-sec", "S", &reduce_timeout_,
                "with --tier2-perf: time limit for the all-reduce")
        .default_note(kReduceTimeout);
    args.option("--dmesg-minutes", "N", &dmesg_minutes_, "minutes of the kernel's log to read")
        .default_note(kDmesgMinutes);
    args.option("--expected-rdma-nics", "N", &expected_ports_,
                "RDMA ports for training that the node must have");
    args.option("--rdma-nic-allowlist", "LIST", &ports_,
                "required RDMA ports for training, in the form of NCCL_IB_HCA (default: that variable, or "
                "all active ports)");
    declare_thresholds(args, ThresholdOption::About::kMachine);
    args.option("--rocm-smi-timeout-sec", "S", &tool_timeout_,
                "time limit for each call of nvidia-smi or rocm-smi");
    args.option("--rocm-smi-warn-sec", "S", &tool_warning_, "warn if a call takes more seconds than this");
    args.option("--hbm-busy-threshold-gib", "G", &use_.busy_gib,
                "GiB of GPU memory that other processes may use")
        .default_note(Requirements::kUsualBusyGib);
    args.flag("--allow-foreign-procs", use_.allow_foreign,
              "warn about other processes on a GPU instead of failing");
    args.option("--allowed-procs", "LIST", &use_.allowed,
                "names of processes that may use a GPU; 'N/A' for those without a name");
    args.option("--gpu-activity-warn-pct", "P", &use_.busy_percent,
                "warn if the utilization of a GPU exceeds this percentage")
        .default_note(Requirements::kUsualBusyPercent);
    args.option("--require-tools", "LIST", &required_tools_, "programs that must be in PATH");
    args.flag("--no-clean-dump-path", keep_, "keep the reports of earlier runs in --dump-path");
    args.option("--expected-nodes", "N", &nodes_.count,
                "number of nodes that must report (default: SLURM_NNODES, SLURM_JOB_NUM_NODES or NNODES)");
    args.option(
            "--expected-nodelist-file", "FILE", &nodes_.list,
            "file with the names of these nodes, one per line (default: Slurm's list of the step's nodes)")
        .reads = all_of_them;
    args.option("--wait-timeout-sec", "S", &nodes_.wait, "how long node 0 waits for the reports of all nodes")
        .between(0, 86400);
    args.option(
        "--clock-skew-warn-sec", "S", &nodes_.clock_skew,
        "warn if the nodes' clocks differ by more than this, including the time between the nodes' starts");
    node_.declare(args, "folder for smoke/<host>.json and the report of all nodes; all nodes must share it",
                  "GPUS_PER_NODE, if set");
  }

  void check_job(int, int, const std::map<std::string, std::string>&) override { check_arguments(); }

  int run(Console& console) override {
    check_arguments();
    std::optional<SmokeResult> result =
        run_node_smoke(std::make_shared<const Machine>(), smoke_options(),
                       [&](std::string_view sentence) { console.note(sentence); });
    if (!result) return 0;
    Report& report = result->report;
    report.generated = time_for_people();
    report.version = PRIMUS_VERSION;
    if (result->is_whole) {
      node_.report.show(report, console);
      console.note("report: " + write_report(report, node_.dump_path, "smoke_report", true, true));
    } else {
      console.note(fmt::format("{}: {}", report.nodes.front().host, name_of(report.verdict())));
    }
    // If one Slurm step covers all nodes, only node 0 reports failure in its exit code. An error of another
    // task could make Slurm kill node 0 before node 0 has written the report of all nodes.
    const bool is_end = result->is_whole || !result->place.one_step;
    const int code = is_end ? node_.report.exit_code(report, kSmokeFailed) : 0;
    leave_stuck_threads(report, code);
    return code;
  }

 private:
  void declare_thresholds(Arguments& args, ThresholdOption::About about) {
    for (const ThresholdOption& option : threshold_options())
      if (option.about == about)
        args.option(option.name, std::string(option.value), &min_[option.name], std::string(option.help));
  }

  void check_arguments() const {
    const auto positive = [](const char* name, double value) {
      if (!(value > 0 && value <= 86400))
        throw invalid(fmt::format("{} {}: not a time from 0 to 86400 seconds", name, value));
    };
    node_.check();
    positive("--per-gpu-timeout-sec", gpu_timeout_);
    positive("--rccl-timeout-sec", reduce_timeout_.value_or(kReduceTimeout));
    positive("--rocm-smi-timeout-sec", tool_timeout_);
    if (dmesg_minutes_ && *dmesg_minutes_ < 1) throw invalid("--dmesg-minutes must be 1 or more");
    if (dmesg_minutes_ && node_.skip_kernel_log)
      throw invalid("--dmesg-minutes and --skip-dmesg exclude each other", "remove one of them");
    if (nodes_.count && *nodes_.count < 1) throw invalid("--expected-nodes must be 1 or more");
    if (expected_ports_ && *expected_ports_ < 0) throw invalid("--expected-rdma-nics must be 0 or more");
    const std::pair<const char*, std::optional<double>> thresholds[] = {
        {"--hbm-busy-threshold-gib", use_.busy_gib},
        {"--gpu-activity-warn-pct", use_.busy_percent},
        {"--rocm-smi-warn-sec", tool_warning_},
        {"--clock-skew-warn-sec", nodes_.clock_skew}};
    const auto check_minimum = [](std::string_view name, const std::optional<double>& value) {
      if (value && !(*value >= 0 && *value < 1e12)) throw invalid(fmt::format("{} must be 0 or more", name));
    };
    for (const auto& [name, value] : min_) check_minimum(name, value);
    for (const auto& [name, value] : thresholds) check_minimum(name, value);
    if (tier2_) return;
    std::vector<std::pair<std::string_view, bool>> measured;
    for (const ThresholdOption& option : threshold_options())
      if (option.about != ThresholdOption::About::kMachine)
        measured.emplace_back(option.name, min_.at(option.name).has_value());
    measured.emplace_back("--rccl-size-mb", reduce_mib_.has_value());
    measured.emplace_back("--rccl-timeout-sec", reduce_timeout_.has_value());
    for (const auto& [name, given] : measured)
      if (given)
        throw invalid(fmt::format("{} applies to speeds, which are measured only with --tier2-perf", name),
                      "add --tier2-perf");
  }

  SmokeOptions smoke_options() const {
    const auto milliseconds = [](double seconds) {
      return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
    };
    const auto demanded = [](const auto& value, const std::string& option) {
      return value ? std::optional(Wanted{static_cast<double>(*value), option}) : std::nullopt;
    };
    SmokeOptions options{.node = node_.node_options({{"reports", node_.dump_path}})};
    options.node.questions.kernel_log_minutes =
        static_cast<int>(std::min<std::int64_t>(dmesg_minutes_.value_or(kDmesgMinutes), 1 << 20));
    options.node.rdma_ports = ports_;
    options.node.tool_timeout = milliseconds(tool_timeout_);
    Requirements& wanted = options.node.wanted;
    wanted.rdma_ports = demanded(expected_ports_, "--expected-rdma-nics");
    for (const ThresholdOption& option : threshold_options())
      wanted.*option.field = demanded(min_.at(option.name), std::string(option.name));
    wanted.busy_memory_gib = demanded(use_.busy_gib, "--hbm-busy-threshold-gib");
    wanted.busy_percent = demanded(use_.busy_percent, "--gpu-activity-warn-pct");
    wanted.slow_tool_seconds = tool_warning_;
    wanted.allow_foreign_processes = use_.allow_foreign;
    wanted.allowed_processes = split_text(use_.allowed, ',');
    wanted.required_tools = split_text(required_tools_, ',');
    std::erase(wanted.required_tools, "");

    options.measures_speeds = tier2_;
    options.performance.timeout = milliseconds(gpu_timeout_);
    options.reduce = {.mib = reduce_mib_.value_or(kReduceMib),
                      .timeout_seconds = reduce_timeout_.value_or(kReduceTimeout)};
    options.dump_path = node_.dump_path;
    options.keeps_earlier_reports = keep_;
    options.expected = {
        .count = nodes_.count, .wait_seconds = nodes_.wait, .clock_skew_seconds = nodes_.clock_skew};
    options.node_list = nodes_.list;
    options.program = own_command().front();
    return options;
  }

  static constexpr std::int64_t kDmesgMinutes = 15;
  static constexpr std::int64_t kReduceMib = SmokeReduce{}.mib;
  static constexpr double kReduceTimeout = SmokeReduce{}.timeout_seconds;

  // Options for the limits above which other processes' use of a GPU fails the test.
  struct {
    std::optional<double> busy_gib, busy_percent;
    bool allow_foreign = false;
    std::string allowed = kAllowedProcesses;
  } use_;
  // Options that say which nodes must report.
  struct {
    std::optional<std::int64_t> count;
    std::string list;
    std::int64_t wait = 60;
    double clock_skew = 30;
  } nodes_;
  std::string ports_, required_tools_;
  std::optional<std::int64_t> expected_ports_, reduce_mib_, dmesg_minutes_;
  std::map<std::string_view, std::optional<double>> min_;  // keyed by the option of a check
  std::optional<double> reduce_timeout_;
  double gpu_timeout_ = 15, tool_timeout_ = 5, tool_warning_ = 1;
  bool tier2_ = false, keep_ = false;
  NodeArguments node_;
};

}  // namespace

extern const CommandEntry kNodeSmoke{
    "node_smoke",
    "Checks every node separately, without a rendezvous, and lists the nodes to exclude",
    "Every node writes smoke/HOST.json. Node 0 (NODE_RANK, SLURM_NODEID) waits for all of them, compares "
    "them, and writes smoke_report.md, .html and .json. It also writes passing_nodes.txt and "
    "failing_nodes.txt, for 'srun --nodelist' and 'srun --exclude'. The checks are those of 'primus "
    "preflight', and exact matrix products on each GPU; --tier2-perf adds speeds.\n\n"
    "If a node has several tasks, the first one does the checks. Thresholds of speeds need --tier2-perf. A "
    "required item that cannot be checked counts as failed.\n\n"
    "The exit code is 0 if nothing failed, 1 if a check failed or a node is missing, and 2 for wrong "
    "arguments. In a Slurm step, node 0 has the exit code for all nodes.",
    "primus node_smoke\n"
    "srun -N 4 --ntasks-per-node=1 primus node_smoke --tier2-perf --dump-path /shared/smoke\n"
    "primus node_smoke --expected-gpus 8 --expected-rdma-nics 8 --require-tools nvidia-smi,ibstat\n"
    "srun --exclude=$(paste -sd, output/preflight/failing_nodes.txt) primus train pretrain --config exp.yaml",
    make_command<NodeSmoke>,
    {Section::kMachine, 2}};

}  // namespace primus::cli
