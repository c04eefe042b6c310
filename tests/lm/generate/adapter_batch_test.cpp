// Tests batches with texts of several adapters: each text equals the text that its model generates without
// the others. In fp32, log probabilities are equal up to the order of additions; on batch-invariant devices
// they have the same bits.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random/random.h"
#include "device/forwarding_device.h"
#include "device/guard_device.h"
#include "device/recording_device.h"
#include "lm/checkpoint/elements.h"
#include "lm/decode/adapter_decoder.h"
#include "lm/generate/adapters.h"
#include "lm/generate/batch_generate.h"
#include "lm/model/golden_configs.h"
#include "lm/model/outside_families.h"
#include "tiny_model.h"
#include "turbo/gpu/emulated.h"

namespace primus::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint64_t kSeed = 11;

std::unique_ptr<Device> invariant_cpu() { return turbo::make_cpu_device(2, true); }

// Adapters of these matrices: {name of a matrix, rank}.
ModelConfig with_matrices(ModelConfig config, std::vector<std::pair<std::string, std::int64_t>> matrices,
                          double scale) {
  std::ranges::sort(matrices);
  config.lora = {.dim = matrices.front().second, .alpha = 8};
  for (const auto& [name, dim] : matrices)
    config.lora.by_matrix.matrices.push_back({.name = "model." + name, .dim = dim, .scale = scale});
  return config;
}

ModelConfig with_modules(ModelConfig config, std::int64_t dim, std::vector<std::string> modules) {
  config.lora = {.dim = dim, .alpha = 3.0 * static_cast<double>(dim), .modules = std::move(modules)};
  return config;
}

// A base model, and models with adapters of other ranks, matrices and kinds.
std::vector<ModelConfig> some_models() {
  const ModelConfig base = tiny_config();
  std::vector<ModelConfig> models{base};
  models.push_back(with_modules(base, 3, {"linear_qkv", "linear_fc2"}));
  models.push_back(with_modules(base, 5, {"linear_proj", "linear_fc1"}));
  models.push_back(with_matrices(
      base, {{"layers.0.self_attn.q_proj", 2}, {"layers.1.mlp.up_proj", 7}, {"embed_tokens", 4}}, 0.5));
  models.push_back(
      with_matrices(base, {{"layers.0.self_attn.v_proj", 3}, {"layers.1.self_attn.o_proj", 1}}, 2));
  models.back().lora.by_matrix.biases = true;
  models.push_back(
      with_matrices(base, {{"layers.0.mlp.gate_proj", 4}, {"layers.1.self_attn.k_proj", 2}}, 1.5));
  models.back().lora.by_matrix.magnitudes = true;
  return models;
}

