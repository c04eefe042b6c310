#include "turbo/grouped_linear/grouped_linear.h"

#include "turbo/gate/gate.h"
#include "turbo/gemm/gemm.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/operator_test.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::test {
namespace {

// The number of rows of each expert, and the number of rows at the end that belong to no expert.
struct Case {
  std::vector<std::int64_t> rows;
  std::int64_t unowned, in, out;
};

// Devices with warpgroups use tiles of 128 x 256 if rows have at least 256 columns.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{3, 0, 5, 1}, 0, 7, 9},
      {{0, 0, 0}, 4, 5, 3},
      {{70, 1, 0, 9, 16, 40}, 6, 48, 33},
      // A case with few rows, as in decoding.
      {{0, 3, 0, 5, 1, 0}, 2, 264, 37},
      // One large expert and sixteen small experts.
      {{200, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 0, 65, 70},
      // Rows are multiples of 16 bytes. There are several tiles of 128 in both dimensions, complete and
      // partial; more steps than are prefetched; and no rows for the first and the last expert.
      {{0, 150, 3, 0, 128, 0}, 5, 168, 264},
      // All three products use wide tiles, and have a partial last step of k.
      {{0, 140, 3, 0, 1}, 5, 264, 264},
      // There are more rows than the decoding kernel supports. There are so few rows that devices with
      // warpgroups first copy the rows that are picked by index.
      {{2, 0, 9, 1}, 1, 264, 264},
      // A case with few rows, as in decoding. The rows are longer than a warp reads in two passes.
      {{1, 0, 2, 0}, 1, 1304, 19},
  };
  return all;
}

// For devices with warpgroups, adds a case in which rows picked by index are copied first, because many tiles
// read each row. For GPUs, adds a case with more tiles than multiprocessors, so that a block computes several
// tiles.
std::vector<Case> cases_of(const DeviceUnderTest& device) {
  std::vector<Case> result = cases();
  if (device.emulated_warp == 32 || !device.plugin.empty()) result.push_back({{3, 0, 6}, 1, 264, 4096});
  if (device.plugin.empty()) return result;
  Case many{{}, 7, 520, 1032};
  for (std::int64_t e = 0; e < 60; ++e) many.rows.push_back(e * 37 % 90);
  many.rows[17] = 400;
  result.push_back(many);
  return result;
}

Values offsets_of(const Case& c) {
  Values offsets = {0};
  for (const std::int64_t rows : c.rows) offsets.push_back(offsets.back() + static_cast<double>(rows));
  return offsets;
}

std::int64_t rows_of(const Case& c) { return static_cast<std::int64_t>(offsets_of(c).back()) + c.unowned; }

// Returns the expert of each row, -1 for rows that belong to no expert.
std::vector<std::int64_t> owners(const Case& c) {
  std::vector<std::int64_t> owner;
  for (std::size_t e = 0; e < c.rows.size(); ++e)
    owner.insert(owner.end(), static_cast<std::size_t>(c.rows[e]), static_cast<std::int64_t>(e));
  owner.resize(static_cast<std::size_t>(rows_of(c)), -1);
  return owner;
}

struct Operands {
  Values x, weights, d_y;
};

// Sets rows that belong to no expert to NaN. As inputs, these rows must not be read; as results, they must
// not be written.
void poison(Values& values, const Case& c) {
  std::fill(values.end() - std::ssize(values) * c.unowned / std::max<std::int64_t>(rows_of(c), 1),
            values.end(), NAN);
}

Operands operands(const Case& c, DType dtype) {
  const auto experts = static_cast<std::int64_t>(c.rows.size());
  Operands result{rounded(random_values(rows_of(c) * c.in, 1), dtype),
                  rounded(random_values(experts * c.out * c.in, 2), dtype),
                  rounded(random_values(rows_of(c) * c.out, 3), dtype)};
  poison(result.x, c);
  poison(result.d_y, c);
  return result;
}

struct Expected {
  Values y, d_x, d_weights;
};

