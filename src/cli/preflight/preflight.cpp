// primus preflight
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "cli/command.h"
#include "cli/options/rank_options.h"
#include "cli/options/side_by_side.h"
#include "cli/preflight/node_options.h"
#include "cli/preflight/perf_plan.h"
#include "comm/mpi/current_job.h"
#include "config/experiment.h"
#include "config/loading/inherit.h"
#include "launch/ranks/local_launch.h"
#include "safe/preflight/all_reduce.h"
#include "safe/preflight/completeness.h"
#include "safe/preflight/environment_facts.h"
#include "safe/preflight/experiment_checks.h"
#include "safe/preflight/job.h"
#include "safe/preflight/node.h"
#include "safe/preflight/performance.h"
#include "safe/preflight/storage.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

using namespace preflight;

constexpr int kPreflightFailed = 2;  // exit code of AMD Primus's preflight

class Preflight final : public Command {
 public:
  void declare(Arguments& args) override {
    args.flag("--host,--check-host", host_, "check the host: processors, memory, limits, disks, the clock");
    args.flag("--gpu,--check-gpu", gpu_, "check the GPUs: drivers, device nodes, health, other processes");
    args.flag("--network,--check-network", network_, "check interfaces, RDMA ports and the route to rank 0");
    args.flag("--perf-test", perf_test_, "measure speeds only, and leave the checks out");
    args.option("--tests", "LIST", &perf_.tests,
                "speeds to measure, without the checks: " + perf_tests() + ", all");
    args.flag("--quick", perf_.quick,
              "the checks, and the most important speeds at few sizes; takes half a minute");
    args.option("--comm-sizes-mb", "LIST", &perf_.sizes,
                "MiB of each rank's message (default 2,4,...,1024; on CPUs 1,4,16)");
    args.option("--intra-comm-sizes-mb", "LIST", &perf_.intra_sizes,
                "MiB of each rank's message in tests within nodes");
    args.option("--inter-comm-sizes-mb", "LIST", &perf_.inter_sizes,
                "MiB of each rank's message in tests between nodes");
    args.option("--intra-group-sizes", "LIST", &perf_.intra_groups,
                "sizes of the groups of ranks within a node (default 2,4,8 and all of them)");
    args.option("--inter-group-sizes", "LIST", &perf_.inter_groups,
                "sizes of the groups of nodes, 'all' for all (default 2,4,all)");
    args.option("--ring-p2p-sizes-mb", "LIST", &perf_.ring_sizes,
                "MiB of messages around the ring (default 10,20,40,80,160; on CPUs 1,4)");
    args.flag("--no-split-nodes-subgroup", perf_.one_group,
              "between nodes: test only all nodes together, and no pairs");
    args.option("--dist-timeout-sec", "S", &timeout_,
                "time limit for the start of all ranks, and for each communication");
    args.option("--comm-cleanup-delay-sec", "S", &pause_,
                "pause between groups of ranks; our connections need none")
        .between(0, 3600);
    args.option("--config,--exp", "FILE", &config_,
                "also check whether this experiment fits memory and disk, and whether its data exists");
    args.option("--device", "DEVICE", &device_, "device to measure: auto, cpu, cuda, cuda:1, hip");
    ranks_.declare(args, "ranks to start on this machine, if no launcher did (default: one for each GPU)");
    args.option(
            "--storage-path", "FOLDER", &storage_,
            "folder for checkpoints, which is tested (default: the folder of reports, or the experiment's)")
        .reads = all_of_them;
    args.option("--root", "FOLDER", &root_,
                "folder with the host's /proc, /sys, /etc and /dev, if a container has them elsewhere")
        .reads = all_of_them;
    args.flag("--plot", plot_, "draw the speeds in the HTML report");
    args.option("--report-file-name", "NAME", &name_,
                "name of the reports (default: preflight-<nodes>N-<time>-<job>)");
    args.flag("--disable-pdf,--no-html", no_html_, "write no HTML report (browsers print it to PDF)");
    node_.declare(args, "folder for the reports", "any number");
    args.rest("KEY=VALUE", overrides_, "settings that override those of --config");
  }

