// Low-rank adapters on the tape (LowRank): the operations before A's product and after B's product.
//
// Dropout zeroes random elements of A's input or of B's output (turbo/dropout/dropout.h). The mask is not
// stored: the backward pass draws the same random numbers again. A's gradient also needs A's input, which the
// backward pass recomputes.
#pragma once

#include <utility>

#include "base/system/thread_pool.h"
#include "comm/communicator.h"
#include "engine/runtime/tape.h"

namespace primus::engine {

// The random source of dropout. This source and the adapter's name determine the mask.
struct DropoutSource {  // stochastic rounding of gradients also uses it (PrecisionRecipe::at_random)
  std::uint64_t seed = 0;
  Tensor scalars = {};  // the step's scalars (turbo/step_scalars.h)
  // Each token's number within the step's global batch, int32. of_layer: the tokens that the layers of this
  // rank's tensor group process together. own: the tokens that this rank holds between layers. Without a
  // tensor group, `of_layer` and `own` are equal.
  Value of_layer = {}, own = {};
};

// While this object lives, adapters on the tape apply their dropout (LowRank::dropout). Without this object,
// as in evaluation and generation, adapters apply no dropout.
class DropoutScope {
 public:
  DropoutScope(Tape& tape, DropoutSource source) : tape_(tape), source_(std::move(source)) {
    tape_.set_dropout(&source_);
  }
  ~DropoutScope() { tape_.set_dropout(nullptr); }
  DropoutScope(const DropoutScope&) = delete;
  DropoutScope& operator=(const DropoutScope&) = delete;

 private:
  Tape& tape_;
  DropoutSource source_;
};

// Selects the token numbers of the rows, DropoutSource::of_layer or DropoutSource::own.
enum class RowsOf : std::uint8_t { kLayer, kOwn };

// Returns A's input for x: [rows, in].
Value before_low_rank(const Value& x, const LowRank& adapter, RowsOf rows);
// Returns the term that B's product y adds to the matrix's output: [rows, out].
Value after_low_rank(Value y, const LowRank& adapter, RowsOf rows);

// Returns whether add_low_rank() can add B's product to a matrix's product: nothing is applied to B's product
// (dropout), and its precision is that of the tape.
bool adds_low_rank(const Tape& tape, const LowRank& adapter);
// Returns y + low · upᵀ: [rows, out]. Overwrites y if there is no other reference to y. The sum is rounded
// once.
Value add_low_rank(const Value& y, const Value& low, Parameter& up);

// Adds the terms of the adapters in LowRank::parts to y, the product of x and the matrix, and scales the
// result to the adapters' magnitudes. `product_of(adapter)` returns (x · downᵀ) · upᵀ: [rows, rows of up].
// `columns`: the ranks that divide the columns of the matrix; null: this rank has all columns. `columns` must
// outlive the tape's passes.
Value with_part_adapters(Value y, Parameter& weight, FunctionRef<Value(const LowRank&)> product_of,
                         comm::Communicator* columns = nullptr);

}  // namespace primus::engine
