// primus benchmark grouped-gemm
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkGroupedGemm{
    "benchmark grouped-gemm",
    "Times the matrix products of experts, and dense products with equal FLOPs",
    PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark grouped-gemm --device cuda --dtype bf16\n"
    "primus benchmark grouped-gemm --experts 8 --top-k 2 --in 4096 --out 28672 --skew 0.5 --markdown",
    make_benchmark_command<"grouped-gemm">,
    {Section::kBenchmark, 6}};

}  // namespace primus::cli
