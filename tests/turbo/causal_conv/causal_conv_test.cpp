#include "turbo/causal_conv/causal_conv.h"

#include <cmath>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

using Form = CausalConvShape::Form;

// Segments of tokens, with or without packed documents.
struct Case {
  std::int64_t segments, tokens, channels, width;
  bool bias = false, documents = false;
  DType dtype = DType::kF32;
  Form form = Form::kGated;

  CausalConvShape shape() const { return {segments, tokens, channels, width, 0, 0, form}; }
  bool silu() const { return form == Form::kSilu; }
  std::int64_t columns() const { return shape().columns(); }
  std::int64_t rows() const { return segments * tokens; }
  // Returns the first key of a position. The first document of a sequence has 2 tokens, all others have 5.
  std::int64_t first_key(std::int64_t position) const {
    return documents && position >= 2 ? (position - 2) / 5 * 5 + 2 : 0;
  }
  Values first_keys() const {
    Values keys;
    for (std::int64_t row = 0; row < rows(); ++row)
      keys.push_back(static_cast<double>(first_key(row % tokens)));
    return keys;
  }
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.segments << " x " << c.tokens << " tokens, " << c.channels << " channels, width " << c.width
             << (c.bias ? ", bias" : "") << (c.documents ? ", documents" : "")
             << (c.silu() ? ", silu, " : ", ") << name_of(c.dtype);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Form form : {Form::kGated, Form::kSilu}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool documents : {false, true}) {
        all.push_back({1, 1, 1, 1, false, documents, dtype, form});
        all.push_back({2, 19, 24, 3, false, documents, dtype, form});
        all.push_back({2, 33, 40, 4, true, documents, dtype, form});
        all.push_back({3, 2, 7, 16, true, documents, dtype, form});
        all.push_back({1, 45, 264, 16, false, documents, dtype, form});
      }
    }
  }
  return all;
}

struct Operands {
  Values bcx, weight, bias, d_y;

  explicit Operands(const Case& c)
      : bcx(rounded(random_values(c.rows() * c.columns(), 1), c.dtype)),
        weight(rounded(random_values(c.channels * c.width, 2, 0.5), c.dtype)),
        bias(rounded(random_values(c.channels, 3), DType::kF32)),
        d_y(rounded(random_values(c.rows() * c.channels, 4), c.dtype)) {
    if (!c.bias) bias.assign(bias.size(), 0.0);
  }
};

// Computes rows of the reference: sums of the convolution, and gradients of these sums.
struct Reference {
  const Case& c;
  const Operands& o;

  std::size_t at(std::int64_t row, std::int64_t part, std::int64_t channel) const {
    return static_cast<std::size_t>(row * c.columns() + part * c.channels + channel);
  }
  double input(std::int64_t row, std::int64_t channel) const {
    return c.silu() ? o.bcx[at(row, 0, channel)] : o.bcx[at(row, 0, channel)] * o.bcx[at(row, 2, channel)];
  }
  // Calls use(distance, index of the weight) for all tokens that the token of `row` sees.
  template <class Use>
  void each(std::int64_t row, std::int64_t channel, Use use) const {
    const std::int64_t position = row % c.tokens;
    for (std::int64_t d = 0; d < c.width && position - d >= c.first_key(position); ++d)
      use(d, static_cast<std::size_t>(channel * c.width + c.width - 1 - d));
  }
  double sum(std::int64_t row, std::int64_t channel) const {
    double sum = o.bias[static_cast<std::size_t>(channel)];
    each(row, channel, [&](std::int64_t d, std::size_t w) { sum += o.weight[w] * input(row - d, channel); });
    return sum;
  }
  // Returns dy / dsum.
  double slope(std::int64_t row, std::int64_t channel) const {
    if (!c.silu()) return o.bcx[at(row, 1, channel)];
    const double x = sum(row, channel), gate = 1 / (1 + std::exp(-x));
    return gate * (1 + x * (1 - gate));
  }
  double gradient(std::int64_t row, std::int64_t channel) const {
    return o.d_y[static_cast<std::size_t>(row * c.channels + channel)] * slope(row, channel);
  }
};

// Calls use(row, channel) for all elements, in order.
template <class Use>
void for_each_element(const Case& c, Use use) {
  for (std::int64_t row = 0; row < c.rows(); ++row) {
    for (std::int64_t channel = 0; channel < c.channels; ++channel) use(row, channel);
  }
}