// Fills the adapters of a model with random numbers that depend on `seed`. Magnitudes are near 1.
void fill_adapters(engine::Rank& rank, engine::ParameterStore& store, std::uint64_t seed) {
  for (engine::Parameter& p : store.parameters()) {
    if (!p.is_low_rank) continue;
    const std::uint64_t id = random_stream_id(p.name);
    const RandomStream random(seed, RandomPurpose::kTest, 0, static_cast<std::uint32_t>(id >> 32),
                              static_cast<std::uint32_t>(id));
    const float middle = p.name.ends_with("magnitude") ? 1 : 0;
    std::vector<float> values(static_cast<std::size_t>(p.value.elements()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = middle + 0.3F * (static_cast<float>(random.bits(i)) / 0x1p31F - 1);
    std::vector<std::byte> bytes(static_cast<std::size_t>(p.value.bytes()));
    from_float(values, p.value.dtype, bytes);
    rank.compute().copy_to_device(p.value.data, bytes.data(), p.value.bytes());
    rank.compute().synchronize();
  }
}

// A decoder of models with random weights. Model i has adapters with the seed `seeds[i]`.
std::unique_ptr<AdapterDecoder> decoder_of(std::unique_ptr<Device> device,
                                           const std::vector<ModelConfig>& models,
                                           const std::vector<std::uint64_t>& seeds, ReaderSettings settings,
                                           std::optional<AdapterBatch> batch = {}) {
  auto decoder = std::make_unique<AdapterDecoder>(std::move(device), models, all_families(),
                                                  std::vector<ReaderSettings>(models.size(), settings),
                                                  std::move(batch));
  for (std::size_t i = 0; i < models.size(); ++i) {
    decoder->store(i).initialize(decoder->rank().context(), kSeed);
    fill_adapters(decoder->rank(), decoder->store(i), seeds[i]);
  }
  decoder->rank().synchronize();
  return decoder;
}

std::vector<std::uint64_t> seeds_of(const std::vector<ModelConfig>& models) {
  std::vector<std::uint64_t> seeds;
  for (std::size_t i = 0; i < models.size(); ++i) seeds.push_back(100 + i);
  return seeds;
}

struct Text {
  std::vector<std::int32_t> ids;
  std::vector<float> log_probs;
  bool operator==(const Text&) const = default;
};

// Prompts of different lengths, several of which have the same beginning, and texts of different lengths.
DecodeRequest request(std::size_t i, std::size_t model, std::int64_t vocab, double temperature) {
  constexpr std::size_t kLengths[] = {1, 20, 5, 20, 33, 2, 20, 11};
  return {.prompt = some_tokens(kLengths[i % std::size(kLengths)], vocab),
          .settings = {.sampling = {.temperature = temperature, .seed = i},
                       .max_tokens = 2 + static_cast<std::int64_t>(5 * i % 11),
                       .log_probs = true},
          .model = model};
}

void submit(DecodeScheduler& decoder, DecodeRequest request, Text& text) {
  request.on_token = [&text](const DecodedToken& token) {
    text.ids.push_back(token.id);
    text.log_probs.push_back(*token.log_prob);
    return true;
  };
  decoder.submit(std::move(request));
}

void finish(DecodeScheduler& decoder) {
  while (decoder.step()) {
  }
}

// Returns texts of all models from one batch: text i is of model i modulo the number of models.
std::vector<Text> mixed(AdapterDecoder& decoder, std::size_t texts, std::size_t models, std::int64_t vocab,
                        double temperature) {
  DecodeScheduler& batch = decoder.use_batch();
  std::vector<Text> all(texts);
  for (std::size_t i = 0; i < texts; ++i) submit(batch, request(i, i % models, vocab, temperature), all[i]);
  finish(batch);
  return all;
}

// Returns the same texts, each of which its model generates without other texts and models.
std::vector<Text> alone(std::unique_ptr<Device> (*device)(), const std::vector<ModelConfig>& models,
                        std::size_t texts, ReaderSettings settings, double temperature) {
  settings.sequences = 1;
  const std::vector<std::uint64_t> seeds = seeds_of(models);
  std::vector<Text> all(texts);
  for (std::size_t model = 0; model < models.size(); ++model) {
    const auto decoder = decoder_of(device(), {models[model]}, {seeds[model]}, settings);
    for (std::size_t i = model; i < texts; i += models.size()) {
      submit(decoder->use(0), request(i, 0, models[model].vocab, temperature), all[i]);
      finish(decoder->use(0));
    }
  }
  return all;
}

AdapterBatch all_of(const std::vector<ModelConfig>& models, const ReaderSettings& settings) {
  return {models_of_one_batch(models, all_families()), settings};
}

const ReaderSettings kSmall{.capacity = 60, .pass_tokens = 24, .sequences = 4};
constexpr std::size_t kTexts = 17;

TEST(AdapterBatch, TextsOfAllKindsOfAdaptersAreThoseOfTheirModelsAlone) {
  const std::vector<ModelConfig> models = some_models();
  const auto decoder = decoder_of(cpu(), models, seeds_of(models), kSmall, all_of(models, kSmall));
  ASSERT_THAT(decoder->batched(), ElementsAre(0, 1, 2, 3, 4, 5));
  const std::vector<Text> together = mixed(*decoder, kTexts, models.size(), models.front().vocab, 0),
                          expected = alone(cpu, models, kTexts, kSmall, 0);
  for (std::size_t i = 0; i < kTexts; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(together[i].ids, expected[i].ids);
    ASSERT_EQ(together[i].log_probs.size(), expected[i].log_probs.size());
    for (std::size_t k = 0; k < expected[i].log_probs.size(); ++k)
      EXPECT_NEAR(together[i].log_probs[k], expected[i].log_probs[k], 1e-5);
  }
}

// One pass reads prompts and next tokens for several models. Compares its logits with those of single models.
TEST(AdapterBatch, LogitsAreThoseOfTheModelsAlone) {
  const std::vector<ModelConfig> models = some_models();
  const auto decoder = decoder_of(cpu(), models, seeds_of(models), kSmall, all_of(models, kSmall));
  const std::vector<std::uint64_t> seeds = seeds_of(models);
  const std::vector<std::int32_t> tokens = some_tokens(9, models.front().vocab);
  // The models of the four sequences; rows are sorted by model.
  const std::vector<std::size_t> of{3, 1, 5, 1};
  const std::vector<std::size_t> lengths{4, 1, 9, 6};
  BatchReader& reader = decoder->use_batch().reader();
  std::vector<BatchReader::Input> inputs;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const std::int64_t sequence = *reader.begin(std::span(tokens).first(lengths[i]), of[i]);
    EXPECT_EQ(reader.length(sequence), 0);
    ASSERT_TRUE(reader.reserve(sequence, 60));
    inputs.push_back({sequence, std::span(tokens).first(lengths[i]), true});
  }
  std::vector<std::size_t> order{1, 3, 0, 2};
  std::vector<BatchReader::Input> sorted;
  for (const std::size_t i : order) sorted.push_back(inputs[i]);
  reader.read(sorted);
  for (std::size_t k = 0; k < order.size(); ++k) {
    const std::size_t i = order[k];
    const auto single = decoder_of(cpu(), {models[of[i]]}, {seeds[of[i]]}, kSmall);
    BatchReader& own = single->use(0).reader();
    const std::int64_t sequence = *own.begin(inputs[i].tokens);
    ASSERT_TRUE(own.reserve(sequence, 60));
    own.read({{{sequence, inputs[i].tokens, true}}});
    const auto expected = own.next(0).values, found = reader.next(k).values;
    ASSERT_EQ(expected.size(), found.size());
    double most = 0;
    for (std::size_t c = 0; c < expected.size(); ++c)
      most = std::max(most, std::abs(static_cast<double>(expected[c]) - static_cast<double>(found[c])));
    EXPECT_LT(most, 1e-5) << "sequence " << i;
  }
}

TEST(AdapterBatch, InvariantDevicesGiveTheSameBits) {
  const std::vector<ModelConfig> models = some_models();
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    ReaderSettings settings = kSmall;
    settings.compute = compute;
    const auto decoder =
        decoder_of(invariant_cpu(), models, seeds_of(models), settings, all_of(models, settings));
    const std::vector<Text> together = mixed(*decoder, kTexts, models.size(), models.front().vocab, 1);
    EXPECT_EQ(together, alone(invariant_cpu, models, kTexts, settings, 1)) << name_of(compute);
  }
}

