// Whole runs with base weights in 4 bits (QLoRA): checkpoints, resumption bit for bit, starts from weights
// that are already in 4 bits, exports, and refused settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/elements.h"
#include "lm/exchange/exchange.h"
#include "lm/exchange/four_bit.h"
#include "lm/train/whole_runs.h"
#include "turbo/four_bit/four_bit_format.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FourBitRuns : public WholeRuns {
 protected:
  FourBitRuns() : WholeRuns({"num_query_groups=2", "allow_tokenizer_change=true"}) {}

  // Writes the base weights of a run's checkpoint as a model in 4 bits.
  // `map`: the numbers of the codes of factors, or null for those of the run.
  Path published(const Path& checkpoint, const Path& base, const std::string& name,
                 const std::vector<float>* map = nullptr) const {
    Path to = folder_.path() / name;
    const SafetensorsFolder folder = SafetensorsFolder::open(checkpoint);
    std::vector<TensorSource> sources;
    for (std::size_t i = 0; i < folder.size(); ++i) {
      const TensorView tensor = folder[i];
      if (tensor.name.find(".lora_") != std::string_view::npos) continue;
      sources.push_back({.name = std::string(tensor.name),
                         .dtype = tensor.dtype,
                         .shape = {tensor.shape.begin(), tensor.shape.end()},
                         .data = tensor.data.data()});
      if (map && tensor.name.ends_with(".nested_quant_map")) sources.back().data = map->data();
    }
    make_folders(to, Env::posix());
    save_safetensors(to, sources);
    auto config = nlohmann::json::parse(read_file(base / "config.json"));
    config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
    write_file_atomic(to / "config.json", config.dump(), Env::posix());
    return to;
  }

  const std::string lora_ = "lora={enabled: true, dim: 4, alpha: 8, base_weights: nf4}";
  const std::string plain_ = "lora={enabled: true, dim: 4, alpha: 8}";
  const std::string fp4_ =
      "lora={enabled: true, dim: 4, alpha: 8, base_weights: fp4, base_block: 128, base_double_quant: false}";
};

TEST_F(FourBitRuns, SaveTheFourBitWeightsAndResumeBitForBit) {
  for (const std::string& with : {lora_, fp4_}) {
    const std::string bf16 = with == lora_ ? "bf16=true" : "bf16=false";
    const std::string name = with == lora_ ? "nf4" + bf16.substr(5) : "fp4" + bf16.substr(5);
    SCOPED_TRACE(name);
    const Path base = run("base_" + name, {bf16});
    const Path whole = run("whole_" + name, {load(base), "finetune=true", bf16, with});
    const SafetensorsFolder before = SafetensorsFolder::open(base), after = SafetensorsFolder::open(whole);
    // The checkpoint has the bits of the quantised weights of the base.
    const std::string key = "model.layers.1.self_attn.k_proj.weight";
    turbo::FourBitFormat format{.type = turbo::FourBitType::kNf4};
    if (with == fp4_) format = {.type = turbo::FourBitType::kFp4, .block = 128, .nested = false};
    const std::vector<float> original = values(before, key);
    const turbo::FourBitTensor expected = turbo::quantise_four_bit(original, format);
    const TensorView packed = after.at(key);
    ASSERT_EQ(packed.data.size(), expected.packed.size());
    EXPECT_EQ(std::memcmp(packed.data.data(), expected.packed.data(), packed.data.size()), 0);
    TensorNames used;
    const auto stored = find_four_bit(after, key, {16, 32}, used);
    ASSERT_TRUE(stored);
    EXPECT_EQ(used.size(), with == lora_ ? 6U : 4U);
    std::vector<float> read(original.size()), numbers(original.size());
    stored->read(0, read);
    turbo::read_four_bit(expected, format, 0, numbers);
    EXPECT_EQ(read, numbers);
    // Norms, the embedding and the head keep their type.
    for (const char* kept : {"model.norm.weight", "model.embed_tokens.weight"})
      EXPECT_TRUE(std::ranges::equal(after.at(kept).data, before.at(kept).data)) << kept;

    run("twice_" + name, {load(base), "finetune=true", bf16, with, "exit_interval=2"});
    const Path twice = run("twice_" + name, {load(base), "finetune=true", bf16, with});
    EXPECT_EQ(losses("twice_" + name), losses("whole_" + name));
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / file), read_file(whole / file)) << file;
  }
}

TEST_F(FourBitRuns, WeightsInFourBitsAreTakenBitForBit) {
  const Path base = run("base", {"bf16=false"});
  for (const std::string& with : {lora_, fp4_}) {
    const std::string name = with == lora_ ? "nf4" : "fp4";
    SCOPED_TRACE(name);
    const Path first = run("first_" + name, {load(base), "finetune=true", "bf16=false", with});
    const Path four_bit = published(first, base, "published_" + name);
    const Path second = run("second_" + name, {load(four_bit), "bf16=false", with});
    EXPECT_EQ(losses("second_" + name), losses("first_" + name));
    EXPECT_EQ(read_file(second / "model.safetensors"), read_file(first / "model.safetensors"));
    EXPECT_THAT(refusal("other_" + name, {load(four_bit), "bf16=false", with == lora_ ? fp4_ : lora_}),
                AllOf(HasSubstr("is stored as " + name), HasSubstr("set lora.base_weights=" + name)));
    EXPECT_THAT(refusal("wide_" + name, {load(four_bit), "bf16=false", plain_}),
                AllOf(HasSubstr("is quantised (" + name), HasSubstr("lora.base_weights=" + name)));
  }
}

