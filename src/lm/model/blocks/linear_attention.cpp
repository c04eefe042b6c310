#include "lm/model/blocks/linear_attention.h"

#include <fmt/format.h>

#include <numeric>

#include "engine/operators/delta_rule.h"
#include "lm/model/language_model.h"

namespace primus {

// Linear attention: number of query and key heads, number of value heads, width of a key head, width of a
// value head, and number of tokens in the convolution before the delta rule.
PRIMUS_MODEL_FIELD(LINEAR, std::int64_t, key_heads, 16, linear_num_key_heads, kShape, "linear_num_key_heads");
PRIMUS_MODEL_FIELD(LINEAR, std::int64_t, value_heads, 32, linear_num_value_heads, kShape,
                   "linear_num_value_heads");
PRIMUS_MODEL_FIELD(LINEAR, std::int64_t, key_dim, 128, linear_key_head_dim, kShape, "linear_key_head_dim");
PRIMUS_MODEL_FIELD(LINEAR, std::int64_t, value_dim, 128, linear_value_head_dim, kShape,
                   "linear_value_head_dim");
PRIMUS_MODEL_FIELD(LINEAR, std::int64_t, conv_width, 4, linear_conv_kernel_dim, kShape,
                   "linear_conv_kernel_dim");

// Counts the multiplications with the state and in the convolution, as Megatron-LM does.
double linear_mixing(const ModelConfig& c, std::int64_t, double) {
  const LinearAttentionConfig& l = c.linear;
  return static_cast<double>(4 * l.values() * l.key_dim + l.conv_width * (2 * l.keys() + l.values()));
}

std::vector<SharedExtent> linear_shared_by_tensor_ranks(const ModelConfig& c) {
  return {{c.linear.key_heads, "key heads of linear attention (linear_num_key_heads)"},
          {c.linear.value_heads, "value heads of linear attention (linear_num_value_heads)"}};
}

std::optional<MeshMismatch> linear_context_mismatch(const ModelConfig& c, const engine::MeshShape& shape,
                                                    std::int64_t sequence) {
  if (auto mismatch = slices_too_short(c.linear.conv_width, "linear_conv_kernel_dim", shape, sequence))
    return mismatch;
  const std::int64_t heads = c.linear.key_heads / shape.tensor;
  if (engine::delta_rule_divides(heads, shape.context)) return std::nullopt;
  return MeshMismatch{
      "context_parallel_size",
      fmt::format("{} key heads of linear attention (linear_num_key_heads) of each rank "
                  "cannot be divided evenly among "
                  "{} context ranks",
                  heads, shape.context),
      fmt::format("set context_parallel_size to {}", std::gcd(heads, std::int64_t{shape.context}))};
}

void make_linear_cache(const ModelConfig& c, const CacheRequest& request, bool channel_gates,
                       engine::Phase& phase, engine::KvCacheLayer& entry) {
  const LinearAttentionConfig& l = c.linear;
  const std::int64_t heads = l.value_heads / request.tensor_ranks;
  const turbo::DeltaRuleShape of_rank{.batch = 1,
                                      .sequence = 1,
                                      .key_heads = l.key_heads / request.tensor_ranks,
                                      .value_heads = heads,
                                      .key_dim = l.key_dim,
                                      .value_dim = l.value_dim,
                                      .channel_gates = channel_gates,
                                      .normalise = true,
                                      .scale = 1};
  entry.ring = phase.tensor(DType::kF32, {request.sequences, conv_ring(l.conv_width), of_rank.width()});
  entry.state = phase.tensor(DType::kF32, {request.sequences, heads, l.key_dim, l.value_dim});
  entry.recent =
      phase.tensor(DType::kF32, {request.sequences, engine::kDeltaRuleRing, heads * of_rank.recent_width()});
  entry.committed = phase.tensor(DType::kI32, {request.sequences, heads});
}

// Counts fp32 values that decoding reads per token: the inputs of the convolution, and the state. Writes are
// not counted: a token adds one input, and the state is written only once in many tokens.
double linear_bytes_read(const ModelConfig& c, std::int64_t, std::int64_t, DType) {
  const LinearAttentionConfig& l = c.linear;
  return 4 * static_cast<double>(l.conv_width * (2 * l.keys() + l.values()) + l.values() * l.key_dim);
}

std::string linear_summary(const ModelConfig& c) {
  const LinearAttentionConfig& l = c.linear;
  return fmt::format("linear attention with {} value heads of width {} and {} key heads in {} of {} layers",
                     l.value_heads, l.value_dim, l.key_heads, c.layers_keeping(Keeps::kState).size(),
                     c.layers);
}

}  // namespace primus
