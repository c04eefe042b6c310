// Adapters that differ between the rows of a pass. Models that share their base weights
// (engine/runtime/shared_parameters.h) read their texts in one pass of the base model. The product with a
// base weight is computed once for all rows. The adapters are then applied to all rows by one operator
// (RowAdapterTables), or to the rows of one model after another, by the operators that apply them without
// other models.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/system/thread_pool.h"
#include "engine/runtime/tape.h"

namespace primus::engine {

// Consecutive rows [begin, end) with the adapters of one model. The products with the adapters are computed
// for the rows [first, first + count), which include these rows, and results of other rows are dropped. So
// only a few fixed values of `count` occur, and the memory of each is measured.
struct AdapterRun {
  std::size_t model = 0;
  std::int64_t begin = 0, end = 0;
  std::int64_t first = 0, count = 0;
  auto operator<=>(const AdapterRun&) const = default;
};

// Finds the weights of models with adapters by the weights of their base model.
class RowAdapters {
 public:
  // Adds the next model; the first one has number 0. Its weights have the names of the base model's weights.
  void add(ParameterStore& base, ParameterStore& model);
  // Returns the weight of the model; null if it has no adapter.
  Parameter* of(const Parameter& base, std::size_t model) const;
  std::size_t models() const { return models_; }
  // Returns the weights of the models by the weights of the base model: one entry per model, or fewer if the
  // last models have no adapter of the weight. An entry is null if its model has no adapter.
  const std::unordered_map<const Parameter*, std::vector<Parameter*>>& adapted() const { return adapted_; }

 private:
  std::size_t models_ = 0;
  std::unordered_map<const Parameter*, std::vector<Parameter*>> adapted_;
};

class RowAdapterTables;

// The adapters of a pass. Model code passes it to Tape::begin(), and it must outlive the pass. The tape does
// not record.
struct RowAdapterPass {
  const RowAdapters& adapters;
  // For weights without a table: their adapters are computed for one run after another.
  std::span<const AdapterRun> runs;
  // For weights with a table: the adapters of all rows are computed together. Null: no weight has a table.
  const RowAdapterTables* tables = nullptr;
  Tensor models = {};  // [rows] int32: the models of the rows, if there are tables

  // Returns whether a row may have an adapter of this weight of the base model.
  bool adapts(const Parameter& weight) const;
};

// Returns whether a row of this pass may have an adapter of the weight.
bool adapts_rows(const Tape& tape, const Parameter& weight);

// Applies the adapters of the rows to y, the product of x and a base weight. If the weight has no table,
// `apply(y, x, weight)` is called for each run of rows. It gets the run's rows of y and x, and the weight of
// the run's model, and returns y with the adapters of that weight. Without a RowAdapterPass, returns y.
Value with_row_adapters(Value y, const Value& x, const Parameter& weight,
                        FunctionRef<Value(Value y, const Value& x, Parameter& weight)> apply);

}  // namespace primus::engine
