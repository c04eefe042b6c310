// Attention by the vendor's library: cuDNN on NVIDIA (cudnn_attention.h lists the supported calls), loaded on
// the first call that needs it.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/attention/attention.h"

namespace primus::turbo::PRIMUS_GPU {

using gpu::PRIMUS_GPU::Context;

// Tells whether our own kernels must still compute a call.
struct LeftToDo {
  bool all = true;  // true: our own kernels must compute the complete call
  // If not `all`: null means that nothing is left; otherwise the complete call is left if the value at this
  // device address is not 0.
  const std::int32_t* unless_zero = nullptr;
};

// Returns the bytes of the complete workspace: `own` bytes of our own kernels, followed by the bytes of
// attention_by_library(); only `own` if no library is used. Builds the plan of the call, which takes a second
// or two the first time.
std::int64_t attention_library_workspace(Context& context, const AttentionForward& call, std::int64_t own);
std::int64_t attention_library_workspace(Context& context, const AttentionBackward& call, std::int64_t own);

// Enqueues the call if the library supports it, counts for the log which implementation computes it, and
// returns whether our own kernels must compute it. `own`: as in attention_library_workspace().
LeftToDo attention_by_library(Context& context, const AttentionForward& call, std::int64_t own);
LeftToDo attention_by_library(Context& context, const AttentionBackward& call, std::int64_t own);

}  // namespace primus::turbo::PRIMUS_GPU
