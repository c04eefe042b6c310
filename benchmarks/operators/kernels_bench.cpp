// Measures the memory-bound CPU kernels. A kernel's rate in GB/s counts each byte that the kernel must read
// or write once. A kernel's share is the ratio of this rate to the rate of a plain copy of as many bytes with
// the same threads. First measures the overhead of a launch: the checks of its operands.
//   kernels_bench [--threads N] [--seconds S] [--rows N]... [--only TEXT] [--isa v2|v3|v4] [--clock wall|cpu]
// Without --rows: [2048, 768], which partly fits in caches, and [65536, 768], which does not.
#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/random/random.h"
#include "operators/bench.h"
#include "turbo/adamw/adamw.h"
#include "turbo/attention/attention.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/embedding/embedding.h"
#include "turbo/linear/linear.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/step_scalars.h"
#include "turbo/swiglu/swiglu.h"

namespace {

using namespace primus;
using namespace primus::turbo;

struct Options : BenchOptions {
  std::vector<std::int64_t> rows;
  std::string only;
};

class KernelBench : public Bench {
 public:
  explicit KernelBench(const Options& options) : Bench(options), only_(options.only) {}

  Tensor tokens(std::int64_t n, std::int64_t below) {
    const Tensor out = tensor(DType::kI32, {n});
    const RandomStream random(1, RandomPurpose::kTest);
    for (std::int64_t i = 0; i < n; ++i) {
      static_cast<std::int32_t*>(out.data)[i] = static_cast<std::int32_t>(
          random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(below)));
    }
    return out;
  }

  template <class Arguments>
  void measure(const std::string& name, std::int64_t bytes, const Arguments& arguments) {
    if (name.find(only_) == std::string::npos) return;
    const double copy = copy_rate(bytes);
    const double rate = static_cast<double>(bytes) / best_time([&] { run(arguments); });
    fmt::print("{:<28} {:>9.1f} MB {:>8.2f} GB/s {:>6.0f} % of copy ({:.2f})\n", name,
               static_cast<double>(bytes) * 1e-6, rate * 1e-9, 100 * rate / copy, copy * 1e-9);
  }

  // Prints the nanoseconds of the operand checks and of a complete call.
  template <class Arguments>
  void measure_launch(const Arguments& arguments) {
    constexpr int kCalls = 1000;
    const std::string name(name_of(Arguments::kId));
    if (("launch " + name).find(only_) == std::string::npos) return;
    const double checks = best_time([&] {
      for (int i = 0; i < kCalls; ++i) arguments.check();
    });
    const double calls = best_time([&] {
      for (int i = 0; i < kCalls; ++i) run(arguments);
    });
    fmt::print("launch {:<21} {:>9.1f} ns of checks in {:.0f} ns\n", name, 1e9 * checks / kCalls,
               1e9 * calls / kCalls);
  }

 private:
  // Returns the rate of a copy that reads and writes `bytes` in total.
  double copy_rate(std::int64_t bytes) {
    const std::int64_t half = bytes / 2;
    void* from = allocate(half);
    void* to = allocate(half);
    std::memset(from, 1, static_cast<std::size_t>(half));
    const double seconds = best_time([&] { stream().copy_on_device(to, from, half); });
    release(from);
    release(to);
    return static_cast<double>(2 * half) / seconds;
  }

  std::string only_;
};

// Measures calls with the smallest operands: one token, one head.
void measure_launches(KernelBench& bench) {
  constexpr std::int64_t kHidden = 64;
  const Tensor row = bench.tensor(DType::kF32, {1, kHidden}), one = bench.tensor(DType::kF32, {1, 1});
  const Tensor square = bench.tensor(DType::kF32, {kHidden, kHidden});
  bench.measure_launch(RmsNormForward{.x = row,
                                      .delta = {},
                                      .weight = bench.tensor(DType::kF32, {kHidden}),
                                      .sum = {},
                                      .y = row,
                                      .rstd = one,
                                      .eps = 1e-5F});
  bench.measure_launch(Gemm{.role = GemmRole::kForward, .a = row, .b = square, .c = row, .workspace = {}});
  bench.measure_launch(AttentionBackward{.shape = {.batch = 1,
                                                   .seq_q = 1,
                                                   .seq_k = 1,
                                                   .capacity_k = 1,
                                                   .heads = 1,
                                                   .kv_heads = 1,
                                                   .head_dim = kHidden,
                                                   .value_dim = kHidden,
                                                   .scale = 1,
                                                   .causal = true,
                                                   .window = 0},
                                         .q = row,
                                         .k = row,
                                         .v = row,
                                         .q_stride = kHidden,
                                         .k_stride = kHidden,
                                         .v_stride = kHidden,
                                         .first_key = {},
                                         .out = row,
                                         .lse = one,
                                         .d_out = row,
                                         .d_q = row,
                                         .d_k = row,
                                         .d_v = row,
                                         .d_q_stride = kHidden,
                                         .d_k_stride = kHidden,
                                         .d_v_stride = kHidden,
                                         .workspace = {}});
  bench.release();
}

