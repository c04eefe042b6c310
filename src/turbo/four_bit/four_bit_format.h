// The 4-bit formats of bitsandbytes for frozen weights (Dettmers et al. 2023, arXiv:2305.14314).
//
// A tensor is flattened and divided into blocks. A block never starts again at the beginning of a row. Each
// number becomes a code of 4 bits, and number = code_values(type)[code] * factor of its block. The factor is
// the largest magnitude of the block. With double quantisation (`nested`), a factor is stored in 8 bits:
//
//   factor = nested_values()[byte] * (nested factor of its 256 blocks) + offset
//
// where the product and the sum are rounded to fp32 separately, and `offset` is the mean of all factors of
// the tensor. Two codes share a byte, and the first of them is in the high half.
//
// Functions on host memory. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace primus::turbo {

enum class FourBitType : std::uint8_t {
  kNone,  // not quantised
  kNf4,   // quantiles of the normal distribution
  kFp4,   // floating-point numbers with 2 bits of exponent and 1 bit of mantissa
};

// Returns "nf4" or "fp4".
std::string_view name_of(FourBitType type);

struct FourBitFormat {
  FourBitType type = FourBitType::kNone;
  std::int64_t block = 64;  // number of elements that share a factor; even
  bool nested = true;       // whether factors are stored in 8 bits

  static constexpr std::int64_t kNestedBlock = 256;  // number of factors that share a nested factor

  explicit operator bool() const { return type != FourBitType::kNone; }
  bool operator==(const FourBitFormat&) const = default;
};

inline constexpr std::int64_t kFourBitCodes = 16, kNestedCodes = 256;

// Returns the number of each code. All numbers are in [-1, 1].
const std::array<float, kFourBitCodes>& code_values(FourBitType type);
// Returns the numbers of the 8-bit codes of factors, ascending (bitsandbytes' dynamic map).
const std::array<float, kNestedCodes>& nested_values();

// The sizes of a quantised tensor.
struct FourBitSizes {
  std::int64_t packed = 0;  // bytes of the codes
  std::int64_t blocks = 0;  // number of factors
  std::int64_t nested = 0;  // number of nested factors; 0 without double quantisation

  FourBitSizes(std::int64_t elements, const FourBitFormat& format)
      : packed((elements + 1) / 2), blocks((elements + format.block - 1) / format.block) {
    if (format.nested) nested = (blocks + FourBitFormat::kNestedBlock - 1) / FourBitFormat::kNestedBlock;
  }
};

// A quantised tensor in host memory.
struct FourBitTensor {
  std::vector<std::uint8_t> packed;
  std::vector<float> factors;              // of the blocks or, with double quantisation, the nested factors
  std::vector<std::uint8_t> factor_codes;  // with double quantisation: a code per block
  float offset = 0;
  // The numbers of the codes of factors, if they are not nested_values(): some versions of PyTorch round
  // these numbers differently.
  std::vector<float> nested_map = {};

  bool operator==(const FourBitTensor&) const = default;
};

// Quantises a tensor to the bits of bitsandbytes 0.50 on x86-64. bitsandbytes adds the factors for the offset
// in an order that depends on the device; this function uses the order of PyTorch's vectors of 8 numbers on
// one thread. A block that contains NaN or infinity has meaningless codes, and its factor is NaN or infinite.
FourBitTensor quantise_four_bit(std::span<const float> values, const FourBitFormat& format);
// Writes the numbers [first, first + out.size()) of a quantised tensor.
void read_four_bit(const FourBitTensor& tensor, const FourBitFormat& format, std::int64_t first,
                   std::span<float> out);

}  // namespace primus::turbo
