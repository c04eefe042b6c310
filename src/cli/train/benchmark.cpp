// primus benchmark train
#include <fmt/format.h>

#include "bench/train_benchmark.h"
#include "cli/commands.h"
#include "cli/options/experiment.h"

namespace primus::cli {
namespace {

class BenchmarkTrain final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args);
    args.option("--steps", "N", &options_.steps, "training steps to time");
    args.option("--warmup", "N", &options_.warmup, "steps before, not counted");
    args.flag("--json", json_, "print the report as JSON");
  }

  int run(Console& console) override {
    constexpr std::int64_t kMostSteps = 1'000'000;
    if (options_.steps < 1 || options_.steps > kMostSteps)
      throw invalid(fmt::format("--steps must be from 1 to {}", kMostSteps));
    if (options_.warmup < 0 || options_.warmup > kMostSteps)
      throw invalid(fmt::format("--warmup must be from 0 to {}", kMostSteps));
    const config::Experiment experiment = experiment_.load(console);
    apply_environment(experiment);
    ProgressLine progress(
        json_ ? Terminal{} : console.err,
        {.label = "training", .total = static_cast<std::uint64_t>(options_.steps + options_.warmup)});
    options_.progress = [&](std::int64_t done, std::int64_t) {
      progress.update(static_cast<std::uint64_t>(done), steady_seconds());
    };
    const TrainBenchmarkReport report = benchmark_training(experiment, builtin_families(), options_);
    progress.finish(steady_seconds());
    json_ ? console.write(to_json(report) + "\n") : console.print(to_text(report));
    return 0;
  }

 private:
  ExperimentArguments experiment_;
  TrainBenchmarkOptions options_;
  bool json_ = false;
};

}  // namespace

const CommandEntry kBenchmarkTrain{
    "benchmark train", "Times training steps of an experiment, and where the time goes",
    "Random tokens stand for data, and nothing is written. Model FLOP/s are compared with the peak of large\n"
    "matrix products, measured in the same run.",
    "primus benchmark train --config examples/native/configs/CPU/llama_124M-pretrain.yaml --steps 10\n"
    "primus benchmark train --config exp.yaml --steps 20 --json micro_batch_size=8",
    make_command<BenchmarkTrain>};

}  // namespace primus::cli
