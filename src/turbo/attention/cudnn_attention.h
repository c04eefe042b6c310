// Attention by cuDNN: which calls it takes, as which graph, and the plans that were built for them. Knows
// nothing of a device but cuDNN's handle, so all of it runs in tests against a library that is not NVIDIA's.
//
// Covered: bf16 and, without documents and sinks, fp16; causal or not, grouped queries, windows, sinks,
// chunks that divide the sequence, and packed documents. Queries and keys have the same positions, or every
// query sees every key, as in most parts of a sequence that several ranks hold. Documents are batches of
// varying length to cuDNN; which ones there are is known on the device alone, so a plan has room for a number
// of them, and a call with more is done by our own kernel in the same launch (gpu_cudnn.h).
//
// Backward: cuDNN adds the gradients of queries with atomics, in an order that changes from run to run. Its
// deterministic form keeps all weights of some heads in memory instead, batch * heads * seq_q * seq_k * 2
// bytes; a call is cut into groups of heads that stay within `good_workspace`. It goes over all of these
// weights where a window needs a band of them, so that our own kernel is faster with windows, where it runs
// by warpgroups (`own_is_fast`). Scores with a soft cap are left to our own kernels.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "turbo/attention/attention.h"
#include "turbo/cudnn/graph.h"

namespace primus::turbo {

// Of the tensors of a graph.
enum class CudnnTensor : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kSinks,
  kLengths,       // [documents] int32
  kQOffsets,      // [documents + 1] int32: where each document begins, in elements of q
  kKOffsets,      // ... k
  kVOffsets,      // ... v
  kOutOffsets,    // ... out and d_out
  kTokenOffsets,  // ... lse
  kDQOffsets,     // ... d_q
  kDKOffsets,     // ... d_k, as cuDNN writes it
  kDVOffsets,     // ... d_v
  kDelta,         // workspace: sums of out * d_out
  kDQSum,         // workspace: fp32 gradients of queries
  kDKWide,        // workspace: gradients of keys before heads of a group are added
  kDVWide,        // ... of values
};

// Everything that a plan depends on. Strides are in elements, of rows of tokens.
struct CudnnProblem {
  DType type = DType::kBF16;  // of the operands: bf16 or fp16
  bool backward = false, causal = false, documents = false, sinks = false, statistics = false;
  bool deterministic = true;
  bool gradients_apart = false;  // densely in the workspace, from where they are added to what is there
  std::int64_t batch = 0, seq_q = 0, seq_k = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t window = 0;
  float scale = 1;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0, d_q_row = 0, d_k_row = 0, d_v_row = 0;
  std::int64_t q_batch = 0, k_batch = 0, v_batch = 0, out_batch = 0;  // from one batch to the next
  std::int64_t tokens = 0;                                            // of all batches; rows of lse
  auto operator<=>(const CudnnProblem&) const = default;
};

// Where the parts of a call's workspace begin, in bytes.
struct CudnnWorkspace {
  static constexpr std::int64_t kAlignment = 256;
  std::int64_t sinks = 0, documents = 0, delta = 0, d_q_sum = 0, d_q = 0, d_k = 0, d_v = 0, d_k_wide = 0,
               d_v_wide = 0, plan = 0;
  std::int64_t total = 0;
};

// How a call is done. Lives as long as its CudnnAttention.
struct CudnnCall {
  CudnnProblem problem;  // of one slice
  // Groups of heads, and of sequences, that are done one after the other.
  std::int64_t head_slices = 1, batch_slices = 1;
  std::unique_ptr<cudnn::Plan> plan;
  CudnnWorkspace workspace;
  std::string refusal;  // why there is no plan
};

// Documents in a batch of packed sequences: how many a plan has room for.
std::int64_t cudnn_documents(std::int64_t sequences, std::int64_t tokens);
// What lies at CudnnWorkspace::documents, all of it int32: 1 if our own kernel has to do the call, the
// lengths of the documents, and an array of offsets [documents + 1] for each CudnnTensor from kQOffsets to
// kDVOffsets.
inline constexpr std::int64_t kCudnnOffsetArrays = 8;
std::int64_t cudnn_documents_bytes(std::int64_t documents);

// The plans of one device. Thread-safe.
class CudnnAttention {
 public:
  struct Options {
    bool deterministic = true;
    // Of the deterministic backward, in bytes: what groups of heads are cut for, and what is refused.
    std::int64_t good_workspace = std::int64_t{2} << 30, most_workspace = std::int64_t{9} << 30;
  };

  // `handle` belongs to the device, and is used for building plans only; both must outlive this.
  CudnnAttention(const cudnn::Library& library, cudnn::Handle handle, const Options& options)
      : library_(library), handle_(handle), options_(options) {}

  // How the call is done, or why not (`plan` is null). The answer for equal shapes is the same object.
  // Addresses count only by whether they are multiples of 16.
  const CudnnCall& find(const AttentionForward& call);
  // `own_is_fast`: our own kernel would run by warpgroups (gpu_warpgroups_backward.h).
  const CudnnCall& find(const AttentionBackward& call, bool own_is_fast = false);

 private:
  const CudnnCall& build(const CudnnProblem& whole);
  const CudnnCall& refuse(const char* reason);

  const cudnn::Library& library_;
  cudnn::Handle handle_;
  Options options_;
  std::mutex mutex_;
  std::map<CudnnProblem, CudnnCall> calls_;
  std::map<std::string, CudnnCall> refusals_;
};

// The graph of a problem, compiled. Throws Refusal. For CudnnAttention, and for tests.
std::unique_ptr<cudnn::Plan> make_cudnn_plan(const cudnn::Library& library, cudnn::Handle handle,
                                             const CudnnProblem& problem);

}  // namespace primus::turbo
