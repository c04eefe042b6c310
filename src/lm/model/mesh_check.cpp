#include "lm/model/mesh_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lm/model/layer_kind.h"

namespace primus {
namespace {

constexpr const char* kTensor = "tensor_model_parallel_size";
constexpr const char* kExpert = "expert_model_parallel_size";
constexpr const char* kExpertTensor = "expert_tensor_parallel_size";

std::optional<MeshMismatch> check(const char* key, int ranks, const std::vector<SharedExtent>& things) {
  const auto divides = [&](std::int64_t n) {
    return std::all_of(things.begin(), things.end(),
                       [n](const SharedExtent& s) { return s.extent % n == 0; });
  };
  for (const SharedExtent& s : things) {
    if (s.extent % ranks == 0) continue;
    // Suggests a divisor of `ranks`, because it also divides the number of all ranks of the job.
    int fit = ranks - 1;
    while (ranks % fit != 0 || !divides(fit)) --fit;
    return MeshMismatch{key,
                        fmt::format("{} {} cannot be divided evenly among {} ranks", s.extent, s.what, ranks),
                        fmt::format("set {} to {}", key, fit)};
  }
  return std::nullopt;
}

std::vector<SharedExtent> shared_by_tensor_ranks(const ModelConfig& c) {
  std::vector<SharedExtent> things{{c.heads, "attention heads (num_attention_heads)"}};
  for (const LayerKind* kind : kinds_of(c)) {
    if (!kind->shared_by_tensor_ranks) continue;
    for (const SharedExtent& shared : kind->shared_by_tensor_ranks(c)) things.push_back(shared);
  }
  return things;
}

std::optional<MeshMismatch> check_context(const ModelConfig& c, const engine::MeshShape& shape,
                                          std::int64_t sequence, engine::ContextParallel::Exchange exchange) {
  if (sequence % (2 * shape.context) != 0) {
    const std::int64_t unit = 2 * std::int64_t{shape.context};
    return MeshMismatch{
        "seq_length",
        fmt::format(
            "{} tokens of a sequence (seq_length) are not a multiple of {}, two slices for each of {} "
            "context ranks",
            sequence, unit, shape.context),
        fmt::format("set seq_length to {}", std::max(unit, sequence / unit * unit))};
  }
  for (const LayerKind* kind : kinds_of(c)) {
    if (!kind->context_mismatch) continue;
    if (auto mismatch = kind->context_mismatch(c, shape, sequence)) return mismatch;
  }
  if (exchange == engine::ContextParallel::Exchange::kAllToAll) {
    const std::int64_t of_keys = c.any_keeps(Keeps::kLatents) ? c.heads : c.kv_heads;
    for (const std::int64_t heads : {c.heads, of_keys}) {
      if (heads / shape.tensor % shape.context == 0) continue;
      return MeshMismatch{"cp_comm_type",
                          fmt::format("{} heads of each rank cannot be divided evenly among {} context ranks",
                                      heads / shape.tensor, shape.context),
                          "set cp_comm_type to p2p"};
    }
  }
  // Context ranks gather a microbatch to route its tokens. The gathered tokens are not in sequence order, so
  // routing cannot depend on the sequence or position of a token.
  const MoeConfig::Training& t = c.moe.training;
  if (c.moe.experts == 0) return std::nullopt;
  if (t.balance_sequences && t.balance_loss != 0) {
    return MeshMismatch{"moe_router_load_balancing_type",
                        "a balance loss per sequence does not support context parallelism",
                        "set moe_router_load_balancing_type to aux_loss, or context_parallel_size to 1"};
  }
  if (t.capacity_factor > 0 && !t.drop_lightest) {
    return MeshMismatch{"moe_token_drop_policy", "cannot drop tokens by position with context parallelism",
                        "set moe_token_drop_policy to probs, or context_parallel_size to 1"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<MeshMismatch> mesh_mismatch(const ModelConfig& config, const engine::MeshShape& shape,
                                          std::int64_t micro_batch, std::int64_t sequence,
                                          engine::ContextParallel::Exchange exchange) {
  if (shape.context > 1) {
    if (auto mismatch = check_context(config, shape, sequence, exchange)) return mismatch;
  }
  if (shape.tensor > 1 && config.attention.wide_norm) {
    return MeshMismatch{kTensor, "QK norm over all heads does not support tensor parallelism",
                        fmt::format("set {} to 1", kTensor)};
  }
  if (shape.tensor > 1) {
    std::vector<SharedExtent> things = shared_by_tensor_ranks(config);
    const std::int64_t tokens = micro_batch * sequence;
    if (tokens % shape.context == 0)
      things.push_back({tokens / shape.context, "tokens of a microbatch (micro_batch_size * seq_length)"});
    if (auto mismatch = check(kTensor, shape.tensor, things)) return mismatch;
    if (config.vocab < shape.tensor) {
      return MeshMismatch{
          kTensor,
          fmt::format("{} tokens of the vocabulary are fewer than {} ranks", config.vocab, shape.tensor),
          fmt::format("set {} to 1", kTensor)};
    }
  }
  const MoeConfig& moe = config.moe;
  if (moe.experts == 0) {
    const char* const key = shape.expert > 1 ? kExpert : kExpertTensor;
    if (shape.expert * shape.expert_tensor == 1) return std::nullopt;
    return MeshMismatch{key, "the model has no experts", fmt::format("set {} to 1", key)};
  }
  if (shape.expert > 1) {
    if (auto mismatch = check(kExpert, shape.expert, {{moe.experts, "experts (num_experts)"}}))
      return mismatch;
  }
  if (shape.expert_tensor == 1) return std::nullopt;
  if (moe.biases) {
    return MeshMismatch{
        kExpertTensor,
        fmt::format("experts with biases cannot be split over {} ranks each", shape.expert_tensor),
        fmt::format("set {} to 1, and {} to a divisor of {}", kExpertTensor, kExpert, moe.experts)};
  }
  return check(kExpertTensor, shape.expert_tensor, {{moe.ffn, "columns of an expert (moe_ffn_hidden_size)"}});
}

}  // namespace primus