  void check_job(int nodes, int ranks_per_node, const std::map<std::string, std::string>&) override {
    check_words();
    node_.check();
    // Reports invalid sizes, which do not depend on the device. 0 ranks: the number is unknown, and no size
    // is refused.
    plan_perf(perf_, {.gpu = false, .local_ranks = ranks_per_node, .nodes = nodes});
    if (!config_.empty() && Env::posix().status(config_)) load_experiment();
  }

  int run(Console& console) override {
    const double begin = steady_seconds();
    check_arguments();
    const auto environment = comm::current_job();
    // Several preflights of one Slurm step write into the same folder, so their files need different names.
    const SideBySide jobs = jobs_side_by_side(launch::Surroundings::here(), ranks_.nodes());
    const auto machine = std::make_shared<const Machine>(MachineOptions{.root = root_});
    std::vector<Finding> device_findings;
    const std::vector<std::string> devices = choose_devices(*machine, device_findings);
    const bool gpus = !devices.front().starts_with("cpu");
    const int ranks = ranks_to_start(environment, devices, gpus);
    const PerfPlace place{.gpu = gpus,
                          .local_ranks = environment ? environment->local_world : ranks,
                          .nodes = environment ? environment->world / std::max(environment->local_world, 1)
                                               : static_cast<int>(ranks_.nodes())};
    PerfPlan plan = plan_perf(perf_, place);  // refuses invalid options before tests start
    plan.communication.pause_seconds = pause_;
    if (!environment && (ranks > 1 || ranks_.nodes() > 1)) return launch_ranks(ranks, jobs, console);

    const bool job = environment && environment->world > 1;
    const bool first_here = !environment || environment->local_rank == 0;
    NodeReport own = look(machine, place, first_here);
    own.findings.insert(own.findings.end(), device_findings.begin(), device_findings.end());
    const std::vector<Hardware> table = read_hardware(config::default_preset_dirs(read_variable));
    if (measures()) measure(plan, devices, table, environment, first_here, own);
    if (!config_.empty() && first_here) check_experiment(load_experiment(), own);
    own.seconds = steady_seconds() - begin;

    Report report{.generated = time_for_people(), .version = PRIMUS_VERSION, .notes = notes(plan, job)};
    if (!jobs.single()) report.notes.push_back(jobs.text() + ", and each process runs a separate preflight");
    if (job) {
      const bool exchanges = measures() && plan.any_communication();
      JobOutcome outcome = run_job(job_of(*environment, machine, exchanges ? &plan : nullptr,
                                          device_of_rank(devices, environment), table),
                                   std::move(own));
      if (environment->rank != 0) return end_of_rank(outcome, console);
      report.nodes = std::move(outcome.nodes);
      report.cluster = std::move(outcome.cluster);
    } else {
      report.nodes.push_back(std::move(own));
    }
    check_completeness({.sections = selects(),
                        .only_tests = only_perf(),
                        .lone_exchanges = !job && measures() && plan.any_communication()},
                       report);
    if (only_perf()) {  // the performance table has no rows for skipped tests
      for (const Finding& finding : report.cluster)
        if (finding.verdict == Verdict::kSkip) report.notes.push_back("not run: " + finding.measured);
    }
    report.title = fmt::format("Preflight of {} node{}", place.nodes, place.nodes == 1 ? "" : "s");
    report.seconds = steady_seconds() - begin;
    node_.report.show(report, console);
    const std::string written =
        write_report(report, node_.dump_path, own_name(report_name(place.nodes), jobs), !no_html_, plot_);
    console.note("report: " + written);
    const int code = node_.report.exit_code(report, kPreflightFailed);
    leave_stuck_threads(report, code);
    return code;
  }

 private:
  static std::optional<std::string> read_variable(const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  }

  bool selects() const { return host_ || gpu_ || network_; }
  // Returns whether only performance tests run. As in AMD Primus, the options for performance tests override
  // the section options.
  bool only_perf() const { return perf_test_ || (!perf_.tests.empty() && !perf_.quick); }
  bool measures() const { return only_perf() || perf_.quick || !selects(); }
  // Returns whether the check fails if primus cannot use the visible GPUs.
  bool needs_gpus() const {
    return (only_perf() && perf_.tests != "storage") || node_.expected_gpus.value_or(0) > 0;
  }

