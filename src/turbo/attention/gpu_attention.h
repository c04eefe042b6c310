// The functions of other files that gpu.cu registers in the kernel table, and a check that several attention
// kernels share. Paged attention: gpu_paged.h.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "turbo/attention/attention.h"
#include "turbo/gpu/values.h"
#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// These functions are defined in gpu_backward.cu.
void attention_backward(Context& context, const AttentionBackward& call);
std::int64_t attention_backward_workspace(Context& context, const AttentionBackward& call);
void attention_backward_sinks(Context& context, const AttentionBackwardSinks& call);

// Returns whether the GPU has warpgroup instructions (has_warpgroups) and all rows of these tensors begin at
// multiples of 16 bytes.
inline bool whole_lines(Context& context, std::initializer_list<const Tensor*> tensors,
                        std::initializer_list<std::int64_t> strides) {
  if (!has_warpgroups(context)) return false;
  for (const std::int64_t stride : strides) {
    if (stride % kVector<BFloat16> != 0) return false;
  }
  for (const Tensor* tensor : tensors) {
    if (reinterpret_cast<std::uintptr_t>(context.data<std::byte>(*tensor)) % 16 != 0) return false;
  }
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
