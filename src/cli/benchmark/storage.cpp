// primus benchmark memory, data, checkpoint
#include <fmt/format.h>

#include "base/error.h"
#include "bench/checkpoint_benchmark.h"
#include "bench/data_benchmark.h"
#include "bench/device_timer.h"
#include "bench/memory_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/experiment.h"
#include "cli/options/sizes.h"

namespace primus::cli {
namespace {

class BenchmarkMemory final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--sizes", "LIST", &sizes_, "of a buffer");
    args.option("--seconds,--duration", "S", &seconds_, "time for each measurement");
    device_.declare_without_type(args);
    args.refuse("--dtype", "bytes are read, written and copied, whatever they stand for", "leave it out");
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>&) override { checked(); }

  int run(Console& console) override {
    MemoryBenchmarkOptions options = checked();
    output_.check();
    const std::unique_ptr<Device> device = device_.make(console);
    const BenchmarkReport report = measured(console, [&](const DeviceTimer::Progress& progress) {
      options.progress = progress;
      return benchmark_memory(*device, options);
    });
    return output_.finish(report, console);
  }

 private:
  // Throws mistakes that are ones on every machine.
  MemoryBenchmarkOptions checked() {
    device_.check_words();
    output_.check_words();
    check_seconds(seconds_);
    return {.sizes = parse_sizes("--sizes", sizes_, std::int64_t{1} << 40), .seconds = seconds_};
  }

  DeviceOptions device_;
  BenchmarkOutput output_;
  std::string sizes_ = "1M,16M,256M";
  double seconds_ = 0.5;
};

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
    shown.reset();  // takes its line from the terminal
    return output_.finish(report, console);
  }

 private:
  ExperimentArguments experiment_;
  DataBenchmarkOptions options_;
  BenchmarkOutput output_;
};

class BenchmarkCheckpoint final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--path", "FOLDER", &folder_,
                "where checkpoints are to go; a folder of its own is made there, and removed");
    args.option("--size", "SIZE", &size_, "of a checkpoint: weights, master weights and two moments");
    args.option("--shard-size", "SIZE", &shard_, "of a file, at the most");
    args.option("--repeat", "N", &repetitions_, "how often it is saved and loaded");
    output_.declare(args);
  }

  void check_job(int, int, const std::map<std::string, std::string>&) override { checked(); }

  int run(Console& console) override {
    CheckpointBenchmarkOptions options = checked();
    output_.check();
    const BenchmarkReport report = measured(console, [&](const std::function<void(std::int64_t)>& progress) {
      options.progress = progress;
      return benchmark_checkpoint(options);
    });
    return output_.finish(report, console);
  }

 private:
  // Throws mistakes that are ones on every machine.
  CheckpointBenchmarkOptions checked() {
    output_.check_words();
    constexpr std::int64_t kMostBytes = std::int64_t{1} << 42;
    if (repetitions_ < 1 || repetitions_ > 1000) throw invalid("--repeat must be from 1 to 1000");
    const std::vector<std::int64_t> size = parse_sizes("--size", size_, kMostBytes),
                                    shard = parse_sizes("--shard-size", shard_, kMostBytes);
    if (size.size() != 1 || shard.size() != 1) throw invalid("--size and --shard-size take one size each");
    return {.folder = folder_,
            .bytes = static_cast<std::uint64_t>(size.front()),
            .shard_bytes = static_cast<std::uint64_t>(shard.front()),
            .repetitions = static_cast<int>(repetitions_)};
  }

  BenchmarkOutput output_;
  std::string folder_ = "output", size_ = "1G", shard_ = "4G";
  std::int64_t repetitions_ = 5;
};

}  // namespace

extern const CommandEntry kBenchmarkMemory{
    "benchmark memory",
    "Times memory: a device's own, and between host and device",
    "Buffers of consecutive calls are others, together more than caches hold. GB/s count what is read and\n"
    "written.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark memory\n"
    "primus benchmark memory --device cuda --sizes 64M,1G --output memory.html",
    make_command<BenchmarkMemory>,
    {Section::kBenchmark, 10}};

extern const CommandEntry kBenchmarkData{
    "benchmark data",
    "Times the data path of an experiment: opening it, and batches",
    "As training takes them, and in its order; nothing is computed. 'read ahead' is what a training step\n"
    "waits for at the least.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark data --config exp.yaml\n"
    "primus benchmark data --config exp.yaml data_path=corpus/en seq_length=8192 --json",
    make_command<BenchmarkData>,
    {Section::kBenchmark, 11}};

extern const CommandEntry kBenchmarkCheckpoint{
    "benchmark checkpoint",
    "Times saving and loading checkpoints in a folder, synced to the disk",
    "By the code that training saves and loads with: safetensors, checksums, rename. Each repetition saves,\n"
    "loads, and loads again after asking the system to drop its cache. What is read is compared with what "
    "was\n"
    "written.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark checkpoint --path /shared/checkpoints --size 10G\n"
    "primus benchmark checkpoint --size 100M --repeat 3 --json",
    make_command<BenchmarkCheckpoint>,
    {Section::kBenchmark, 12}};

}  // namespace primus::cli
