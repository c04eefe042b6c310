#include "turbo/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Reference {
  Values loss, d_logits, entropies, collisions;
};

// `entropy_weights`: empty, or one weight per token.
Reference reference(const Values& logits, const Values& labels, const Values& weights, double cap = 0,
                    const Values& entropy_weights = {}) {
  const std::size_t tokens = labels.size(), vocab = logits.size() / tokens;
  Reference result{Values(tokens), Values(logits.size()), Values(tokens), Values(tokens)};
  Values capped = logits, slopes(logits.size(), 1);
  for (std::size_t i = 0; cap > 0 && i < logits.size(); ++i) {
    capped[i] = cap * std::tanh(logits[i] / cap);
    slopes[i] = 1 / std::pow(std::cosh(logits[i] / cap), 2);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    const double entropy_weight = entropy_weights.empty() ? 0 : entropy_weights[t];
    if (weights[t] == 0 && entropy_weight == 0) continue;
    const double* x = &capped[t * vocab];
    const double max = *std::max_element(x, x + vocab);
    const std::size_t label = weights[t] == 0 ? 0 : static_cast<std::size_t>(labels[t]);
    double sum = 0;
    for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - max);
    const auto log_p = [&](std::size_t i) { return x[i] - max - std::log(sum); };
    for (std::size_t i = 0; i < vocab; ++i) {
      if (x[i] == -INFINITY) continue;
      result.entropies[t] -= std::exp(log_p(i)) * log_p(i);
      result.collisions[t] += std::exp(2 * log_p(i));
    }
    result.loss[t] = weights[t] == 0 ? 0 : -weights[t] * log_p(label);
    result.loss[t] += entropy_weight * result.entropies[t];
    for (std::size_t i = 0; i < vocab; ++i) {
      const double p = std::exp(log_p(i));
      double slope = weights[t] * (p - (i == label ? 1 : 0));
      if (p > 0) slope -= entropy_weight * p * (log_p(i) + result.entropies[t]);
      result.d_logits[t * vocab + i] = slope * slopes[t * vocab + i];
    }
  }
  return result;
}

struct Problem {
  Problem(std::int64_t token_count, std::int64_t vocabulary, double scale = 3)
      : tokens(token_count), vocab(vocabulary) {
    logits = rounded(random_values(tokens * vocab, 1, scale), DType::kF32);
    weights = rounded(random_values(tokens, 2), DType::kF32);
    for (std::int64_t t = 0; t < tokens; ++t) labels.push_back(static_cast<double>(t * 7919 % vocab));
  }
  CrossEntropy upload(OperatorBench& bench, DType gradient) {
    const Tensor x = bench.upload(logits, DType::kF32, {tokens, vocab});
    return {.logits = x,
            .labels = bench.upload(labels, DType::kI32, {tokens}),
            .weights = bench.upload(weights, DType::kF32, {tokens}),
            .loss = bench.empty(DType::kF32, {tokens}),
            .d_logits = bench.empty(gradient, {tokens, vocab}),
            .cap = static_cast<float>(cap)};
  }
  Reference expected() const { return reference(logits, labels, weights, cap, entropy_weights); }
  std::int64_t tokens, vocab;
  double cap = 0;
  Values logits, labels, weights;
  Values entropy_weights;  // empty: the loss has no entropies
};

TEST(CrossEntropy, ReferenceGradientEqualsFiniteDifferences) {
  Problem p(3, 5);
  for (const double cap : {0.0, 4.0}) {
    p.cap = cap;
    const auto loss = [&](const Values& x) {
      const Values terms = reference(x, p.labels, p.weights, cap, p.entropy_weights).loss;
      return terms[0] + terms[1] + terms[2];
    };
    for (const Values& entropy_weights : {Values{}, Values{-0.3, 0, 0.7}}) {
      p.entropy_weights = entropy_weights;
      EXPECT_LE(normalised_error(p.expected().d_logits, numeric_gradient(loss, p.logits)), 1e-8);
    }
  }
}

