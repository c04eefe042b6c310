// DeepSeek-V4's attention. One latent serves as key and value of all heads. The output of a head is rotated
// back, so that the output depends only on distances between tokens. A query attends to the tokens in its
// window and to latents. Latents are pooled over blocks of earlier tokens. Some layers pool large blocks and
// use all of them. Others pool small blocks, from which an indexer selects. The indexer is not trained.
#include "engine/operators/compressed_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "engine/operators/moe_operators.h"
#include "engine/operators/selected_attention.h"
#include "engine/parallel/tensor_parallel.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/layer_kind.h"

namespace primus {

// DeepSeek-V4: rotary base of layers with pooled latents, sizes of the indexer, and number of head groups in
// the output projection.
PRIMUS_MODEL_FIELD(POOLED, double, theta, 0, compress_rope_theta, kFixed, "compress_rope_theta");
PRIMUS_MODEL_FIELD(POOLED, std::int64_t, index_heads, 0, index_n_heads, kShape, "index_n_heads");
PRIMUS_MODEL_FIELD(POOLED, std::int64_t, index_dim, 0, index_head_dim, kShape, "index_head_dim");
PRIMUS_MODEL_FIELD(POOLED, std::int64_t, index_top_k, 0, index_topk, kFixed, "index_topk");
PRIMUS_MODEL_FIELD(POOLED, std::int64_t, out_groups, 0, o_groups, kShape, "o_groups");
PRIMUS_MODEL_FIELD(POOLED, std::int64_t, out_rank, 0, o_lora_rank, kShape, "o_lora_rank");

namespace {

using engine::Initializer;
using engine::Normed;
using engine::Parameter;
using engine::Value;
using Pools = LayerSpec::Pools;

// The last rotary_dim columns of each head are rotated. A rotary pair consists of two neighbouring columns.
engine::RopeShape rope_shape(std::int64_t heads, std::int64_t dim, std::int64_t rotary_dim) {
  return {.heads = heads,
          .head_dim = dim,
          .rotary_dim = rotary_dim,
          .rotary_begin = dim - rotary_dim,
          .interleaved = true};
}

// Pools a projection of hidden states and norms the result. The parameters are compressor.{wkv, wgate, ape,
// norm}.
class Compressor {
 public:
  Compressor(const ModelConfig& c, const BlockParameters& p, const std::string& name, std::int64_t dim)
      : ratio_(c.pooled_ratio(p.layer())),
        dim_(dim),
        overlap_(c.pools(p.layer()) == Pools::kSparse),
        epsilon_(c.norm_epsilon) {
    const std::int64_t width = (overlap_ ? 2 : 1) * dim;
    const std::string own = ".attention" + name, published = ".attn" + name;
    project_ = &p.add(own + ".project", {2 * width, c.hidden}, p.matrix(),
                      {{published + ".wkv.weight", 0, width}, {published + ".wgate.weight", width, width}});
    bias_ =
        &p.add(own + ".bias", {ratio_, width}, Initializer::constant(0), {{published + ".ape", 0, ratio_}});
    bias_->decay = false;
    bias_->full_precision = true;
    norm_ = &p.add(own + ".norm", {dim}, Initializer::constant(1), {{published + ".norm.weight", 0, dim}});
  }

  void freeze() const {
    for (Parameter* p : {project_, bias_, norm_}) p->trainable = false;
  }

  // Returns the pooled latents, [batch * blocks, dim]. The rotary_dim columns of a latent are rotated by the
  // position of the block's first token.
  Value forward(const Value& h, const BlockInputs& in, std::int64_t rotary_dim) const {
    const turbo::PoolingShape shape{
        .batch = in.batch, .sequence = in.sequence, .ratio = ratio_, .dim = dim_, .overlap = overlap_};
    Value pooled = norm(latent_pooling(linear(h, *project_), *bias_, shape), *norm_, epsilon_);
    return rope(std::move(pooled), positions_of_blocks(in.positions, in.batch, ratio_),
                in.compressed_rope_table, rope_shape(1, dim_, rotary_dim));
  }

