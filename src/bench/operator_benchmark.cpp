#include "bench/operator_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "bench/device_timer.h"
#include "engine/operators/mxfp4_products.h"
#include "turbo/attention/attention.h"
#include "turbo/fp8_linear/fp8_product.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"

namespace primus {
namespace {

using turbo::GemmRole;

// Limits of all sizes, so that products of sizes do not overflow.
constexpr std::int64_t kMaxOfAll = 1 << 20, kMaxHeads = 1 << 10, kMaxExperts = 1 << 12;

void check_size(const char* what, std::int64_t value, std::int64_t maximum) {
  if (value >= 1 && value <= maximum) return;
  throw invalid(fmt::format("{} must be from 1 to {}, not {}", what, maximum, value));
}

const char* name_of_role(GemmRole role) {
  return role == GemmRole::kForward         ? "forward"
         : role == GemmRole::kInputGradient ? "input gradient"
                                            : "weight gradient";
}

constexpr GemmRole kRoles[] = {GemmRole::kForward, GemmRole::kInputGradient, GemmRole::kWeightGradient};

std::string name_of(GemmRole role, const GemmCase& c) {
  return fmt::format("{} {}x{}x{}", name_of_role(role), c.m, c.n, c.k);
}

// Times the MXFP4 products, and then the quantization of each operand.
void time_fp4_products(DeviceTimer& bench, const GemmCase& c,
                       const std::vector<std::vector<turbo::Gemm>>& products, const std::string& prefix,
                       std::vector<BenchmarkResult>& results) {
  for (const std::vector<turbo::Gemm>& of_role : products) {
    std::vector<engine::Mxfp4Linear> calls;
    for (const turbo::Gemm& product : of_role) calls.push_back({.product = product});
    const turbo::Gemm& first = of_role.front();
    results.push_back(bench.time(prefix + name_of(first.role, c), calls,
                                 static_cast<double>(first.a.bytes() + first.b.bytes() +
                                                     first.c.bytes() * (first.accumulate ? 2 : 1))));
  }
  bench.release();
  using Blocks = turbo::RoundMxfp4::Blocks;
  struct Way {
    const char* what;
    Blocks blocks;
    Shape shape;
  };
  for (const Way& way : {Way{"activations, along rows", Blocks::kRows, {c.m, c.k}},
                         Way{"activations, transformed along columns", Blocks::kColumns, {c.m, c.k}},
                         Way{"weights, in squares", Blocks::kTiles, {c.n, c.k}}}) {
    std::vector<turbo::RoundMxfp4> calls;
    const std::int64_t bytes = 2 * way.shape.elements() * size_of(DType::kBF16);  // reads plus writes
    for (std::int64_t set = bench.sets(bytes); set > 0; --set) {
      calls.push_back({.x = bench.random(DType::kBF16, way.shape),
                       .out = bench.empty(DType::kBF16, way.shape),
                       .blocks = way.blocks,
                       .hadamard = way.blocks == Blocks::kColumns});
    }
    results.push_back(
        bench.time(fmt::format("{}rounding {}, {}x{}", prefix, way.what, way.shape[0], way.shape[1]), calls,
                   static_cast<double>(bytes)));
    bench.release();
  }
}

// Times the three products of a layer with x [m, k], weight [n, k] and y [m, n].
void time_float_layer(DeviceTimer& bench, const GemmCase& c, const OperatorBenchmarkOptions& options,
                      const std::string& prefix, std::vector<BenchmarkResult>& results) {
  const DType dtype = options.dtype;
  const std::int64_t element = size_of(dtype), x_bytes = c.m * c.k * element, w_bytes = c.n * c.k * element,
                     y_bytes = c.m * c.n * element, d_w_bytes = c.n * c.k * size_of(options.weight_gradient);
  std::vector<turbo::Gemm> forward, input, weight;
  for (std::int64_t set = bench.sets(x_bytes + w_bytes + y_bytes); set > 0; --set) {
    const Tensor x = bench.random(dtype, {c.m, c.k}), w = bench.random(dtype, {c.n, c.k}, 0.02F);
    const Tensor y = bench.random(dtype, {c.m, c.n}), d_w = bench.empty(options.weight_gradient, {c.n, c.k});
    forward.push_back({.role = GemmRole::kForward, .a = x, .b = w, .c = y, .workspace = {}});
    input.push_back({.role = GemmRole::kInputGradient, .a = y, .b = w, .c = x, .workspace = {}});
    weight.push_back(
        {.role = GemmRole::kWeightGradient, .a = y, .b = x, .c = d_w, .accumulate = true, .workspace = {}});
  }
  if (options.fp4) return time_fp4_products(bench, c, {weight, forward, input}, prefix, results);
  // The weight gradient is timed first, because the other two products overwrite the operands of the weight
  // gradient.
  const auto bytes = static_cast<double>(x_bytes + y_bytes);
  if (!options.forward_only)
    results.push_back(
        bench.time(prefix + name_of(kRoles[2], c), weight, bytes + 2.0 * static_cast<double>(d_w_bytes)));
  results.push_back(
      bench.time(prefix + name_of(kRoles[0], c), forward, bytes + static_cast<double>(w_bytes)));
  if (!options.forward_only)
    results.push_back(
        bench.time(prefix + name_of(kRoles[1], c), input, bytes + static_cast<double>(w_bytes)));
  bench.release();
}

struct Fp8Operand {
  Tensor codes, scales;
};

// Returns fp8 codes of random values. The dimension that a product sums over is contiguous.
Fp8Operand random_codes(DeviceTimer& bench, DType type, Shape shape) {
  const Fp8Operand operand{bench.empty(type, shape), bench.empty(DType::kF32, {2})};
  bench.run_once(turbo::QuantizeFp8{
      .x = bench.random(DType::kBF16, shape), .codes = operand.codes, .scales = operand.scales});
  return operand;
}

// Times the three products in fp8, from bf16 operands and from codes only.
void time_fp8_layer(DeviceTimer& bench, const GemmCase& c, const OperatorBenchmarkOptions& options,
                    const std::string& prefix, std::vector<BenchmarkResult>& results) {
  constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;
  struct Way {
    GemmRole role;
    std::int64_t m, n, k;  // sizes of the product
    Shape a, b;
    DType a_type, c_type;
  };
  const Shape x{c.m, c.k}, w{c.n, c.k}, y{c.m, c.n};
  for (const Way& way : {Way{GemmRole::kWeightGradient, c.n, c.k, c.m, y, x, kE5M2, options.weight_gradient},
                         Way{GemmRole::kForward, c.m, c.n, c.k, x, w, kE4M3, DType::kBF16},
                         Way{GemmRole::kInputGradient, c.m, c.k, c.n, y, w, kE5M2, DType::kBF16}}) {
    const bool adds = way.role == GemmRole::kWeightGradient;
    const std::int64_t operands = way.a.elements() + way.b.elements(), result = way.m * way.n;
    const auto result_bytes = static_cast<double>(result * size_of(way.c_type) * (adds ? 2 : 1));
    std::vector<turbo::Fp8Linear> whole;
    for (std::int64_t set = bench.sets(operands * size_of(DType::kBF16)); set > 0; --set) {
      whole.push_back({.role = way.role,
                       .a = bench.random(DType::kBF16, way.a),
                       .b = bench.random(DType::kBF16, way.b),
                       .c = bench.empty(way.c_type, {way.m, way.n}),
                       .a_type = way.a_type,
                       .accumulate = adds});
    }
    const std::string name = prefix + name_of(way.role, c);
    results.push_back(
        bench.time(name, whole, static_cast<double>(operands * size_of(DType::kBF16)) + result_bytes));
    bench.release();
    std::vector<turbo::Fp8Gemm> products;
    for (std::int64_t set = bench.sets(operands); set > 0; --set) {
      const Fp8Operand a = random_codes(bench, way.a_type, {way.m, way.k}),
                       b = random_codes(bench, kE4M3, {way.n, way.k});
      products.push_back({.a = a.codes,
                          .b = b.codes,
                          .a_scales = a.scales,
                          .b_scales = b.scales,
                          .c = bench.empty(way.c_type, {way.m, way.n}),
                          .accumulate = adds,
                          .fast = way.role == GemmRole::kForward,
                          .workspace = {}});
    }
    results.push_back(
        bench.time(name + ", quantised before", products, static_cast<double>(operands) + result_bytes));
    bench.release();
  }
}

// Times the layer in the type that the options request.
void time_layer(DeviceTimer& bench, const GemmCase& c, const OperatorBenchmarkOptions& options,
                const std::string& prefix, std::vector<BenchmarkResult>& results) {
  if (options.fp8)
    time_fp8_layer(bench, c, options, prefix, results);
  else
    time_float_layer(bench, c, options, prefix, results);
}

// Throws for invalid cases, before the first measurement.
void check_layer(const GemmCase& c, const OperatorBenchmarkOptions& options) {
  if (!options.fp8) return;
  turbo::check_fp8_extents(c.m, c.k);
  turbo::check_fp8_extents(c.n, c.k);
}

// Times the three products of the experts.
void time_experts(DeviceTimer& bench, const GroupedGemmCase& which, const OperatorBenchmarkOptions& options,
                  const std::string& prefix, std::vector<BenchmarkResult>& results) {
  const DType dtype = options.dtype;
  const std::int64_t rows = which.tokens * which.top_k;
  std::vector<std::int32_t> offsets;
  const std::int64_t few = std::max<std::int64_t>(which.experts / 8, 1);
  const auto favoured = static_cast<std::int64_t>(which.skew < 0 || few == which.experts
                                                      ? static_cast<double>(rows * few / which.experts)
                                                      : which.skew * static_cast<double>(rows));
  for (std::int64_t e = 0; e <= which.experts; ++e) {
    offsets.push_back(static_cast<std::int32_t>(
        which.skew < 0 ? rows * e / which.experts
        : e <= few     ? (few == which.experts ? rows : favoured) * e / few
                       : favoured + (rows - favoured) * (e - few) / (which.experts - few)));
  }
  const std::int64_t element = size_of(dtype), x_bytes = rows * which.in * element,
                     y_bytes = rows * which.out * element, weights = which.experts * which.out * which.in;
  std::vector<turbo::GroupedGemm> calls[3];
  for (std::int64_t set = bench.sets(x_bytes + y_bytes + weights * element); set > 0; --set) {
    const Tensor x = bench.random(dtype, {rows, which.in}), y = bench.random(dtype, {rows, which.out});
    const Tensor w = bench.random(dtype, {which.experts, which.out, which.in}, 0.02F);
    const Tensor d_w = bench.empty(options.weight_gradient, {which.experts, which.out, which.in});
    const Tensor ends = bench.integers(offsets);
    const Tensor a[] = {x, y, y}, b[] = {w, w, x}, c[] = {y, x, d_w};
    for (int role = 0; role < 3; ++role) {
      calls[role].push_back({.role = kRoles[role],
                             .a = a[role],
                             .b = b[role],
                             .c = c[role],
                             .offsets = ends,
                             .a_rows = {},
                             .b_rows = {},
                             .accumulate = role == 2,
                             .workspace = {}});
    }
  }
  const auto moved = static_cast<double>(x_bytes + y_bytes);
  for (const int role : {2, 0, 1}) {
    if (options.forward_only && role != 0) continue;
    const std::string name = fmt::format("{}{} experts, {} {}x{}x{}", prefix, which.experts,
                                         name_of_role(kRoles[role]), rows, which.out, which.in);
    const double bytes =
        moved + static_cast<double>(weights) *
                    static_cast<double>(role == 2 ? 2 * size_of(options.weight_gradient) : element);
    if (options.fp4) {
      std::vector<engine::Mxfp4Grouped> rounded;
      for (const turbo::GroupedGemm& product : calls[role]) rounded.push_back({product});
      results.push_back(bench.time(name, rounded, bytes));
    } else {
      results.push_back(bench.time(name, calls[role], bytes));
    }
  }
  bench.release();
}

// Times forward and backward.
void time_attention(DeviceTimer& bench, const AttentionCase& which, const OperatorBenchmarkOptions& options,
                    const std::string& prefix, std::vector<BenchmarkResult>& results) {
  const DType dtype = options.dtype;
  const std::int64_t tokens = which.batch * which.sequence, q_width = which.heads * which.head_dim,
                     k_width = which.kv_heads * which.head_dim, v_width = which.kv_heads * which.value_dim,
                     out_width = which.heads * which.value_dim;
  const auto bytes_of = [&](std::int64_t width) {
    return static_cast<double>(tokens * width * size_of(dtype));
  };
  const double q = bytes_of(q_width), k = bytes_of(k_width), v = bytes_of(v_width), out = bytes_of(out_width);
  const double lse_bytes = static_cast<double>(which.heads * tokens * size_of(DType::kF32));
  std::vector<turbo::AttentionForward> forward;
  std::vector<turbo::AttentionBackward> backward;
  for (std::int64_t set = bench.sets(static_cast<std::int64_t>(2 * (q + k + v + out))); set > 0; --set) {
    turbo::AttentionForward f{};
    f.shape.batch = which.batch;
    f.shape.seq_q = f.shape.seq_k = f.shape.capacity_k = which.sequence;
    f.shape.heads = which.heads, f.shape.kv_heads = which.kv_heads;
    f.shape.head_dim = which.head_dim, f.shape.value_dim = which.value_dim;
    f.shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(which.head_dim)));
    f.shape.causal = which.causal, f.shape.window = which.window;
    f.q = bench.random(dtype, {tokens, q_width});
    f.k = bench.random(dtype, {tokens, k_width});
    f.v = bench.random(dtype, {tokens, v_width});
    f.q_stride = q_width, f.k_stride = k_width, f.v_stride = v_width;
    if (which.sinks) f.sinks = bench.random(dtype, {which.heads});
    f.out = bench.empty(dtype, {tokens, out_width});
    f.lse = bench.empty(DType::kF32, {which.heads, tokens});
    bench.run_once(f);  // computes the inputs of the backward pass
    turbo::AttentionBackward b{};
    b.shape = f.shape;
    b.q = f.q, b.k = f.k, b.v = f.v, b.out = f.out, b.lse = f.lse;
    b.q_stride = b.d_q_stride = q_width, b.k_stride = b.d_k_stride = k_width;
    b.v_stride = b.d_v_stride = v_width;
    b.d_out = bench.random(dtype, {tokens, out_width});
    b.d_q = bench.empty(dtype, {tokens, q_width});
    b.d_k = bench.empty(dtype, {tokens, k_width});
    b.d_v = bench.empty(dtype, {tokens, v_width});
    forward.push_back(f);
    backward.push_back(b);
  }
  const std::string whose = prefix + (which.model.empty() ? "" : which.model + ", ");
  const std::string dims = which.value_dim == which.head_dim
                               ? fmt::format("{}", which.head_dim)
                               : fmt::format("{} and {}", which.head_dim, which.value_dim);
  const std::string name = fmt::format("{}x{} {}/{} heads of {}{}{}{}", which.batch, which.sequence,
                                       which.heads, which.kv_heads, dims, which.causal ? " causal" : "",
                                       which.window > 0 ? fmt::format(" window {}", which.window) : "",
                                       which.sinks ? " sinks" : "");
  results.push_back(bench.time(whose + "forward " + name, forward, q + k + v + out + lse_bytes));
  if (!options.forward_only)
    results.push_back(bench.time(whose + "backward " + name, backward, 2 * (q + k + v + out) + lse_bytes));
  bench.release();
}