TEST(CrossEntropy, MatchesReference) {
  std::map<std::string, OperatorBench> benches;
  for (const DeviceUnderTest& spec : devices_under_test()) benches.try_emplace(spec.name(), spec);
  // Vocabularies with one class, with fewer classes than a vector has lanes, with an odd number of classes,
  // with about 2048 classes, and with 12400 classes, of which a block keeps some in shared memory; and the
  // sizes of three real vocabularies. On GPUs with clusters, four or eight blocks share a row of these three.
  for (const std::int64_t vocab : {1, 5, 63, 1000, 2047, 2048, 2049, 12400, 50304, 100352, 201088}) {
    SCOPED_TRACE(vocab);
    Problem p(vocab > 10'000 ? 2 : 7, vocab);
    for (const double cap : {0.0, 8.0}) {
      SCOPED_TRACE(cap);
      p.cap = cap;
      const Reference expected = p.expected();
      // exp is accurate to 2 ulp, and sums of positive terms cannot cancel. Capped logits are at most 8, and
      // accurate to 6 ulp, which is 3e-6. The relative error of a probability is also 3e-6. Losses are around
      // 10.
      for (auto& [name, bench] : benches) {
        SCOPED_TRACE(name);
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const CrossEntropy call = p.upload(bench, dtype);
          bench.run(call);
          EXPECT_LE(normalised_error(bench.download(call.loss), expected.loss), cap > 0 ? 1e-6 : 5e-7);
          EXPECT_LE(normalised_error(bench.download(call.d_logits), expected.d_logits),
                    rounding_error(dtype) + (cap > 0 ? 4e-6 : 1e-6));
        }
      }
    }
  }
}

TEST(CrossEntropy, GradientMayReplaceLogitsOrBeAbsent) {
  OperatorBench bench;
  Problem p(5, 3001);
  for (const double cap : {0.0, 8.0}) {
    p.cap = cap;
    const Reference expected = p.expected();
    CrossEntropy call = p.upload(bench, DType::kF32);
    call.d_logits = Tensor();
    bench.run(call);
    EXPECT_LE(normalised_error(bench.download(call.loss), expected.loss), cap > 0 ? 1e-6 : 5e-7);
    EXPECT_EQ(normalised_error(bench.download(call.logits), p.logits), 0);

    call.d_logits = call.logits;
    bench.run(call);
    EXPECT_LE(normalised_error(bench.download(call.loss), expected.loss), cap > 0 ? 1e-6 : 5e-7);
    EXPECT_LE(normalised_error(bench.download(call.logits), expected.d_logits), cap > 0 ? 4e-6 : 1e-6);
  }
}

TEST(CrossEntropy, MaskedTokensGiveExactZerosForAnyLogitsAndLabels) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OperatorBench bench;
    Problem p(4, 100);
    p.weights = {1, 0, 0, 1};
    p.labels[1] = -100;  // the label of ignored tokens in data sets
    p.labels[2] = 1e9;
    for (std::size_t i = 0; i < 100; ++i) p.logits[100 + i] = i % 2 == 0 ? NAN : INFINITY;
    const CrossEntropy call = p.upload(bench, dtype);
    bench.run(call);
    const Values loss = bench.download(call.loss), gradient = bench.download(call.d_logits);
    EXPECT_NE(loss[0], 0);
    for (std::size_t t : {1U, 2U}) {
      EXPECT_EQ(loss[t], 0);
      for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(gradient[t * 100 + i], 0);
    }
  }
}

