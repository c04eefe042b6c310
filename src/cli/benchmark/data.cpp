// primus benchmark data
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkData{
    "benchmark data",
    "Times the data loading of an experiment: opening the data and reading batches",
    "Reads batches as training does, in the same order, and computes nothing. 'read ahead' is the minimum "
    "time that a training step waits for data.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark data --config exp.yaml\n"
    "primus benchmark data --config exp.yaml data_path=corpus/en seq_length=8192 --json",
    make_benchmark_command<"data">,
    {Section::kBenchmark, 11}};

}  // namespace primus::cli