  // Checks the options without examining the machine. Throws Error.
  void check_words() const {
    if (config_.empty() && !overrides_.empty()) {  // without an experiment, these words cannot be overrides
      throw invalid(fmt::format("'{}' is not an option of preflight", overrides_.front()),
                    overrides_.front() == "bisect"
                        ? "'primus preflight --tests slow-nodes' finds slow nodes by bisection. If a node "
                          "makes a job hang, the job's ranks name the rank they wait for"
                        : "'primus preflight --help' lists its options (--dump-path is the folder for "
                          "reports); settings need --config FILE");
    }
    if (timeout_ < 1 || timeout_ > 86400)
      throw invalid(fmt::format("--dist-timeout-sec {}: not a time from 1 to 86400", timeout_));
    ranks_.check();
    if (!name_.empty() && !is_plain_name(name_))
      throw invalid(fmt::format("--report-file-name '{}' is not a file name", name_),
                    "choose a name without '/'; --dump-path sets the folder");
  }

  void check_arguments() const {
    check_words();
    node_.check();
    if (!Env::posix().status(root_)) throw invalid(fmt::format("--root '{}' does not exist", root_));
    if (!config_.empty()) load_experiment();  // reports the experiment's errors first
  }

  // Returns notes about options that have no effect. AMD Primus prints such notes, too.
  std::vector<std::string> notes(const PerfPlan& plan, bool several_ranks) const {
    std::vector<std::string> notes;
    if (only_perf() && selects())
      notes.emplace_back(
          "--host, --gpu and --network were left out, because --perf-test and --tests measure speeds only; "
          "run them separately for both");
    const auto say = [&](const std::vector<std::string>& options, const std::string& why) {
      if (!options.empty())
        notes.push_back(fmt::format("{}: no effect, because {}", fmt::join(options, ", "), why));
    };
    if (measures()) {
      say(idle_sizes(perf_, plan), "none of its tests run");
      if (!several_ranks && plan.any_communication())
        say(given_sizes(perf_), "the job has one rank, so there is no communication");
      if (perf_.one_group && !perf_.inter_groups.empty())
        say({"--inter-group-sizes"}, "--no-split-nodes-subgroup tests only all nodes together");
      if (perf_.one_group && names_test(perf_, "inter-p2p"))
        notes.emplace_back(
            "inter-p2p was left out, because --no-split-nodes-subgroup tests no pairs of nodes");
    } else {
      say(given_sizes(perf_), "--host, --gpu and --network do not measure speed");
    }
    const bool measures_products = measures() && plan.has("gemm");
    if (!measures_products && number_of("PRIMUS_PREFLIGHT_MIN_TFLOPS"))
      say({"PRIMUS_PREFLIGHT_MIN_TFLOPS"}, "no product was measured (--quick and --tests gemm do)");
    if (!storage_.empty() && (only_perf() || (selects() && !host_)) && !(measures() && plan.has("storage")))
      say({"--storage-path"}, "neither --host nor the test 'storage' was requested");
    if (auto note = ranks_.unused_master()) notes.push_back(std::move(*note));
    if (plot_ && no_html_) say({"--plot"}, "--no-html leaves out the page with plots");
    if (plot_ && !no_html_ && !measures()) say({"--plot"}, "no speed was measured");
    return notes;
  }

  config::Experiment load_experiment() const { return config::load_experiment(config_, overrides_); }

  std::vector<std::string> choose_devices(const Machine& machine, std::vector<Finding>& findings) const {
    if (device_ == "auto") return devices_to_measure(machine, findings, needs_gpus());
    const DeviceSpec spec = turbo::parse_device(device_);
    // "cuda" without an index means all GPUs.
    if (spec.kind != "cpu" && device_.find(':') == std::string::npos) {
      std::vector<std::string> names;
      for (const std::string& name : devices_to_measure(machine, findings))
        if (name.starts_with(spec.kind + ":")) names.push_back(name);
      if (!names.empty()) return names;
      turbo::open_device(spec);  // throws an error that names the missing part
    }
    return {device_};
  }

  int ranks_to_start(const std::optional<comm::JobEnvironment>& environment,
                     const std::vector<std::string>& devices, bool gpus) const {
    ranks_.check_place(environment);
    if (environment) return environment->local_world;
    if (ranks_.here()) return *ranks_.here();
    return gpus && measures() ? static_cast<int>(devices.size()) : 1;
  }

