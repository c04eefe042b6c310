#include "bench/train_benchmark.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "bench/benchmark_entry.h"
#include "bench/composed_time.h"
#include "config/trainer_config.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/step/random_batch.h"
#include "turbo/devices/devices.h"
#include "turbo/linear/gemm_rate.h"

namespace primus {
namespace {

using Clock = std::chrono::steady_clock;

constexpr turbo::RateTime kPeakTime{.seconds = 0.5};  // duration of each measurement of the ceiling

std::int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

std::vector<data::Batch> random_batches(const SessionSettings& settings, const config::TrainerConfig& c) {
  std::vector<data::Batch> batches;
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
    batches.push_back(random_batch(c.micro_batch_size * c.seq_length, c.seq_length, settings.model.vocab,
                                   static_cast<std::uint64_t>(i)));
  }
  return batches;
}

// Returns a report with the values that are known before the first step.
TrainBenchmarkReport begun_report(engine::Rank& rank, TrainingSession& session,
                                  const SessionSettings& settings, const TrainBenchmarkOptions& options,
                                  const config::TrainerConfig& c) {
  TrainBenchmarkReport report;
  report.device = rank.device().description();
  report.compute_type = name_of(settings.compute);
  report.parameters = session.store().elements();
  report.tokens_per_step = c.global_batch_size * c.seq_length;
  report.steps = options.steps;
  report.gemm_peak = turbo::measure_gemm_rate(rank.device(), settings.compute, kPeakTime);
  return report;
}

// Adds the step times and each kernel's share of the step time.
void add_times(TrainBenchmarkReport& report, const turbo::Meter& timed, std::vector<double> times,
               const SessionSettings& settings, const config::TrainerConfig& c) {
  double sum = 0;
  for (double t : times) sum += t;
  report.step_seconds = times;
  std::sort(times.begin(), times.end());
  report.seconds = times[times.size() / 2];
  report.fastest = times.front();
  report.slowest = times.back();
  report.tokens_per_second = static_cast<double>(report.tokens_per_step) / report.seconds;
  report.model_flops_per_second =
      training_flops(settings.model, c.global_batch_size, c.seq_length) / report.seconds;
  report.share_of_peak = report.model_flops_per_second / report.gemm_peak;
  report.outside_kernels = 1;
  for (std::size_t id = 0; id < timed.lines.size(); ++id) {
    const turbo::Meter::Line& line = timed.lines[id];
    if (line.calls == 0 || line.seconds == 0) continue;
    report.kernels.push_back({.kernel = std::string(turbo::name_of(static_cast<turbo::KernelId>(id))),
                              .calls = line.calls / report.steps,
                              .seconds = line.seconds / static_cast<double>(report.steps),
                              .share = line.seconds / sum,
                              .flops_per_second = line.flops / line.seconds});
    report.outside_kernels -= line.seconds / sum;
  }
  std::sort(report.kernels.begin(), report.kernels.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
}

// Runs and times the steps. Frees the memory of the steps at the end.
TrainBenchmarkReport time_steps(const config::Experiment& experiment, const SessionSettings& settings,
                                const FamilyRegistry& families, const TrainBenchmarkOptions& options) {
  const config::TrainerConfig& c = experiment.trainer;
  std::unique_ptr<Device> device = turbo::open_device(device_spec_of(experiment));
  const DeviceTiming* const timing = turbo::timing_of(*device);
  if (options.trace) device = turbo::make_tracing_device(std::move(device), timing, options.trace);
  engine::Rank rank(std::move(device));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, families);
  session->store().initialize(rank.context(), static_cast<std::uint64_t>(c.seed));
  rank.compute().synchronize();

  TrainBenchmarkReport report = begun_report(rank, *session, settings, options, c);
  const std::vector<data::Batch> batches = random_batches(settings, c);
  TrainingStep& step = session->step();
  std::vector<double> times, enqueued;
  // Runs `work` and records it on the host's track of the trace.
  const auto span = [&](const std::string& name, const auto& work) {
    const double begin = turbo::TraceRecorder::now();
    work();
    if (options.trace && options.trace->recording())
      options.trace->add(
          {.name = name, .category = "host", .begin = begin, .end = turbo::TraceRecorder::now()});
  };
  const auto run_step = [&](std::int64_t number) {
    step.begin(number);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      const auto start = Clock::now();
      span(fmt::format("microbatch {}", i), [&] { step.microbatch(i, batches[i]); });
      if (i == 0) enqueued.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    span("gradients", [&] {
      step.finish_gradients();
      report.loss = step.result().loss;
    });
    span("update", [&] {
      step.update(number, c.lr, c.weight_decay);
      rank.compute().synchronize();
    });
  };
  // The warm-up includes the steps until the graph is recorded, so these steps are not timed.
  const std::int64_t recorded = settings.step.record_after > 0 ? settings.step.record_after + 1 : 0;
  const std::int64_t warmup = std::max(options.warmup, recorded);
  const std::int64_t total = warmup + options.steps;
  for (std::int64_t s = 0; s < total; ++s) {
    if (s == warmup) {
      rank.meter().reset();
      rank.meter().timed = true;
      enqueued.clear();
    }
    const auto start = Clock::now();
    run_step(s + 1);
    if (s >= warmup) times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (options.progress) options.progress(s + 1, total);
  }
  const turbo::Meter timed = rank.meter();
  const double timed_loss = report.loss;
  if (!rank.device().synchronous()) {
    std::ranges::nth_element(enqueued, enqueued.begin() + enqueued.size() / 2);
    report.enqueue_seconds = enqueued[enqueued.size() / 2];
  }
  if (options.trace) {
    options.trace->start();
    for (std::int64_t s = 0; s < options.traced_steps; ++s)
      span(fmt::format("step {}", total + s + 1), [&] { run_step(total + s + 1); });
    rank.synchronize();
    options.trace->stop();
  }
  report.loss = timed_loss;
  report.replayed_steps = step.graphs().replayed_steps();
  report.device_used_bytes = rank.device().memory_use().used;
  report.gemm_peak =
      std::max(report.gemm_peak, turbo::measure_gemm_rate(rank.device(), settings.compute, kPeakTime));

  report.memory = rank.high_water();
  add_times(report, timed, std::move(times), settings, c);
  report.peak_resident_bytes = peak_resident_bytes();
  return report;
}

TrainBenchmarkReport::Ceiling time_alone(Device& device, const SessionSettings& settings, double seconds) {
  const StepSettings& step = settings.step;
  const ComposedTime time = time_training_alone(
      device, settings.model, step.micro_batch, step.sequence,
      {.dtype = settings.compute, .weight_gradient = settings.gradients, .seconds = seconds});
  const auto microbatches = static_cast<double>(step.microbatches);
  return {.product_seconds = microbatches * time.product_seconds,
          .attention_seconds = microbatches * time.attention_seconds,
          .delta_rule_seconds = microbatches * time.delta_rule_seconds};
}

}  // namespace

