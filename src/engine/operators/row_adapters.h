// Adapters that differ between the rows of a pass. Models that share their base weights
// (engine/runtime/shared_parameters.h) read their texts in one pass of the base model. The product with a
// base weight is computed once for all rows. The adapters of a model are then applied to the rows of its
// texts, by the operators that apply them without other models.
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

 private:
  std::size_t models_ = 0;
  std::unordered_map<const Parameter*, std::vector<Parameter*>> adapted_;  // one entry per model
};

// While this object lives, linear() and the embedding of `tape` apply the adapters of the rows. The tape does
// not record, and is used by the thread that created this object. The arguments must outlive it.
class RowAdapterScope {
 public:
  RowAdapterScope(const Tape& tape, const RowAdapters& adapters, std::span<const AdapterRun> runs);
  ~RowAdapterScope();
  RowAdapterScope(const RowAdapterScope&) = delete;
  RowAdapterScope& operator=(const RowAdapterScope&) = delete;

  // Returns the thread's scope for the tape; null if there is none.
  static const RowAdapterScope* of(const Tape& tape);
  // Returns whether a row has an adapter of this weight of the base model.
  bool adapts(const Parameter& weight) const;

 private:
  friend Value with_row_adapters(Value y, const Value& x, const Parameter& weight,
                                 FunctionRef<Value(Value y, const Value& x, Parameter& weight)> apply);
  const Tape& tape_;
  const RowAdapters& adapters_;
  std::span<const AdapterRun> runs_;
  const RowAdapterScope* outer_;
};

// Returns whether a row of this pass has an adapter of the weight (RowAdapterScope).
bool adapts_rows(const Tape& tape, const Parameter& weight);

// Applies the adapters of the rows to y, the product of x and a base weight. For each run of rows,
// `apply(y, x, weight)` gets the run's rows of y and x, and the weight of the run's model. It returns y with
// the adapters of that weight. Without a RowAdapterScope, returns y.
Value with_row_adapters(Value y, const Value& x, const Parameter& weight,
                        FunctionRef<Value(Value y, const Value& x, Parameter& weight)> apply);

}  // namespace primus::engine