  static std::string device_of_rank(const std::vector<std::string>& devices,
                                    const std::optional<comm::JobEnvironment>& environment) {
    const std::size_t place = environment ? static_cast<std::size_t>(environment->local_rank) : 0;
    return devices[place % devices.size()];
  }

  Path storage_folder() const {
    if (!storage_.empty()) {
      const auto status = Env::posix().status(storage_);
      if (!status || status->type != FileStatus::Type::kFolder)
        throw invalid(fmt::format("--storage-path: there is no folder '{}'", storage_),
                      "name an existing folder of the disk to measure, or create it");
      return storage_;
    }
    return config_.empty() ? Path(node_.dump_path) : load_experiment().output_dir();
  }

  NodeReport look(const std::shared_ptr<const Machine>& machine, const PerfPlace& place,
                  bool first_here) const {
    NodeOptions options = node_.node_options({{"checkpoints", storage_folder().string()}});
    options.host = !only_perf() && (host_ || !selects());
    options.gpu = !only_perf() && (gpu_ || !selects());
    options.network = !only_perf() && (network_ || !selects());
    if (!first_here) {
      NodeReport report{.host = machine->node_name(), .wall_clock = machine->wall_clock()};
      check_process(report);
      // Only the first rank of a machine checks the machine, but each process checks its own environment.
      if (options.host || options.network) add_environment_facts(*machine, report.facts);
      return report;
    }
    options.wanted.local_ranks = place.local_ranks;
    options.wanted.nodes = place.nodes;
    options.wanted.usual_free_gpu_memory_gib = 1;
    options.wanted.allowed_processes.emplace_back("primus");  // the job's other ranks
    if (const auto minimum = number_of("PRIMUS_PREFLIGHT_MIN_FREE_MEM_GB"))
      options.wanted.free_gpu_memory_gib = Wanted{*minimum, "PRIMUS_PREFLIGHT_MIN_FREE_MEM_GB"};
    // inspect_node() also checks the user's explicit requirements in sections that were not selected.
    NodeReport report = inspect_node(machine, options);
    if (only_perf()) check_process(report);
    return report;
  }

  // Returns the value of a variable; nullopt if unset. Throws if it is not a number.
  static std::optional<double> number_of(const char* variable) {
    const auto text = read_variable(variable);
    if (!text || text->empty()) return std::nullopt;
    const auto value = leading_real(*text);
    if (!value || !std::isfinite(*value))
      throw invalid(fmt::format("{}='{}' is not a number", variable, *text));
    return value;
  }

  void measure(const PerfPlan& plan, const std::vector<std::string>& devices,
               const std::vector<Hardware>& table, const std::optional<comm::JobEnvironment>& environment,
               bool first_here, NodeReport& own) const {
    PerformanceOptions options{.products = plan.has("gemm"),
                               .memory = plan.has("memory"),
                               .corruption = plan.has("corruption"),
                               .quick = perf_.quick};
    if (const auto minimum = number_of("PRIMUS_PREFLIGHT_MIN_TFLOPS"))
      options.wanted.min_tflops = Wanted{*minimum, "PRIMUS_PREFLIGHT_MIN_TFLOPS"};
    const bool job = environment && environment->world > 1;
    // Only the first rank of a machine measures the CPU, which all its ranks share.
    for (const std::string& device :
         job ? std::vector<std::string>{device_of_rank(devices, environment)} : devices)
      if (first_here || !device.starts_with("cpu")) measure_device(device, table, options, own);
    if (plan.has("storage") && first_here)
      check_storage({.folder = storage_folder(),
                     .bytes = perf_.quick ? std::uint64_t{64} << 20 : std::uint64_t{512} << 20},
                    own);
  }

  JobPreflight job_of(const comm::JobEnvironment& environment, const std::shared_ptr<const Machine>& machine,
                      const PerfPlan* plan, const std::string& device,
                      const std::vector<Hardware>& table) const {
    JobPreflight job{.environment = environment,
                     .timeout = std::chrono::seconds(timeout_),
                     .clock = [machine] { return machine->wall_clock(); },
                     .device = device};
    job.cluster.clock_skew_seconds = 1;
    if (plan) job.communication = plan->communication;
    if (!device.starts_with("cpu")) job.min_all_reduce = min_all_reduce(table, turbo::list_devices());
    if (environment.rank != 0) return job;
    // The names come from Slurm's node list, because this list also contains nodes that failed to start.
    if (std::vector<std::string> hosts = slurm_nodes(*machine); !hosts.empty()) {
      job.name_of_rank = [hosts = std::move(hosts), here = environment.local_world](int rank) {
        const auto node = static_cast<std::size_t>(rank / std::max(here, 1));
        return node < hosts.size() ? hosts[node] : std::string();
      };
    }
    return job;
  }

