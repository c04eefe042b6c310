#include "turbo/delta_rule/delta_rule.h"

#include <tuple>

#include "delta_rule_reference.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/column_runs/column_runs.h"
#include "turbo/delta_gates/delta_gates.h"
#include "turbo/gate/gate.h"

namespace primus::turbo::test {
namespace {

// The gradients of the reference match finite differences of its output.
TEST(DeltaRuleReference, GradientsAgreeWithDifferences) {
  for (const bool channel_gates : {false, true}) {
    for (const bool normalise : {false, true}) {
      const DeltaCase c{1, 5, 1, 2, 3, 2, channel_gates, normalise, true};
      const DeltaOperands o(c);
      const DeltaResults r = delta_reference(c, o);
      const auto by = [&](Values DeltaOperands::*member) {
        return numeric_gradient(
            [&](const Values& values) {
              DeltaOperands changed = o;
              changed.*member = values;
              return dot(delta_reference(c, changed).out, o.d_out);
            },
            o.*member);
      };
      EXPECT_LE(normalised_error(r.d_qkv, by(&DeltaOperands::qkv)), 1e-8) << c;
      EXPECT_LE(normalised_error(r.d_g, by(&DeltaOperands::g)), 1e-8) << c;
      EXPECT_LE(normalised_error(r.d_beta, by(&DeltaOperands::beta)), 1e-8) << c;
    }
  }
}

class DeltaRuleTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, DeltaRuleTest, ::testing::ValuesIn(devices_under_test()));

struct OnDevice {
  OnDevice(OperatorBench& bench, const DeltaCase& c, const DeltaOperands& o) : s(c.shape()) {
    qkv = bench.upload(o.qkv, c.dtype, {s.rows(), s.width()});
    g = bench.upload(o.g, DType::kF32, {s.rows(), s.gates()});
    beta = bench.upload(o.beta, DType::kF32, {s.rows(), s.value_heads});
    d_out = bench.upload(o.d_out, c.dtype, {s.rows(), s.out_width()});
    if (c.documents) first_key = bench.upload(c.first_keys(), DType::kI32, {s.rows()});
    out = bench.empty(c.dtype, d_out.shape);
    d_qkv = bench.empty(c.dtype, qkv.shape);
    d_g = bench.empty(DType::kF32, g.shape);
    d_beta = bench.empty(DType::kF32, beta.shape);
  }
  DeltaRuleForward forward() const {
    return {
        .shape = s, .qkv = qkv, .g = g, .beta = beta, .first_key = first_key, .out = out, .workspace = {}};
  }
  DeltaRuleBackward backward() const {
    return {.shape = s,
            .qkv = qkv,
            .g = g,
            .beta = beta,
            .first_key = first_key,
            .d_out = d_out,
            .d_qkv = d_qkv,
            .d_g = d_g,
            .d_beta = d_beta,
            .workspace = {}};
  }
  DeltaRuleShape s;
  Tensor qkv, g, beta, first_key, d_out, out, d_qkv, d_g, d_beta;
};

// Returns fewer cases for the emulator, which is a hundred times slower.
std::vector<DeltaCase> cases(const DeviceUnderTest& device) {
  std::vector<DeltaCase> all;
  for (const bool by_channel : {false, true}) {
    if (device.emulated_warp > 0) {
      all.push_back({2, 17, 1, 2, 16, 8, by_channel, false});
      all.push_back({1, 134, 1, 1, 12, 20, by_channel, true, true, DType::kF32, GateKind::kMixed});
      all.push_back({1, 70, 1, 1, 72, 8, by_channel, true, true, DType::kBF16});
      continue;
    }
    all.push_back({1, 1, 1, 1, 8, 8, by_channel});
    all.push_back({2, 17, 1, 2, 16, 8, by_channel, false});
    all.push_back({2, 64, 2, 2, 16, 16, by_channel});
    all.push_back({1, 150, 1, 3, 12, 20, by_channel, true, true});
    all.push_back({1, 130, 2, 2, 24, 40, by_channel, false, true});
    all.push_back({1, 100, 1, 1, 16, 16, by_channel, true, false, DType::kF32, GateKind::kNone});
    all.push_back({1, 100, 1, 1, 16, 16, by_channel, true, true, DType::kF32, GateKind::kStrong});
    all.push_back({1, 140, 1, 2, 16, 16, by_channel, true, false, DType::kF32, GateKind::kMixed});
    all.push_back({1, 140, 1, 2, 32, 16, by_channel, true, true, DType::kBF16, GateKind::kMixed});
    all.push_back({2, 72, 1, 1, 128, 64, by_channel, true, false, DType::kBF16});
    all.push_back({1, 70, 1, 1, 128, 128, by_channel, true, false, DType::kF32});
    all.push_back({1, 200, 2, 4, 128, 128, by_channel, true, true, DType::kBF16, GateKind::kMixed});
    all.push_back({1, 200, 1, 1, 64, 72, by_channel, false, true, DType::kBF16, GateKind::kStrong});
    all.push_back({2, 129, 1, 2, 40, 256, by_channel, true, false, DType::kBF16, GateKind::kNone});
    all.push_back({1, 70, 1, 1, 136, 24, by_channel, true, false, DType::kBF16});
  }
  return all;
}

// In fp32, results are sums of some hundred products, accumulated from chunk to chunk. In bf16, GPUs also
// round the factors for tensor cores, and results are rounded once.
double tolerance(const DeltaCase& c) { return c.dtype == DType::kBF16 ? 1e-2 : 1e-5; }

// Returns the error of the gradients of gates. Each is a difference of two sums, whose terms are inputs times
// their gradients, so the error is relative to these terms. The gradient itself is close to zero where gates
// are nearly closed.
double gate_error(const Values& actual, const DeltaResults& expected, const DeltaOperands& o) {
  double terms = 0, largest = 0;
  for (std::size_t i = 0; i < o.qkv.size(); ++i)
    terms = std::max(terms, std::abs(o.qkv[i] * expected.d_qkv[i]));
  for (const double d : expected.d_g) largest = std::max(largest, std::abs(d));
  return normalised_error(actual, expected.d_g) * largest / std::max(largest, terms);
}

TEST_P(DeltaRuleTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const DeltaCase& c : cases(GetParam())) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const DeltaOperands o(c);
    const DeltaResults& expected = delta_expected(c);
    const OnDevice on(bench, c, o);
    bench.run(on.forward());
    EXPECT_LE(normalised_error(bench.download(on.out), expected.out), tolerance(c)) << c;
    bench.run(on.backward());
    EXPECT_LE(normalised_error(bench.download(on.d_qkv), expected.d_qkv), tolerance(c)) << c;
    EXPECT_LE(gate_error(bench.download(on.d_g), expected, o), tolerance(c)) << c;
    EXPECT_LE(normalised_error(bench.download(on.d_beta), expected.d_beta), tolerance(c)) << c;
    const Values d_g = bench.download(on.d_g);
    for (std::int64_t row = 0; row < c.rows(); ++row) {
      if (c.first_key(row % c.sequence) != row % c.sequence) continue;
      EXPECT_EQ(d_g[static_cast<std::size_t>(row * on.s.gates())], 0);
    }
  }
}

