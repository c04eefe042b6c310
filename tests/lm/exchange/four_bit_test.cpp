// Compares weights that bitsandbytes quantised to 4 bits with bitsandbytes' own dequantisation
// (tests/golden/four_bit).
#include "lm/exchange/four_bit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "base/files/file.h"
#include "lm/checkpoint/elements.h"
#include "tensor/arena.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/four_bit/four_bit.h"
#include "turbo/four_bit/four_bit_format.h"
#include "turbo/linear/linear.h"

namespace primus {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(PRIMUS_SOURCE_DIR) / "tests/golden/four_bit";

// Writes a folder with one quantised tensor "w.weight", in the form of a checkpoint.
class FourBit : public testing::Test {
 protected:
  void write(const std::string& name, const nlohmann::json& settings, const SafetensorsFile& golden) {
    sources_.clear();
    const bool nested = golden.find(name + "/absmax_u8").has_value();
    const std::string type = settings.at("quant_type");
    add("w.weight", *golden.find(name + "/packed"));
    add("w.weight.quant_map", *golden.find("code/" + type));
    nlohmann::json state{{"quant_type", type},
                         {"blocksize", settings.at("blocksize")},
                         {"dtype", "float32"},
                         {"shape", settings.at("shape")}};
    add("w.weight.absmax", *golden.find(name + (nested ? "/absmax_u8" : "/absmax")));
    if (nested) {
      add("w.weight.nested_quant_map", *golden.find(name + "/nested_code"));
      add("w.weight.nested_absmax", *golden.find(name + "/nested_absmax"));
      float offset = 0;
      std::memcpy(&offset, golden.find(name + "/offset")->data.data(), sizeof(offset));
      state["nested_offset"] = offset;
      state["nested_blocksize"] = settings.at("nested_blocksize");
    }
    state_ = state.dump();
    TensorSource& source = sources_.emplace_back();
    source = {.name = "w.weight.quant_state.bitsandbytes__" + type,
              .dtype = DType::kU8,
              .shape = {static_cast<std::int64_t>(state_.size())},
              .data = state_.data()};
    save_safetensors(folder_.path(), sources_);
  }
  void add(const std::string& name, const TensorView& tensor) {
    sources_.push_back({.name = name,
                        .dtype = tensor.dtype,
                        .shape = {tensor.shape.begin(), tensor.shape.end()},
                        .data = tensor.data.data()});
  }

