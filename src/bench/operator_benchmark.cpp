#include "bench/operator_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "tensor/arena.h"
#include "turbo/attention/attention.h"
#include "turbo/context.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"

namespace primus {
namespace {

using Clock = std::chrono::steady_clock;
using turbo::GemmRole;

// Operands of consecutive calls take at least so much memory together: more than twice the largest caches.
constexpr std::int64_t kRotatedBytes = std::int64_t{192} << 20;
constexpr std::int64_t kMostSets = 16;
// The largest size of anything, so that no product of sizes overflows.
constexpr std::int64_t kMostOfAll = 1 << 20, kMostHeads = 1 << 10, kMostExperts = 1 << 12;

void check_size(const char* what, std::int64_t value, std::int64_t most) {
  if (value >= 1 && value <= most) return;
  throw invalid(fmt::format("{} must be from 1 to {}, not {}", what, most, value));
}

// Times calls on one device, whose memory it gives back at the end.
class Bench {
 public:
  Bench(Device& device, double seconds)
      : device_(device), seconds_(seconds), stream_(device.create_stream(StreamKind::kCompute)) {}
  ~Bench() { release(); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Tensor empty(DType dtype, Shape shape) {
    Tensor tensor(nullptr, dtype, shape);
    const DeviceMemoryUse use = device_.memory_use();
    if (use.total > 0 && tensor.bytes() > use.total - use.used) {
      throw invalid(
          fmt::format("the operands do not fit: {:.1f} MiB more are needed, and the device has {:.1f} MiB "
                      "left",
                      static_cast<double>(tensor.bytes()) / (1 << 20),
                      static_cast<double>(use.total - use.used) / (1 << 20)),
          "choose smaller sizes");
    }
    tensor.data = device_.allocate(tensor.bytes());
    memory_.push_back(tensor.data);
    return tensor;
  }
  // Standard normal numbers times `scale`, other ones in every tensor.
  Tensor random(DType dtype, Shape shape, float scale = 1) {
    const Tensor wide = empty(DType::kF32, shape);
    run_once(turbo::RandomNormal{
        .out = wide, .seed = 1, .stream = ++streams_, .offset = 0, .mean = 0, .std = scale});
    if (dtype == DType::kF32) return wide;
    const Tensor tensor = empty(dtype, shape);
    run_once(turbo::Cast{.x = wide, .out = tensor});
    device_.release(wide.data);
    std::erase(memory_, wide.data);
    return tensor;
  }
  Tensor integers(const std::vector<std::int32_t>& values) {
    const Tensor tensor = empty(DType::kI32, {static_cast<std::int64_t>(values.size())});
    stream_->copy_to_device(tensor.data, values.data(), tensor.bytes());
    stream_->synchronize();
    return tensor;
  }
  void release() {
    for (void* const address : memory_) device_.release(address);
    memory_.clear();
  }

  // How many sets of operands of `bytes` calls take turns with.
  static std::int64_t sets(std::int64_t bytes) {
    return std::clamp(kRotatedBytes / std::max<std::int64_t>(bytes, 1) + 1, std::int64_t{1}, kMostSets);
  }

  template <class Arguments>
  void run_once(const Arguments& call) {
    const auto scratch = scratch_of(call);
    turbo::Context context{device_, *stream_, *scratch, meter_};
    launch(context, call);
    stream_->synchronize();
    device_.release(scratch->address());
  }

  // Calls take turns; `bytes` of one of them.
  template <class Arguments>
  OperatorResult time(const std::string& name, const std::vector<Arguments>& calls, double bytes) {
    const auto scratch = scratch_of(calls.front());
    turbo::Context context{device_, *stream_, *scratch, meter_};
    std::size_t next = 0;
    const OperatorResult measured = time_calls([&] { launch(context, calls[next++ % calls.size()]); });
    device_.release(scratch->address());
    OperatorResult result = measured;
    result.name = name;
    result.flops = calls.front().flops();
    result.bytes = bytes;
    return result;
  }

  double copy_rate() {
    const Tensor from = empty(DType::kF32, {kRotatedBytes / 4}), to = empty(DType::kF32, {kRotatedBytes / 4});
    run_once(turbo::Fill{.out = from, .value = 1});  // memory that was never written may all be one page
    const OperatorResult result =
        time_calls([&] { stream_->copy_on_device(to.data, from.data, from.bytes()); });
    release();
    return 2.0 * static_cast<double>(from.bytes()) / result.fastest;
  }

 private:
  // Device memory for one call's workspace, as an arena.
  class Scratch : public Arena {
   public:
    Scratch(void* address, std::int64_t bytes) : Arena("scratch", address, bytes), address_(address) {}
    void* address() const { return address_; }

   private:
    void* address_;
  };
  template <class Arguments>
  std::unique_ptr<Scratch> scratch_of(const Arguments& call) {
    Arena measuring("scratch");
    turbo::Context plan{device_, *stream_, measuring, meter_};
    launch(plan, call);
    const std::int64_t bytes = std::max(measuring.high_water(), Arena::kAlignment);
    return std::make_unique<Scratch>(device_.allocate(bytes), bytes);
  }

  OperatorResult time_calls(const std::function<void()>& call) {
    const auto seconds_of = [&](std::int64_t calls) {
      const auto start = Clock::now();
      for (std::int64_t i = 0; i < calls; ++i) call();
      stream_->synchronize();
      return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(calls);
    };
    seconds_of(1);  // loads kernels, chooses algorithms
    // Samples of a hundredth of a second hide what starting work costs the host.
    const double one = std::max(seconds_of(2), 1e-9);
    OperatorResult result;
    result.calls = std::clamp(static_cast<std::int64_t>(0.01 / one), std::int64_t{1}, std::int64_t{1000});
    std::vector<double> times;
    const auto begin = Clock::now();
    while (times.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds_) {
      times.push_back(seconds_of(result.calls));
    }
    std::sort(times.begin(), times.end());
    result.samples = static_cast<std::int64_t>(times.size());
    result.seconds = times[times.size() / 2];
    result.fastest = times.front();
    return result;
  }

  Device& device_;
  double seconds_;
  std::unique_ptr<Stream> stream_;
  turbo::Meter meter_;
  std::vector<void*> memory_;
  std::uint64_t streams_ = 0;
};

const char* name_of_role(GemmRole role) {
  return role == GemmRole::kForward         ? "forward"
         : role == GemmRole::kInputGradient ? "input gradient"
                                            : "weight gradient";
}

constexpr GemmRole kRoles[] = {GemmRole::kForward, GemmRole::kInputGradient, GemmRole::kWeightGradient};

// The three products of a layer with x [m, k], weight [n, k] and y [m, n].
void time_layer(Bench& bench, const GemmCase& c, DType dtype, const std::string& prefix,
                std::vector<OperatorResult>& results) {
  const std::int64_t element = size_of(dtype), x_bytes = c.m * c.k * element, w_bytes = c.n * c.k * element,
                     y_bytes = c.m * c.n * element, d_w_bytes = c.n * c.k * size_of(DType::kF32);
  std::vector<turbo::Gemm> forward, input, weight;
  for (std::int64_t set = Bench::sets(x_bytes + w_bytes + y_bytes); set > 0; --set) {
    const Tensor x = bench.random(dtype, {c.m, c.k}), w = bench.random(dtype, {c.n, c.k}, 0.02F);
    const Tensor y = bench.random(dtype, {c.m, c.n}), d_w = bench.empty(DType::kF32, {c.n, c.k});
    forward.push_back({.role = GemmRole::kForward, .a = x, .b = w, .c = y, .workspace = {}});
    input.push_back({.role = GemmRole::kInputGradient, .a = y, .b = w, .c = x, .workspace = {}});
    weight.push_back(
        {.role = GemmRole::kWeightGradient, .a = y, .b = x, .c = d_w, .accumulate = true, .workspace = {}});
  }
  const auto name = [&](GemmRole role) {
    return fmt::format("{}{} {}x{}x{}", prefix, name_of_role(role), c.m, c.n, c.k);
  };
  // The weight gradient goes first: the others overwrite its operands.
  const auto bytes = static_cast<double>(x_bytes + y_bytes);
  results.push_back(bench.time(name(kRoles[2]), weight, bytes + 2.0 * static_cast<double>(d_w_bytes)));
  results.push_back(bench.time(name(kRoles[0]), forward, bytes + static_cast<double>(w_bytes)));
  results.push_back(bench.time(name(kRoles[1]), input, bytes + static_cast<double>(w_bytes)));
  bench.release();
}

double product_rate(Bench& bench, Device& device, DType dtype) {
  // Large enough to fill the device: a GPU needs more than a few cores.
  const std::int64_t side = device.synchronous() ? 1024 : 8192;
  const Tensor a = bench.random(dtype, {side, side}), b = bench.random(dtype, {side, side}),
               c = bench.empty(dtype, {side, side});
  const std::vector<turbo::Gemm> square{
      {.role = GemmRole::kForward, .a = a, .b = b, .c = c, .workspace = {}}};
  const OperatorResult result = bench.time("", square, 0);
  bench.release();
  return result.flops / result.fastest;
}

OperatorReport begin(Bench& bench, Device& device, const char* operation,
                     const OperatorBenchmarkOptions& options) {
  if (!(options.seconds > 0) || options.seconds > 3600) {
    throw invalid("the time for a measurement must be above 0 and at most 3600 seconds");
  }
  OperatorReport report;
  report.operation = operation;
  report.device = device.description();
  report.dtype = name_of(options.dtype);
  report.copy_ceiling = bench.copy_rate();
  report.gemm_ceiling = product_rate(bench, device, options.dtype);
  return report;
}

// The ceilings once more: what disturbed them before may be over.
OperatorReport end(Bench& bench, Device& device, OperatorReport report,
                   const OperatorBenchmarkOptions& options) {
  bench.release();
  report.copy_ceiling = std::max(report.copy_ceiling, bench.copy_rate());
  report.gemm_ceiling = std::max(report.gemm_ceiling, product_rate(bench, device, options.dtype));
  return report;
}

}  // namespace

GemmCase parse_gemm_case(const std::string& text) {
  std::int64_t sizes[3] = {};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    const auto [next, error] = std::from_chars(at, end, sizes[i]);
    const bool good = error == std::errc() && (i < 2 ? next != end && *next == 'x' : next == end);
    if (!good) {
      throw invalid(fmt::format("'{}' is no shape of a product", text),
                    "write MxNxK, for example 8192x4096x4096");
    }
    at = next + 1;
  }
  const GemmCase result{sizes[0], sizes[1], sizes[2]};
  for (const std::int64_t size : sizes)
    check_size(fmt::format("each size of '{}'", text).c_str(), size, kMostOfAll);
  return result;
}

OperatorReport benchmark_gemm(Device& device, const std::vector<GemmCase>& cases,
                              const OperatorBenchmarkOptions& options) {
  Bench bench(device, options.seconds);
  OperatorReport report = begin(bench, device, "gemm", options);
  for (const GemmCase& c : cases) time_layer(bench, c, options.dtype, "", report.results);
  return end(bench, device, std::move(report), options);
}

OperatorReport benchmark_attention(Device& device, const AttentionCase& which,
                                   const OperatorBenchmarkOptions& options) {
  check_size("the batch", which.batch, kMostExperts);
  check_size("the sequence's length", which.sequence, kMostOfAll);
  check_size("the number of heads", which.heads, kMostHeads);
  check_size("the number of key/value heads", which.kv_heads, which.heads);
  check_size("a head's dimension", which.head_dim, kMostHeads);
  if (which.window < 0 || which.window > which.sequence)
    throw invalid("the window must be from 0 to the sequence's length");
  if (which.heads % which.kv_heads != 0) throw invalid("the heads must be a multiple of the key/value heads");
  Bench bench(device, options.seconds);
  OperatorReport report = begin(bench, device, "attention", options);
  const std::int64_t tokens = which.batch * which.sequence, width = which.heads * which.head_dim,
                     kv_width = which.kv_heads * which.head_dim, element = size_of(options.dtype);
  const double large = static_cast<double>(tokens * width * element),
               small = static_cast<double>(tokens * kv_width * element);
  const double lse_bytes = static_cast<double>(which.heads * tokens * size_of(DType::kF32));
  std::vector<turbo::AttentionForward> forward;
  std::vector<turbo::AttentionBackward> backward;
  for (std::int64_t set = Bench::sets(static_cast<std::int64_t>(4 * large + 4 * small)); set > 0; --set) {
    turbo::AttentionForward f{};
    f.shape.batch = which.batch;
    f.shape.seq_q = f.shape.seq_k = f.shape.capacity_k = which.sequence;
    f.shape.heads = which.heads, f.shape.kv_heads = which.kv_heads;
    f.shape.head_dim = f.shape.value_dim = which.head_dim;
    f.shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(which.head_dim)));
    f.shape.causal = which.causal, f.shape.window = which.window;
    f.q = bench.random(options.dtype, {tokens, width});
    f.k = bench.random(options.dtype, {tokens, kv_width});
    f.v = bench.random(options.dtype, {tokens, kv_width});
    f.q_stride = width, f.k_stride = f.v_stride = kv_width;
    f.out = bench.empty(options.dtype, {tokens, width});
    f.lse = bench.empty(DType::kF32, {which.heads, tokens});
    bench.run_once(f);  // what the backward needs
    turbo::AttentionBackward b{};
    b.shape = f.shape;
    b.q = f.q, b.k = f.k, b.v = f.v, b.out = f.out, b.lse = f.lse;
    b.q_stride = b.d_q_stride = width, b.k_stride = b.v_stride = b.d_k_stride = b.d_v_stride = kv_width;
    b.d_out = bench.random(options.dtype, {tokens, width});
    b.d_q = bench.empty(options.dtype, {tokens, width});
    b.d_k = bench.empty(options.dtype, {tokens, kv_width});
    b.d_v = bench.empty(options.dtype, {tokens, kv_width});
    forward.push_back(f);
    backward.push_back(b);
  }
  const std::string name = fmt::format(
      "{}x{} {}/{} heads of {}{}{}", which.batch, which.sequence, which.heads, which.kv_heads, which.head_dim,
      which.causal ? " causal" : "", which.window > 0 ? fmt::format(" window {}", which.window) : "");
  report.results.push_back(bench.time("forward " + name, forward, 2 * large + 2 * small + lse_bytes));
  report.results.push_back(bench.time("backward " + name, backward, 4 * large + 4 * small + lse_bytes));
  return end(bench, device, std::move(report), options);
}

