// The suites of collective_benchmark.h: all operations over sizes of messages, and all-gathers of every Nth
// rank.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "base/text/sizes.h"
#include "bench/benchmark_entry.h"
#include "bench/collective_benchmark.h"

namespace primus {
namespace {

constexpr std::int64_t kMaxMessageBytes = std::int64_t{1} << 36, kMaxCalls = 1'000'000;

// The part that both suites share: the options for the number of calls.
class ExchangeBenchmark : public Benchmark {
 protected:
  std::vector<BenchmarkOption> with_calls(std::vector<BenchmarkOption> options) {
    options.push_back({"--warmup", "N", "untimed calls of each case before the timed ones", &warmup_});
    options.push_back({"--iters,--iterations", "N", "number of timed calls", &iterations_});
    return options;
  }
  void check_calls() const {
    for (const auto& [name, value] : {std::pair("--warmup", warmup_), std::pair("--iters", iterations_)})
      if (value < (name[2] == 'i' ? 1 : 0) || value > kMaxCalls)
        throw invalid(fmt::format("{} {}: not a number of calls from {} to {}", name, value,
                                  name[2] == 'i' ? 1 : 0, kMaxCalls));
  }
  int warmup() const { return static_cast<int>(warmup_); }
  int iterations() const { return static_cast<int>(iterations_); }
  static std::function<void(std::int64_t, std::int64_t)> measuring(const BenchmarkRun& run) {
    return [&run](std::int64_t done, std::int64_t total) { run.progress("measuring", done, total); };
  }

 private:
  std::int64_t warmup_ = 20, iterations_ = 100;
};

class CollectivesBenchmark final : public ExchangeBenchmark {
  std::vector<BenchmarkOption> options() override {
    return with_calls(
        {{.names = "--op,--ops",
          .value = "OP",
          .help =
              "one or more of all_reduce, broadcast, reduce_scatter, all_gather, all_to_all, send_receive "
              "and barrier, or all (default: the first five)",
          .target = &ops_,
          .several = true},
         {"--sizes", "LIST", "message sizes: 64K,1M; replaces the next four options", &sizes_},
         {"--min-bytes", "SIZE", "smallest message size", &min_, kUsualMin},
         {"--max-bytes", "SIZE", "largest message size", &max_, kUsualMax},
         {.names = "--num-sizes",
          .value = "N",
          .help = "number of sizes between the two",
          .target = &count_,
          .shown_default = std::to_string(kUsualCount),
          .range = {{1, 1000}}},
         {.names = "--scale",
          .value = "KIND",
          .help = "spacing of these sizes",
          .target = &scale_,
          .shown_default = kUsualScale,
          .choices = {"log2", "linear"}},
         {.names = "--repeat",
          .value = "N",
          .help =
              "repetitions of the timed calls, with a barrier before each; each gets a line in the report",
          .target = &repetitions_,
          .range = {{1, 1000}}},
         {"--aggregate-repeat", {}, "add a line for all repetitions together", &aggregate_},
         {"--check", {}, "check each result against the expected one before timing it", &check_},
         {"--per-rank", {}, "also show the median of each rank", &per_rank_},
         {"--per-rank-file", "FILE", "write each rank's times: .csv or .tsv", &per_rank_file_},
         {"--per-iter-trace", {}, "write each call's seconds by rank", &trace_},
         {"--trace-file", "FILE",
          "trace file: .jsonl, or .csv and .tsv with a line for each rank (default: the name of --output "
          "with _trace.jsonl, or rccl_trace.jsonl, with a number if that exists)",
          &trace_file_},
         {"--trace-limit", "N", "trace only the first calls of each repetition; 0: all of them",
          &trace_limit_},
         {"--trace-ops", "LIST", "trace only these operations (default: all)", &trace_ops_},
         {"--trace-sizes", "LIST", "trace only messages of these sizes (default: all)", &trace_sizes_},
         {"--cluster", "NAME", "name of the cluster, for the report (default: PRIMUS_CLUSTER)", &cluster_}});
  }