  test::TemporaryFolder folder_;
  std::vector<TensorSource> sources_;
  std::string state_;
};

TEST_F(FourBit, NumbersAreThoseOfBitsandbytes) {
  const SafetensorsFile golden = SafetensorsFile::open(kGolden / "nf4.safetensors");
  int cases = 0;
  const nlohmann::json tensors = nlohmann::json::parse(read_file(kGolden / "nf4.json"));
  for (const auto& [name, settings] : tensors.items()) {
    SCOPED_TRACE(name);
    write(name, settings, golden);
    const SafetensorsFolder folder = SafetensorsFolder::open(folder_.path());
    TensorNames used;
    const auto tensor = find_four_bit(folder, "w.weight", settings.at("shape"), used);
    ASSERT_TRUE(tensor);
    EXPECT_EQ(used.size(), sources_.size());
    const TensorView expected = *golden.find(name + "/dequantized");
    std::vector<float> values(expected.data.size() / sizeof(float));
    const std::size_t half = values.size() / 2;  // reads in two pieces, of which one begins within a byte
    tensor->read(0, std::span(values).first(half));
    tensor->read(static_cast<std::int64_t>(half), std::span(values).subspan(half));
    EXPECT_EQ(std::memcmp(values.data(), expected.data.data(), expected.data.size()), 0);
    EXPECT_THROW(find_four_bit(folder, "w.weight", {1, 2}, used), Error);
    EXPECT_FALSE(find_four_bit(folder, "other", {1, 2}, used));
    ++cases;
  }
  EXPECT_GE(cases, 20);
}

// Reads a tensor of a golden file.
template <class T>
std::vector<T> read(const SafetensorsFile& file, const std::string& name) {
  const std::optional<TensorView> tensor = file.find(name);
  std::vector<T> values(tensor ? tensor->data.size() / sizeof(T) : 0);
  if (tensor) std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

TEST(FourBitQuantisation, HasTheBitsOfBitsandbytes) {
  const SafetensorsFile golden = SafetensorsFile::open(kGolden / "nf4.safetensors");
  const nlohmann::json tensors = nlohmann::json::parse(read_file(kGolden / "nf4.json"));
  for (const auto& [name, settings] : tensors.items()) {
    SCOPED_TRACE(name);
    const bool nested = golden.find(name + "/absmax_u8").has_value();
    const turbo::FourBitFormat format{
        .type = settings.at("quant_type") == "nf4" ? turbo::FourBitType::kNf4 : turbo::FourBitType::kFp4,
        .block = settings.at("blocksize"),
        .nested = nested};
    const std::vector<float> weight = read<float>(golden, name.substr(0, name.find('/')) + "/weight");
    const turbo::FourBitTensor tensor = turbo::quantise_four_bit(weight, format);
    EXPECT_EQ(tensor.packed, read<std::uint8_t>(golden, name + "/packed"));
    EXPECT_EQ(tensor.factors, read<float>(golden, name + (nested ? "/nested_absmax" : "/absmax")));
    if (nested) {
      EXPECT_EQ(tensor.factor_codes, read<std::uint8_t>(golden, name + "/absmax_u8"));
      EXPECT_EQ(std::vector{tensor.offset}, read<float>(golden, name + "/offset"));
      EXPECT_TRUE(std::ranges::equal(turbo::nested_values(), read<float>(golden, name + "/nested_code")));
    }
    std::vector<float> values(weight.size());
    turbo::read_four_bit(tensor, format, 0, values);
    EXPECT_EQ(values, read<float>(golden, name + "/dequantized"));
  }
}

// A saved layer of bitsandbytes: y = x W' + bias. W has the bits of our quantisation, and the kernels compute
// y from the 4 bits.
TEST(FourBitQuantisation, ALinearLayerHasTheOutputOfBitsandbytes) {
  const SafetensorsFile golden = SafetensorsFile::open(kGolden / "linear4bit.safetensors");
  constexpr std::int64_t kRows = 5, kIn = 128, kOut = 32;
  const turbo::FourBitFormat format{.type = turbo::FourBitType::kNf4};
  turbo::FourBitTensor tensor = turbo::quantise_four_bit(read<float>(golden, "weight"), format);
  EXPECT_EQ(tensor.packed, read<std::uint8_t>(golden, "state/weight"));
  EXPECT_EQ(tensor.factor_codes, read<std::uint8_t>(golden, "state/weight.absmax"));
  EXPECT_EQ(tensor.factors, read<float>(golden, "state/weight.nested_absmax"));

  const auto device = turbo::make_cpu_device(1);
  const auto stream = device->create_stream(StreamKind::kCompute);
  constexpr std::int64_t kScratch = 1 << 20;
  Arena scratch("scratch", device->allocate(kScratch), kScratch);
  turbo::Meter meter;
  turbo::Context context{*device, *stream, scratch, meter};
  const auto upload = [&](const void* data, DType dtype, const Shape& shape) {
    Tensor to(nullptr, dtype, shape);
    to.data = device->allocate(to.bytes());
    stream->copy_to_device(to.data, data, to.bytes());
    return to;
  };
  std::vector<float> table(turbo::code_values(format.type).begin(), turbo::code_values(format.type).end());
  table.insert(table.end(), turbo::nested_values().begin(), turbo::nested_values().end());
  const std::vector<float> x = read<float>(golden, "x"), bias = read<float>(golden, "bias"),
                           y = read<float>(golden, "y");
  float largest = 0;
  for (const float value : y) largest = std::max(largest, std::abs(value));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<std::byte> input(x.size() * static_cast<std::size_t>(size_of(dtype))),
        output(y.size() * static_cast<std::size_t>(size_of(dtype)));
    from_float(x, dtype, input);
    const Tensor w = upload(std::vector<float>(kOut * kIn).data(), dtype, {1, kOut * kIn});
    const Tensor out = upload(output.data(), dtype, {kRows, kOut});
    launch(context,
           turbo::ExpandFourBit{.packed = upload(tensor.packed.data(), DType::kU8, {1, kOut * kIn / 2}),
                                .factors = upload(tensor.factors.data(), DType::kF32, {1, 1}),
                                .codes = upload(tensor.factor_codes.data(), DType::kU8, {1, kOut * kIn / 64}),
                                .offset = upload(&tensor.offset, DType::kF32, {1}),
                                .table = upload(table.data(), DType::kF32, {std::ssize(table)}),
                                .out = w,
                                .block = 64});
    launch(context, turbo::Gemm{.role = turbo::GemmRole::kForward,
                                .a = upload(input.data(), dtype, {kRows, kIn}),
                                .b = w.reshaped({kOut, kIn}),
                                .c = out,
                                .workspace = {}});
    stream->copy_to_host(output.data(), out.data, out.bytes());
    stream->synchronize();
    std::vector<float> values(y.size());
    to_float(dtype, output, values);
    const float tolerance = dtype == DType::kF32 ? 1e-5F : 1e-2F;
    for (std::size_t i = 0; i < y.size(); ++i)
      EXPECT_NEAR(values[i] + bias[i % kOut], y[i], tolerance * largest) << name_of(dtype);
  }
}

}  // namespace
}  // namespace primus
