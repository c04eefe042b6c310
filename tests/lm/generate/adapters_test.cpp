// Tests several adapters on one base model: each gives the same bits as without the others, the weights of
// the base are in memory once, and adapters of other weights are refused. The adapters are those of
// tests/golden/peft: LoRA, rsLoRA, DoRA, biases, patterns of ranks, an adapted embedding, and modules trained
// without adapters.
#include "lm/generate/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "../../base/temporary_folder.h"
#include "base/error.h"
#include "device/guard_device.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/checkpoint/tensor_source.h"
#include "lm/decode/adapter_decoder.h"
#include "lm/generate/generate.h"
#include "lm/generate/loss_evaluator.h"
#include "tiny_model.h"
#include "turbo/gpu/emulated.h"

namespace primus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const Path kPeft = Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "peft";
const Path kBase = kPeft / "model" / "policy";
const std::vector<std::string> kNames = {"lora",      "rslora",       "dora",
                                         "lora_bias", "lora_pattern", "lora_saved_head"};

AdaptedModel base_model(const Path& folder = kBase) {
  const ModelFolder found = find_model_folder(folder);
  return {std::string(kBaseName), found, load_model_config(found, builtin_families())};
}

AdaptedModel adapted(const std::string& name, const Path& base = kBase, const Path& folder = kPeft / "peft") {
  const ModelFolder found = find_adapters(folder / name, find_model_folder(base), builtin_families());
  return {name, found, load_model_config(found, builtin_families())};
}

std::vector<ModelConfig> configs_of(const std::vector<AdaptedModel>& models) {
  std::vector<ModelConfig> configs;
  for (const AdaptedModel& model : models) configs.push_back(model.config);
  return configs;
}

// A decoder with loaded weights.
struct Loaded {
  AdapterDecoder decoder;
  Loaded(const std::vector<AdaptedModel>& models, DType compute, std::unique_ptr<Device> device = test::cpu())
      : decoder(std::move(device), configs_of(models), builtin_families(),
                std::vector<ReaderSettings>(models.size(),
                                            {.compute = compute, .capacity = 40, .sequences = 3})) {
    std::vector<engine::ParameterStore*> stores;
    for (std::size_t i = 0; i < models.size(); ++i) stores.push_back(&decoder.store(i));
    load_shared_weights(models, stores, decoder.rank());
  }
};

struct Text {
  std::vector<std::int32_t> ids;
  std::vector<std::uint32_t> log_probs;  // bits
  bool operator==(const Text&) const = default;
};

// Generates five texts, three at a time.
std::vector<Text> generated(DecodeScheduler& decoder, std::int64_t vocab) {
  std::vector<Text> texts(5);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    decoder.submit({.prompt = test::some_tokens(4 + 3 * i, vocab),
                    .settings = {.sampling = {.seed = i}, .max_tokens = 12, .log_probs = true},
                    .on_token = [&texts, i](const DecodedToken& token) {
                      texts[i].ids.push_back(token.id);
                      texts[i].log_probs.push_back(std::bit_cast<std::uint32_t>(*token.log_prob));
                      return true;
                    }});
  }
  while (decoder.step()) {
  }
  return texts;
}

std::vector<AdaptedModel> all_models() {
  std::vector<AdaptedModel> models = {base_model()};
  for (const std::string& name : kNames) models.push_back(adapted(name));
  return models;
}

TEST(SharedBase, AdaptersAmongOthersGiveTheBitsOfAdaptersAlone) {
  const std::vector<AdaptedModel> models = all_models();
  const std::int64_t vocab = models.front().config.vocab;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Loaded together(models, compute);
    std::vector<std::vector<Text>> seen(models.size());
    // The order of use does not matter, and a model may be used again.
    for (const std::size_t i : {3U, 0U, 5U, 1U, 6U, 2U, 4U, 0U, 3U}) {
      SCOPED_TRACE(models[i].name);
      const std::vector<Text> texts = generated(together.decoder.use(i), vocab);
      if (seen[i].empty()) {
        Loaded single({models[i]}, compute);
        EXPECT_EQ(texts, generated(single.decoder.use(0), vocab));
        seen[i] = texts;
      }
      EXPECT_EQ(texts, seen[i]);
    }
    for (std::size_t i = 0; i < models.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) EXPECT_NE(seen[i], seen[j]) << models[i].name;
  }
}

