// The functions of other files that gpu.cu registers in the kernel table, and a check that several attention
// kernels share. Paged attention: gpu_paged.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "turbo/attention/attention.h"
#include "turbo/gpu/values.h"
#include "turbo/gpu/warpgroup.h"

namespace primus::turbo::PRIMUS_GPU {

// These functions are defined in gpu_backward.cu.
void attention_backward(Context& context, const AttentionBackward& call);
std::int64_t attention_backward_workspace(Context& context, const AttentionBackward& call);
void attention_backward_sinks(Context& context, const AttentionBackwardSinks& call);

// Returns whether batch-invariant devices have kernels for heads of this width.
inline bool has_order(std::int64_t head_dim) { return head_dim == 64 || head_dim == 128; }

// Throws Error(kUnsupported): a batch-invariant device has no kernel for this call of attention.
[[noreturn]] inline void refuse_order(std::int64_t head_dim, std::int64_t value_dim, DType dtype) {
  throw unsupported("batch_invariant has no kernel for attention in " + std::string(primus::name_of(dtype)) +
                        " with heads of " + std::to_string(head_dim) + " and values of " +
                        std::to_string(value_dim) +
                        " columns on this GPU: it needs compute capability 9.0, bf16, causal heads of 64 or "
                        "128 columns, and no soft cap",
                    "choose the device cpu, or remove batch_invariant");
}

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
