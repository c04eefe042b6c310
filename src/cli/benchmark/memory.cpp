// primus benchmark memory
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkMemory{
    "benchmark memory",
    "Times memory: on a device, and between host and device",
    "Consecutive calls rotate through buffers: as many as exceed 192 MiB together (more than most caches), "
    "but at most 512 sets. GB/s count the bytes read and written.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark memory\n"
    "primus benchmark memory --device cuda --sizes 64M,1G --output memory.html",
    make_benchmark_command<"memory">,
    {Section::kBenchmark, 10}};

}  // namespace primus::cli