OperatorReport benchmark_grouped_gemm(Device& device, const GroupedGemmCase& which,
                                      const OperatorBenchmarkOptions& options) {
  check_size("the number of tokens", which.tokens, kMostOfAll);
  check_size("the number of experts", which.experts, kMostExperts);
  check_size("the experts of a token", which.top_k, which.experts);
  check_size("the experts' input", which.in, kMostOfAll);
  check_size("the experts' output", which.out, kMostOfAll);
  if (which.skew > 1 || std::isnan(which.skew)) throw invalid("the skew must be a share, from 0 to 1");
  const std::int64_t rows = which.tokens * which.top_k;
  check_size("tokens times experts of each", rows, std::int64_t{1} << 28);
  Bench bench(device, options.seconds);
  OperatorReport report = begin(bench, device, "grouped-gemm", options);
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
  const std::int64_t element = size_of(options.dtype), x_bytes = rows * which.in * element,
                     y_bytes = rows * which.out * element, weights = which.experts * which.out * which.in;
  std::vector<turbo::GroupedGemm> calls[3];
  for (std::int64_t set = Bench::sets(x_bytes + y_bytes + weights * element); set > 0; --set) {
    const Tensor x = bench.random(options.dtype, {rows, which.in}),
                 y = bench.random(options.dtype, {rows, which.out});
    const Tensor w = bench.random(options.dtype, {which.experts, which.out, which.in}, 0.02F);
    const Tensor d_w = bench.empty(DType::kF32, {which.experts, which.out, which.in});
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
    report.results.push_back(bench.time(
        fmt::format("{} experts, {} {}x{}x{}", which.experts, name_of_role(kRoles[role]), rows, which.out,
                    which.in),
        calls[role], moved + static_cast<double>(weights) * static_cast<double>(role == 2 ? 8 : element)));
  }
  bench.release();
  time_layer(bench, {rows, which.out, which.in}, options.dtype, "dense, ", report.results);
  return end(bench, device, std::move(report), options);
}