// PyTorch's versions round the numbers of the codes of factors differently, so a model may have its own.
TEST_F(FourBitRuns, TheModelsOwnNumbersOfCodesAreKept) {
  const Path base = run("base", {"bf16=false"});
  const Path first = run("first", {load(base), "finetune=true", "bf16=false", lora_});
  std::vector<float> map(turbo::nested_values().begin(), turbo::nested_values().end());
  for (float& value : map) value *= 1.001F;
  const Path four_bit = published(first, base, "published", &map);
  const Path second = run("second", {load(four_bit), "bf16=false", lora_, "exit_interval=2"});
  const SafetensorsFolder saved = SafetensorsFolder::open(second);
  const std::string key = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(values(saved, key + ".nested_quant_map"), map);
  EXPECT_NE(losses("second"), losses("first"));
  run("second", {load(four_bit), "bf16=false", lora_});
  TensorNames used;
  const auto tensor = find_four_bit(saved, key, {48, 32}, used);
  std::vector<float> read(48 * 32);
  tensor->read(0, read);
  // The expanded numbers are those of the published file.
  const SafetensorsFolder source = SafetensorsFolder::open(four_bit);
  std::vector<float> expected(read.size());
  find_four_bit(source, key, {48, 32}, used)->read(0, expected);
  EXPECT_EQ(read, expected);
}

// The export has the adapters folded into the expanded weights, and is an ordinary model with the same loss.
TEST_F(FourBitRuns, ExportsAreMergedIntoTheExpandedWeights) {
  const Path base = run("base", {"bf16=false"});
  const Path adapted = run("adapted", {load(base), "finetune=true", "bf16=false", lora_});
  const Path out = folder_.path() / "out", peft = folder_.path() / "peft";
  const ExchangeReport report = copy_model(find_model_folder(adapted), out, {}, families_);
  EXPECT_FALSE(report.config.lora);
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("nf4")));
  EXPECT_EQ(read_file(out / "config.json").find("base_weights"), std::string::npos);
  EXPECT_EQ(SafetensorsFolder::open(out).size(), SafetensorsFolder::open(base).size());
  run("further", {load(adapted), "finetune=true", "bf16=false", lora_});
  run("wide", {load(adapted), "finetune=true", "bf16=false", plain_});
  run("merged", {load(out), "bf16=false"});
  EXPECT_EQ(losses("wide").front(), losses("further").front());
  EXPECT_NEAR(losses("merged").front(), losses("further").front(), 1e-5 * losses("further").front());
  EXPECT_LT(losses("merged").front(), losses("adapted").front());

  const ExchangeReport adapters = write_adapters(find_model_folder(adapted), peft, base.string(), families_);
  EXPECT_EQ(adapters.tensors, 2 * 7 * 2);
  const auto config = nlohmann::json::parse(read_file(peft / "adapter_config.json"));
  EXPECT_EQ(config.at("base_model_name_or_path"), base.string());
  const Path model = folder_.path() / "model";
  copy_model(find_model_folder(base), model, {}, families_);
  run("peft", {load(model), "bf16=false", "lora={adapters: " + peft.string() + ", base_weights: nf4}"});
}

TEST_F(FourBitRuns, WrongSettingsAreRefused) {
  const Path base = run("base", {});
  const auto refused = [&](const std::string& lora) {
    return refusal("refused", {load(base), "finetune=true", "lora=" + lora});
  };
  EXPECT_THAT(refused("{enabled: false, base_weights: nf4}"), HasSubstr("lora.base_weights needs adapters"));
  EXPECT_THAT(refused("{dim: 4, base_block: 64}"), HasSubstr("no effect without lora.base_weights"));
  EXPECT_THAT(refused("{dim: 4, base_weights: int4}"), HasSubstr("one of nf4, fp4, none"));
  EXPECT_THAT(refused("{dim: 4, base_weights: nf4, base_block: 63}"), HasSubstr("one of 64, 128"));
  EXPECT_THAT(refused("{dim: 4, bnb_4bit_quant_type: nf4}"), HasSubstr("base_weights: nf4"));
  EXPECT_THAT(refused("{dim: 4, target_modules: all-linear, use_dora: true, base_weights: nf4}"),
              HasSubstr("use_dora does not support"));
  run("nf4", {load(base), "finetune=true", lora_, "exit_interval=2"});
  EXPECT_THAT(refusal("nf4", {load(base), "finetune=true", plain_}),
              AllOf(HasSubstr("was saved with other lora settings"), HasSubstr("lora.base_weights=nf4")));
  EXPECT_THAT(refusal("nf4", {load(base), "finetune=true", fp4_}), HasSubstr("lora.base_weights=nf4"));
  run("nf4", {load(base), "finetune=true", lora_});
}

}  // namespace
}  // namespace primus::test
