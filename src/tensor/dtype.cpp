#include "tensor/dtype.h"

namespace primus {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "fp16";
    case DType::kF64:
      return "fp64";
    case DType::kI64:
      return "int64";
    case DType::kI32:
      return "int32";
    case DType::kI16:
      return "int16";
    case DType::kI8:
      return "int8";
    case DType::kU16:
      return "uint16";
    case DType::kU8:
      return "uint8";
    case DType::kBool:
      return "bool";
    case DType::kF8E4M3:
      return "fp8 e4m3";
    case DType::kF8E5M2:
      return "fp8 e5m2";
  }
  return "?";
}

}  // namespace primus