// The rotary factors of longrope depend on the longest sequence of a model.
TEST(SharedBase, EachModelHasTheRotaryFactorsOfItsOwnCapacity) {
  const ModelFolder folder =
      find_model_folder(Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "models" / "phi3");
  const ModelConfig config = load_model_config(folder, builtin_families());
  const std::int64_t below = config.rope_scaling.original_max_positions, above = below + 1;
  ModelConfig lora = config;
  lora.lora = {.dim = 2, .alpha = 4, .modules = {"linear_proj"}};
  // Without loaded adapters, the second model has the weights of the first one.
  const auto texts = [&](const std::vector<ModelConfig>& models,
                         const std::vector<std::int64_t>& capacities) {
    std::vector<ReaderSettings> settings;
    for (const std::int64_t capacity : capacities) settings.push_back({.capacity = capacity, .sequences = 3});
    AdapterDecoder decoder(test::cpu(), models, builtin_families(), settings);
    load_model_weights(folder, decoder.store(0), decoder.rank());
    std::vector<std::vector<std::uint32_t>> bits;
    for (std::size_t i = 0; i < models.size(); ++i) {
      decoder.use(i).submit({.prompt = test::some_tokens(10, config.vocab),
                             .settings = {.max_tokens = 4, .log_probs = true},
                             .on_token = [&](const DecodedToken& token) {
                               bits.back().push_back(std::bit_cast<std::uint32_t>(*token.log_prob));
                               return true;
                             }});
      bits.emplace_back();
      while (decoder.use(i).step()) {
      }
    }
    return bits;
  };
  const auto short_alone = texts({config}, {below}).front(), long_alone = texts({config}, {above}).front();
  EXPECT_NE(short_alone, long_alone);
  EXPECT_THAT(texts({config, lora}, {below, above}), ElementsAre(short_alone, long_alone));
  EXPECT_THAT(texts({config, lora}, {above, below}), ElementsAre(long_alone, short_alone));
}

TEST(SharedBase, LossesAreThoseOfAdaptersAlone) {
  const std::vector<AdaptedModel> models = all_models();
  const std::vector<std::int32_t> text = test::some_tokens(60, models.front().config.vocab);
  const EvaluatorSettings settings{.sequence = 16, .batch = 2};
  LossEvaluator together(test::cpu(), configs_of(models), builtin_families(), settings);
  std::vector<engine::ParameterStore*> stores;
  for (std::size_t i = 0; i < models.size(); ++i) stores.push_back(&together.store(i));
  load_shared_weights(models, stores, together.rank());
  for (std::size_t i = 0; i < models.size(); ++i) {
    LossEvaluator single(test::cpu(), models[i].config, builtin_families(), settings);
    load_model_weights(models[i].folder, single.store(), single.rank());
    together.select(i);
    for (LossEvaluator* const evaluator : {&together, &single}) {
      evaluator->add(text);
      evaluator->finish();
    }
    EXPECT_EQ(together.total(), single.total()) << models[i].name;
    EXPECT_EQ(together.tokens(), 59);
  }
}

// The guard device detects reads and writes outside of the memory of a tensor.
TEST(SharedBase, TheKernelsOfGpusReadTheSharedWeights) {
  const auto gpu = [] { return std::make_unique<test::GuardDevice>(2, turbo::emulated_kernel_table(32)); };
  const std::vector<AdaptedModel> models = {base_model(), adapted("dora"), adapted("lora_saved_head")};
  const auto text = [&](DecodeScheduler& decoder) {
    return generate(decoder, test::some_tokens(3, 200), {.sampling = {.temperature = 0}, .max_tokens = 2})
        .ids;
  };
  Loaded together(models, DType::kF32, gpu()), same(models, DType::kF32);
  for (const std::size_t i : {2U, 0U, 1U})
    EXPECT_EQ(text(together.decoder.use(i)), text(same.decoder.use(i))) << models[i].name;
}

// The tables of positions, and the alignment of parameters, are all that a model adds to its own parameters.
TEST(SharedBase, TheWeightsOfTheBaseAreInMemoryOnce) {
  const std::vector<AdaptedModel> models = {base_model(), adapted("lora"), adapted("rslora")};
  Loaded one({models.front()}, DType::kF32), three(models, DType::kF32);
  std::int64_t own = 0, base = 0;
  for (const engine::Parameter& p : one.decoder.store(0).parameters()) base += p.value.bytes();
  for (const std::size_t i : {1U, 2U}) {
    for (const engine::ParameterUnit& unit : three.decoder.store(i).units()) own += unit.values.bytes();
  }
  const std::int64_t tables = 2 * 40 * models.front().config.rotary_dim() * 4;
  const std::int64_t more =
      three.decoder.rank().high_water().persistent - one.decoder.rank().high_water().persistent;
  EXPECT_GE(more, own + tables);
  EXPECT_LE(more, own + tables + 4096);
  EXPECT_LT(more, base / 2);
}