 private:
  std::int64_t ratio_, dim_;
  bool overlap_;
  double epsilon_;
  Parameter *project_, *bias_, *norm_;
};

// Selects the pooled blocks that each query attends to, by scores that the indexer computes with its own
// heads. The parameters indexer.{compressor, wq_b, weights_proj} are not trained.
class BlockSelector {
 public:
  BlockSelector(const ModelConfig& c, const BlockParameters& p)
      : layer_(p.layer()),
        ratio_(c.pooled_ratio(p.layer())),
        rotary_(c.rotary_dim()),
        heads_(c.attention.pooled.index_heads),
        dim_(c.attention.pooled.index_dim),
        top_k_(c.attention.pooled.index_top_k),
        compressor_(c, p, ".indexer.compressor", dim_) {
    compressor_.freeze();
    const std::int64_t q_rank = c.attention.latent.q_rank;
    queries_ = &p.add(".attention.indexer.q", {heads_ * dim_, q_rank}, p.matrix(),
                      {{".attn.indexer.wq_b.weight", 0, heads_ * dim_}});
    weights_ = &p.add(".attention.indexer.weights", {heads_, c.hidden}, p.matrix(),
                      {{".attn.indexer.weights_proj.weight", 0, heads_}});
    queries_->trainable = weights_->trainable = false;
  }

  // Returns the blocks that each query attends to. The scores are not scaled, because a common factor would
  // not change the selection.
  Value choose(const Value& hidden, const Value& q_latent, std::int64_t blocks, const BlockInputs& in) const {
    const Value h = engine::detached(hidden);
    const Value q = rope(linear(engine::detached(q_latent), *queries_), in.positions,
                         in.compressed_rope_table, rope_shape(heads_, dim_, rotary_));
    return select_keys(q, compressor_.forward(h, in, rotary_), linear(h, *weights_),
                       {.batch = in.batch,
                        .seq_q = in.sequence,
                        .seq_k = blocks,
                        .heads = heads_,
                        .head_dim = dim_,
                        .top_k = std::min(top_k_, blocks),
                        .stride = ratio_});
  }

  // Returns this layer's row of the routing trace, [T, number of selected blocks]; returns an absent tensor
  // if there is no trace.
  Tensor traced_rows(const BlockInputs& in, std::int64_t blocks) const {
    if (!in.trace) return {};
    const Shape shape{in.batch * in.sequence, std::min(top_k_, blocks)};
    const Tensor row = in.trace->selected.slice(layer_, layer_ + 1);
    return row.reshaped({row.cols()}).slice(0, shape.elements()).reshaped(shape);
  }

 private:
  std::int64_t layer_, ratio_, rotary_;
  std::int64_t heads_, dim_, top_k_;
  Compressor compressor_;
  Parameter *queries_, *weights_;
};

class CompressedAttention final : public Layer {
 public:
  CompressedAttention(const ModelConfig& c, const BlockParameters& p)
      : group_(p.tensor_group()),
        heads_(p.tensor().size(c.heads)),
        groups_(p.tensor().size(c.attention.pooled.out_groups)),
        dim_(c.head_dim),
        rotary_(c.rotary_dim()),
        window_(c.attention.window),
        ratio_(c.pooled_ratio(p.layer())),
        epsilon_(c.norm_epsilon) {
    const std::int64_t q_rank = c.attention.latent.q_rank, rank = c.attention.pooled.out_rank;
    const std::int64_t of_group = c.heads / c.attention.pooled.out_groups * dim_,
                       ranks = c.attention.pooled.out_groups * rank;
    const auto norm_of = [&](const std::string& name, std::int64_t width, const std::string& published) {
      return &p.add(".attention." + name, {width}, Initializer::constant(1),
                    {{".attn." + published, 0, width}});
    };
    q_down_ = &p.linear(".attention.q_down", {{q_rank, c.hidden}, {}}, p.matrix(),
                        {{".attn.wq_a.weight", 0, q_rank}});
    q_norm_ = norm_of("q_norm", q_rank, "q_norm.weight");
    q_up_ = &p.linear(".attention.q_up", p.rows({c.heads * dim_}, q_rank), p.matrix(),
                      {{".attn.wq_b.weight", 0, c.heads * dim_}});
    kv_ = &p.linear(".attention.kv", {{dim_, c.hidden}, {}}, p.matrix(), {{".attn.wkv.weight", 0, dim_}});
    kv_norm_ = norm_of("kv_norm", dim_, "norm.weight");
    sinks_ = &p.add(".attention.sinks", p.rows({c.heads}), Initializer::constant(0),
                    {{".attn.attn_sink", 0, c.heads}});
    out_down_ = &p.add(".attention.out_down", p.rows({ranks}, of_group), p.matrix(),
                       {{".attn.wo_a.weight", 0, ranks}});
    out_up_ = &p.linear("linear_proj", ".attention.out", p.columns(c.hidden, ranks), p.into_residual(),
                        {{".attn.wo_b.weight", 0, c.hidden}});
    if (ratio_ == 0) return;
    compressor_.emplace(c, p, ".compressor", dim_);
    if (c.pools(p.layer()) == Pools::kSparse) selector_.emplace(c, p);
  }