Expected reference(const Case& c, const Operands& o) {
  Expected result{Values(o.d_y.size()), Values(o.x.size()), Values(o.weights.size())};
  const std::vector<std::int64_t> owner = owners(c);
  for (std::size_t row = 0; row < owner.size(); ++row) {
    if (owner[row] < 0) continue;
    for (std::int64_t i = 0; i < c.out; ++i) {
      for (std::int64_t j = 0; j < c.in; ++j) {
        const std::size_t w = static_cast<std::size_t>((owner[row] * c.out + i) * c.in + j);
        const std::size_t x = row * static_cast<std::size_t>(c.in) + static_cast<std::size_t>(j);
        const std::size_t y = row * static_cast<std::size_t>(c.out) + static_cast<std::size_t>(i);
        result.y[y] += o.x[x] * o.weights[w];
        result.d_x[x] += o.d_y[y] * o.weights[w];
        result.d_weights[w] += o.d_y[y] * o.x[x];
      }
    }
  }
  poison(result.y, c);
  poison(result.d_x, c);
  return result;
}

// The operands and results of a case's three products on a device.
struct OnDevice {
  OnDevice(OperatorBench& bench, const Case& c, const Operands& o, DType dtype)
      : x(bench.upload(o.x, dtype, {rows_of(c), c.in})),
        d_y(bench.upload(o.d_y, dtype, {rows_of(c), c.out})),
        weights(bench.upload(o.weights, dtype, {std::ssize(c.rows), c.out, c.in})),
        offsets(bench.upload(offsets_of(c), DType::kI32, {std::ssize(c.rows) + 1})),
        y(bench.empty(dtype, d_y.shape)),
        d_x(bench.empty(dtype, x.shape)),
        d_weights(bench.empty(DType::kF32, weights.shape)) {}

  void run(OperatorBench& bench, GemmRole role, const Tensor& to, bool add = false) const {
    bench.run(GroupedGemm{.role = role,
                          .a = role == GemmRole::kForward ? x : d_y,
                          .b = role == GemmRole::kWeightGradient ? x : weights,
                          .c = to,
                          .offsets = offsets,
                          .accumulate = add,
                          .workspace = {}});
  }
  void run_all(OperatorBench& bench) const {
    run(bench, GemmRole::kForward, y);
    run(bench, GemmRole::kInputGradient, d_x);
    run(bench, GemmRole::kWeightGradient, d_weights);
  }

  Tensor x, d_y, weights, offsets, y, d_x, d_weights;
};

class GroupedLinearTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, GroupedLinearTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(GroupedLinearTest, ThreeProducts) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : cases_of(GetParam())) {
      const Operands o = operands(c, dtype);
      const Expected expected = reference(c, o);
      const OnDevice on(bench, c, o, dtype);
      // Sums of at most 1032 products or 400 rows: about sqrt(n) fp32 rounding errors, plus the rounding of
      // the result.
      const double tolerance = rounding_error(dtype) + 4e-6;
      on.run_all(bench);
      EXPECT_LE(normalised_error(bench.download(on.y), expected.y), tolerance);
      EXPECT_LE(normalised_error(bench.download(on.d_x), expected.d_x), tolerance);
      EXPECT_LE(normalised_error(bench.download(on.d_weights), expected.d_weights), 4e-6);
      on.run(bench, GemmRole::kWeightGradient, on.d_weights, true);
      Values twice = expected.d_weights;
      for (double& v : twice) v *= 2;
      EXPECT_LE(normalised_error(bench.download(on.d_weights), twice), 4e-6);
      // A bf16 weight gradient is rounded once per call.
      const Tensor narrow = bench.empty(DType::kBF16, on.d_weights.shape);
      on.run(bench, GemmRole::kWeightGradient, narrow);
      const Values once = bench.download(narrow);
      EXPECT_LE(normalised_error(once, expected.d_weights), rounding_error(DType::kBF16) + 4e-6);
      on.run(bench, GemmRole::kWeightGradient, narrow, true);
      Values sum = expected.d_weights;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += once[i];
      EXPECT_LE(normalised_error(bench.download(narrow), sum), rounding_error(DType::kBF16) + 4e-6);
    }
  }
}

