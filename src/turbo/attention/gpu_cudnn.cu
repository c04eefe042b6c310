#include "turbo/attention/gpu_cudnn.h"

#if defined(__CUDACC__) && !defined(__HIP__)

#include <array>
#include <optional>

#include "base/error.h"
#include "device/lost_device.h"
#include "turbo/attention/gpu_documents.h"
#include "turbo/attention/gpu_spread.h"
#include "turbo/gpu/register.h"
#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::cuda {
namespace {

using gpu::cuda::GpuShared;

// The cuDNN library, and the attention plans of one device.
class Provider {
 public:
  explicit Provider(GpuShared& shared) {
    if (!shared.present()) {
      why_ = "the GPU is not here";
      return;
    }
    if (!shared.attention_library()) {
      why_ = "cuDNN is switched off";
      return;
    }
    library_ = cudnn::open_library(why_);
    if (!library_) return;
    gpu::cuda::check(cudaSetDevice(shared.index()), "choose a GPU");
    if (const cudnn::Status status = library_->create(&handle_); status != cudnn::Status::kSuccess) {
      why_ = "cuDNN " + library_->version_text + " does not start (status " +
             std::to_string(static_cast<int>(status)) + ")";
      handle_ = nullptr;
      return;
    }
    attention_.emplace(*library_, handle_, CudnnAttention::Options{.deterministic = shared.deterministic()});
  }
  ~Provider() {
    attention_.reset();
    if (handle_) library_->destroy(handle_);
  }
  Provider(const Provider&) = delete;
  Provider& operator=(const Provider&) = delete;

  CudnnAttention* attention() { return attention_ ? &*attention_ : nullptr; }
  const cudnn::Library& library() const { return *library_; }
  const std::string& why() const { return why_; }

 private:
  std::shared_ptr<const cudnn::Library> library_;
  cudnn::Handle handle_ = nullptr;
  std::optional<CudnnAttention> attention_;
  std::string why_;
};

// A cuDNN handle for one stream.
class CudnnStream {
 public:
  explicit CudnnStream(Context& context) : library_(context.shared().library<Provider>().library()) {
    const cudnn::Status status = library_.create(&handle_);
    if (status != cudnn::Status::kSuccess ||
        library_.set_stream(handle_, context.stream()) != cudnn::Status::kSuccess) {
      throw Error(ErrorKind::kIo,
                  "cuDNN " + library_.version_text + " cannot work on a stream: status " +
                      std::to_string(static_cast<int>(status)),
                  kLostDeviceHint);
    }
  }
  ~CudnnStream() {
    if (handle_) library_.destroy(handle_);
  }
  CudnnStream(const CudnnStream&) = delete;
  CudnnStream& operator=(const CudnnStream&) = delete;
  cudnn::Handle get() const { return handle_; }

 private:
  const cudnn::Library& library_;
  cudnn::Handle handle_ = nullptr;
};

struct ToFp32 {
  static constexpr int kThreads = 256;
  const BFloat16* from;
  float* to;
  std::int64_t n;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = block() * kThreads + thread();
    if (i < n) to[i] = to_float(from[i]);
  }
};

// The addresses of one call's tensors.
class Memory {
 public:
  Memory(Context& context, const CudnnCall& call, const Tensor& workspace, std::int64_t own)
      : call_(call), base_(context.data<std::byte>(workspace) + aligned(own)) {}

  static std::int64_t aligned(std::int64_t own) {
    return (own + CudnnWorkspace::kAlignment - 1) / CudnnWorkspace::kAlignment * CudnnWorkspace::kAlignment;
  }

