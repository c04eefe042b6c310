// Access to the table of adapters, shared by the kernels of all devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"
#include "turbo/row_adapters/row_adapters.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct RowAdapterTable {
  const RowAdapter* entries;
  const std::int32_t* models;  // the model of each row
  std::int64_t adapters;       // number of entries of each model

  // Returns the adapter of a row for which `holds` returns true; null if there is none. The loop has no early
  // end, so that GPUs load all entries at once. `holds` is false for an entry without an adapter.
  template <class Holds>
  PRIMUS_FORMULA const RowAdapter* find(std::int64_t row, Holds holds) const {
    const std::int64_t model = models[row];
    const RowAdapter* found = nullptr;
    for (std::int64_t i = 0; model >= 0 && i < adapters; ++i) {
      const RowAdapter* const entry = entries + model * adapters + i;
      if (holds(*entry)) found = entry;
    }
    return found;
  }
  // Returns the adapter with this column of A's products.
  PRIMUS_FORMULA const RowAdapter* of_low(std::int64_t row, std::int64_t column) const {
    return find(row, [=](const RowAdapter& a) { return column >= a.low && column < a.low + a.rank; });
  }
  // Returns the adapter of this column of y.
  PRIMUS_FORMULA const RowAdapter* of_column(std::int64_t row, std::int64_t column) const {
    return find(row, [=](const RowAdapter& a) { return column >= a.first && column < a.first + a.columns; });
  }
  // Returns the matrix at an address of an entry; null if there is none.
  template <class T>
  PRIMUS_FORMULA const T* matrix(std::int64_t address) const {
    return address == 0 ? nullptr
                        : reinterpret_cast<const T*>(reinterpret_cast<const char*>(entries) + address);
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