TrainBenchmarkReport benchmark_training(const config::Experiment& experiment, const FamilyRegistry& families,
                                        const TrainBenchmarkOptions& options) {
  const std::unique_ptr<const Tokenizer> tokenizer = tokenizer_of(experiment);
  const SessionSettings settings =
      session_settings_of(experiment, model_of(experiment, families, tokenizer.get()));
  TrainBenchmarkReport report = time_steps(experiment, settings, families, options);
  if (options.ceiling_seconds > 0) {
    TrainBenchmarkReport::Ceiling ceiling =
        time_alone(*turbo::open_device(device_spec_of(experiment)), settings, options.ceiling_seconds);
    const double flops = report.model_flops_per_second * report.seconds;
    ceiling.model_flops_per_second =
        flops / (ceiling.product_seconds + ceiling.attention_seconds + ceiling.delta_rule_seconds);
    ceiling.share = report.model_flops_per_second / ceiling.model_flops_per_second;
    report.ceiling = ceiling;
  }
  return report;
}

BenchmarkReport to_report(const TrainBenchmarkReport& r) {
  BenchmarkReport report{.suite = "train", .device = r.device, .dtype = r.compute_type};
  report.gemm_ceiling = r.gemm_peak;
  report.results.push_back(
      {.name = fmt::format("step, {} parameters, {} tokens", r.parameters, r.tokens_per_step),
       .timing = summarize(r.step_seconds),
       .flops = r.model_flops_per_second * r.seconds,
       .tokens = static_cast<double>(r.tokens_per_step)});
  return report;
}