TEST(CrossEntropy, InfiniteAndHugeLogits) {
  OperatorBench bench;
  Problem p(4, 5000);
  p.weights = {1, 1, 1, 1};
  p.labels = {4999, 10, 20, 30};
  for (std::size_t i = 0; i < 3000; ++i) p.logits[i] = -INFINITY;  // all classes of a block are excluded
  p.logits[5000 + 10] = 1e30;                                      // probability 1 for the label
  p.logits[10000 + 21] = 1e30;                                     // probability 1 for another class
  p.logits[15000 + 77] = NAN;
  const CrossEntropy call = p.upload(bench, DType::kF32);
  bench.run(call);
  const Values loss = bench.download(call.loss), gradient = bench.download(call.d_logits);
  const Values first_row(p.logits.begin(), p.logits.begin() + 5000);
  const Reference expected = reference(first_row, {4999}, {1});
  EXPECT_NEAR(loss[0], expected.loss[0], 1e-5);
  EXPECT_EQ(gradient[0], 0);
  EXPECT_EQ(loss[1], 0);
  EXPECT_EQ(gradient[5000 + 10], 0);
  EXPECT_NEAR(loss[2] / 1e30, 1, 1e-6);
  EXPECT_EQ(gradient[10000 + 20], -1);
  EXPECT_EQ(gradient[10000 + 21], 1);
  EXPECT_TRUE(std::isnan(loss[3]));
}

// On GPUs with clusters, eight blocks share these rows: all logits of four blocks are -inf, and the other
// ones are far below 0.
TEST(CrossEntropy, HalfOfALongRowMayBeExcluded) {
  OperatorBench bench;
  constexpr std::int64_t kVocab = 201088;
  Problem p(1, kVocab);
  p.weights = {1};
  p.labels = {kVocab - 1};
  for (std::size_t i = 0; i < kVocab; ++i) p.logits[i] = i < 120'000 ? -INFINITY : p.logits[i] - 200;
  p.logits = rounded(p.logits, DType::kF32);
  const CrossEntropy call = p.upload(bench, DType::kF32);
  bench.run(call);
  const Reference expected = p.expected();
  EXPECT_LE(normalised_error(bench.download(call.loss), expected.loss), 1e-6);
  EXPECT_LE(normalised_error(bench.download(call.d_logits), expected.d_logits), 2e-6);
}

TEST(CrossEntropy, CappedLogitsMayHaveAnySize) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    Problem p(3, 100);
    p.cap = 8;
    p.weights = {1, 1, 0};
    p.logits[0] = INFINITY;  // the cap maps infinity to 8, and -infinity to -8
    p.logits[1] = -INFINITY;
    p.logits[100] = NAN;
    p.logits[200] = NAN;
    const CrossEntropy call = p.upload(bench, DType::kF32);
    bench.run(call);
    const Values loss = bench.download(call.loss), gradient = bench.download(call.d_logits);
    const Reference expected = reference(Values(p.logits.begin(), p.logits.begin() + 100), {0}, {1}, 8);
    EXPECT_NEAR(loss[0], expected.loss[0], 1e-6 * 8);
    EXPECT_EQ(gradient[0], 0);  // because the derivative of the cap is 0 at this logit
    EXPECT_EQ(gradient[1], 0);
    EXPECT_TRUE(std::isnan(loss[1]));
    EXPECT_EQ(loss[2], 0);
    EXPECT_EQ(gradient[200], 0);
  }
}

TEST(CrossEntropy, ManyThreadsGiveTheSameBits) {
  std::vector<unsigned char> expected;
  for (const int threads : {1, 2, 3}) {
    OperatorBench bench({.threads = threads});
    Problem p(33, 2111);
    p.cap = 8;
    const CrossEntropy call = p.upload(bench, DType::kF32);
    bench.run(call);
    std::vector<unsigned char> actual = bench.bytes(call.loss);
    const auto gradient = bench.bytes(call.d_logits);
    actual.insert(actual.end(), gradient.begin(), gradient.end());
    if (threads == 1) expected = actual;
    EXPECT_EQ(actual, expected) << threads << " threads";
  }
}

