#include "lm/exchange/four_bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace primus {
namespace {

// The settings in NAME.quant_state.
struct State {
  std::vector<std::int64_t> shape;
  std::int64_t block = 0, nested_block = 0;
  float nested_offset = 0;
  DType dtype = DType::kF32;
};

State read_state(const TensorView& tensor) {
  const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  const auto json = nlohmann::json::parse(text, nullptr, false);
  State state;
  try {
    state.shape = json.at("shape").get<std::vector<std::int64_t>>();
    state.block = json.at("blocksize");
    state.nested_block = json.value("nested_blocksize", std::int64_t{0});
    state.nested_offset = json.value("nested_offset", 0.0F);
    const std::string dtype = json.at("dtype");
    state.dtype = dtype == "bfloat16" ? DType::kBF16 : dtype == "float16" ? DType::kF16 : DType::kF32;
  } catch (const nlohmann::json::exception& error) {
    throw invalid(fmt::format("tensor '{}' is not a state of bitsandbytes: {}", tensor.name, error.what()));
  }
  if (state.block < 1 || state.nested_block < 0)
    throw invalid(fmt::format("tensor '{}' has a block size below 1", tensor.name));
  return state;
}

TensorView part_of_size(const SafetensorsFolder& folder, const std::string& name, DType dtype,
                        std::int64_t elements, TensorNames& used) {
  const TensorView part = folder.at(name);
  used.insert(name);
  const auto size = static_cast<std::size_t>(elements) * static_cast<std::size_t>(size_of(dtype));
  if (part.dtype != dtype || part.data.size() != size) {
    throw invalid(fmt::format("tensor '{}' is {} {}, but {} numbers of type {} are needed", name,
                              name_of(part.dtype), shape_text(part.shape), elements, name_of(dtype)),
                  "the file is damaged: copy or download it again")
        .at(folder.folder().string());
  }
  return part;
}

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// Returns the factor of each block.
std::vector<float> factors(const SafetensorsFolder& folder, const std::string& full, const State& state,
                           std::int64_t blocks, TensorNames& used) {
  if (state.nested_block == 0)
    return floats_of(part_of_size(folder, full + ".absmax", DType::kF32, blocks, used));
  const TensorView codes = part_of_size(folder, full + ".absmax", DType::kU8, blocks, used);
  const auto map = floats_of(part_of_size(folder, full + ".nested_quant_map", DType::kF32, 256, used));
  const std::int64_t groups = (blocks + state.nested_block - 1) / state.nested_block;
  const auto scales = floats_of(part_of_size(folder, full + ".nested_absmax", DType::kF32, groups, used));
  std::vector<float> result;
  for (std::size_t i = 0; i < codes.data.size(); ++i) {
    // Rounds the product to fp32 before the addition, as bitsandbytes does.
    const double product = static_cast<double>(map[static_cast<std::size_t>(codes.data[i])]) *
                           static_cast<double>(scales[i / static_cast<std::size_t>(state.nested_block)]);
    result.push_back(static_cast<float>(product) + state.nested_offset);
  }
  return result;
}

}  // namespace

std::optional<PublishedTensor> find_four_bit(const SafetensorsFolder& folder, const std::string& full,
                                             const std::vector<std::int64_t>& shape, TensorNames& used) {
  std::optional<TensorView> tensor;
  for (const char* type : {"nf4", "fp4"}) {
    const std::string name = fmt::format("{}.quant_state.bitsandbytes__{}", full, type);
    tensor = folder.find(name);
    if (!tensor) continue;
    used.insert(name);
    break;
  }
  if (!tensor) return std::nullopt;
  const State state = read_state(*tensor);
  if (state.shape != shape) {
    throw invalid(fmt::format("tensor '{}' has shape {}, but the model needs {}", full,
                              shape_text(state.shape), shape_text(shape)),
                  "config.json and the weights belong to different models")
        .at(folder.folder().string());
  }
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  const TensorView packed = part_of_size(folder, full, DType::kU8, (elements + 1) / 2, used);
  const auto map = floats_of(part_of_size(folder, full + ".quant_map", DType::kF32, 16, used));
  const auto scale = std::make_shared<const std::vector<float>>(
      factors(folder, full, state, (elements + state.block - 1) / state.block, used));
  PublishedTensor result{.dtype = state.dtype, .plain = {}, .read = {}};
  result.read = [packed, map, scale, block = state.block](std::int64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t at = first + static_cast<std::int64_t>(i);
      const auto pair = static_cast<unsigned>(packed.data[static_cast<std::size_t>(at / 2)]);
      const unsigned code = at % 2 == 0 ? pair >> 4U : pair & 0xFU;
      out[i] = map[code] * (*scale)[static_cast<std::size_t>(at / block)];
    }
  };
  return result;
}

}  // namespace primus
