// Tests import and export of model folders. Published weights are preserved bit for bit. Quantised weights
// become the numbers that they encode. A folder that does not match its config.json is refused before
// anything is written.
#include "lm/exchange/exchange.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "../../base/temporary_folder.h"
#include "../model/built_model.h"
#include "../model/fused_experts.h"
#include "base/error.h"
#include "base/fault_env.h"
#include "base/files/partial_folder.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/exchange/published_tensor.h"
#include "tensor/bfloat16.h"

namespace primus {
namespace {

using test::TemporaryFolder;

Path golden(const std::string& name) {
  return Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "models" / name;
}

ExchangeReport exchange(const Path& from, const Path& to, const ExchangeOptions& options = {}) {
  return copy_model(find_model_folder(from), to, options, builtin_families());
}

void expect_same_tensors(const Path& a, const Path& b) {
  const SafetensorsFolder ours = SafetensorsFolder::open(a), theirs = SafetensorsFolder::open(b);
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].name, theirs[i].name);
    EXPECT_EQ(ours[i].dtype, theirs[i].dtype);
    EXPECT_TRUE(std::ranges::equal(ours[i].shape, theirs[i].shape)) << ours[i].name;
    EXPECT_TRUE(std::ranges::equal(ours[i].data, theirs[i].data)) << ours[i].name;
  }
}

