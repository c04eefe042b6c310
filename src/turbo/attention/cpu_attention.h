// The attention kernels of one instruction set, and the choice of the engine that multiplies tiles.
#pragma once

#include "turbo/attention/attention.h"
#include "turbo/attention/cpu_bf16_tiles.h"
#include "turbo/attention/cpu_fp32_tiles.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

void attention_forward(CpuContext& context, const AttentionForward& call);
std::int64_t attention_forward_workspace(CpuContext& context, const AttentionForward& call);
void attention_backward(CpuContext& context, const AttentionBackward& call);
std::int64_t attention_backward_workspace(CpuContext& context, const AttentionBackward& call);
void attention_backward_sinks(CpuContext& context, const AttentionBackwardSinks& call);
void attention_merge(CpuContext& context, const AttentionMerge& call);
void paged_append(CpuContext& context, const PagedAppend& call);
void paged_attention(CpuContext& context, const PagedAttention& call);
std::int64_t paged_attention_workspace(CpuContext& context, const PagedAttention& call);

// attention_decode() is the forward kernel for few queries and many cached keys, as in decoding. Its time is
// mostly that of reading the keys. is_decode() returns whether to use attention_decode().
bool is_decode(const AttentionShape& shape);
void attention_decode(CpuContext& context, const AttentionForward& call);
std::int64_t attention_decode_workspace(const AttentionShape& shape);

// The corresponding functions for a paged cache and for sequences with few new tokens. paged_shape() returns
// the shape of one such sequence.
bool is_paged_decode(std::int64_t new_tokens);
void paged_decode(CpuContext& context, const PagedAttention& call);
std::int64_t paged_decode_workspace(const PagedAttention& call);
AttentionShape paged_shape(const PagedAttention& call, std::int64_t new_tokens, std::int64_t keys);

// Calls body(engine) with the fastest engine for operands of this type.
template <class Body>
auto with_tiles(DType dtype, Body body) {
  if (dtype == DType::kF32) return body(Fp32Tiles<float>());
  if (dtype == DType::kF16) return body(Fp32Tiles<Float16>());
#if defined(__AVX512BW__)
  if (const Bf16Unit* unit = bf16_unit()) return body(Bf16Tiles(*unit));
#endif
  return body(Fp32Tiles<BFloat16>());
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
