#include "turbo/swiglu/swiglu.h"

#include <numbers>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  std::int64_t tokens, ffn;
  DType dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [tokens, ffn] : {std::pair{1, 1}, {1, 48}, {5, 171}, {257, 128}})
      all.push_back({tokens, ffn, dtype});
  }
  return all;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Values reference_forward(const Values& gate_up, std::int64_t tokens) {
  const std::size_t ffn = gate_up.size() / static_cast<std::size_t>(tokens) / 2;
  Values out(gate_up.size() / 2);
  for (std::size_t at = 0; at < out.size(); ++at) {
    const double* row = &gate_up[at / ffn * 2 * ffn];
    const double gate = row[at % ffn], up = row[ffn + at % ffn];
    out[at] = gate * sigmoid(gate) * up;
  }
  return out;
}

Values reference_backward(const Values& gate_up, const Values& d_out, std::int64_t tokens) {
  const std::size_t ffn = d_out.size() / static_cast<std::size_t>(tokens);
  Values d_gate_up(gate_up.size());
  for (std::size_t at = 0; at < d_out.size(); ++at) {
    const std::size_t gate_at = at / ffn * 2 * ffn + at % ffn;
    const double gate = gate_up[gate_at], up = gate_up[gate_at + ffn], s = sigmoid(gate);
    d_gate_up[gate_at] = d_out[at] * up * s * (1 + gate * (1 - s));
    d_gate_up[gate_at + ffn] = d_out[at] * gate * s;
  }
  return d_gate_up;
}

TEST(SwigluReference, GradientAgreesWithFiniteDifferences) {
  const std::int64_t tokens = 2, ffn = 4;
  const Values gate_up = random_values(tokens * 2 * ffn, 1, 2.0), d_out = random_values(tokens * ffn, 2);
  const auto loss = [&](const Values& v) { return dot(reference_forward(v, tokens), d_out); };
  EXPECT_LE(normalised_error(reference_backward(gate_up, d_out, tokens), numeric_gradient(loss, gate_up)),
            1e-8);
}

class SwigluTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, SwigluTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(SwigluTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, ffn, dtype] : cases()) {
    const Values gate_up = rounded(random_values(tokens * 2 * ffn, 1, 3.0), dtype);
    const Values d_out = rounded(random_values(tokens * ffn, 2), dtype);
    const Tensor gate_up_device = bench.upload(gate_up, dtype, {tokens, 2 * ffn});
    const Tensor out = bench.empty(dtype, {tokens, ffn});
    bench.run(SwigluForward{.gate_up = gate_up_device, .out = out});
    const double tolerance = rounding_error(dtype) + 5e-7;
    EXPECT_LE(normalised_error(bench.download(out), reference_forward(gate_up, tokens)), tolerance) << ffn;

    const Values expected = reference_backward(gate_up, d_out, tokens);
    const Tensor d_out_device = bench.upload(d_out, dtype, {tokens, ffn});
    const Tensor apart = bench.empty(dtype, {tokens, 2 * ffn});
    for (const Tensor& d_gate_up :
         {apart, gate_up_device}) {  // the gradient of the second call overwrites gate_up
      bench.run(SwigluBackward{.gate_up = gate_up_device, .d_out = d_out_device, .d_gate_up = d_gate_up});
      EXPECT_LE(normalised_error(bench.download(d_gate_up), expected), tolerance) << ffn;
    }
  }
}

Values gelu_forward(const Values& gate_up, std::int64_t tokens) {
  const std::size_t ffn = gate_up.size() / static_cast<std::size_t>(tokens) / 2;
  Values out(gate_up.size() / 2);
  for (std::size_t at = 0; at < out.size(); ++at) {
    const double* row = &gate_up[at / ffn * 2 * ffn];
    const double g = row[at % ffn];
    out[at] = g / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g))) *
              row[ffn + at % ffn];
  }
  return out;
}