std::string refusal(const TemporaryFolder& folder, const Path& from);

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, ImportThenExportGivesTheSameBytes) {
  const TemporaryFolder folder;
  const Path in = folder.path() / "in", out = folder.path() / "out";
  const ExchangeReport report = exchange(golden(GetParam()), in, {.dtype = {}, .max_shard_bytes = 100'000});
  EXPECT_GT(report.files, 1u);
  exchange(in, out);
  expect_same_tensors(out, golden(GetParam()));
  // The written folder reads back as an equal model.
  const FamilyRegistry families = builtin_families();
  EXPECT_EQ(write_model_config(load_model_config(find_model_folder(out), families), DType::kF32, families),
            write_model_config(load_model_config(find_model_folder(golden(GetParam())), families),
                               DType::kF32, families));
}

INSTANTIATE_TEST_SUITE_P(Families, Golden,
                         ::testing::Values("llama", "llama31_tied", "qwen2", "qwen3", "qwen3_moe", "mixtral",
                                           "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4", "lfm2",
                                           "lfm2_moe", "qwen3_next", "qwen3_5_moe", "qwen3_5", "deepseek_v32",
                                           "glm_moe_dsa", "kimi_linear", "kimi_k3", "deepseek_v4", "mistral",
                                           "ministral", "phi3", "smollm3", "olmo2", "glm4", "glm4_moe",
                                           "granite", "granitemoe", "granitemoeshared", "gemma2", "gemma3",
                                           "ministral3", "gated_deltanet", "gated_deltanet_latent", "kda"));

TEST(Exchange, ChangesTheTypeAndRoundsToNearest) {
  const TemporaryFolder folder;
  const Path out = folder.path() / "bf16";
  const ExchangeReport report = exchange(golden("deepseek_v3"), out, {.dtype = DType::kBF16});
  const SafetensorsFolder ours = SafetensorsFolder::open(out),
                          theirs = SafetensorsFolder::open(golden("deepseek_v3"));
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const TensorView tensor = ours[i], reference = theirs.at(ours[i].name);
    elements += static_cast<std::int64_t>(reference.data.size() / 4);
    if (tensor.name.ends_with("e_score_correction_bias")) {
      EXPECT_EQ(tensor.dtype, DType::kF32);  // parameters that models always keep in fp32
      continue;
    }
    ASSERT_EQ(tensor.dtype, DType::kBF16);
    for (std::size_t k = 0; k < tensor.data.size() / 2; ++k) {
      float value = 0;
      std::memcpy(&value, reference.data.data() + 4 * k, 4);
      std::uint16_t bits = 0;
      std::memcpy(&bits, tensor.data.data() + 2 * k, 2);
      ASSERT_EQ(bits, BFloat16(value).bits) << tensor.name;
    }
  }
  EXPECT_EQ(report.parameters, elements);
}

// Qwen3-VL's mixtures store the experts of a layer by columns in two tensors: [experts, hidden, 2 ffn] and
// [experts, ffn, hidden]. The export has one tensor per expert, by rows, with Qwen 3's names.
TEST(Exchange, ReadsTheExpertsOfQwen3VlByColumns) {
  const TemporaryFolder folder;
  exchange(golden("qwen3_vl_moe"), folder.path() / "out");
  const SafetensorsFolder ours = SafetensorsFolder::open(folder.path() / "out"),
                          theirs = SafetensorsFolder::open(golden("qwen3_vl_moe"));
  const std::string layer = "model.language_model.layers.2.mlp.experts.";
  const auto at = [](const TensorView& tensor, std::int64_t i) {
    float value = 0;
    std::memcpy(&value, tensor.data.data() + 4 * i, 4);
    return value;
  };
  constexpr std::int64_t kHidden = 64, kWidth = 24;
  for (std::int64_t e = 0; e < 8; ++e) {
    const auto matrix = [&](const char* name) {
      return ours.at(fmt::format("model.layers.2.mlp.experts.{}.{}_proj.weight", e, name));
    };
    const TensorView gate = matrix("gate"), up = matrix("up"), down = matrix("down");
    const TensorView wide = theirs.at(layer + "gate_up_proj"), back = theirs.at(layer + "down_proj");
    for (std::int64_t f = 0; f < kWidth; ++f) {
      for (std::int64_t h = 0; h < kHidden; ++h) {
        const std::int64_t row = (e * kHidden + h) * 2 * kWidth;
        ASSERT_EQ(at(gate, f * kHidden + h), at(wide, row + f));
        ASSERT_EQ(at(up, f * kHidden + h), at(wide, row + kWidth + f));
        ASSERT_EQ(at(down, h * kWidth + f), at(back, (e * kWidth + f) * kHidden + h));
      }
    }
  }
}

TEST(Exchange, CopiesTheTokenizer) {
  const TemporaryFolder folder;
  const Path in = folder.path() / "in", out = folder.path() / "out";
  std::filesystem::copy(golden("llama"), in);
  std::ofstream(in / "tokenizer.json") << "{}";
  std::ofstream(in / "notes.txt") << "mine";
  const ExchangeReport report = exchange(in, out);
  EXPECT_EQ(report.copied, (std::vector<std::string>{"generation_config.json", "tokenizer.json"}));
  EXPECT_FALSE(std::filesystem::exists(out / "notes.txt"));
}

TEST(Exchange, CompanionFilesAreRecognizedByTheirNames) {
  const TemporaryFolder folder;
  const Path in = folder.path() / "in", out = folder.path() / "out";
  std::filesystem::copy(golden("llama"), in);
  std::ofstream(folder.path() / "secret") << "user:password\n";
  const auto error = [&] {
    try {
      exchange(in, out);
    } catch (const Error& thrown) {
      EXPECT_EQ(thrown.exit_code(), 2);
      return thrown.render();
    }
    return std::string();
  };
  for (const char* name : {"tokenizer.json", "vocab.json", "added_tokens.json"}) {
    for (const char* content : {"no json", "[1]", "{\"a\": 1} x", ""}) {
      std::ofstream(in / name) << content;
      EXPECT_NE(error().find(std::string(name) + ":1:"), std::string::npos) << name << content << error();
    }
    std::filesystem::remove(in / name);
  }
  std::filesystem::create_symlink(folder.path() / "secret", in / "tokenizer.json");
  EXPECT_NE(error(), "");
  std::filesystem::remove(in / "tokenizer.json");
  std::ofstream(in / "merges.txt") << "a \xFF";
  EXPECT_NE(error().find("merges.txt: error: the file is not UTF-8"), std::string::npos);
  std::filesystem::remove(in / "merges.txt");
  for (const char* name : {"tokenizer.model", "tiktoken.model"}) {
    for (const char* content : {"", "no model", "IQ== 0\nIg== x\n", "\n\x0e\n\x05<unk>\x15"}) {
      std::ofstream(in / name) << content;
      EXPECT_NE(error().find(std::string(name) + (content[0] == 'I' ? ":2" : ": error:")), std::string::npos)
          << name << content << error();
    }
    std::filesystem::remove(in / name);
  }
  EXPECT_FALSE(std::filesystem::exists(out)) << "the target must not exist";
}

// Writes `sources` as the weights of a copy of a golden's folder.
Path with_weights(const TemporaryFolder& folder, const std::string& name,
                  const std::vector<TensorSource>& sources) {
  const Path path = folder.path() / name;
  std::filesystem::create_directory(path);
  std::filesystem::copy_file(golden(name) / "config.json", path / "config.json");
  save_safetensors(path, sources);
  return path;
}

// Returns the golden's tensors, except those that `replace` handles.
template <class Replace>
std::vector<TensorSource> sources_of(const SafetensorsFolder& weights, Replace&& replace) {
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const TensorView t = weights[i];
    if (replace(t, sources)) continue;
    TensorSource& source = sources.emplace_back();
    source.name = t.name;
    source.dtype = t.dtype;
    source.shape = {t.shape.begin(), t.shape.end()};
    source.data = t.data.data();
  }
  return sources;
}

