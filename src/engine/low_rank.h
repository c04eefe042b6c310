// Low-rank adapters on the tape (LowRank): what operators of several kinds do around the two products.
//
// Dropout zeroes elements of what A reads, or of what B gives, at random (turbo/dropout/dropout.h). No mask
// is kept: the backward pass draws it again. What A reads is made again, too, for A's gradient.
#pragma once

#include <utility>

#include "engine/tape.h"

namespace primus::engine {

// What dropout draws by besides the adapter's name.
struct DropoutSource {  // also of gradients that are rounded at random (PrecisionRecipe::at_random)
  std::uint64_t seed = 0;
  Tensor scalars = {};  // the step's (turbo/step_scalars.h)
  // Each token's number within the step's global batch, int32: of the tokens that this rank's layers work on
  // together with their tensor group, and of those that it holds between layers. The same without a group.
  Value of_layer = {}, own = {};
};

// While this lives, adapters on the tape have dropout where they ask for it (LowRank::dropout). Without it
// they have none: evaluation, generation.
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

// Which tokens rows are: DropoutSource's.
enum class RowsOf : std::uint8_t { kLayer, kOwn };

// What A reads, of x: [rows, in].
Value before_low_rank(const Value& x, const LowRank& adapter, RowsOf rows);
// What B's product y is added to the matrix' as: [rows, out].
Value after_low_rank(Value y, const LowRank& adapter, RowsOf rows);

}  // namespace primus::engine
