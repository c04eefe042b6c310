// primus benchmark checkpoint
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkCheckpoint{
    "benchmark checkpoint",
    "Times saving and loading checkpoints in a folder, synced to the disk",
    "Uses the code with which training saves and loads: safetensors, checksums, rename. Each repetition "
    "saves, loads, and loads again after asking the system to drop its cache. The loaded data is compared "
    "with the written data.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark checkpoint --path /shared/checkpoints --size 10G\n"
    "primus benchmark checkpoint --size 100M --repeat 3 --json",
    make_benchmark_command<"checkpoint">,
    {Section::kBenchmark, 12}};

}  // namespace primus::cli
