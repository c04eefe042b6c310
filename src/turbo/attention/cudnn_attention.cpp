#include "turbo/attention/cudnn_attention.h"

#include <algorithm>
#include <limits>

namespace primus::turbo {
namespace {

// cuDNN reads and writes rows in units of 16 bytes.
constexpr std::int64_t kElementsAligned = 8;
constexpr std::int64_t kMaxHeadDim = 256;
// The backward pass of cuDNN up to this version computes a partial last tile as if the tile had 128 keys.
constexpr std::size_t kTailsMended = 91501;

bool aligned(const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0; }

// Maps the call to positions that cuDNN supports: queries and keys begin at the same position. A call in
// which every query sees every key becomes unmasked. Calls with first_key are unchanged, because the first
// key of a document is an absolute position.
AttentionShape canonical(AttentionShape s, bool documents) {
  if (documents) return s;
  const std::int64_t last_query = s.q_first + s.seq_q - 1, last_key = s.k_first + s.seq_k - 1;
  const bool all_past = (s.window == 0 || last_query - s.window < s.k_first) &&
                        (s.chunk == 0 || last_query / s.chunk * s.chunk <= s.k_first);
  if (s.causal && last_key <= s.q_first && all_past) {
    s.causal = false;
    s.window = s.chunk = 0;
  }
  const bool chunks_begin_alike = s.chunk == 0 || s.q_first % s.chunk == 0;
  if (!s.causal || (s.q_first == s.k_first && chunks_begin_alike)) s.q_first = s.k_first = 0;
  return s;
}

// Fills in the members that the forward and the backward pass have in common. Returns why cuDNN does not
// support the call, or null.
const char* describe(const AttentionShape& shape, DType dtype, bool documents, std::int64_t q_row,
                     std::int64_t k_row, std::int64_t v_row, CudnnProblem& p) {
  const AttentionShape s = canonical(shape, documents);
  if (dtype != DType::kBF16 && dtype != DType::kF16) return "operands in fp32";
  if (dtype == DType::kF16 && documents) return "documents in fp16";
  if (s.score_cap > 0) return "a soft cap on scores";
  p.type = dtype;
  if (s.causal && (s.seq_q != s.seq_k || s.q_first != s.k_first)) {
    return "queries and keys of different positions";
  }
  if (s.seq_q < 2 || s.seq_k < 2 || s.batch < 1) return "sequences of less than two tokens";
  if (s.head_dim % kElementsAligned != 0 || s.value_dim % kElementsAligned != 0 || s.head_dim > kMaxHeadDim ||
      s.value_dim > kMaxHeadDim) {
    return "head dimensions above 256 or not a multiple of 8";
  }
  if (q_row % kElementsAligned != 0 || k_row % kElementsAligned != 0 || v_row % kElementsAligned != 0) {
    return "rows that are not a multiple of 16 bytes";
  }
  if (!s.causal && (s.window > 0 || s.chunk > 0)) return "a left window without a causal mask";
  if ((documents || s.chunk > 0) && s.q_first != 0) return "part of a sequence with documents or chunks";
  if (documents && s.capacity_k != s.seq_k) return "documents in keys with gaps";
  p.causal = s.causal;
  p.batch = s.batch;
  p.seq_q = s.seq_q;
  p.seq_k = s.seq_k;
  p.heads = s.heads;
  p.kv_heads = s.kv_heads;
  p.head_dim = s.head_dim;
  p.value_dim = s.value_dim;
  p.scale = s.scale;
  p.window = s.window < s.seq_q ? s.window : 0;
  p.q_row = q_row, p.k_row = k_row, p.v_row = v_row, p.out_row = s.heads * s.value_dim;
  p.tokens = s.batch * s.seq_q;
  std::int64_t capacity = s.capacity_k;
  if (documents) {
    // The device divides sequences at the boundaries of documents and chunks.
    p.documents = true;
    const std::int64_t chunks = s.chunk > 0 ? (s.seq_q + s.chunk - 1) / s.chunk : 1;
    p.batch = cudnn_documents(s.batch * chunks, p.tokens);
    if (s.chunk > 0) p.seq_q = p.seq_k = capacity = std::min(s.chunk, s.seq_q);
    const std::int64_t widest = std::max({q_row, k_row, v_row, p.out_row});
    if (p.tokens * widest > std::numeric_limits<std::int32_t>::max())
      return "documents with too many elements";
  } else if (s.chunk > 0 && s.chunk < s.seq_q) {
    // For cuDNN, every chunk is a separate sequence, so all chunks must be equally long.
    if (s.seq_q % s.chunk != 0 || s.capacity_k != s.seq_k)
      return "a chunk size that does not divide the sequence length";
    p.batch = s.batch * (s.seq_q / s.chunk);
    p.seq_q = p.seq_k = capacity = s.chunk;
  }
  if (p.window >= p.seq_q) p.window = 0;
  p.q_batch = p.seq_q * q_row;
  p.k_batch = capacity * k_row;
  p.v_batch = capacity * v_row;
  p.out_batch = p.seq_q * p.out_row;
  return nullptr;
}

// Lays out the parts of a workspace consecutively.
class Layout {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = end_;
    end_ +=
        (bytes + CudnnWorkspace::kAlignment - 1) / CudnnWorkspace::kAlignment * CudnnWorkspace::kAlignment;
    return at;
  }
  std::int64_t end() const { return end_; }