// Divides the columns of logits into parts, as tensor parallelism does. Computes first the statistics of each
// part. Then computes the loss and the gradients from the statistics of all parts.
struct Parts {
  Parts(OperatorBench& bench, const Problem& p, const std::vector<std::int64_t>& cuts, DType gradient)
      : parts(bench.empty(DType::kF32, {static_cast<std::int64_t>(cuts.size()) - 1, p.tokens,
                                        p.entropy_weights.empty() ? kCrossEntropyValues : kEntropyValues})) {
    const Tensor labels = bench.upload(p.labels, DType::kI32, {p.tokens});
    const Tensor weights = bench.upload(p.weights, DType::kF32, {p.tokens});
    d_logits.resize(p.logits.size());
    std::vector<CrossEntropyOfParts> calls;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const std::int64_t first = cuts[i], columns = cuts[i + 1] - first;
      Values own;
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        const auto row = p.logits.begin() + t * p.vocab + first;
        own.insert(own.end(), row, row + columns);
      }
      const auto index = static_cast<std::int64_t>(i);
      const Tensor logits = bench.upload(own, DType::kF32, {p.tokens, columns});
      bench.run(CrossEntropyPart{.logits = logits,
                                 .labels = labels,
                                 .part = parts.slice(index, index + 1).reshaped({p.tokens, parts.shape[2]}),
                                 .first = first,
                                 .cap = static_cast<float>(p.cap)});
      calls.push_back({.parts = parts,
                       .logits = logits,
                       .labels = labels,
                       .weights = weights,
                       .loss = bench.empty(DType::kF32, {p.tokens}),
                       .d_logits = gradient == DType::kF32 && i % 2 == 1
                                       ? logits  // the gradient overwrites the logits
                                       : bench.empty(gradient, {p.tokens, columns}),
                       .first = first,
                       .vocabulary = p.vocab,
                       .cap = static_cast<float>(p.cap)});
      if (p.entropy_weights.empty()) continue;
      calls.back().entropy_weights = bench.upload(p.entropy_weights, DType::kF32, {p.tokens});
      calls.back().entropies = bench.empty(DType::kF32, {p.tokens});
      calls.back().collisions = bench.empty(DType::kF32, {p.tokens});
    }
    for (const CrossEntropyOfParts& call : calls) {
      bench.run(call);
      if (!p.entropy_weights.empty()) {
        entropies.push_back(bench.download(call.entropies));
        collisions.push_back(bench.download(call.collisions));
      }
      losses.push_back(bench.download(call.loss));
      const Values gradients = bench.download(call.d_logits);
      const std::int64_t columns = call.logits.cols();
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        std::copy_n(gradients.begin() + t * columns, columns, d_logits.begin() + t * p.vocab + call.first);
      }
    }
  }
  Tensor parts;
  std::vector<Values> losses;                 // the losses that each part computes
  Values d_logits;                            // gradients of all columns
  std::vector<Values> entropies, collisions;  // if the loss has entropies, for each part
};

TEST(CrossEntropy, PartsOfTheColumnsEqualTheWhole) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 1}, {0, 1, 2, 5}, {0, 500, 1000}, {0, 64, 128, 192, 2049}}) {
      Problem p(7, cuts.back());
      SCOPED_TRACE(p.vocab);
      p.weights[3] = 0;
      p.labels[3] = -100;
      for (const double cap : {0.0, 8.0}) {
        p.cap = cap;
        const Reference expected = p.expected();
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const Parts actual(bench, p, cuts, dtype);
          for (const Values& loss : actual.losses) {
            EXPECT_LE(normalised_error(loss, expected.loss), cap > 0 ? 1e-6 : 5e-7);
            EXPECT_EQ(loss, actual.losses.front()) << "ranks must have equal bits";
          }
          EXPECT_LE(normalised_error(actual.d_logits, expected.d_logits),
                    rounding_error(dtype) + (cap > 0 ? 4e-6 : 1e-6));
        }
      }
    }
  }
}