std::string to_json(const TrainBenchmarkReport& r) {
  nlohmann::ordered_json json{
      {"device", r.device},
      {"compute_type", r.compute_type},
      {"parameters", r.parameters},
      {"tokens_per_step", r.tokens_per_step},
      {"steps", r.steps},
      {"seconds_per_step", {{"median", r.seconds}, {"min", r.fastest}, {"max", r.slowest}}},
      {"tokens_per_second", r.tokens_per_second},
      {"model_flops_per_second", r.model_flops_per_second},
      {"gemm_peak_flops_per_second", r.gemm_peak},
      {"share_of_gemm_peak", r.share_of_peak},
      {"outside_kernels", r.outside_kernels},
      {"memory_bytes",
       {{"persistent", r.memory.persistent},
        {"stash", r.memory.stash},
        {"scratch", r.memory.scratch},
        {"device_used", r.device_used_bytes},
        {"peak_resident", r.peak_resident_bytes}}},
      {"loss", r.loss},
      {"enqueue_seconds", r.enqueue_seconds},
      {"replayed_steps", r.replayed_steps}};
  if (r.ceiling) {
    json["ceiling"] = {{"product_seconds", r.ceiling->product_seconds},
                       {"attention_seconds", r.ceiling->attention_seconds},
                       {"delta_rule_seconds", r.ceiling->delta_rule_seconds},
                       {"model_flops_per_second", r.ceiling->model_flops_per_second},
                       {"share", r.ceiling->share}};
  }
  json["kernels"] = nlohmann::ordered_json::array();
  for (const auto& k : r.kernels) {
    json["kernels"].push_back({{"name", k.kernel},
                               {"calls", k.calls},
                               {"seconds", k.seconds},
                               {"share", k.share},
                               {"flops_per_second", k.flops_per_second}});
  }
  return json.dump(2) + "\n";
}

std::string to_text(const TrainBenchmarkReport& r) {
  constexpr double kMiB = 1 << 20;
  std::string text = fmt::format(
      "{} | {} | {:.1f}M parameters | {} tokens per step\n"
      "step         {:.3f} s median of {} ({:.3f} to {:.3f})\n"
      "speed        {:.0f} tokens/s, {:.1f} model GFLOP/s\n"
      "GEMM peak    {:.1f} GFLOP/s, {:.1f} % used\n"
      "memory       {:.0f} MiB persistent, {:.0f} MiB stash, {:.0f} MiB scratch; {:.0f} MiB resident at "
      "most\n",
      r.device, r.compute_type, static_cast<double>(r.parameters) / 1e6, r.tokens_per_step, r.seconds,
      r.steps, r.fastest, r.slowest, r.tokens_per_second, r.model_flops_per_second / 1e9, r.gemm_peak / 1e9,
      100 * r.share_of_peak, static_cast<double>(r.memory.persistent) / kMiB,
      static_cast<double>(r.memory.stash) / kMiB, static_cast<double>(r.memory.scratch) / kMiB,
      static_cast<double>(r.peak_resident_bytes) / kMiB);
  if (r.ceiling) {
    const TrainBenchmarkReport::Ceiling& c = *r.ceiling;
    text += fmt::format(
        "ceiling      {:.1f} model GFLOP/s if a step had only products ({:.3f} s), attention ({:.3f} s) and "
        "delta rules ({:.3f} s), {:.1f} % reached\n",
        c.model_flops_per_second / 1e9, c.product_seconds, c.attention_seconds, c.delta_rule_seconds,
        100 * c.share);
  }
  if (r.enqueue_seconds > 0) {
    text += fmt::format("host         {:.2f} ms to enqueue a microbatch, {} steps replayed as graphs\n",
                        1e3 * r.enqueue_seconds, r.replayed_steps);
  }
  if (r.kernels.empty()) {
    return text +
           "kernels      not timed here, because the device runs asynchronously; --trace FILE shows "
           "them\n";
  }
  text += fmt::format("\n{:<24}{:>8}{:>12}{:>9}{:>12}\n", "kernel", "calls", "ms/step", "share", "GFLOP/s");
  for (const auto& k : r.kernels) {
    text += fmt::format("{:<24}{:>8}{:>12.2f}{:>8.1f}%{:>12}\n", k.kernel, k.calls, 1e3 * k.seconds,
                        100 * k.share,
                        k.flops_per_second > 0 ? fmt::format("{:.1f}", k.flops_per_second / 1e9) : "-");
  }
  text += fmt::format("{:<24}{:>8}{:>12.2f}{:>8.1f}%\n", "outside kernels", "",
                      1e3 * r.seconds * r.outside_kernels, 100 * r.outside_kernels);
  return text;
}