TEST_P(SwigluTest, GeluForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const auto& [tokens, ffn, dtype] : cases()) {
    if (tokens * ffn > 1000) continue;  // finite differences take too long
    const Values gate_up = rounded(random_values(tokens * 2 * ffn, 1, 3.0), dtype);
    const Values d_out = rounded(random_values(tokens * ffn, 2), dtype);
    const Tensor device = bench.upload(gate_up, dtype, {tokens, 2 * ffn});
    const Tensor out = bench.empty(dtype, {tokens, ffn});
    bench.run(SwigluForward{.gate_up = device, .out = out, .gate = GluGate::kGeluTanh});
    const double tolerance = rounding_error(dtype) + 1e-6;
    EXPECT_LE(normalised_error(bench.download(out), gelu_forward(gate_up, tokens)), tolerance) << ffn;
    const auto loss = [&](const Values& v) { return dot(gelu_forward(v, tokens), d_out); };
    bench.run(SwigluBackward{.gate_up = device,
                             .d_out = bench.upload(d_out, dtype, {tokens, ffn}),
                             .d_gate_up = device,
                             .gate = GluGate::kGeluTanh});
    EXPECT_LE(normalised_error(bench.download(device), numeric_gradient(loss, gate_up)), tolerance) << ffn;
  }
}

TEST_P(SwigluTest, LargeGatesOfGeluSaturateAndNanPasses) {
  OperatorBench bench(GetParam());
  const Values gate = {-1e9, -40, -12, 0, 12, 40, 1e9, NAN};
  const std::int64_t ffn = static_cast<std::int64_t>(gate.size());
  Values gate_up = gate;
  gate_up.insert(gate_up.end(), gate.size(), 1);
  const Tensor device = bench.upload(gate_up, DType::kF32, {1, 2 * ffn});
  const Tensor out = bench.empty(DType::kF32, {1, ffn});
  bench.run(SwigluForward{.gate_up = device, .out = out, .gate = GluGate::kGeluTanh});
  bench.run(SwigluBackward{.gate_up = device,
                           .d_out = bench.upload(Values(gate.size(), 1), DType::kF32, {1, ffn}),
                           .d_gate_up = device,
                           .gate = GluGate::kGeluTanh});
  const Values actual = bench.download(out), slope = bench.download(device);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    EXPECT_NEAR(actual[i], 0, 1e-25) << i;
    EXPECT_NEAR(slope[i], i < 3 ? 0 : 0.5, 1e-5) << i;
  }
  for (const std::size_t i : {4U, 5U, 6U}) {
    EXPECT_EQ(actual[i], gate[i]) << i;
    EXPECT_NEAR(slope[i], 1, 1e-6) << i;
  }
  EXPECT_TRUE(std::isnan(actual[7]));
}

TEST_P(SwigluTest, LargeGatesSaturateAndNanPasses) {
  OperatorBench bench(GetParam());
  const Values gate = {-1e30, -200, -88, 0, 88, 200, 1e30, NAN};
  const std::int64_t ffn = static_cast<std::int64_t>(gate.size());
  Values gate_up = gate;
  for (int i = 0; i < ffn; ++i) gate_up.push_back(1);
  const Tensor gate_up_device = bench.upload(gate_up, DType::kF32, {1, 2 * ffn});
  const Tensor out = bench.empty(DType::kF32, {1, ffn});
  bench.run(SwigluForward{.gate_up = gate_up_device, .out = out});
  const Values actual = bench.download(out);
  EXPECT_NEAR(actual[0], 0.0, 1e-7);
  EXPECT_NEAR(actual[1], 0.0, 1e-35);
  EXPECT_NEAR(actual[2], 0.0, 1e-35);
  EXPECT_EQ(actual[3], 0.0);
  EXPECT_EQ(actual[4], 88.0);
  EXPECT_EQ(actual[5], 200.0);
  EXPECT_EQ(actual[6], static_cast<double>(1e30F));
  EXPECT_TRUE(std::isnan(actual[7]));
}

constexpr double kLimit = 1.5;

// Parameters of the activation of gpt-oss (alpha = 1.702, shift = 1), or of SwiGLU with clamped inputs (alpha
// = 1, shift = 0).
struct Clamp {
  float alpha, shift;
};

Values clamped_forward(const Values& gate_up, std::int64_t tokens, const Clamp& clamp) {
  const std::size_t ffn = gate_up.size() / static_cast<std::size_t>(tokens) / 2;
  Values out(gate_up.size() / 2);
  for (std::size_t at = 0; at < out.size(); ++at) {
    const double* row = &gate_up[at / ffn * 2 * ffn];
    const double gate = std::min(row[at % ffn], kLimit),
                 up = std::clamp(row[ffn + at % ffn], -kLimit, kLimit);
    out[at] =
        (up + static_cast<double>(clamp.shift)) * gate * sigmoid(static_cast<double>(clamp.alpha) * gate);
  }
  return out;
}

