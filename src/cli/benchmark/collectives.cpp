// primus benchmark collectives (rccl), strided-allgather
#include "cli/benchmark/benchmark_command.h"

namespace primus::cli {

#define PRIMUS_COLLECTIVE_DETAILS                                                                         \
  "A sample is the time of one call on the slowest rank, from the call until the host sees its end. "     \
  "GB/s\n"                                                                                                \
  "are message size over time; bus GB/s are the traffic of the busiest link. Ranks are processes of "     \
  "this\n"                                                                                                \
  "machine (--nproc), those that a launcher started (torchrun, srun, primus direct), or threads of one\n" \
  "process. On GPUs NCCL or RCCL is measured.\n\n" PRIMUS_BASELINE_HELP

namespace {

constexpr const char* kCollectivesSummary =
    "Times communication between ranks: each operation at several message sizes";
constexpr const char* kCollectivesExamples =
    "primus benchmark collectives --nproc 4 --op all_reduce --sizes 64K,1M,16M\n"
    "primus benchmark collectives --nproc 2 --transport tcp --op all --check --output collectives.html\n"
    "primus slurm srun -N 2 -- direct -- benchmark rccl --device cuda --max-bytes 1G --per-rank\n"
    "primus slurm srun -N 2 -- direct -- benchmark rccl --max-bytes 1G --baseline compare last-week.json";

}  // namespace

extern const CommandEntry kBenchmarkCollectives{"benchmark collectives",
                                                kCollectivesSummary,
                                                PRIMUS_COLLECTIVE_DETAILS,
                                                kCollectivesExamples,
                                                make_benchmark_command<"collectives">,
                                                {Section::kBenchmark, 7},
                                                true};

extern const CommandEntry kBenchmarkRccl{"benchmark rccl",
                                         "Same as 'benchmark collectives', under AMD Primus's name",
                                         PRIMUS_COLLECTIVE_DETAILS,
                                         kCollectivesExamples,
                                         make_benchmark_command<"collectives">,
                                         {Section::kBenchmark, 8},
                                         true};

extern const CommandEntry kBenchmarkStridedAllGather{
    "benchmark strided-allgather",
    "Times all-gathers among every Nth rank, group by group or all groups at once",
    PRIMUS_COLLECTIVE_DETAILS,
    "primus benchmark strided-allgather --nproc 4 --stride 2 --sizes-mb 1,4,16\n"
    "primus slurm srun -N 2 -- direct -- benchmark strided-allgather --device cuda --stride 8 --parallel",
    make_benchmark_command<"strided-allgather">,
    {Section::kBenchmark, 9},
    true};

}  // namespace primus::cli