// If rows are picked from a matrix of tokens by index, results have the same bits as for a copy of these rows
// in order. Every token is picked several times, by experts with many and with few rows.
TEST_P(GroupedLinearTest, PickedRows) {
  OperatorBench bench(GetParam());
  const RandomStream random(5, RandomPurpose::kTest);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : cases_of(GetParam())) {
      const auto experts = static_cast<std::int64_t>(c.rows.size());
      const std::int64_t rows = rows_of(c), tokens = rows / 3 + 1;
      Values picks;
      for (std::int64_t row = 0; row < rows; ++row)
        picks.push_back(random.below(static_cast<std::uint64_t>(row), static_cast<std::uint32_t>(tokens)));
      const auto copied = [&](const Values& from, std::int64_t columns) {
        Values result;
        for (const double pick : picks) {
          const auto begin = from.begin() + static_cast<std::int64_t>(pick) * columns;
          result.insert(result.end(), begin, begin + columns);
        }
        return result;
      };
      const Values x = rounded(random_values(tokens * c.in, 1), dtype);
      const Values d_y = rounded(random_values(tokens * c.out, 2), dtype);
      const Tensor weights = bench.upload(rounded(random_values(experts * c.out * c.in, 3), dtype), dtype,
                                          {experts, c.out, c.in});
      const Tensor offsets = bench.upload(offsets_of(c), DType::kI32, {experts + 1});
      const Tensor picked = bench.upload(picks, DType::kI32, {rows});
      const Tensor x_tokens = bench.upload(x, dtype, {tokens, c.in});
      const Tensor d_y_tokens = bench.upload(d_y, dtype, {tokens, c.out});
      const Tensor x_rows = bench.upload(copied(x, c.in), dtype, {rows, c.in});
      const Tensor d_y_rows = bench.upload(copied(d_y, c.out), dtype, {rows, c.out});
      const auto product = [&](GemmRole role, const Tensor& a, const Tensor& b, bool pick_a, bool pick_b) {
        const Tensor to = role == GemmRole::kWeightGradient ? bench.empty(DType::kF32, {experts, c.out, c.in})
                          : role == GemmRole::kForward      ? bench.empty(dtype, {rows, c.out})
                                                            : bench.empty(dtype, {rows, c.in});
        bench.run(GroupedGemm{.role = role,
                              .a = a,
                              .b = b,
                              .c = to,
                              .offsets = offsets,
                              .a_rows = pick_a ? picked : Tensor(),
                              .b_rows = pick_b ? picked : Tensor(),
                              .workspace = {}});
        return bench.bytes(to);
      };
      EXPECT_EQ(product(GemmRole::kForward, x_tokens, weights, true, false),
                product(GemmRole::kForward, x_rows, weights, false, false));
      EXPECT_EQ(product(GemmRole::kInputGradient, d_y_tokens, weights, true, false),
                product(GemmRole::kInputGradient, d_y_rows, weights, false, false));
      const auto expected = product(GemmRole::kWeightGradient, d_y_rows, x_rows, false, false);
      EXPECT_EQ(product(GemmRole::kWeightGradient, d_y_tokens, x_rows, true, false), expected);
      EXPECT_EQ(product(GemmRole::kWeightGradient, d_y_rows, x_tokens, false, true), expected);
    }
  }
}