 private:
  std::int64_t end_ = 0;
};

CudnnWorkspace lay_out(const CudnnProblem& p, std::int64_t plan_bytes) {
  constexpr std::int64_t kF32 = 4, kBF16 = 2;
  CudnnWorkspace w;
  Layout layout;
  if (p.documents) w.documents = layout.take(cudnn_documents_bytes(p.batch));
  if (p.sinks) w.sinks = layout.take(p.heads * kF32);
  if (p.backward) {
    const std::int64_t rows = p.documents ? p.tokens : p.batch * p.seq_q;
    w.delta = layout.take(p.batch * p.seq_q * p.heads * kF32);
    if (!p.deterministic)
      w.d_q_sum = layout.take(p.documents ? rows * p.d_q_row * kF32 : rows * p.heads * p.head_dim * kF32);
    const std::int64_t key_rows = p.documents ? p.tokens : p.batch * p.seq_k;
    if (p.gradients_apart) w.d_q = layout.take(rows * p.d_q_row * kBF16);
    if (p.documents || p.gradients_apart) {
      w.d_k = layout.take(key_rows * p.d_k_row * kBF16);
      w.d_v = layout.take(key_rows * p.d_v_row * kBF16);
    }
    if (p.documents) {
      if (p.heads != p.kv_heads) {
        // Reserves 4 bytes per element, because the library may add in fp32.
        w.d_k_wide = layout.take(rows * p.heads * p.head_dim * kF32);
        w.d_v_wide = layout.take(rows * p.heads * p.value_dim * kF32);
      }
    }
  }
  w.plan = layout.take(plan_bytes);
  w.total = layout.end();
  return w;
}

// Divides a deterministic backward pass into slices. The attention weights of a slice fit into the workspace.
// Returns false if even one group of heads does not fit.
bool cut(CudnnProblem& p, CudnnCall& call, const CudnnAttention::Options& options) {
  constexpr std::int64_t kTile = 128, kBF16 = 2;
  const auto padded = [](std::int64_t n) { return static_cast<double>((n + kTile - 1) / kTile * kTile); };
  const double of_group =
      static_cast<double>(p.heads / p.kv_heads) * padded(p.seq_q) * padded(p.seq_k) * kBF16;
  if (of_group > static_cast<double>(options.max_workspace)) return false;
  const auto fits = [&](std::int64_t groups) {
    return of_group * static_cast<double>(groups) <= static_cast<double>(options.good_workspace);
  };
  std::int64_t groups = p.kv_heads, sequences = p.batch;
  while (sequences > 1 && !fits(groups * sequences)) {
    do --sequences;
    while (p.batch % sequences != 0);
  }
  while (groups > 1 && !fits(groups * sequences)) {
    do --groups;
    while (p.kv_heads % groups != 0);
  }
  call.batch_slices = p.batch / sequences;
  call.head_slices = p.kv_heads / groups;
  p.heads = p.heads / p.kv_heads * groups;
  p.kv_heads = groups;
  p.batch = sequences;
  return true;
}

// Returns whether our own backward kernel for warpgroups supports the call and is faster than the library,
// because the window is narrow. On an H200, the library computes the full triangle at 400 TFLOP/s. Our kernel
// computes only the band of the window, at 270 to 350 TFLOP/s.
bool narrow_window(const CudnnProblem& p) {
  return p.window > 0 && 2 * p.window <= p.seq_q && p.head_dim == p.value_dim &&
         (p.head_dim == 64 || p.head_dim == 128);
}

}  // namespace

std::int64_t cudnn_documents(std::int64_t sequences, std::int64_t tokens) {
  // Room for a document costs some time, even if a call does not use the room. Therefore a plan has room for
  // one document per kTokensEach tokens, and for at most kMax documents in addition to the sequences.
  constexpr std::int64_t kTokensEach = 64, kMax = 64;
  return sequences + std::min(kMax, tokens / kTokensEach);
}

