// Ranks of batch-invariant devices: the log-probabilities of generated tokens have the bits of the training
// step, for texts that are generated alone and together. The ranks' communicators sum in an order that
// depends on the position of a token (comm/staged_group.h), as a GPU's collectives library does.
//
// With PRIMUS_TEST_GPU=FILE, all ranks share the first GPU of this plug-in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/staged_group.h"
#include "engine/thread_ranks.h"
#include "lm/data/batch.h"
#include "lm/decode/scheduler.h"
#include "lm/model/batch_invariance.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/outside_families.h"
#include "lm/train/step/loss_rule.h"
#include "lm/train/step/session.h"
#include "turbo/operator_test.h"

namespace primus {
namespace {

constexpr std::int64_t kSequence = 64;

// The number of texts, and of the rows and microbatches of each data rank's step.
struct Amount {
  std::int64_t texts, rows, microbatches;
};

// Keeps the losses of every microbatch, and learns nothing.
class KeepLosses final : public LossRule {
 public:
  explicit KeepLosses(std::vector<std::vector<float>>& losses) : losses_(losses) {}
  std::vector<std::string> metrics() const override { return {"loss"}; }
  void weigh(const TokenLosses& tokens) override {
    if (tokens.rank.measuring()) return;
    std::vector<float>& to = losses_[static_cast<std::size_t>(tokens.microbatch)];
    to.resize(static_cast<std::size_t>(tokens.losses.elements()));
    Stream& stream = tokens.rank.compute();
    stream.copy_to_host(to.data(), tokens.losses.data, tokens.losses.bytes());
    stream.fill_zero(tokens.weights.data, tokens.weights.bytes());
    stream.synchronize();
  }

