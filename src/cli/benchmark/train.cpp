// primus benchmark train
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "bench/train_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/experiment.h"
#include "config/trainer_config.h"

namespace primus::cli {
namespace {

class BenchmarkTrain final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args);
    args.option("--steps", "N", &options_.steps, "training steps to time").between(1, kMaxSteps);
    args.option("--warmup", "N", &options_.warmup, "untimed steps before those").between(0, kMaxSteps);
    args.flag("--ceiling", ceiling_,
              "then time the model's matrix products and attention separately, and compare the steps with "
              "the rate of these alone");
    args.option("--trace", "FILE", &trace_,
                "record more steps after the timed ones as a Chrome trace (open it in ui.perfetto.dev)");
    args.option("--trace-steps", "N", &traced_steps_, "number of recorded steps")
        .between(1, 1000)
        .default_note(options_.traced_steps);
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>& variables) override {
    check_words();
    experiment_.check_where_it_is(variables);
  }

  int run(Console& console) override {
    check_words();
    constexpr double kCeilingSeconds = 0.3;  // for each of about 15 measurements
    if (ceiling_) options_.ceiling_seconds = kCeilingSeconds;
    if (!trace_.empty()) options_.trace = std::make_shared<turbo::TraceRecorder>();
    output_.check();
    const config::Experiment experiment = experiment_.load(console);
    apply_environment(experiment);
    ProgressLine progress(
        output_.json() ? Terminal{} : console.err,
        {.label = "training", .total = static_cast<std::uint64_t>(options_.steps + options_.warmup)});
    options_.progress = [&](std::int64_t done, std::int64_t) {
      progress.update(static_cast<std::uint64_t>(done), steady_seconds());
    };
    const TrainBenchmarkReport report = benchmark_training(experiment, builtin_families(), options_);
    progress.finish(steady_seconds());
    if (options_.trace) {
      write_file_atomic(output_.own(trace_), options_.trace->chrome_json({.name = report.device}));
      console.note("trace: " + output_.own(trace_));
      if (options_.trace->full())
        console.note(
            "note: the trace is full, so later events are missing; record fewer steps (--trace-steps)");
    }
    return output_.finish(to_report(report), console,
                          output_.json() ? to_json(report) + "\n" : to_text(report));
  }

 private:
  // Errors that do not depend on the machine.
  void check_words() {
    if (traced_steps_ && trace_.empty())
      throw invalid("--trace-steps needs a trace, but nothing is recorded", "add --trace FILE");
    options_.traced_steps = traced_steps_.value_or(options_.traced_steps);
    output_.check_words();
  }

  static constexpr double kMaxSteps = 1e6;

  ExperimentArguments experiment_;
  TrainBenchmarkOptions options_;
  BenchmarkOutput output_;
  std::string trace_;
  std::optional<std::int64_t> traced_steps_;
  bool ceiling_ = false;
};

}  // namespace

extern const CommandEntry kBenchmarkTrain{
    "benchmark train",
    "Times training steps of an experiment, and shows where the time goes",
    "Trains on random tokens and writes nothing. Model FLOP/s are compared with the peak of large matrix "
    "products, measured in the same run.\n\n"
    "--ceiling adds a second comparison: a step that runs only the model's products and attention, each at "
    "the rate that it reaches alone.\n\n"
    "--trace FILE records every kernel and copy of more steps, by stream. To trace a training run or several "
    "ranks, use the key profile.\n"
    "\n" PRIMUS_BASELINE_HELP,
    "primus benchmark train --config examples/native/configs/CPU/llama_124M-pretrain.yaml --steps 10\n"
    "primus benchmark train --config exp.yaml --steps 20 --json micro_batch_size=8\n"
    "primus benchmark train --config exp.yaml --steps 20 --baseline compare last-week.json\n"
    "primus benchmark train --config exp.yaml --steps 10 --ceiling\n"
    "primus benchmark train --config exp.yaml --steps 3 --trace step.json",
    make_command<BenchmarkTrain>,
    {Section::kBenchmark, 1}};

}  // namespace primus::cli
