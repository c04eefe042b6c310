// Measures attention in GFLOP/s and as a share of the GEMM's rate with the same threads. Decoding is measured
// in GB/s of the keys and values read.
//   attention_bench [--threads N] [--seconds S] [--dtype fp32|bf16] [--clock wall|cpu]
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "operators/bench.h"
#include "turbo/attention/attention.h"
#include "turbo/gemm/gemm.h"

namespace {

using namespace primus;
using namespace primus::turbo;

struct Options : BenchOptions {
  std::string dtype;
};

// Returns q, k or v as a column slice of one fused projection, as in a model.
Tensor column(const Tensor& fused, std::int64_t offset) {
  return {static_cast<char*>(fused.data) + offset * size_of(fused.dtype), fused.dtype, fused.shape};
}

void measure_training(Bench& bench, DType dtype, std::int64_t batch, std::int64_t seq, double gemm_peak) {
  constexpr std::int64_t kHeads = 12, kDim = 64, kWidth = kHeads * kDim;
  const AttentionShape shape{batch, seq, seq, seq, kHeads, kHeads, kDim, kDim, 0.125F, true, 0};
  const Tensor qkv = bench.tensor(dtype, {batch * seq, 3 * kWidth}), d_qkv = bench.tensor(dtype, qkv.shape);
  const Tensor out = bench.tensor(dtype, {batch * seq, kWidth}), d_out = bench.tensor(dtype, out.shape);
  const Tensor lse = bench.tensor(DType::kF32, {kHeads, batch * seq});
  const AttentionForward forward{.shape = shape,
                                 .q = column(qkv, 0),
                                 .k = column(qkv, kWidth),
                                 .v = column(qkv, 2 * kWidth),
                                 .q_stride = 3 * kWidth,
                                 .k_stride = 3 * kWidth,
                                 .v_stride = 3 * kWidth,
                                 .out = out,
                                 .lse = lse,
                                 .workspace = {}};
  const AttentionBackward backward{.shape = shape,
                                   .q = forward.q,
                                   .k = forward.k,
                                   .v = forward.v,
                                   .q_stride = 3 * kWidth,
                                   .k_stride = 3 * kWidth,
                                   .v_stride = 3 * kWidth,
                                   .out = out,
                                   .lse = lse,
                                   .d_out = d_out,
                                   .d_q = column(d_qkv, 0),
                                   .d_k = column(d_qkv, kWidth),
                                   .d_v = column(d_qkv, 2 * kWidth),
                                   .d_q_stride = 3 * kWidth,
                                   .d_k_stride = 3 * kWidth,
                                   .d_v_stride = 3 * kWidth,
                                   .workspace = {}};
  const auto report = [&](std::string_view name, double flops, double seconds) {
    fmt::print("{} batch {} seq {:<5} {:<9} {:>9.3f} ms {:>8.1f} GFLOP/s {:>5.1f} % of GEMM\n",
               name_of(dtype), batch, seq, name, seconds * 1e3, flops / seconds * 1e-9,
               100 * flops / seconds / gemm_peak);
  };
  report("forward", forward.flops(), bench.best_time([&] { bench.run(forward); }));
  report("backward", backward.flops(), bench.best_time([&] { bench.run(backward); }));
  bench.release();
}

void measure_decoding(Bench& bench, DType dtype, std::int64_t seq) {
  constexpr std::int64_t kHeads = 32, kKvHeads = 8, kDim = 128;
  AttentionShape shape{1, 1, seq, seq, kHeads, kKvHeads, kDim, kDim, 0.09F, true, 0};
  shape.q_first = seq - 1;
  const AttentionForward call{.shape = shape,
                              .q = bench.tensor(dtype, {1, kHeads * kDim}),
                              .k = bench.tensor(dtype, {seq, kKvHeads * kDim}),
                              .v = bench.tensor(dtype, {seq, kKvHeads * kDim}),
                              .q_stride = kHeads * kDim,
                              .k_stride = kKvHeads * kDim,
                              .v_stride = kKvHeads * kDim,
                              .out = bench.tensor(dtype, {1, kHeads * kDim}),
                              .lse = {},
                              .workspace = {}};
  const double seconds = bench.best_time([&] { bench.run(call); });
  const double bytes = static_cast<double>(call.k.bytes() + call.v.bytes());
  fmt::print("{} decode, {} keys, {}/{} heads x {} {:>9.3f} ms {:>8.2f} GB/s\n", name_of(dtype), seq, kHeads,
             kKvHeads, kDim, seconds * 1e3, bytes / seconds * 1e-9);
  bench.release();
}

Options parse(int argc, char** argv) {
  Options options;
  options.seconds = 0.5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i], value = argv[i + 1];
    if (key == "--threads") options.threads = static_cast<int>(std::strtol(argv[i + 1], nullptr, 10));
    if (key == "--seconds") options.seconds = std::strtod(argv[i + 1], nullptr);
    if (key == "--dtype") options.dtype = value;
    if (key == "--clock") options.cpu_time = value == "cpu";
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Bench bench(options);
  fmt::print("{}\n", bench.description());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    if (!options.dtype.empty() && options.dtype != name_of(dtype)) continue;
    const double peak = measure_gemm_peak(bench.pool(), dtype, 1.0);
    fmt::print("{} GEMM peak {:.1f} GFLOP/s\n", name_of(dtype), peak * 1e-9);
    measure_training(bench, dtype, 4, 512, peak);
    measure_training(bench, dtype, 4, 2048, peak);
    measure_decoding(bench, dtype, 4096);
    measure_decoding(bench, dtype, 32768);
  }
  return 0;
}