  template <class T>
  T* workspace(std::int64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  std::int32_t* documents() const { return workspace<std::int32_t>(call_.workspace.documents); }
  std::int32_t* lengths() const { return documents() + 1; }

  void add(CudnnTensor tensor, void* address) {
    all_.emplace_back(static_cast<std::int64_t>(tensor), address);
  }
  void add_documents() {
    if (!call_.problem.documents) return;
    const std::int64_t n = call_.problem.batch;
    add(CudnnTensor::kLengths, lengths());
    for (std::int64_t i = 0; i < kCudnnOffsetArrays; ++i) {
      add(static_cast<CudnnTensor>(static_cast<std::int64_t>(CudnnTensor::kQOffsets) + i),
          lengths() + n + i * (n + 1));
    }
  }
  const std::vector<std::pair<std::int64_t, void*>>& all() const { return all_; }

 private:
  const CudnnCall& call_;
  std::byte* base_;
  std::vector<std::pair<std::int64_t, void*>> all_;
};

// Counts for the log how many calls each implementation computes.
void count(Context& context, const char* direction, const std::string& who) {
  context.shared().count(std::string("attention ") + direction + ": " + who);
}

const CudnnCall& found(CudnnAttention& plans, Context&, const AttentionForward& call) {
  return plans.find(call);
}
const CudnnCall& found(CudnnAttention& plans, Context& context, const AttentionBackward& call) {
  return plans.find(call, has_warpgroups(context));
}

// Returns how cuDNN executes a call, or null if our own kernel computes it.
template <class Call>
const CudnnCall* plan_of(Context& context, const Call& call, const char* direction) {
  auto& provider = context.shared().library<Provider>();
  if (!provider.attention()) {
    if (direction) count(context, direction, "own kernel (" + provider.why() + ")");
    return nullptr;
  }
  const CudnnCall& planned = found(*provider.attention(), context, call);
  if (!planned.plan) {
    if (direction) count(context, direction, "own kernel (" + planned.refusal + ")");
    return nullptr;
  }
  if (direction) count(context, direction, "cuDNN " + provider.library().version_text);
  return &planned;
}

template <class Call>
std::int64_t workspace_for(Context& context, const Call& call, std::int64_t own) {
  if (context.shared().present()) gpu::cuda::check(cudaSetDevice(context.shared().index()), "choose a GPU");
  const CudnnCall* const planned = plan_of(context, call, nullptr);
  return planned ? Memory::aligned(own) + planned->workspace.total : own;
}

// Finds the documents of a packed call on the device. If cuDNN's plan has no room for all documents, our own
// kernel computes the call.
LeftToDo cut_documents(Context& context, const CudnnProblem& p, const Memory& memory,
                       const AttentionShape& shape, const Tensor& first_key) {
  if (!p.documents) return {.all = false};
  CutDocuments cut{context.data<std::int32_t>(first_key),
                   memory.documents(),
                   p.tokens,
                   shape.seq_q,
                   shape.chunk,
                   p.batch,
                   {}};
  const std::array<std::pair<CudnnTensor, std::int64_t>, 8> rows{{{CudnnTensor::kQOffsets, p.q_row},
                                                                  {CudnnTensor::kKOffsets, p.k_row},
                                                                  {CudnnTensor::kVOffsets, p.v_row},
                                                                  {CudnnTensor::kOutOffsets, p.out_row},
                                                                  {CudnnTensor::kTokenOffsets, 1},
                                                                  {CudnnTensor::kDQOffsets, p.d_q_row},
                                                                  {CudnnTensor::kDKOffsets, p.d_k_row},
                                                                  {CudnnTensor::kDVOffsets, p.d_v_row}}};
  for (const auto& [tensor, row] : rows) {
    cut.rows[static_cast<int>(tensor) - static_cast<int>(CudnnTensor::kQOffsets)] = row;
  }
  launch(context, 1, cut);
  return {.all = false, .unless_zero = memory.documents()};
}

}  // namespace

std::int64_t attention_library_workspace(Context& context, const AttentionForward& call, std::int64_t own) {
  return workspace_for(context, call, own);
}
std::int64_t attention_library_workspace(Context& context, const AttentionBackward& call, std::int64_t own) {
  return workspace_for(context, call, own);
}

LeftToDo attention_by_library(Context& context, const AttentionForward& call, std::int64_t own) {
  const CudnnCall* const planned = plan_of(context, call, "forward");
  if (!planned) return {};
  const CudnnProblem& p = planned->problem;
  Memory memory(context, *planned, call.workspace, own);
  const LeftToDo left = cut_documents(context, p, memory, call.shape, call.first_key);
  memory.add(CudnnTensor::kQ, call.q.data);
  memory.add(CudnnTensor::kK, call.k.data);
  memory.add(CudnnTensor::kV, call.v.data);
  memory.add(CudnnTensor::kOut, call.out.data);
  if (p.statistics) memory.add(CudnnTensor::kLse, call.lse.data);
  if (p.sinks) {
    auto* const sinks = memory.workspace<float>(planned->workspace.sinks);
    launch(context, blocks_for(p.heads, ToFp32::kThreads),
           ToFp32{context.data<BFloat16>(call.sinks), sinks, p.heads});
    memory.add(CudnnTensor::kSinks, sinks);
  }
  memory.add_documents();
  planned->plan->execute(context.library<CudnnStream>().get(), memory.all(),
                         memory.workspace<void>(planned->workspace.plan));
  return left;
}

