// Times the grouped products of experts and dense products of equal FLOPs (operator_benchmark.h).
#include "base/error.h"
#include "bench/benchmark_entry.h"
#include "bench/operator_benchmark.h"

namespace primus {
namespace {

class GroupedGemmBenchmark final : public DeviceBenchmark {
  std::vector<BenchmarkOption> options() override {
    return {{"--tokens", "N", "tokens", &which_.tokens},
            {"--experts", "N", "experts", &which_.experts},
            {"--top-k", "N", "experts of each token", &which_.top_k},
            {"--in", "N", "inputs of an expert layer", &which_.in},
            {"--out", "N", "outputs of an expert layer", &which_.out},
            {"--skew", "SHARE", "share of the rows that the first eighth of the experts gets (default: even)",
             &skew_}};
  }
  void prepare() override {
    if (skew_ && !(*skew_ >= 0 && *skew_ <= 1)) throw invalid("--skew must be from 0 to 1");
    if (skew_) which_.skew = *skew_;
    check_case(which_);
  }
  BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) override {
    return benchmark_grouped_gemm(device, which_, options);
  }

  GroupedGemmCase which_;
  std::optional<double> skew_;
};

}  // namespace

extern const BenchmarkEntry kGroupedGemmEntry{.name = "grouped-gemm",
                                              .make = make_benchmark<GroupedGemmBenchmark>,
                                              .subject = BenchmarkSubject::kDevice,
                                              .seconds = 0.5,
                                              .types = MeasuredTypes{}};

}  // namespace primus