Values forward(const Case& c, const Operands& o) {
  const Reference r{c, o};
  Values y;
  for_each_element(c, [&](std::int64_t row, std::int64_t channel) {
    const double sum = r.sum(row, channel);
    y.push_back(c.silu() ? sum / (1 + std::exp(-sum)) : r.slope(row, channel) * sum);
  });
  return y;
}

// Computes the gradient of dot(y, d_y) with respect to one operand by finite differences. The gated form is
// linear in each operand, so differences are exact for steps of any size.
Values gradient(const Case& c, const Operands& o, Values Operands::*by) {
  const double by_much = c.silu() ? 1e-5 : 0.5;
  Values result((o.*by).size());
  Operands changed = o;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double value = (o.*by)[i];
    (changed.*by)[i] = value + by_much;
    const double above = dot(forward(c, changed), o.d_y);
    (changed.*by)[i] = value - by_much;
    result[i] = (above - dot(forward(c, changed), o.d_y)) / (2 * by_much);
    (changed.*by)[i] = value;
  }
  return result;
}

// Computes the gradient with respect to bcx in closed form, for larger cases.
Values gradient_of_bcx(const Case& c, const Operands& o) {
  const Reference r{c, o};
  Values result(o.bcx.size());
  for_each_element(c, [&](std::int64_t row, std::int64_t channel) {
    const double e = r.gradient(row, channel);
    r.each(row, channel, [&](std::int64_t d, std::size_t w) {
      const std::size_t b = r.at(row - d, 0, channel);
      if (c.silu()) {
        result[b] += e * o.weight[w];
        return;
      }
      const std::size_t x = r.at(row - d, 2, channel);
      result[b] += e * o.weight[w] * o.bcx[x];
      result[x] += e * o.weight[w] * o.bcx[b];
    });
    if (!c.silu())
      result[r.at(row, 1, channel)] +=
          o.d_y[static_cast<std::size_t>(row * c.channels + channel)] * r.sum(row, channel);
  });
  return result;
}

Values gradient_of_weight(const Case& c, const Operands& o, bool of_bias) {
  const Reference r{c, o};
  Values result(of_bias ? o.bias.size() : o.weight.size());
  for_each_element(c, [&](std::int64_t row, std::int64_t channel) {
    const double e = r.gradient(row, channel);
    if (of_bias) {
      result[static_cast<std::size_t>(channel)] += e;
      return;
    }
    r.each(row, channel, [&](std::int64_t d, std::size_t w) { result[w] += e * r.input(row - d, channel); });
  });
  return result;
}

TEST(CausalConvReference, GradientsAgreeWithDifferences) {
  for (const Form form : {Form::kGated, Form::kSilu}) {
    for (const bool documents : {false, true}) {
      const Case c{2, 9, 3, 4, true, documents, DType::kF32, form};
      const Operands o(c);
      const double tolerance = c.silu() ? 1e-8 : 1e-12;
      const auto expect = [&](const Values& actual, Values Operands::*by) {
        EXPECT_LE(normalised_error(actual, gradient(c, o, by)), tolerance) << c;
      };
      expect(gradient_of_bcx(c, o), &Operands::bcx);
      expect(gradient_of_weight(c, o, false), &Operands::weight);
      expect(gradient_of_weight(c, o, true), &Operands::bias);
    }
  }
}

class CausalConvTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, CausalConvTest, ::testing::ValuesIn(devices_under_test()));

// The operands of a case on a device.
struct OnDevice {
  OnDevice(OperatorBench& bench, const Case& c, const Operands& o)
      : bcx(bench.upload(o.bcx, c.dtype, {c.rows(), c.columns()})),
        weight(bench.upload(o.weight, c.dtype, {c.channels, c.width})),
        d_y(bench.upload(o.d_y, c.dtype, {c.rows(), c.channels})) {
    if (c.bias) bias = bench.upload(o.bias, DType::kF32, {c.channels});
    if (c.documents) first_key = bench.upload(c.first_keys(), DType::kI32, {c.rows()});
  }
  // These functions return calls for segments of this shape. Tensors for the edges before and after the
  // segments may be absent.
  CausalConvForward forward(const CausalConvShape& shape, const Tensor& y, const Tensor& before = {}) const {
    auto call = over<CausalConvForward>(shape, before);
    call.y = y;
    return call;
  }
  CausalConvBackwardInput backward(const CausalConvShape& shape, const Tensor& d_bcx,
                                   const Tensor& before = {}, const Tensor& after = {}) const {
    auto call = over<CausalConvBackwardInput>(shape, before);
    call.d_y = d_y, call.d_after = after, call.d_bcx = d_bcx;
    return call;
  }
  CausalConvBackwardWeight of_weight(const CausalConvShape& shape, const Tensor& d_weight,
                                     bool accumulate = false, const Tensor& before = {}) const {
    return {.shape = shape,
            .bcx = bcx,
            .before = before,
            .first_key = first_key,
            .weight = of_sums(shape, weight),
            .bias = of_sums(shape, bias),
            .d_y = d_y,
            .of_bias = d_weight.shape.rank() == 1,
            .d_weight = d_weight,
            .accumulate = accumulate,
            .workspace = {}};
  }

