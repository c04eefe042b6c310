#include "turbo/row_adapters/row_adapters.h"

#include "turbo/check.h"

namespace primus::turbo {

void AddRowAdapters::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() == 2);
  PRIMUS_CHECK(kId, y.dtype == x.dtype && y.shape.rank() == 2 && y.rows() == x.rows());
  PRIMUS_CHECK(kId, models.dtype == DType::kI32 && models.shape == Shape{x.rows()});
  PRIMUS_CHECK(kId,
               table.dtype == DType::kI64 && table.shape.rank() == 3 && table.shape[2] == RowAdapter::kWords);
  PRIMUS_CHECK(kId, low_columns > 0 && low_columns % RowAdapter::kLowMultiple == 0);
}

bool is_taken(Device& device, const AddRowAdapters& call) {
  const KernelTable::Entry& entry = device.kernels()[AddRowAdapters::kId];
  return entry.workspace_bytes &&
         entry.workspace_bytes(device.kernel_context(), &call) != AddRowAdapters::kNotTaken;
}

}  // namespace primus::turbo