TEST(AdapterBatch, RecordedPassesGiveTheSameTexts) {
  const std::vector<ModelConfig> models = some_models();
  const auto counts = std::make_shared<RecordingDevice::Counts>();
  const auto texts = [&](std::unique_ptr<Device> device) {
    const auto decoder =
        decoder_of(std::move(device), models, seeds_of(models), kSmall, all_of(models, kSmall));
    return mixed(*decoder, kTexts, models.size(), models.front().vocab, 0);
  };
  EXPECT_EQ(texts(std::make_unique<RecordingDevice>(cpu(), counts)), texts(cpu()));
  EXPECT_GT(counts->captures, 3);
  EXPECT_GT(counts->replays, counts->captures);
}

// Models whose adapters are all in tables on the device.
std::vector<ModelConfig> models_with_tables() {
  std::vector<ModelConfig> models = some_models();
  models.pop_back();  // has magnitudes
  std::erase_if(models[3].lora.by_matrix.matrices,
                [](const auto& matrix) { return matrix.name == "model.embed_tokens"; });
  return models;
}

// A recorded pass reads the models of its rows from the device.
TEST(AdapterBatch, PassesOfOtherModelsAreReplayed) {
  const std::vector<ModelConfig> models = models_with_tables();
  const auto counts = std::make_shared<RecordingDevice::Counts>();
  const auto decoder = decoder_of(std::make_unique<RecordingDevice>(cpu(), counts), models, seeds_of(models),
                                  kSmall, all_of(models, kSmall));
  std::vector<Text> texts(models.size());
  const auto generate = [&](std::size_t model) {
    DecodeRequest of = request(1, model, models.front().vocab, 0);
    of.settings.max_tokens = 8;
    submit(decoder->use_batch(), std::move(of), texts[model]);
    finish(decoder->use_batch());
  };
  generate(1);
  const auto recorded = counts->captures;
  EXPECT_GT(recorded, 0);
  for (std::size_t model = 2; model < models.size(); ++model) {
    generate(model);
    EXPECT_EQ(counts->captures, recorded) << model;
    EXPECT_NE(texts[model].log_probs, texts[model - 1].log_probs);
  }
}