  CausalConvBackwardEdge of_edge(const CausalConvShape& shape, const Tensor& d_edge,
                                 const Tensor& before) const {
    return {.shape = shape,
            .bcx = bcx,
            .weight = weight,
            .first_key = first_key,
            .bias = of_sums(shape, bias),
            .before = of_sums(shape, before),
            .d_y = d_y,
            .d_edge = d_edge};
  }
  // Returns `tensor` if an activation follows the sum. Without an activation, gradients do not need the
  // tensor.
  static Tensor of_sums(const CausalConvShape& shape, const Tensor& tensor) {
    return shape.form == Form::kSilu ? tensor : Tensor();
  }

  Tensor bcx, weight, d_y, bias, first_key;

 private:
  // Sets the inputs that CausalConvForward and CausalConvBackwardInput share.
  template <class Call>
  Call over(const CausalConvShape& shape, const Tensor& before) const {
    Call call{};
    call.shape = shape;
    call.bcx = bcx, call.weight = weight, call.bias = bias;
    call.before = before, call.first_key = first_key;
    return call;
  }
};

// Returns the error of fp32 sums of at most 16 products and of rounding the result.
double tolerance(DType dtype) { return rounding_error(dtype) + 2e-6; }

TEST_P(CausalConvTest, ForwardAndBackwardInput) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    const Operands o(c);
    const OnDevice on(bench, c, o);
    const Tensor y = bench.empty(c.dtype, {c.rows(), c.channels});
    bench.run(on.forward(c.shape(), y));
    EXPECT_LE(normalised_error(bench.download(y), forward(c, o)), tolerance(c.dtype)) << c;
    const Tensor d_bcx = bench.empty(c.dtype, {c.rows(), c.columns()});
    bench.run(on.backward(c.shape(), d_bcx));
    EXPECT_LE(normalised_error(bench.download(d_bcx), gradient_of_bcx(c, o)), tolerance(c.dtype)) << c;
  }
}

TEST_P(CausalConvTest, BackwardWeightAssignsAndAccumulates) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    const Operands o(c);
    const OnDevice on(bench, c, o);
    for (const bool of_bias : {false, true}) {
      const Shape shape = of_bias ? Shape{c.channels} : Shape{c.channels, c.width};
      Values expected = gradient_of_weight(c, o, of_bias);
      for (const DType type : {DType::kF32, DType::kBF16}) {
        const Tensor d_weight = bench.empty(type, shape);
        const auto run = [&](bool accumulate) { bench.run(on.of_weight(c.shape(), d_weight, accumulate)); };
        run(false);
        EXPECT_LE(normalised_error(bench.download(d_weight), expected), tolerance(type)) << c;
        run(true);
        Values twice = expected;
        for (double& value : twice) value *= 2;
        EXPECT_LE(normalised_error(bench.download(d_weight), twice), 2 * tolerance(type)) << c;
      }
    }
  }
}

// The kernel skips tokens of other documents or sequences (it does not multiply them by zero). NaN in these
// tokens therefore has no effect.
TEST_P(CausalConvTest, NanThatATokenDoesNotSeeHasNoEffect) {
  OperatorBench bench(GetParam());
  for (const Form form : {Form::kGated, Form::kSilu}) {
    const Case c{2, 7, 8, 3, false, true, DType::kF32, form};
    Operands o(c);
    const Values clean = forward(c, o);
    // Positions 0 and 1 are the first document of the first sequence.
    for (std::int64_t i = 0; i < 2 * c.columns(); ++i) o.bcx[static_cast<std::size_t>(i)] = NAN;
    const OnDevice on(bench, c, o);
    const Tensor y = bench.empty(c.dtype, {c.rows(), c.channels});
    bench.run(on.forward(c.shape(), y));
    const Values actual = bench.download(y);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      if (i < static_cast<std::size_t>(2 * c.channels)) {
        EXPECT_TRUE(std::isnan(actual[i])) << i;
      } else {
        EXPECT_NEAR(actual[i], clean[i], 1e-5) << i;
      }
    }
  }
}

