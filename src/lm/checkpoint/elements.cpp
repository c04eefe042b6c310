#include "lm/checkpoint/elements.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "tensor/bfloat16.h"

namespace primus {
namespace {

// IEEE binary16 to float, exactly.
float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000U) << 16;
  const std::uint32_t exponent = h >> 10 & 0x1fU, mantissa = h & 0x3ffU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t bits =
      exponent == 0x1f ? 0x7f800000U | mantissa << 13 : (exponent + 112) << 23 | mantissa << 13;
  return std::bit_cast<float>(sign | bits);
}

// To nearest even; beyond the largest finite value, infinity.
std::uint16_t float_to_half(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(u >> 16 & 0x8000U);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // subnormal: units of 2^-24, where scaling up is exact
    const float units = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyint(units)));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded >> 13) - (112U << 10)));
}

template <class Source, class Convert>
void read_all(std::span<const std::byte> from, std::span<float> to, Convert&& value_of) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Source element;  // file offsets need not be aligned
    std::memcpy(&element, from.data() + i * sizeof(Source), sizeof(Source));
    to[i] = value_of(element);
  }
}

template <class Convert>
void write_all(std::span<const float> from, std::span<std::byte> to, Convert&& element_of) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto element = element_of(from[i]);
    std::memcpy(to.data() + i * sizeof(element), &element, sizeof(element));
  }
}

Error not_a_float(const std::string& what, DType dtype) {
  return unsupported(what + " " + std::string(name_of(dtype)), "weights must be fp32, bf16, fp16 or fp64");
}

}  // namespace

void require_float(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kF64:
      return;
    case DType::kF8E4M3:
      throw unsupported("tensor '" + std::string(tensor.name) + "' is quantised to fp8",
                        "'primus model import' writes the model in bf16");
    default:
      throw not_a_float("tensor '" + std::string(tensor.name) + "' is", tensor.dtype);
  }
}

void to_float(DType dtype, std::span<const std::byte> from, std::span<float> out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), from.data(), out.size_bytes());
      return;
    case DType::kBF16:
      return read_all<BFloat16>(from, out, [](BFloat16 v) { return static_cast<float>(v); });
    case DType::kF16:
      return read_all<std::uint16_t>(from, out, half_to_float);
    case DType::kF64:
      return read_all<double>(from, out, [](double v) { return static_cast<float>(v); });
    default:
      throw not_a_float("elements are", dtype);
  }
}

void from_float(std::span<const float> from, DType dtype, std::span<std::byte> out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), from.data(), from.size_bytes());
      return;
    case DType::kBF16:
      return write_all(from, out, [](float v) { return BFloat16(v); });
    case DType::kF16:
      return write_all(from, out, float_to_half);
    default:
      throw not_a_float("weights cannot be written as", dtype);
  }
}

}  // namespace primus