  void check() override {
    check_calls();
    plan_.ops = parse_collectives(fmt::format("{}", fmt::join(ops_, ",")));
    if (aggregate_ && repetitions_ == 1)
      throw invalid("--aggregate-repeat needs several repetitions, but there is one",
                    "set --repeat to 2 or more, or remove --aggregate-repeat");
    if (!sizes_.empty()) {
      if (!min_.empty() || !max_.empty() || count_ || !scale_.empty()) {
        throw invalid(
            "--sizes lists the message sizes, and --min-bytes, --max-bytes, --num-sizes or --scale "
            "sets them, too",
            "remove --sizes, or remove the others");
      }
      plan_.sizes = parse_sizes("--sizes", sizes_, kMaxMessageBytes);
    } else {
      const auto one = [](const char* option, const std::string& text) {
        const std::vector<std::int64_t> sizes = parse_sizes(option, text, kMaxMessageBytes);
        if (sizes.size() != 1) throw invalid(fmt::format("{} {}: give one size", option, text));
        return static_cast<double>(sizes.front());
      };
      const double minimum = one("--min-bytes", min_.empty() ? kUsualMin : min_),
                   maximum = one("--max-bytes", max_.empty() ? kUsualMax : max_);
      const std::int64_t count = count_.value_or(kUsualCount);
      if (minimum > maximum) throw invalid("--min-bytes is above --max-bytes");
      for (std::int64_t i = 0; i < count; ++i) {
        const double at = count == 1 ? 1 : static_cast<double>(i) / static_cast<double>(count - 1);
        const double size = scale_ == "linear" ? minimum + at * (maximum - minimum)
                                               : minimum * std::pow(maximum / minimum, at);
        plan_.sizes.push_back(static_cast<std::int64_t>(std::llround(size)));
      }
    }
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
    if (!trace_file_.empty() && !ends_in(trace_file_, {".jsonl", ".csv", ".tsv"}))
      throw invalid(fmt::format("--trace-file '{}' does not end in .jsonl, .csv or .tsv", trace_file_),
                    "end the name in one of these; the ending chooses the file's format");
    if (trace_limit_ < 0) throw invalid("--trace-limit must be 0 or more");
    if (!trace_ops_.empty()) traced_ops_ = parse_collectives(trace_ops_);
    for (const CollectiveOp op : traced_ops_)
      if (trace_ops_ != "all" && std::find(plan_.ops.begin(), plan_.ops.end(), op) == plan_.ops.end())
        throw invalid(fmt::format("--trace-ops: {} is not among the operations of --op", name_of(op)));
    if (!trace_sizes_.empty()) traced_sizes_ = parse_sizes("--trace-sizes", trace_sizes_, kMaxMessageBytes);
    for (const std::int64_t size : traced_sizes_)
      if (std::find(plan_.sizes.begin(), plan_.sizes.end(), size) == plan_.sizes.end())
        throw invalid(fmt::format("--trace-sizes: {} bytes is not one of the message sizes", size),
                      "list it in --sizes");
  }

  bool traces(const CollectiveSample& sample, DType dtype) const {
    const bool takes_op = traced_ops_.empty() ||
                          std::find(traced_ops_.begin(), traced_ops_.end(), sample.op) != traced_ops_.end();
    // The loop visits all sizes, because several requested sizes may round to the same message size.
    const auto ranks = static_cast<std::int64_t>(sample.seconds.size());
    const bool takes_size = traced_sizes_.empty() ||
                            std::any_of(traced_sizes_.begin(), traced_sizes_.end(), [&](std::int64_t size) {
                              return message_bytes(size, dtype, ranks) == sample.bytes;
                            });
    return (trace_limit_ == 0 || sample.iteration < trace_limit_) && takes_op && takes_size;
  }

