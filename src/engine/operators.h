// The training operators, as model code calls them. Each runs now and is recorded on its tape; shapes are
// checked. Tokens of all sequences of a microbatch lie one after the other: T = batch * sequence rows.
#pragma once

#include <utility>

#include "engine/tape.h"
#include "turbo/attention/attention.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/latent_attention/latent_attention.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {

// The residual stream of a transformer: a sum and an addend that the next norm folds in on its way.
struct Residual {
  Value sum;
  Value pending;           // empty: nothing to add
  Value checkpoints = {};  // [T, n * hidden]: what the sum was at n earlier places, for attention residuals
};

// Rows of the table for each token: [T] int32 -> [T, hidden].
Value embedding(const Value& tokens, Parameter& table);

// RMSNorm of x: [T, hidden] -> [T, hidden].
Value norm(const Value& x, Parameter& weight, double epsilon);
// The same of a residual stream, which takes up its pending addend in the same pass.
Value norm(Residual& x, Parameter& weight, double epsilon);
// x + y, lazily.
void add(Residual& x, Value y);
// Takes up the pending addend now; afterwards x.sum is the whole stream.
void flush(Residual& x);

// Operators called while this lives belong to block `layer`: the grain of recomputation. Where a group of
// dropped blocks begins, the residual stream is taken up first, so that one tensor per group is kept.
class BlockScope {
 public:
  BlockScope(Residual& x, std::int64_t layer);
  ~BlockScope() { tape_.leave_block(); }
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  Tape& tape_;
};

// Operators called while this lives are replayed in the backward pass instead of keeping their outputs, under
// any recompute policy: for what is large and made from something small.
class ReplayScope {
 public:
  explicit ReplayScope(Tape& tape) : tape_(tape), before_(tape.set_replay(true)) {}
  ~ReplayScope() { tape_.set_replay(before_); }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  Tape& tape_;
  bool before_;
};

// x · Wᵀ, and what the weight has of low rank: [T, in] -> [T, out].
Value linear(const Value& x, Parameter& weight);

// x · Wᵀ alone.
Value product(const Value& x, Parameter& weight);

// factor · x, and a + b. Pass x or a by std::move to let it happen in place.
Value scale(Value x, float factor);
Value sum(Value a, const Value& b);

// x + bias: [T, n]. Pass x by std::move to let it happen in place.
Value add_bias(Value x, Parameter& bias);

// Columns [0, at) and [at, n) of x: [T, n] -> [T, at], [T, n - at].
std::pair<Value, Value> split(const Value& x, std::int64_t at);

// The reverse: rows of a, each followed by that of b: [T, m], [T, n] -> [T, m + n].
Value concat(const Value& a, const Value& b);

// RMSNorm of each query head and each key head of a fused projection, [T, width]; `weight`: [2 * head_dim],
// that of the queries, then that of the keys, or null.
Value head_norm(const Value& x, Parameter* weight, const turbo::HeadNormShape& shape, double epsilon);

// Rotates the first `heads` heads of each row (queries, then keys, of a fused projection): of each head
// rotary_dim columns from rotary_begin on. Pass x by std::move to let it happen in place.
struct RopeShape {
  std::int64_t heads, head_dim, rotary_dim;
  std::int64_t rotary_begin = 0;
  bool interleaved = false;  // neighbouring columns are a pair (turbo/rope/rope.h)
  bool inverse = false;      // by the negative angle
};
Value rope(Value x, const Value& positions, const Tensor& table, const RopeShape& shape);

// Scales the first `cols` columns of each row by its position (turbo/position_scale/position_scale.h). Pass x
// by std::move to let it happen in place.
struct PositionScaling {
  std::int64_t cols;
  float floor_scale, attn_scale;
  int first = 1;  // as turbo::PositionScale::first
};
Value scale_by_position(Value x, const Value& positions, const PositionScaling& scaling);

// Keys and values of one layer for generation, in pages that sequences share
// (turbo/attention/paged_attention.h): [pages, page_size, kv_heads * dim] each. Latents have k only: [pages,
// page_size, rank + rope_dim]. A short convolution has the last inputs of each sequence instead, [sequences,
// ring, channels] fp32 (turbo/causal_conv/causal_conv.h), and a delta rule the state of each sequence and
// what goes with it (CachedDeltaRule in turbo/delta_rule/delta_rule.h).
struct KvCacheLayer {
  Tensor k, v, ring;
  Tensor state, recent, committed;
  Tensor index;  // keys of an indexer (turbo/indexer), [pages, page_size, head_dim]
};
// Inference: the pass's new tokens are appended to the pages, and each attends to all of its sequence.
struct CachedSequences {
  const KvCacheLayer* layer = nullptr;
  const turbo::PagedSequences* sequences = nullptr;  // which rows belong to which sequence
};
class ContextParallel;  // engine/context_attention.h
class TensorParallel;   // engine/tensor_parallel.h
class ExpertParallel;   // engine/expert_parallel.h
struct AttentionOptions {
  CachedSequences cache = {};
  // Training: the ranks that hold the rest of the sequences. Null: all of them are here.
  ContextParallel* context = nullptr;
  // [T] int32: sequences packed from several documents (turbo/attention/attention.h). Not with a cache.
  Value first_key = {};
  Parameter* sinks = nullptr;  // [heads]
};
// Causal grouped-query attention over a fused projection [T, heads*head_dim + kv_heads*(head_dim +
// value_dim)] -> [T, heads*value_dim]. `shape.seq_k` and `shape.capacity_k` are set here.
Value attention(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options = {});

// Multi-head latent attention (turbo/latent_attention/latent_attention.h). For training: the fused rows that
// attention() reads, from queries [T, heads*key_dim], what the up-projection made of the latents [T,
// heads*up_dim], and the part of the keys that all heads share [T, rope_dim].
Value latent_qkv(const Value& q, const Value& kv, const Value& rope_key, const turbo::LatentShape& shape);
// Inference: appends latent [T, rank] and rope_key to the pages, and attends to everything so far without
// projecting it up: [T, heads*value_dim]. `up`: [heads*up_dim, rank].
Value cached_latent_attention(const Value& q, const Value& latent, const Value& rope_key, Parameter& up,
                              const turbo::LatentShape& shape, float scale, const CachedSequences& cache);

// silu(gate) * up, or gelu(gate) * up (turbo/swiglu): [T, 2*ffn] -> [T, ffn].
Value swiglu(const Value& gate_up, turbo::GluGate gate = turbo::GluGate::kSilu);

// cap · tanh(x / cap), of each element (turbo/soft_cap): what scores are capped by. Pass x by std::move to
// let it happen in place. In training it is recorded as a part of routing; lm_head_loss() caps its logits
// itself.
Value soft_cap(Value x, double cap);

// The LM head and the weighted cross-entropy, in slices of tokens so that the logits never exist as a whole:
// [T, hidden] -> [T] fp32, the weighted loss per token (turbo/cross_entropy/cross_entropy.h).
//
// In training the whole classifier runs in the backward pass, where loss, hidden gradient and (unless
// deferred) weight gradient share one product per slice; the returned Value holds the loss only after
// Tape::backward().
Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights);
// Tokens per slice of the above, for `vocab` columns: fp32 logits of a slice are at most about 256 MiB on a
// host, and 2 GiB and a fortieth of its memory on a GPU, where a quarter of them exists at a time in bf16.
std::int64_t lm_head_slice_tokens(const Device& device, std::int64_t tokens, std::int64_t vocab);

}  // namespace primus::engine
