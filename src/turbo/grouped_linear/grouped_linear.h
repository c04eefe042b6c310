// Many linear layers at once, each applied to its own range of rows: the experts of a mixture of experts.
// Rows are sorted by expert. Kernels read the start of each expert's rows from device memory. Therefore
// shapes do not depend on the routing.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"
#include "turbo/linear/linear.h"

namespace primus::turbo {

// Operations that GroupedGemm fuses for a few tokens, as in decoding. Rows are then not sorted by expert, and
// no plan is needed: row s of the slots is choice s % top_k of token s / top_k. The result has the same bits
// as that of the separate operators; the part of a shared expert may differ by the order of additions. If
// is_taken() returns false, call the separate operators. All tensors but `experts`, `weights`, `shared.gate`
// and `shared.gates` are bf16, and rows of all matrices are aligned to 16 bytes.
struct ChosenExperts {
  // kGated: a is [tokens, in], b [experts, 2 * ffn, in], c [slots, ffn]. The bias is added to the product,
  // and then SwiGLU is applied: WeightedSwigluForward if `weights` are present, ClampedSwigluForward if
  // `limit` is above 0, and SwigluForward if neither is given.
  // kSummed: a is [slots, in], b [experts, out, in], c [tokens, out]. The bias is added to the products of a
  // token's slots, and the products are summed (CombineRows).
  enum class End : std::uint8_t { kGated, kSummed };

  // An expert that every token uses, of width `shared_ffn`. Its rows are added to the sum of a token, each
  // multiplied by the sigmoid of the token's product with `gate`, if there is one. The shared expert has no
  // biases, and uses SwigluForward.
  struct Shared {
    Tensor weights =
        {};             // kGated: [2 * shared_ffn, in]. kSummed: [out, shared_ffn]. Absent: no shared expert
    Tensor rows = {};   // [tokens, shared_ffn]; output of kGated, input of kSummed
    Tensor gate = {};   // kGated: [1, in] fp32, or absent
    Tensor gates = {};  // [tokens] fp32, the sigmoids: output of kGated, input of kSummed; or absent

    bool absent() const { return weights.absent(); }
  };

  Tensor experts = {};  // [tokens, top_k] int32; absent: nothing is fused
  End end = End::kGated;
  Tensor weights = {};   // [tokens, top_k] fp32, or absent
  Tensor bias = {};      // [experts, rows of an expert's matrix], or absent
  Tensor previous = {};  // kSummed: [tokens, out], added to the sum; or absent
  Shared shared = {};    // must be absent if `previous` is given
  // Used only with kGated. With weights, `weigh_input` has its meaning in WeightedSwigluForward. Without
  // weights, and if `limit` is above 0, `limit`, `alpha` and `shift` have their meanings in
  // ClampedSwigluForward.
  bool weigh_input = false;
  float limit = 0, alpha = 1, shift = 0;

  bool absent() const { return experts.absent(); }
};

// Expert e has rows [offsets[e], offsets[e+1]) of x [rows, in], y [rows, out] and their gradients. Computes
// for each expert, as Gemm does:
//   kForward         c [rows, out]  = a [rows, in]  · b[e] [out, in]ᵀ
//   kInputGradient   c [rows, in]   = a [rows, out] · b[e] [out, in]
//   kWeightGradient  c[e] [out, in] = a [rows of e, out]ᵀ · b [rows of e, in]
// An expert without rows has a weight gradient of zero. Rows from offsets[experts] on belong to no expert.
// The operands may have any contents in these rows, and these rows of c are not written. The caller may pass
// activations as a matrix of tokens with row indices: row r of the operand is then row a_rows[r] of the
// matrix a.
struct GroupedGemm {
  static constexpr KernelId kId = KernelId::kGroupedGemm;
  GemmRole role;
  Tensor a, b;     // operands, both fp32 or both bf16; weights are [experts, out, in]
  Tensor c;        // fp32 or bf16
  Tensor offsets;  // [experts + 1] int32, starts at 0, non-decreasing, at most `rows`; absent with `chosen`
  // [rows] int32; entries at or after offsets[experts] are not read. Absent: rows are not picked. b_rows is
  // only for the weight gradient.
  Tensor a_rows, b_rows;
  bool accumulate = false;  // c += instead of c =; for the weight gradient only
  ChosenExperts chosen = {};
  // The workspace size that a device reports if it does not support the call's `chosen`.
  static constexpr std::int64_t kNotTaken = -1;
  Tensor workspace;
  void check() const;
  std::int64_t rows() const {
    if (!chosen.absent()) return chosen.experts.elements();
    return a_rows.absent() ? a.rows() : a_rows.elements();
  }
  double flops() const;  // counts all rows, including rows without an expert
};

// Returns whether the device has a kernel for this product including `chosen`.
bool is_taken(Device& device, const GroupedGemm& call);

// y[r, :] = x[r, :] + bias[e, :] for the rows r of each expert e. Rows without an expert are not
// written.
struct GroupedBias {
  static constexpr KernelId kId = KernelId::kGroupedBias;
  Tensor x;        // [rows, n] fp32 or bf16
  Tensor bias;     // [experts, n], x's type
  Tensor y;        // [rows, n], x's type; may be x
  Tensor offsets;  // as in GroupedGemm
  void check() const;
  double flops() const { return 0; }
};

// d_bias[e, :] (+)= sum of d_y[r, :] over the rows of expert e, in row order.
struct GroupedBiasBackward {
  static constexpr KernelId kId = KernelId::kGroupedBiasBackward;
  Tensor d_y;       // [rows, n] fp32 or bf16
  Tensor d_bias;    // [experts, n] fp32
  Tensor offsets;   // as in GroupedGemm
  bool accumulate;  // false: assigns d_bias, which is zero for experts without rows
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
