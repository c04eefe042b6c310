// Tests batch-invariant devices: the log-probabilities of generated tokens have the bits of one forward pass
// over all texts, packed as in training, for any number of texts at a time and any division of prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "lm/generate/tiny_model.h"
#include "lm/model/batch_invariance.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/golden_configs.h"

namespace primus::test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kSeed = 11;

std::unique_ptr<Device> invariant_cpu() { return turbo::make_cpu_device(2, true); }

// A generated text: its prompt, its tokens and their log-probabilities.
struct Written {
  std::vector<std::int32_t> prompt, answer;
  std::vector<float> log_probs;
};

// Returns prompts of different lengths. Some texts have the same prompt, whose pages they share.
std::vector<std::vector<std::int32_t>> prompts_of(const ModelConfig& config, std::size_t count) {
  std::vector<std::vector<std::int32_t>> prompts;
  const std::vector<std::size_t> lengths{1, 70, 5, 70, 70, 17, 33, 2, 64, 40};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t length = std::min<std::size_t>(lengths[i % lengths.size()],
                                                     static_cast<std::size_t>(config.max_positions) - 16);
    std::vector<std::int32_t> tokens = some_tokens(length + i / lengths.size(), config.vocab);
    if (length != 70)
      std::rotate(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i % tokens.size()),
                  tokens.end());
    prompts.push_back(tokens);
  }
  return prompts;
}

std::vector<Written> write(const ModelConfig& config, DType compute, std::int64_t sequences,
                           std::int64_t pass_tokens, const std::vector<std::vector<std::int32_t>>& prompts) {
  const ReaderSettings settings{.compute = compute,
                                .capacity = std::min<std::int64_t>(config.max_positions, 128),
                                .pass_tokens = pass_tokens,
                                .sequences = sequences};
  engine::Rank rank(invariant_cpu());
  const auto parts =
      measured_model(rank, config, all_families(), compute, settings.capacity, [&](InferenceModel& measured) {
        measured.store.initialize(rank.context(), kSeed);
        BatchReader(rank, measured.model, settings).measure();
      });
  parts->store.initialize(rank.context(), kSeed);
  DecodeScheduler decoder(rank, parts->model, settings);
  std::vector<Written> all(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    all[i].prompt = prompts[i];
    GenerateSettings generate{.sampling = {.temperature = 1},
                              .max_tokens = 3 + static_cast<std::int64_t>(i % 5),
                              .log_probs = true};
    generate.sampling.seed = 100 + i;
    decoder.submit(
        {.prompt = prompts[i], .settings = generate, .on_token = [&text = all[i]](const DecodedToken& token) {
           text.answer.push_back(token.id);
           text.log_probs.push_back(*token.log_prob);
           return true;
         }});
  }
  while (decoder.step()) {
  }
  return all;
}