// Returns the error of loading these adapters next to a base model.
std::string refusal_of(const std::string& name, const Path& base, DType compute = DType::kF32,
                       const Path& folder = kPeft / "peft") {
  try {
    Loaded({base_model(base), adapted(name, base, folder)}, compute);
  } catch (const Error& error) {
    return error.render();
  }
  return "";
}

// Adapters of an embedding come with a copy of the embedding.
TEST(SharedBase, OtherWeightsAreRefused) {
  const test::TemporaryFolder folder;
  const Path other = folder.path() / "other";
  std::filesystem::copy(kBase, other);
  const Path file = other / "model.safetensors";
  const auto change = [&](const char* tensor) {
    std::string bytes = read_file(file);
    bytes[SafetensorsFile::open(file).find(tensor)->file_offset + 2] ^= 1;
    write_file(file, bytes);
  };
  change("model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(refusal_of("lora_saved_head", other), "");  // a PEFT folder does not tell these weights
  change("model.embed_tokens.weight");
  EXPECT_EQ(refusal_of("lora", other), "");
  EXPECT_THAT(
      refusal_of("lora_saved_head", other),
      AllOf(HasSubstr("'model.embed_tokens.weight' of adapters 'lora_saved_head' differs from the base"),
            HasSubstr("give the model next to which they were trained")));
}

// Adapters that were trained in bf16 have rounded copies of the base weights.
TEST(SharedBase, RoundedWeightsAreUsedOnlyInBf16) {
  const test::TemporaryFolder folder;
  const Path rounded = folder.path() / "lora_saved_head";
  std::filesystem::copy(kPeft / "peft" / "lora_saved_head", rounded);
  const SafetensorsFile file =
      SafetensorsFile::open(kPeft / "peft" / "lora_saved_head" / "adapter_model.safetensors");
  std::vector<std::vector<std::byte>> values(file.size());
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const TensorView tensor = file[i];
    std::vector<float> floats(tensor.data.size() / sizeof(float));
    to_float(tensor.dtype, tensor.data, floats);
    values[i].resize(floats.size() * 2);
    from_float(floats, DType::kBF16, values[i]);
    TensorSource source;
    source.name = tensor.name;
    source.dtype = DType::kBF16;
    source.shape.assign(tensor.shape.begin(), tensor.shape.end());
    source.data = values[i].data();
    sources.push_back(std::move(source));
  }
  save_safetensors(rounded, sources, {.stem = "adapter_model"});
  EXPECT_EQ(refusal_of("lora_saved_head", kBase, DType::kBF16, folder.path()), "");
  EXPECT_THAT(refusal_of("lora_saved_head", kBase, DType::kF32, folder.path()),
              AllOf(HasSubstr("only after rounding to bf16"), HasSubstr("--dtype bf16")));
}

TEST(SharedBase, OnlyAdaptersAreAdapters) {
  const auto refused = [](const Path& given, const Path& base) {
    try {
      find_adapters(given, find_model_folder(base), builtin_families());
    } catch (const Error& error) {
      return error.render();
    }
    return std::string();
  };
  EXPECT_THAT(refused(kBase, kBase), HasSubstr("is a model without adapters"));
  EXPECT_THAT(refused(kPeft / "nowhere", kBase), HasSubstr("does not exist"));
  const test::TemporaryFolder folder;
  const Path of_base = folder.path() / "lora";
  std::filesystem::copy(kPeft / "peft" / "lora", of_base);
  std::string settings = read_file(of_base / "adapter_config.json");
  const std::string unknown = "\"base_model_name_or_path\": null";
  ASSERT_NE(settings.find(unknown), std::string::npos);
  settings.replace(settings.find(unknown), unknown.size(),
                   "\"base_model_name_or_path\": \"" + kBase.string() + "\"");
  write_file(of_base / "adapter_config.json", settings);
  EXPECT_THAT(refused(kPeft / "peft" / "dora", of_base), HasSubstr("has adapters itself"));
  const AdaptedModel named{"lora", find_adapters(of_base, find_model_folder(kBase), builtin_families()), {}};
  EXPECT_EQ(warn_of_another_base(named, find_model_folder(kBase)), "");
}

}  // namespace
}  // namespace primus
