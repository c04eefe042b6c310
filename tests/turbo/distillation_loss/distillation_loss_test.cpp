#include "turbo/distillation_loss/distillation_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

// Returns ln softmax(logits / temperature) of one row.
Values log_softmax(const Values& logits, double temperature) {
  Values result = logits;
  for (double& x : result) x /= temperature;
  const double largest = *std::ranges::max_element(result);
  double sum = 0;
  for (const double x : result) sum += std::exp(x - largest);
  for (double& x : result) x -= largest + std::log(sum);
  return result;
}

// KL(p || q), from logarithms.
double divergence(const Values& log_p, const Values& log_q) {
  double sum = 0;
  for (std::size_t i = 0; i < log_p.size(); ++i) {
    if (log_p[i] > -INFINITY) sum += std::exp(log_p[i]) * (log_p[i] - log_q[i]);
  }
  return sum;
}

struct Problem {
  Problem(std::int64_t token_count, std::int64_t vocabulary, const DistillationForm& with)
      : tokens(token_count), vocab(vocabulary), form(with) {
    student = rounded(random_values(tokens * vocab, 1, 3), DType::kF32);
    teacher = rounded(random_values(tokens * vocab, 2, 3), DType::kF32);
    weights = rounded(random_values(tokens, 3), DType::kF32);
    for (std::int64_t t = 0; t < tokens; ++t) labels.push_back(static_cast<double>(t * 7919 % vocab));
  }

  static Values capped(Values row, double cap) {
    for (double& x : row) x = cap > 0 ? cap * std::tanh(x / cap) : x;
    return row;
  }
  Values row_of(const Values& all, std::int64_t token) const {
    return {all.begin() + token * vocab, all.begin() + (token + 1) * vocab};
  }
  // The loss of a token with these logits of the student.
  double loss_of(std::int64_t token, const Values& student_row) const {
    const auto at = static_cast<std::size_t>(token);
    if (weights[at] == 0) return 0;
    const double beta = static_cast<double>(form.beta), share = static_cast<double>(form.label_share),
                 temperature = static_cast<double>(form.temperature);
    const Values x = capped(student_row, static_cast<double>(form.cap));
    const Values q = log_softmax(x, temperature);
    const Values p =
        log_softmax(capped(row_of(teacher, token), static_cast<double>(form.teacher_cap)), temperature);
    double loss = 0;
    if (beta == 0) {
      loss = divergence(p, q);
    } else if (beta == 1) {
      loss = divergence(q, p);
    } else {
      Values m(q.size());
      for (std::size_t i = 0; i < q.size(); ++i)
        m[i] = std::log((1 - beta) * std::exp(q[i]) + beta * std::exp(p[i]));
      loss = beta * divergence(p, m) + (1 - beta) * divergence(q, m);
    }
    if (share > 0)
      loss = (1 - share) * loss - share * log_softmax(x, 1)[static_cast<std::size_t>(labels[at])];
    return weights[at] * loss;
  }
  Values losses() const {
    Values result;
    for (std::int64_t t = 0; t < tokens; ++t) result.push_back(loss_of(t, row_of(student, t)));
    return result;
  }
  // Finite differences. Their error is about 1e-9.
  Values gradient() const {
    Values result;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const Values row = numeric_gradient([&](const Values& x) { return loss_of(t, x); }, row_of(student, t));
      result.insert(result.end(), row.begin(), row.end());
    }
    return result;
  }

  std::int64_t tokens, vocab;
  DistillationForm form;
  Values student, teacher, labels, weights;
};

struct Result {
  std::vector<Values> losses;  // those that each part computes
  Values d_logits;             // of all columns
};