TEST(DeltaRule, NoThreadCountChangesABit) {
  for (const bool by_channel : {false, true}) {
    const DeltaCase c{2, 150, 2, 4, 24, 16, by_channel, true, true, DType::kBF16};
    const DeltaOperands o(c);
    std::vector<std::vector<unsigned char>> first;
    for (const int threads : {1, 2, 5}) {
      OperatorBench bench({.threads = threads});
      const OnDevice on(bench, c, o);
      bench.run(on.forward());
      bench.run(on.backward());
      std::vector<std::vector<unsigned char>> bits = {bench.bytes(on.out), bench.bytes(on.d_qkv),
                                                      bench.bytes(on.d_g), bench.bytes(on.d_beta)};
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first) << threads << " threads";
    }
  }
}

TEST_P(DeltaRuleTest, TwoRunsAreEqual) {
  OperatorBench bench(GetParam());
  const DeltaCase c{1, 66, 1, 2, 8, 8, true, true, true, DType::kBF16};
  const DeltaOperands o(c);
  const OnDevice on(bench, c, o);
  std::vector<std::vector<unsigned char>> first;
  for (int i = 0; i < 2; ++i) {
    bench.run(on.forward());
    bench.run(on.backward());
    std::vector<std::vector<unsigned char>> bits = {bench.bytes(on.out), bench.bytes(on.d_qkv),
                                                    bench.bytes(on.d_g), bench.bytes(on.d_beta)};
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first);
  }
}