// NaN in the rows and weights of one expert does not change a bit of the results of other experts. Tiles and
// steps of k may extend beyond the last row of an expert.
TEST_P(GroupedLinearTest, ExpertsKeepApart) {
  OperatorBench bench(GetParam());
  const DType dtype = DType::kBF16;
  for (const std::size_t which : {cases().size() - 2, cases().size() - 1}) {
    const Case& c = cases()[which];
    const std::int64_t rows = rows_of(c);
    const std::vector<std::int64_t> owner = owners(c);
    const auto results = [&](std::int64_t poisoned) {
      Operands o = operands(c, dtype);
      for (std::int64_t row = 0; poisoned >= 0 && row < rows; ++row) {
        if (owner[static_cast<std::size_t>(row)] != poisoned) continue;
        std::fill_n(o.x.begin() + row * c.in, c.in, NAN);
        std::fill_n(o.d_y.begin() + row * c.out, c.out, NAN);
      }
      if (poisoned >= 0) std::fill_n(o.weights.begin() + poisoned * c.out * c.in, c.out * c.in, NAN);
      const OnDevice on(bench, c, o, dtype);
      on.run_all(bench);
      Expected all{bench.download(on.y), bench.download(on.d_x), bench.download(on.d_weights)};
      // The poisoned expert's own results, and rows that are not written, are NaN and are not compared.
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t of = owner[static_cast<std::size_t>(row)];
        if (of >= 0 && of != 1) continue;
        std::fill_n(all.y.begin() + row * c.out, c.out, 0.0);
        std::fill_n(all.d_x.begin() + row * c.in, c.in, 0.0);
      }
      std::fill_n(all.d_weights.begin() + c.out * c.in, c.out * c.in, 0.0);
      return all;
    };
    const Expected clean = results(-1), other = results(1);
    EXPECT_EQ(other.y, clean.y);
    EXPECT_EQ(other.d_x, clean.d_x);
    EXPECT_EQ(other.d_weights, clean.d_weights);
  }
}

TEST_P(GroupedLinearTest, Bias) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : cases()) {
      const auto experts = static_cast<std::int64_t>(c.rows.size());
      const std::int64_t rows = rows_of(c), n = c.out;
      const Values y = rounded(random_values(rows * n, 4), dtype);
      const Values bias = rounded(random_values(experts * n, 5), dtype);
      Values sum = y, d_bias(bias.size());
      const std::vector<std::int64_t> owner = owners(c);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t e = owner[static_cast<std::size_t>(row)];
        for (std::int64_t i = 0; e >= 0 && i < n; ++i) {
          sum[static_cast<std::size_t>(row * n + i)] += bias[static_cast<std::size_t>(e * n + i)];
          d_bias[static_cast<std::size_t>(e * n + i)] += y[static_cast<std::size_t>(row * n + i)];
        }
      }
      const Tensor device = bench.upload(y, dtype, {rows, n});
      const Tensor offsets = bench.upload(offsets_of(c), DType::kI32, {experts + 1});
      const Tensor gradient = bench.empty(DType::kF32, {experts, n});
      for (const bool accumulate : {false, true}) {
        bench.run(GroupedBiasBackward{
            .d_y = device, .d_bias = gradient, .offsets = offsets, .accumulate = accumulate});
        Values expected = d_bias;
        for (double& v : expected) v *= accumulate ? 2 : 1;
        EXPECT_LE(normalised_error(bench.download(gradient), expected), 4e-6);
      }
      const Tensor bias_device = bench.upload(bias, dtype, {experts, n});
      Values apart = sum;
      poison(apart, c);
      for (const auto& [to, expected] : {std::pair{bench.empty(dtype, {rows, n}), apart}, {device, sum}}) {
        bench.run(GroupedBias{.x = device, .bias = bias_device, .y = to, .offsets = offsets});
        EXPECT_LE(normalised_error(bench.download(to), expected), rounding_error(dtype) + 1e-7);
      }
    }
  }
}

// A few tokens with the experts that each token chose.
struct ChosenCase {
  std::int64_t tokens, top_k, experts, hidden, ffn;
  bool bias, weighs_rows, weigh_input, addend;
  float limit;
  std::int64_t shared_ffn = 0;  // 0: no shared expert
  bool shared_gate = false;
};

// The shared expert of a case.
struct SharedOfCase {
  Tensor gate_up, down, gate;
  Tensor rows, gates;  // intermediate results of the fused products

  SharedOfCase(OperatorBench& bench, const ChosenCase& c) {
    if (c.shared_ffn == 0) return;
    const auto random = [&](std::uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
      return bench.upload(random_values(shape.elements(), seed), dtype, shape);
    };
    gate_up = random(11, {2 * c.shared_ffn, c.hidden});
    down = random(12, {c.hidden, c.shared_ffn});
    rows = bench.empty(DType::kBF16, {c.tokens, c.shared_ffn});
    if (!c.shared_gate) return;
    gate = random(13, {1, c.hidden}, DType::kF32);
    gates = bench.empty(DType::kF32, {c.tokens});
  }

