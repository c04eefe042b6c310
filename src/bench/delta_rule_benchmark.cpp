// Times the delta rule with the functions of operator_benchmark.h.
#include <fmt/format.h>

#include "bench/device_timer.h"
#include "bench/operator_benchmark.h"
#include "turbo/delta_rule/delta_rule.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {
namespace {

void time_delta_rule(DeviceTimer& bench, const turbo::DeltaRuleShape& s,
                     const OperatorBenchmarkOptions& options, std::vector<BenchmarkResult>& results) {
  const Shape rows{s.rows(), s.width()}, gates{s.rows(), s.gates()}, heads{s.rows(), s.value_heads};
  const std::int64_t bytes = (s.width() + s.out_width()) * s.rows() * size_of(options.dtype);
  std::vector<turbo::DeltaRuleForward> forward;
  std::vector<turbo::DeltaRuleBackward> backward;
  for (std::int64_t set = bench.sets(2 * bytes); set > 0; --set) {
    const Tensor g = bench.empty(DType::kF32, gates), beta = bench.empty(DType::kF32, heads);
    bench.run_once(
        turbo::RandomNormal{.out = g, .seed = 1, .stream = 1, .offset = 0, .mean = -0.1F, .std = 0.01F});
    bench.run_once(
        turbo::RandomNormal{.out = beta, .seed = 1, .stream = 2, .offset = 0, .mean = 0.5F, .std = 0.1F});
    forward.push_back({.shape = s,
                       .qkv = bench.random(options.dtype, rows),
                       .g = g,
                       .beta = beta,
                       .first_key = {},
                       .out = bench.random(options.dtype, {s.rows(), s.out_width()}),
                       .workspace = {}});
    const turbo::DeltaRuleForward& f = forward.back();
    backward.push_back({.shape = s,
                        .qkv = f.qkv,
                        .g = f.g,
                        .beta = f.beta,
                        .first_key = {},
                        .d_out = f.out,
                        .d_qkv = bench.empty(options.dtype, rows),
                        .d_g = bench.empty(DType::kF32, gates),
                        .d_beta = bench.empty(DType::kF32, heads),
                        .workspace = {}});
  }
  const std::string name =
      fmt::format("{}x{} {}/{} heads of {} and {}{}", s.batch, s.sequence, s.key_heads, s.value_heads,
                  s.key_dim, s.value_dim, s.channel_gates ? ", gates per channel" : "");
  results.push_back(bench.time("forward " + name, forward, static_cast<double>(bytes)));
  if (!options.forward_only)
    results.push_back(bench.time("backward " + name, backward, 2.0 * static_cast<double>(bytes)));
  bench.release();
}

}  // namespace

BenchmarkReport benchmark_delta_rule(Device& device, const std::vector<turbo::DeltaRuleShape>& cases,
                                     const OperatorBenchmarkOptions& options) {
  for (const turbo::DeltaRuleShape& shape : cases) shape.check(turbo::KernelId::kDeltaRuleForward);
  DeviceTimer bench(device, options.seconds, options.rotated_bytes, options.progress);
  BenchmarkReport report{
      .suite = "delta rule", .device = device.description(), .dtype = std::string(name_of(options.dtype))};
  for (const turbo::DeltaRuleShape& shape : cases) time_delta_rule(bench, shape, options, report.results);
  return report;
}

}  // namespace primus
