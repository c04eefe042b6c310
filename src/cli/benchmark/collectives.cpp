// primus benchmark collectives (rccl), strided-allgather
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "base/text/sizes.h"
#include "bench/collective_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/rank_options.h"
#include "comm/job.h"
#include "comm/local/thread_group.h"
#include "comm/mpi/current_job.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 36, kMaxCalls = 1'000'000;

// Starts the ranks if no launcher did, connects them, and runs the measurement on each.
class BenchmarkRanks : public Command {
 public:
  void declare(Arguments& args) final {
    declare_case(args);
    args.option("--warmup", "N", &warmup_, "untimed calls of each case before the timed ones");
    args.option("--iters,--iterations", "N", &iterations_, "number of timed calls");
    ranks_.declare(args, "ranks to start on this machine (default: one for each GPU; on CPUs 2)");
    args.option("--transport", "KIND", &transport_,
                "how ranks on CPUs communicate: auto, shared-memory, tcp or mpi (with mpirun) between "
                "processes, or threads of one process")
        .choices = {"auto", "shared-memory", "tcp", "mpi", "threads"};
    device_.declare(args, "fp32", {.fp16 = true});
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>&) final { check_words(); }

  int run(Console& console) final {
    check_words();
    const SideBySide jobs = jobs_side_by_side(launch::Surroundings::here(), ranks_.nodes());
    output_.check(jobs);
    const auto place = comm::current_job();
    ranks_.check_place(place);
    if (place && place->world > 1) return run_rank(*place, console);
    const DeviceSpec spec = device_.spec(console);
    int ranks = ranks_.here().value_or(spec.kind == "cpu" ? 2 : count_of(spec.kind));
    if (ranks * ranks_.nodes() < 2)
      throw invalid("one rank has no other rank to communicate with",
                    "start several ranks: --nproc 2, or --nnodes");
    if (transport_ == "threads") return run_threads(ranks, spec, console);
    launch::LocalLaunch start = ranks_.start(ranks);
    start.environment = for_ranks(jobs);
    // Only rank 0's output is shown; errors of a rank are in the result.
    start.output_file = [](int) { return Path("/dev/null"); };
    const launch::LaunchResult result = launch::run_local(start);
    if (result.failed_rank > 0) console.note("error: " + result.failure);
    return result.exit_code;
  }

 protected:
  int warmup() const { return static_cast<int>(warmup_); }
  int iterations() const { return static_cast<int>(iterations_); }
  DType dtype() const { return device_.compute(); }
  // Progress callback of a plan that only rank 0 shows. `shown` must outlive it.
  static std::function<void(std::int64_t, std::int64_t)> on_rank_0(const comm::Communicator& world,
                                                                   PhaseProgress& shown) {
    if (world.rank() != 0) return {};
    return [&shown](std::int64_t done, std::int64_t total) { shown.show("measuring", done, total); };
  }
  const BenchmarkOutput& output() const { return output_; }

 private:
  // Errors that do not depend on the machine.
  void check_words() {
    for (const auto& [name, value] : {std::pair("--warmup", warmup_), std::pair("--iters", iterations_)})
      if (value < (name[2] == 'i' ? 1 : 0) || value > kMaxCalls)
        throw invalid(fmt::format("{} {}: not a number of calls from {} to {}", name, value,
                                  name[2] == 'i' ? 1 : 0, kMaxCalls));
    ranks_.check();
    device_.check_words();
    output_.check_words();
    check_case();
    if (transport_ != "threads") comm::parse_transport(transport_, "--transport");
  }

  virtual void declare_case(Arguments& args) = 0;
  virtual void check_case() = 0;
  virtual BenchmarkReport measure(comm::Communicator& world, Device& device, const Console& console) = 0;

  static int count_of(const std::string& kind) {
    for (const turbo::DeviceListing& listing : turbo::list_devices())
      if (listing.kind == kind) return static_cast<int>(listing.devices.size());
    return 1;
  }

  void describe(BenchmarkReport& report, const Device& device, int world, int nodes, const char* way) const {
    report.device = fmt::format("{} | {} ranks on {} node{}, {}", device.description(), world, nodes,
                                nodes == 1 ? "" : "s", way);
  }

  static const char* way_of(comm::Transport asked, const comm::JobEnvironment& place, int nodes) {
    using comm::Transport;
    switch (asked != Transport::kAuto ? asked : place.transport) {
      case Transport::kSharedMemory:
        return "shared memory";
      case Transport::kTcp:
        return "TCP";
      case Transport::kMpi:
        return "MPI";
      case Transport::kAuto:
        break;
    }
    if (nodes == 1) return "shared memory";
    return place.mpi ? "MPI and shared memory" : "TCP and shared memory";
  }

