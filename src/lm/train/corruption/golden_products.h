// Repeats a fixed matrix product during training, and compares the bits of its result with those at the start
// on the same device. A device whose units compute wrongly gives other bits. Internal to lm/train. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/runtime/rank.h"
#include "lm/train/corruption/device_hash.h"

namespace primus {

class GoldenProducts {
 public:
  // Computes the products for the first time. `compute`: type of the operands (bf16 or fp32). The product is
  // large enough for all units of a GPU: [4096, 1024] x [1024, 4096] with 80 MiB of memory; on a CPU [512,
  // 512] x [512, 512]. Throws Error if the device has too little memory.
  GoldenProducts(engine::Rank& rank, DType compute, DeviceHash& hash);
  ~GoldenProducts();
  GoldenProducts(const GoldenProducts&) = delete;
  GoldenProducts& operator=(const GoldenProducts&) = delete;

  // Returns whether two products at the start had the same bits. If not, the device or its library chooses
  // freely between orders of sums, and a comparison means nothing.
  bool repeatable() const { return repeatable_; }
  // Repeats the products. Returns whether they have the bits of the start. Blocks.
  bool repeat();
  // Inverts a bit of an operand, for tests.
  void damage();

 private:
  struct Product;
  std::uint64_t run();

  engine::Rank& rank_;
  DeviceHash& hash_;
  std::unique_ptr<Product> product_;
  std::uint64_t golden_ = 0;
  bool repeatable_ = false;
};

}  // namespace primus
