// Random numbers for tests of tapes, and their transfer to and from device memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random/random.h"
#include "engine/runtime/rank.h"

namespace primus::test {

// Returns standard normal numbers. Equal seeds give equal numbers.
inline std::vector<float> numbers(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  fill_normal(RandomStream(seed, RandomPurpose::kTest), 0, values);
  return values;
}

template <class T>
void write(engine::Rank& rank, const Tensor& tensor, const std::vector<T>& values) {
  rank.compute().copy_to_device(tensor.data, values.data(), tensor.bytes());
  rank.compute().synchronize();
}

inline std::vector<float> read(engine::Rank& rank, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  rank.compute().copy_to_host(values.data(), tensor.data, tensor.bytes());
  rank.compute().synchronize();
  return values;
}

}  // namespace primus::test
