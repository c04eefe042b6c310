// How fast single operators run on a device: time, TFLOP/s and GB/s, and their share of what the device can
// do, measured in the same run. Operands are random, and those of consecutive calls lie in different memory,
// so that nothing is served from a cache that a training step would not find full of other things. The same
// code measures every device. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/device.h"
#include "tensor/dtype.h"

namespace primus {

struct OperatorBenchmarkOptions {
  DType dtype = DType::kBF16;  // of operands; weight gradients are fp32
  double seconds = 0.5;        // for each measurement
};

struct OperatorResult {
  std::string name;                     // "forward 8192x28672x4096"
  double seconds = 0, fastest = 0;      // of one call: median, and best of the samples
  std::int64_t samples = 0, calls = 0;  // each sample times so many calls
  double flops = 0, bytes = 0;          // of one call; bytes count every operand and result once
};

struct OperatorReport {
  std::string operation;  // "gemm", "attention", "grouped-gemm"
  std::string device, dtype;
  double gemm_ceiling = 0;  // FLOP/s of a large square product of this type
  double copy_ceiling = 0;  // bytes/s, read and written, of a large copy on the device
  std::vector<OperatorResult> results;
};

// C = A · Bᵀ as linear layers use it: forward [m, n] = [m, k] · [n, k]ᵀ, and both gradients of that layer.
struct GemmCase {
  std::int64_t m, n, k;
};
// "8192x28672x4096". Throws Error(kInvalid).
GemmCase parse_gemm_case(const std::string& text);
OperatorReport benchmark_gemm(Device& device, const std::vector<GemmCase>& cases,
                              const OperatorBenchmarkOptions& options);

struct AttentionCase {
  std::int64_t batch = 1, sequence = 4096, heads = 32, kv_heads = 8, head_dim = 128, window = 0;
  bool causal = true;
};
// Forward and backward.
OperatorReport benchmark_attention(Device& device, const AttentionCase& which,
                                   const OperatorBenchmarkOptions& options);

// `tokens` that each go to `top_k` of the experts: `skew` of them to the first eighth of the experts, the
// rest evenly. A negative skew: all evenly.
struct GroupedGemmCase {
  std::int64_t tokens = 8192, experts = 64, top_k = 6, in = 2048, out = 2816;
  double skew = -1;
};
// The three products of the experts, and the dense ones of equal FLOPs.
OperatorReport benchmark_grouped_gemm(Device& device, const GroupedGemmCase& which,
                                      const OperatorBenchmarkOptions& options);

std::string to_text(const OperatorReport& report);
std::string to_json(const OperatorReport& report);
std::string to_csv(const OperatorReport& report);
std::string to_markdown(const OperatorReport& report);

}  // namespace primus
