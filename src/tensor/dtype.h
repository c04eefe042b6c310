// Element types of tensors and files.
#pragma once

#include <cstdint>
#include <string_view>

namespace primus {

enum class DType : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2
};

// Returns the bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  return 0;
}

// Returns the name in output and experiments: "fp32", "bf16", "fp16", "fp64", "int64", ...
std::string_view name_of(DType dtype);

}  // namespace primus
