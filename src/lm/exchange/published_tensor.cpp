#include "lm/exchange/published_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "lm/checkpoint/elements.h"
#include "lm/exchange/four_bit.h"

namespace primus {
namespace {

// Converts float8 e4m3 (OCP 8-bit floating point, the variant without infinities): the exponent's bias is 7,
// and 0x7f is NaN.
float e4m3_to_float(std::uint8_t x) {
  const float sign = (x & 0x80U) != 0 ? -1.0F : 1.0F;
  const int exponent = x >> 3 & 0xf, mantissa = x & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

// Values of float4 e2m1 (OCP microscaling formats).
constexpr std::array<float, 16> kE2m1 = {0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};

std::uint8_t byte_at(const TensorView& t, std::int64_t i) {
  return static_cast<std::uint8_t>(t.data[static_cast<std::size_t>(i)]);
}

std::vector<std::int64_t> copy_of(std::span<const std::int64_t> shape) {
  return {shape.begin(), shape.end()};
}

Error misshapen(std::string_view name, std::span<const std::int64_t> has,
                std::span<const std::int64_t> needs) {
  return invalid("tensor '" + std::string(name) + "' has shape " + shape_text(has) +
                     ", and the model needs " + shape_text(needs),
                 "check that config.json belongs to these weights");
}

// Reads [out, in] in float8 with a scale for each block of 128 x 128.
PublishedTensor float8(const TensorView& tensor, const TensorView& scales, const Path& folder) {
  constexpr std::int64_t kBlock = 128;
  if (tensor.shape.size() != 2)
    throw unsupported("tensor '" + std::string(tensor.name) + "' is fp8, but not a matrix");
  const std::int64_t columns = tensor.shape[1], across = (columns + kBlock - 1) / kBlock;
  const std::vector<std::int64_t> expected = {(tensor.shape[0] + kBlock - 1) / kBlock, across};
  if (copy_of(scales.shape) != expected) {
    throw misshapen(scales.name, scales.shape, expected).at(folder.string());
  }
  if (scales.dtype != DType::kF32) {
    throw unsupported(
        fmt::format("tensor '{}' is {}, but fp8 scales must be fp32", scales.name, name_of(scales.dtype)))
        .at(folder.string());
  }
  std::array<float, 256> values;
  for (int i = 0; i < 256; ++i)
    values[static_cast<std::size_t>(i)] = e4m3_to_float(static_cast<std::uint8_t>(i));
  PublishedTensor result{.dtype = DType::kBF16, .plain = {}, .read = {}};
  result.read = [=](std::int64_t first, std::span<float> out) {
    const auto count = static_cast<std::int64_t>(out.size());
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t row = (first + i) / columns, column = (first + i) % columns;
      float scale = 0;
      std::memcpy(&scale, scales.data.data() + (row / kBlock * across + column / kBlock) * 4, 4);
      const std::int64_t end = std::min({count, i + kBlock - column % kBlock, i + columns - column});
      for (; i < end; ++i) out[static_cast<std::size_t>(i)] = values[byte_at(tensor, first + i)] * scale;
    }
  };
  return result;
}

// Reads blocks [..., rows, groups, 16] with two numbers per byte, low half first, and scales [..., rows,
// groups]. Published tensors of other types than float4 have exchanged last axes: [..., groups * 32, rows].
PublishedTensor float4(const TensorView& blocks, const TensorView& scales, const std::string& name,
                       const std::vector<std::int64_t>& shape, const Path& folder) {
  const std::size_t rank = shape.size();
  if (rank != 3) throw unsupported("tensor '" + name + "' is mxfp4, but does not have three dimensions");
  const std::int64_t inner = shape[1], rows = shape[2], groups = inner / 32;
  const std::vector<std::int64_t> expected = {shape[0], rows, groups, 16};
  if (inner % 32 != 0 || copy_of(blocks.shape) != expected) {
    throw misshapen(blocks.name, blocks.shape, expected).at(folder.string());
  }
  const std::vector<std::int64_t> per_group(expected.begin(), expected.end() - 1);
  if (copy_of(scales.shape) != per_group)
    throw misshapen(scales.name, scales.shape, per_group).at(folder.string());
  if (blocks.dtype != DType::kU8 || scales.dtype != DType::kU8) {
    throw unsupported("tensor '" + name + "': mxfp4 is stored as uint8").at(folder.string());
  }
  PublishedTensor result{.dtype = DType::kBF16, .plain = {}, .read = {}};
  // Powers of two. They are fp64, so that every product is exact.
  std::array<double, 256> powers;
  for (int e = 0; e < 256; ++e) powers[static_cast<std::size_t>(e)] = std::ldexp(1.0, e - 127);
  result.read = [=](std::int64_t first, std::span<float> out) {
    const auto count = static_cast<std::int64_t>(out.size());
    for (std::int64_t i = 0; i < count;) {
      const std::int64_t expert = (first + i) / (inner * rows), column = (first + i) / rows % inner;
      const unsigned shift = column % 2 == 0 ? 0 : 4;
      for (std::int64_t row = (first + i) % rows; row < rows && i < count; ++row, ++i) {
        const std::int64_t group = (expert * rows + row) * groups + column / 32;
        const unsigned pair = byte_at(blocks, group * 16 + column % 32 / 2);
        const double value = static_cast<double>(kE2m1[pair >> shift & 0xfU]);
        out[static_cast<std::size_t>(i)] = static_cast<float>(value * powers[byte_at(scales, group)]);
      }
    }
  };
  return result;
}

// Throws if a finite number in `doubles` became infinite in `values` by rounding.
void refuse_beyond_float(std::string_view name, std::span<const std::byte> doubles,
                         std::span<const float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isinf(values[i])) continue;
    double value = 0;
    std::memcpy(&value, doubles.data() + i * sizeof(value), sizeof(value));
    if (std::isfinite(value)) {
      throw invalid(fmt::format("tensor '{}' holds {:g}, which is beyond fp32", name, value));
    }
  }
}

}  // namespace

PublishedTensor find_published(const LanguageTensors& tensors, const std::string& name,
                               const std::vector<std::int64_t>& shape, TensorNames& used,
                               bool whole_numbers) {
  const SafetensorsFolder& folder = tensors.folder();
  const std::string full = tensors.full_name(name);
  const auto blocks = folder.find(full + "_blocks"), scales = folder.find(full + "_scales");
  if (blocks && scales && !folder.find(full)) {
    used.insert({full + "_blocks", full + "_scales"});
    return float4(*blocks, *scales, full, shape, folder.folder());
  }
  if (auto four_bit = find_four_bit(folder, full, shape, used)) return std::move(*four_bit);
  const TensorView tensor = tensors.at(name, shape);
  used.insert(full);
  if (tensor.dtype == DType::kF8E4M3) {
    used.insert(full + "_scale_inv");
    return float8(tensor, folder.at(full + "_scale_inv"), folder.folder());
  }
  if (!whole_numbers || tensor.dtype != DType::kI64) require_float(tensor);
  const auto size = static_cast<std::size_t>(size_of(tensor.dtype));
  return {.dtype = tensor.dtype,
          .plain = tensor.column_stride == 0 ? tensor.data : std::span<const std::byte>(),
          .read = [tensor, size](std::int64_t first, std::span<float> out) {
            std::vector<std::byte> bytes(out.size() * size);
            copy_elements(tensor, first, bytes);
            to_float(tensor.dtype, bytes, out);
            if (tensor.dtype == DType::kF64) refuse_beyond_float(tensor.name, bytes, out);
          }};
}

}  // namespace primus
