// primus benchmark memory
#include "cli/benchmark/device_benchmark.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkMemory{
    "benchmark memory",
    "Times memory: a device's own, and between host and device",
    "Buffers of consecutive calls are others, together more than caches hold. GB/s count what is read and "
    "written.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark memory\n"
    "primus benchmark memory --device cuda --sizes 64M,1G --output memory.html",
    make_benchmark_command<"memory">,
    {Section::kBenchmark, 10}};

}  // namespace primus::cli
