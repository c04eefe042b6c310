// Weights in 4 bits as checkpoints of bitsandbytes store them (nf4, fp4; turbo/four_bit/four_bit_format.h):
//
//   NAME              uint8 [(elements + 1) / 2, 1]: two codes per byte, the high half first
//   NAME.quant_map    fp32 [16]: the number of each code
//   NAME.absmax       fp32: a factor for each block of the flattened tensor
//   NAME.quant_state.bitsandbytes__nf4 (or ...__fp4)   JSON in uint8: shape, blocksize, dtype
//
// With double quantisation, absmax is uint8. A factor is then nested_quant_map[absmax] times the
// nested_absmax of its block, plus nested_offset. A block may contain elements of several rows.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lm/checkpoint/safetensors.h"
#include "lm/checkpoint/tensor_source.h"
#include "lm/model/language_tensors.h"
#include "turbo/four_bit/four_bit_format.h"

namespace primus {

// A quantised tensor in files that stay open.
struct StoredFourBit {
  std::string name;
  turbo::FourBitFormat format;
  std::int64_t nested_block = 0;
  float nested_offset = 0;
  DType dtype = DType::kF32;  // type before the quantisation
  std::vector<std::int64_t> shape;
  TensorView packed, absmax;
  std::vector<float> map, nested_map, nested_absmax;

  // Returns the factor of each block.
  std::vector<float> factors() const;
  // Throws kUnsupported if the format is not `wanted`, or is none that bitsandbytes writes.
  void require(const turbo::FourBitFormat& wanted) const;
  // Returns the tensor bit for bit; throws as require() does.
  turbo::FourBitTensor tensor(const turbo::FourBitFormat& wanted) const;
};

// Finds a tensor of a folder or checkpoint by its name there.
using TensorFinder = std::function<std::optional<TensorView>(const std::string& name)>;

// Returns the tensor that has the name `full`; nullopt if this tensor is not quantised to 4 bits. Throws
// kInvalid, and names `where`, if the parts contradict each other or `shape`. Adds the names of the parts to
// `used`.
std::optional<StoredFourBit> find_stored_four_bit(const TensorFinder& find, const std::string& full,
                                                  std::span<const std::int64_t> shape, TensorNames& used,
                                                  const std::string& where);

// Returns whether `name` is the state of a quantised tensor.
bool names_four_bit_state(std::string_view name);

// A tensor's sources for a checkpoint, in the order of FourBitTensor's arrays. `held`: the ranges of each
// array that the rank holds.
struct FourBitArrays {
  struct Array {
    HeldRuns held;
    std::function<void(std::uint64_t offset, std::span<std::byte> out)> fill;
  };
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::kF32;  // type of the values
  turbo::FourBitFormat format;
  float offset = 0;
  std::vector<float> nested_map;  // FourBitTensor::nested_map
  Array packed, factors, codes;
  bool holds_rest = false;  // this rank also provides the offset and the numbers of codes
};
void add_four_bit_sources(const FourBitArrays& arrays, std::vector<TensorSource>& sources);

}  // namespace primus
