// primus benchmark checkpoint
#include "base/error.h"
#include "base/text/sizes.h"
#include "bench/checkpoint_benchmark.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"

namespace primus::cli {
namespace {

class BenchmarkCheckpoint final : public Command {
 public:
  void declare(Arguments& args) override {
    args.option("--path", "FOLDER", &folder_,
                "folder to test; the benchmark makes its own folder there and removes it at the end");
    args.option("--size", "SIZE", &size_, "size of a checkpoint: weights, master weights and two moments");
    args.option("--shard-size", "SIZE", &shard_, "maximum size of a file");
    args.option("--repeat", "N", &repetitions_, "how many times to save and load it").between(1, 1000);
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
  // Throws errors that do not depend on the machine.
  CheckpointBenchmarkOptions checked() {
    output_.check_words();
    constexpr std::int64_t kMaxBytes = std::int64_t{1} << 42;
    const std::vector<std::int64_t> size = parse_sizes("--size", size_, kMaxBytes),
                                    shard = parse_sizes("--shard-size", shard_, kMaxBytes);
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

extern const CommandEntry kBenchmarkCheckpoint{
    "benchmark checkpoint",
    "Times saving and loading checkpoints in a folder, synced to the disk",
    "Uses the code with which training saves and loads: safetensors, checksums, rename. Each repetition "
    "saves, loads, and loads again after asking the system to drop its cache. The loaded data is compared "
    "with the written data.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark checkpoint --path /shared/checkpoints --size 10G\n"
    "primus benchmark checkpoint --size 100M --repeat 3 --json",
    make_command<BenchmarkCheckpoint>,
    {Section::kBenchmark, 12}};

}  // namespace primus::cli