  int end_of_rank(const JobOutcome& outcome, Console& console) const {
    bool failed = false;
    for (const Finding& finding : outcome.cluster) {
      failed |= finding.verdict == Verdict::kFail;
      if (finding.verdict == Verdict::kFail) console.note("error: " + finding.measured);
    }
    const Report own{.nodes = outcome.nodes};
    leave_stuck_threads(own, failed ? kPreflightFailed : 0);
    return failed ? kPreflightFailed : 0;  // rank 0 reports the findings of the checks
  }

  // Starts this command again, once per rank.
  int launch_ranks(int ranks, const SideBySide& jobs, Console& console) const {
    launch::LocalLaunch start = ranks_.start(ranks);
    start.environment = for_ranks(jobs);
    const Path logs = Path(node_.dump_path) / own_name("ranks", jobs);
    start.output_file = [logs](int rank) { return logs / fmt::format("rank-{}.log", rank); };
    make_folders(logs);
    // If a rank is lost, rank 0 needs time to write the report.
    start.patience = std::chrono::seconds(20);
    const launch::LaunchResult result = launch::run_local(start);
    const bool reported =
        result.failed_rank == 0 && (result.exit_code == kPreflightFailed || result.exit_code == 1);
    if (result.failed_rank >= 0 && !reported) console.note("error: " + result.failure);
    return result.exit_code;
  }

  // Returns a unique name for jobs that write into the same folder at the same time.
  static std::string job_name() {
    const auto job = read_variable("SLURM_JOB_ID"), step = read_variable("SLURM_STEP_ID");
    if (!job || job->empty()) return std::to_string(getpid());
    return step && !step->empty() ? fmt::format("job{}.{}", *job, *step) : fmt::format("job{}", *job);
  }

  std::string report_name(int nodes) const {
    const std::string name =
        name_.empty() ? fmt::format("preflight-{}N-{}-{}", nodes, time_for_names(), job_name()) : name_;
    return only_perf() ? name + "_perf" : name;
  }

  bool host_ = false, gpu_ = false, network_ = false, perf_test_ = false;
  PerfRequest perf_;
  std::int64_t timeout_ = 120;
  double pause_ = 0;
  std::string config_, device_ = "auto", storage_, root_ = "/", name_;
  RankOptions ranks_;
  bool plot_ = false, no_html_ = false;
  NodeArguments node_;
  std::vector<std::string> overrides_;
};

}  // namespace

extern const CommandEntry kPreflight{
    "preflight",
    "Checks the machines of a job and measures their speed before training",
    "Checks host, GPUs, network, products, memory, silent corruption, storage and communication between "
    "ranks. Each finding shows what was found, what is expected and why, and the next step. A check that "
    "cannot run counts as failed. With torchrun's environment (primus slurm, k8s, direct; torchrun) all "
    "ranks take part, and rank 0 compares versions, clocks and speeds, and finds missing and slow nodes. On "
    "one machine with several GPUs, Primus starts a rank for each.\n\nWithout options, all checks and all "
    "measurements run. With --host, --gpu and --network, only these checks run; with --perf-test and "
    "--tests, only measurements. Thresholds are in presets/hardware.\n\nWrites DUMP-PATH/NAME.md, .html and "
    ".json. The exit code is 0 if nothing failed, and 2 if a check failed or the arguments are wrong; with "
    "--strict, 1 if there are warnings.",
    "primus preflight --quick\n"
    "primus preflight --host --gpu --network\n"
    "primus preflight --tests gemm,intra-allreduce --comm-sizes-mb 64,1024 --plot\n"
    "primus preflight --config examples/native/configs/CPU/llama_124M-pretrain.yaml --storage-path "
    "/checkpoints\n"
    "primus slurm srun -N 4 -- direct -- preflight --dist-timeout-sec 60 --report-file-name before-run",
    make_command<Preflight>,
    {Section::kMachine, 1},
    true};

}  // namespace primus::cli