// The guard device detects reads and writes outside of the memory of a tensor.
void expect_same_texts_on_gpus(const std::vector<ModelConfig>& models) {
  const auto gpu = [] { return std::make_unique<GuardDevice>(2, turbo::emulated_kernel_table(32)); };
  ReaderSettings settings = kSmall;
  settings.sequences = 3;
  const auto texts = [&](std::unique_ptr<Device> device) {
    const auto decoder =
        decoder_of(std::move(device), models, seeds_of(models), settings, all_of(models, settings));
    std::vector<Text> all(5);
    for (std::size_t i = 0; i < all.size(); ++i) {
      DecodeRequest prompt = request(i, (i + 1) % models.size(), models.front().vocab, 0);
      prompt.prompt.resize(1 + i % 3);
      prompt.settings.max_tokens = 2;
      submit(decoder->use_batch(), prompt, all[i]);
    }
    finish(decoder->use_batch());
    std::vector<std::vector<std::int32_t>> ids;
    for (const Text& text : all) ids.push_back(text.ids);
    return ids;
  };
  EXPECT_EQ(texts(gpu()), texts(cpu()));
}

TEST(AdapterBatch, GpusGiveTheSameTexts) {
  expect_same_texts_on_gpus(some_models());
  expect_same_texts_on_gpus(models_with_tables());
}

// Convolutions and linear attention keep a state per sequence, so that rows keep the order of sequences.
TEST(AdapterBatch, LayersWithStatesMixModels) {
  bool found = false;
  for (const NamedConfig& named : writing_golden_configs()) {
    const ModelConfig& base = named.config;
    if (!base.any_keeps(Keeps::kInputs) && !base.any_keeps(Keeps::kState)) continue;
    if (base.moe.experts > 0) continue;
    found = true;
    SCOPED_TRACE(named.name);
    const std::vector<ModelConfig> models{base, with_modules(base, 3, {"linear_fc1", "linear_proj"}),
                                          with_modules(base, 2, {"linear_fc2"})};
    ReaderSettings settings = kSmall;
    settings.capacity = std::min<std::int64_t>(60, base.max_positions);
    const auto decoder = decoder_of(cpu(), models, seeds_of(models), settings, all_of(models, settings));
    const std::vector<Text> together = mixed(*decoder, 9, models.size(), base.vocab, 0),
                            expected = alone(cpu, models, 9, settings, 0);
    for (std::size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i].ids, expected[i].ids) << i;
  }
  EXPECT_TRUE(found);
}

TEST(AdapterBatch, ModelsThatCannotBeMixedAreNamed) {
  const ModelConfig base = tiny_config();
  const FamilyRegistry families = all_families();
  const auto why = [&](const ModelConfig& from, const ModelConfig& model) {
    return needs_own_batch(from, model, families).value_or("");
  };
  ModelConfig saved = with_matrices(base, {{"layers.0.mlp.up_proj", 2}}, 1);
  EXPECT_EQ(why(base, saved), "");
  saved.lora.by_matrix.saved = {"model.norm"};
  EXPECT_EQ(why(base, saved), "some of its modules are trained without adapters");
  ModelConfig other = with_modules(base, 2, {"linear_qkv"});
  other.norm_epsilon *= 2;
  EXPECT_EQ(why(base, other), "its architecture has other settings than that of the base model");
  ModelConfig stretched = base;
  stretched.rope_scaling.kind = RopeScaling::Kind::kLongrope;
  EXPECT_EQ(why(stretched, with_modules(stretched, 2, {"linear_qkv"})),
            "its rotary factors depend on its longest text (longrope)");
  bool has_experts = false;
  for (const NamedConfig& named : golden_configs()) {
    if (named.config.moe.experts == 0 || named.config.family != "qwen3_moe") continue;
    has_experts = true;
    EXPECT_EQ(why(named.config, with_modules(named.config, 2, {"linear_fc1"})), "its experts have adapters");
    EXPECT_EQ(why(named.config, with_modules(named.config, 2, {"linear_qkv"})), "");
  }
  EXPECT_TRUE(has_experts);
  EXPECT_THAT(models_of_one_batch(std::vector{base, other, saved}, families), IsEmpty());
  EXPECT_THAT(models_of_one_batch(std::vector{base, other, with_modules(base, 2, {"linear_qkv"})}, families),
              ElementsAre(0, 2));
}

