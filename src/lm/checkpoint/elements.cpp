#include "lm/checkpoint/elements.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.h"
#include "tensor/bfloat16.h"
#include "tensor/float16.h"

namespace primus {
namespace {

template <class Source, class Convert>
void read_all(std::span<const std::byte> from, std::span<float> to, Convert&& value_of) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Source element;  // a copy, because file offsets may be unaligned
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
      return read_all<Float16>(from, out, [](Float16 v) { return static_cast<float>(v); });
    case DType::kF64:
      return read_all<double>(from, out, [](double v) { return static_cast<float>(v); });
    case DType::kI64:
      return read_all<std::int64_t>(from, out, [](std::int64_t v) { return static_cast<float>(v); });
    case DType::kI32:
      return read_all<std::int32_t>(from, out, [](std::int32_t v) { return static_cast<float>(v); });
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
      return write_all(from, out, [](float v) { return Float16(v); });
    case DType::kI64:
      return write_all(from, out, [](float v) { return static_cast<std::int64_t>(v); });
    default:
      throw not_a_float("weights cannot be written as", dtype);
  }
}

std::string_view torch_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

DType dtype_of_torch_name(std::string_view name) {
  return name == "bfloat16" ? DType::kBF16 : name == "float16" ? DType::kF16 : DType::kF32;
}

}  // namespace primus