double product_rate(DeviceTimer& bench, Device& device, const OperatorBenchmarkOptions& options) {
  // Side of a square product that occupies the entire device. A GPU needs a larger product than a CPU.
  const std::int64_t side = device.synchronous() ? 1024 : 8192;
  if (options.fp8) {
    const Fp8Operand a = random_codes(bench, DType::kF8E4M3, {side, side}),
                     b = random_codes(bench, DType::kF8E4M3, {side, side});
    const std::vector<turbo::Fp8Gemm> square{{.a = a.codes,
                                              .b = b.codes,
                                              .a_scales = a.scales,
                                              .b_scales = b.scales,
                                              .c = bench.empty(DType::kBF16, {side, side}),
                                              .fast = true,
                                              .workspace = {}}};
    const BenchmarkResult result = bench.time("", square, 0);
    bench.release();
    return result.flops / result.timing.fastest;
  }
  const DType dtype = options.dtype;
  const Tensor a = bench.random(dtype, {side, side}), b = bench.random(dtype, {side, side}),
               c = bench.empty(dtype, {side, side});
  const std::vector<turbo::Gemm> square{
      {.role = GemmRole::kForward, .a = a, .b = b, .c = c, .workspace = {}}};
  const BenchmarkResult result = bench.time("", square, 0);
  bench.release();
  return result.flops / result.timing.fastest;
}