// ---- Reports ------------------------------------------------------------------------------------

namespace {

// Texts of one result, in the order of kColumns.
constexpr const char* kColumns[] = {"case", "microseconds",          "fastest",           "TFLOP/s",
                                    "GB/s", "of the product's rate", "of the copy's rate"};
std::vector<std::string> cells(const OperatorReport& report, const OperatorResult& r) {
  return {r.name,
          fmt::format("{:.1f}", r.seconds * 1e6),
          fmt::format("{:.1f}", r.fastest * 1e6),
          fmt::format("{:.3f}", r.flops / r.seconds * 1e-12),
          fmt::format("{:.1f}", r.bytes / r.seconds * 1e-9),
          fmt::format("{:.1f} %", 100 * r.flops / r.seconds / report.gemm_ceiling),
          fmt::format("{:.1f} %", 100 * r.bytes / r.seconds / report.copy_ceiling)};
}

std::string ceilings(const OperatorReport& report) {
  return fmt::format("measured beside: a large square product {:.3f} TFLOP/s, a copy {:.1f} GB/s",
                     report.gemm_ceiling * 1e-12, report.copy_ceiling * 1e-9);
}

}  // namespace

std::string to_text(const OperatorReport& report) {
  std::string text = fmt::format("{} | {} | {}\n{}\n\n{:<52}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}\n",
                                 report.device, report.operation, report.dtype, ceilings(report), "case",
                                 "us", "fastest us", "TFLOP/s", "GB/s", "product", "copy");
  for (const OperatorResult& result : report.results) {
    const std::vector<std::string> c = cells(report, result);
    text +=
        fmt::format("{:<52}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}\n", c[0], c[1], c[2], c[3], c[4], c[5], c[6]);
  }
  return text;
}

