// Shapes and tensor views. A Tensor is a plain value that refers to memory of a device. A Tensor owns
// nothing. Code outside of turbo/ never dereferences `data`, because the host cannot access the memory of a
// GPU. The guard device of the tests checks this on CPUs.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tensor/dtype.h"

namespace primus {

// Up to four extents, outermost first. A default Shape is a scalar with one element.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents) {
    assert(extents.size() <= kMaxRank);
    for (auto e : extents) extents_[rank_++] = e;
  }

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return extents_[i]; }
  std::int64_t elements() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= extents_[i];
    return n;
  }
  bool operator==(const Shape& other) const = default;
  std::string to_string() const;  // "[2, 3]"

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

// A view of contiguous elements in row-major order. `data` is a device address, or null in measure mode.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * size_of(dtype); }
  // cols() returns the extent of the last dimension, rows() the product of all other extents.
  std::int64_t cols() const { return shape.rank() == 0 ? 1 : shape[shape.rank() - 1]; }
  std::int64_t rows() const { return cols() == 0 ? 0 : elements() / cols(); }
  // Returns true if this is an optional operand that the caller has omitted.
  bool absent() const { return absent_; }

  Tensor() : absent_(true) {}
  Tensor(void* address, DType type, Shape extents)
      : data(address), dtype(type), shape(extents), absent_(false) {}

  // Returns the same elements with another shape of equal size.
  Tensor reshaped(Shape to) const {
    assert(to.elements() == elements());
    return {data, dtype, to};
  }
  // Returns rows [begin, end) of the first dimension.
  Tensor slice(std::int64_t begin, std::int64_t end) const;
  // Returns a tensor of the same shape that begins `offset` elements later, for kernels that address rows by
  // a stride.
  Tensor from(std::int64_t offset) const {
    return {data ? static_cast<char*>(data) + offset * size_of(dtype) : nullptr, dtype, shape};
  }

 private:
  bool absent_;
};

}  // namespace primus