// Divides the columns at `cuts`, as tensor parallelism does, and makes the three calls for each part. With
// `in_place`, fp32 gradients overwrite the student's logits.
Result run(OperatorBench& bench, const Problem& p, const std::vector<std::int64_t>& cuts, DType gradient,
           bool in_place = false) {
  const auto count = static_cast<std::int64_t>(cuts.size()) - 1;
  const Tensor parts = bench.empty(DType::kF32, {count, p.tokens, kDistillationValues});
  const Tensor sums = bench.empty(DType::kF32, {count, p.tokens, kDistillationSumValues});
  const Tensor labels = bench.upload(p.labels, DType::kI32, {p.tokens});
  const Tensor weights = bench.upload(p.weights, DType::kF32, {p.tokens});
  std::vector<DistillationLoss> calls;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = cuts[static_cast<std::size_t>(i)],
                       columns = cuts[static_cast<std::size_t>(i) + 1] - first;
    const auto upload = [&](const Values& logits) {
      Values own;
      for (std::int64_t t = 0; t < p.tokens; ++t) {
        const auto row = logits.begin() + t * p.vocab + first;
        own.insert(own.end(), row, row + columns);
      }
      return bench.upload(own, DType::kF32, {p.tokens, columns});
    };
    const Tensor student = upload(p.student), teacher = upload(p.teacher);
    bench.run(DistillationPart{.student = student,
                               .teacher = teacher,
                               .labels = labels,
                               .part = parts.slice(i, i + 1).reshaped({p.tokens, kDistillationValues}),
                               .first = first,
                               .form = p.form});
    calls.push_back({.parts = parts,
                     .sums = sums,
                     .student = student,
                     .teacher = teacher,
                     .labels = labels,
                     .weights = weights,
                     .loss = bench.empty(DType::kF32, {p.tokens}),
                     .d_logits = in_place ? student : bench.empty(gradient, {p.tokens, columns}),
                     .first = first,
                     .vocabulary = p.vocab,
                     .form = p.form});
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const DistillationLoss& call = calls[static_cast<std::size_t>(i)];
    bench.run(DistillationSums{.parts = parts,
                               .student = call.student,
                               .teacher = call.teacher,
                               .weights = weights,
                               .sums = sums.slice(i, i + 1).reshaped({p.tokens, kDistillationSumValues}),
                               .form = p.form});
  }
  Result result;
  result.d_logits.resize(p.student.size());
  for (const DistillationLoss& call : calls) {
    bench.run(call);
    result.losses.push_back(bench.download(call.loss));
    const Values own = bench.download(call.d_logits);
    const std::int64_t columns = call.student.cols();
    for (std::int64_t t = 0; t < p.tokens; ++t)
      std::copy_n(own.begin() + t * columns, columns, result.d_logits.begin() + t * p.vocab + call.first);
  }
  return result;
}

const std::vector<DistillationForm>& forms() {
  static const std::vector<DistillationForm> all = {
      {.beta = 0},
      {.beta = 1},
      {.beta = 0.5F},
      {.beta = 0.1F, .temperature = 2},
      {.beta = 0, .temperature = 0.7F, .label_share = 0.3F},
      {.beta = 1, .temperature = 3, .label_share = 0.9F},
      {.beta = 0.5F, .label_share = 1},
      {.beta = 0.9F, .temperature = 0.9F, .label_share = 0.5F, .cap = 8, .teacher_cap = 5},
      {.beta = 0, .cap = 8},
      {.beta = 1, .teacher_cap = 8}};
  return all;
}

TEST(DistillationLoss, LossAndGradientMatchTheFormula) {
  std::map<std::string, OperatorBench> benches;
  for (const DeviceUnderTest& spec : devices_under_test()) benches.try_emplace(spec.name(), spec);
  for (const DistillationForm& form : forms()) {
    SCOPED_TRACE(testing::Message() << "beta " << form.beta << ", T " << form.temperature << ", share "
                                    << form.label_share);
    for (const std::int64_t vocab : {1, 5, 64, 131}) {
      SCOPED_TRACE(vocab);
      const Problem p(5, vocab, form);
      // Finite differences take longer than the kernels, so all devices use the same ones.
      const Values losses = p.losses(), gradient = p.gradient();
      for (auto& [name, bench] : benches) {
        SCOPED_TRACE(name);
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          const Result actual = run(bench, p, {0, vocab}, dtype);
          // Logarithms of probabilities are at most about 20, and their absolute error is 20 * 2^-23 = 2e-6.
          if (vocab > 1) {
            EXPECT_LE(normalised_error(actual.losses[0], losses), 3e-6);
            EXPECT_LE(normalised_error(actual.d_logits, gradient), rounding_error(dtype) + 3e-6);
          } else {
            EXPECT_NEAR(actual.losses[0][0], 0, 1e-7);  // one class has probability 1 in both models
            EXPECT_NEAR(actual.d_logits[0], 0, 1e-7);
          }
        }
      }
    }
  }
}