TEST_P(SwigluTest, ClampedForwardAndBackward) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 3, ffn = 33;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Clamp& clamp : {Clamp{1.702F, 1}, Clamp{1, 0}}) {
      const Values gate_up = rounded(random_values(tokens * 2 * ffn, 1, 2.0), dtype);
      const Values d_out = rounded(random_values(tokens * ffn, 2), dtype);
      const Tensor device = bench.upload(gate_up, dtype, {tokens, 2 * ffn});
      const Tensor out = bench.empty(dtype, {tokens, ffn});
      const double tolerance = rounding_error(dtype) + 1e-6;
      bench.run(ClampedSwigluForward{
          .gate_up = device, .out = out, .limit = kLimit, .alpha = clamp.alpha, .shift = clamp.shift});
      EXPECT_LE(normalised_error(bench.download(out), clamped_forward(gate_up, tokens, clamp)), tolerance);
      const auto loss = [&](const Values& v) { return dot(clamped_forward(v, tokens, clamp), d_out); };
      bench.run(ClampedSwigluBackward{.gate_up = device,
                                      .d_out = bench.upload(d_out, dtype, {tokens, ffn}),
                                      .d_gate_up = device,
                                      .limit = kLimit,
                                      .alpha = clamp.alpha,
                                      .shift = clamp.shift});
      EXPECT_LE(normalised_error(bench.download(device), numeric_gradient(loss, gate_up)), tolerance);
    }
  }
}

// Rows of experts, weighted by the weights of their slots. The last slots are dropped, and the last rows
// belong to no slot.
struct Weighted {
  static constexpr std::int64_t kTokens = 5, kTopK = 3, kSlots = kTokens * kTopK, kOwned = 12;
  Values weights, slots;

  Weighted() : weights(random_values(kSlots, 3)) {
    for (std::int64_t row = 0; row < kSlots; ++row)
      slots.push_back(row < kOwned ? static_cast<double>(row * 5 % kOwned) : 1e6);
  }
  double of(std::size_t row) const {
    return row < kOwned ? weights[static_cast<std::size_t>(slots[row])] : 0;
  }
  // Returns `rows` with NaN in the rows that have no slot. As inputs, these rows must not be read; as
  // results, they must not be written.
  static Values poisoned(Values rows) {
    std::fill(rows.begin() + std::ssize(rows) / kSlots * kOwned, rows.end(), NAN);
    return rows;
  }
};

Values weighted_forward(const Values& gate_up, const Weighted& w, bool weigh_input) {
  const std::size_t columns = gate_up.size() / Weighted::kSlots;
  Values in = gate_up;
  if (weigh_input) {
    for (std::size_t i = 0; i < in.size(); ++i) in[i] *= w.of(i / columns);
  }
  Values out = reference_forward(in, Weighted::kSlots);
  for (std::size_t i = 0; i < out.size() && !weigh_input; ++i) out[i] *= w.of(2 * i / columns);
  return out;
}

struct WeightedGradients {
  Values by_gate_up, by_weight;
};

// Returns gradients by finite differences. The gradients are computed once for all devices, because finite
// differences are slower than the kernels.
const WeightedGradients& weighted_gradients(DType dtype, std::int64_t ffn, const Weighted& w,
                                            const Values& gate_up, const Values& d_out, bool weigh_input) {
  static std::map<std::tuple<DType, std::int64_t, bool>, WeightedGradients> known;
  WeightedGradients& result = known[{dtype, ffn, weigh_input}];
  if (!result.by_weight.empty()) return result;
  // An output depends on only one gate value and one up value. Finite differences therefore move all gate
  // values at once, and later all up values at once.
  result.by_gate_up.resize(gate_up.size());
  const auto width = static_cast<std::size_t>(ffn);
  for (const std::size_t first : {std::size_t{0}, width}) {
    const auto at = [&](std::size_t i) { return i / width * 2 * width + first + i % width; };
    const auto step = [&](std::size_t i) { return 1e-5 * std::max(1.0, std::abs(gate_up[at(i)])); };
    const auto moved = [&](double direction) {
      Values v = gate_up;
      for (std::size_t i = 0; i < d_out.size(); ++i) v[at(i)] += direction * step(i);
      return weighted_forward(v, w, weigh_input);
    };
    const Values above = moved(1), below = moved(-1);
    for (std::size_t i = 0; i < d_out.size(); ++i)
      result.by_gate_up[at(i)] = (above[i] - below[i]) * d_out[i] / (2 * step(i));
  }
  result.by_weight = numeric_gradient(
      [&](const Values& v) {
        Weighted other = w;
        other.weights = v;
        return dot(weighted_forward(gate_up, other, weigh_input), d_out);
      },
      w.weights);
  return result;
}

