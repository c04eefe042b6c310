// The training operators, as model code calls them. Each call checks shapes, runs immediately, and is
// recorded on its tape. The rows of a tensor are the T tokens of a microbatch, sequence after sequence, where
// T is the batch size times the sequence length.
#pragma once

#include <utility>

#include "engine/runtime/tape.h"
#include "turbo/attention/attention.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/latent_attention/latent_attention.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {

// The residual stream of a transformer. It equals `sum` plus `pending`, which the kernel of the next norm
// adds to the sum.
struct Residual {
  Value sum;
  Value pending;           // empty: no addend
  Value checkpoints = {};  // [T, n * hidden]: the streams before n earlier layers, for attention residuals
};

// Looks up each token's row of the table: [T] int32 -> [T, hidden].
Value embedding(const Value& tokens, Parameter& table);

// Returns RMSNorm of x: [T, hidden] -> [T, hidden].
Value norm(const Value& x, Parameter& weight, double epsilon);
// Adds the pending addend to the residual stream, and returns RMSNorm of the sum.
Value norm(Residual& x, Parameter& weight, double epsilon);
// Makes y the pending addend of x.
void add(Residual& x, Value y);
// Adds the pending addend now; afterwards x.sum is the complete stream.
void flush(Residual& x);

// Operators called while this object lives belong to block `layer`. Recompute policies drop and recompute
// whole blocks. The first block of a dropped group of blocks adds the pending addend, so the tape keeps one
// tensor per group, not the sum and the addend.
class BlockScope {
 public:
  BlockScope(Residual& x, std::int64_t layer);
  ~BlockScope() { tape_.leave_block(); }
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  Tape& tape_;
};

// Operators called while this object lives are replayed in the backward pass under any recompute policy, so
// their outputs are not kept. Use it for large outputs that are computed from small inputs.
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

// Returns x · Wᵀ, including the weight's low-rank adapter: [T, in] -> [T, out].
Value linear(const Value& x, Parameter& weight);

// Returns x · Wᵀ without the weight's adapter.
Value product(const Value& x, Parameter& weight);

// scale() returns factor · x, and sum() returns a + b. Pass x or a by std::move to run in place.
Value scale(Value x, float factor);
Value sum(Value a, const Value& b);

// Returns x + bias: [T, n]. Pass x by std::move to run in place.
Value add_bias(Value x, Parameter& bias);

// Splits x into columns [0, at) and columns [at, n): [T, n] -> [T, at], [T, n - at].
std::pair<Value, Value> split(const Value& x, std::int64_t at);

// Concatenates columns, the reverse of split(): [T, m], [T, n] -> [T, m + n].
Value concat(const Value& a, const Value& b);

// Applies RMSNorm to each query head and each key head of a fused projection, [T, width]. `weight`: [2 *
// head_dim], the queries' weight and then the keys', or null.
Value head_norm(const Value& x, Parameter* weight, const turbo::HeadNormShape& shape, double epsilon);

// Rotates the first `heads` heads of each row (queries and then keys of a fused projection): rotary_dim
// columns of each head, starting at rotary_begin. Pass x by std::move to run in place.
struct RopeShape {
  std::int64_t heads, head_dim, rotary_dim;
  std::int64_t rotary_begin = 0;
  bool interleaved = false;  // rotates pairs of neighbouring columns (turbo/rope/rope.h)
  bool inverse = false;      // rotates by the negative angle
};
Value rope(Value x, const Value& positions, const Tensor& table, const RopeShape& shape);

// Scales the first `cols` columns of each row by a factor that depends on the row's position
// (turbo/position_scale/position_scale.h). Pass x by std::move to run in place.
struct PositionScaling {
  std::int64_t cols;
  float floor_scale, attn_scale;
  int first = 1;  // see turbo::PositionScale::first
};
Value scale_by_position(Value x, const Value& positions, const PositionScaling& scaling);

