// Low-rank adapters: the model with the products written out, W + scale B A, is the reference. What is not
// trained keeps its bits, has no gradient and no optimizer state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lm/train/tiny_model.h"

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

// A session in fp32 with initial weights, and its parameters by name.
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

// c [m, n] = a [m, k] · b [k, n].
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
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = factor * static_cast<double>(expected[i]);
    most = std::max(most, std::abs(static_cast<double>(values[i]) - e));
    largest = std::max(largest, std::abs(e));
  }
  return most / largest;
}

// B as it could be after some steps.
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

TEST(Lora, IsTheModelWithTheProductsWrittenOut) {
  const ModelConfig config = tiny_lora();
  Model adapted(config), whole(without_adapters(config));
  draw_up(adapted);
  const double scale = 1.5;
  int matrices = 0;
  for (Parameter& p : whole.session->store().parameters()) {
    std::vector<float> weight = adapted.values(p.name);
    const Parameter& base = *adapted.find(p.name);
    EXPECT_FALSE(base.trainable) << p.name;
    if (base.low_rank) {
      const std::vector<float> added = times(adapted.values(p.name + ".lora_B"),
                                             adapted.values(p.name + ".lora_A"), p.shape[0], 6, p.shape[1]);
      for (std::size_t i = 0; i < weight.size(); ++i)
        weight[i] =
            static_cast<float>(static_cast<double>(weight[i]) + scale * static_cast<double>(added[i]));
      ++matrices;
    }
    upload(whole.rank, p.value, weight);
  }
  EXPECT_EQ(matrices, 4 * 4);
  const StepResult ours = adapted.gradients(), reference = whole.gradients();
  EXPECT_NEAR(ours.loss, reference.loss, 1e-6 * reference.loss);
  // dA = scale Bᵀ dW, dB = scale dW Aᵀ. Sums of some hundred fp32 products.
  for (Parameter& p : whole.session->store().parameters()) {
    if (!adapted.find(p.name)->low_rank) continue;
    const std::string a = p.name + ".lora_A", b = p.name + ".lora_B";
    const std::vector<float> d_w = whole.gradient(p.name);
    const std::int64_t out = p.shape[0], in = p.shape[1];
    EXPECT_LE(
        error_of(adapted.gradient(a), times(transposed(adapted.values(b), out, 6), d_w, 6, out, in), scale),
        2e-5)
        << a;
    EXPECT_LE(
        error_of(adapted.gradient(b), times(d_w, transposed(adapted.values(a), 6, in), out, in, 6), scale),
        2e-5)
        << b;
  }
}

TEST(Lora, BeginsAsTheModelWithoutAdapters) {
  Model adapted(tiny_lora()), whole(without_adapters(tiny_lora()));
  EXPECT_EQ(adapted.gradients().loss, whole.gradients().loss);
  // Xavier: a sample of 6 x 48 numbers lies this near to its variance.
  double squares = 0;
  const std::vector<float> a = adapted.values("layers.2.ffn.gate_up.lora_A");
  for (const float v : a) squares += static_cast<double>(v) * static_cast<double>(v);
  EXPECT_NEAR(squares / static_cast<double>(a.size()) * (48 + 6) / 2, 1, 0.3);
}

TEST(Lora, WhatIsNotTrainedKeepsItsBitsAndHasNoState) {
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

// In fp32 a trained number has 12 bytes beside its value: a gradient and two moments.
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

TEST(Lora, ModulesThatAreNotNamedHaveNone) {
  ModelConfig config = tiny_lora();
  config.lora.modules = {"linear_proj"};
  Model model(config);
  for (const Parameter& p : model.session->store().parameters())
    EXPECT_EQ(static_cast<bool>(p.low_rank), p.name.ends_with(".attention.out")) << p.name;
  model.gradients();
  EXPECT_TRUE(
      std::ranges::any_of(model.gradient("layers.0.attention.out.lora_B"), [](float d) { return d != 0; }));
}

TEST(Lora, FrozenWeightsCountTwoThirdsOfTheirProducts) {
  const ModelConfig config = tiny_lora();
  Model model(config);
  double adapters = 0;
  for (const Parameter& p : model.session->store().parameters()) {
    if (p.is_low_rank) adapters += static_cast<double>(p.shape.elements());
  }
  const double tokens = 64;
  const double scores = 6 * tokens * 4 * (2 * 4 * 12) * tokens / 2;  // of four layers
  const double whole = training_flops(without_adapters(config), 1, 64);
  const double expected = (whole - scores) * 4 / 6 + scores + 6 * adapters * tokens;
  EXPECT_NEAR(training_flops(config, 1, 64) / expected, 1, 1e-12);
}

}  // namespace
}  // namespace primus::test