  // Appends one line to the trace, or one per rank.
  void add_to_trace(const CollectiveSample& sample, std::string& trace) const {
    if (trace_file_.empty() || trace_file_.ends_with(".jsonl")) {
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

  // Writes the trace. A file name that the user gave, also by --output, replaces an earlier file; the default
  // name gets a number instead.
  void write_trace(const std::string& trace, const BenchmarkRun& run) const {
    const Path overlap = run.report_file;
    const bool is_named = !trace_file_.empty() || !overlap.empty();
    std::string file =
        run.own_file(!trace_file_.empty() ? Path(trace_file_)
                     : overlap.empty()    ? Path("rccl_trace.jsonl")
                                       : overlap.parent_path() / (overlap.stem().string() + "_trace.jsonl"));
    for (int i = 2; !is_named && Env::posix().status(file); ++i)
      file = run.own_file(fmt::format("rccl_trace_{}.jsonl", i));
    write_file_atomic(file, trace);
  }

  void write_rank_times(const BenchmarkReport& report, const BenchmarkRun& run) const {
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
    write_file_atomic(run.own_file(per_rank_file_), text);
  }

  // Returns a note about sizes of --sizes that are not measured as they are; "" if there are none.
  std::string note_on_rounding(const BenchmarkRun& run) const {
    std::vector<std::string> rounded;
    for (const std::int64_t size : plan_.sizes) {
      const std::int64_t measured = message_bytes(size, run.dtype, run.world->size());
      if (!sizes_.empty() && measured != size) rounded.push_back(fmt::format("{} to {}", size, measured));
    }
    if (rounded.empty()) return {};
    return fmt::format("message sizes are rounded up to the same number of elements for each rank: {} bytes",
                       fmt::join(rounded, ", "));
  }

  BenchmarkReport measure(const BenchmarkRun& run) override {
    CollectivePlan plan = plan_;
    plan.dtype = run.dtype;
    plan.progress = measuring(run);
    std::string trace;
    const bool is_first = run.world->rank() == 0;
    if (is_first && trace_) {
      plan.trace = [&](const CollectiveSample& sample) {
        if (traces(sample, run.dtype)) add_to_trace(sample, trace);
      };
    }
    BenchmarkReport report{
        .suite = "collectives", .dtype = std::string(name_of(plan.dtype)), .place = cluster_};
    report.results = measure_collectives(*run.world, *run.rank_device, plan);
    if (std::string note = note_on_rounding(run); !note.empty()) report.notes.push_back(std::move(note));
    if (plan.trace) write_trace(trace, run);
    if (is_first && !per_rank_file_.empty()) write_rank_times(report, run);
    return report;
  }

  CollectivePlan plan_;
  std::vector<std::string> ops_ = {"all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"};
  static constexpr const char *kUsualMin = "1K", *kUsualMax = "128M", *kUsualScale = "log2";
  static constexpr std::int64_t kUsualCount = 12;
  std::string sizes_, min_, max_, scale_, per_rank_file_, trace_file_, trace_ops_, trace_sizes_, cluster_;
  std::optional<std::int64_t> count_;
  std::vector<CollectiveOp> traced_ops_;    // empty: all
  std::vector<std::int64_t> traced_sizes_;  // empty: all
  std::int64_t repetitions_ = 1, trace_limit_ = 0;
  bool aggregate_ = false, check_ = false, per_rank_ = false, trace_ = false;
};

class StridedAllGatherBenchmark final : public ExchangeBenchmark {
  std::vector<BenchmarkOption> options() override {
    return with_calls(
        {{"--sizes-mb", "LIST", "MiB that each rank contributes", &sizes_},
         {"--stride", "N", "ranks r, r + N, r + 2N ... form a group", &stride_},
         {"--parallel", {}, "run all groups at once instead of one after another", &parallel_}});
  }
  std::vector<RefusedOption> refused() const override {
    return {{"--backend", "the device and --transport choose the communication library",
             "on GPUs it is NCCL or RCCL; on CPUs, --transport tcp corresponds to Gloo"}};
  }

  void check() override {
    check_calls();
    for (const std::int64_t mib : parse_sizes("--sizes-mb", sizes_, kMaxMessageBytes >> 20))
      plan_.sizes.push_back(mib << 20);
    if (stride_ < 1 || stride_ > 1 << 20) throw invalid("--stride must be 1 or more");
    plan_.stride = static_cast<int>(stride_);
    plan_.parallel = parallel_;
    plan_.warmup = warmup(), plan_.iterations = iterations();
  }

  BenchmarkReport measure(const BenchmarkRun& run) override {
    StridedPlan plan = plan_;
    plan.dtype = run.dtype;
    plan.progress = measuring(run);
    BenchmarkReport report{.suite = "strided-allgather", .dtype = std::string(name_of(plan.dtype))};
    report.results = measure_strided_all_gather(*run.world, *run.rank_device, plan);
    return report;
  }

  StridedPlan plan_;
  std::string sizes_ = "64,128,256";
  std::int64_t stride_ = 8;
  bool parallel_ = false;
};

}  // namespace

extern const BenchmarkEntry kCollectivesEntry{.name = "collectives",
                                              .make = make_benchmark<CollectivesBenchmark>,
                                              .subject = BenchmarkSubject::kRanks,
                                              .types = MeasuredTypes{.fp16 = true}};

extern const BenchmarkEntry kStridedAllGatherEntry{.name = "strided-allgather",
                                                   .make = make_benchmark<StridedAllGatherBenchmark>,
                                                   .subject = BenchmarkSubject::kRanks,
                                                   .types = MeasuredTypes{.fp16 = true}};

}  // namespace primus