void measure_activations(KernelBench& bench, std::int64_t rows, DType dtype) {
  constexpr std::int64_t kHidden = 768, kFfn = 2048, kHeadDim = 64;
  const std::string type(name_of(dtype));
  const std::int64_t wide = rows * kHidden * size_of(dtype), ffn = rows * kFfn * size_of(dtype);
  {
    const Tensor x = bench.tensor(dtype, {rows, kHidden}), delta = bench.tensor(dtype, {rows, kHidden});
    const Tensor sum = bench.tensor(dtype, {rows, kHidden}), y = bench.tensor(dtype, {rows, kHidden});
    const Tensor weight = bench.tensor(dtype, {kHidden}), rstd = bench.tensor(DType::kF32, {rows});
    const Tensor d_weight = bench.tensor(DType::kF32, {kHidden});
    bench.measure(
        "rms_norm " + type, 2 * wide,
        RmsNormForward{.x = x, .delta = {}, .weight = weight, .sum = {}, .y = y, .rstd = rstd, .eps = 1e-5F});
    bench.measure(
        "rms_norm residual " + type, 4 * wide,
        RmsNormForward{
            .x = x, .delta = delta, .weight = weight, .sum = sum, .y = y, .rstd = rstd, .eps = 1e-5F});
    bench.measure(
        "rms_norm d_x " + type, 4 * wide,
        RmsNormBackwardInput{.x = x, .weight = weight, .rstd = rstd, .d_y = y, .d_sum = delta, .d_x = sum});
    bench.measure(
        "rms_norm d_weight " + type, 2 * wide,
        RmsNormBackwardWeight{
            .x = x, .rstd = rstd, .d_y = y, .d_weight = d_weight, .accumulate = false, .workspace = {}});
    bench.measure("add " + type, 3 * wide, Add{.a = x, .b = delta, .out = y});
    const Tensor positions = bench.tokens(rows, 512), table = bench.tensor(DType::kF32, {512, kHeadDim});
    bench.measure("rope " + type, 2 * wide,
                  Rope{.x = x,
                       .y = y,
                       .positions = positions,
                       .table = table,
                       .heads = kHidden / kHeadDim,
                       .head_dim = kHeadDim,
                       .rotary_dim = kHeadDim,
                       .inverse = false});
    bench.measure("count_non_finite " + type, wide,
                  CountNonFinite{.x = x, .out = bench.tokens(1, 1), .accumulate = false});
    bench.measure("fill " + type, wide, Fill{.out = y, .value = 0});
    bench.measure("cast to bf16 of " + type, wide + wide / size_of(dtype) * 2,
                  Cast{.x = x, .out = bench.tensor(DType::kBF16, {rows, kHidden})});
    bench.measure("cast to fp32 of " + type, wide + wide / size_of(dtype) * 4,
                  Cast{.x = x, .out = bench.tensor(DType::kF32, {rows, kHidden})});
    const std::int64_t vocab = 16384;
    const Tensor tokens = bench.tokens(rows, vocab);
    bench.measure(
        "embedding " + type, 2 * wide,
        EmbeddingForward{.tokens = tokens, .table = bench.tensor(dtype, {vocab, kHidden}), .out = y});
    const Tensor d_table = bench.tensor(DType::kF32, {vocab, kHidden});
    bench.measure(
        "embedding d_table + " + type, wide + 8 * rows * kHidden,
        EmbeddingBackwardWeight{.tokens = tokens, .d_out = x, .d_table = d_table, .accumulate = true});
    bench.measure(
        "embedding d_table = " + type, wide + 8 * rows * kHidden + d_table.bytes(),
        EmbeddingBackwardWeight{.tokens = tokens, .d_out = x, .d_table = d_table, .accumulate = false});
    bench.release();
  }
  {
    const CausalConvShape shape{1, rows, kHidden, 3};
    const Tensor bcx = bench.tensor(dtype, {rows, 3 * kHidden}), d_bcx = bench.tensor(dtype, bcx.shape);
    const Tensor y = bench.tensor(dtype, {rows, kHidden}), weight = bench.tensor(dtype, {kHidden, 3});
    bench.measure(
        "causal_conv " + type, 4 * wide,
        CausalConvForward{
            .shape = shape, .bcx = bcx, .weight = weight, .bias = {}, .before = {}, .first_key = {}, .y = y});
    bench.measure("causal_conv d_x " + type, 7 * wide,
                  CausalConvBackwardInput{.shape = shape,
                                          .bcx = bcx,
                                          .weight = weight,
                                          .bias = {},
                                          .before = {},
                                          .first_key = {},
                                          .d_y = y,
                                          .d_after = {},
                                          .d_bcx = d_bcx});
    bench.measure("causal_conv d_weight " + type, 4 * wide,
                  CausalConvBackwardWeight{.shape = shape,
                                           .bcx = bcx,
                                           .before = {},
                                           .first_key = {},
                                           .d_y = y,
                                           .of_bias = false,
                                           .d_weight = bench.tensor(DType::kF32, {kHidden, 3}),
                                           .accumulate = false,
                                           .workspace = {}});
    bench.release();
  }
  const Tensor gate_up = bench.tensor(dtype, {rows, 2 * kFfn}),
               d_gate_up = bench.tensor(dtype, {rows, 2 * kFfn});
  const Tensor out = bench.tensor(dtype, {rows, kFfn});
  bench.measure("swiglu " + type, 3 * ffn, SwigluForward{.gate_up = gate_up, .out = out});
  bench.measure("swiglu backward " + type, 5 * ffn,
                SwigluBackward{.gate_up = gate_up, .d_out = out, .d_gate_up = d_gate_up});
  bench.release();
}

