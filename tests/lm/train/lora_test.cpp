// Compares LoRA with a model whose weights are W + scale B A. Frozen weights keep their bits and have neither
// gradients nor optimizer states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lm/train/tiny_model.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::test {
namespace {

using engine::Parameter;

std::vector<float> floats_of(engine::Rank& rank, const Tensor& tensor) {
  const std::vector<std::byte> bytes = bits_of(rank, tensor);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void upload(engine::Rank& rank, const Tensor& to, const std::vector<float>& values) {
  rank.compute().copy_to_device(to.data, values.data(), to.bytes());
  rank.compute().synchronize();
}

// A session in fp32 with initial weights, and access to its parameters by name.
struct Model {
  explicit Model(const ModelConfig& config) : rank(turbo::make_cpu_device(2)) {
    SessionSettings settings = tiny_settings(DType::kF32, config);
    settings.step.microbatches = 1;
    session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
  }
  Parameter* find(const std::string& name) {
    for (Parameter& p : session->store().parameters()) {
      if (p.name == name) return &p;
    }
    return nullptr;
  }
  std::vector<float> values(const std::string& name) { return floats_of(rank, find(name)->value); }
  std::vector<float> gradient(const std::string& name) { return floats_of(rank, find(name)->gradient); }
  StepResult gradients() {
    TrainingStep& step = session->step();
    step.begin(1);
    step.microbatch(0, TestBatch(2 * 16, 97, 1));
    step.finish_gradients();
    return step.result();
  }

  engine::Rank rank;
  std::unique_ptr<TrainingSession> session;
};

// Returns c [m, n] = a [m, k] · b [k, n].
std::vector<float> times(const std::vector<float>& a, const std::vector<float>& b, std::int64_t m,
                         std::int64_t k, std::int64_t n) {
  std::vector<float> c;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += static_cast<double>(a[static_cast<std::size_t>(i * k + l)]) *
               static_cast<double>(b[static_cast<std::size_t>(l * n + j)]);
      c.push_back(static_cast<float>(sum));
    }
  }
  return c;
}

std::vector<float> transposed(const std::vector<float>& a, std::int64_t rows, std::int64_t cols) {
  std::vector<float> t;
  for (std::int64_t j = 0; j < cols; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) t.push_back(a[static_cast<std::size_t>(i * cols + j)]);
  }
  return t;
}

double error_of(const std::vector<float>& values, const std::vector<float>& expected, double factor) {
  double maximum = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = factor * static_cast<double>(expected[i]);
    maximum = std::max(maximum, std::abs(static_cast<double>(values[i]) - e));
    largest = std::max(largest, std::abs(e));
  }
  return maximum / largest;
}

// Sets B to random values, so that the adapters have an effect as after some steps.
void draw_up(Model& model) {
  for (Parameter& p : model.session->store().parameters()) {
    if (!p.is_low_rank || !p.name.ends_with("lora_B")) continue;
    std::vector<float> values(static_cast<std::size_t>(p.shape.elements()));
    fill_normal(RandomStream(3, RandomPurpose::kTest, 0, 0, static_cast<std::uint32_t>(p.index)), 0, values,
                0, 0.05F);
    upload(model.rank, p.value, values);
  }
}

ModelConfig without_adapters(ModelConfig config) {
  config.lora = {};
  return config;
}

// Returns part `e` of a matrix that has `experts` parts.
std::vector<float> part(const std::vector<float>& all, std::int64_t experts, std::int64_t e) {
  const auto n = static_cast<std::ptrdiff_t>(all.size()) / experts;
  return {all.begin() + e * n, all.begin() + (e + 1) * n};
}

// Two further mixtures. Llama 4 applies router weights before an expert, and gpt-oss applies them after the
// expert's bias.
ModelConfig adapted_llama4() {
  ModelConfig c = tiny_lora_mixture();
  c.family = "llama4_text";
  c.moe.shared_ffn = 24;
  c.at(0).feed_forward = &kDenseFeedForward;
  c.moe.weigh_input = true;
  c.moe.router = {.scoring = turbo::RouterRule::Scoring::kSigmoid, .normalise = false, .top_k = 1};
  c.moe.training = {};
  return c;
}
ModelConfig adapted_gpt_oss() {
  ModelConfig c = tiny_lora_mixture();
  c.family = "gpt_oss";
  c.moe.biases = true;
  c.moe.swiglu_limit = 7;
  c.moe.training = {};
  return c;
}
// Latent attention has adapters only on its output. One layer has a dense feed-forward, the other routed and
// shared experts. The two modules of multi-token prediction are like the second layer.
ModelConfig adapted_deepseek() {
  ModelConfig c = tiny_deepseek();
  c.moe.training.bias_update_rate = 0;
  c.lora = tiny_lora().lora;
  return c;
}