// Packs the texts one after another into rows of `sequence` tokens, and returns the log-probabilities of the
// answers' tokens from one forward pass without a cache, by the operator of the training loss.
std::vector<std::vector<float>> packed_log_probs(const ModelConfig& config, DType compute,
                                                 std::int64_t sequence, const std::vector<Written>& texts) {
  std::vector<std::int32_t> tokens, labels, positions, first_key;
  std::vector<std::size_t> begins;  // index of the first token of each text
  const auto pad = [&](std::size_t size) {
    const auto start = static_cast<std::int32_t>(tokens.size() % static_cast<std::size_t>(sequence));
    for (std::int32_t at = 0; tokens.size() < size; ++at) {
      tokens.push_back(0), labels.push_back(0), positions.push_back(at), first_key.push_back(start);
    }
  };
  const auto row = static_cast<std::size_t>(sequence);
  for (const Written& text : texts) {
    std::vector<std::int32_t> all = text.prompt;
    all.insert(all.end(), text.answer.begin(), text.answer.end());
    const std::size_t length = all.size() - 1;
    if (tokens.size() % row + length > row) pad((tokens.size() + row - 1) / row * row);
    begins.push_back(tokens.size());
    const auto start = static_cast<std::int32_t>(tokens.size() % row);
    for (std::size_t i = 0; i < length; ++i) {
      tokens.push_back(all[i]), labels.push_back(all[i + 1]);
      positions.push_back(static_cast<std::int32_t>(i)), first_key.push_back(start);
    }
  }
  pad((tokens.size() + row - 1) / row * row);

  engine::Rank rank(invariant_cpu());
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<float> losses(tokens.size()), ones(tokens.size(), 1.0F);
  const auto run = [&] {
    InferenceModel parts(rank, config, all_families(), compute, sequence);
    parts.store.initialize(rank.context(), kSeed);
    engine::Tape tape(rank.context(), rank.stash());
    tape.begin({.train = false});
    ModelInputs in{.tokens = tape.input(DType::kI32, {count}, false),
                   .labels = tape.input(DType::kI32, {count}, false),
                   .loss_weights = tape.input(DType::kF32, {count}, false),
                   .blocks = {.batch = count / sequence,
                              .sequence = sequence,
                              .positions = tape.input(DType::kI32, {count}, false)}};
    in.blocks.first_key = tape.input(DType::kI32, {count}, false);
    if (!rank.measuring()) {
      const auto put = [&](const engine::Value& to, const auto& from) {
        rank.compute().copy_to_device(to.tensor().data, from.data(), 4 * count);
      };
      put(in.tokens, tokens), put(in.labels, labels), put(in.loss_weights, ones);
      put(in.blocks.positions, positions), put(in.blocks.first_key, first_key);
    }
    const engine::Value loss = parts.model.loss(parts.model.forward(in), in);
    if (rank.measuring()) return;
    rank.compute().copy_to_host(losses.data(), loss.tensor().data, loss.tensor().bytes());
    rank.compute().synchronize();
  };
  run();
  rank.reserve(rank.high_water());
  run();
  std::vector<std::vector<float>> result;
  for (std::size_t t = 0; t < texts.size(); ++t) {
    std::vector<float>& own = result.emplace_back();
    const std::size_t first = begins[t] + texts[t].prompt.size() - 1;
    for (std::size_t i = 0; i < texts[t].answer.size(); ++i) own.push_back(-losses[first + i]);
  }
  return result;
}

void expect_same_bits(const ModelConfig& config, DType compute, std::size_t count) {
  const std::vector<std::vector<std::int32_t>> prompts = prompts_of(config, count);
  const std::vector<Written> texts = write(config, compute, 1, 128, prompts);
  const auto compare = [&](const std::vector<std::vector<float>>& values, const std::string& with) {
    ASSERT_EQ(values.size(), texts.size());
    for (std::size_t t = 0; t < texts.size(); ++t)
      EXPECT_EQ(values[t], texts[t].log_probs) << "text " << t << " with " << with;
  };
  for (const std::int64_t sequence : {100, 256})
    compare(packed_log_probs(config, compute, sequence, texts), "rows of " + std::to_string(sequence));
  const auto batch = static_cast<std::int64_t>(count);
  for (const auto& [sequences, pass] :
       {std::pair<std::int64_t, std::int64_t>{1, 5}, {3, 24}, {3, 128}, {batch, batch}, {batch, 512}}) {
    const std::vector<Written> others = write(config, compute, sequences, pass, prompts);
    std::vector<std::vector<float>> values;
    for (std::size_t t = 0; t < texts.size(); ++t) {
      EXPECT_EQ(others[t].answer, texts[t].answer);
      values.push_back(others[t].log_probs);
    }
    compare(values, std::to_string(sequences) + " texts and passes of " + std::to_string(pass));
  }
}

class BatchInvariant : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Goldens, BatchInvariant, testing::ValuesIn(writing_golden_configs()),
                         [](const auto& named) { return named.param.name; });

TEST_P(BatchInvariant, SupportedModelsGenerateWithTheBitsOfThePackedForwardPass) {
  ModelConfig config = GetParam().config;
  config.init_std = 0.2;
  config.max_positions = std::max<std::int64_t>(config.max_positions, 160);
  if (batch_variance(config, false)) {
    EXPECT_THROW(check_batch_invariant(config, "cpu", DType::kF32), Error);
    return;
  }
  EXPECT_NO_THROW(check_batch_invariant(config, "cpu", DType::kF32));
  for (const DType compute : {DType::kF32, DType::kBF16}) expect_same_bits(config, compute, 10);
}

// Matrices with several panels of the product over k, and 64 texts at a time.
ModelConfig larger() {
  ModelConfig config = tiny_config();
  config.hidden = 96;
  config.heads = 6;
  config.head_dim = 32;
  config.ffn = 1100;
  config.max_positions = 160;
  return config;
}

