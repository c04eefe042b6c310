#include "bench/composed_time.h"

#include <vector>

#include "bench/model_shapes.h"
#include "bench/operator_benchmark.h"

namespace primus {
namespace {

// Returns the sum of the times, where each of the `cases` has `results.size() / cases.size()` results.
template <class Cases>
double sum(const std::vector<BenchmarkResult>& results, const Cases& cases) {
  double total = 0;
  const std::size_t of_case = cases.empty() ? 0 : results.size() / cases.size();
  for (std::size_t i = 0; i < results.size(); ++i)
    total += static_cast<double>(cases[i / of_case].times) * results[i].timing.median;
  return total;
}

ComposedTime time_alone(Device& device, const ModelConfig& config, std::int64_t batch, std::int64_t length,
                        const std::vector<ModelProduct>& products, const OperatorBenchmarkOptions& options) {
  ComposedTime time;
  time.product_seconds = sum(benchmark_model_gemm(device, "composed", products, options).results, products);
  const std::vector<LayersAttention> layers = attentions_of(config, batch, length);
  std::vector<AttentionCase> shapes;
  for (const LayersAttention& attention : layers) shapes.push_back(attention.shape);
  if (!shapes.empty())
    time.attention_seconds = sum(benchmark_attention(device, shapes, options).results, layers);
  const std::vector<LayersDeltaRule> rules = delta_rules_of(config, batch, length);
  std::vector<turbo::DeltaRuleShape> rule_shapes;
  for (const LayersDeltaRule& rule : rules) rule_shapes.push_back(rule.shape);
  if (!rule_shapes.empty())
    time.delta_rule_seconds = sum(benchmark_delta_rule(device, rule_shapes, options).results, rules);
  return time;
}

OperatorBenchmarkOptions operator_options_of(const ComposedOptions& options, bool forward_only) {
  return {.dtype = options.dtype,
          .seconds = options.seconds,
          .weight_gradient = options.weight_gradient,
          .forward_only = forward_only,
          .rotated_bytes = options.rotated_bytes};
}

}  // namespace

ComposedTime time_training_alone(Device& device, const ModelConfig& config, std::int64_t batch,
                                 std::int64_t length, const ComposedOptions& options) {
  return time_alone(device, config, batch, length, products_of(config, batch * length),
                    operator_options_of(options, false));
}

ComposedTime time_reading_alone(Device& device, const ModelConfig& config, std::int64_t batch,
                                std::int64_t length, const ComposedOptions& options) {
  ModelConfig without_modules = config;  // generation does not use modules of multi-token prediction
  without_modules.mtp.enabled = false;
  std::vector<ModelProduct> products = products_of(without_modules, batch * length);
  products.back().rows = batch;  // the output layer
  return time_alone(device, without_modules, batch, length, products, operator_options_of(options, true));
}

}  // namespace primus