  int run_rank(const comm::JobEnvironment& place, Console& console) {
    if (transport_ == "threads")
      throw invalid("--transport threads is for one process, but a launcher started several",
                    "remove --transport");
    const comm::Transport transport = comm::parse_transport(transport_, "--transport");
    const auto job = comm::Job::connect(
        place, {.transport = transport, .notice = [&](const std::string& text) { console.note(text); }});
    BenchmarkReport report;
    try {
      const std::unique_ptr<Device> device =
          turbo::open_device(device_.spec(console, place.local_rank, place.local_world));
      const DeviceCollectives* const collectives = turbo::collectives_of(*device);
      if (collectives && transport_ != "auto")
        throw invalid(
            fmt::format(
                "--transport {} is for ranks on CPUs; on {} the vendor's library chooses the transport",
                transport_, device->description()),
            "leave --transport out, or set --device cpu");
      const std::unique_ptr<comm::Communicator> world = job->world(*device, collectives);
      report = measure(*world, *device, console);
      const int nodes = place.world / std::max(place.local_world, 1);
      describe(report, *device, place.world, nodes,
               collectives ? "the vendor's library" : way_of(transport, place, nodes));
    } catch (const Error& error) {
      job->abort(error.what(), error.kind());
      throw;
    }
    job->leave();
    return place.rank == 0 ? output_.finish(report, console) : 0;
  }

  int run_threads(int ranks, const DeviceSpec& spec, Console& console) {
    if (spec.kind != "cpu")
      throw invalid("--transport threads is for CPUs: ranks with GPUs are processes", "remove --transport");
    if (ranks_.nodes() > 1) throw invalid("--transport threads is for one machine", "remove --nnodes");
    constexpr int kMaxThreads = 256;
    if (ranks > kMaxThreads)
      throw invalid(fmt::format("--transport threads supports at most {} ranks", kMaxThreads));
    auto worlds = comm::local::make_thread_group(ranks);
    std::vector<BenchmarkReport> reports(static_cast<std::size_t>(ranks));
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto i = static_cast<std::size_t>(rank);
        try {
          const std::unique_ptr<Device> device = turbo::open_device(device_.spec(console, rank, ranks));
          reports[i] = measure(*worlds[i], *device, console);
          describe(reports[i], *device, ranks, 1, "threads");
        } catch (const std::exception& error) {
          failures[i] = std::current_exception();
          worlds[i]->abort(error.what());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    return output_.finish(reports.front(), console);
  }

  DeviceOptions device_;
  RankOptions ranks_;
  BenchmarkOutput output_;
  std::string transport_ = "auto";
  std::int64_t warmup_ = 20, iterations_ = 100;
};

class BenchmarkCollectives final : public BenchmarkRanks {
  void declare_case(Arguments& args) override {
    args.option(
            "--op,--ops", "OP", &ops_,
            "one or more of all_reduce, broadcast, reduce_scatter, all_gather, all_to_all, send_receive and "
            "barrier, or all (default: the first five)")
        .several = true;
    args.option("--sizes", "LIST", &sizes_, "message sizes: 64K,1M; replaces the next four options");
    args.option("--min-bytes", "SIZE", &min_, "smallest message size");
    args.option("--max-bytes", "SIZE", &max_, "largest message size");
    args.option("--num-sizes", "N", &count_, "number of sizes between the two").between(1, 1000);
    args.option("--scale", "KIND", &scale_, "spacing of these sizes").choices = {"log2", "linear"};
    args.option("--repeat", "N", &repetitions_,
                "repetitions of the timed calls, with a barrier before each; each gets a line in the report")
        .between(1, 1000);
    args.flag("--aggregate-repeat", aggregate_, "add a line for all repetitions together");
    args.flag("--check", check_, "check each result against the expected one before timing it");
    args.flag("--per-rank", per_rank_, "also show the median of each rank");
    args.option("--per-rank-file", "FILE", &per_rank_file_, "write each rank's times: .csv or .tsv");
    args.flag("--per-iter-trace", trace_, "write each call's seconds by rank");
    args.option("--trace-file", "FILE", &trace_file_,
                "trace file: .jsonl, or .csv and .tsv with a line for each rank (default: the name of "
                "--output with _trace.jsonl, or rccl_trace.jsonl, with a number if that exists)");
    args.option("--trace-limit", "N", &trace_limit_,
                "trace only the first calls of each repetition; 0: all of them");
    args.option("--trace-ops", "LIST", &trace_ops_, "trace only these operations (default: all)");
    args.option("--trace-sizes", "LIST", &trace_sizes_, "trace only messages of these sizes (default: all)");
    args.option("--cluster", "NAME", &cluster_,
                "name of the cluster, for the report (default: PRIMUS_CLUSTER)");
  }