namespace {

class TrainBenchmark final : public Benchmark {
  std::vector<BenchmarkOption> options() override {
    constexpr double kMaxSteps = 1e6;
    return {
        {.names = "--steps",
         .value = "N",
         .help = "training steps to time",
         .target = &options_.steps,
         .range = {{1, kMaxSteps}}},
        {.names = "--warmup",
         .value = "N",
         .help = "untimed steps before the timed steps",
         .target = &options_.warmup,
         .range = {{0, kMaxSteps}}},
        {"--ceiling",
         {},
         "then time the model's matrix products, attention and delta rules separately, and compare the steps "
         "with a step that consists only of these",
         &ceiling_},
        {"--trace", "FILE",
         "record more steps after the timed ones as a Chrome trace (open it in ui.perfetto.dev)", &trace_},
        {.names = "--trace-steps",
         .value = "N",
         .help = "number of recorded steps",
         .target = &traced_steps_,
         .shown_default = std::to_string(options_.traced_steps),
         .range = {{1, 1000}}}};
  }

  void check() override {
    if (traced_steps_ && trace_.empty())
      throw invalid("--trace-steps needs a trace, but nothing is recorded", "add --trace FILE");
    options_.traced_steps = traced_steps_.value_or(options_.traced_steps);
  }

  BenchmarkReport measure(const BenchmarkRun& run) override {
    // duration of each of about 15 measurements, one per product or attention shape
    constexpr double kCeilingSeconds = 0.3;
    if (ceiling_) options_.ceiling_seconds = kCeilingSeconds;
    if (!trace_.empty()) options_.trace = std::make_shared<turbo::TraceRecorder>();
    options_.progress = [&](std::int64_t done, std::int64_t total) { run.progress("training", done, total); };
    const TrainBenchmarkReport result = benchmark_training(*run.experiment, builtin_families(), options_);
    if (options_.trace) {
      const std::string file = run.own_file(trace_);
      write_file_atomic(file, options_.trace->chrome_json({.name = result.device}));
      run.note("trace: " + file);
      if (options_.trace->full())
        run.note("note: the trace is full, so later events are missing; record fewer steps (--trace-steps)");
    }
    BenchmarkReport report = to_report(result);
    report.own_text = to_text(result);
    report.own_json = to_json(result) + "\n";
    return report;
  }

  TrainBenchmarkOptions options_;
  std::string trace_;
  std::optional<std::int64_t> traced_steps_;
  bool ceiling_ = false;
};

}  // namespace

extern const BenchmarkEntry kTrainEntry{
    .name = "train", .make = make_benchmark<TrainBenchmark>, .subject = BenchmarkSubject::kExperiment};

}  // namespace primus
