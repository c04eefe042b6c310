// primus benchmark attention
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkAttention{
    "benchmark attention",
    "Times attention, forward and backward",
    "Only the scores of keys that a query attends to count as work. --shapes-json-path takes a JSON list of "
    "objects with model, seqlen_q, seqlen_kv, num_head_q, num_head_kv, head_dim_qk, head_dim_v and "
    "causal.\n\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark attention --device cuda --dtype bf16 --seq-length 8192\n"
    "primus benchmark attention --seq-length 512 --heads 8 --kv-heads 2 --head-dim 64 --csv\n"
    "primus benchmark attention --device cuda --dtype bf16 --models all --mbs-list 1,2,4 --backend all\n"
    "primus benchmark attention --models Llama3_8B,deepseek_v2_lite --report-csv-path attention.csv",
    make_benchmark_command<"attention">,
    {Section::kBenchmark, 5}};

}  // namespace primus::cli
