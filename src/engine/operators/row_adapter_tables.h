// Tables on the device, with which one operator applies the adapters of all rows to a product
// (turbo/row_adapters). The addresses of the adapters are in the tables, and the models of the rows in a
// tensor. A recorded pass can therefore be replayed for rows of other models.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "engine/operators/row_adapters.h"
#include "engine/runtime/phase.h"
#include "engine/runtime/rank.h"
#include "turbo/row_adapters/row_adapters.h"

namespace primus::engine {

class RowAdapterTables {
 public:
  struct Table {
    Tensor entries;                // turbo::AddRowAdapters::table
    std::int64_t low_columns = 0;  // turbo::AddRowAdapters::low_columns
  };

  // Makes the tables of the adapted weights in the memory of the phase. Embeddings, heads, and
  // weights for which a model has magnitudes (DoRA) get no table. If the device does not support the
  // operator, no weight gets one. The weights of `adapters` must outlive the tables and keep their memory.
  RowAdapterTables(Rank& rank, Phase& phase, const RowAdapters& adapters);

  // Returns the table of a weight of the base model; null if there is none.
  const Table* of(const Parameter& weight) const;
  // Returns the memory for the models of the rows of a pass, [rows] int32. `rows`: at most
  // turbo::AddRowAdapters::kMaxRows.
  Tensor models(std::int64_t rows) const { return models_.slice(0, rows); }
  // Returns whether a pass of this many rows can use the tables.
  bool support(std::int64_t rows) const {
    return !tables_.empty() && rows <= turbo::AddRowAdapters::kMaxRows;
  }
  // Returns whether all adapted weights have a table.
  bool complete() const { return complete_; }

 private:
  std::unordered_map<const Parameter*, Table> tables_;
  Tensor models_;
  bool complete_ = true;
};

// Returns y, the product of x and the weight of a table, with the adapters of the rows. `models`: [rows]
// int32. Overwrites y if there is no other reference to y.
Value add_row_adapters(const Value& y, const Value& x, const RowAdapterTables::Table& table,
                       const Tensor& models);

}  // namespace primus::engine