// Published Llama 4, Gemma 3 and Ministral 3 also process images. The export has only the language model. In
// transformers 5, its tensor names start with "model.".
TEST(Exchange, ReadsTheLanguageModelOfAVisionModel) {
  for (const auto& [model, type] :
       {std::pair("llama4", "llama4"), {"gemma3", "gemma3"}, {"ministral3", "mistral3"}}) {
    for (const bool within : {false, true}) {
      SCOPED_TRACE(model);
      const TemporaryFolder folder;
      const SafetensorsFolder weights = SafetensorsFolder::open(golden(model));
      std::vector<TensorSource> sources = sources_of(weights, [](const auto&, const auto&) { return false; });
      for (TensorSource& source : sources) {
        if (!within) source.name = "language_model." + source.name;
        if (within && source.name.starts_with("model."))
          source.name = "model.language_model." + source.name.substr(6);
      }
      const float pixel = 1;
      sources.push_back({.name = within ? "model.vision_tower.patch" : "vision_tower.patch",
                         .dtype = DType::kF32,
                         .shape = {1},
                         .data = &pixel,
                         .fill = {}});
      const Path in = with_weights(folder, model, sources), out = folder.path() / "out";
      const auto text = nlohmann::json::parse(read_file(in / "config.json"));
      std::ofstream(in / "config.json") << nlohmann::json{{"model_type", type}, {"text_config", text}};
      const ExchangeReport report = exchange(in, out);
      EXPECT_EQ(report.notes,
                (std::vector<std::string>{"1 tensor(s) do not belong to the language model: left out"}));
      expect_same_tensors(out, golden(model));
    }
  }
}

// The golden is written in Qwen3.5's published layout. Exchanging this folder gives the golden's tensors
// again.
TEST(Exchange, ReadsExpertsInTwoTensors) {
  const TemporaryFolder folder;
  const Path in = folder.path() / "in", out = folder.path() / "out";
  test::write_published_qwen3_5(golden("qwen3_5_moe"), in);
  const ExchangeReport report = exchange(in, out);
  EXPECT_EQ(report.notes,
            (std::vector<std::string>{"1 tensor(s) do not belong to the language model: left out"}));
  expect_same_tensors(out, golden("qwen3_5_moe"));
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  const SafetensorsFolder weights = SafetensorsFolder::open(in);
  EXPECT_TRUE(weights.find(experts + "gate_up_proj") && !weights.find(experts + "0.gate_proj.weight"));
  // A config.json with fewer or more experts than the weights is refused.
  const std::int64_t count = weights.at(experts + "down_proj").shape[0];
  const Path fewer = folder.path() / "fewer", more = folder.path() / "more";
  test::write_published_qwen3_5(golden("qwen3_5_moe"), fewer, count - 1);
  // mlp.gate.weight has more rows than this config.json has experts.
  EXPECT_THAT(refusal(folder, fewer), ::testing::HasSubstr("mlp.gate.weight"));
  test::write_published_qwen3_5(golden("qwen3_5_moe"), more, count + 1);
  EXPECT_NE(refusal(folder, more), "");
}

// A target with the name of a model file is refused, because the output is a folder.
TEST(Exchange, FilesAreNoTargets) {
  const TemporaryFolder folder;
  const auto error_of = [&](const char* name) {
    try {
      exchange(golden("llama"), folder.path() / name);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << name;
      return error.render();
    }
    return std::string("written");
  };
  EXPECT_THAT(error_of("my.gguf"), ::testing::AllOf(::testing::HasSubstr("writing GGUF is not supported"),
                                                    ::testing::HasSubstr("convert_hf_to_gguf.py")));
  EXPECT_THAT(error_of("my.GGUF/"), ::testing::HasSubstr("writing GGUF is not supported"));
  for (const char* name : {"m.safetensors", "pytorch_model.bin", "m.pt", "m.pth", "m.ckpt"})
    EXPECT_THAT(error_of(name), ::testing::HasSubstr("a model is written as a folder")) << name;
  EXPECT_EQ(error_of("Llama-3.1-8B"), "written");
}