TEST_P(SwigluTest, WeightedForwardAndBackward) {
  OperatorBench bench(GetParam());
  const std::int64_t rows = Weighted::kSlots;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int64_t ffn : {1, 33, 130, 264}) {
      for (const bool weigh_input : {false, true}) {
        const Weighted w = [] {
          Weighted rounded_weights;
          rounded_weights.weights = rounded(rounded_weights.weights, DType::kF32);
          return rounded_weights;
        }();
        const Values gate_up = rounded(random_values(rows * 2 * ffn, 1, 2.0), dtype);
        const Values d_out = rounded(random_values(rows * ffn, 2), dtype);
        const Values before = rounded(random_values(rows, 4), DType::kF32);
        const Shape of_slots{Weighted::kTokens, Weighted::kTopK};
        const Tensor device = bench.upload(Weighted::poisoned(gate_up), dtype, {rows, 2 * ffn});
        const Tensor weights = bench.upload(w.weights, DType::kF32, of_slots);
        const Tensor offsets = bench.upload({0, 4, static_cast<double>(Weighted::kOwned)}, DType::kI32, {3});
        const Tensor slots = bench.upload(w.slots, DType::kI32, {rows});
        const Tensor out = bench.empty(dtype, {rows, ffn});
        bench.run(WeightedSwigluForward{.gate_up = device,
                                        .weights = weights,
                                        .offsets = offsets,
                                        .slots = slots,
                                        .weigh_input = weigh_input,
                                        .out = out});
        const double tolerance = rounding_error(dtype) + 1e-6;
        const Values expected = Weighted::poisoned(weighted_forward(gate_up, w, weigh_input));
        EXPECT_LE(normalised_error(bench.download(out), expected), tolerance);

        const auto& [by_gate_up, of_weights] = weighted_gradients(dtype, ffn, w, gate_up, d_out, weigh_input);
        Values by_weight = of_weights;
        const auto backward = [&](const Tensor& previous, const Tensor& d_gate_up, const Tensor& d_weights) {
          bench.run(
              WeightedSwigluBackward{.gate_up = device,
                                     .weights = weights,
                                     .offsets = offsets,
                                     .slots = slots,
                                     .weigh_input = weigh_input,
                                     .d_out = bench.upload(Weighted::poisoned(d_out), dtype, {rows, ffn}),
                                     .d_gate_up = d_gate_up,
                                     .previous_weights = previous,
                                     .d_weights = d_weights});
        };
        const Tensor d_weights = bench.empty(DType::kF32, of_slots);
        const Values of_gate_up = Weighted::poisoned(by_gate_up);
        const Tensor apart = bench.empty(dtype, {rows, 2 * ffn});
        backward({}, apart, d_weights);
        EXPECT_LE(normalised_error(bench.download(apart), of_gate_up), tolerance);
        EXPECT_LE(normalised_error(bench.download(d_weights), by_weight), 2e-6);
        const Tensor sum = bench.upload(before, DType::kF32, of_slots);
        backward(sum, device, sum);  // the gradient overwrites gate_up
        EXPECT_LE(normalised_error(bench.download(device), of_gate_up), tolerance);
        for (std::size_t i = 0; i < before.size(); ++i) by_weight[i] += before[i];
        EXPECT_LE(normalised_error(bench.download(sum), by_weight), 2e-6);
      }
    }
  }
}

TEST(Swiglu, NoThreadCountChangesABit) {
  const std::int64_t tokens = 700, ffn = 130;
  const Values gate_up = random_values(tokens * 2 * ffn, 1), d_out = random_values(tokens * ffn, 2);
  std::vector<std::vector<unsigned char>> first;
  for (const int threads : {1, 2, 5}) {
    OperatorBench bench({.threads = threads});
    const Tensor gate_up_device = bench.upload(gate_up, DType::kF32, {tokens, 2 * ffn});
    const Tensor out = bench.empty(DType::kF32, {tokens, ffn}),
                 grad = bench.empty(DType::kF32, {tokens, 2 * ffn});
    bench.run(SwigluForward{.gate_up = gate_up_device, .out = out});
    bench.run(SwigluBackward{.gate_up = gate_up_device,
                             .d_out = bench.upload(d_out, DType::kF32, {tokens, ffn}),
                             .d_gate_up = grad});
    std::vector<std::vector<unsigned char>> bits = {bench.bytes(out), bench.bytes(grad)};
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads << " threads";
  }
}

}  // namespace
}  // namespace primus::turbo::test