// The kernels of GPUs for a few tokens have no adapters, so that a shared expert with adapters does not use
// them.
TEST(AdapterBatch, SharedExpertsHaveTheirAdaptersOnGpus) {
  const auto gpu = [] { return std::make_unique<GuardDevice>(2, turbo::emulated_kernel_table(32)); };
  const ModelFolder folder =
      find_model_folder(Path(PRIMUS_SOURCE_DIR) / "tests" / "golden" / "models" / "glm4_moe");
  const ModelConfig base = load_model_config(folder, builtin_families());
  const std::int64_t layer = base.layers - 1;
  ASSERT_TRUE(base.routed(layer));
  const std::string matrix = fmt::format("layers.{}.mlp.shared_experts.up_proj", layer);
  const std::vector<ModelConfig> models{base, with_matrices(base, {{matrix, 4}}, 20)};
  ReaderSettings settings = kSmall;
  settings.compute = DType::kBF16;
  settings.sequences = 2;
  // Returns the log probabilities of the same token, by the base and by the adapters, or twice by the
  // adapters.
  const auto log_probs = [&](std::unique_ptr<Device> device, bool together) {
    AdapterDecoder decoder(std::move(device), models, all_families(), {settings, settings},
                           together ? std::optional(all_of(models, settings)) : std::nullopt);
    load_model_weights(folder, decoder.store(0), decoder.rank());
    fill_adapters(decoder.rank(), decoder.store(1), kSeed);
    DecodeScheduler& used = together ? decoder.use_batch() : decoder.use(1);
    std::vector<Text> texts(2);
    for (std::size_t i = 0; i < texts.size(); ++i)
      submit(used,
             {.prompt = {7},
              .settings = {.sampling = {.temperature = 0}, .max_tokens = 1, .log_probs = true},
              .model = together ? i : 0},
             texts[i]);
    finish(used);
    return std::pair{texts[0].log_probs.at(0), texts[1].log_probs.at(0)};
  };
  const auto own = log_probs(cpu(), false), batch = log_probs(cpu(), true);
  EXPECT_GT(std::abs(batch.second - batch.first), 0.2);
  EXPECT_NEAR(own.first, batch.second, 0.03);
  for (const bool together : {false, true}) {
    const auto expected = together ? batch : own, on_gpu = log_probs(gpu(), together);
    EXPECT_NEAR(on_gpu.first, expected.first, 0.03) << together;
    EXPECT_NEAR(on_gpu.second, expected.second, 0.03) << together;
  }
}

// A device with kernels of CPUs, but with a memory of its own.
class SmallDevice final : public ForwardingDevice {
 public:
  explicit SmallDevice(std::int64_t total) : ForwardingDevice(cpu()), total_(total) {}
  DeviceProperties properties() const override {
    DeviceProperties properties = ForwardingDevice::properties();
    properties.host_memory = false;
    return properties;
  }
  DeviceMemoryUse memory_use() const override { return {.used = 0, .total = total_}; }

 private:
  std::int64_t total_;
};

TEST(AdapterBatch, ModelsGenerateAloneIfMemoryIsShort) {
  const std::vector<ModelConfig> models = some_models();
  ReaderSettings many = kSmall;
  many.sequences = 512;
  const auto memory = [&](std::int64_t total, bool together) {
    const auto decoder = decoder_of(std::make_unique<SmallDevice>(total), models, seeds_of(models), kSmall,
                                    together ? std::optional(all_of(models, many)) : std::nullopt);
    EXPECT_EQ(std::ssize(decoder->use(3).reader().config().lora.by_matrix.matrices), 3);
    return std::pair{decoder->rank().high_water().total(), decoder->batched().size()};
  };
  constexpr std::int64_t kPlenty = std::int64_t{1} << 32;
  const auto [apart, none] = memory(kPlenty, false);
  EXPECT_EQ(none, 0U);
  EXPECT_EQ(memory(kPlenty, true).second, 6U);
  const auto [used, batched] = memory(2 * apart, true);
  EXPECT_EQ(batched, 0U);
  EXPECT_LT(used, 2 * apart);
}

