// Memory that a rank needs in one phase of its work, such as the cache of keys and values while a model that
// is trained also writes. It lies in the stash, at whose other end the operators of that phase work, and is
// given back at the phase's end. Phases that follow one another therefore share memory: a rank that measures
// them needs the most that one of them takes, and not their sum.
//
// Begin and end a phase where the stash is empty, between steps: blocks that outlive it would lie elsewhere
// than measured. Not thread-safe; the rank must outlive it.
#pragma once

#include <vector>

#include "base/check.h"
#include "engine/rank.h"

namespace primus::engine {

class Phase {
 public:
  explicit Phase(Rank& rank) : rank_(rank) { PRIMUS_CHECK("Phase", rank.stash().empty()); }

  // Zeroed memory, for as long as the phase lasts.
  Tensor tensor(DType dtype, const Shape& shape) {
    blocks_.push_back(rank_.stash().allocate(shape.elements() * size_of(dtype)));
    const Tensor tensor = blocks_.back().view(dtype, shape);
    if (!rank_.measuring()) rank_.compute().fill_zero(tensor.data, tensor.bytes());
    return tensor;
  }

 private:
  Rank& rank_;
  std::vector<Buffer> blocks_;
};

}  // namespace primus::engine
