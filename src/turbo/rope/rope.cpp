#include "turbo/rope/rope.h"

#include "turbo/check.h"

namespace primus::turbo {

void Rope::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, same(y, x));
  PRIMUS_CHECK(kId, positions.dtype == DType::kI32 && positions.elements() == x.rows());
  PRIMUS_CHECK(kId, table.dtype == DType::kF32 && table.cols() == rotary_dim);
  PRIMUS_CHECK(kId, rotary_dim >= 0 && rotary_dim % 2 == 0);
  PRIMUS_CHECK(kId, rotary_begin >= 0 && rotary_begin + rotary_dim <= head_dim);
  PRIMUS_CHECK(kId, heads >= 0 && heads * head_dim <= x.cols());
  if (norm.absent()) return;
  PRIMUS_CHECK(kId, norm.weight.dtype == x.dtype && norm.weight.elements() == 2 * head_dim);
  PRIMUS_CHECK(kId, norm.query_heads >= 0 && norm.query_heads <= heads);
}

bool is_taken(Device& device, const Rope& call) {
  const KernelTable::Entry& entry = device.kernels()[Rope::kId];
  return entry.workspace_bytes && entry.workspace_bytes(device.kernel_context(), &call) != Rope::kNotTaken;
}

}  // namespace primus::turbo