// Sequences that are read in several passes. A pass adds a different number of tokens to each sequence.
struct Reading {
  static constexpr std::int64_t kRing = 8, kSpare = 3;

  Reading(OperatorBench& on, const DeltaCase& which, const DeltaOperands& operands)
      : bench(on),
        c(which),
        s(which.shape()),
        o(operands),
        // The state is not initialised, because its initial value must not affect results.
        state(on.empty(DType::kF32, {c.batch, s.value_heads, s.key_dim, s.value_dim})),
        recent(on.empty(DType::kF32, {c.batch, kRing, s.value_heads * s.recent_width()})),
        committed(on.empty(DType::kI32, {c.batch, s.value_heads})),
        lengths(static_cast<std::size_t>(c.batch), 0) {}

  // Reads counts[b] more tokens of each sequence b, followed by `unused` rows that belong to no sequence.
  // Compares the outputs with `expected`.
  void read(const std::vector<std::int64_t>& counts, std::int64_t unused, const Values& expected) {
    Values qkv, g, beta, starts{0}, ends, wanted;
    const auto append = [](const Values& from, std::int64_t row, std::int64_t width, Values& to) {
      to.insert(to.end(), from.begin() + row * width, from.begin() + (row + 1) * width);
    };
    std::int64_t rows = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      std::int64_t& length = lengths[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(b)]; ++i, ++rows, ++length) {
        const std::int64_t row = b * c.sequence + length;
        append(o.qkv, row, s.width(), qkv);
        append(o.g, row, s.gates(), g);
        append(o.beta, row, s.value_heads, beta);
        append(expected, row, s.out_width(), wanted);
      }
      starts.push_back(static_cast<double>(rows));
      ends.push_back(static_cast<double>(length));
    }
    rows += unused;
    qkv.resize(static_cast<std::size_t>(rows * s.width()), NAN);
    g.resize(static_cast<std::size_t>(rows * s.gates()), NAN);
    beta.resize(static_cast<std::size_t>(rows * s.value_heads), NAN);
    wanted.resize(static_cast<std::size_t>(rows * s.out_width()), 0);
    DeltaRuleShape shape = s;
    shape.batch = 1, shape.sequence = rows;
    const Tensor out = bench.empty(c.dtype, {rows, s.out_width()});
    bench.run(CachedDeltaRule{.sequences = {.query_starts = bench.upload(starts, DType::kI32, {c.batch + 1}),
                                            .key_lengths = bench.upload(ends, DType::kI32, {c.batch}),
                                            .block_table = bench.zeros(DType::kI32, {c.batch, 1}),
                                            .page_size = 64},
                              .shape = shape,
                              .spare = kSpare,
                              .qkv = bench.upload(qkv, c.dtype, {rows, s.width()}),
                              .g = bench.upload(g, DType::kF32, {rows, s.gates()}),
                              .beta = bench.upload(beta, DType::kF32, {rows, s.value_heads}),
                              .state = state,
                              .recent = recent,
                              .committed = committed,
                              .out = out,
                              .workspace = {}});
    EXPECT_LE(normalised_error(bench.download(out), wanted), tolerance(c));
  }
  void cut(const std::vector<std::int64_t>& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) lengths[i] -= counts[i];
  }

  OperatorBench& bench;
  const DeltaCase& c;
  DeltaRuleShape s;
  const DeltaOperands& o;
  Tensor state, recent, committed;
  std::vector<std::int64_t> lengths;
};