struct WrittenOut {
  const char* name;
  ModelConfig (*config)();
  int matrices;
};
class LoraModels : public testing::TestWithParam<WrittenOut> {};
INSTANTIATE_TEST_SUITE_P(Lora, LoraModels,
                         testing::Values(WrittenOut{"llama", tiny_lora, 4 * 4},
                                         WrittenOut{"mixtral", tiny_lora_mixture, 4 * 4},
                                         WrittenOut{"llama4", adapted_llama4, 4 + 3 * 6},
                                         WrittenOut{"gpt_oss", adapted_gpt_oss, 4 * 4},
                                         WrittenOut{"deepseek", adapted_deepseek, 3 + 3 * 5}),
                         [](const auto& c) { return std::string(c.param.name); });

TEST_P(LoraModels, EqualTheModelWithExplicitProducts) {
  const ModelConfig config = GetParam().config();
  Model adapted(config), whole(without_adapters(config));
  draw_up(adapted);
  const double scale = 1.5;
  int matrices = 0;
  const auto experts_of = [](const Parameter& p) { return p.shape.rank() == 3 ? p.shape[0] : 1; };
  for (Parameter& p : whole.session->store().parameters()) {
    std::vector<float> weight = adapted.values(p.name);
    const Parameter& base = *adapted.find(p.name);
    EXPECT_FALSE(base.trainable) << p.name;
    if (base.low_rank) {
      const std::vector<float> a = adapted.values(p.name + ".lora_A"), b = adapted.values(p.name + ".lora_B");
      const std::int64_t n = experts_of(p), out = p.shape[p.shape.rank() - 2], in = p.row_elements();
      std::size_t i = 0;
      for (std::int64_t e = 0; e < n; ++e) {
        for (const float added : times(part(b, n, e), part(a, n, e), out, 6, in)) {
          weight[i] = static_cast<float>(static_cast<double>(weight[i]) + scale * static_cast<double>(added));
          ++i;
        }
      }
      ASSERT_EQ(i, weight.size());
      ++matrices;
    }
    upload(whole.rank, p.value, weight);
  }
  EXPECT_EQ(matrices, GetParam().matrices);
  const StepResult ours = adapted.gradients(), reference = whole.gradients();
  EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
  // dA = scale Bᵀ dW, dB = scale dW Aᵀ. The tolerance covers sums of some hundred fp32 products.
  for (Parameter& p : whole.session->store().parameters()) {
    if (!adapted.find(p.name)->low_rank) continue;
    const std::string a = p.name + ".lora_A", b = p.name + ".lora_B";
    const std::int64_t n = experts_of(p), out = p.shape[p.shape.rank() - 2], in = p.row_elements();
    std::vector<float> d_a, d_b;
    for (std::int64_t e = 0; e < n; ++e) {
      const std::vector<float> d_w = part(whole.gradient(p.name), n, e);
      const std::vector<float> of_a = part(adapted.values(a), n, e), of_b = part(adapted.values(b), n, e);
      std::ranges::copy(times(transposed(of_b, out, 6), d_w, 6, out, in), std::back_inserter(d_a));
      std::ranges::copy(times(d_w, transposed(of_a, 6, in), out, in, 6), std::back_inserter(d_b));
    }
    EXPECT_LE(error_of(adapted.gradient(a), d_a, scale), 2e-5) << a;
    EXPECT_LE(error_of(adapted.gradient(b), d_b, scale), 2e-5) << b;
  }
}

TEST(Lora, BeginsAsTheModelWithoutAdapters) {
  Model adapted(tiny_lora()), whole(without_adapters(tiny_lora()));
  EXPECT_EQ(adapted.gradients().loss, whole.gradients().loss);
  // With 6 x 48 samples, the variance is within this tolerance of the variance of Xavier's initialization.
  double squares = 0;
  const std::vector<float> a = adapted.values("layers.2.ffn.gate_up.lora_A");
  for (const float v : a) squares += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(squares / static_cast<double>(a.size()) * (48 + 6) / 2, 1, 0.3);
}

TEST(Lora, FrozenWeightsKeepTheirBitsAndHaveNoState) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const SessionSettings settings = tiny_settings(compute, tiny_lora());
    engine::Rank rank(turbo::make_cpu_device(2));
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
    std::vector<std::vector<std::byte>> before;
    for (const engine::ParameterUnit& unit : session->store().units())
      before.push_back(weight_bits(rank, unit));
    TrainingStep& step = session->step();
    for (int s = 1; s <= 3; ++s) {
      step.begin(s);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) step.microbatch(i, TestBatch(32, 97, 5));
      step.finish_gradients();
      step.update(s, 1e-2, 0.1);
    }
    for (const engine::ParameterUnit& unit : session->store().units()) {
      const bool adapters = unit.parameters.front()->is_low_rank;
      EXPECT_EQ(unit.trained, adapters);
      EXPECT_EQ(unit.gradient.absent(), !adapters);
      EXPECT_EQ(unit.states.empty(), !adapters);
      EXPECT_EQ(weight_bits(rank, unit) == before[static_cast<std::size_t>(unit.number)], !adapters)
          << unit.name;
    }
  }
}