 private:
  std::vector<std::vector<float>>& losses_;
};

struct Text {
  std::vector<std::int32_t> prompt, answer;
  std::vector<float> log_probs;
};

// Prompts of 1 token, 5 tokens, 9 tokens and so on.
std::vector<Text> prompts(std::int64_t count, std::int64_t vocab) {
  std::vector<Text> texts(static_cast<std::size_t>(count));
  for (std::size_t t = 0; t < texts.size(); ++t) {
    for (std::size_t i = 0; i < 1 + 4 * t; ++i)
      texts[t].prompt.push_back(
          static_cast<std::int32_t>((7 * i * i + 3 * i + 11 * t + 5) % static_cast<std::size_t>(vocab)));
  }
  return texts;
}

// Generates the answers of texts [begin, end) together.
void generate(DecodeScheduler& decoder, std::vector<Text>& texts, std::size_t begin, std::size_t end) {
  for (std::size_t t = begin; t < end; ++t) {
    GenerateSettings settings{.sampling = {.temperature = 1},
                              .max_tokens = 3 + static_cast<std::int64_t>(t % 4),
                              .log_probs = true};
    settings.sampling.seed = 100 + t;
    decoder.submit(
        {.prompt = texts[t].prompt, .settings = settings, .on_token = [&texts, t](const DecodedToken& token) {
           texts[t].answer.push_back(token.id);
           texts[t].log_probs.push_back(*token.log_prob);
           return true;
         }});
  }
  while (decoder.step()) {
  }
}

// The microbatches of a step, and the place of each text's first token in all tokens of the step.
struct Packed {
  std::vector<data::Batch> batches;
  std::vector<std::size_t> begins;
};

// Packs the texts one after another into rows.
Packed packed(const std::vector<Text>& texts, const Amount& amount) {
  Packed all;
  constexpr auto kRow = static_cast<std::size_t>(kSequence);
  const std::size_t size = kRow * static_cast<std::size_t>(amount.rows);
  std::vector<std::int32_t> tokens, labels, positions, starts;
  const auto add = [&](std::span<const std::int32_t> text, std::size_t length) {
    starts.push_back(static_cast<std::int32_t>(tokens.size()));
    for (std::size_t i = 0; i < length; ++i) {
      tokens.push_back(text.empty() ? 0 : text[i]);
      labels.push_back(text.empty() ? 0 : text[i + 1]);
      positions.push_back(static_cast<std::int32_t>(i));
    }
  };
  const auto fill_row = [&] {
    if (tokens.size() % kRow != 0) add({}, kRow - tokens.size() % kRow);
  };
  for (const Text& text : texts) {
    std::vector<std::int32_t> both = text.prompt;
    both.insert(both.end(), text.answer.begin(), text.answer.end());
    if (tokens.size() % kRow + both.size() - 1 > kRow) fill_row();
    all.begins.push_back(tokens.size());
    add(both, both.size() - 1);
  }
  fill_row();
  while (tokens.size() < size * static_cast<std::size_t>(amount.microbatches)) add({}, kRow);
  for (std::size_t begin = 0; begin < tokens.size(); begin += size) {
    const auto part = [&](const std::vector<std::int32_t>& of) {
      return std::vector(of.begin() + static_cast<std::ptrdiff_t>(begin),
                         of.begin() + static_cast<std::ptrdiff_t>(begin + size));
    };
    data::Batch& batch = all.batches.emplace_back();
    batch.tokens = part(tokens), batch.labels = part(labels), batch.positions = part(positions);
    batch.loss_mask.assign(size, 1.0F);
    for (const std::int32_t start : starts) {
      const std::int64_t at = start - static_cast<std::int64_t>(begin);
      if (at >= 0 && at < static_cast<std::int64_t>(size))
        batch.document_starts.push_back(static_cast<std::int32_t>(at));
    }
    batch.document_starts.push_back(static_cast<std::int32_t>(size));
  }
  return all;
}

struct Compared {
  int tokens = 0, differing = 0;
};

// Counts the tokens of texts, and those whose log-probability differs from -loss in training, or from the
// log-probability in `alone`, the same texts generated one by one.
Compared compare(const std::vector<Text>& texts, const std::vector<Text>& alone, const Packed& packed,
                 const std::vector<std::vector<float>>& losses) {
  Compared result;
  std::vector<float> all;
  for (const std::vector<float>& of_batch : losses) all.insert(all.end(), of_batch.begin(), of_batch.end());
  for (std::size_t t = 0; t < texts.size(); ++t) {
    EXPECT_EQ(texts[t].answer, alone[t].answer);
    const std::size_t first = packed.begins[t] + texts[t].prompt.size() - 1;
    for (std::size_t i = 0; i < texts[t].answer.size(); ++i) {
      ++result.tokens;
      const float value = texts[t].log_probs[i];
      if (value != alone[t].log_probs[i] || (!all.empty() && value != -all[first + i])) ++result.differing;
    }
  }
  return result;
}

// Generates all texts together and then one by one, and trains on them. Runs on every rank.
Compared generate_and_train(engine::Mesh mesh, std::unique_ptr<Device> device, SessionSettings settings,
                            const Amount& amount) {
  engine::Rank rank(std::move(device), std::move(mesh));
  std::vector<std::vector<float>> losses(static_cast<std::size_t>(amount.microbatches));
  settings.loss_rule = [&] { return std::make_unique<KeepLosses>(losses); };
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
  session->store().initialize(rank.context(), 7);
  session->parallel().distribute_values();
  std::vector<Text> texts = prompts(amount.texts, settings.model.vocab), alone = texts;
  {
    const std::unique_ptr<DecodeScheduler> decoder = session->make_decoder();
    generate(*decoder, texts, 0, texts.size());
    for (std::size_t t = 0; t < alone.size(); ++t) generate(*decoder, alone, t, t + 1);
  }
  Packed step = packed(texts, amount);
  session->before_step(1, step.batches);
  session->step().begin(1);
  for (std::int64_t i = 0; i < amount.microbatches; ++i)
    session->step().microbatch(i, step.batches[static_cast<std::size_t>(i)]);
  session->step().finish_gradients();
  session->step().result();
  rank.synchronize();
  return compare(texts, alone, step, losses);
}

ModelConfig small_llama() {
  ModelConfig c;
  c.layers = 2;
  c.hidden = 128;
  c.ffn = 256;
  c.heads = 4;
  c.kv_heads = 4;
  c.head_dim = 64;
  c.vocab = 97;
  c.max_positions = kSequence;
  c.init_std = 0.15;
  return c;
}

ModelConfig small_mixture() {
  ModelConfig c = small_llama();
  c.family = "mixtral";
  c.set_layers(&LayerSpec::feed_forward, &kMixture);
  c.moe.experts = 8;
  c.moe.ffn = 64;
  c.moe.router.top_k = 3;
  return c;
}

ModelConfig with_adapters(ModelConfig config) {
  config.lora = {.dim = 8, .alpha = 9, .modules = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"}};
  return config;
}

struct Case {
  std::string name;
  ModelConfig model;
  int ranks;
  engine::MeshShape shape;
};

std::vector<Case> cases() {
  ModelConfig sent = small_mixture(), in_parts = small_mixture(), in_rounds = small_mixture();
  sent.moe.training.all_to_all = true;
  in_parts.moe.training.capacity_margin = 0.5;
  in_rounds.moe.training.rounds = 2;
  return {{"dense, tensor 2", small_llama(), 2, {.tensor = 2}},
          {"dense, tensor 4", small_llama(), 4, {.tensor = 4}},
          {"dense with adapters, tensor 4", with_adapters(small_llama()), 4, {.tensor = 4}},
          {"dense, pipeline 2", small_llama(), 2, {.pipeline = 2}},
          {"dense, tensor 4, pipeline 2", small_llama(), 8, {.tensor = 4, .pipeline = 2}},
          {"experts, expert 2", small_mixture(), 2, {.expert = 2}},
          {"experts, expert 4", small_mixture(), 4, {.expert = 4}},
          {"experts by all-to-all, expert 4", sent, 4, {.expert = 4}},
          {"experts in two parts, expert 4", in_parts, 4, {.expert = 4}},
          {"experts in two rounds, expert 4", in_rounds, 4, {.expert = 4}},
          {"experts, tensor 4, expert 2, expert tensor 2",
           small_mixture(),
           4,
           {.tensor = 4, .expert = 2, .expert_tensor = 2}}};
}

// `ordered`: whether forward passes sum over ranks in one order.
Compared run(const Case& c, const turbo::test::DeviceUnderTest& device, DType compute, const Amount& amount,
             bool ordered = true) {
  const SessionSettings settings{
      .model = c.model,
      .compute = compute,
      .step = {.micro_batch = amount.rows,
               .sequence = kSequence,
               .microbatches = amount.microbatches,
               .packed_documents = true},
      .optimizer = {},
      .sample_capacity = kSequence,
      .sample_sequences = amount.texts,
  };
  auto worlds = comm::test::make_staged_group(c.ranks);
  for (const std::unique_ptr<comm::Communicator>& world : worlds) world->set_ordered_sums(ordered);
  const std::vector<Compared> all =
      test::on_ranks_of<Compared>(std::move(worlds), c.shape, [&](engine::Mesh mesh, int) {
        return generate_and_train(std::move(mesh), turbo::test::OperatorBench::make_device(device), settings,
                                  amount);
      });
  Compared sum;
  for (const Compared& of_rank : all) {
    sum.tokens += of_rank.tokens;
    sum.differing += of_rank.differing;
  }
  return sum;
}

constexpr Amount kAll{.texts = 10, .rows = 2, .microbatches = 4};

turbo::test::DeviceUnderTest invariant_cpu() { return {.threads = 1, .batch_invariant = true}; }

bool has_gpu() { return std::getenv("PRIMUS_TEST_GPU") != nullptr; }

TEST(BatchInvariantRanks, OfCpusWithSumsOfAnyOrderSampleWithTheBitsOfTraining) {
  if (has_gpu()) GTEST_SKIP() << "a GPU is tested";
  for (const Case& c : cases()) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("{}, {}", c.name, name_of(compute)));
      const Compared sum = run(c, invariant_cpu(), compute, kAll);
      EXPECT_GE(sum.tokens, c.ranks * 40);
      EXPECT_EQ(sum.differing, 0);
    }
  }
}

