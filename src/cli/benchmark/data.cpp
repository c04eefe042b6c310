// primus benchmark data
#include "bench/data_benchmark.h"
#include "bench/device_timer.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/experiment.h"

namespace primus::cli {
namespace {

class BenchmarkData final : public Command {
 public:
  void declare(Arguments& args) override {
    experiment_.declare(args);
    args.option("--seconds,--duration", "S", &options_.seconds, "time for each measurement");
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>& variables) override {
    output_.check_words();
    check_seconds(options_.seconds);
    experiment_.check_where_it_is(variables);
  }

  int run(Console& console) override {
    output_.check();
    check_seconds(options_.seconds);
    const config::Experiment experiment = experiment_.load(console);
    apply_environment(experiment);
    std::optional<PhaseProgress> shown(std::in_place, console);
    options_.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
      shown->show(what, done, total);
    };
    const BenchmarkReport report = benchmark_data(experiment, options_);
    shown.reset();  // erases its line on the terminal
    return output_.finish(report, console);
  }

 private:
  ExperimentArguments experiment_;
  DataBenchmarkOptions options_;
  BenchmarkOutput output_;
};

}  // namespace

extern const CommandEntry kBenchmarkData{
    "benchmark data",
    "Times the data loading of an experiment: opening the data and reading batches",
    "Reads batches as training does, in the same order, and computes nothing. 'read ahead' is the minimum "
    "time that a training step waits for data.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark data --config exp.yaml\n"
    "primus benchmark data --config exp.yaml data_path=corpus/en seq_length=8192 --json",
    make_command<BenchmarkData>,
    {Section::kBenchmark, 11}};

}  // namespace primus::cli