  // Returns the output of the shared expert, computed by separate operators.
  Tensor by_operators(OperatorBench& bench, const Tensor& x) const {
    const auto product = [&](const Tensor& a, const Tensor& b, DType dtype) {
      const Tensor c = bench.empty(dtype, {a.rows(), b.rows()});
      bench.run(Gemm{.role = GemmRole::kForward, .a = a, .b = b, .c = c, .workspace = {}});
      return c;
    };
    const Tensor activated = bench.empty(DType::kBF16, rows.shape);
    bench.run(SwigluForward{.gate_up = product(x, gate_up, DType::kBF16), .out = activated});
    const Tensor y = product(activated, down, DType::kBF16);
    if (!gate.absent()) bench.run(GateForward{.x = y, .gate = product(x, gate, DType::kF32), .y = y});
    return y;
  }
};

// Expects that the fused products have the same bits as their operators, run one after another. With a shared
// expert, whose products are added in another order, expects equality up to rounding.
void expect_steps(OperatorBench& bench, const ChosenCase& c) {
  SCOPED_TRACE(std::to_string(c.tokens) + " x " + std::to_string(c.top_k) + " of " +
               std::to_string(c.experts) + ", widths " + std::to_string(c.hidden) + " and " +
               std::to_string(c.ffn));
  const auto random = [&](std::uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
    return bench.upload(random_values(shape.elements(), seed), dtype, shape);
  };
  const std::int64_t slots = c.tokens * c.top_k;
  Values choices;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t k = 0; k < c.top_k; ++k)
      choices.push_back(static_cast<double>((t * 3 + (c.top_k - k) * 5) % c.experts));
  }
  const Tensor experts = bench.upload(choices, DType::kI32, {c.tokens, c.top_k});
  const Tensor weights = random(1, {c.tokens, c.top_k}, DType::kF32), x = random(2, {c.tokens, c.hidden});
  const Tensor gate_up = random(3, {c.experts, 2 * c.ffn, c.hidden}),
               down = random(4, {c.experts, c.hidden, c.ffn});
  const Tensor gate_up_bias = c.bias ? random(5, {c.experts, 2 * c.ffn}) : Tensor(),
               down_bias = c.bias ? random(6, {c.experts, c.hidden}) : Tensor();
  const Tensor addend = c.addend ? random(7, x.shape) : Tensor();
  const auto bf16 = [&](Shape shape) { return bench.empty(DType::kBF16, shape); };
  constexpr float kAlpha = 1.702F, kShift = 1;
  const SharedOfCase shared(bench, c);

  const Tensor rows = bf16({slots, c.ffn}), out = bf16(x.shape);
  const GroupedGemm gated{.role = GemmRole::kForward,
                          .a = x,
                          .b = gate_up,
                          .c = rows,
                          .chosen = {.experts = experts,
                                     .end = ChosenExperts::End::kGated,
                                     .weights = c.weighs_rows ? weights : Tensor(),
                                     .bias = gate_up_bias,
                                     .shared = {.weights = shared.gate_up,
                                                .rows = shared.rows,
                                                .gate = shared.gate,
                                                .gates = shared.gates},
                                     .weigh_input = c.weigh_input,
                                     .limit = c.limit,
                                     .alpha = kAlpha,
                                     .shift = kShift},
                          .workspace = {}};
  const GroupedGemm summed{
      .role = GemmRole::kForward,
      .a = rows,
      .b = down,
      .c = out,
      .chosen = {.experts = experts,
                 .end = ChosenExperts::End::kSummed,
                 .weights = c.weighs_rows ? Tensor() : weights,
                 .bias = down_bias,
                 .previous = addend,
                 .shared = {.weights = shared.down, .rows = shared.rows, .gates = shared.gates}},
      .workspace = {}};
  ASSERT_TRUE(is_taken(bench.device(), gated) && is_taken(bench.device(), summed));
  bench.run(gated);
  bench.run(summed);

  const Tensor whole = bench.empty(DType::kI32, RoutingPlan::shape(c.experts, c.tokens, c.top_k));
  bench.run(PlanRouting{.experts = experts,
                        .weights = {},
                        .kept = {},
                        .plan = whole,
                        .expert_count = c.experts,
                        .capacity = 0});
  const RoutingPlan plan(whole, c.experts, c.tokens, c.top_k);
  const Tensor wide = bf16({slots, 2 * c.ffn}), activated = bf16(rows.shape),
               results = bf16({slots, c.hidden}), sum = bf16(x.shape);
  bench.run(GroupedGemm{.role = GemmRole::kForward,
                        .a = x,
                        .b = gate_up,
                        .c = wide,
                        .offsets = plan.offsets,
                        .a_rows = plan.tokens,
                        .workspace = {}});
  if (c.bias) bench.run(GroupedBias{.x = wide, .bias = gate_up_bias, .y = wide, .offsets = plan.offsets});
  if (c.weighs_rows) {
    bench.run(WeightedSwigluForward{.gate_up = wide,
                                    .weights = weights,
                                    .offsets = plan.offsets,
                                    .slots = plan.slots,
                                    .weigh_input = c.weigh_input,
                                    .out = activated});
  } else if (c.limit > 0) {
    bench.run(ClampedSwigluForward{
        .gate_up = wide, .out = activated, .limit = c.limit, .alpha = kAlpha, .shift = kShift});
  } else {
    bench.run(SwigluForward{.gate_up = wide, .out = activated});
  }
  bench.run(GroupedGemm{.role = GemmRole::kForward,
                        .a = activated,
                        .b = down,
                        .c = results,
                        .offsets = plan.offsets,
                        .workspace = {}});
  if (c.bias) bench.run(GroupedBias{.x = results, .bias = down_bias, .y = results, .offsets = plan.offsets});
  bench.run(CombineRows{.x = results,
                        .rows = plan.rows,
                        .weights = c.weighs_rows ? Tensor() : weights,
                        .previous = c.shared_ffn > 0 ? shared.by_operators(bench, x) : addend,
                        .out = sum});
  if (c.shared_ffn == 0) {
    EXPECT_EQ(bench.download(out), bench.download(sum));
  } else {
    // Other sums can round the activations, the output and its product with the gate to neighbouring numbers.
    EXPECT_LE(normalised_error(bench.download(out), bench.download(sum)), 4 * rounding_error(DType::kBF16));
  }
}