  Value forward(const Normed& normed, const BlockInputs& in) const override {
    // Every rank computes all latents, but uses these latents only for the rank's own heads. The gradients of
    // the latents are therefore partial sums.
    const Value h = gather_tokens(normed.value(), group_);
    const Value q_latent = norm(linear(h, *q_down_), *q_norm_, epsilon_);
    Value kv = rotated(norm(linear(h, *kv_), *kv_norm_, epsilon_), 1, in);
    const std::int64_t blocks = ratio_ > 0 ? in.sequence / ratio_ : 0;
    Value chosen;
    Tensor given;
    if (blocks > 0) {
      kv = stack_rows(kv, compressor_->forward(h, in, rotary_));
      const Tensor traced = selector_ ? selector_->traced_rows(in, blocks) : Tensor();
      if (selector_ && in.trace && in.trace->use == RoutingTrace::Use::kReplay) {
        given = traced;
      } else if (selector_) {
        chosen = selector_->choose(h, q_latent, blocks, in);
        if (in.trace) record(chosen, traced);
      }
    }
    const Value seen = window_and_pooled(in.positions, chosen,
                                         {.batch = in.batch,
                                          .sequence = in.sequence,
                                          .window = std::min(window_, in.sequence),
                                          .ratio = blocks > 0 ? ratio_ : 0,
                                          .chosen = given,
                                          .selected = {}});
    const turbo::SelectedAttentionShape shape{.tokens = h.shape()[0],
                                              .rows = kv.shape()[0],
                                              .selected = seen.shape()[1],
                                              .heads = heads_,
                                              .key_dim = dim_,
                                              .value_dim = dim_,
                                              .scale = 1.0F / std::sqrt(static_cast<float>(dim_))};
    const Value mixed = selected_attention(queries(q_latent, in), kv, seen, shape, sinks_);
    return scattered_linear(grouped_columns_linear(turned_back(mixed, in), *out_down_, groups_), *out_up_,
                            group_, in.tensor);
  }

 private:
  Value rotated(Value x, std::int64_t heads, const BlockInputs& in) const {
    return rope(std::move(x), in.positions, ratio_ > 0 ? in.compressed_rope_table : in.rope_table,
                rope_shape(heads, dim_, rotary_));
  }

  // The queries of all heads together are much wider than their latent. The forward pass keeps only the
  // latent. The backward pass computes the queries again.
  Value queries(const Value& latent, const BlockInputs& in) const {
    const engine::ReplayScope replay(latent.tape());
    const turbo::HeadNormShape shape{.heads = heads_, .kv_heads = 0, .head_dim = dim_};
    return rotated(head_norm(linear(latent, *q_up_), nullptr, shape, epsilon_), heads_, in);
  }

  // Rotates the attention output back. The values are also the keys, so the values are rotated by position.
  Value turned_back(const Value& mixed, const BlockInputs& in) const {
    const engine::ReplayScope replay(mixed.tape());
    engine::RopeShape shape = rope_shape(heads_, dim_, rotary_);
    shape.inverse = true;
    return rope(mixed, in.positions, ratio_ > 0 ? in.compressed_rope_table : in.rope_table, shape);
  }

