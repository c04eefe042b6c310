#include "bench/model_shapes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lm/model/blocks/layers.h"
#include "lm/model/layer_kind.h"

namespace primus {

std::vector<ModelProduct> products_of(const ModelConfig& c, std::int64_t tokens) {
  std::vector<ModelProduct> products;
  const auto add = [&](ModelProduct product) {
    const auto same = std::ranges::find_if(products, [&](const ModelProduct& other) {
      return other.what == product.what && other.out == product.out && other.in == product.in &&
             other.experts == product.experts;
    });
    if (same == products.end()) {
      products.push_back(std::move(product));
    } else {
      same->times += product.times;
    }
  };
  // A multi-token prediction module contains a block like the model's last block. The module also applies the
  // head.
  const std::int64_t modules = c.mtp.modules();
  for (std::int64_t layer = 0; layer < c.layers + modules; ++layer) {
    for (const LayerProduct& p : layer_products(c, std::min(layer, c.layers - 1)))
      add({.what = std::string(p.what),
           .rows = tokens * p.per_token,
           .out = p.out,
           .in = p.in,
           .experts = p.experts,
           .top_k = p.per_token});
  }
  if (modules > 0)
    add({.what = "next token's input",
         .rows = tokens,
         .out = c.hidden,
         .in = 2 * c.hidden,
         .times = modules});
  add({.what = "vocabulary", .rows = tokens, .out = c.vocab, .in = c.hidden, .times = 1 + modules});
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
  if (c.any_keeps(Keeps::kLatents)) {
    which.kv_heads = c.heads;
    which.head_dim = latent.nope_dim + latent.rope_dim;
    which.value_dim = latent.value_dim;
  }
  return which;
}

std::vector<LayersAttention> attentions_of(const ModelConfig& c, std::int64_t batch, std::int64_t sequence) {
  const AttentionConfig& a = c.attention;
  const std::int64_t blocks = c.layers + c.mtp.modules();
  std::int64_t local = 0, attending = 0;
  for (std::int64_t layer = 0; layer < blocks; ++layer) {
    if (!c.attends(layer)) continue;
    ++attending;
    local += c.spec(layer).local ? 1 : 0;
  }
  std::vector<LayersAttention> all;
  const auto add = [&](std::int64_t sequences, std::int64_t length, std::int64_t window, std::int64_t times) {
    if (sequences == 0 || length == 0 || times == 0) return;
    all.push_back({.shape = attention_of(c, "", length), .times = times});
    all.back().shape.batch = sequences;
    all.back().shape.window = window;
    all.back().shape.sinks = a.sinks;
  };
  const bool windows = a.window > 0 && a.window<sequence, chunks = a.chunk> 0 && a.chunk < sequence;
  if (!windows && !chunks) local = 0;
  add(batch, sequence, 0, attending - local);
  if (windows) {
    add(batch, sequence, a.window, local);
  } else if (chunks) {
    add(batch * (sequence / a.chunk), a.chunk, 0, local);
    add(batch, sequence % a.chunk, 0, local);
  }
  return all;
}

std::vector<LayersDeltaRule> delta_rules_of(const ModelConfig& c, std::int64_t batch, std::int64_t sequence) {
  const LinearAttentionConfig& l = c.linear;
  std::vector<LayersDeltaRule> all;
  const std::int64_t blocks = c.layers + c.mtp.modules();
  for (const bool by_channel : {false, true}) {
    std::int64_t times = 0;
    for (std::int64_t layer = 0; layer < blocks; ++layer) {
      const std::int64_t like = std::min(layer, c.layers - 1);
      if (c.has_state(like) && (c.spec(like).attention == &kDeltaAttention) == by_channel) ++times;
    }
    if (times == 0) continue;
    all.push_back({.shape = {.batch = batch,
                             .sequence = sequence,
                             .key_heads = l.key_heads,
                             .value_heads = l.value_heads,
                             .key_dim = l.key_dim,
                             .value_dim = l.value_dim,
                             .channel_gates = by_channel,
                             .normalise = true,
                             .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(l.key_dim)))},
                   .times = times});
  }
  return all;
}

}  // namespace primus