// If memory limits the size of passes, texts of several models may still be in one batch, with smaller
// passes.
TEST(AdapterBatch, MayHaveSmallerPasses) {
  const std::vector<ModelConfig> models = some_models();
  ReaderSettings longer = kSmall;
  longer.pass_tokens = 2048;
  longer.sequences = 64;
  bool smaller = false;
  std::int64_t tokens = 0;
  for (std::int64_t total = std::int64_t{1} << 20; tokens < longer.pass_tokens; total += total / 4) {
    ASSERT_LT(total, std::int64_t{1} << 32);
    const auto decoder = decoder_of(std::make_unique<SmallDevice>(total), models, seeds_of(models), longer,
                                    all_of(models, longer));
    if (decoder->batched().empty()) continue;
    tokens = decoder->use_batch().reader().settings().pass_tokens;
    smaller = smaller || tokens < longer.pass_tokens;
  }
  EXPECT_TRUE(smaller);
}

// ---- generate_by_models

struct Reported {
  std::vector<std::size_t> order;
  std::string error;
};

// Generates two texts of each model. Model `broken` has a weight that is not a number.
Reported reported(const std::vector<ModelConfig>& models, const std::optional<AdapterBatch>& batch,
                  std::size_t broken = 0) {
  const auto decoder = decoder_of(cpu(), models, seeds_of(models), kSmall, batch);
  if (broken > 0) {
    for (engine::Parameter& p : decoder->store(broken).parameters()) {
      if (!p.is_low_rank) continue;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      decoder->rank().compute().copy_to_device(p.value.data, &nan, 4);
      decoder->rank().synchronize();
    }
  }
  std::vector<std::vector<BatchPrompt>> prompts(models.size());
  for (std::size_t i = 0; i < 2 * models.size(); ++i) {
    // Texts of later models end first.
    const DecodeRequest of = request(i, 0, models.front().vocab, 0);
    GenerateSettings settings = of.settings;
    settings.max_tokens = 14 - static_cast<std::int64_t>(i);
    prompts[i / 2].push_back({of.prompt, settings});
  }
  Reported result;
  try {
    generate_by_models(*decoder, prompts, {.done = [&](std::size_t i, Generation&& text) {
      EXPECT_EQ(std::ssize(text.ids), 14 - static_cast<std::int64_t>(i));
      result.order.push_back(i);
    }});
  } catch (const Error& error) {
    result.error = error.render();
  }
  return result;
}

TEST(AdapterBatch, ResultsKeepTheOrderOfModelsAndPrompts) {
  std::vector<ModelConfig> models = some_models();
  models.resize(4);
  models[1].lora.by_matrix.saved = {"model.norm"};
  models[1].lora.modules.clear();
  EXPECT_THAT(models_of_one_batch(models, all_families()), ElementsAre(0, 2, 3));
  EXPECT_THAT(reported(models, all_of(models, kSmall)).order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(reported(models, {}).order, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// Model 1 generates after the batch of the others.
TEST(AdapterBatch, AnErrorOfAModelKeepsTheResultsOfEarlierModels) {
  std::vector<ModelConfig> models = some_models();
  models.resize(4);
  models[1].lora.by_matrix.saved = {"model.norm"};
  models[1].lora.modules.clear();
  const AdapterBatch batch = all_of(models, kSmall);
  for (const bool together : {true, false}) {
    const std::optional<AdapterBatch> used = together ? std::optional(batch) : std::nullopt;
    Reported result = reported(models, used, 2);
    EXPECT_THAT(result.order, ElementsAre(0, 1, 2, 3)) << together;
    EXPECT_NE(result.error, "");
    result = reported(models, used, 3);
    EXPECT_THAT(result.order, ElementsAre(0, 1, 2, 3, 4, 5)) << together;
    EXPECT_NE(result.error, "");
  }
}

}  // namespace
}  // namespace primus::test