// If segments of sequences get the edges of adjacent segments, the segments have the results of the complete
// sequences. Context parallelism relies on this property: each rank has two segments of every sequence.
TEST_P(CausalConvTest, PiecesWithTheirEdgesEqualTheWhole) {
  OperatorBench bench(GetParam());
  for (const Form form : {Form::kGated, Form::kSilu}) {
    for (const bool documents : {false, true}) {
      for (const std::int64_t width : {1, 3, 5}) {
        const std::int64_t half = 6, sequences = 2;
        const Case whole{sequences, 2 * half, 24, width, true, documents, DType::kF32, form};
        const Operands o(whole);
        const OnDevice on(bench, whole, o);
        const CausalConvShape halves{2 * sequences, half, whole.channels, width, 0, half, form};
        const Tensor edge = bench.empty(DType::kF32, halves.edge()),
                     d_edge = bench.empty(DType::kF32, halves.edge());
        bench.run(CausalConvEdge{.shape = halves, .bcx = on.bcx, .edge = edge});
        // The edge before a segment comes from the preceding segment. The gradient of this edge is sent to
        // the preceding segment.
        const auto moved = [&](const Tensor& tensor, std::int64_t by) {
          const Values all = bench.download(tensor);
          Values result(all.size());
          const std::int64_t n = (width - 1) * whole.channels;
          for (std::int64_t piece = 0; piece < halves.segments; ++piece) {
            const std::int64_t from = piece + by;
            for (std::int64_t i = 0; i < n && from >= 0 && from / 2 == piece / 2; ++i)
              result[static_cast<std::size_t>(piece * n + i)] = all[static_cast<std::size_t>(from * n + i)];
          }
          return bench.upload(result, DType::kF32, halves.edge());
        };
        const Tensor before = moved(edge, -1);
        bench.run(on.of_edge(halves, d_edge, before));
        const Tensor after = moved(d_edge, 1);
        const Tensor y = bench.empty(whole.dtype, {whole.rows(), whole.channels});
        bench.run(on.forward(halves, y, before));
        EXPECT_LE(normalised_error(bench.download(y), forward(whole, o)), 2e-6) << whole;
        const Tensor d_bcx = bench.empty(whole.dtype, {whole.rows(), whole.columns()});
        bench.run(on.backward(halves, d_bcx, before, after));
        EXPECT_LE(normalised_error(bench.download(d_bcx), gradient_of_bcx(whole, o)), 2e-6) << whole;
        const Tensor d_weight = bench.empty(DType::kF32, {whole.channels, width});
        bench.run(on.of_weight(halves, d_weight, false, before));
        EXPECT_LE(normalised_error(bench.download(d_weight), gradient_of_weight(whole, o, false)), 2e-6)
            << whole;
      }
    }
  }
}

// Three sequences that are read in several passes. A pass adds a different number of tokens to each sequence.
struct Reading {
  static constexpr std::int64_t kSequences = 3, kTokens = 20, kRing = 8;

  Reading(OperatorBench& on, const Case& which, const Operands& operands)
      : bench(on),
        c(which),
        o(operands),
        weight(on.upload(o.weight, c.dtype, {c.channels, c.width})),
        // The ring is not initialised, because its initial contents must not affect results.
        ring(on.empty(DType::kF32, {kSequences, std::max(kRing, 2 * c.width), c.channels})),
        lengths(kSequences, 0) {
    if (c.bias) bias = on.upload(o.bias, DType::kF32, {c.channels});
  }