TEST(BatchInvariantTexts, SixtyFourTextsOfADenseModelHaveTheBitsOfSingleTexts) {
  for (const DType compute : {DType::kF32, DType::kBF16}) expect_same_bits(larger(), compute, 64);
}

TEST(BatchInvariantTexts, SixtyFourTextsOfAMixtureHaveTheBitsOfSingleTexts) {
  ModelConfig config = larger();
  config.family = "mixtral";
  config.set_layers(&LayerSpec::feed_forward, &kMixture);
  config.ffn = 120;
  config.moe.experts = 6;
  config.moe.ffn = 40;
  config.moe.router.top_k = 2;
  for (const DType compute : {DType::kF32, DType::kBF16}) expect_same_bits(config, compute, 64);
}

TEST(BatchInvariantTexts, ModelsThatAreNotSupportedAreRefusedWithTheReason) {
  std::size_t supported = 0;
  for (const NamedConfig& named : writing_golden_configs())
    supported += batch_variance(named.config, false) ? 0 : 1;
  EXPECT_GE(supported, 8U);
  ModelConfig latent = tiny_config();
  latent.at(1).attention = &kLatentAttention;
  try {
    check_batch_invariant(latent, "cpu", DType::kF32);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the attention of layer 1 uses other formulas"));
  }
  ModelConfig mixture = tiny_config();
  mixture.moe.experts = 4;
  mixture.moe.training.capacity_factor = 1;
  EXPECT_FALSE(batch_variance(mixture, false));
  EXPECT_TRUE(batch_variance(mixture, true));
}

TEST(BatchInvariantTexts, GpusRefuseModelsWithoutKernelsOfOneOrder) {
  ModelConfig config = tiny_config();
  config.head_dim = 64;
  EXPECT_NO_THROW(check_batch_invariant(config, "cuda", DType::kBF16));
  const auto refusal = [](const ModelConfig& refused, DType compute) {
    EXPECT_NO_THROW(check_batch_invariant(refused, "cpu", compute));
    try {
      check_batch_invariant(refused, "cuda", compute);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  EXPECT_THAT(refusal(config, DType::kF32), HasSubstr("only products in bf16"));
  ModelConfig other = config;
  other.head_dim = 32;
  EXPECT_THAT(refusal(other, DType::kBF16), HasSubstr("only heads of 64 or 128 columns"));
  other = config;
  other.attention.score_cap = 30;
  EXPECT_THAT(refusal(other, DType::kBF16), HasSubstr("a soft cap"));
  other = config;
  other.set_layers(&LayerSpec::feed_forward, &kMixture);
  other.moe.experts = 4;
  other.moe.ffn = 40;
  other.hidden = 64;
  EXPECT_NO_THROW(check_batch_invariant(other, "cuda", DType::kBF16));
  other.moe.ffn = 36;
  EXPECT_THAT(refusal(other, DType::kBF16), HasSubstr("experts of 36 x 64 elements"));
  other.moe.experts = 5;
  EXPECT_THAT(refusal(other, DType::kBF16), HasSubstr("a router of 5 experts"));
}

TEST(BatchInvariantTexts, GpusAddTheResultsOfManyRanks) {
  ModelConfig config = tiny_config();
  config.head_dim = 64;
  const auto why = [&](const engine::MeshShape& shape) {
    return batch_variance_on_gpus(config, DType::kBF16, shape).value_or("supported");
  };
  for (const engine::MeshShape& shape :
       {engine::MeshShape{.tensor = 128}, {.pipeline = 4}, {.expert = 64, .expert_tensor = 2}})
    EXPECT_EQ(why(shape), "supported");
  EXPECT_THAT(why({.tensor = 256}), HasSubstr("at most 128 tensor or expert ranks, not 256"));
  EXPECT_THAT(why({.expert = 128, .expert_tensor = 2}), HasSubstr("at most 128 tensor or expert ranks"));
  config.set_layers(&LayerSpec::feed_forward, &kMixture);
  config.moe.experts = 4;
  config.moe.ffn = 40;
  config.hidden = 64;
  EXPECT_EQ(why({.expert = 4}), "supported");
  EXPECT_THAT(why({.expert_tensor = 2}), HasSubstr("experts of 20 x 64 elements on each rank"));
}

}  // namespace
}  // namespace primus::test
