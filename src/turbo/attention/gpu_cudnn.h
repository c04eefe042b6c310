// Attention by the vendor's library: cuDNN on NVIDIA. cudnn_attention.h lists the supported calls. The first
// call of cuDNN loads the library.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/attention/attention.h"

namespace primus::turbo::PRIMUS_GPU {

using gpu::PRIMUS_GPU::Context;

// Tells whether our own kernels must still compute a call.
struct LeftToDo {
  bool all = true;  // true: our own kernels must compute the complete call
  // If `all` is false: a device address, or null. Null means that our kernels compute nothing. Otherwise our
  // kernels must compute the complete call if the value at this address is not 0.
  const std::int32_t* unless_zero = nullptr;
};

// Returns the bytes of the complete workspace: `own` bytes of our own kernels, followed by the bytes of
// attention_by_library(). Returns `own` if no library is used. The first call of a shape builds a plan, which
// takes one or two seconds.
std::int64_t attention_library_workspace(Context& context, const AttentionForward& call, std::int64_t own);
std::int64_t attention_library_workspace(Context& context, const AttentionBackward& call, std::int64_t own);

// If the library supports the call, enqueues the call. Counts the call for the log by its implementation.
// Returns whether our own kernels must compute the call. `own`: as in attention_library_workspace().
LeftToDo attention_by_library(Context& context, const AttentionForward& call, std::int64_t own);
LeftToDo attention_by_library(Context& context, const AttentionBackward& call, std::int64_t own);

}  // namespace primus::turbo::PRIMUS_GPU