void measure_parameters(KernelBench& bench, std::int64_t n) {
  const Tensor param = bench.tensor(DType::kF32, {n}), grad = bench.tensor(DType::kF32, {n});
  const Tensor exp_avg = bench.tensor(DType::kF32, {n}), exp_avg_sq = bench.tensor(DType::kF32, {n});
  const Tensor working = bench.tensor(DType::kBF16, {n});
  const Tensor scale = bench.tensor(DType::kF32, {1}), norm = bench.tensor(DType::kF64, {1});
  static_cast<float*>(scale.data)[0] = 1;
  const Tensor scalars = bench.tensor(DType::kF64, {kStepScalars});
  constexpr double kScalars[kStepScalars] = {1, 1e-4, 0.1, 0.5, 0.5};
  std::memcpy(scalars.data, kScalars, sizeof(kScalars));
  bench.measure("random_normal", 4 * n,
                RandomNormal{.out = grad, .seed = 1, .stream = 1, .offset = 0, .mean = 0, .std = 0.02F});
  AdamW step{.param = param,
             .grad = grad,
             .exp_avg = exp_avg,
             .exp_avg_sq = exp_avg_sq,
             .grad_scale = scale,
             .working = {},
             .scalars = scalars,
             .beta1 = 0.9F,
             .beta2 = 0.95F,
             .eps = 1e-8F};
  std::memset(exp_avg_sq.data, 0, static_cast<std::size_t>(exp_avg_sq.bytes()));  // squares are not negative
  bench.measure("adamw fp32", 28 * n, step);
  step.working = working;
  bench.measure("adamw fp32 + bf16 copy", 30 * n, step);
  bench.measure("sum_of_squares", 4 * n, SumOfSquares{.x = grad, .out = norm, .accumulate = false});
  bench.measure("sum", 4 * n, Sum{.x = grad, .out = scale, .accumulate = false});
  bench.release();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--threads") options.threads = std::stoi(value);
    if (flag == "--seconds") options.seconds = std::stod(value);
    if (flag == "--rows") options.rows.push_back(std::stoll(value));
    if (flag == "--clock") options.cpu_time = value == "cpu";
    if (flag == "--only") options.only = value;
    if (flag == "--isa")
      options.isa = value == "v2" ? IsaLevel::kV2 : value == "v3" ? IsaLevel::kV3 : IsaLevel::kV4;
  }
  if (options.rows.empty()) options.rows = {2048, 65536};
  KernelBench bench(options);
  fmt::print("{}, kernels for {}\n", bench.description(), name_of(options.isa));
  measure_launches(bench);
  for (const std::int64_t rows : options.rows) {
    fmt::print("\n{} rows\n", rows);
    for (const DType dtype : {DType::kF32, DType::kBF16}) measure_activations(bench, rows, dtype);
    measure_parameters(bench, rows * 768);
  }
}
