// primus benchmark gemm
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkGemm{
    "benchmark gemm",
    "Times the matrix products of linear layers",
    "Each shape is measured as forward product, input gradient and weight gradient, which adds into "
    "fp32.\n\n" PRIMUS_BENCHMARK_DETAILS "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm --device cuda --dtype bf16\n"
    "primus benchmark gemm --shape 2048x4096x1024 --shape 512x512x512 --json\n"
    "primus benchmark gemm --M 4096 --N 4096 --K 4096 --output gemm.html\n"
    "primus benchmark gemm --device cuda --dtype fp8\n"
    "primus benchmark gemm --device cuda --dtype fp4\n"
    "primus benchmark gemm --baseline save before.json\n"
    "primus benchmark gemm --baseline compare before.json",
    make_benchmark_command<"gemm">,
    {Section::kBenchmark, 2}};

}  // namespace primus::cli