// DeepSeek-V3's published format, here with numbers that e4m3 (1 sign, 4 exponent and 3 mantissa bits, bias
// 7) represents exactly.
TEST(Exchange, ReadsFloat8WithItsScales) {
  const TemporaryFolder folder;
  const SafetensorsFolder weights = SafetensorsFolder::open(golden("deepseek_v3"));
  const std::string name = "model.layers.0.mlp.gate_proj.weight";
  const std::vector<std::int64_t> shape(weights.at(name).shape.begin(), weights.at(name).shape.end());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(shape[0] * shape[1]));
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::uint8_t>(i * 37 % 256);
    if ((codes[i] & 0x7f) == 0x7f) codes[i] = 0;  // NaN
  }
  const std::int64_t down = (shape[0] + 127) / 128, across = (shape[1] + 127) / 128;
  std::vector<float> scales(static_cast<std::size_t>(down * across));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.25F * static_cast<float>(i + 1);
  const auto sources = sources_of(weights, [&](const TensorView& t, std::vector<TensorSource>& out) {
    if (t.name != name) return false;
    out.push_back({name, DType::kF8E4M3, shape, codes.data(), {}});
    out.push_back({name + "_scale_inv", DType::kF32, {down, across}, scales.data(), {}});
    return true;
  });
  const Path in = with_weights(folder, "deepseek_v3", sources), out = folder.path() / "out";
  exchange(in, out, {.dtype = DType::kF32});
  const SafetensorsFolder written = SafetensorsFolder::open(out);
  const TensorView tensor = written.at(name);
  ASSERT_EQ(tensor.dtype, DType::kF32);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const int exponent = codes[i] >> 3 & 15;
    const double fraction = (codes[i] & 7) / 8.0;
    const double magnitude =
        exponent == 0 ? fraction * std::exp2(-6) : (1 + fraction) * std::exp2(exponent - 7);
    const auto row = static_cast<std::int64_t>(i) / shape[1],
               column = static_cast<std::int64_t>(i) % shape[1];
    const double expected =
        (codes[i] & 0x80 ? -1 : 1) * magnitude *
        static_cast<double>(scales[static_cast<std::size_t>(row / 128 * across + column / 128)]);
    float value = 0;
    std::memcpy(&value, tensor.data.data() + 4 * i, 4);
    ASSERT_EQ(static_cast<double>(value), expected) << i;
  }
  EXPECT_FALSE(written.find(name + "_scale_inv"));
  // Training refuses these weights, with a hint.
  try {
    require_float(SafetensorsFolder::open(in).at(name));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.hint().find("model import"), std::string::npos);
  }
}

// gpt-oss's published format: two numbers per byte, the low half first, with the last two axes swapped.
TEST(Exchange, ReadsMxfp4) {
  constexpr std::array<float, 8> kMagnitudes = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  constexpr std::int64_t kExperts = 2, kInner = 64, kRows = 6, kGroups = kInner / 32;
  const TemporaryFolder folder;
  std::vector<std::uint8_t> blocks(kExperts * kRows * kGroups * 16), scales(blocks.size() / 16);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::uint8_t>(i * 101 + i / 7);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(i * 29 % 255);
  const std::vector<TensorSource> sources = {
      {"w_blocks", DType::kU8, {kExperts, kRows, kGroups, 16}, blocks.data(), {}},
      {"w_scales", DType::kU8, {kExperts, kRows, kGroups}, scales.data(), {}}};
  save_safetensors(folder.path(), sources);
  const SafetensorsFolder weights = SafetensorsFolder::open(folder.path());
  std::set<std::string, std::less<>> used;
  const LanguageTensors tensors(weights);
  const PublishedTensor tensor = find_published(tensors, "w", {kExperts, kInner, kRows}, used);
  EXPECT_EQ(used, (std::set<std::string, std::less<>>{"w_blocks", "w_scales"}));
  EXPECT_EQ(tensor.dtype, DType::kBF16);
  std::vector<float> values(kExperts * kInner * kRows);
  tensor.read(0, std::span(values).first(100));  // reads in two pieces
  tensor.read(100, std::span(values).subspan(100));
  for (std::int64_t e = 0; e < kExperts; ++e) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kInner; ++c) {
        const std::int64_t group = (e * kRows + r) * kGroups + c / 32;
        const std::uint8_t byte = blocks[static_cast<std::size_t>(group * 16 + c % 32 / 2)];
        const unsigned code = c % 2 == 0 ? byte & 15U : byte >> 4U;
        const float expected = std::ldexp((code & 8U ? -1.0F : 1.0F) * kMagnitudes[code & 7U],
                                          scales[static_cast<std::size_t>(group)] - 127);
        ASSERT_EQ(values[static_cast<std::size_t>((e * kInner + c) * kRows + r)], expected);
        ASSERT_EQ(static_cast<float>(BFloat16(expected)), expected);  // bf16 represents it exactly
      }
    }
  }
  EXPECT_THROW(find_published(tensors, "w", {kExperts, kRows, kInner}, used), Error);
}