BenchmarkReport begin(DeviceTimer& bench, Device& device, const char* suite,
                      const OperatorBenchmarkOptions& options) {
  BenchmarkReport report;
  report.suite = suite;
  report.device = device.description();
  report.dtype = options.fp8 ? "fp8" : options.fp4 ? "fp4" : name_of(options.dtype);
  report.copy_ceiling = bench.copy_rate();
  report.gemm_ceiling = product_rate(bench, device, options);
  return report;
}

// Measures the ceilings again and keeps the higher values, because other programs may have disturbed the
// first measurement.
BenchmarkReport end(DeviceTimer& bench, Device& device, BenchmarkReport report,
                    const OperatorBenchmarkOptions& options) {
  bench.release();
  report.copy_ceiling = std::max(report.copy_ceiling, bench.copy_rate());
  report.gemm_ceiling = std::max(report.gemm_ceiling, product_rate(bench, device, options));
  return report;
}

}  // namespace

void check_case(const AttentionCase& which) {
  check_size("the batch", which.batch, kMaxExperts);
  check_size("the sequence's length", which.sequence, kMaxOfAll);
  check_size("the number of heads", which.heads, kMaxHeads);
  check_size("the number of key/value heads", which.kv_heads, which.heads);
  check_size("a head's dimension", which.head_dim, kMaxHeads);
  check_size("the dimension of a head's values", which.value_dim, kMaxHeads);
  if (which.window < 0 || which.window > which.sequence)
    throw invalid("the window must be from 0 to the sequence's length");
  if (which.heads % which.kv_heads != 0)
    throw invalid(
        fmt::format("{} heads are not a multiple of {} key/value heads", which.heads, which.kv_heads),
        "choose --heads as a multiple of --kv-heads");
}