TEST(DistillationLoss, PartsOfTheColumnsEqualTheWhole) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const DistillationForm& form : forms()) {
      for (const std::vector<std::int64_t>& cuts :
           {std::vector<std::int64_t>{0, 1, 2, 5}, {0, 500, 1000}, {0, 64, 128, 192, 2049}}) {
        const Problem p(3, cuts.back(), form);
        const Result whole = run(bench, p, {0, cuts.back()}, DType::kF32);
        const Result actual = run(bench, p, cuts, DType::kF32, true);
        for (const Values& losses : actual.losses) {
          EXPECT_EQ(losses, actual.losses[0]);  // the same bits on all ranks
          EXPECT_LE(normalised_error(losses, whole.losses[0]), 3e-6);
        }
        EXPECT_LE(normalised_error(actual.d_logits, whole.d_logits), 3e-6);
      }
    }
  }
}

TEST(DistillationLoss, EqualModelsHaveNoLossAndNoGradient) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const float beta : {0.0F, 0.3F, 1.0F}) {
      Problem p(3, 1000, {.beta = beta, .temperature = 1.5F});
      p.teacher = p.student;
      const Result actual = run(bench, p, {0, 1000}, DType::kF32);
      for (const double loss : actual.losses[0]) EXPECT_EQ(loss, 0) << beta;
      for (const double slope : actual.d_logits) EXPECT_EQ(slope, 0) << beta;
    }
  }
}

TEST(DistillationLoss, MaskedTokensGiveExactZerosForAnyLogitsAndLabels) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const float beta : {0.0F, 0.3F, 1.0F}) {
      Problem p(3, 100, {.beta = beta, .label_share = 0.5F});
      p.weights = {1, 0, 1};
      p.labels[1] = -100;  // the label of ignored tokens in data sets
      for (std::size_t i = 0; i < 100; ++i) p.student[100 + i] = i % 2 == 0 ? NAN : INFINITY;
      for (std::size_t i = 0; i < 100; ++i) p.teacher[100 + i] = NAN;
      const Result actual = run(bench, p, {0, 100}, DType::kF32);
      EXPECT_EQ(actual.losses[0][1], 0);
      EXPECT_NE(actual.losses[0][2], 0);
      for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(actual.d_logits[100 + i], 0);
    }
  }
}

// A high temperature must not give a probability to a class that a model excludes.
TEST(DistillationLoss, ExcludedClassesStayExcludedAtHighTemperatures) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const float beta : {0.3F, 1.0F}) {
      Problem p(1, 100, {.beta = beta, .temperature = 100});
      p.weights = {1};
      for (std::size_t i = 50; i < 100; ++i) p.student[i] = -INFINITY;
      const Result actual = run(bench, p, {0, 100}, DType::kF32);
      for (std::size_t i = 50; i < 100; ++i) EXPECT_EQ(actual.d_logits[i], 0) << beta;
    }
  }
}

TEST(DistillationLoss, ExtremeLogitsAreFinite) {
  for (const DeviceUnderTest& spec : devices_under_test()) {
    SCOPED_TRACE(spec.name());
    OperatorBench bench(spec);
    for (const float beta : {0.0F, 0.3F, 1.0F}) {
      Problem p(2, 100, {.beta = beta});
      p.weights = {1, 1};
      p.student[3] = -INFINITY;  // the student excludes a class
      p.teacher[4] = -INFINITY;  // the teacher excludes another class
      p.student[107] = 1e30;     // certain of one class
      p.teacher[108] = 1e30;     // certain of another class
      const Result actual = run(bench, p, {0, 100}, DType::kF32);
      for (const double loss : actual.losses[0]) EXPECT_TRUE(std::isfinite(loss) && loss > 0) << loss;
      for (const double slope : actual.d_logits) EXPECT_TRUE(std::isfinite(slope));
    }
    Problem p(2, 100, {.beta = 0.5F});
    p.weights = {1, 1};
    p.teacher[5] = NAN;
    p.student[106] = NAN;
    const Result invalid = run(bench, p, {0, 100}, DType::kF32);
    for (const double loss : invalid.losses[0]) EXPECT_TRUE(std::isnan(loss));
  }
}

}  // namespace
}  // namespace primus::turbo::test