LeftToDo attention_by_library(Context& context, const AttentionBackward& call, std::int64_t own) {
  const CudnnCall* const planned = plan_of(context, call, "backward");
  if (!planned) return {};
  const CudnnProblem& p = planned->problem;
  const CudnnWorkspace& w = planned->workspace;
  const cudnn::Handle handle = context.library<CudnnStream>().get();
  LeftToDo left;
  for (std::int64_t b = 0; b < planned->batch_slices; ++b) {
    for (std::int64_t h = 0; h < planned->head_slices; ++h) {
      Memory memory(context, *planned, call.workspace, own);
      if (b == 0 && h == 0) left = cut_documents(context, p, memory, call.shape, call.first_key);
      const std::int64_t sequence = b * p.batch;
      // Returns the address of the slice within a tensor. The cast to bf16 is also correct for fp16, because
      // both types have 2 bytes.
      const auto part = [&](const Tensor& tensor, std::int64_t batch_stride, std::int64_t width) {
        return context.data<BFloat16>(tensor) + sequence * batch_stride + h * width;
      };
      const std::int64_t q_width = p.heads * p.head_dim, k_width = p.kv_heads * p.head_dim,
                         v_width = p.kv_heads * p.value_dim, out_width = p.heads * p.value_dim;
      memory.add(CudnnTensor::kQ, part(call.q, p.q_batch, q_width));
      memory.add(CudnnTensor::kK, part(call.k, p.k_batch, k_width));
      memory.add(CudnnTensor::kV, part(call.v, p.v_batch, v_width));
      memory.add(CudnnTensor::kOut, part(call.out, p.out_batch, out_width));
      memory.add(CudnnTensor::kDOut, part(call.d_out, p.out_batch, out_width));
      memory.add(CudnnTensor::kLse,
                 context.data<float>(call.lse) + sequence * p.seq_q + h * p.heads * p.tokens);
      memory.add(CudnnTensor::kDelta, memory.workspace<void>(w.delta));
      memory.add(CudnnTensor::kDQ, p.gradients_apart ? memory.workspace<BFloat16>(w.d_q)
                                                     : part(call.d_q, p.seq_q * p.d_q_row, q_width));
      if (!p.deterministic) memory.add(CudnnTensor::kDQSum, memory.workspace<void>(w.d_q_sum));
      if (p.documents || p.gradients_apart) {
        memory.add(CudnnTensor::kDK, memory.workspace<void>(w.d_k));
        memory.add(CudnnTensor::kDV, memory.workspace<void>(w.d_v));
      } else {
        memory.add(CudnnTensor::kDK, part(call.d_k, p.seq_k * p.d_k_row, k_width));
        memory.add(CudnnTensor::kDV, part(call.d_v, p.seq_k * p.d_v_row, v_width));
      }
      if (p.documents && p.heads != p.kv_heads) {
        memory.add(CudnnTensor::kDKWide, memory.workspace<void>(w.d_k_wide));
        memory.add(CudnnTensor::kDVWide, memory.workspace<void>(w.d_v_wide));
      }
      memory.add_documents();
      planned->plan->execute(handle, memory.all(), memory.workspace<void>(w.plan));
      if (!p.documents && !p.gradients_apart) continue;
      // `seq` is the number of rows per sequence, `cols` the number of columns of the slice's heads.
      const auto spread = [&](std::int64_t from, const Tensor& to, std::int64_t seq, std::int64_t cols,
                              std::int64_t to_stride, bool add) {
        const std::int64_t rows = p.documents ? p.tokens : p.batch * seq;
        with_float_type(to.dtype, [&](auto tag) {
          using T = decltype(tag);
          launch(context, blocks_for(rows * cols, std::int64_t{Spread<T>::kThreads} * Spread<T>::kElements),
                 Spread<T>{memory.workspace<BFloat16>(from),
                           context.data<T>(to) + sequence * seq * to_stride + h * cols, rows, cols, to_stride,
                           add});
        });
      };
      if (p.gradients_apart) spread(w.d_q, call.d_q, p.seq_q, q_width, call.d_q_stride, call.accumulate_d_q);
      spread(w.d_k, call.d_k, p.seq_k, k_width, call.d_k_stride, call.accumulate_d_kv);
      spread(w.d_v, call.d_v, p.seq_k, v_width, call.d_v_stride, call.accumulate_d_kv);
    }
  }
  return left;
}

}  // namespace primus::turbo::cuda

#else

namespace primus::turbo::PRIMUS_GPU {

std::int64_t attention_library_workspace(Context&, const AttentionForward&, std::int64_t own) { return own; }
std::int64_t attention_library_workspace(Context&, const AttentionBackward&, std::int64_t own) { return own; }
LeftToDo attention_by_library(Context&, const AttentionForward&, std::int64_t) { return {}; }
LeftToDo attention_by_library(Context&, const AttentionBackward&, std::int64_t) { return {}; }

}  // namespace primus::turbo::PRIMUS_GPU

#endif