void check_case(const GroupedGemmCase& which) {
  check_size("the number of tokens", which.tokens, kMaxOfAll);
  check_size("the number of experts", which.experts, kMaxExperts);
  check_size("the experts of a token", which.top_k, which.experts);
  check_size("the experts' input", which.in, kMaxOfAll);
  check_size("the experts' output", which.out, kMaxOfAll);
  if (which.skew > 1 || std::isnan(which.skew)) throw invalid("the skew must be from 0 to 1");
  check_size("tokens times experts of each", which.tokens * which.top_k, std::int64_t{1} << 28);
}

GemmCase parse_gemm_case(const std::string& text) {
  std::int64_t sizes[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    const bool good = error == std::errc() && (i < 2 ? next != end && *next == 'x' : next == end);
    if (!good) {
      throw invalid(fmt::format("'{}' is not the shape of a matrix product", text),
                    "write MxNxK, for example 8192x4096x4096");
    }
    at = next + 1;
  }
  const GemmCase result{sizes[0], sizes[1], sizes[2]};
  for (const std::int64_t size : sizes)
    check_size(fmt::format("each size of '{}'", text).c_str(), size, kMaxOfAll);
  return result;
}

BenchmarkReport benchmark_gemm(Device& device, const std::vector<GemmCase>& cases,
                               const OperatorBenchmarkOptions& options) {
  for (const GemmCase& c : cases) check_layer(c, options);
  DeviceTimer bench(device, options.seconds, options.rotated_bytes, options.progress);
  BenchmarkReport report = begin(bench, device, "gemm", options);
  for (const GemmCase& c : cases) time_layer(bench, c, options, "", report.results);
  return end(bench, device, std::move(report), options);
}

