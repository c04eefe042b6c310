// Attention by cuDNN: which calls it supports, their graphs, and the plans built for them. This code uses no
// part of a device except a cuDNN handle. Therefore tests can run this code with a fake library.
//
// Supported: bf16 and, without documents and sinks, fp16; causal or not, grouped queries, windows, sinks,
// chunks that divide the sequence, and packed documents. The positions of queries and keys must be equal, or
// every query must see every key. The second case is frequent with context parallelism. In a graph, packed
// documents are a batch of sequences with different lengths. The device computes the number of documents, but
// a plan has room for a fixed number of documents. If a call has more documents, our own kernel computes the
// call (gpu_cudnn.h).
//
// Backward: cuDNN adds d_q with atomics, in an order that varies between runs. Its deterministic algorithm
// stores attention weights instead: batch * heads * seq_q * seq_k * 2 bytes. Therefore a call is divided into
// groups of heads, and the weights of a group fit into `good_workspace`. With a window, this algorithm still
// computes all attention weights. Our own kernel computes only a band of the weights, and is faster with a
// window if it can use warpgroups (`own_is_fast`). Our own kernels always compute calls with soft-capped
// scores.
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

// Identifies the tensors of a graph.
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
  kQOffsets,      // [documents + 1] int32: begin of each document, in elements of q
  kKOffsets,      // ... k
  kVOffsets,      // ... v
  kOutOffsets,    // like kQOffsets, but for out and d_out
  kTokenOffsets,  // like kQOffsets, but for lse
  kDQOffsets,     // ... d_q
  kDKOffsets,     // like kQOffsets, but for d_k in the layout in which cuDNN writes it
  kDVOffsets,     // ... d_v
  kDelta,         // workspace: sums of out * d_out
  kDQSum,         // workspace: d_q in fp32
  kDKWide,        // workspace: d_k before the sum over a group's heads
  kDVWide,        // ... d_v
};

// Everything that a plan depends on. Strides are in elements; *_row are strides between tokens.
struct CudnnProblem {
  DType type = DType::kBF16;  // type of the operands: bf16 or fp16
  bool backward = false, causal = false, documents = false, sinks = false, statistics = false;
  bool deterministic = true;
  // cuDNN writes gradients to the workspace; then a kernel adds them to the outputs.
  bool gradients_apart = false;
  std::int64_t batch = 0, seq_q = 0, seq_k = 0, heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t window = 0;
  float scale = 1;
  std::int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0, d_q_row = 0, d_k_row = 0, d_v_row = 0;
  std::int64_t q_batch = 0, k_batch = 0, v_batch = 0, out_batch = 0;  // strides between batches
  std::int64_t tokens = 0;  // total tokens of the batches; row length of lse
  auto operator<=>(const CudnnProblem&) const = default;
};

// Byte offsets of the parts of a call's workspace.
struct CudnnWorkspace {
  static constexpr std::int64_t kAlignment = 256;
  std::int64_t sinks = 0, documents = 0, delta = 0, d_q_sum = 0, d_q = 0, d_k = 0, d_v = 0, d_k_wide = 0,
               d_v_wide = 0, plan = 0;
  std::int64_t total = 0;
};

// Describes how a call is executed. Valid as long as the CudnnAttention that returned it.
struct CudnnCall {
  CudnnProblem problem;  // the problem of one slice
  // The number of head groups, and the number of sequence groups. A slice is one head group of one sequence
  // group, and slices are processed one after another.
  std::int64_t head_slices = 1, batch_slices = 1;
  std::unique_ptr<cudnn::Plan> plan;
  CudnnWorkspace workspace;
  std::string refusal;  // why there is no plan
};

// Returns the number of documents that a plan for a batch of packed sequences has room for.
std::int64_t cudnn_documents(std::int64_t sequences, std::int64_t tokens);
// The contents of CudnnWorkspace::documents, all int32. The first number is a flag: 1 if our own kernel must
// compute the call. The lengths of the documents follow. The last part has documents + 1 offsets for each
// CudnnTensor from kQOffsets to kDVOffsets.
inline constexpr std::int64_t kCudnnOffsetArrays = 8;
std::int64_t cudnn_documents_bytes(std::int64_t documents);

// The plans of one device. Thread-safe.
class CudnnAttention {
 public:
  struct Options {
    bool deterministic = true;
    // Workspace bytes of the deterministic backward pass. A group of heads needs at most good_workspace. A
    // call that needs more than max_workspace is refused.
    std::int64_t good_workspace = std::int64_t{2} << 30, max_workspace = std::int64_t{9} << 30;
  };

  // `handle` belongs to the device and is used only for building plans. `library` and `handle` must outlive
  // this object.
  CudnnAttention(const cudnn::Library& library, cudnn::Handle handle, const Options& options)
      : library_(library), handle_(handle), options_(options) {}

  // Returns how the call is executed. If cuDNN does not support the call, `plan` is null, and `refusal` is
  // the reason. Calls of equal shape get the same object. The plan depends on the addresses only by their
  // alignment to 16 bytes.
  const CudnnCall& find(const AttentionForward& call);
  // `own_is_fast` tells whether our own kernel would use warpgroups (gpu_warpgroups_backward.h).
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

// Compiles the graph of a problem. Throws Refusal if cuDNN does not support the graph. For CudnnAttention and
// tests.
std::unique_ptr<cudnn::Plan> make_cudnn_plan(const cudnn::Library& library, cudnn::Handle handle,
                                             const CudnnProblem& problem);

}  // namespace primus::turbo
