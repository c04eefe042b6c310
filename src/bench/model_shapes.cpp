#include "bench/model_shapes.h"

#include <algorithm>

namespace primus {

std::vector<ModelProduct> products_of(const ModelConfig& c, std::int64_t tokens) {
  // A module of multi-token prediction has a block like the last one, and the head again.
  const std::int64_t modules = c.mtp.modules(), blocks = c.layers + modules;
  std::int64_t routed_blocks = 0;
  for (std::int64_t layer = 0; layer < blocks; ++layer)
    routed_blocks += c.moe.routed(std::min(layer, c.layers - 1)) ? 1 : 0;
  std::vector<ModelProduct> products;
  const auto add = [&](const char* what, std::int64_t out, std::int64_t in, std::int64_t times) {
    products.push_back({.what = what, .rows = tokens, .out = out, .in = in, .times = times});
  };
  const LatentConfig& latent = c.attention.latent;
  if (latent.kv_rank > 0) {
    const std::int64_t queries = c.heads * (latent.nope_dim + latent.rope_dim);
    if (latent.q_rank > 0) {
      add("q down", latent.q_rank, c.hidden, blocks);
      add("q up", queries, latent.q_rank, blocks);
    } else {
      add("q", queries, c.hidden, blocks);
    }
    add("kv down", latent.kv_rank + latent.rope_dim, c.hidden, blocks);
    if (const IndexerConfig& indexer = c.attention.indexer; indexer.heads > 0) {
      add("indexer q", indexer.heads * indexer.head_dim, latent.q_rank, blocks);
      add("indexer k", indexer.head_dim, c.hidden, blocks);
      add("indexer weights", indexer.heads, c.hidden, blocks);
    }
    add("kv up", c.heads * (latent.nope_dim + latent.value_dim), latent.kv_rank, blocks);
    add("attention out", c.hidden, c.heads * latent.value_dim, blocks);
  } else if (const AttentionConfig& a = c.attention; a.compressed()) {
    add("q down", latent.q_rank, c.hidden, blocks);
    add("q up", c.heads * c.head_dim, latent.q_rank, blocks);
    add("key and value", c.head_dim, c.hidden, blocks);
    add("attention out, up", c.hidden, a.out_groups * a.out_rank, blocks);
  } else {
    const auto convolutions = static_cast<std::int64_t>(c.conv_layers.size()),
               linear = static_cast<std::int64_t>(c.linear.layers.size());
    const std::int64_t of_queries = c.attention.output_gate ? 2 * c.heads : c.heads;
    add("qkv", (of_queries + 2 * c.kv_heads) * c.head_dim, c.hidden, blocks - convolutions - linear);
    add("attention out", c.hidden, c.heads * c.head_dim, blocks - convolutions - linear);
    if (linear > 0) {
      const LinearAttentionConfig& l = c.linear;
      add("linear attention in", 2 * (l.keys() + l.values() + l.value_heads), c.hidden, linear);
      add("linear attention out", c.hidden, l.values(), linear);
    }
    if (convolutions > 0) {
      add("convolution in", 3 * c.hidden, c.hidden, convolutions);
      add("convolution out", c.hidden, c.hidden, convolutions);
    }
  }
  const bool routed = c.moe.experts > 0;
  if (!routed || !c.moe.dense_layers.empty()) {
    add("gate and up", 2 * c.ffn, c.hidden, blocks - routed_blocks);
    add("down", c.hidden, c.ffn, blocks - routed_blocks);
  }
  if (routed) {
    const std::int64_t top_k = c.moe.router.top_k, rows = tokens * top_k;
    products.push_back({.what = "experts' gate and up",
                        .rows = rows,
                        .out = 2 * c.moe.ffn,
                        .in = c.hidden,
                        .experts = c.moe.experts,
                        .top_k = top_k,
                        .times = routed_blocks});
    products.push_back({.what = "experts' down",
                        .rows = rows,
                        .out = c.hidden,
                        .in = c.moe.ffn,
                        .experts = c.moe.experts,
                        .top_k = top_k,
                        .times = routed_blocks});
  }
  if (routed && c.moe.shared_ffn > 0) {
    add("shared expert's gate and up", 2 * c.moe.shared_ffn, c.hidden, routed_blocks);
    add("shared expert's down", c.hidden, c.moe.shared_ffn, routed_blocks);
  }
  if (modules > 0) add("next token's input", c.hidden, 2 * c.hidden, modules);
  add("vocabulary", c.vocab, c.hidden, 1 + modules);
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

std::vector<LayersAttention> attentions_of(const ModelConfig& c, std::int64_t batch, std::int64_t sequence) {
  const AttentionConfig& a = c.attention;
  const std::int64_t blocks = c.layers + c.mtp.modules();
  std::int64_t local = 0;
  for (std::int64_t layer = 0; layer < blocks; ++layer)
    local += a.local(std::min(layer, c.layers - 1)) ? 1 : 0;
  std::vector<LayersAttention> all;
  const auto add = [&](std::int64_t sequences, std::int64_t length, std::int64_t window, std::int64_t times) {
    if (sequences == 0 || length == 0 || times == 0) return;
    all.push_back({.shape = attention_of(c, "", length), .times = times});
    all.back().shape.batch = sequences;
    all.back().shape.window = window;
  };
  const bool windows = a.window > 0 && a.window<sequence, chunks = a.chunk> 0 && a.chunk < sequence;
  if (!windows && !chunks) local = 0;
  add(batch, sequence, 0,
      blocks - local - static_cast<std::int64_t>(c.conv_layers.size() + c.linear.layers.size()));
  if (windows) {
    add(batch, sequence, a.window, local);
  } else if (chunks) {
    add(batch * (sequence / a.chunk), a.chunk, 0, local);
    add(batch, sequence % a.chunk, 0, local);
  }
  return all;
}

}  // namespace primus
