// Compares weights that bitsandbytes quantised to 4 bits with bitsandbytes' own dequantisation
// (tests/golden/four_bit).
#include "lm/exchange/four_bit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "base/files/file.h"

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

}  // namespace
}  // namespace primus