std::int64_t cudnn_documents_bytes(std::int64_t documents) {
  return static_cast<std::int64_t>(sizeof(std::int32_t)) *
         (1 + documents + kCudnnOffsetArrays * (documents + 1));
}

const CudnnCall& CudnnAttention::find(const AttentionForward& call) {
  CudnnProblem p;
  p.deterministic = true;  // costs nothing in the forward pass
  const char* const reason = describe(call.shape, call.q.dtype, !call.first_key.absent(), call.q_stride,
                                      call.k_stride, call.v_stride, p);
  const std::lock_guard lock(mutex_);
  if (reason) return refuse(reason);
  if (!aligned(call.q) || !aligned(call.k) || !aligned(call.v) || !aligned(call.out)) {
    return refuse("rows that do not begin at a multiple of 16 bytes");
  }
  p.sinks = !call.sinks.absent();
  if (p.sinks && p.type == DType::kF16) return refuse("sinks in fp16");
  p.statistics = !call.lse.absent();
  return build(p);
}

const CudnnCall& CudnnAttention::find(const AttentionBackward& call, bool own_is_fast) {
  CudnnProblem p;
  p.backward = p.statistics = true;
  p.deterministic = options_.deterministic;
  const char* reason = describe(call.shape, call.q.dtype, !call.first_key.absent(), call.q_stride,
                                call.k_stride, call.v_stride, p);
  // cuDNN cannot add to gradients: it only assigns them, in the operands' type.
  p.gradients_apart = call.d_q.dtype != call.q.dtype || call.accumulate_d_q || call.accumulate_d_kv;
  if (!reason && p.documents && p.gradients_apart) reason = "documents whose gradients are added to others";
  if (!reason && (call.d_q_stride % kElementsAligned != 0 || call.d_k_stride % kElementsAligned != 0 ||
                  call.d_v_stride % kElementsAligned != 0)) {
    reason = "rows that are not a multiple of 16 bytes";
  }
  if (!reason && call.shape.capacity_k != call.shape.seq_k) reason = "gradients of keys with gaps";
  if (!reason && p.documents && p.deterministic) {
    reason = "documents in a deterministic backward (deterministic_mode: false lifts it)";
  }
  if (!reason && library_.version <= kTailsMended && p.seq_k % 128 != 0 && !p.documents) {
    reason = "a length that is not a multiple of 128, which this version computes wrongly";
  }
  if (!reason && own_is_fast && p.deterministic && narrow_window(p)) {
    reason = "a window in a deterministic backward, where the library is slower";
  }
  const std::lock_guard lock(mutex_);
  if (reason) return refuse(reason);
  for (const Tensor* const tensor :
       {&call.q, &call.k, &call.v, &call.out, &call.d_out, &call.d_q, &call.d_k, &call.d_v}) {
    if (!aligned(*tensor)) return refuse("rows that do not begin at a multiple of 16 bytes");
  }
  if (!p.gradients_apart) {
    p.d_q_row = call.d_q_stride, p.d_k_row = call.d_k_stride, p.d_v_row = call.d_v_stride;
  }
  if (p.documents) {
    // Gradients are first written to separate rows without gaps, then copied to the call's strided rows.
    p.d_k_row = p.kv_heads * p.head_dim;
    p.d_v_row = p.kv_heads * p.value_dim;
  }
  return build(p);
}

const CudnnCall& CudnnAttention::build(const CudnnProblem& whole) {
  const auto known = calls_.find(whole);
  if (known != calls_.end()) return known->second;
  CudnnCall& call = calls_[whole];
  call.problem = whole;
  if (whole.backward && whole.deterministic && !cut(call.problem, call, options_)) {
    call.refusal = "sequences whose deterministic backward needs too much memory";
    return call;
  }
  if (CudnnProblem& p = call.problem; p.gradients_apart) {
    p.d_q_row = p.heads * p.head_dim, p.d_k_row = p.kv_heads * p.head_dim,
    p.d_v_row = p.kv_heads * p.value_dim;
  }
  try {
    call.plan = make_cudnn_plan(library_, handle_, call.problem);
    call.workspace = lay_out(call.problem, call.plan->workspace_bytes());
  } catch (const cudnn::Refusal& refusal) {
    call.refusal = std::string("cuDNN refuses: ") + refusal.what();
  }
  return call;
}

const CudnnCall& CudnnAttention::refuse(const char* reason) {
  CudnnCall& call = refusals_[reason];
  call.refusal = reason;
  return call;
}

}  // namespace primus::turbo