// The sums of tensor and expert ranks must have one order for equal bits.
TEST(BatchInvariantRanks, WithSumsInTheOrderOfTheGroupHaveOtherBits) {
  if (has_gpu()) GTEST_SKIP() << "a GPU is tested";
  int checked = 0;
  for (const Case& c : cases()) {
    if (c.name != "dense, tensor 4" && c.name != "experts, expert 4") continue;
    ++checked;
    EXPECT_GT(run(c, invariant_cpu(), DType::kF32, kAll, false).differing, 0) << c.name;
  }
  EXPECT_EQ(checked, 2);
}

// The kernels of GPUs. A GPU runs every mesh. The emulator is slow, so it runs a small model on two meshes.
TEST(BatchInvariantRanks, OfGpusSampleWithTheBitsOfTraining) {
  for (const turbo::test::DeviceUnderTest& device : turbo::test::batch_invariant_gpus()) {
    for (Case c : cases()) {
      SCOPED_TRACE(c.name + " on " + device.name());
      Amount amount = kAll;
      if (device.plugin.empty()) {
        if (c.name != "dense, tensor 4" && c.name != "experts, expert 4") continue;
        amount = {.texts = 2, .rows = 1, .microbatches = 1};
        c.model.layers = 1;
      }
      EXPECT_FALSE(batch_variance_on_gpus(c.model, DType::kBF16, c.shape));
      const Compared sum = run(c, device, DType::kBF16, amount);
      EXPECT_GE(sum.tokens, c.ranks * 3 * amount.texts);
      EXPECT_EQ(sum.differing, 0);
    }
  }
}

}  // namespace
}  // namespace primus
