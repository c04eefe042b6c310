// Tests import and export: weights loaded from a published checkpoint are written back byte for byte, in any
// layout.
#include "lm/model/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "base/files/file.h"
#include "built_model.h"

namespace primus {
namespace {

using test::BuiltModel;

class Published : public testing::TestWithParam<const char*> {};

TEST_P(Published, TensorsComeBackByteForByte) {
  const Path folder = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models" / GetParam();
  const FamilyRegistry families = builtin_families();
  const ModelConfig config = read_model_config(read_file(folder / "config.json"), "config.json", families);
  const SafetensorsFolder weights = SafetensorsFolder::open(folder);
  BuiltModel model(config);
  load_weights(weights, model.store, model.rank);
  const test::TemporaryFolder written_folder;
  save_safetensors(written_folder.path(), model.sources());
  const SafetensorsFolder written = SafetensorsFolder::open(written_folder.path());
  EXPECT_EQ(written.size(), weights.size());
  for (std::size_t i = 0; i < written.size(); ++i) {
    const TensorView original = weights.at(written[i].name, written[i].shape);
    EXPECT_TRUE(std::ranges::equal(written[i].data, original.data)) << original.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Published,
                         testing::Values("llama", "mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3",
                                         "gpt_oss", "llama4", "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_moe",
                                         "qwen3_5", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "kimi_k3",
                                         "deepseek_v4", "mistral", "ministral", "phi3", "smollm3", "olmo2",
                                         "glm4", "glm4_moe", "granite", "granitemoe", "granitemoeshared",
                                         "gemma2", "gemma3", "ministral3", "gated_deltanet",
                                         "gated_deltanet_latent", "kda"),
                         [](const auto& family) { return std::string(family.param); });

// --- multi-token prediction: its tensors, and its copies of the embedding and the head

ModelConfig with_mtp(std::int64_t layers, bool enabled) {
  ModelConfig c;
  c.layers = 2;
  c.hidden = c.ffn = 16;
  c.heads = c.kv_heads = 2;
  c.head_dim = 8;
  c.vocab = 10;
  c.max_positions = 8;
  c.mtp = {.layers = layers, .enabled = enabled};
  return c;
}

class MtpWeights : public testing::Test {
 protected:
  static std::map<std::string, std::vector<std::byte>> tensors_of(const BuiltModel& model) {
    std::map<std::string, std::vector<std::byte>> all;
    for (const TensorSource& source : model.sources()) {
      all[source.name].resize(source.bytes());
      source.fill(0, all[source.name]);
    }
    return all;
  }

  void SetUp() override {
    remove_tree(folder_);
    make_folders(folder_);
  }
  void TearDown() override { remove_tree(folder_); }

  // Writes the tensors of `source`, after `change` has modified them.
  void write(const BuiltModel& source, const std::function<void(std::vector<TensorSource>&)>& change = {}) {
    std::vector<TensorSource> sources = source.sources();
    if (change) change(sources);
    save_safetensors(folder_, sources);
  }
  std::string refusal(const ModelConfig& config) {
    BuiltModel model(config, 2);
    try {
      load_weights(SafetensorsFolder::open(folder_), model.store, model.rank);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      return std::string(error.what()) + " / " + error.hint();
    }
    return "accepted";
  }

  Path folder_ = Path(testing::TempDir()) / ("mtp_weights." + std::to_string(getpid()));
};

TEST_F(MtpWeights, ExportAndImportKeepEveryByte) {
  const BuiltModel first(with_mtp(2, true), 1);
  write(first);
  const auto tensors = tensors_of(first);
  EXPECT_EQ(tensors.at("model.layers.2.embed_tokens.weight"), tensors.at("model.embed_tokens.weight"));
  EXPECT_EQ(tensors.at("model.layers.3.shared_head.head.weight"), tensors.at("lm_head.weight"));
  for (const char* name : {"enorm", "hnorm", "eh_proj", "shared_head.norm", "input_layernorm",
                           "self_attn.q_proj", "mlp.down_proj"}) {
    EXPECT_TRUE(tensors.contains("model.layers.3." + std::string(name) + ".weight")) << name;
  }
  BuiltModel second(with_mtp(2, true), 2);
  EXPECT_NE(tensors_of(second), tensors);
  load_weights(SafetensorsFolder::open(folder_), second.store, second.rank);
  EXPECT_EQ(tensors_of(second), tensors);
}

TEST_F(MtpWeights, CopiesMayBeMissingAndMustBeEqual) {
  const BuiltModel source(with_mtp(1, true), 1);
  const auto is = [](const char* name) { return [name](const TensorSource& s) { return s.name == name; }; };
  write(source, [&](std::vector<TensorSource>& all) {
    std::erase_if(all, is("model.layers.2.embed_tokens.weight"));
    std::erase_if(all, is("model.layers.2.shared_head.head.weight"));
  });
  EXPECT_EQ(refusal(with_mtp(1, true)), "accepted");
  for (const char* copy : {"model.layers.2.embed_tokens.weight", "model.layers.2.shared_head.head.weight"}) {
    write(source, [&](std::vector<TensorSource>& all) {
      TensorSource& tensor = *std::ranges::find_if(all, is(copy));
      tensor.fill = [fill = tensor.fill](std::uint64_t offset, std::span<std::byte> out) {
        fill(offset, out);
        if (offset == 0) out[1] ^= std::byte{1};
      };
    });
    EXPECT_NE(refusal(with_mtp(1, true)).find(copy), std::string::npos) << refusal(with_mtp(1, true));
  }
}

// transformers ties head and embedding only if they are equal.
TEST_F(MtpWeights, ATiedModelsHeadIsItsEmbedding) {
  ModelConfig tied = with_mtp(0, false);
  tied.tied_embeddings = true;
  const BuiltModel source(tied, 1);
  for (const bool differs : {false, true}) {
    write(source, [&](std::vector<TensorSource>& all) {
      TensorSource head = *std::ranges::find_if(
          all, [](const TensorSource& s) { return s.name == "model.embed_tokens.weight"; });
      head.name = "lm_head.weight";
      head.fill = [fill = head.fill, differs](std::uint64_t offset, std::span<std::byte> out) {
        fill(offset, out);
        if (offset == 0 && differs) out[1] ^= std::byte{1};
      };
      all.push_back(std::move(head));
    });
    const std::string said =
        differs ? "tensor 'lm_head.weight' differs from 'model.embed_tokens.weight'" : "accepted";
    EXPECT_TRUE(refusal(tied).starts_with(said)) << refusal(tied);
  }
}

TEST_F(MtpWeights, MissingModulesAreRefusedWithAHint) {
  write(BuiltModel(with_mtp(1, true), 1));
  const std::string text = refusal(with_mtp(2, true));
  EXPECT_NE(text.find("layers.3"), std::string::npos) << text;
  EXPECT_NE(text.find("mtp_num_layers"), std::string::npos) << text;
}

TEST_F(MtpWeights, AreSkippedIfMtpIsDisabled) {
  const BuiltModel source(with_mtp(1, true), 1);
  write(source);
  BuiltModel plain(with_mtp(1, false), 2);
  load_weights(SafetensorsFolder::open(folder_), plain.store, plain.rank);
  auto expected = tensors_of(source);
  std::erase_if(expected, [](const auto& tensor) { return tensor.first.starts_with("model.layers.2."); });
  EXPECT_EQ(tensors_of(plain), expected);
  // A model without the modules refuses these weights, so the modules are not lost silently.
  EXPECT_NE(refusal(with_mtp(0, false)).find("model.layers.2."), std::string::npos);
}

// A training checkpoint restores all weights for further training. For generation, it also loads into a model
// whose prediction modules are disabled.
TEST_F(MtpWeights, LoadFromATrainingCheckpoint) {
  const BuiltModel source(with_mtp(1, true), 1);
  Snapshot snapshot;
  snapshot.iteration = 3;
  snapshot.model = source.sources();
  CheckpointRoot(folder_).save(snapshot);
  const CheckpointReader checkpoint = CheckpointReader::open(CheckpointRoot(folder_).folder(3));
  BuiltModel same(with_mtp(1, true), 2), plain(with_mtp(1, false), 2), none(with_mtp(0, false), 2);
  load_checkpoint(checkpoint, same.store, same.rank, false);
  EXPECT_EQ(tensors_of(same), tensors_of(source));
  load_checkpoint(checkpoint, plain.store, plain.rank, false);
  EXPECT_EQ(tensors_of(plain).at("lm_head.weight"), tensors_of(source).at("lm_head.weight"));
  EXPECT_THROW(load_checkpoint(checkpoint, none.store, none.rank, false), Error);
}

// A published Llama 4: the language model's tensors have a prefix, and vision tensors are present.
class Llama4Folder : public testing::Test {
 protected:
  void SetUp() override {
    remove_tree(folder_);
    make_folders(folder_);
  }
  void TearDown() override { remove_tree(folder_); }

  // Loads the golden's tensors under changed names, with one tensor of another part. Returns "loaded" or the
  // error.
  std::string load(const std::function<std::string(std::string)>& rename,
                   const std::string& other = "vision_model.patch") {
    const Path golden = Path(PRIMUS_SOURCE_DIR) / "tests/golden/models/llama4";
    const SafetensorsFolder weights = SafetensorsFolder::open(golden);
    std::vector<TensorSource> sources;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const TensorView t = weights[i];
      sources.push_back({.name = rename(std::string(t.name)),
                         .dtype = t.dtype,
                         .shape = {t.shape.begin(), t.shape.end()},
                         .data = t.data.data(),
                         .fill = {}});
    }
    const float pixel = 1;
    sources.push_back({.name = other, .dtype = DType::kF32, .shape = {1}, .data = &pixel, .fill = {}});
    save_safetensors(folder_, sources);
    const ModelConfig config =
        read_model_config(read_file(golden / "config.json"), "config.json", builtin_families());
    BuiltModel model(config);
    try {
      load_weights(SafetensorsFolder::open(folder_), model.store, model.rank);
    } catch (const Error& error) {
      return error.what();
    }
    for (const TensorSource& source : model.sources()) {
      const TensorView original = weights.at(source.name, source.shape);
      std::vector<std::byte> memory(original.data.size()), loaded(memory.size());
      source.fill(0, memory);
      if (source.order.same()) {
        loaded = memory;
      } else {
        to_file_order(source.order, static_cast<std::size_t>(size_of(source.dtype)), memory, loaded);
      }
      EXPECT_TRUE(std::ranges::equal(loaded, original.data)) << source.name;
    }
    return "loaded";
  }

  Path folder_ = Path(testing::TempDir()) / ("llama4_weights." + std::to_string(getpid()));
};

TEST_F(Llama4Folder, TheLanguageModelOfAVisionModelIsRead) {
  EXPECT_EQ(load([](const std::string& name) { return "language_model." + name; }), "loaded");
}

// Qwen3.5 as published: the head is outside of the language model.
TEST_F(Llama4Folder, TheLanguageModelMayBeAPartOfTheModel) {
  const auto rename = [](const std::string& name) {
    return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  };
  EXPECT_NE(load(rename).find("vision_model.patch"), std::string::npos);
  EXPECT_EQ(load([&](const std::string& name) { return rename(name); }, "model.visual.patch"), "loaded");
}

TEST_F(Llama4Folder, UnknownTensorsAreRefusedWithoutAPrefix) {
  EXPECT_NE(load([](const std::string& name) { return name; }).find("vision_model.patch"), std::string::npos);
}

TEST_F(Llama4Folder, QuantisedExpertsAreRefused) {
  const auto rename = [](const std::string& name) {
    const std::size_t matrix = name.find("gate_up_proj"), other = name.find("experts.down_proj");
    if (matrix != std::string::npos) return "language_model." + name + "_blocks";
    if (other != std::string::npos)
      return "language_model." + name.substr(0, other) + "experts.gate_up_proj_scales";
    return "language_model." + name;
  };
  EXPECT_NE(load(rename).find("mxfp4"), std::string::npos);
}

TEST_F(Llama4Folder, MissingExpertsAreNamed) {
  const auto rename = [](const std::string& name) {
    return name.ends_with("experts.down_proj") ? "language_model.lost" : "language_model." + name;
  };
  EXPECT_NE(load(rename).find("experts.down_proj"), std::string::npos);
}

}  // namespace
}  // namespace primus
