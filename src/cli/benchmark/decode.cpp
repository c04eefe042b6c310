// primus benchmark decode
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkDecode{
    "benchmark decode",
    "Times text generation: one text, and many at a time",
    "Weights are random, and nothing is read from disk. A step processes one token of every text and chooses "
    "the next one greedily; it ends when the host has the tokens. GB/s count every weight once, and the keys "
    "and values of every text. 'copy' compares this rate with that of a large copy, measured in the same "
    "run.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark decode --model llama3.1_8B --device cuda\n"
    "primus benchmark decode --model qwen3_0.6B --batch 1,8,64 --context 2048 --json",
    make_benchmark_command<"decode">,
    {Section::kBenchmark, 13}};

}  // namespace primus::cli