  void check_case() override {
    plan_.ops = parse_collectives(fmt::format("{}", fmt::join(ops_, ",")));
    if (aggregate_ && repetitions_ == 1)
      throw invalid("--aggregate-repeat needs several repetitions, but there is one",
                    "set --repeat to 2 or more, or remove --aggregate-repeat");
    if (!sizes_.empty()) {
      plan_.sizes = parse_sizes("--sizes", sizes_, kMaxBytes);
    } else {
      const auto one = [](const char* option, const std::string& text) {
        const std::vector<std::int64_t> sizes = parse_sizes(option, text, kMaxBytes);
        if (sizes.size() != 1) throw invalid(fmt::format("{} {}: give one size", option, text));
        return static_cast<double>(sizes.front());
      };
      const double minimum = one("--min-bytes", min_), maximum = one("--max-bytes", max_);
      if (minimum > maximum) throw invalid("--min-bytes is above --max-bytes");
      for (std::int64_t i = 0; i < count_; ++i) {
        const double at = count_ == 1 ? 1 : static_cast<double>(i) / static_cast<double>(count_ - 1);
        const double size = scale_ == "linear" ? minimum + at * (maximum - minimum)
                                               : minimum * std::pow(maximum / minimum, at);
        plan_.sizes.push_back(static_cast<std::int64_t>(std::llround(size)));
      }
    }
    plan_.dtype = dtype();
    plan_.warmup = warmup(), plan_.iterations = iterations();
    plan_.repetitions = static_cast<int>(repetitions_);
    plan_.aggregate = aggregate_;
    if (const char* const place = std::getenv("PRIMUS_CLUSTER"); place && cluster_.empty()) cluster_ = place;
    plan_.check = check_, plan_.rank_times = per_rank_ || !per_rank_file_.empty();
    check_files();
  }

  void check_files() {
    const auto ends_in = [](const std::string& file, std::initializer_list<const char*> ends) {
      const std::string end = Path(file).extension();
      return std::any_of(ends.begin(), ends.end(), [&](const char* one) { return end == one; });
    };
    if (!per_rank_file_.empty() && !ends_in(per_rank_file_, {".csv", ".tsv"}))
      throw invalid(fmt::format("--per-rank-file '{}' does not end in .csv or .tsv", per_rank_file_),
                    "end the name in one of these; the ending chooses the file's format");
    if (!trace_ &&
        (!trace_file_.empty() || trace_limit_ != 0 || !trace_ops_.empty() || !trace_sizes_.empty()))
      throw invalid("--trace-file, --trace-limit, --trace-ops and --trace-sizes need a trace",
                    "add --per-iter-trace");
    if (!trace_) return;
    if (trace_file_.empty()) {
      const Path shared_file = output().file();
      trace_file_is_named_ = !shared_file.empty();
      trace_file_ = shared_file.empty()
                        ? Path("rccl_trace.jsonl")
                        : shared_file.parent_path() / (shared_file.stem().string() + "_trace.jsonl");
    }
    if (!ends_in(trace_file_, {".jsonl", ".csv", ".tsv"}))
      throw invalid(fmt::format("--trace-file '{}' does not end in .jsonl, .csv or .tsv", trace_file_),
                    "end the name in one of these; the ending chooses the file's format");
    if (trace_limit_ < 0) throw invalid("--trace-limit must be 0 or more");
    if (!trace_ops_.empty()) traced_ops_ = parse_collectives(trace_ops_);
    for (const CollectiveOp op : traced_ops_)
      if (trace_ops_ != "all" && std::find(plan_.ops.begin(), plan_.ops.end(), op) == plan_.ops.end())
        throw invalid(fmt::format("--trace-ops: {} is not among the operations of --op", name_of(op)));
    if (!trace_sizes_.empty()) traced_sizes_ = parse_sizes("--trace-sizes", trace_sizes_, kMaxBytes);
    for (const std::int64_t size : traced_sizes_)
      if (std::find(plan_.sizes.begin(), plan_.sizes.end(), size) == plan_.sizes.end())
        throw invalid(fmt::format("--trace-sizes: {} bytes is not one of the message sizes", size),
                      "list it in --sizes");
  }