BenchmarkReport benchmark_attention(Device& device, const std::vector<AttentionCase>& cases,
                                    const OperatorBenchmarkOptions& options, const std::string& prefix) {
  for (const AttentionCase& which : cases) check_case(which);  // report all errors first
  DeviceTimer bench(device, options.seconds, options.rotated_bytes, options.progress);
  BenchmarkReport report = begin(bench, device, "attention", options);
  for (const AttentionCase& which : cases) time_attention(bench, which, options, prefix, report.results);
  for (const KernelChoice& choice : device.choices())
    if (choice.what.starts_with("attention")) report.notes.push_back(choice.what);
  return end(bench, device, std::move(report), options);
}

BenchmarkReport benchmark_grouped_gemm(Device& device, const GroupedGemmCase& which,
                                       const OperatorBenchmarkOptions& options) {
  check_case(which);
  DeviceTimer bench(device, options.seconds, options.rotated_bytes, options.progress);
  BenchmarkReport report = begin(bench, device, "grouped-gemm", options);
  time_experts(bench, which, options, "", report.results);
  time_layer(bench, {.m = which.tokens * which.top_k, .n = which.out, .k = which.in}, options, "dense, ",
             report.results);
  return end(bench, device, std::move(report), options);
}

BenchmarkReport benchmark_model_gemm(Device& device, const std::string& suite,
                                     const std::vector<ModelProduct>& products,
                                     const OperatorBenchmarkOptions& options) {
  const auto experts_of = [](const ModelProduct& p) {
    return GroupedGemmCase{
        .tokens = p.rows / p.top_k, .experts = p.experts, .top_k = p.top_k, .in = p.in, .out = p.out};
  };
  const auto layer_of = [](const ModelProduct& p) { return GemmCase{.m = p.rows, .n = p.out, .k = p.in}; };
  for (const ModelProduct& p : products) {  // report all errors first
    check_size(fmt::format("the rows of '{}'", p.what).c_str(), p.rows, std::int64_t{1} << 28);
    if (p.experts > 0) {
      check_case(experts_of(p));
    } else {
      check_size(fmt::format("the outputs of '{}'", p.what).c_str(), p.out, kMaxOfAll);
      check_size(fmt::format("the inputs of '{}'", p.what).c_str(), p.in, kMaxOfAll);
      check_layer(layer_of(p), options);
    }
  }
  DeviceTimer bench(device, options.seconds, options.rotated_bytes, options.progress);
  BenchmarkReport report = begin(bench, device, suite.c_str(), options);
  for (const ModelProduct& p : products) {
    if (p.experts == 0)
      time_layer(bench, layer_of(p), options, p.what + ", ", report.results);
    else if (options.fp8 || options.dtype == DType::kF16)
      report.notes.push_back(fmt::format("{}: skipped, because grouped expert products do not support {}",
                                         p.what, report.dtype));
    else
      time_experts(bench, experts_of(p), options, p.what + ", ", report.results);
  }
  return end(bench, device, std::move(report), options);
}

}  // namespace primus
