// Scratch memory of one operator call.
#pragma once

#include "tensor/arena.h"
#include "tensor/tensor.h"

namespace primus {

// A tensor in a scratch arena. Its memory is released (in stream order) when the object goes out of scope.
class ScratchTensor {
 public:
  ScratchTensor(Arena& arena, DType dtype, const Shape& shape)
      : arena_(arena),
        block_(arena.allocate(shape.elements() * size_of(dtype))),
        tensor_(block_.address, dtype, shape) {}
  ~ScratchTensor() { arena_.release(block_); }
  ScratchTensor(const ScratchTensor&) = delete;
  ScratchTensor& operator=(const ScratchTensor&) = delete;
  const Tensor& get() const { return tensor_; }

 private:
  Arena& arena_;
  Arena::Block block_;
  Tensor tensor_;
};

}  // namespace primus