TEST_P(DeltaRuleTest, ReadingInPassesEqualsReadingAtOnce) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool by_channel : {false, true}) {
      if (GetParam().emulated_warp > 0 && by_channel != (dtype == DType::kBF16)) continue;
      const DeltaCase c{3, 40, 1, 2, 24, 12, by_channel, true, false, dtype};
      SCOPED_TRACE(::testing::PrintToString(c));
      const DeltaOperands o(c);
      const Values& expected = delta_expected(c).out;
      Reading reading(bench, c, o);
      reading.read({3, 0, 1}, 2, expected);  // prompts
      reading.read({1, 1, 1}, 0, expected);  // one token per sequence
      reading.read({0, 2, 1}, 0, expected);  // few rows, with different numbers of tokens per sequence
      reading.cut({0, 2, 1});                // repeats the last pass
      reading.read({0, 2, 1}, 0, expected);
      reading.read({1, 0, 0}, 1, expected);
      reading.read({14, 17, 4}, 3, expected);  // more tokens than the ring can hold
      reading.cut({3, 2, 1});                  // drops the max. number of tokens
      reading.read({1, 1, 1}, 0, expected);
      reading.cut({1, 1, 1});
      reading.read({2, 1, 3}, 0, expected);
      // Reads single tokens, each of them twice, until the ring has wrapped around.
      for (int i = 0; i < 10; ++i) {
        reading.read({1, 1, 1}, 0, expected);
        reading.cut({1, 1, 1});
        reading.read({1, 1, 1}, 0, expected);
      }
      // The results of a sequence that restarts do not depend on its earlier state.
      reading.lengths[1] = 0;
      reading.read({1, 6, 1}, 0, expected);
      reading.read({0, 9, 0}, 0, expected);
    }
  }
}

// Tests wide keys, values whose width is no multiple of four, and heads wider than a block.
TEST_P(DeltaRuleTest, ReadingInPassesEqualsReadingAtOnceForHeadsOfUnusualWidth) {
  OperatorBench bench(GetParam());
  for (const auto& [key_dim, value_dim, by_channel] :
       {std::tuple{200, 13, true}, std::tuple{131, 36, false}, std::tuple{128, 40, false}}) {
    const DeltaCase c{2, 26, 1, 2, key_dim, value_dim, by_channel};
    SCOPED_TRACE(::testing::PrintToString(c));
    const DeltaOperands o(c);
    const Values& expected = delta_expected(c).out;
    Reading reading(bench, c, o);
    reading.read({7, 2}, 1, expected);
    reading.read({1, 1}, 0, expected);
    reading.read({9, 1}, 0, expected);
    reading.read({1, 1}, 0, expected);
    reading.read({1, 14}, 0, expected);
    reading.cut({3, 3});
    reading.read({3, 3}, 0, expected);
  }
}

// On every device, flops() returns the FLOPs of the chunked algorithm, because MFU and dry runs use this
// number.
TEST(DeltaRule, FlopsCountChunks) {
  const DeltaCase c{1, 8192, 16, 32, 128, 128};
  const DeltaRuleForward forward{.shape = c.shape()};
  const double tokens_of_heads = 8192.0 * 32;
  EXPECT_DOUBLE_EQ(forward.flops(), tokens_of_heads * (6 * 128 * 128 + 4 * 64 * 128));
  const DeltaRuleBackward backward{.shape = c.shape()};
  EXPECT_DOUBLE_EQ(backward.flops(), tokens_of_heads * (16 * 128 * 128 + 11 * 64 * 128));
}

// Gated delta networks between their projections, with the caches of some sequences.
struct NetCase {
  std::int64_t batch, key_heads, value_heads, key_dim, value_dim, taps;
};

struct Net {
  static constexpr std::int64_t kRing = 8, kSpare = 3, kConvRing = 7;

