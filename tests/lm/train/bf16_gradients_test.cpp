// Compares weight gradients kept in bf16 with fp32 gradients, for models with every kind of parameter.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lm/model/outside_families.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

struct Gradient {
  std::string name;
  DType dtype;
  std::vector<double> values;
};

struct Step {
  std::vector<Gradient> gradients;
  double norm = 0;
  std::int64_t parameters = 0, read_in_bf16 = 0;  // elements
  engine::MemoryPlan measured, used;
};

std::vector<double> values_of(engine::Rank& rank, const Tensor& tensor) {
  const std::vector<std::byte> bits = bits_of(rank, tensor);
  std::vector<double> values;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.elements()); ++i) {
    if (tensor.dtype == DType::kF32) {
      float value = 0;
      std::memcpy(&value, bits.data() + 4 * i, 4);
      values.push_back(value);
    } else {
      BFloat16 value;
      std::memcpy(&value, bits.data() + 2 * i, 2);
      values.push_back(static_cast<float>(value));
    }
  }
  return values;
}

// Runs the first step in bf16, from fixed weights.
Step first_step(SessionSettings settings, DType gradients) {
  settings.compute = DType::kBF16;
  settings.gradients = gradients;
  const FamilyRegistry families = all_families();
  engine::Rank rank(turbo::make_cpu_device(2));
  Step result;
  result.measured = measure_session(rank, settings, families).memory;
  rank.reserve(result.measured);
  TrainingSession session(rank, settings, families);
  session.store().initialize(rank.context(), 7);
  session.step().begin(1);
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
    const TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                          static_cast<std::uint64_t>(i));
    session.step().microbatch(i, batch);
  }
  session.step().finish_gradients();
  result.norm = session.step().result().gradient_norm;
  for (const engine::Parameter& p : session.store().parameters()) {
    if (!p.trainable) continue;
    result.gradients.push_back({p.name, p.gradient.dtype, values_of(rank, p.gradient)});
    result.parameters += p.shape.elements();
    if (p.unit->dtype == DType::kBF16) result.read_in_bf16 += p.shape.elements();
  }
  session.step().update(1, 1e-3, 0.1);
  rank.synchronize();
  result.used = rank.high_water();
  return result;
}

// Returns a small model with biases, sinks, and experts with biases.
ModelConfig tiny_gpt_oss() {
  ModelConfig c = tiny_mixture();
  c.family = "gpt_oss";
  c.moe.training = {.balance_loss = 0.02};
  c.attention.window = 5;
  c.set_layers({0, 2}, &LayerSpec::local, true);
  c.moe.biases = true;
  c.moe.swiglu_limit = 7;
  return c;
}

std::vector<NamedConfig> models() {
  std::vector<NamedConfig> all = attention_configs(tiny_llama());
  all.push_back({"llama", tiny_llama()});
  all.push_back({"mixture", tiny_mixture()});
  all.push_back({"deepseek", tiny_deepseek()});
  all.push_back({"gpt_oss", tiny_gpt_oss()});
  return all;
}

class Bf16Gradients : public testing::TestWithParam<NamedConfig> {};
INSTANTIATE_TEST_SUITE_P(Models, Bf16Gradients, testing::ValuesIn(models()),
                         [](const auto& named) { return named.param.name; });

// After each of the four microbatches, the sum is rounded. The maximum error is 4 times half of 2^-8 of the
// largest sum. In the Euclidean norm, the error is less than half of this maximum.
TEST_P(Bf16Gradients, AreRoundedOncePerMicrobatch) {
  SessionSettings settings = tiny_settings(DType::kBF16, GetParam().config);
  settings.step.microbatches = 4;
  const Step wide = first_step(settings, DType::kF32), narrow = first_step(settings, DType::kBF16);
  ASSERT_EQ(narrow.gradients.size(), wide.gradients.size());
  int rounded = 0;
  for (std::size_t i = 0; i < wide.gradients.size(); ++i) {
    const Gradient &exact = wide.gradients[i], &other = narrow.gradients[i];
    ASSERT_EQ(exact.dtype, DType::kF32);
    if (other.dtype == DType::kF32) {
      EXPECT_EQ(other.values, exact.values)
          << exact.name << ": a parameter read in fp32 must have an fp32 gradient";
      continue;
    }
    ++rounded;
    double error = 0, length = 0;
    for (std::size_t k = 0; k < exact.values.size(); ++k) {
      error += std::pow(other.values[k] - exact.values[k], 2);
      length += std::pow(exact.values[k], 2);
    }
    ASSERT_GT(length, 0) << exact.name;
    EXPECT_LE(std::sqrt(error / length), 2 * 0x1p-8) << exact.name;
    EXPECT_GT(error, 0) << exact.name;
  }
  EXPECT_GT(rounded, 0);
  EXPECT_NEAR(narrow.norm, wide.norm, 0x1p-8 * wide.norm);
}

// Gradients in bf16 save two bytes per parameter that is read in bf16, both in the measured and in the used
// memory.
TEST_P(Bf16Gradients, NeedTwoBytesLessPerElement) {
  const SessionSettings settings = tiny_settings(DType::kBF16, GetParam().config);
  const Step wide = first_step(settings, DType::kF32), narrow = first_step(settings, DType::kBF16);
  const std::int64_t saved = wide.measured.persistent - narrow.measured.persistent;
  EXPECT_NEAR(static_cast<double>(saved), 2.0 * static_cast<double>(narrow.read_in_bf16),
              0.05 * static_cast<double>(narrow.parameters));
  EXPECT_EQ(narrow.used.persistent, narrow.measured.persistent);
  EXPECT_LE(narrow.used.stash, narrow.measured.stash);
  EXPECT_LE(narrow.used.scratch, narrow.measured.scratch);
}

// With one microbatch and parameters used once, each gradient is the fp32 gradient, rounded once.
TEST(Bf16GradientsOfOneMicrobatch, EqualFp32GradientsRoundedOnce) {
  SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
  settings.step.microbatches = 1;
  const Step wide = first_step(settings, DType::kF32), narrow = first_step(settings, DType::kBF16);
  for (std::size_t i = 0; i < wide.gradients.size(); ++i) {
    const Gradient &exact = wide.gradients[i], &other = narrow.gradients[i];
    ASSERT_EQ(other.dtype, DType::kBF16);
    for (std::size_t k = 0; k < exact.values.size(); ++k) {
      ASSERT_EQ(other.values[k], static_cast<float>(BFloat16(static_cast<float>(exact.values[k]))))
          << exact.name << " " << k;
    }
  }
}

// A non-finite gradient makes the norm non-finite, and the step is skipped.
TEST(Bf16GradientsOfABadStep, HaveANonFiniteNorm) {
  SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
  settings.gradients = DType::kBF16;
  engine::Rank rank(turbo::make_cpu_device(1));
  const auto session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  session->step().begin(1);
  const TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab, 1);
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) session->step().microbatch(i, batch);
  const engine::Parameter& p = session->store().parameters().front();
  const BFloat16 bad(INFINITY);
  rank.compute().copy_to_device(p.gradient.data, &bad, sizeof(bad));
  session->step().finish_gradients();
  EXPECT_FALSE(std::isfinite(session->step().result().gradient_norm));
  const std::vector<std::byte> before = weight_bits(rank, p);
  session->step().update(1, 1e-2, 0.1);
  EXPECT_EQ(weight_bits(rank, p), before);
}

}  // namespace
}  // namespace primus::test