TEST(GroupedLinear, ChosenExpertsHaveTheBitsOfTheirStepsOnAGpu) {
  std::vector<DeviceUnderTest> devices = batch_invariant_gpus();
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp > 0 || !spec.plugin.empty()) devices.push_back(spec);
  }
  for (const DeviceUnderTest& spec : devices) {
    SCOPED_TRACE(spec.name() + (spec.batch_invariant ? ", batch-invariant" : ""));
    OperatorBench bench(spec);
    std::vector<ChosenCase> cases = {{1, 8, 16, 264, 24, false, true, false, false, 0},
                                     {1, 3, 8, 1304, 40, false, true, true, true, 0},
                                     {2, 4, 8, 520, 72, true, false, false, false, 0.5F},
                                     {3, 5, 16, 72, 1032, true, false, false, true, 0},
                                     {8, 2, 12, 48, 8, false, false, false, false, 0}};
    // The matrices of Qwen3-30B-A3B.
    if (!spec.plugin.empty()) {
      for (const std::int64_t tokens : {1, 8})
        cases.push_back({tokens, 8, 32, 2048, 768, false, true, false, false, 0});
    }
    for (const ChosenCase& c : cases) expect_steps(bench, c);
  }
}

TEST(GroupedLinear, ChosenExpertsIncludeTheSharedExpertOnAGpu) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    // The shared expert is as wide as an expert, twice as wide, narrower, and not a multiple of an expert.
    for (const ChosenCase& c : {ChosenCase{1, 8, 16, 264, 24, false, true, false, false, 0, 24, true},
                                {1, 6, 8, 1304, 40, false, true, false, false, 0, 80, false},
                                {2, 5, 16, 72, 1032, false, false, false, false, 0, 520, true},
                                {2, 2, 8, 520, 72, true, true, true, false, 0, 200, false}})
      expect_steps(bench, c);
  }
}

