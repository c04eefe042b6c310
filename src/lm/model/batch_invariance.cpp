#include "lm/model/batch_invariance.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "engine/parallel/ordered_sums.h"
#include "lm/model/layer_kind.h"

namespace primus {
namespace {

// Self-attention uses one kernel for training and decoding. The other kinds of attention use other formulas
// for decoding (latent attention multiplies queries by the up-projection of the keys, states are updated
// token by token), or select blocks of tokens.
std::optional<std::string> variance_of(const ModelConfig& config, std::int64_t layer) {
  const LayerSpec& spec = config.spec(layer);
  if (!spec.attention->batch_invariant)
    return fmt::format("the attention of layer {} uses other formulas for cached tokens than in training",
                       layer);
  if (spec.local && config.attention.chunk > 0)
    return fmt::format("the chunks of the attention of layer {} do not begin at a document's first token",
                       layer);
  if (!spec.feed_forward->batch_invariant)
    return fmt::format("the feed-forward of layer {} has no batch-invariant kernels", layer);
  return {};
}

std::optional<std::string> training_variance(const ModelConfig& config) {
  const MoeConfig::Training& moe = config.moe.training;
  if (config.moe.experts > 0 && moe.capacity_factor > 0)
    return "experts with a limited capacity drop tokens of a batch in training, but not in generation";
  if (config.moe.experts > 0 && moe.jitter > 0) return "the router's input has noise only in training";
  if (config.moe.experts > 0 && moe.forced != turbo::RouterRule::Forced::kNo)
    return "the assignment of tokens to experts is forced only in training";
  if (config.lora.training.dropout > 0) return "the adapters have dropout only in training";
  return {};
}

}  // namespace

std::optional<std::string> batch_variance(const ModelConfig& config, bool training) {
  if (config.streams() > 1) return "blocks with several residual streams have no batch-invariant kernels";
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    if (std::optional<std::string> why = variance_of(config, layer)) return why;
  }
  return training ? training_variance(config) : std::nullopt;
}

std::optional<std::string> batch_variance_on_gpus(const ModelConfig& config, DType compute,
                                                  const engine::MeshShape& shape) {
  if (compute != DType::kBF16) return "on GPUs, only products in bf16 have one order of additions";
  if (config.head_dim != 64 && config.head_dim != 128)
    return fmt::format("on GPUs, only heads of 64 or 128 columns are supported, not {}", config.head_dim);
  if (config.attention.score_cap > 0) return "on GPUs, attention with a soft cap is not supported";
  const MoeConfig& moe = config.moe;
  if (moe.experts % 2 != 0)
    return fmt::format("on GPUs, a router of {} experts is not supported", moe.experts);
  constexpr std::int64_t kLine = 8;  // number of elements in 16 bytes
  const std::int64_t ffn = moe.ffn / shape.expert_tensor;
  if (moe.experts > 0 && (ffn % kLine != 0 || moe.width(config.hidden) % kLine != 0))
    return fmt::format("on GPUs, experts of {} x {} elements{} are not supported, only multiples of {}", ffn,
                       moe.width(config.hidden), shape.expert_tensor > 1 ? " on each rank" : "", kLine);
  if (const int ranks = std::max(shape.tensor, shape.expert * shape.expert_tensor);
      ranks > engine::kMaxOrderedRanks)
    return fmt::format("on GPUs, one kernel adds the results of at most {} tensor or expert ranks, not {}",
                       engine::kMaxOrderedRanks, ranks);
  return {};
}

void check_batch_invariant(const ModelConfig& config, const std::string& device, DType compute) {
  std::optional<std::string> why = batch_variance(config, false);
  if (!why && device != "cpu") why = batch_variance_on_gpus(config, compute);
  if (why)
    throw unsupported("batch_invariant does not support this model: " + *why, "remove batch_invariant");
}

}  // namespace primus
