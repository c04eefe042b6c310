#include "tensor/tensor.h"

namespace primus {

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(extents_[i]);
  return text + "]";
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  assert(shape.rank() >= 1 && 0 <= begin && begin <= end && end <= shape[0]);
  std::int64_t inner = 1;
  for (int i = 1; i < shape.rank(); ++i) inner *= shape[i];
  Shape part;
  switch (shape.rank()) {
    case 1:
      part = {end - begin};
      break;
    case 2:
      part = {end - begin, shape[1]};
      break;
    case 3:
      part = {end - begin, shape[1], shape[2]};
      break;
    default:
      part = {end - begin, shape[1], shape[2], shape[3]};
      break;
  }
  // In measure mode `data` is null, and the data of the slice is null, too.
  void* base = data ? static_cast<char*>(data) + begin * inner * size_of(dtype) : nullptr;
  return {base, dtype, part};
}

}  // namespace primus
