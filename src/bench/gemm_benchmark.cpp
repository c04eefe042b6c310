// Times the matrix products of linear layers with given shapes (operator_benchmark.h).
#include <fmt/format.h>

#include "bench/benchmark_entry.h"
#include "bench/operator_benchmark.h"

namespace primus {
namespace {

class GemmBenchmark final : public DeviceBenchmark {
  std::vector<BenchmarkOption> options() override {
    return {{"--shape", "MxNxK", "rows, outputs and inputs of a layer; repeat for more shapes", &shapes_},
            {"--M,-M", "N", "rows of one shape, with --N and --K; a size that is left out is 4096", &m_},
            {"--N,-N", "N", "outputs", &n_},
            {"--K,-K", "N", "inputs", &k_}};
  }
  std::vector<RefusedOption> refused() const override {
    return {{"--trans_a,--trans_b",
             "all three layouts of a layer are measured: the forward product and both gradients",
             "omit it, and read the line of the layout that you want"}};
  }
  void prepare() override {
    if (m_ || n_ || k_) {
      constexpr std::int64_t kUsual = 4096;  // AMD Primus's default for m, n and k
      shapes_.push_back(
          fmt::format("{}x{}x{}", m_.value_or(kUsual), n_.value_or(kUsual), k_.value_or(kUsual)));
    }
    for (const std::string& shape : shapes_) cases_.push_back(parse_gemm_case(shape));
  }
  BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) override {
    if (cases_.empty() && device.synchronous()) cases_ = {{512, 768, 768}, {2048, 2048, 2048}};
    // The default cases are the linear layers of an 8B Llama: fused QKV, attention output, fused gate and up
    // projections, and down projection.
    if (cases_.empty())
      cases_ = {{8192, 6144, 4096}, {8192, 4096, 4096}, {8192, 28672, 4096}, {8192, 4096, 14336}};
    return benchmark_gemm(device, cases_, options);
  }

  std::vector<std::string> shapes_;
  std::optional<std::int64_t> m_, n_, k_;
  std::vector<GemmCase> cases_;
};

}  // namespace

extern const BenchmarkEntry kGemmEntry{.name = "gemm",
                                       .make = make_benchmark<GemmBenchmark>,
                                       .subject = BenchmarkSubject::kDevice,
                                       .seconds = 0.5,
                                       .types = MeasuredTypes{.fp16 = true, .fp8 = true, .fp4 = true}};

}  // namespace primus
