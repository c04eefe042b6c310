// How fast single operators run on a device: time, TFLOP/s and GB/s, and their share of what the device can
// do, measured in the same run (report.h). Operands are random, and those of consecutive calls lie in
// different memory, so that nothing is served from a cache that a training step would not find full of other
// things. The same code measures every device. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/device_timer.h"
#include "bench/report.h"
#include "device/device.h"
#include "tensor/dtype.h"

namespace primus {

struct OperatorBenchmarkOptions {
  DType dtype = DType::kBF16;  // of operands; fp16: of linear layers and of attention only
  // Products of linear layers in fp8 (turbo/fp8_linear), of operands in bf16: activations and weights in
  // e4m3, gradients in e5m2 (Megatron's "hybrid"). Each is timed from bf16 operands, and once more without
  // their quantisation. Other suites than those of linear layers do not have it.
  bool fp8 = false;
  // Those in MXFP4 (turbo/mxfp4), and of experts, likewise of operands in bf16. What rounds the operands of
  // each is timed by itself, too.
  bool fp4 = false;
  double seconds = 0.5;                 // for each measurement
  DType weight_gradient = DType::kF32;  // what a layer's weight gradient is added into
  std::int64_t rotated_bytes = DeviceTimer::kRotatedBytes;
  DeviceTimer::Progress progress = {};
};

// C = A · Bᵀ as linear layers use it: forward [m, n] = [m, k] · [n, k]ᵀ, and both gradients of that layer.
struct GemmCase {
  std::int64_t m, n, k;
};
// "8192x28672x4096". Throws Error(kInvalid).
GemmCase parse_gemm_case(const std::string& text);
BenchmarkReport benchmark_gemm(Device& device, const std::vector<GemmCase>& cases,
                               const OperatorBenchmarkOptions& options);

struct AttentionCase {
  std::string model = {};  // whose attention it is; empty: nobody's
  std::int64_t batch = 1, sequence = 4096, heads = 32, kv_heads = 8;
  std::int64_t head_dim = 128, value_dim = 128;  // of queries and keys, of values
  std::int64_t window = 0;
  bool causal = true;
};
// Throws Error(kInvalid) for sizes that no attention has.
void check_case(const AttentionCase& which);
// Forward and backward of each, two results in this order; the names of cases are `prefix`, the model and the
// sizes. What computed them, where the device had a choice, is in the notes.
BenchmarkReport benchmark_attention(Device& device, const std::vector<AttentionCase>& cases,
                                    const OperatorBenchmarkOptions& options, const std::string& prefix = {});

// `tokens` that each go to `top_k` of the experts: `skew` of them to the first eighth of the experts, the
// rest evenly. A negative skew: all evenly.
struct GroupedGemmCase {
  std::int64_t tokens = 8192, experts = 64, top_k = 6, in = 2048, out = 2816;
  double skew = -1;
};
// Throws Error(kInvalid) for sizes that no experts have.
void check_case(const GroupedGemmCase& which);
// The three products of the experts, and the dense ones of equal FLOPs.
BenchmarkReport benchmark_grouped_gemm(Device& device, const GroupedGemmCase& which,
                                       const OperatorBenchmarkOptions& options);

// One matrix product of a model's layers; with `experts`, of all its experts at once.
struct ModelProduct {
  std::string what;                        // "qkv"
  std::int64_t rows = 0, out = 0, in = 0;  // of experts: the rows of all together
  std::int64_t experts = 0, top_k = 1;
  std::int64_t times = 1;  // that a pass through the model computes it: once in each layer that has it

  bool operator==(const ModelProduct&) const = default;
};
// Each as weight gradient, forward product and input gradient: three results in this order, in fp8 each
// twice. `suite` is the report's. In fp8 and in fp16 experts are left out, as a note says.
BenchmarkReport benchmark_model_gemm(Device& device, const std::string& suite,
                                     const std::vector<ModelProduct>& products,
                                     const OperatorBenchmarkOptions& options);

}  // namespace primus