  comm::Communicator* group_;    // the ranks over which the heads are divided
  std::int64_t heads_, groups_;  // numbers of heads and of groups on this rank
  std::int64_t dim_, rotary_, window_, ratio_;
  double epsilon_;
  Parameter *q_down_, *q_norm_, *q_up_, *kv_, *kv_norm_, *sinks_, *out_down_, *out_up_;
  std::optional<Compressor> compressor_;
  std::optional<BlockSelector> selector_;
};

// Lists the matrix products of a layer. The first output projection has a separate matrix for each group of
// heads. The indexer is not trained and not counted.
std::vector<LayerProduct> products(const ModelConfig& c, std::int64_t layer) {
  const AttentionConfig& a = c.attention;
  const std::int64_t queries = c.heads * c.head_dim, q_rank = a.latent.q_rank;
  const std::int64_t pooled = c.pools(layer) == Pools::kNothing  ? 0
                              : c.pools(layer) == Pools::kSparse ? 4
                                                                 : 2;
  return {{"q down", q_rank, c.hidden},
          {"q up", queries, q_rank},
          {"key and value", (1 + pooled) * c.kv_heads * c.head_dim, c.hidden},
          {"attention out, down", a.pooled.out_rank, queries},
          {.what = "attention out, up",
           .out = c.hidden,
           .in = a.pooled.out_groups * a.pooled.out_rank,
           .module = "linear_proj"}};
}

double mixing(const ModelConfig& c, std::int64_t layer, double length) {
  const AttentionConfig& a = c.attention;
  double keys = keys_per_query(c, layer, length);
  if (const std::int64_t ratio = c.pooled_ratio(layer); ratio > 0) {
    const double blocks = length / static_cast<double>(ratio),
                 chosen = static_cast<double>(a.pooled.index_top_k);
    keys = keys_up_to(static_cast<double>(a.window), length) +
           (c.pools(layer) == Pools::kSparse ? keys_up_to(chosen, blocks) : blocks / 2);
  }
  return static_cast<double>(2 * c.heads * c.head_dim) * keys;
}

std::vector<SharedExtent> shared(const ModelConfig& c) {
  return {{c.attention.pooled.out_groups, "groups of heads (o_groups)"}};
}

std::optional<MeshMismatch> context_mismatch(const ModelConfig&, const engine::MeshShape&, std::int64_t) {
  return MeshMismatch{"context_parallel_size",
                      "pooled latents (compress_ratios) do not support context parallelism",
                      "set context_parallel_size to 1, and pipeline_model_parallel_size or "
                      "tensor_model_parallel_size higher"};
}

void make_cache(const ModelConfig& c, const CacheRequest&, engine::Phase&, engine::KvCacheLayer&) {
  throw unsupported(
      "models of type " + c.family + " cannot generate text: the cache does not keep pooled latents",
      "use train, eval loss or model verify, which read whole sequences");
}

constexpr auto kKeys = std::to_array<std::string_view>(
    {"q_lora_rank", "qk_pos_emb_head_dim", "compress_rope_theta", "attn_sliding_window", "attn_sink",
     "hybrid_attention_enabled", "o_groups", "o_lora_rank", "swiglu_limit"});

std::string summary(const ModelConfig& c) {
  const AttentionConfig& a = c.attention;
  return fmt::format(
      "{} heads of {}, {} key/value, window {} in {} layers; latents pooled over {} tokens in {} layers, of "
      "which {} are chosen, and over {} in {}; {} residual streams",
      c.heads, c.head_dim, c.kv_heads, a.window, c.local_layers().size(), a.pooled.sparse_ratio,
      c.layers_pooling(Pools::kSparse).size(), a.pooled.index_top_k, a.pooled.heavy_ratio,
      c.layers_pooling(Pools::kHeavy).size(), c.streams());
}

std::unique_ptr<Layer> make(const ModelConfig& config, const BlockParameters& parameters) {
  return std::make_unique<CompressedAttention>(config, parameters);
}

}  // namespace

// Attention over a window and over pooled latents (Keeps::kPooled): attn.{wq_a, q_norm, wq_b, wkv, norm,
// wo_a, wo_b, attn_sink, compressor, indexer}.
extern const LayerKind kCompressedAttention{.branch = LayerKind::Branch::kAttention,
                                            .keeps = Keeps::kPooled,
                                            .products = products,
                                            .mixing = mixing,
                                            .shared_by_tensor_ranks = shared,
                                            .context_mismatch = context_mismatch,
                                            .make_cache = make_cache,
                                            .keys = kKeys,
                                            .asked_for = "compress_ratios",
                                            .summary = summary,
                                            .make = make};

}  // namespace primus
