// Measures single operators on a device: time, TFLOP/s, GB/s, and their share of the device's peak, measured
// in the same run (report.h). Operands are random. Consecutive calls rotate through sets of operands
// (DeviceTimer::sets), so that large operands come from memory, as in a training step. The same code measures
// every device. Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/device_timer.h"
#include "bench/report.h"
#include "device/device.h"
#include "tensor/dtype.h"
#include "turbo/delta_rule/delta_rule.h"

namespace primus {

struct OperatorBenchmarkOptions {
  DType dtype = DType::kBF16;  // type of operands; only linear layers and attention support fp16
  // Times matrix products of linear layers in fp8 (turbo/fp8_linear). Activations and weights are e4m3,
  // gradients are e5m2 (Megatron's "hybrid"). Each product is timed from bf16 operands, and again from fp8
  // operands, without quantization. Suites other than linear layers do not support fp8.
  bool fp8 = false;
  // Times matrix products of linear layers and experts in MXFP4 (turbo/mxfp4), from bf16 operands. The
  // quantization of each product's operands is also timed separately.
  bool fp4 = false;
  double seconds = 0.5;                 // duration of each measurement
  DType weight_gradient = DType::kF32;  // type of the buffer that a weight gradient is accumulated into
  // Times only forward passes: one result per product and per attention. Not supported with fp8 and fp4.
  bool forward_only = false;
  std::int64_t rotated_bytes = DeviceTimer::kRotatedBytes;
  DeviceTimer::Progress progress = {};
};

// C = A · Bᵀ as used by a linear layer: forward [m, n] = [m, k] · [n, k]ᵀ, and the two gradients of that
// layer.
struct GemmCase {
  std::int64_t m, n, k;
};
// Parses "8192x28672x4096". Throws Error(kInvalid).
GemmCase parse_gemm_case(const std::string& text);
BenchmarkReport benchmark_gemm(Device& device, const std::vector<GemmCase>& cases,
                               const OperatorBenchmarkOptions& options);

struct AttentionCase {
  std::string model = {};  // name of the model; empty: none
  std::int64_t batch = 1, sequence = 4096, heads = 32, kv_heads = 8;
  // head_dim: width of queries and keys; value_dim: width of values
  std::int64_t head_dim = 128, value_dim = 128;
  std::int64_t window = 0;
  bool causal = true;
  bool sinks = false;  // a learned logit per query head, as in GPT-OSS
};
// Throws Error(kInvalid) for invalid sizes.
void check_case(const AttentionCase& which);
// Times forward and backward of each case: two results per case, in this order, named after `prefix`, the
// model and the sizes. If the device has several implementations, a note names the used implementation.
BenchmarkReport benchmark_attention(Device& device, const std::vector<AttentionCase>& cases,
                                    const OperatorBenchmarkOptions& options, const std::string& prefix = {});

// Times forward and backward of the delta rule with random operands: two results per case. Gates are about
// -0.1, and beta is about 0.5. The report has no ceilings. Throws Error(kInvalid) for unsupported shapes.
BenchmarkReport benchmark_delta_rule(Device& device, const std::vector<turbo::DeltaRuleShape>& cases,
                                     const OperatorBenchmarkOptions& options);

// `tokens` tokens, each routed to `top_k` experts. A fraction `skew` of the rows goes to the first eighth of
// the experts, and the rest evenly to the other experts. Negative skew: rows go evenly to all experts.
struct GroupedGemmCase {
  std::int64_t tokens = 8192, experts = 64, top_k = 6, in = 2048, out = 2816;
  double skew = -1;
};
// Throws Error(kInvalid) for invalid sizes.
void check_case(const GroupedGemmCase& which);
// Times the three grouped products of the experts, and dense products of equal FLOPs.
BenchmarkReport benchmark_grouped_gemm(Device& device, const GroupedGemmCase& which,
                                       const OperatorBenchmarkOptions& options);

// One matrix product of a model's layers; with `experts`, the grouped product of all its experts.
struct ModelProduct {
  std::string what;                        // "qkv"
  std::int64_t rows = 0, out = 0, in = 0;  // rows: with experts, the rows of all experts together
  std::int64_t experts = 0, top_k = 1;
  std::int64_t times = 1;  // uses per forward pass: the number of layers that contain the product

  bool operator==(const ModelProduct&) const = default;
};
// Times weight gradient, forward product and input gradient of each product. Returns three results per
// product in this order, or only that of the forward product; in fp8, six results per product. `suite`: suite
// of the report. fp8 and fp16 omit experts, with a note.
BenchmarkReport benchmark_model_gemm(Device& device, const std::string& suite,
                                     const std::vector<ModelProduct>& products,
                                     const OperatorBenchmarkOptions& options);

}  // namespace primus