  // Reads counts[b] more tokens of each sequence b into `y`, followed by `unused` rows that belong to no
  // sequence.
  void read(const std::vector<std::int64_t>& counts, std::int64_t unused, Values& y) {
    Values rows, starts{0}, ends;
    const std::int64_t wide = c.columns();
    for (std::int64_t b = 0; b < kSequences; ++b) {
      const auto begin = o.bcx.begin() + (b * kTokens + lengths[static_cast<std::size_t>(b)]) * wide;
      rows.insert(rows.end(), begin, begin + counts[static_cast<std::size_t>(b)] * wide);
      lengths[static_cast<std::size_t>(b)] += counts[static_cast<std::size_t>(b)];
      starts.push_back(static_cast<double>(rows.size()) / static_cast<double>(wide));
      ends.push_back(static_cast<double>(lengths[static_cast<std::size_t>(b)]));
    }
    const auto total = static_cast<std::int64_t>(starts.back()) + unused;
    rows.resize(static_cast<std::size_t>(total * wide), NAN);
    const Tensor out = bench.empty(c.dtype, {total, c.channels});
    bench.run(
        CachedCausalConv{.sequences = {.query_starts = bench.upload(starts, DType::kI32, {kSequences + 1}),
                                       .key_lengths = bench.upload(ends, DType::kI32, {kSequences}),
                                       .block_table = bench.zeros(DType::kI32, {kSequences, 1}),
                                       .page_size = 64},
                         .width = c.width,
                         .form = c.form,
                         .bcx = bench.upload(rows, c.dtype, {total, wide}),
                         .weight = weight,
                         .bias = bias,
                         .ring = ring,
                         .y = out});
    const Values all = bench.download(out);
    std::size_t row = 0;
    for (std::int64_t b = 0; b < kSequences; ++b) {
      const std::int64_t count = counts[static_cast<std::size_t>(b)] * c.channels;
      const std::int64_t first = (b * kTokens + lengths[static_cast<std::size_t>(b)]) * c.channels - count;
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(row), count, y.begin() + first);
      row += static_cast<std::size_t>(count);
    }
    for (; row < all.size(); ++row) ASSERT_EQ(all[row], 0.0);
  }

  OperatorBench& bench;
  const Case& c;
  const Operands& o;
  Tensor weight, bias, ring;
  std::vector<std::int64_t> lengths;
};

TEST_P(CausalConvTest, ReadingInPassesEqualsReadingAtOnce) {
  OperatorBench bench(GetParam());
  for (const auto& [dtype, form] : {std::pair{DType::kF32, Form::kGated},
                                    {DType::kBF16, Form::kGated},
                                    {DType::kF32, Form::kSilu},
                                    {DType::kBF16, Form::kSilu}}) {
    for (const auto& [width, channels] : {std::pair{1, 8}, {3, 24}, {4, 7}, {16, 32}}) {
      const Case c{Reading::kSequences, Reading::kTokens, channels, width, width == 4, false, dtype, form};
      const Operands o(c);
      const Values expected = forward(c, o);
      Values y(expected.size(), NAN);
      Reading reading(bench, c, o);
      reading.read({3, 0, 1}, 2, y);    // prompts
      reading.read({1, 1, 1}, 0, y);    // one token per sequence
      reading.read({0, 2, 1}, 0, y);    // few rows, with different numbers of tokens per sequence
      reading.read({1, 0, 0}, 1, y);    // few rows, of which one is unused
      reading.read({14, 17, 9}, 3, y);  // more tokens than the ring can hold
      reading.read({1, 0, 8}, 0, y);
      EXPECT_LE(normalised_error(y, expected), tolerance(dtype)) << c;
      // Reads the last token again, then reads the last five tokens again.
      Values again(expected.size(), NAN);
      for (std::int64_t& length : reading.lengths) length -= 1;
      reading.read({1, 1, 1}, 0, again);
      for (std::int64_t& length : reading.lengths) length -= 5;
      reading.read({2, 3, 1}, 0, again);
      reading.read({3, 2, 4}, 0, again);
      for (std::size_t i = 0; i < again.size(); ++i) {
        if (std::isnan(again[i])) continue;
        EXPECT_NEAR(again[i], y[i], 1e-6) << c << " at " << i;
      }
      // The results of a sequence that restarts do not depend on the contents of its ring.
      reading.lengths[1] = 0;
      reading.read({0, 2, 0}, 0, again);
      EXPECT_NEAR(again[static_cast<std::size_t>(Reading::kTokens * channels)],
                  y[static_cast<std::size_t>(Reading::kTokens * channels)], 1e-6);
    }
  }
}

TEST(CausalConv, NoThreadCountChangesABit) {
  for (const Form form : {Form::kGated, Form::kSilu}) {
    const Case c{3, 211, 130, 3, true, true, DType::kBF16, form};
    const Operands o(c);
    std::vector<std::vector<unsigned char>> first;
    for (const int threads : {1, 2, 5}) {
      OperatorBench bench({.threads = threads});
      const OnDevice on(bench, c, o);
      const Tensor y = bench.empty(c.dtype, {c.rows(), c.channels}),
                   d_bcx = bench.empty(c.dtype, {c.rows(), c.columns()}),
                   d_weight = bench.empty(DType::kF32, {c.channels, c.width});
      bench.run(on.forward(c.shape(), y));
      bench.run(on.backward(c.shape(), d_bcx));
      bench.run(on.of_weight(c.shape(), d_weight));
      std::vector<std::vector<unsigned char>> bits = {bench.bytes(y), bench.bytes(d_bcx),
                                                      bench.bytes(d_weight)};
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