// Entropies are around 5, and sums of positive terms cannot cancel. The gradient of the entropy is a
// difference of numbers near 10, multiplied by a probability.
TEST(CrossEntropy, EntropiesAndTheirGradientsEqualTheReference) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 1}, {0, 5}, {0, 2049}, {0, 1, 2, 5}, {0, 500, 1000}, {0, 64, 2049}}) {
      Problem p(7, cuts.back());
      SCOPED_TRACE(p.vocab);
      p.entropy_weights = rounded(random_values(p.tokens, 4), DType::kF32);
      p.weights[2] = p.weights[3] = 0;
      p.labels[2] = p.labels[3] = -100;  // token 2 has only an entropy, and token 3 is masked
      p.entropy_weights[3] = p.entropy_weights[4] = 0;
      for (const double cap : {0.0, 8.0}) {
        p.cap = cap;
        const Reference expected = p.expected();
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const Parts actual(bench, p, cuts, dtype);
          for (std::size_t part = 0; part < actual.losses.size(); ++part) {
            EXPECT_LE(normalised_error(actual.losses[part], expected.loss), cap > 0 ? 2e-6 : 1e-6);
            EXPECT_LE(normalised_error(actual.entropies[part], expected.entropies), cap > 0 ? 4e-6 : 1e-6);
            EXPECT_LE(normalised_error(actual.collisions[part], expected.collisions), cap > 0 ? 8e-6 : 2e-6);
            EXPECT_EQ(actual.losses[part], actual.losses.front()) << "ranks must have equal bits";
            EXPECT_EQ(actual.entropies[part], actual.entropies.front());
          }
          EXPECT_LE(normalised_error(actual.d_logits, expected.d_logits),
                    rounding_error(dtype) + (cap > 0 ? 8e-6 : 2e-6));
        }
      }
    }
  }
}

TEST(CrossEntropy, EntropiesOfExcludedClassesAndOfCertainTokensAreFinite) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    Problem p(3, 300);
    p.weights = {1, 1, 1};
    p.entropy_weights = {1, 1, 1};
    p.labels = {299, 10, 20};
    for (std::size_t i = 0; i < 150; ++i) p.logits[i] = -INFINITY;  // all classes of a part, and more
    p.logits[300 + 10] = 1e30;                                      // probability 1 for the label
    p.logits[600 + 250] = NAN;
    const Reference expected = reference(Values(p.logits.begin(), p.logits.begin() + 300), {299}, {1});
    for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{0, 300}, {0, 100, 200, 300}}) {
      const Parts actual(bench, p, cuts, DType::kF32);
      EXPECT_NEAR(actual.entropies[0][0], expected.entropies[0], 1e-5);
      EXPECT_NEAR(actual.collisions[0][0], expected.collisions[0], 1e-6);
      EXPECT_EQ(actual.d_logits[0], 0);
      EXPECT_EQ(actual.entropies[0][1], 0);
      EXPECT_EQ(actual.collisions[0][1], 1);
      for (std::size_t i = 300; i < 600; ++i) EXPECT_EQ(actual.d_logits[i], 0);
      EXPECT_TRUE(std::isnan(actual.entropies[0][2]));
    }
  }
}

TEST(CrossEntropy, PartsWithInfiniteLogitsAndNaN) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    Problem p(4, 300);
    p.weights = {1, 1, 1, 1};
    p.labels = {299, 10, 20, 130};
    for (std::size_t i = 0; i < 100; ++i) p.logits[i] = -INFINITY;  // all classes of a part are excluded
    p.logits[300 + 10] = 1e30;                                      // probability 1 for the label
    p.logits[600 + 250] = NAN;                                      // not in the part that has the label
    p.logits[900 + 130] = NAN;                                      // the logit of the label
    const Parts actual(bench, p, {0, 100, 200, 300}, DType::kF32);
    const Reference expected = reference(Values(p.logits.begin(), p.logits.begin() + 300), {299}, {1});
    for (const Values& loss : actual.losses) {
      EXPECT_NEAR(loss[0], expected.loss[0], 1e-5);
      EXPECT_EQ(loss[1], 0);
      EXPECT_TRUE(std::isnan(loss[2]));
      EXPECT_TRUE(std::isnan(loss[3]));
    }
    EXPECT_EQ(actual.d_logits[0], 0);
    EXPECT_EQ(actual.d_logits[300 + 10], 0);
  }
}

}  // namespace
}  // namespace primus::turbo::test
