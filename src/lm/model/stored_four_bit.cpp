#include "lm/model/stored_four_bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "lm/checkpoint/elements.h"

namespace primus {
namespace {

using turbo::FourBitType;

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr FourBitType kTypes[] = {FourBitType::kNf4, FourBitType::kFp4};

// Reads the settings in NAME.quant_state.
void read_state(const TensorView& tensor, StoredFourBit& stored) {
  const std::string_view text(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    stored.shape = json.at("shape").get<std::vector<std::int64_t>>();
    stored.format.block = json.at("blocksize");
    stored.nested_block = json.value("nested_blocksize", std::int64_t{0});
    stored.nested_offset = json.value("nested_offset", 0.0F);
    stored.dtype = dtype_of_torch_name(json.at("dtype").get<std::string>());
  } catch (const nlohmann::json::exception& error) {
    throw invalid(fmt::format("tensor '{}' is not a state of bitsandbytes: {}", tensor.name, error.what()));
  }
  if (stored.format.block < 1 || stored.nested_block < 0)
    throw invalid(fmt::format("tensor '{}' has a block size below 1", tensor.name));
  stored.format.nested = stored.nested_block > 0;
}

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// Returns a text of fixed length, so that all ranks plan the same files, though only one of them knows the
// offset. Spaces after a number are allowed in JSON.
std::string state_text(const FourBitArrays& a) {
  std::string text =
      fmt::format(R"({{"quant_type": "{}", "blocksize": {}, "dtype": "{}", "shape": [{}])",
                  name_of(a.format.type), a.format.block, torch_name(a.dtype), fmt::join(a.shape, ", "));
  if (a.format.nested) {
    text += fmt::format(R"(, "nested_blocksize": {}, "nested_dtype": "float32", "nested_offset": {:<26})",
                        turbo::FourBitFormat::kNestedBlock,
                        fmt::format("{:.17g}", static_cast<double>(a.offset)));
  }
  return text + "}";
}

}  // namespace

std::vector<float> StoredFourBit::factors() const {
  if (!format.nested) return floats_of(absmax);
  std::vector<float> result;
  for (std::size_t i = 0; i < absmax.data.size(); ++i) {
    // Rounds the product to fp32 before the addition, as bitsandbytes does.
    const double product = static_cast<double>(nested_map[static_cast<std::size_t>(absmax.data[i])]) *
                           static_cast<double>(nested_absmax[i / static_cast<std::size_t>(nested_block)]);
    result.push_back(static_cast<float>(product) + nested_offset);
  }
  return result;
}

void StoredFourBit::require(const turbo::FourBitFormat& wanted) const {
  if (format != wanted) {
    throw unsupported(
        fmt::format("tensor '{}' is stored as {} with blocks of {} and {} double quantisation, but the run "
                    "holds {} with blocks of {} and {} double quantisation",
                    name, name_of(format.type), format.block, format.nested ? "with" : "without",
                    name_of(wanted.type), wanted.block, wanted.nested ? "with" : "without"),
        fmt::format("set lora.base_weights={} lora.base_block={} lora.base_double_quant={}",
                    name_of(format.type), format.block, format.nested));
  }
  const bool known_block = !format.nested || nested_block == turbo::FourBitFormat::kNestedBlock;
  if (!known_block || !std::ranges::equal(map, turbo::code_values(format.type))) {
    throw unsupported(
        fmt::format("tensor '{}' has other codes or another block of factors than bitsandbytes", name),
        "'primus model import' writes the model without quantisation");
  }
}

turbo::FourBitTensor StoredFourBit::tensor(const turbo::FourBitFormat& wanted) const {
  require(wanted);
  const auto bytes_of = [](const TensorView& view) {
    std::vector<std::uint8_t> bytes(view.data.size());
    std::memcpy(bytes.data(), view.data.data(), bytes.size());
    return bytes;
  };
  turbo::FourBitTensor result{
      .packed = bytes_of(packed), .factors = nested_absmax, .factor_codes = {}, .offset = nested_offset};
  if (format.nested) {
    result.factor_codes = bytes_of(absmax);
    if (!std::ranges::equal(nested_map, turbo::nested_values())) result.nested_map = nested_map;
  } else {
    result.factors = floats_of(absmax);
  }
  return result;
}

std::optional<StoredFourBit> find_stored_four_bit(const TensorFinder& find, const std::string& full,
                                                  std::span<const std::int64_t> shape, TensorNames& used,
                                                  const std::string& where) {
  StoredFourBit stored{.name = full};
  std::optional<TensorView> state;
  for (const FourBitType type : kTypes) {
    const std::string name = fmt::format("{}{}{}", full, kState, name_of(type));
    state = find(name);
    if (!state) continue;
    stored.format.type = type;
    used.insert(name);
    break;
  }
  if (!state) return std::nullopt;
  read_state(*state, stored);
  if (!std::ranges::equal(stored.shape, shape)) {
    throw invalid(fmt::format("tensor '{}' has shape {}, but the model needs {}", full,
                              shape_text(stored.shape), shape_text(shape)),
                  "config.json and the weights belong to different models")
        .at(where);
  }
  const auto part = [&](const std::string& name, DType dtype, std::int64_t elements) {
    const std::optional<TensorView> tensor = find(name);
    const auto size = static_cast<std::size_t>(elements) * static_cast<std::size_t>(size_of(dtype));
    if (!tensor) {
      throw invalid(fmt::format("tensor '{}' is missing", name), "copy or download the model again")
          .at(where);
    }
    if (tensor->dtype != dtype || tensor->data.size() != size) {
      throw invalid(fmt::format("tensor '{}' is {} {}, but {} numbers of type {} are needed", name,
                                name_of(tensor->dtype), shape_text(tensor->shape), elements, name_of(dtype)),
                    "the file is damaged: copy or download it again")
          .at(where);
    }
    used.insert(name);
    return *tensor;
  };
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  const std::int64_t blocks = (elements + stored.format.block - 1) / stored.format.block;
  stored.packed = part(full, DType::kU8, (elements + 1) / 2);
  stored.map = floats_of(part(full + ".quant_map", DType::kF32, turbo::kFourBitCodes));
  stored.absmax = part(full + ".absmax", stored.format.nested ? DType::kU8 : DType::kF32, blocks);
  if (!stored.format.nested) return stored;
  stored.nested_map = floats_of(part(full + ".nested_quant_map", DType::kF32, turbo::kNestedCodes));
  const std::int64_t groups = (blocks + stored.nested_block - 1) / stored.nested_block;
  stored.nested_absmax = floats_of(part(full + ".nested_absmax", DType::kF32, groups));
  return stored;
}

bool names_four_bit_state(std::string_view name) { return name.find(kState) != std::string_view::npos; }

void add_four_bit_sources(const FourBitArrays& a, std::vector<TensorSource>& sources) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : a.shape) elements *= extent;
  const turbo::FourBitSizes sizes(elements, a.format);
  const auto add = [&](std::string name, DType dtype, std::vector<std::int64_t> shape,
                       const FourBitArrays::Array& array) {
    TensorSource& source = sources.emplace_back();
    source.name = std::move(name);
    source.dtype = dtype;
    source.shape = std::move(shape);
    source.runs = array.held;
    source.fill = array.fill;
  };
  // Adds an array that is the same on every rank, or whose contents only one rank has.
  const auto add_bytes = [&](std::string name, DType dtype, std::int64_t count, const void* data,
                             std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    const auto copy = std::make_shared<const std::vector<std::byte>>(first, first + bytes);
    add(std::move(name), dtype, {count},
        {.held = a.holds_rest ? one_run(0, count) : HeldRuns{},
         .fill = [copy](std::uint64_t offset, std::span<std::byte> out) {
           std::memcpy(out.data(), copy->data() + offset, out.size());
         }});
  };
  const auto& map = turbo::code_values(a.format.type);
  const auto& usual = turbo::nested_values();
  const std::span<const float> nested = a.nested_map.empty() ? std::span<const float>(usual) : a.nested_map;
  add(a.name, DType::kU8, {sizes.packed, 1}, a.packed);
  if (a.format.nested) {
    add(a.name + ".absmax", DType::kU8, {sizes.blocks}, a.codes);
    add(a.name + ".nested_absmax", DType::kF32, {sizes.nested}, a.factors);
    add_bytes(a.name + ".nested_quant_map", DType::kF32, std::ssize(nested), nested.data(),
              nested.size_bytes());
  } else {
    add(a.name + ".absmax", DType::kF32, {sizes.blocks}, a.factors);
  }
  add_bytes(a.name + ".quant_map", DType::kF32, std::ssize(map), map.data(), sizeof(map));
  const std::string state = state_text(a);
  add_bytes(fmt::format("{}{}{}", a.name, kState, name_of(a.format.type)), DType::kU8, std::ssize(state),
            state.data(), state.size());
}

}  // namespace primus
