// primus node_smoke
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/own_command.h"
#include "cli/preflight/node_options.h"
#include "config/inherit.h"
#include "safe/preflight/cluster.h"
#include "safe/preflight/node.h"
#include "safe/preflight/performance.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

using namespace preflight;

constexpr int kFailed = 1;  // as Primus's node_smoke ends

class NodeSmoke final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--per-gpu-timeout-sec", "S", &gpu_timeout_, "time for each step on a GPU");
    args.flag("--tier2-perf", tier2_, "measure products, memory and the all-reduce between the node's GPUs");
    args.option("--gemm-tflops-min", "T", &least_tflops_,
                "with --tier2-perf: the least for products (default: presets/hardware)");
    args.option("--hbm-gbs-min", "G", &least_memory_,
                "with --tier2-perf: the least for memory (default: presets/hardware)");
    args.option("--rccl-size-mb", "N", &reduce_mib_, "with --tier2-perf: MiB of the all-reduce");
    args.option("--rccl-gbs-min", "G", &least_reduce_,
                "with --tier2-perf: the least for the all-reduce (default: presets/hardware)");
    args.option("--rccl-timeout-sec", "S", &reduce_timeout_, "with --tier2-perf: time for the all-reduce");
    args.option("--dmesg-minutes", "N", &dmesg_minutes_, "how far back to read the kernel's log");
    args.option("--expected-rdma-nics", "N", &expected_ports_,
                "RDMA ports for training that the node must have");
    args.option("--rdma-nic-allowlist", "LIST", &ports_,
                "RDMA ports for training, as in NCCL_IB_HCA (default: that variable, else all that are on)");
    args.option("--ulimit-l-min-gb", "G", &least_locked_,
                "GiB that may be locked at least; 0: not checked (default: 32 with RDMA)");
    args.option("--shm-min-gb", "G", &least_shared_,
                "GiB of /dev/shm at least; 0: not checked (default: 8 with GPUs)");
    args.option("--rocm-smi-timeout-sec", "S", &tool_timeout_,
                "time for each call of nvidia-smi or rocm-smi");
    args.option("--rocm-smi-warn-sec", "S", &tool_warning_, "warn where such a call takes longer");
    args.option("--hbm-busy-threshold-gib", "G", &busy_gib_, "GiB of a GPU that others may hold");
    args.flag("--allow-foreign-procs", allow_foreign_,
              "warn of other processes on a GPU, in place of failing");
    args.option("--allowed-procs", "LIST", &allowed_,
                "processes that may be on a GPU, by name; 'N/A' for those without a name");
    args.option("--gpu-activity-warn-pct", "P", &busy_percent_, "warn where a GPU is busier");
    args.option("--require-tools", "LIST", &required_tools_, "programs that must be in PATH");
    args.flag("--no-clean-dump-path", keep_, "keep reports of earlier runs in --dump-path, on rank 0");
    args.option("--expected-nodes", "N", &expected_nodes_,
                "nodes that must report (default: SLURM_NNODES, SLURM_JOB_NUM_NODES or NNODES)");
    args.option("--expected-nodelist-file", "FILE", &node_list_,
                "their names, one a line (default: Slurm's list)");
    args.option("--wait-timeout-sec", "S", &wait_, "how long rank 0 waits for the reports of all nodes");
    args.option("--clock-skew-warn-sec", "S", &clock_skew_,
                "warn where the nodes' clocks are further apart, their starts included");
    node_.declare(args, "where smoke/<host>.json and the report of all nodes go; shared by the nodes",
                  "GPUS_PER_NODE, where set");
  }

  int run(Console& console) override {
    const double begin = steady_seconds();
    check_arguments();
    const auto machine = std::make_shared<const Machine>();
    const std::vector<std::string> names =
        expected_names(*machine);  // a list that cannot be read is said at once
    const int node =
        static_cast<int>(number_of(*machine, {"NODE_RANK", "SLURM_NODEID", "GROUP_RANK"}).value_or(0));
    const double started = machine->wall_clock();
    if (node == 0 && !keep_) clean();

    NodeReport own = look(machine);
    own.rank = own.node = node;
    own.host = own.host.substr(0, own.host.find('.'));  // as Slurm writes names
    own.seconds = steady_seconds() - begin;
    make_folders(folder());
    write_file_atomic(folder() / (own.host + ".json"), json_text(to_json(own)) + "\n");

    if (node != 0) {
      const Report alone = report_of({own}, {}, begin);
      console.note(fmt::format("{}: {}", own.host, name_of(alone.verdict())));
      const int code = node_.report.exit_code(alone, kFailed);
      leave_stuck_threads(alone, code);
      return code;
    }
    const Report report = aggregate(own, names, started, begin);
    node_.report.show(report, console);
    console.note("report: " + write_report(report, node_.dump_path, "smoke_report", true, true));
    const int code = node_.report.exit_code(report, kFailed);
    leave_stuck_threads(report, code);
    return code;
  }

 private:
  Path folder() const { return Path(node_.dump_path) / "smoke"; }

  void check_arguments() const {
    const auto positive = [](const char* name, double value) {
      if (!(value > 0 && value <= 86400))
        throw invalid(fmt::format("{} {}: not a time from 0 to 86400 seconds", name, value));
    };
    node_.check();
    positive("--per-gpu-timeout-sec", gpu_timeout_);
    positive("--rccl-timeout-sec", reduce_timeout_);
    positive("--rocm-smi-timeout-sec", tool_timeout_);
    if (!(wait_ >= 0 && wait_ <= 86400)) throw invalid("--wait-timeout-sec must be from 0 to 86400");
    if (reduce_mib_ < 1 || reduce_mib_ > 65536) throw invalid("--rccl-size-mb must be from 1 to 65536");
    if (dmesg_minutes_ < 1) throw invalid("--dmesg-minutes must be 1 or more");
    if (expected_nodes_ && *expected_nodes_ < 1) throw invalid("--expected-nodes must be 1 or more");
  }

  // The first of these variables that holds a number.
  static std::optional<std::int64_t> number_of(const Machine& machine,
                                               std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      const auto text = machine.variable(name);
      const auto value = text ? leading_number(*text) : std::nullopt;
      if (value && *value >= 0) return value;
    }
    return std::nullopt;
  }

  // Reports of an earlier run, of nodes that may not be in this one.
  void clean() const {
    Env& env = Env::posix();
    if (!env.status(folder())) return;
    for (const std::string& name : env.list(folder()))
      if (name.ends_with(".json")) env.remove_file(folder() / name);
  }

  NodeReport look(const std::shared_ptr<const Machine>& machine) const {
    NodeOptions options = node_.node_options({{"reports", node_.dump_path}});
    options.questions.kernel_log_minutes = static_cast<int>(std::min<std::int64_t>(dmesg_minutes_, 1 << 20));
    options.rdma_ports = ports_;
    options.tool_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(tool_timeout_ * 1e3));
    Requirements& wanted = options.wanted;
    const auto local = number_of(*machine, {"LOCAL_WORLD_SIZE", "GPUS_PER_NODE"});
    wanted.local_ranks = static_cast<int>(std::clamp<std::int64_t>(local.value_or(1), 1, 4096));
    if (const auto gpus = number_of(*machine, {"GPUS_PER_NODE"}); gpus && !wanted.gpus)
      wanted.gpus = Wanted{static_cast<double>(*gpus), "GPUS_PER_NODE"};
    if (expected_ports_)
      wanted.rdma_ports = Wanted{static_cast<double>(*expected_ports_), "--expected-rdma-nics"};
    if (least_shared_) wanted.shared_memory_gib = Wanted{*least_shared_, "--shm-min-gb"};
    if (least_locked_) wanted.locked_memory_gib = Wanted{*least_locked_, "--ulimit-l-min-gb"};
    wanted.busy_memory_gib = busy_gib_;
    wanted.busy_percent = busy_percent_;
    wanted.slow_tool_seconds = tool_warning_;
    wanted.allow_foreign_processes = allow_foreign_;
    wanted.allowed_processes = split_text(allowed_, ',');
    wanted.required_tools = split_text(required_tools_, ',');
    NodeReport report = inspect_node(machine, options);

    const std::vector<std::string> devices = devices_to_measure(*machine, report.findings);
    const std::vector<Hardware> table = read_hardware(
        config::default_preset_dirs([&](const std::string& name) { return machine->variable(name); }));
    PerformanceOptions performance{.products = tier2_, .memory = tier2_, .corruption = true, .quick = true};
    performance.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(gpu_timeout_ * 1e3));
    if (least_tflops_) performance.least_tflops = Wanted{*least_tflops_, "--gemm-tflops-min"};
    if (least_memory_) performance.least_memory = Wanted{*least_memory_, "--hbm-gbs-min"};
    for (const std::string& device : devices) measure_device(device, table, performance, report);
    if (tier2_) {
      measure_all_reduce(static_cast<int>(devices.size()),
                         least_reduce_ ? Wanted{*least_reduce_, "--rccl-gbs-min"}
                                       : least_all_reduce(table, turbo::list_devices()),
                         report);
    }
    return report;
  }

  // Between the GPUs of this node: a job of its own, which may be ended when it hangs.
  void measure_all_reduce(int gpus, const std::optional<Wanted>& least, NodeReport& report) const {
    Finding finding{.check = "performance.all-reduce", .category = "performance"};
    if (gpus < 2) {
      finding.verdict = Verdict::kSkip;
      finding.measured = "there are no two GPUs to exchange";
      report.findings.push_back(std::move(finding));
      return;
    }
    const std::vector<std::string> command{own_command().front(),
                                           "preflight",
                                           "--tests",
                                           "intra-allreduce",
                                           "--nproc",
                                           std::to_string(gpus),
                                           "--comm-sizes-mb",
                                           std::to_string(reduce_mib_),
                                           "--intra-group-sizes",
                                           std::to_string(gpus),
                                           "--dump-path",
                                           (folder() / ("all-reduce-" + report.host)).string(),
                                           "--no-html",
                                           "--json"};
    // A launcher's variables describe another job than this one.
    std::vector<std::string> words{"/usr/bin/env"};
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
      words.insert(words.end(), {"-u", name});
    words.insert(words.end(), command.begin(), command.end());
    const SubprocessResult result = run_subprocess(
        words, {.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(reduce_timeout_ * 1e3))});
    double slowest = 0;
    bool any = false;
    if (result.found && !result.timed_out && !result.out.empty()) {
      const nlohmann::json json = parse_json_object(result.out, "the all-reduce's report");
      for (const nlohmann::json& node : json.value("nodes", nlohmann::json::array())) {
        for (const Measurement& m : node_report(node.dump(), "the all-reduce's report").measurements) {
          slowest = any ? std::min(slowest, m.value) : m.value;
          any = true;
        }
      }
    }
    if (!any) {
      finding.verdict = Verdict::kFail;
      finding.measured =
          result.timed_out
              ? fmt::format("the all-reduce of {} GPUs did not end within {:g} s", gpus, reduce_timeout_)
              : fmt::format("the all-reduce of {} GPUs failed: {}", gpus, trimmed(result.err));
      finding.wanted = "a result";
      finding.source = "checks that cannot be made have failed";
      finding.fix = "run it by hand with NCCL_DEBUG=INFO: primus preflight --tests intra-allreduce --nproc " +
                    std::to_string(gpus);
    } else {
      finding = judge_all_reduce(fmt::format("all-reduce of {} GPUs", gpus), slowest, least);
      report.measurements.push_back({.name = "all-reduce of the node's GPUs",
                                     .where = "node",
                                     .unit = "GB/s",
                                     .value = slowest,
                                     .wanted = least ? least->value : 0,
                                     .compared = true});
    }
    report.findings.push_back(std::move(finding));
  }

  std::vector<std::string> expected_names(const Machine& machine) const {
    std::vector<std::string> names;
    if (!node_list_.empty()) {
      names = lines_of(read_file(node_list_, 16 << 20));
    } else {
      names = slurm_hosts(machine);
    }
    for (std::string& name : names) name = trimmed(name).substr(0, trimmed(name).find('.'));
    std::erase(names, "");
    return names;
  }

  std::size_t expected_count(const std::vector<std::string>& names) const {
    if (expected_nodes_) return static_cast<std::size_t>(*expected_nodes_);
    if (!names.empty()) return names.size();
    return static_cast<std::size_t>(
        number_of(Machine(), {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES"}).value_or(1));
  }

  Report report_of(std::vector<NodeReport> nodes, std::vector<Finding> cluster, double begin) const {
    return {.title = fmt::format("Node smoke test of {} node{}", nodes.size(), nodes.size() == 1 ? "" : "s"),
            .generated = time_for_people(),
            .version = PRIMUS_VERSION,
            .nodes = std::move(nodes),
            .cluster = std::move(cluster),
            .seconds = steady_seconds() - begin};
  }

  // Rank 0: reads what the nodes wrote until all are there or the time is over, and writes who passed.
  Report aggregate(const NodeReport& own, const std::vector<std::string>& names, double started,
                   double begin) const {
    Env& env = Env::posix();
    const std::size_t expected = expected_count(names);
    const double deadline = steady_seconds() + static_cast<double>(wait_);
    std::vector<NodeReport> nodes;
    for (;;) {
      nodes = {own};
      for (const std::string& name : env.list(folder())) {
        if (!name.ends_with(".json") || name == own.host + ".json") continue;
        try {
          nodes.push_back(node_report(read_file(folder() / name, 64 << 20), (folder() / name).string()));
        } catch (const Error&) {
          continue;  // being replaced, or of somebody else; its node then counts as missing
        }
        // What another run left behind, if it may stay there, is no report of this one.
        if (nodes.back().wall_clock < started - 600) nodes.pop_back();
      }
      if (nodes.size() >= expected || steady_seconds() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
    ClusterOptions options{.missing_after = static_cast<double>(wait_), .clock_skew_seconds = clock_skew_};
    std::set<std::string> reported;
    for (const NodeReport& node : nodes) reported.insert(node.host);
    for (const std::string& name : names)
      if (!reported.count(name)) options.missing.push_back(name);
    // Without names, as many as are missing.
    const std::size_t known = nodes.size() + options.missing.size();
    for (std::size_t i = known; i < expected; ++i)
      options.missing.push_back(fmt::format("<missing-{}>", i - known + 1));
    Report report = report_of(nodes, compare_nodes(nodes, options), begin);

    std::string passing, failing, all;
    for (const NodeReport& node : nodes)
      (verdict_of(node.findings) == Verdict::kFail ? failing : passing) += node.host + "\n";
    for (const std::string& name : options.missing)
      if (!name.starts_with('<')) failing += name + "\n";
    for (const std::string& name : names) all += name + "\n";
    write_file_atomic(Path(node_.dump_path) / "passing_nodes.txt", passing);
    write_file_atomic(Path(node_.dump_path) / "failing_nodes.txt", failing);
    if (!all.empty()) write_file_atomic(Path(node_.dump_path) / "expected_nodes.txt", all);
    return report;
  }

  std::string ports_, allowed_ = kAllowedProcesses, required_tools_, node_list_;
  std::optional<std::int64_t> expected_ports_, expected_nodes_;
  std::optional<double> least_tflops_, least_memory_, least_reduce_, least_locked_, least_shared_;
  std::int64_t reduce_mib_ = 64, dmesg_minutes_ = 15, wait_ = 60;
  double gpu_timeout_ = 15, reduce_timeout_ = 120, tool_timeout_ = 5, tool_warning_ = 1, busy_gib_ = 2,
         busy_percent_ = 20, clock_skew_ = 30;
  bool tier2_ = false, allow_foreign_ = false, keep_ = false;
  NodeArguments node_;
};

}  // namespace

extern const CommandEntry kNodeSmoke{
    "node_smoke",
    "Checks every node by itself, without a rendezvous, and says which to leave out",
    "Every node writes smoke/HOST.json; node 0 (NODE_RANK, SLURM_NODEID) waits for all, compares them, and "
    "writes\n"
    "smoke_report.md, .html and .json, passing_nodes.txt and failing_nodes.txt, which fit 'srun --nodelist' "
    "and\n"
    "'srun --exclude'. Checks as 'primus preflight', and exact products on each GPU; with --tier2-perf "
    "speeds too.\n\n"
    "Exit code: 0 where nothing failed, 1 where something did or a node is missing, 2 for wrong arguments.",
    "primus node_smoke\n"
    "srun -N 4 --ntasks-per-node=1 primus node_smoke --tier2-perf --dump-path /shared/smoke\n"
    "primus node_smoke --expected-gpus 8 --expected-rdma-nics 8 --require-tools nvidia-smi,ibstat\n"
    "srun --exclude=$(paste -sd, output/preflight/failing_nodes.txt) primus train pretrain --config exp.yaml",
    make_command<NodeSmoke>,
    {Section::kMachine, 2}};

}  // namespace primus::cli
