// Memory that a rank needs in one phase of its work, such as the KV cache when training pauses to generate.
// This memory lies at one end of the stash, while operators of the phase allocate at the other end. The
// phase's memory is released when the phase ends. Consecutive phases therefore share memory: a measuring rank
// needs the maximum over its phases, not their sum.
//
// Begin and end a phase between steps, when the stash is empty. Otherwise the addresses of surviving blocks
// would differ from measure mode. Not thread-safe; the rank must outlive the phase.
#pragma once

#include <vector>

#include "base/check.h"
#include "engine/runtime/rank.h"

namespace primus::engine {

class Phase {
 public:
  explicit Phase(Rank& rank) : rank_(rank) { PRIMUS_CHECK("Phase", rank.stash().empty()); }

  // Allocates zeroed memory that lives until the phase ends.
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
