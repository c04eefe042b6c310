#include "lm/model/moment_codes.h"

#include <algorithm>
#include <cmath>

#include "turbo/block_moments.h"

namespace primus {
namespace {

template <class Codes>
void decode(std::span<const std::uint8_t> codes, std::span<const BFloat16> scales, std::int64_t first,
            std::span<float> out) {
  const std::int64_t block = turbo::kMomentBlock, before = first % block;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto of_block = static_cast<std::size_t>((before + static_cast<std::int64_t>(i)) / block);
    out[i] = Codes::decoded(codes[i], static_cast<float>(scales[of_block]));
  }
}

template <class Codes>
MomentCodes encode(std::span<const float> values) {
  const auto block = static_cast<std::size_t>(turbo::kMomentBlock);
  MomentCodes result{.codes = std::vector<std::uint8_t>(values.size()),
                     .scales = std::vector<BFloat16>(values.size() / block)};
  for (std::size_t b = 0; b < result.scales.size(); ++b) {
    const std::span<const float> of_block = values.subspan(b * block, block);
    float largest = 0;
    for (const float value : of_block) largest = std::max(largest, std::abs(value));
    const std::uint32_t unit = Codes::unit_field(largest);
    result.scales[b] = Codes::scale(unit);
    for (std::size_t i = 0; i < block; ++i) result.codes[b * block + i] = Codes::nearest(of_block[i], unit);
  }
  return result;
}

}  // namespace

void decode_moments(DType dtype, std::span<const std::uint8_t> codes, std::span<const BFloat16> scales,
                    std::int64_t first, std::span<float> out) {
  dtype == DType::kF8E4M3 ? decode<turbo::FirstMomentCodes>(codes, scales, first, out)
                          : decode<turbo::SecondMomentCodes>(codes, scales, first, out);
}

MomentCodes encode_moments(DType dtype, std::span<const float> values) {
  return dtype == DType::kF8E4M3 ? encode<turbo::FirstMomentCodes>(values)
                                 : encode<turbo::SecondMomentCodes>(values);
}

}  // namespace primus
