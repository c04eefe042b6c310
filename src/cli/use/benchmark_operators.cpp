// primus benchmark gemm, attention, grouped-gemm
#include <fmt/format.h>

#include "base/error.h"
#include "bench/operator_benchmark.h"
#include "cli/commands.h"
#include "cli/options/device.h"

namespace primus::cli {
namespace {

class BenchmarkOperator : public Command {
 public:
  void declare(Arguments& args) final {
    declare_case(args);
    args.option("--seconds", "S", &seconds_, "time for each measurement");
    device_.declare(args);
    args.flag("--json", json_, "print the report as JSON");
    args.flag("--csv", csv_, "print it as comma-separated values");
    args.flag("--markdown", markdown_, "print it as a Markdown table");
  }

  int run(Console& console) final {
    if (json_ + csv_ + markdown_ > 1) throw invalid("--json, --csv and --markdown exclude each other");
    check_case();
    const std::unique_ptr<Device> device = device_.make(console);
    const OperatorReport report = measure(*device, {.dtype = device_.compute(), .seconds = seconds_});
    json_       ? console.write(to_json(report))
    : csv_      ? console.write(to_csv(report))
    : markdown_ ? console.write(to_markdown(report))
                : console.print(to_text(report));
    return 0;
  }

 private:
  virtual void declare_case(Arguments& args) = 0;
  virtual void check_case() {}
  virtual OperatorReport measure(Device& device, const OperatorBenchmarkOptions& options) = 0;

  DeviceOptions device_;
  double seconds_ = 0.5;
  bool json_ = false, csv_ = false, markdown_ = false;
};

class BenchmarkGemm final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--shape", "MxNxK", &shapes_, "rows, outputs and inputs of a layer; may be given again");
  }
  void check_case() override {
    for (const std::string& shape : shapes_) cases_.push_back(parse_gemm_case(shape));
  }
  OperatorReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    if (cases_.empty() && device.synchronous()) cases_ = {{512, 768, 768}, {2048, 2048, 2048}};
    // A Llama of 8B: fused projections, output, gate and up, down.
    if (cases_.empty())
      cases_ = {{8192, 6144, 4096}, {8192, 4096, 4096}, {8192, 28672, 4096}, {8192, 4096, 14336}};
    return benchmark_gemm(device, cases_, options);
  }

  std::vector<std::string> shapes_;
  std::vector<GemmCase> cases_;
};

class BenchmarkAttention final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--batch", "N", &which_.batch, "sequences");
    args.option("--seq-length", "N", &which_.sequence, "tokens of a sequence");
    args.option("--heads", "N", &which_.heads, "query heads");
    args.option("--kv-heads", "N", &which_.kv_heads, "key/value heads");
    args.option("--head-dim", "N", &which_.head_dim, "elements of a head");
    args.option("--window", "N", &which_.window, "keys that a query sees at most; 0: all");
    args.flag("--full", full_, "queries see keys behind them, too");
  }
  OperatorReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    which_.causal = !full_;
    return benchmark_attention(device, which_, options);
  }

  AttentionCase which_;
  bool full_ = false;
};

class BenchmarkGroupedGemm final : public BenchmarkOperator {
  void declare_case(Arguments& args) override {
    args.option("--tokens", "N", &which_.tokens, "tokens");
    args.option("--experts", "N", &which_.experts, "experts");
    args.option("--top-k", "N", &which_.top_k, "experts of each token");
    args.option("--in", "N", &which_.in, "inputs of an expert's layer");
    args.option("--out", "N", &which_.out, "its outputs");
    args.option("--skew", "SHARE", &skew_,
                "share of the rows that the first eighth of the experts gets (default: even)");
  }
  void check_case() override {
    if (!skew_) return;
    if (!(*skew_ >= 0 && *skew_ <= 1)) throw invalid("--skew must be from 0 to 1");
    which_.skew = *skew_;
  }
  OperatorReport measure(Device& device, const OperatorBenchmarkOptions& options) override {
    return benchmark_grouped_gemm(device, which_, options);
  }

  GroupedGemmCase which_;
  std::optional<double> skew_;
};

#define PRIMUS_BENCHMARK_DETAILS                                                                          \
  "Operands are random, and those of consecutive calls lie in different memory, more than caches hold.\n" \
  "Rates are compared with a large square product and a copy that are measured in the same run. Bytes\n"  \
  "count every operand and result once. The median of the samples is shown, and the fastest."

}  // namespace

const CommandEntry kBenchmarkGemm{
    "benchmark gemm", "Times the matrix products of linear layers",
    "Each shape is measured as forward product, input gradient and weight gradient, which adds into fp32.\n"
    "\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark gemm --device cuda --dtype bf16\n"
    "primus benchmark gemm --shape 2048x4096x1024 --shape 512x512x512 --json",
    make_command<BenchmarkGemm>};

const CommandEntry kBenchmarkAttention{
    "benchmark attention", "Times attention, forward and backward",
    "Only scores that a query sees count as work.\n\n" PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark attention --device cuda --dtype bf16 --seq-length 8192\n"
    "primus benchmark attention --seq-length 512 --heads 8 --kv-heads 2 --head-dim 64 --csv",
    make_command<BenchmarkAttention>};

const CommandEntry kBenchmarkGroupedGemm{
    "benchmark grouped-gemm", "Times the matrix products of experts, beside dense ones of equal FLOPs",
    PRIMUS_BENCHMARK_DETAILS,
    "primus benchmark grouped-gemm --device cuda --dtype bf16\n"
    "primus benchmark grouped-gemm --experts 8 --top-k 2 --in 4096 --out 28672 --skew 0.5 --markdown",
    make_command<BenchmarkGroupedGemm>};

}  // namespace primus::cli