// Returns the text of the error. The target must not exist afterwards.
std::string refusal(const TemporaryFolder& folder, const Path& from) {
  const Path out = folder.path() / "refused";
  try {
    exchange(from, out);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(std::filesystem::exists(out));
    return error.what();
  }
}

TEST(Exchange, MismatchedTensorsAreRefusedByName) {
  const SafetensorsFolder weights = SafetensorsFolder::open(golden("mixtral"));
  const std::string lost = "model.layers.1.block_sparse_moe.experts.2.w1.weight";
  {
    const TemporaryFolder folder;
    const auto sources = sources_of(weights, [&](const TensorView& t, auto&) { return t.name == lost; });
    const Path in = with_weights(folder, "mixtral", sources);
    EXPECT_NE(refusal(folder, in).find(lost), std::string::npos);
    try {
      SafetensorsFolder::open(in).at(lost);
      FAIL();
    } catch (const Error& error) {  // the message must name the missing expert
      EXPECT_EQ(error.hint().find("did you mean"), std::string::npos) << error.hint();
    }
  }
  {
    const TemporaryFolder folder;
    auto sources = sources_of(weights, [](const TensorView&, auto&) { return false; });
    const float one = 1;
    sources.push_back({"model.layers.0.extra.weight", DType::kF32, {1}, &one, {}});
    EXPECT_EQ(refusal(folder, with_weights(folder, "mixtral", sources)),
              "tensor 'model.layers.0.extra.weight' is not part of this model");
  }
  {
    const TemporaryFolder folder;
    const auto sources = sources_of(weights, [&](const TensorView& t, std::vector<TensorSource>& out) {
      if (t.name != lost) return false;
      out.push_back({lost, DType::kF32, {t.shape[1], t.shape[0]}, t.data.data(), {}});
      return true;
    });
    EXPECT_NE(refusal(folder, with_weights(folder, "mixtral", sources)).find(lost), std::string::npos);
  }
}

// Multi-token prediction stores copies of the embedding and the head. Copies that differ are refused.
TEST(Exchange, CopiesThatDifferAreRefused) {
  const FamilyRegistry families = builtin_families();
  const Path file = golden("llama") / "config.json";
  ModelConfig config = read_model_config(read_file(file), file.string(), families);
  config.mtp = {.layers = 1, .enabled = true};
  const test::BuiltModel model(config);
  for (const bool differing : {false, true}) {
    const TemporaryFolder folder;
    const Path in = folder.path() / "in";
    std::filesystem::create_directory(in);
    std::ofstream(in / "config.json") << write_model_config(config, DType::kF32, families);
    std::vector<TensorSource> sources = model.sources();
    const std::vector<std::byte> zeros(1 << 20);
    for (TensorSource& source : sources) {
      const bool copy = source.name == fmt::format("model.layers.{}.embed_tokens.weight", config.layers);
      if (!copy || !differing) continue;
      ASSERT_LE(source.bytes(), zeros.size());
      source.fill = nullptr;
      source.data = zeros.data();
    }
    save_safetensors(in, sources);
    if (differing) {
      EXPECT_NE(refusal(folder, in).find("although it must be a copy"), std::string::npos);
    } else {
      exchange(in, folder.path() / "out");
      expect_same_tensors(folder.path() / "out", in);
    }
  }
}