  bool traces(const CollectiveSample& sample) const {
    const bool takes_op = traced_ops_.empty() ||
                          std::find(traced_ops_.begin(), traced_ops_.end(), sample.op) != traced_ops_.end();
    // Several sizes may round to the same message size.
    const auto ranks = static_cast<std::int64_t>(sample.seconds.size());
    const bool takes_size = traced_sizes_.empty() ||
                            std::any_of(traced_sizes_.begin(), traced_sizes_.end(), [&](std::int64_t size) {
                              return message_bytes(size, plan_.dtype, ranks) == sample.bytes;
                            });
    return (trace_limit_ == 0 || sample.iteration < trace_limit_) && takes_op && takes_size;
  }

  // Appends one line to the trace, or one per rank.
  void add_to_trace(const CollectiveSample& sample, std::string& trace) const {
    if (trace_file_.ends_with(".jsonl")) {
      trace += json_text(nlohmann::ordered_json{{"op", name_of(sample.op)},
                                                {"bytes", sample.bytes},
                                                {"repetition", sample.repetition + 1},
                                                {"iteration", sample.iteration + 1},
                                                {"seconds", sample.seconds}},
                         -1) +
               "\n";
      return;
    }
    const char* const to = trace_file_.ends_with(".tsv") ? "\t" : ",";
    if (trace.empty())
      trace = fmt::format(
          "{}\n", fmt::join(std::array{"op", "bytes", "repetition", "iteration", "rank", "seconds"}, to));
    for (std::size_t rank = 0; rank < sample.seconds.size(); ++rank)
      trace += fmt::format("{1}{0}{2}{0}{3}{0}{4}{0}{5}{0}{6:.9g}\n", to, name_of(sample.op), sample.bytes,
                           sample.repetition + 1, sample.iteration + 1, rank, sample.seconds[rank]);
  }

  // Like --output, an explicitly named trace file replaces an earlier one.
  void write_trace(const std::string& trace) const {
    std::string file = output().own(trace_file_);
    for (int i = 2; !trace_file_is_named_ && Env::posix().status(file); ++i)
      file = output().own(fmt::format("rccl_trace_{}.jsonl", i));
    write_file_atomic(file, trace);
  }

  void write_rank_times(const BenchmarkReport& report) const {
    const char* const to = per_rank_file_.ends_with(".tsv") ? "\t" : ",";
    std::string text =
        fmt::format("{}\n", fmt::join(std::array{"case", "rank", "seconds", "fastest_seconds", "p95_seconds",
                                                 "slowest_seconds", "p95_over_median_of_all"},
                                      to));
    for (const BenchmarkResult& result : report.results) {
      for (std::size_t rank = 0; rank < result.rank_timings.size(); ++rank) {
        const Timing& timing = result.rank_timings[rank];
        text += fmt::format("\"{1}\"{0}{2}{0}{3:.9g}{0}{4:.9g}{0}{5:.9g}{0}{6:.9g}{0}{7:.4g}\n", to,
                            result.name, rank, timing.median, timing.fastest, timing.p95, timing.slowest,
                            timing.p95 / result.timing.median);
      }
    }
    write_file_atomic(output().own(per_rank_file_), text);
  }

  BenchmarkReport measure(comm::Communicator& world, Device& device, const Console& console) override {
    CollectivePlan plan = plan_;
    PhaseProgress shown(console);
    plan.progress = on_rank_0(world, shown);
    std::string trace;
    if (world.rank() == 0 && trace_) {
      plan.trace = [&](const CollectiveSample& sample) {
        if (traces(sample)) add_to_trace(sample, trace);
      };
    }
    BenchmarkReport report{
        .suite = "collectives", .dtype = std::string(name_of(plan.dtype)), .place = cluster_};
    report.results = measure_collectives(world, device, plan);
    if (plan.trace) write_trace(trace);
    if (world.rank() == 0 && !per_rank_file_.empty()) write_rank_times(report);
    return report;
  }