  Net(OperatorBench& on, const NetCase& c) : bench(on), s(shape_of(c)) {
    const auto random = [&](std::uint64_t seed, Shape shape, DType dtype = DType::kBF16) {
      return bench.upload(random_values(shape.elements(), seed), dtype, shape);
    };
    kernel = random(1, {s.width(), c.taps});
    a_log = random(2, {s.value_heads}, DType::kF32);
    dt_bias = random(3, {s.value_heads}, DType::kF32);
    norm = random(4, {s.value_dim});
    // The caches are not initialised, because their initial values must not affect results. Equal bytes make
    // it possible to compare caches.
    ring = bench.zeros(DType::kF32, {c.batch, kConvRing, s.width()});
    state = bench.zeros(DType::kF32, {c.batch, s.value_heads, s.key_dim, s.value_dim});
    recent = bench.zeros(DType::kF32, {c.batch, kRing, s.value_heads * s.recent_width()});
    committed = bench.zeros(DType::kI32, {c.batch, s.value_heads});
    lengths.resize(static_cast<std::size_t>(c.batch));
  }
  static DeltaRuleShape shape_of(const NetCase& c) {
    return {.batch = 1,
            .sequence = 1,
            .key_heads = c.key_heads,
            .value_heads = c.value_heads,
            .key_dim = c.key_dim,
            .value_dim = c.value_dim,
            .channel_gates = false,
            .normalise = true,
            .scale = 0.25F};
  }

  // Reads counts[b] tokens of each sequence b, followed by `unused` rows, and returns the output.
  Values read(const std::vector<std::int64_t>& counts, std::int64_t unused, bool fused, std::uint64_t seed) {
    Values starts{0}, ends;
    std::int64_t rows = 0;
    for (std::size_t b = 0; b < counts.size(); ++b) {
      rows += counts[b], lengths[b] += counts[b];
      starts.push_back(static_cast<double>(rows));
      ends.push_back(static_cast<double>(lengths[b]));
    }
    rows += unused;
    const auto batch = static_cast<std::int64_t>(counts.size());
    const PagedSequences sequences{.query_starts = bench.upload(starts, DType::kI32, {batch + 1}),
                                   .key_lengths = bench.upload(ends, DType::kI32, {batch}),
                                   .block_table = bench.zeros(DType::kI32, {batch, 1}),
                                   .page_size = 64,
                                   .single = fused};
    const std::int64_t columns = AroundDeltaRule::columns(s);
    const Tensor wide = bench.upload(random_values(rows * columns, seed), DType::kBF16, {rows, columns});
    DeltaRuleShape shape = s;
    shape.sequence = rows;
    const Tensor out = bench.empty(DType::kBF16, {rows, s.out_width()});
    CachedDeltaRule call{.sequences = sequences,
                         .shape = shape,
                         .spare = kSpare,
                         .qkv = {},
                         .g = {},
                         .beta = {},
                         .state = state,
                         .recent = recent,
                         .committed = committed,
                         .out = out,
                         .workspace = {}};
    if (fused) {
      call.around = {.wide = wide,
                     .kernel = kernel,
                     .ring = ring,
                     .a_log = a_log,
                     .dt_bias = dt_bias,
                     .norm = norm,
                     .eps = kEpsilon};
      EXPECT_TRUE(is_taken(bench.device(), call));
      bench.run(call);
    } else {
      run_operators(call, wide, out);
    }
    return bench.download(out);
  }
  void cut(std::int64_t count) {
    for (std::int64_t& length : lengths) length -= count;
  }
  std::vector<std::vector<unsigned char>> caches() {
    return {bench.bytes(ring), bench.bytes(state), bench.bytes(recent), bench.bytes(committed)};
  }

  OperatorBench& bench;
  DeltaRuleShape s;
  Tensor kernel, a_log, dt_bias, norm, ring, state, recent, committed;
  std::vector<std::int64_t> lengths;

 private:
  static constexpr float kEpsilon = 1e-6F;