TEST(Exchange, NeverWritesOverAnything) {
  const TemporaryFolder folder;
  const Path out = folder.path() / "out";
  exchange(golden("llama"), out);
  EXPECT_THROW(exchange(golden("llama"), out), Error);
  std::filesystem::create_directory(folder.path() / "empty");
  exchange(golden("llama"), folder.path() / "empty");
  expect_same_tensors(folder.path() / "empty", golden("llama"));
}

// A target may be named as a shell completes it, and may be a link to an empty folder elsewhere.
TEST(Exchange, TargetNamesAreUsedLiterally) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "empty");
  std::filesystem::create_directory(folder.path() / "elsewhere");
  std::filesystem::create_directory_symlink("elsewhere", folder.path() / "link");
  for (const char* name : {"new/", "empty/", "deep/er//", "link"}) {
    exchange(golden("llama"), folder.path() / name);
    expect_same_tensors(folder.path() / name, golden("llama"));
    EXPECT_FALSE(std::filesystem::exists(folder.path() / name / PartialFolder::kLockFile));
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "new.partial"));
}

TEST(Exchange, ImpossibleTargetsAreRefusedBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink("nowhere", folder.path() / "dangling");
  std::ofstream(folder.path() / "file") << "text";
  std::filesystem::create_directory(folder.path() / "here");
  const Path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path() / "here");
  for (const Path& to : {Path(""), Path("."), Path("./"), Path(".."), Path("/"), folder.path() / "here",
                         folder.path() / "dangling", folder.path() / "file", folder.path() / "file" / "in"}) {
    bool began = false;
    try {
      copy_model(find_model_folder(golden("llama")), to, {}, builtin_families(),
                 [&](auto, auto) { began = true; });
      ADD_FAILURE() << to;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2) << to << error.what();
      EXPECT_FALSE(error.hint().empty()) << to;
    }
    EXPECT_FALSE(began) << to;
  }
  std::filesystem::current_path(before);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "here"));
}