TEST(GroupedLinear, ChosenExpertsAreTakenWhereItPays) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const auto taken = [&](std::int64_t tokens, std::int64_t in, DType dtype, bool shared = false) {
      return is_taken(
          bench.device(),
          GroupedGemm{
              .role = GemmRole::kForward,
              .a = Tensor(nullptr, dtype, {tokens, in}),
              .b = Tensor(nullptr, dtype, {16, 32, in}),
              .chosen = {.experts = Tensor(nullptr, DType::kI32, {tokens, 8}),
                         .shared = shared
                                       ? ChosenExperts::Shared{.weights = Tensor(nullptr, dtype, {32, in}),
                                                               .rows = Tensor(nullptr, dtype, {tokens, 16})}
                                       : ChosenExperts::Shared{}}});
    };
    const bool gpu = spec.emulated_warp > 0 || !spec.plugin.empty();
    EXPECT_EQ(taken(1, 64, DType::kBF16), gpu);
    EXPECT_EQ(taken(8, 64, DType::kBF16), gpu);
    EXPECT_EQ(taken(2, 64, DType::kBF16, true), gpu);
    EXPECT_FALSE(taken(3, 64, DType::kBF16, true));  // separate products read a shared expert once
    EXPECT_FALSE(taken(9, 64, DType::kBF16));        // many rows are sorted by expert
    EXPECT_FALSE(taken(1, 60, DType::kBF16));
    EXPECT_FALSE(taken(1, 64, DType::kF32));
  }
}

TEST(GroupedLinear, NoThreadCountChangesABit) {
  const Case& c = cases().back();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Operands o = operands(c, dtype);
    std::vector<std::vector<unsigned char>> first;
    for (const int threads : {1, 2, 5}) {
      OperatorBench bench({.threads = threads});
      const OnDevice on(bench, c, o, dtype);
      on.run_all(bench);
      const std::vector<std::vector<unsigned char>> bits = {bench.bytes(on.y), bench.bytes(on.d_x),
                                                            bench.bytes(on.d_weights)};
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first) << threads << " threads";
    }
  }
}

// The workspace size that measure mode reserves is sufficient for every routing.
TEST(GroupedLinear, WorkspaceBoundHoldsForEveryNumberOfRows) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const GemmLayout layout : {GemmLayout::kNT, GemmLayout::kNN, GemmLayout::kTN}) {
      for (const GemmProvider provider :
           {GemmProvider::kPortable, GemmProvider::kXsmm, GemmProvider::kAvx512Bf16, GemmProvider::kAmx}) {
        if (!gemm_provider_available(provider, dtype)) continue;
        for (const auto& [n, other] : {std::pair{33, 70}, {1536, 4097}, {9000, 640}}) {
          for (const int threads : {1, 2, 16}) {
            GemmArgs args{.layout = layout, .ab_dtype = dtype, .c_dtype = dtype, .n = n};
            args.provider = provider;
            if (layout == GemmLayout::kTN) args.c_dtype = DType::kF32;
            const auto with_rows = [&](std::int64_t rows) {
              args.m = layout == GemmLayout::kTN ? other : rows;
              args.k = layout == GemmLayout::kTN ? rows : other;
            };
            for (const std::int64_t maximum : {7, 300, 6000, 20000}) {
              with_rows(maximum);
              const std::size_t bound = cpu_gemm_workspace_bound(args, threads);
              for (std::int64_t rows = 1; rows <= maximum; rows += 1 + rows / 37) {
                with_rows(rows);
                ASSERT_LE(cpu_gemm_workspace_bytes(args, threads), bound)
                    << name_of(provider) << " layout " << static_cast<int>(layout) << " n " << n << " rows "
                    << rows << " of " << maximum << " threads " << threads;
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
