#include "turbo/delta_rule/delta_rule.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

struct Inputs {
  const Tensor &qkv, &g, &beta;
};

bool are_inputs(const DeltaRuleShape& s, const Inputs& in) {
  return is_float(in.qkv) && in.qkv.shape == Shape{s.rows(), s.width()} && in.g.dtype == DType::kF32 &&
         in.g.shape == Shape{s.rows(), s.gates()} && in.beta.dtype == DType::kF32 &&
         in.beta.shape == Shape{s.rows(), s.value_heads};
}

bool is_out(const DeltaRuleShape& s, const Tensor& qkv, const Tensor& out) {
  return out.dtype == qkv.dtype && out.shape == Shape{s.rows(), s.out_width()};
}

bool is_first_key(const DeltaRuleShape& s, const Tensor& first_key) {
  return first_key.absent() || is_vector(first_key, DType::kI32, s.rows());
}

void check_around(const CachedDeltaRule& a) {
  constexpr KernelId kId = CachedDeltaRule::kId;
  const DeltaRuleShape& s = a.shape;
  const AroundDeltaRule& p = a.around;
  const auto is_bf16 = [](const Tensor& t, const Shape& shape) {
    return t.dtype == DType::kBF16 && t.shape == shape;
  };
  PRIMUS_CHECK(kId, !s.channel_gates && is_bf16(p.wide, {s.rows(), AroundDeltaRule::columns(s)}));
  PRIMUS_CHECK(kId, is_out(s, p.wide, a.out) && is_bf16(p.norm, {s.value_dim}) && p.eps > 0);
  PRIMUS_CHECK(kId, p.kernel.shape.rank() == 2 && is_bf16(p.kernel, {s.width(), p.kernel.cols()}));
  PRIMUS_CHECK(kId, p.ring.dtype == DType::kF32 && p.ring.shape.rank() == 3 &&
                        p.ring.shape[0] == a.sequences.batch() && p.ring.shape[1] >= p.kernel.cols() &&
                        p.ring.shape[2] == s.width());
  PRIMUS_CHECK(kId, is_vector(p.a_log, DType::kF32, s.value_heads) &&
                        is_vector(p.dt_bias, DType::kF32, s.value_heads));
}

// Returns the FLOPs. Each argument counts the matrix products of a value head in which a token takes part:
// products with the complete state, and products with other tokens of the chunk, whose vectors have key_dim
// elements (`along_keys`) or value_dim elements (`along_values`). Half of the products between tokens are
// masked.
double flops_of(const DeltaRuleShape& s, double with_state, double along_keys, double along_values) {
  const auto k = static_cast<double>(s.key_dim), v = static_cast<double>(s.value_dim);
  const double half = DeltaRuleShape::kChunk / 2.0;
  return 2 * static_cast<double>(s.rows() * s.value_heads) *
         (with_state * k * v + half * (along_keys * k + along_values * v));
}

}  // namespace

void DeltaRuleShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, batch > 0 && sequence > 0 && key_heads > 0 && value_heads > 0);
  PRIMUS_CHECK(kernel, value_heads % key_heads == 0);
  PRIMUS_CHECK(kernel, key_dim > 0 && key_dim <= kMaxDim && value_dim > 0 && value_dim <= kMaxDim);
  PRIMUS_CHECK(kernel, epsilon > 0);
}

void DeltaRuleForward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_inputs(shape, {qkv, g, beta}));
  PRIMUS_CHECK(kId, is_first_key(shape, first_key) && is_out(shape, qkv, out));
}

// Products with the state: keys and queries read the state, and one product updates the state. Products along
// the key dimension: K Kᵀ and Q Kᵀ. Products along the value dimension: the solution of the triangular
// system, and Q Kᵀ U.
double DeltaRuleForward::flops() const { return flops_of(shape, 3, 2, 2); }

void DeltaRuleBackward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_inputs(shape, {qkv, g, beta}));
  PRIMUS_CHECK(kId, is_first_key(shape, first_key) && is_out(shape, qkv, d_out));
  PRIMUS_CHECK(kId, same(d_qkv, qkv) && same(d_g, g) && same(d_beta, beta));
}

// Products with the state: the recomputation of states and U, and the gradients of states, queries, keys and
// U. Products along the key dimension: K Kᵀ, Q Kᵀ, and two gradients of each product. Products along the
// value dimension: the solution of the triangular system and its gradient, Pᵀ d_out, and the gradients of K
// Kᵀ and Q Kᵀ.
double DeltaRuleBackward::flops() const { return flops_of(shape, 8, 6, 5); }

void CachedDeltaRule::check() const {
  sequences.check(kId);
  shape.check(kId);
  const std::int64_t batch = sequences.batch();
  PRIMUS_CHECK(kId, shape.batch == 1);
  if (around.absent()) {
    PRIMUS_CHECK(kId, are_inputs(shape, {qkv, g, beta}) && is_out(shape, qkv, out));
  } else {
    PRIMUS_CHECK(kId, qkv.absent() && g.absent() && beta.absent() && sequences.single);
    check_around(*this);
  }
  PRIMUS_CHECK(kId, state.dtype == DType::kF32 &&
                        state.shape == Shape{batch, shape.value_heads, shape.key_dim, shape.value_dim});
  PRIMUS_CHECK(kId, recent.dtype == DType::kF32 && recent.shape.rank() == 3 && recent.shape[0] == batch &&
                        recent.shape[2] == shape.value_heads * shape.recent_width());
  PRIMUS_CHECK(kId, committed.dtype == DType::kI32 && committed.shape == Shape{batch, shape.value_heads});
  PRIMUS_CHECK(kId, spare >= 0 && spare < recent.shape[1]);
}

bool is_taken(Device& device, const CachedDeltaRule& call) {
  const KernelTable::Entry& entry = device.kernels()[CachedDeltaRule::kId];
  return entry.workspace_bytes &&
         entry.workspace_bytes(device.kernel_context(), &call) != CachedDeltaRule::kNotTaken;
}

}  // namespace primus::turbo