// Keys and values of one layer for generation, in pages that sequences share
// (turbo/attention/paged_attention.h): [pages, page_size, kv_heads * dim] each. Latent attention has only k:
// [pages, page_size, rank + rope_dim]. A short convolution has only `ring`, the last inputs of each sequence,
// [sequences, ring, channels] fp32 (turbo/causal_conv/causal_conv.h). A delta rule has the state and the
// recent inputs of each sequence (CachedDeltaRule in turbo/delta_rule/delta_rule.h).
struct KvCacheLayer {
  Tensor k, v, ring;
  Tensor state, recent, committed;
  Tensor index;  // an indexer's keys (turbo/indexer), [pages, page_size, head_dim]
};
// For inference: appends the pass's new tokens to the pages; each new token attends to its entire sequence so
// far.
struct CachedSequences {
  const KvCacheLayer* layer = nullptr;
  const turbo::PagedSequences* sequences = nullptr;  // which rows belong to which sequence
};
class ContextParallel;  // engine/parallel/context_attention.h
class TensorParallel;   // engine/parallel/tensor_parallel.h
class ExpertParallel;   // engine/parallel/expert_parallel.h
struct AttentionOptions {
  CachedSequences cache = {};
  // Training: the ranks over which the sequences are divided. Null: this rank holds complete sequences.
  ContextParallel* context = nullptr;
  // [T] int32: each token's first visible key, for sequences packed from several documents
  // (turbo/attention/attention.h). Unsupported with a cache.
  Value first_key = {};
  Parameter* sinks = nullptr;  // [heads]
};
// Computes causal grouped-query attention over a fused projection [T, heads*head_dim + kv_heads*(head_dim +
// value_dim)] -> [T, heads*value_dim]. Callers need not set `shape.seq_k` and `shape.capacity_k`.
Value attention(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options = {});

// Multi-head latent attention (turbo/latent_attention/latent_attention.h), for training: builds the input of
// attention() from queries [T, heads*key_dim], up-projected latents [T, heads*up_dim], and the key columns
// that all heads share [T, rope_dim].
Value latent_qkv(const Value& q, const Value& kv, const Value& rope_key, const turbo::LatentShape& shape);
// For inference: appends latent [T, rank] and rope_key to the pages, and attends to all tokens up to now
// without the up-projection: [T, heads*value_dim]. `up`: [heads*up_dim, rank].
Value cached_latent_attention(const Value& q, const Value& latent, const Value& rope_key, Parameter& up,
                              const turbo::LatentShape& shape, float scale, const CachedSequences& cache);
// How to compute latent and rope_key from `joined` [T, rank + rope_dim]: norm() of the first columns, and
// rope() of the others.
struct LatentRows {
  Parameter* norm = nullptr;
  float epsilon = 0;
  Tensor table = {};
  bool interleaved = false;
};
// Returns whether the device has a kernel that norms, rotates and appends these rows.
bool takes_latent_rows(const Value& joined, const LatentRows& rows, const CachedSequences& cache);
// Like cached_latent_attention() above, for such rows. If `positions` is empty, nothing is rotated.
Value cached_latent_attention(const Value& q, const Value& joined, const LatentRows& rows,
                              const Value& positions, Parameter& up, const turbo::LatentShape& shape,
                              float scale, const CachedSequences& cache);

// Returns silu(gate) * up, or gelu(gate) * up (turbo/swiglu): [T, 2*ffn] -> [T, ffn].
Value swiglu(const Value& gate_up, turbo::GluGate gate = turbo::GluGate::kSilu);

// Returns cap · tanh(x / cap) of each element (turbo/soft_cap), which caps router scores and LM logits. Pass
// x by std::move to run in place. Recompute policies treat soft_cap() as routing. lm_head_loss() has its own
// cap.
Value soft_cap(Value x, double cap);

// Returns the weighted cross-entropy of each token (turbo/cross_entropy/cross_entropy.h), from the input of
// the LM head: [T, hidden] -> [T] fp32. Works on slices of tokens, so the complete logits never exist.
//
// In training, the entire classifier runs in the backward pass. There the loss, the hidden gradient and the
// weight gradient (if not deferred) share one product per slice. The returned Value holds the loss only after
// Tape::backward().
Value lm_head_loss(const Value& hidden, Parameter& weight, const Value& labels, const Value& weights);
// Returns the logits from which lm_head_loss() computes losses: [T, vocab] fp32. Has no gradient.
Value head_logits(const Value& hidden, Parameter& weight);
// Returns the number of tokens per slice of lm_head_loss(), for `vocab` columns. On a CPU, the fp32 logits of
// a slice take at most about 256 MiB. On a GPU the limit is the smaller of 2 GiB and 1/40 of the GPU's
// memory. On a GPU with bf16 gradients, only about a quarter of these logits exists at a time.
std::int64_t lm_head_slice_tokens(const Device& device, std::int64_t tokens, std::int64_t vocab);

}  // namespace primus::engine
