#include "turbo/linear/linear.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

void check_around(const Gemm& g) {
  constexpr KernelId kId = Gemm::kId;
  const AroundProduct& p = g.around;
  PRIMUS_CHECK(kId, g.role == GemmRole::kForward && !g.accumulate && g.a.shape.rank() == 2);
  for (const Tensor* t : {&g.a, &g.b, &g.c}) PRIMUS_CHECK(kId, t->dtype == DType::kBF16);
  const std::int64_t rows = g.a.rows(), in = g.a.cols(), out = g.b.rows();
  PRIMUS_CHECK(kId, rows >= 1 && rows <= AroundProduct::kMaxRows);
  PRIMUS_CHECK(kId, in % AroundProduct::kColumnMultiple == 0 && is_vector(p.norm, DType::kBF16, in));
  PRIMUS_CHECK(kId, p.delta.absent() == p.sum.absent());
  PRIMUS_CHECK(kId, p.delta.absent() || (same(p.delta, g.a) && same(p.sum, g.a)));
  PRIMUS_CHECK(kId, p.bias.absent() || is_vector(p.bias, DType::kBF16, out));
  for (const Tensor* t : {&g.a, &g.b, &p.norm, &p.delta, &p.sum})
    PRIMUS_CHECK(kId, reinterpret_cast<std::uintptr_t>(t->data) % 16 == 0);
  if (p.end == AroundProduct::End::kSwiglu) PRIMUS_CHECK(kId, out % 2 == 0 && p.bias.absent());
  if (p.end != AroundProduct::End::kRope) return;
  PRIMUS_CHECK(kId, p.head_dim > 0 && p.head_dim % 2 == 0 && out % p.head_dim == 0);
  PRIMUS_CHECK(kId, p.heads >= 0 && p.heads * p.head_dim <= out);
  PRIMUS_CHECK(kId, is_vector(p.positions, DType::kI32, rows));
  PRIMUS_CHECK(kId, p.table.dtype == DType::kF32 && p.table.cols() == p.head_dim);
}

}  // namespace

void Gemm::check() const {
  PRIMUS_CHECK(kId, a.shape.rank() >= 1 && b.shape.rank() >= 1 && c.shape.rank() >= 1);
  if (a.dtype == DType::kF16) {
    PRIMUS_CHECK(kId, b.dtype == DType::kF16 && (c.dtype == DType::kF16 || c.dtype == DType::kF32));
  } else {
    for (const Tensor* t : {&a, &b, &c}) PRIMUS_CHECK(kId, is_float(*t));
  }
  switch (role) {
    case GemmRole::kForward:
      PRIMUS_CHECK(kId, a.cols() == b.cols() && c.rows() == a.rows());
      PRIMUS_CHECK(kId, c.cols() == (around.end == AroundProduct::End::kSwiglu ? b.rows() / 2 : b.rows()));
      break;
    case GemmRole::kInputGradient:
      PRIMUS_CHECK(kId, a.cols() == b.rows() && c.rows() == a.rows() && c.cols() == b.cols());
      break;
    case GemmRole::kWeightGradient:
      PRIMUS_CHECK(kId, a.rows() == b.rows() && c.rows() == a.cols() && c.cols() == b.cols());
      break;
  }
  if (!around.absent()) check_around(*this);
}

bool is_taken(Device& device, const Gemm& call) {
  const KernelTable::Entry& entry = device.kernels()[Gemm::kId];
  return entry.workspace_bytes && entry.workspace_bytes(device.kernel_context(), &call) != Gemm::kNotTaken;
}

double Gemm::flops() const {
  // FLOPs are 2 * (elements of a) * (the extent of b that a does not have), for all three roles.
  const auto left = static_cast<double>(a.elements());
  return 2 * left * static_cast<double>(role == GemmRole::kForward ? b.rows() : b.cols());
}

}  // namespace primus::turbo