  CollectivePlan plan_;
  std::vector<std::string> ops_ = {"all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"};
  std::string sizes_, min_ = "1K", max_ = "128M", scale_ = "log2", per_rank_file_, trace_file_, trace_ops_,
                      trace_sizes_, cluster_;
  std::vector<CollectiveOp> traced_ops_;    // empty: all
  std::vector<std::int64_t> traced_sizes_;  // empty: all
  std::int64_t count_ = 12, repetitions_ = 1, trace_limit_ = 0;
  bool aggregate_ = false, check_ = false, per_rank_ = false, trace_ = false, trace_file_is_named_ = true;
};

class BenchmarkStridedAllGather final : public BenchmarkRanks {
  void declare_case(Arguments& args) override {
    args.option("--sizes-mb", "LIST", &sizes_, "MiB that each rank contributes");
    args.option("--stride", "N", &stride_, "ranks r, r + N, r + 2N ... form a group");
    args.flag("--parallel", parallel_, "run all groups at once instead of one after the other");
    args.refuse("--backend", "the device and --transport choose the communication library",
                "on GPUs it is NCCL or RCCL; on CPUs, --transport tcp corresponds to Gloo");
  }

  void check_case() override {
    plan_.sizes.clear();
    for (const std::int64_t mib : parse_sizes("--sizes-mb", sizes_, kMaxBytes >> 20))
      plan_.sizes.push_back(mib << 20);
    if (stride_ < 1 || stride_ > 1 << 20) throw invalid("--stride must be 1 or more");
    plan_.stride = static_cast<int>(stride_);
    plan_.parallel = parallel_;
    plan_.dtype = dtype();
    plan_.warmup = warmup(), plan_.iterations = iterations();
  }

  BenchmarkReport measure(comm::Communicator& world, Device& device, const Console& console) override {
    StridedPlan plan = plan_;
    PhaseProgress shown(console);
    plan.progress = on_rank_0(world, shown);
    BenchmarkReport report{.suite = "strided-allgather", .dtype = std::string(name_of(plan_.dtype))};
    report.results = measure_strided_all_gather(world, device, plan);
    return report;
  }

  StridedPlan plan_;
  std::string sizes_ = "64,128,256";
  std::int64_t stride_ = 8;
  bool parallel_ = false;
};

#define PRIMUS_COLLECTIVE_DETAILS                                                                         \
  "A sample is the time of one call on the slowest rank, from the call until the host sees its end. "     \
  "GB/s\n"                                                                                                \
  "are message size over time; bus GB/s are the traffic of the busiest link. Ranks are processes of "     \
  "this\n"                                                                                                \
  "machine (--nproc), those that a launcher started (torchrun, srun, primus direct), or threads of one\n" \
  "process. On GPUs NCCL or RCCL is measured.\n\n" PRIMUS_BASELINE_HELP

constexpr const char* kCollectivesSummary =
    "Times communication between ranks: each operation at several message sizes";
constexpr const char* kCollectivesExamples =
    "primus benchmark collectives --nproc 4 --op all_reduce --sizes 64K,1M,16M\n"
    "primus benchmark collectives --nproc 2 --transport tcp --op all --check --output collectives.html\n"
    "primus slurm srun -N 2 -- direct -- benchmark rccl --device cuda --max-bytes 1G --per-rank\n"
    "primus slurm srun -N 2 -- direct -- benchmark rccl --max-bytes 1G --baseline compare last-week.json";

}  // namespace

extern const CommandEntry kBenchmarkCollectives{"benchmark collectives",
                                                kCollectivesSummary,
                                                PRIMUS_COLLECTIVE_DETAILS,
                                                kCollectivesExamples,
                                                make_command<BenchmarkCollectives>,
                                                {Section::kBenchmark, 7},
                                                true};

extern const CommandEntry kBenchmarkRccl{"benchmark rccl",
                                         "Same as 'benchmark collectives', under AMD Primus's name",
                                         PRIMUS_COLLECTIVE_DETAILS,
                                         kCollectivesExamples,
                                         make_command<BenchmarkCollectives>,
                                         {Section::kBenchmark, 8},
                                         true};

extern const CommandEntry kBenchmarkStridedAllGather{
    "benchmark strided-allgather",
    "Times all-gathers among every Nth rank, group by group or all groups at once",
    PRIMUS_COLLECTIVE_DETAILS,
    "primus benchmark strided-allgather --nproc 4 --stride 2 --sizes-mb 1,4,16\n"
    "primus slurm srun -N 2 -- direct -- benchmark strided-allgather --device cuda --stride 8 --parallel",
    make_command<BenchmarkStridedAllGather>,
    {Section::kBenchmark, 9},
    true};

}  // namespace primus::cli