  void run_operators(CachedDeltaRule call, const Tensor& wide, const Tensor& out) {
    const std::int64_t rows = wide.rows();
    const auto columns = [&](std::int64_t from, std::int64_t count) {
      const Tensor part = bench.empty(DType::kBF16, {rows, count});
      CopyColumns copy{.from = wide, .to = part, .runs = {}, .run_count = 1};
      copy.runs[0] = {.from = static_cast<std::int32_t>(from),
                      .to = 0,
                      .groups = 1,
                      .columns = static_cast<std::int32_t>(count)};
      bench.run(copy);
      return part;
    };
    const Tensor y = bench.empty(DType::kBF16, {rows, s.width()});
    bench.run(CachedCausalConv{.sequences = call.sequences,
                               .width = kernel.cols(),
                               .form = CausalConvShape::Form::kSilu,
                               .bcx = columns(0, s.width()),
                               .weight = kernel,
                               .bias = {},
                               .ring = ring,
                               .y = y});
    const Tensor g = bench.empty(DType::kF32, {rows, s.value_heads}),
                 beta = bench.empty(DType::kF32, g.shape);
    bench.run(DeltaGatesForward{.ba = columns(s.width() + s.out_width(), 2 * s.value_heads),
                                .a_log = a_log,
                                .dt_bias = dt_bias,
                                .g = g,
                                .beta = beta});
    call.qkv = y, call.g = g, call.beta = beta;
    call.out = bench.empty(DType::kBF16, out.shape);
    bench.run(call);
    bench.run(GatedNormForward{.activation = GateActivation::kSilu,
                               .x = call.out,
                               .gate = columns(s.width(), s.out_width()),
                               .weight = norm,
                               .y = out,
                               .rstd = bench.empty(DType::kF32, {rows, s.value_heads}),
                               .eps = kEpsilon});
  }
};

TEST(DeltaRule, OneTokenOfADeltaNetHasTheBitsOfItsOperatorsOnAGpu) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    if (spec.emulated_warp == 0 && spec.plugin.empty()) continue;
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const NetCase& c : {NetCase{1, 1, 2, 128, 128, 4}, {3, 2, 4, 24, 12, 3}}) {
      Net separate(bench, c), fused(bench, c);
      const auto batch = static_cast<std::size_t>(c.batch);
      std::uint64_t seed = 10;
      const auto read = [&](const std::vector<std::int64_t>& counts, std::int64_t unused, bool fuse) {
        // Values are equal, and not only close. Zeros of unused rows may have different signs.
        const Values expected = separate.read(counts, unused, false, ++seed);
        EXPECT_EQ(fused.read(counts, unused, fuse, seed), expected) << "seed " << seed;
        EXPECT_EQ(fused.caches(), separate.caches()) << "seed " << seed;
      };
      const std::vector<std::int64_t> one(batch, 1);
      for (int i = 0; i < 2; ++i) read(one, 0, true);  // the state is empty
      read(std::vector<std::int64_t>(batch, 9), 0, false);
      for (int i = 0; i < 12; ++i) read(one, i % 3, true);  // more tokens than the ring has
      separate.cut(3), fused.cut(3);
      for (int i = 0; i < 4; ++i) read(one, 0, true);
      if (batch < 2) continue;
      std::vector<std::int64_t> some = one;
      some[1] = 0;
      read(some, 2, true);
    }
  }
}

TEST(DeltaRule, DeltaNetsAreTakenWhereItPays) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    const auto taken = [&](std::int64_t key_dim, std::int64_t taps, bool single, DType dtype) {
      const DeltaRuleShape s = Net::shape_of({1, 1, 2, key_dim, 128, taps});
      return is_taken(
          bench.device(),
          CachedDeltaRule{.sequences = {.page_size = 64, .single = single},
                          .shape = s,
                          .spare = 3,
                          .qkv = {},
                          .g = {},
                          .beta = {},
                          .state = {},
                          .recent = {},
                          .committed = {},
                          .out = {},
                          .around = {.wide = Tensor(nullptr, dtype, {1, AroundDeltaRule::columns(s)}),
                                     .kernel = Tensor(nullptr, DType::kBF16, {s.width(), taps}),
                                     .norm = Tensor(nullptr, DType::kBF16, {128})},
                          .workspace = {}});
    };
    const bool gpu = spec.emulated_warp > 0 || !spec.plugin.empty();
    EXPECT_EQ(taken(128, 4, true, DType::kBF16), gpu);
    EXPECT_FALSE(taken(128, 4, false, DType::kBF16));  // a sequence may have several new tokens
    EXPECT_FALSE(taken(192, 4, true, DType::kBF16));
    EXPECT_FALSE(taken(128, 5, true, DType::kBF16));
    EXPECT_FALSE(taken(128, 4, true, DType::kF32));
  }
}

}  // namespace
}  // namespace primus::turbo::test
