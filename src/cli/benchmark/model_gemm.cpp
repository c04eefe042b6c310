// primus benchmark gemm-dense, gemm-deepseek
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkGemmDense{
    "benchmark gemm-dense",
    "Times the matrix products of a model's layers",
    "Measures attention's projections, the feed-forward and the head, each as forward product, input "
    "gradient and weight gradient. For a mixture of experts it also measures the experts' products. Options "
    "for sizes replace the model's sizes.\n\n" PRIMUS_BENCHMARK_DETAILS "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm-dense --model llama3.1_8B --device cuda --dtype bf16\n"
    "primus benchmark gemm-dense --model qwen2.5_0.5B --mbs 1 --seqlen 512 --output gemm.html\n"
    "primus benchmark gemm-dense --model Llama2_70B --mbs 4 --seqlen 4096 --csv",
    make_benchmark_command<"gemm-dense">,
    {Section::kBenchmark, 3}};

extern const CommandEntry kBenchmarkGemmDeepseek{
    "benchmark gemm-deepseek",
    "Times the matrix products of DeepSeek's layers: latent attention, experts",
    "Measures the products of latent attention, of dense, routed and shared experts, and of the head, each "
    "as forward product, input gradient and weight gradient. --model accepts V2_Lite, V2, V3, and every "
    "preset or folder. Options for sizes replace the model's sizes.\n\n" PRIMUS_BENCHMARK_DETAILS
    "\n\n" PRIMUS_FP8_DETAILS,
    "primus benchmark gemm-deepseek --model V2_Lite --device cuda --dtype bf16\n"
    "primus benchmark gemm-deepseek --model V3 --mbs 1 --seqlen 4096 --output v3.csv --append\n"
    "primus benchmark gemm-deepseek --hidden-size 4096 --n-routed-experts 32 --moe-intermediate-size 2048",
    make_benchmark_command<"gemm-deepseek">,
    {Section::kBenchmark, 4}};

}  // namespace primus::cli