TEST(Exchange, OnlyModelsAreReplacedAndOnlyOnRequest) {
  const TemporaryFolder folder;
  const Path out = folder.path() / "out";
  exchange(golden("llama"), out);
  write_file(out / "notes.txt", "mine");
  const std::string before = read_file(out / "config.json");
  const auto error_of = [&](const Path& from, const Path& to, Existing existing) {
    try {
      exchange(from, to, {.existing = existing});
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return error.render();
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of(golden("qwen3_moe"), out, Existing::kRefuse), ::testing::HasSubstr("--overwrite"));
  EXPECT_THAT(error_of(out, out, Existing::kReplace), ::testing::HasSubstr("is the input model"));
  EXPECT_EQ(read_file(out / "config.json"), before);
  EXPECT_EQ(read_file(out / "notes.txt"), "mine");
  exchange(golden("qwen3_moe"), out, {.existing = Existing::kReplace});
  expect_same_tensors(golden("qwen3_moe"), out);
  EXPECT_FALSE(std::filesystem::exists(out / "notes.txt"));
  EXPECT_EQ(Env::posix().list(folder.path()), std::vector<std::string>{"out"});
  // A folder with more than a model is not replaced.
  for (const char* more : {"folder", "manifest.json"}) {
    std::string(more) == "folder" ? make_folders(out / more) : write_file(out / more, "{}");
    EXPECT_THAT(error_of(golden("llama"), out, Existing::kReplace),
                ::testing::HasSubstr("not a model folder"));
    remove_tree(out / more);
  }
}

// Removes only files that an earlier copy left, and only if the process of that copy has ended.
TEST(Exchange, OtherProcessesWorkIsNotRemoved) {
  const TemporaryFolder folder;
  const Path out = folder.path() / "out", partial = folder.path() / "out.partial";
  std::filesystem::create_directory(partial);
  std::ofstream(partial / "data") << "precious";
  EXPECT_THROW(exchange(golden("llama"), out), Error);
  EXPECT_EQ(read_file(partial / "data"), "precious");
  std::filesystem::remove_all(partial);
  {
    PartialFolder alive(out, Env::posix());
    write_file(alive.path() / "model.safetensors", "half");
    try {
      exchange(golden("llama"), out);
      FAIL();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("another process writes"), std::string::npos);
    }
    EXPECT_EQ(read_file(partial / "model.safetensors"), "half");
    alive.keep();
  }
  std::ofstream(partial / "model-00001-of-00002.safetensors") << "of the dead";
  exchange(golden("llama"), out);
  expect_same_tensors(out, golden("llama"));
  EXPECT_FALSE(std::filesystem::exists(out / "model-00001-of-00002.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(partial));
}

// Returns one element of a Llama after conversion from `from` to `to`.
std::string written_as(DType from, const void* element, DType to) {
  const TemporaryFolder folder;
  const SafetensorsFolder weights = SafetensorsFolder::open(golden("llama"));
  const std::string name = "model.norm.weight";
  const auto size = static_cast<std::size_t>(size_of(from));
  std::vector<std::byte> values;
  const auto sources = sources_of(weights, [&](const TensorView& t, std::vector<TensorSource>& out) {
    if (t.name != name) return false;
    values.resize(t.data.size() / 4 * size);
    std::memcpy(values.data() + 3 * size, element, size);
    out.push_back({name, from, {t.shape.begin(), t.shape.end()}, values.data(), {}});
    return true;
  });
  const Path in = with_weights(folder, "llama", sources), out = folder.path() / "out";
  try {
    exchange(in, out, {.dtype = to});
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_FALSE(std::filesystem::exists(out));
    return error.what();
  }
  const SafetensorsFolder written = SafetensorsFolder::open(out);
  const TensorView tensor = written.at(name);
  std::vector<float> read(tensor.data.size() / static_cast<std::size_t>(size_of(tensor.dtype)));
  to_float(tensor.dtype, tensor.data, read);
  return fmt::format("{}", read[3]);
}

TEST(Exchange, NumbersDoNotBecomeInfinite) {
  const float fits = 65519, too_large = -65520, huge = std::numeric_limits<float>::max(),
              infinite = std::numeric_limits<float>::infinity();
  const double beyond = 1e300;
  EXPECT_EQ(written_as(DType::kF32, &fits, DType::kF16), "65504");
  EXPECT_EQ(written_as(DType::kF32, &too_large, DType::kF16),
            "tensor 'model.norm.weight' holds -65520, which is out of range for fp16");
  EXPECT_EQ(written_as(DType::kF32, &huge, DType::kBF16),
            "tensor 'model.norm.weight' holds 3.40282e+38, which is out of range for bf16");
  EXPECT_EQ(written_as(DType::kF64, &beyond, DType::kF32),
            "tensor 'model.norm.weight' holds 1e+300, which is beyond fp32");
  EXPECT_EQ(written_as(DType::kF32, &infinite, DType::kF16), "inf");  // unchanged
}

TEST(Exchange, TensorsThatAreNotFiniteAreNamed) {
  const TemporaryFolder folder;
  const SafetensorsFolder weights = SafetensorsFolder::open(golden("llama"));
  std::vector<float> values;
  const auto sources = sources_of(weights, [&](const TensorView& t, std::vector<TensorSource>& out) {
    if (t.name != "model.norm.weight") return false;
    values.assign(t.data.size() / 4, 1.0F);
    values.back() = std::numeric_limits<float>::quiet_NaN();
    out.push_back({std::string(t.name), DType::kF32, {t.shape.begin(), t.shape.end()}, values.data(), {}});
    return true;
  });
  const Path damaged = with_weights(folder, "llama", sources);
  for (const std::optional<DType> dtype : {std::optional<DType>(), std::optional(DType::kBF16)}) {
    const Path out = folder.path() / (dtype ? "bf16" : "plain");
    EXPECT_THAT(exchange(damaged, out, {.dtype = dtype}).notes,
                ::testing::ElementsAre(::testing::StartsWith(
                    "the weights are damaged: 'model.norm.weight' has numbers that are not finite")));
  }
  EXPECT_TRUE(exchange(golden("llama"), folder.path() / "good").notes.empty());
}

TEST(Exchange, ReportsTheTypeOfTheWeights) {
  const TemporaryFolder folder;
  for (const auto& [dtype, name] :
       {std::pair(DType::kF32, "float32"), {DType::kBF16, "bfloat16"}, {DType::kF16, "float16"}}) {
    exchange(golden("llama"), folder.path() / name, {.dtype = dtype});
    const auto config = nlohmann::json::parse(read_file(folder.path() / name / "config.json"));
    EXPECT_EQ(config.at("torch_dtype"), name);
  }
}

TEST(Exchange, NarrowingOfDoublesIsNoted) {
  const TemporaryFolder folder;
  const SafetensorsFolder weights = SafetensorsFolder::open(golden("llama"));
  std::vector<double> values;
  const auto sources = sources_of(weights, [&](const TensorView& t, std::vector<TensorSource>& out) {
    if (t.name != "model.norm.weight") return false;
    values.assign(t.data.size() / 4, 1.0 / 3);
    out.push_back({std::string(t.name), DType::kF64, {t.shape.begin(), t.shape.end()}, values.data(), {}});
    return true;
  });
  const ExchangeReport report = exchange(with_weights(folder, "llama", sources), folder.path() / "out");
  EXPECT_EQ(report.notes, (std::vector<std::string>{"1 tensor(s) are fp64: written as fp32"}));
}

TEST(Exchange, ACrashLeavesTheTargetCompleteOrAbsent) {
  const ModelFolder from = find_model_folder(golden("qwen2"));
  const SafetensorsFolder reference = SafetensorsFolder::open(from.path);
  const Path out = "folder/out";
  const auto write = [&](Env& env) { copy_model(from, out, {}, builtin_families(), {}, env); };
  const auto expect_whole = [&](Env& env) {
    const SafetensorsFolder written = SafetensorsFolder::open(out, env);
    ASSERT_EQ(written.size(), reference.size());
    for (std::size_t i = 0; i < written.size(); ++i) {
      ASSERT_TRUE(std::ranges::equal(written[i].data, reference[i].data));
    }
    EXPECT_TRUE(env.status(out / "config.json"));
  };
  FaultEnv whole;
  whole.make_folder("folder");
  const std::uint64_t before = whole.operations();
  write(whole);
  const std::uint64_t after = whole.operations();
  expect_whole(whole);
  for (std::uint64_t at = before; at < after; ++at) {
    FaultEnv env;
    env.make_folder("folder");
    env.sync_folder("folder");
    env.crash_at(at + 1);
    EXPECT_THROW(write(env), SimulatedCrash) << at;
    env.reboot(FaultEnv::Survivors::kSynced);
    if (env.status(out)) {
      expect_whole(env);
    } else {
      write(env);  // files of the first attempt must not block the second
      expect_whole(env);
    }
  }
}

TEST(Exchange, AFullDiskLeavesNothing) {
  const ModelFolder from = find_model_folder(golden("qwen2"));
  FaultEnv env;
  env.make_folder("folder");
  env.set_capacity(100'000);
  EXPECT_THROW(copy_model(from, "folder/out", {}, builtin_families(), {}, env), Error);
  EXPECT_TRUE(env.list("folder").empty());
}

TEST(Elements, HalvesRoundToNearestEven) {
  const auto half = [](float value) {
    std::array<std::byte, 2> bytes;
    from_float(std::array{value}, DType::kF16, bytes);
    return std::bit_cast<std::uint16_t>(bytes);
  };
  // Converting any fp16 number to fp32 and back gives the same number.
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    float value = 0;
    to_float(DType::kF16, std::as_bytes(std::span(&h, 1)), std::span(&value, 1));
    if (std::isnan(value)) {
      EXPECT_EQ(half(value) & 0x7c00U, 0x7c00U);
      EXPECT_NE(half(value) & 0x3ffU, 0U);
    } else {
      ASSERT_EQ(half(value), h);
    }
  }
  EXPECT_EQ(half(1 + 0x1p-11F), 0x3c00);             // ties round to even
  EXPECT_EQ(half(1 + 3 * 0x1p-11F), 0x3c02);         // also upwards
  EXPECT_EQ(half(1 + 0x1p-11F + 0x1p-20F), 0x3c01);  // above a tie
  EXPECT_EQ(half(65519.996F), 0x7bff);
  EXPECT_EQ(half(65520.0F), 0x7c00);
  EXPECT_EQ(half(0x1p-25F), 0x0000);
  EXPECT_EQ(half(0x1.8p-25F), 0x0001);
  EXPECT_EQ(half(-0.0F), 0x8000);
  EXPECT_EQ(half(0x1.ffcp-15F + 0x1p-25F), 0x0400);  // the largest subnormal rounds up to a normal number
}

}  // namespace
}  // namespace primus
