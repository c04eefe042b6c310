// Attention by the vendor's library: cuDNN on NVIDIA (cudnn_attention.h says for which calls), loaded when
// the first call wants it.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/attention/attention.h"

namespace primus::turbo::PRIMUS_GPU {

using gpu::PRIMUS_GPU::Context;

// What the library left to our own kernels.
struct LeftToDo {
  bool all = true;  // the whole call
  // Else: nothing, or the whole call if what lies there on the device is not 0; null: nothing.
  const std::int32_t* unless_zero = nullptr;
};

// Bytes of workspace for the two functions below, behind `own` bytes of our own kernels; `own` where there is
// no library. Builds what the call needs, which takes a second or two the first time.
std::int64_t attention_library_workspace(Context& context, const AttentionForward& call, std::int64_t own);
std::int64_t attention_library_workspace(Context& context, const AttentionBackward& call, std::int64_t own);

// Enqueue what the library takes of the call, and count who did it. `own`: as above.
LeftToDo attention_by_library(Context& context, const AttentionForward& call, std::int64_t own);
LeftToDo attention_by_library(Context& context, const AttentionBackward& call, std::int64_t own);

}  // namespace primus::turbo::PRIMUS_GPU
