#include "bench/model_shapes.h"

namespace primus {

std::vector<ModelProduct> products_of(const ModelConfig& c, std::int64_t tokens) {
  std::vector<ModelProduct> products;
  const auto add = [&](const char* what, std::int64_t out, std::int64_t in) {
    products.push_back({.what = what, .rows = tokens, .out = out, .in = in});
  };
  const LatentConfig& latent = c.attention.latent;
  if (latent.kv_rank > 0) {
    const std::int64_t queries = c.heads * (latent.nope_dim + latent.rope_dim);
    if (latent.q_rank > 0) {
      add("q down", latent.q_rank, c.hidden);
      add("q up", queries, latent.q_rank);
    } else {
      add("q", queries, c.hidden);
    }
    add("kv down", latent.kv_rank + latent.rope_dim, c.hidden);
    add("kv up", c.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank);
    add("attention out", c.hidden, c.heads * latent.value_dim);
  } else {
    add("qkv", (c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden);
    add("attention out", c.hidden, c.heads * c.head_dim);
  }
  const bool routed = c.moe.experts > 0;
  if (!routed || !c.moe.dense_layers.empty()) {
    add("gate and up", 2 * c.ffn, c.hidden);
    add("down", c.hidden, c.ffn);
  }
  if (routed) {
    const std::int64_t top_k = c.moe.router.top_k, rows = tokens * top_k;
    products.push_back({.what = "experts' gate and up",
                        .rows = rows,
                        .out = 2 * c.moe.ffn,
                        .in = c.hidden,
                        .experts = c.moe.experts,
                        .top_k = top_k});
    products.push_back({.what = "experts' down",
                        .rows = rows,
                        .out = c.hidden,
                        .in = c.moe.ffn,
                        .experts = c.moe.experts,
                        .top_k = top_k});
  }
  if (routed && c.moe.shared_ffn > 0) {
    add("shared expert's gate and up", 2 * c.moe.shared_ffn, c.hidden);
    add("shared expert's down", c.hidden, c.moe.shared_ffn);
  }
  add("vocabulary", c.vocab, c.hidden);
  return products;
}

AttentionCase attention_of(const ModelConfig& c, const std::string& name, std::int64_t sequence) {
  AttentionCase which{.model = name,
                      .sequence = sequence,
                      .heads = c.heads,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.head_dim,
                      .value_dim = c.head_dim};
  const LatentConfig& latent = c.attention.latent;
  if (latent.kv_rank > 0) {
    which.kv_heads = c.heads;
    which.head_dim = latent.nope_dim + latent.rope_dim;
    which.value_dim = latent.value_dim;
  }
  return which;
}

}  // namespace primus
