// primus benchmark train
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

extern const CommandEntry kBenchmarkTrain{
    "benchmark train",
    "Times training steps of an experiment, and shows where the time goes",
    "Trains on random tokens and writes nothing. Model FLOP/s are compared with the peak of large matrix "
    "products, measured in the same run.\n\n--ceiling adds a second comparison: a step that runs only the "
    "model's products and attention, each at the rate that it reaches in a separate measurement.\n\n--trace "
    "FILE records every kernel and copy of more steps, by stream. To trace a training run or several ranks, "
    "use the key profile.\n\n" PRIMUS_BASELINE_HELP,
    "primus benchmark train --config examples/native/configs/CPU/llama_124M-pretrain.yaml --steps 10\n"
    "primus benchmark train --config exp.yaml --steps 20 --json micro_batch_size=8\n"
    "primus benchmark train --config exp.yaml --steps 20 --baseline compare last-week.json\n"
    "primus benchmark train --config exp.yaml --steps 10 --ceiling\n"
    "primus benchmark train --config exp.yaml --steps 3 --trace step.json",
    make_benchmark_command<"train">,
    {Section::kBenchmark, 1}};

}  // namespace primus::cli