// In fp32, a trained parameter has 12 bytes in addition to its value: a gradient and two moments.
TEST(Lora, FrozenWeightsTakeNoMemoryForGradientsAndStates) {
  const auto measured = [](const ModelConfig& config) {
    engine::Rank rank(turbo::make_cpu_device(2));
    return measure_session(rank, tiny_settings(DType::kF32, config), builtin_families());
  };
  const StepMeasurement adapted = measured(tiny_lora()), whole = measured(without_adapters(tiny_lora()));
  const std::int64_t adapters = adapted.parameters - whole.parameters;
  EXPECT_EQ(adapted.trained_parameters, adapters);
  EXPECT_EQ(whole.trained_parameters, whole.parameters);
  EXPECT_EQ(adapted.state_bytes, 8 * adapters);
  const double saved = static_cast<double>(whole.memory.persistent - adapted.memory.persistent);
  EXPECT_NEAR(saved / static_cast<double>(12 * whole.parameters - 16 * adapters), 1, 0.02);
  EXPECT_LT(adapted.kernels.total_flops(), whole.kernels.total_flops());
}

TEST(Lora, UnnamedModulesHaveNoAdapter) {
  ModelConfig config = tiny_lora();
  config.lora.modules = {"linear_proj"};
  Model model(config);
  for (const Parameter& p : model.session->store().parameters())
    EXPECT_EQ(static_cast<bool>(p.low_rank), p.name.ends_with(".attention.out")) << p.name;
  model.gradients();
  EXPECT_TRUE(
      std::ranges::any_of(model.gradient("layers.0.attention.out.lora_B"), [](float d) { return d != 0; }));
}

// The count includes two of the five experts, because a token uses two.
TEST(Lora, FrozenWeightsCountTwoThirdsOfTheirProducts) {
  for (const ModelConfig& config : {tiny_lora(), tiny_lora_mixture()}) {
    Model model(config);
    double adapters = 0;
    for (const Parameter& p : model.session->store().parameters()) {
      if (p.is_low_rank) adapters += static_cast<double>(p.shape.elements()) * (p.per_expert ? 2.0 / 5 : 1);
    }
    const double tokens = 64;
    const double scores = 6 * tokens * 4 * (2 * 4 * 12) * tokens / 2;  // attention scores of four layers
    const double whole = training_flops(without_adapters(config), 1, 64);
    const double expected = (whole - scores) * 4 / 6 + scores + 6 * adapters * tokens;
    EXPECT_NEAR(training_flops(config, 1, 64) / expected, 1, 1e-12);
  }
}

// Dropout applies to steps, but not to evaluation. B is not zero, so that adapters have an effect.
TEST(LoraDropout, AppliesOnlyInTraining) {
  std::vector<double> evaluated, trained;
  for (const ModelConfig& config : {tiny_lora(), tiny_lora_dropout(), tiny_lora_dropout_after()}) {
    Model model(config);
    draw_up(model);
    TrainingStep& step = model.session->step();
    step.begin_evaluation();
    step.evaluate(TestBatch(2 * 16, 97, 1));
    evaluated.push_back(step.evaluation_loss());
    trained.push_back(model.gradients().loss);
  }
  EXPECT_EQ(evaluated[1], evaluated[0]);
  EXPECT_EQ(evaluated[2], evaluated[0]);
  EXPECT_NE(trained[1], trained[0]);
  EXPECT_NE(trained[2], trained[0]);
  EXPECT_NE(trained[2], trained[1]);
}

// Each step and each seed has its own masks.
TEST(LoraDropout, StepsAndSeedsDiffer) {
  const auto loss = [](std::int64_t step, std::uint64_t seed) {
    engine::Rank rank(turbo::make_cpu_device(2));
    SessionSettings settings = tiny_settings(DType::kF32, tiny_lora_dropout());
    settings.step.microbatches = 1;
    settings.step.seed = seed;
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
    for (Parameter& p : session->store().parameters()) {
      if (p.is_low_rank) turbo::launch(rank.context(), turbo::Fill{.out = p.value, .value = 0.05F});
    }
    session->step().begin(step);
    session->step().microbatch(0, TestBatch(2 * 16, 97, 1));
    session->step().finish_gradients();
    return session->step().result().loss;
  };
  EXPECT_EQ(loss(1, 1), loss(1, 1));
  EXPECT_NE(loss(1, 1), loss(2, 1));
  EXPECT_NE(loss(1, 1), loss(1, 2));
}

// No mask is kept, and only one input of A at a time is recomputed.
TEST(LoraDropout, TakesNoMemoryForMasks) {
  const auto stash = [](const ModelConfig& config) {
    engine::Rank rank(turbo::make_cpu_device(2));
    return measure_session(rank, tiny_settings(DType::kF32, config), builtin_families()).memory.stash;
  };
  const std::int64_t widest = 2 * 16 * 80 * 4;  // the input of a feed-forward's last product
  EXPECT_LE(stash(tiny_lora_dropout()), stash(tiny_lora()) + 2 * widest + 4096);
}

}  // namespace
}  // namespace primus::test