std::string to_json(const OperatorReport& report) {
  nlohmann::ordered_json json{{"operation", report.operation},
                              {"device", report.device},
                              {"dtype", report.dtype},
                              {"gemm_ceiling_flops_per_second", report.gemm_ceiling},
                              {"copy_ceiling_bytes_per_second", report.copy_ceiling},
                              {"results", nlohmann::ordered_json::array()}};
  for (const OperatorResult& r : report.results) {
    json["results"].push_back({{"case", r.name},
                               {"seconds", {{"median", r.seconds}, {"min", r.fastest}}},
                               {"samples", r.samples},
                               {"calls_per_sample", r.calls},
                               {"flops", r.flops},
                               {"bytes", r.bytes},
                               {"flops_per_second", r.flops / r.seconds},
                               {"bytes_per_second", r.bytes / r.seconds},
                               {"share_of_gemm_ceiling", r.flops / r.seconds / report.gemm_ceiling},
                               {"share_of_copy_ceiling", r.bytes / r.seconds / report.copy_ceiling}});
  }
  return json_text(json) + "\n";
}

std::string to_csv(const OperatorReport& report) {
  std::string text =
      "operation,device,dtype,case,seconds,fastest_seconds,flops_per_second,bytes_per_second,"
      "gemm_ceiling_flops_per_second,copy_ceiling_bytes_per_second\n";
  // Only names may hold commas.
  const auto quoted = [](const std::string& name) { return '"' + name + '"'; };
  for (const OperatorResult& r : report.results) {
    text += fmt::format("{},{},{},{},{:.9g},{:.9g},{:.6g},{:.6g},{:.6g},{:.6g}\n", report.operation,
                        quoted(report.device), report.dtype, quoted(r.name), r.seconds, r.fastest,
                        r.flops / r.seconds, r.bytes / r.seconds, report.gemm_ceiling, report.copy_ceiling);
  }
  return text;
}

std::string to_markdown(const OperatorReport& report) {
  std::string text =
      fmt::format("{}, {}, {}; {}.\n\n", report.device, report.operation, report.dtype, ceilings(report));
  const auto row = [&](const auto& texts) {
    for (const auto& one : texts) text += fmt::format("| {} ", one);
    text += "|\n";
  };
  row(kColumns);
  for (std::size_t i = 0; i < std::size(kColumns); ++i) text += i == 0 ? "|---" : "|---:";
  text += "|\n";
  for (const OperatorResult& result : report.results) row(cells(report, result));
  return text;
}

}  // namespace primus
