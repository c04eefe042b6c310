// primus node_smoke
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "cli/options/own_command.h"
#include "cli/preflight/node_options.h"
#include "config/inherit.h"
#include "launch/node.h"
#include "safe/preflight/cluster.h"
#include "safe/preflight/node.h"
#include "safe/preflight/performance.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

using namespace preflight;

constexpr int kSmokeFailed = 1;  // as Primus's node_smoke ends

class NodeSmoke final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--per-gpu-timeout-sec", "S", &gpu_timeout_, "time for each step on a GPU");
    args.flag("--tier2-perf", tier2_, "measure products, memory and the all-reduce between the node's GPUs");
    args.option("--gemm-tflops-min", "T", &least_tflops_,
                "with --tier2-perf: the least for products (default: presets/hardware)");
    args.option("--hbm-gbs-min", "G", &least_memory_,
                "with --tier2-perf: the least for memory (default: presets/hardware)");
    args.option("--rccl-size-mb", "N", &reduce_mib_,
                "with --tier2-perf: MiB of the all-reduce (default: 64)");
    args.option("--rccl-gbs-min", "G", &least_reduce_,
                "with --tier2-perf: the least for the all-reduce (default: presets/hardware)");
    args.option("--rccl-timeout-sec", "S", &reduce_timeout_,
                "with --tier2-perf: time for the all-reduce (default: 120)");
    args.option("--dmesg-minutes", "N", &dmesg_minutes_,
                "how far back to read the kernel's log (default: 15)");
    args.option("--expected-rdma-nics", "N", &expected_ports_,
                "RDMA ports for training that the node must have");
    args.option(
        "--rdma-nic-allowlist", "LIST", &ports_,
        "RDMA ports for training, as in NCCL_IB_HCA, which must be there (default: that variable, else "
        "all that are on)");
    args.option("--ulimit-l-min-gb", "G", &least_locked_,
                "GiB that may be locked at least; 0: not checked (default: 32 with RDMA)");
    args.option("--shm-min-gb", "G", &least_shared_,
                "GiB of /dev/shm at least; 0: not checked (default: 8 with GPUs)");
    args.option("--rocm-smi-timeout-sec", "S", &tool_timeout_,
                "time for each call of nvidia-smi or rocm-smi");
    args.option("--rocm-smi-warn-sec", "S", &tool_warning_, "warn where such a call takes longer");
    args.option("--hbm-busy-threshold-gib", "G", &busy_gib_,
                "GiB of a GPU that others may hold (default: 2)");
    args.flag("--allow-foreign-procs", allow_foreign_,
              "warn of other processes on a GPU, in place of failing");
    args.option("--allowed-procs", "LIST", &allowed_,
                "processes that may be on a GPU, by name; 'N/A' for those without a name");
    args.option("--gpu-activity-warn-pct", "P", &busy_percent_, "warn where a GPU is busier (default: 20)");
    args.option("--require-tools", "LIST", &required_tools_, "programs that must be in PATH");
    args.flag("--no-clean-dump-path", keep_, "keep reports of earlier runs in --dump-path, on rank 0");
    args.option("--expected-nodes", "N", &expected_nodes_,
                "nodes that must report (default: SLURM_NNODES, SLURM_JOB_NUM_NODES or NNODES)");
    args.option("--expected-nodelist-file", "FILE", &node_list_,
                "their names, one a line (default: Slurm's list of the step's nodes)")
        .reads = all_of_them;
    args.option("--wait-timeout-sec", "S", &wait_, "how long rank 0 waits for the reports of all nodes");
    args.option("--clock-skew-warn-sec", "S", &clock_skew_,
                "warn where the nodes' clocks are further apart, their starts included");
    node_.declare(args, "where smoke/<host>.json and the report of all nodes go; shared by the nodes",
                  "GPUS_PER_NODE, where set");
  }

  void check_job(int, int, const std::map<std::string, std::string>&) override { check_arguments(); }

  int run(Console& console) override {
    const double begin = steady_seconds();
    check_arguments();
    const auto machine = std::make_shared<const Machine>();
    const std::vector<std::string> names =
        expected_names(*machine);  // a list that cannot be read is said at once
    const SmokePlace place = smoke_place(*machine);
    if (!place.first_here) {
      console.note(
          fmt::format("note: node_smoke looks at a node once: the first process on {} does it, and this "
                      "one ends",
                      machine->node_name()));
      return 0;
    }
    const double started = machine->wall_clock();
    if (place.node == 0 && !keep_) clean(place, console);

    NodeReport own = look(machine, place);
    own.rank = own.node = place.node;
    if (!place.named_by_slurm) own.host = short_name(own.host);
    own.seconds = steady_seconds() - begin;
    make_folders(folder());
    nlohmann::ordered_json json = to_json(own);
    json["run"] = place.run;
    const std::string file = place.file_of(own.host);
    check_name(file);
    write_file_atomic(folder() / file, json_text(json) + "\n");

    if (place.node != 0) {
      const Report alone = report_of({own}, {}, begin);
      console.note(fmt::format("{}: {}", own.host, name_of(alone.verdict())));
      // Where one step holds all nodes, node 0 says how it ends: Slurm may end the others, and with them the
      // report of all, when one ends with an error.
      const int code = place.one_step ? 0 : node_.report.exit_code(alone, kSmokeFailed);
      leave_stuck_threads(alone, code);
      return code;
    }
    const Report report = aggregate(own, file, names, place, started, begin);
    node_.report.show(report, console);
    console.note("report: " + write_report(report, node_.dump_path, "smoke_report", true, true));
    const int code = node_.report.exit_code(report, kSmokeFailed);
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
    positive("--rccl-timeout-sec", reduce_timeout_.value_or(kReduceTimeout));
    positive("--rocm-smi-timeout-sec", tool_timeout_);
    if (!(wait_ >= 0 && wait_ <= 86400)) throw invalid("--wait-timeout-sec must be from 0 to 86400");
    const std::int64_t mib = reduce_mib_.value_or(kReduceMib);
    if (mib < 1 || mib > 65536) throw invalid("--rccl-size-mb must be from 1 to 65536");
    if (dmesg_minutes_ && *dmesg_minutes_ < 1) throw invalid("--dmesg-minutes must be 1 or more");
    if (dmesg_minutes_ && node_.skip_kernel_log)
      throw invalid(
          "--dmesg-minutes says how much of the kernel's log to read, and --skip-dmesg to read none",
          "leave out one of them");
    if (expected_nodes_ && *expected_nodes_ < 1) throw invalid("--expected-nodes must be 1 or more");
    if (expected_ports_ && *expected_ports_ < 0) throw invalid("--expected-rdma-nics must be 0 or more");
    const std::pair<const char*, std::optional<double>> thresholds[] = {
        {"--gemm-tflops-min", least_tflops_},
        {"--hbm-gbs-min", least_memory_},
        {"--rccl-gbs-min", least_reduce_},
        {"--ulimit-l-min-gb", least_locked_},
        {"--shm-min-gb", least_shared_},
        {"--hbm-busy-threshold-gib", busy_gib_},
        {"--gpu-activity-warn-pct", busy_percent_},
        {"--rocm-smi-warn-sec", tool_warning_},
        {"--clock-skew-warn-sec", clock_skew_}};
    for (const auto& [name, value] : thresholds)
      if (value && !(*value >= 0 && *value < 1e12)) throw invalid(fmt::format("{} must be 0 or more", name));
    if (tier2_) return;
    const std::pair<const char*, bool> measured[] = {{"--gemm-tflops-min", least_tflops_.has_value()},
                                                     {"--hbm-gbs-min", least_memory_.has_value()},
                                                     {"--rccl-gbs-min", least_reduce_.has_value()},
                                                     {"--rccl-size-mb", reduce_mib_.has_value()},
                                                     {"--rccl-timeout-sec", reduce_timeout_.has_value()}};
    for (const auto& [name, given] : measured)
      if (given)
        throw invalid(fmt::format("{} is about speeds, and without --tier2-perf none is measured", name),
                      "give --tier2-perf with it");
  }

  // Which of the job's processes this is.
  struct SmokePlace {
    int node = 0;
    bool first_here = true;       // of this node's processes
    bool one_step = false;        // all nodes are one step of Slurm's
    bool named_by_slurm = false;  // else hosts of several nodes may share a name
    std::int64_t nodes = 1;
    std::string run;  // the job and its step; empty: not known
    std::string file_of(const std::string& host) const {
      return named_by_slurm || nodes < 2 ? host + ".json" : fmt::format("{}.node-{}.json", host, node);
    }
  };

  // Slurm knows best, but where a launcher of ours, whom the user may have told something else, came between.
  static SmokePlace smoke_place(const Machine& machine) {
    SmokePlace place;
    const auto job = machine.variable("SLURM_JOB_ID"), step = machine.variable("SLURM_STEP_ID");
    const bool in_step = job && step && number_of(machine, {"SLURM_NODEID"});
    if (in_step) place.run = fmt::format("{}.{}", *job, *step);
    const bool launched = in_step && machine.variable(launch::kLaunchedStep) == place.run;
    place.named_by_slurm = job && (machine.variable("SLURMD_NODENAME") || in_step);
    const auto local = in_step ? number_of(machine, {"SLURM_LOCALID"})
                               : number_of(machine, {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"});
    place.first_here = local.value_or(0) == 0;
    const std::int64_t per_node =
        std::max<std::int64_t>(number_of(machine, {"OMPI_COMM_WORLD_LOCAL_SIZE"}).value_or(1), 1);
    auto node = in_step && !launched ? number_of(machine, {"SLURM_NODEID"})
                                     : number_of(machine, {"NODE_RANK", "SLURM_NODEID", "GROUP_RANK"});
    auto nodes = number_of(machine, {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES"});
    if (const auto rank = number_of(machine, {"OMPI_COMM_WORLD_RANK"}); rank && !node)
      node = *rank / per_node;
    if (const auto world = number_of(machine, {"OMPI_COMM_WORLD_SIZE"}); world && !nodes)
      nodes = *world / per_node;
    place.node = static_cast<int>(std::min<std::int64_t>(node.value_or(0), 1 << 20));
    place.nodes = std::max<std::int64_t>(nodes.value_or(1), 1);
    place.one_step = in_step && place.nodes > 1;
    return place;
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

  // A host without its domain; addresses have none.
  static std::string short_name(const std::string& host) {
    const bool address = host.find_first_not_of("0123456789.") == std::string::npos;
    return address ? host : host.substr(0, host.find('.'));
  }
  // Whether two names mean one host: one of them may lack the domain.
  static bool same_host(const std::string& a, const std::string& b) {
    return a == b || short_name(a) == b || a == short_name(b);
  }

  // A file that another node wrote; nothing where it is not whole or not a report of node_smoke.
  struct Written {
    NodeReport report;
    std::string run;
  };
  std::optional<Written> read_report(const std::string& name) const {
    const std::string file = (folder() / name).string();
    try {
      const std::string text = read_file(file, 64 << 20);
      return Written{node_report(text, file), parse_json_object(text, file).at("run").get<std::string>()};
    } catch (const std::exception&) {
      return std::nullopt;  // being replaced, or of somebody else; its node then counts as missing
    }
  }

  // Removes the reports of an earlier run, whose nodes may not be in this one. A node that was faster than
  // this one has written its own already. Files that are not reports of node_smoke stay, and so does what
  // lies behind a link.
  void clean(const SmokePlace& place, Console& console) const {
    Env& env = Env::posix();
    if (!env.status(folder())) return;
    if (env.is_link(folder())) {
      console.note(
          fmt::format("note: '{}' is a link: reports of earlier runs stay there", folder().string()));
      return;
    }
    for (const std::string& name : env.list(folder())) {
      if (!name.ends_with(".json") || env.is_link(folder() / name)) continue;
      const auto there = read_report(name);
      if (there && (place.run.empty() || there->run != place.run)) env.remove_file(folder() / name);
    }
  }

  // A file that is not a report is not replaced by one.
  void check_name(const std::string& name) const {
    const Path file = folder() / name;
    if (!Env::posix().status(file) || read_report(name)) return;
    throw invalid(fmt::format("'{}' is there and is not a report of node_smoke", file.string()),
                  "move it, or name another folder: --dump-path FOLDER");
  }

  NodeReport look(const std::shared_ptr<const Machine>& machine, const SmokePlace& place) const {
    NodeOptions options = node_.node_options({{"reports", node_.dump_path}});
    options.questions.kernel_log_minutes =
        static_cast<int>(std::min<std::int64_t>(dmesg_minutes_.value_or(15), 1 << 20));
    options.rdma_ports = ports_;
    options.tool_timeout = std::chrono::milliseconds(static_cast<std::int64_t>(tool_timeout_ * 1e3));
    Requirements& wanted = options.wanted;
    const auto local = number_of(*machine, {"LOCAL_WORLD_SIZE", "GPUS_PER_NODE"});
    wanted.local_ranks = static_cast<int>(std::clamp<std::int64_t>(local.value_or(1), 1, 4096));
    // 'primus direct' says 1 of a node without a GPU, where it starts one rank, and the number of Slurm's
    // tasks where there are several.
    const auto gpus = number_of(*machine, {"GPUS_PER_NODE"});
    const bool is_wish = gpus && gpus != number_of(*machine, {launch::kTasksAsRanks});
    if (is_wish && !wanted.gpus && (*gpus != 1 || gpus_on_bus(*machine).any_on_bus()))
      wanted.gpus = Wanted{static_cast<double>(*gpus), "GPUS_PER_NODE"};
    if (expected_ports_)
      wanted.rdma_ports = Wanted{static_cast<double>(*expected_ports_), "--expected-rdma-nics"};
    if (least_shared_) wanted.shared_memory_gib = Wanted{*least_shared_, "--shm-min-gb"};
    if (least_locked_) wanted.locked_memory_gib = Wanted{*least_locked_, "--ulimit-l-min-gb"};
    if (busy_gib_) wanted.busy_memory_gib = Wanted{*busy_gib_, "--hbm-busy-threshold-gib"};
    if (busy_percent_) wanted.busy_percent = Wanted{*busy_percent_, "--gpu-activity-warn-pct"};
    wanted.slow_tool_seconds = tool_warning_;
    wanted.allow_foreign_processes = allow_foreign_;
    wanted.allowed_processes = split_text(allowed_, ',');
    wanted.required_tools = split_text(required_tools_, ',');
    std::erase(wanted.required_tools, "");
    NodeReport report = inspect_node(machine, options);

    const std::vector<std::string> devices =
        devices_to_measure(*machine, report.findings, tier2_ || node_.expected_gpus.value_or(0) > 0);
    const std::vector<Hardware> table = read_hardware(
        config::default_preset_dirs([&](const std::string& name) { return machine->variable(name); }));
    PerformanceOptions performance{.products = tier2_, .memory = tier2_, .corruption = true, .quick = true};
    performance.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(gpu_timeout_ * 1e3));
    if (least_tflops_) performance.least_tflops = Wanted{*least_tflops_, "--gemm-tflops-min"};
    if (least_memory_) performance.least_memory = Wanted{*least_memory_, "--hbm-gbs-min"};
    for (const std::string& device : devices) measure_device(device, table, performance, report);
    if (tier2_) {
      const auto usable = std::count_if(devices.begin(), devices.end(),
                                        [](const std::string& device) { return !device.starts_with("cpu"); });
      measure_all_reduce(static_cast<int>(usable), place,
                         least_reduce_ ? Wanted{*least_reduce_, "--rccl-gbs-min"}
                                       : least_all_reduce(table, turbo::list_devices()),
                         report);
    }
    return report;
  }

  // Between the GPUs of this node: a job of its own, which may be ended when it hangs.
  void measure_all_reduce(int gpus, const SmokePlace& place, const std::optional<Wanted>& least,
                          NodeReport& report) const {
    Finding finding{.check = "performance.all-reduce", .category = "performance"};
    if (gpus < 2) {
      finding.verdict = Verdict::kSkip;
      finding.measured = "there are no two GPUs to exchange";
      if (least_reduce_) {  // what was asked for and cannot be measured has failed
        finding.verdict = Verdict::kFail;
        finding.wanted = fmt::format("at least {:.4g} GB/s", *least_reduce_);
        finding.source = "--rccl-gbs-min";
        finding.fix = "see 'primus device list' for why no two GPUs can be used, or leave --rccl-gbs-min out";
      }
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
                                           std::to_string(reduce_mib_.value_or(kReduceMib)),
                                           "--intra-group-sizes",
                                           std::to_string(gpus),
                                           "--dump-path",
                                           (folder() / ("all-reduce-" + place.file_of(report.host))).string(),
                                           "--no-html",
                                           "--json"};
    // A launcher's variables describe another job than this one.
    const double timeout = reduce_timeout_.value_or(kReduceTimeout);
    std::vector<std::string> words{"/usr/bin/env"};
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                             "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"})
      words.insert(words.end(), {"-u", name});
    words.insert(words.end(), command.begin(), command.end());
    const SubprocessResult result = run_subprocess(
        words, {.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1e3))});
    double slowest = 0;
    int measured = 0;
    std::string problem = trimmed(result.err);
    if (result.found && !result.timed_out && !result.out.empty()) {
      try {
        const nlohmann::json json = parse_json_object(result.out, "the all-reduce's report");
        for (const nlohmann::json& node : json.value("nodes", nlohmann::json::array())) {
          for (const Measurement& m : node_report(node.dump(), "the all-reduce's report").measurements)
            slowest = measured++ == 0 ? m.value : std::min(slowest, m.value);
        }
      } catch (const std::exception& error) {
        measured = 0;
        problem = error.what();
      }
    }
    if (measured < gpus) {  // each measures
      finding.verdict = Verdict::kFail;
      finding.measured =
          result.timed_out ? fmt::format("the all-reduce of {} GPUs did not end within {:g} s", gpus, timeout)
                           : fmt::format("the all-reduce of {} GPUs failed: {}", gpus, problem);
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
    if (node_list_.empty()) return slurm_nodes(machine);
    std::vector<std::string> names;
    for (const std::string& line : lines_of(read_file(node_list_, 16 << 20))) {
      const std::string name = trimmed(line);
      if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    if (names.empty())
      throw invalid(fmt::format("--expected-nodelist-file '{}' names no node", node_list_),
                    "write the names of the nodes into it, one a line");
    return names;
  }

  std::size_t expected_count(const std::vector<std::string>& names, const SmokePlace& place) const {
    if (expected_nodes_) return static_cast<std::size_t>(*expected_nodes_);
    return names.empty() ? static_cast<std::size_t>(place.nodes) : names.size();
  }

  // Of `names` those that did not report.
  static std::vector<std::string> missing_of(const std::vector<std::string>& names,
                                             const std::vector<NodeReport>& nodes) {
    std::vector<std::string> missing;
    for (const std::string& name : names)
      if (std::none_of(nodes.begin(), nodes.end(),
                       [&](const NodeReport& node) { return same_host(node.host, name); }))
        missing.push_back(name);
    return missing;
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
  Report aggregate(const NodeReport& own, const std::string& own_file, const std::vector<std::string>& names,
                   const SmokePlace& place, double started, double begin) const {
    Env& env = Env::posix();
    const std::size_t expected = expected_count(names, place);
    const double deadline = steady_seconds() + static_cast<double>(wait_);
    std::vector<NodeReport> nodes;
    for (;;) {
      nodes = {own};
      for (const std::string& name : env.list(folder())) {
        if (!name.ends_with(".json") || name == own_file) continue;
        const auto there = read_report(name);
        // What another run left behind, if it may stay there, is no report of this one.
        const bool of_this_run = there && (place.run.empty() ? there->report.wall_clock >= started - 600
                                                             : there->run == place.run);
        if (of_this_run) nodes.push_back(there->report);
      }
      const bool all = nodes.size() >= expected && missing_of(names, nodes).empty();
      if (all || steady_seconds() >= deadline) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
    ClusterOptions options{.missing_after = static_cast<double>(wait_), .clock_skew_seconds = clock_skew_};
    options.missing = missing_of(names, nodes);
    // Without names, as many as are missing.
    const std::size_t known = nodes.size() + options.missing.size();
    for (std::size_t i = known; i < expected; ++i)
      options.missing.push_back(fmt::format("<missing-{}>", i - known + 1));
    Report report = report_of(nodes, compare_nodes(nodes, options), begin);

    // As 'srun --exclude' takes them.
    const auto listed = [&](const std::string& name) {
      return (place.named_by_slurm ? name : short_name(name)) + "\n";
    };
    std::string passing, failing, all;
    for (const NodeReport& node : nodes)
      (verdict_of(node.findings) == Verdict::kFail ? failing : passing) += listed(node.host);
    for (const std::string& name : options.missing)
      if (!name.starts_with('<')) failing += listed(name);
    for (const std::string& name : names) all += listed(name);
    write_file_atomic(Path(node_.dump_path) / "passing_nodes.txt", passing);
    write_file_atomic(Path(node_.dump_path) / "failing_nodes.txt", failing);
    if (!all.empty()) write_file_atomic(Path(node_.dump_path) / "expected_nodes.txt", all);
    return report;
  }

  std::string ports_, allowed_ = kAllowedProcesses, required_tools_, node_list_;
  static constexpr std::int64_t kReduceMib = 64;
  static constexpr double kReduceTimeout = 120;

  std::optional<std::int64_t> expected_ports_, expected_nodes_, reduce_mib_, dmesg_minutes_;
  std::optional<double> least_tflops_, least_memory_, least_reduce_, least_locked_, least_shared_,
      reduce_timeout_, busy_gib_, busy_percent_;
  std::int64_t wait_ = 60;
  double gpu_timeout_ = 15, tool_timeout_ = 5, tool_warning_ = 1, clock_skew_ = 30;
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
    "Of several tasks on a node the first one looks. Thresholds of speeds need --tier2-perf; what is "
    "demanded "
    "and\n"
    "cannot be seen has failed.\n\n"
    "Exit code: 0 where nothing failed, 1 where something did or a node is missing, 2 for wrong arguments. "
    "Within\n"
    "a step of Slurm's node 0 has the exit code for all.",
    "primus node_smoke\n"
    "srun -N 4 --ntasks-per-node=1 primus node_smoke --tier2-perf --dump-path /shared/smoke\n"
    "primus node_smoke --expected-gpus 8 --expected-rdma-nics 8 --require-tools nvidia-smi,ibstat\n"
    "srun --exclude=$(paste -sd, output/preflight/failing_nodes.txt) primus train pretrain --config exp.yaml",
    make_command<NodeSmoke>,
    {Section::kMachine, 2}};

}  // namespace primus::cli
