// The terms of a token's divergence and its gradient. The kernels of all devices share this code.
#pragma once

#include "turbo/distillation_loss/distillation_loss.h"
#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Each divergence below has the same members. `a` is ln q and `b` is ln p of one column; both are at least
// kSmallestLog. `reverse` is the token's KL(q || m).
//   of_teacher, of_student   the column's terms in KL(p || m) and in KL(q || m)
//   slope                    the derivative of D with respect to logit / T of the column
//   total                    D, from both sums over all columns

// KL(p || q)
struct ForwardDivergence {
  PRIMUS_FORMULA float of_teacher(float a, float b) const { return exp(b) * (b - a); }
  PRIMUS_FORMULA float of_student(float, float) const { return 0; }
  PRIMUS_FORMULA float slope(float a, float b, float) const { return exp(a) - exp(b); }
  PRIMUS_FORMULA double total(double forward, double) const { return forward; }
};

// KL(q || p)
struct ReverseDivergence {
  PRIMUS_FORMULA float of_teacher(float, float) const { return 0; }
  PRIMUS_FORMULA float of_student(float a, float b) const { return exp(a) * (a - b); }
  PRIMUS_FORMULA float slope(float a, float b, float reverse) const { return exp(a) * (a - b - reverse); }
  PRIMUS_FORMULA double total(double, double reverse) const { return reverse; }
};

struct MixedDivergence {
  float beta;

  // Returns ln(q / m) for `a` = ln q and `b` = ln p. Accurate where p and q are almost equal. The exponent is
  // bounded, because exp would overflow; q is then so small that its term is 0.
  PRIMUS_FORMULA float student_ratio(float a, float b) const { return -::log1pf(beta * growth(b - a)); }
  // Returns ln(p / m).
  PRIMUS_FORMULA float teacher_ratio(float a, float b) const {
    return -::log1pf((1.0F - beta) * growth(a - b));
  }
  PRIMUS_FORMULA float growth(float x) const { return ::expm1f(x > 80.0F ? 80.0F : x); }

  PRIMUS_FORMULA float of_teacher(float a, float b) const { return exp(b) * teacher_ratio(a, b); }
  PRIMUS_FORMULA float of_student(float a, float b) const { return exp(a) * student_ratio(a, b); }
  PRIMUS_FORMULA float slope(float a, float b, float reverse) const {
    return (1.0F - beta) * exp(a) * (student_ratio(a, b) - reverse);
  }
  PRIMUS_FORMULA double total(double forward, double reverse) const {
    return static_cast<double>(beta) * forward + (1.0 - static_cast<double>(beta)) * reverse;
  }
};

// Calls body(divergence).
template <class Body>
void with_divergence(float beta, Body&& body) {
  if (beta == 0) {
    body(ForwardDivergence{});
  } else if (beta == 1) {
    body(ReverseDivergence{});
  } else {
    body(MixedDivergence{beta});
  }
}

// The exponential of this number is 0 in fp32.
inline constexpr float kSmallestLog = -104;

// One distribution of a token: logarithms of its probabilities are (logit - largest) * inverse - log_sum.
// They are bounded, because a product of 0 and -infinity would be NaN.
struct TemperedRow {
  float largest, inverse, log_sum;
  PRIMUS_FORMULA float log_probability(float logit) const {
    const float result = (logit - largest) * inverse - log_sum;
    return result < kSmallestLog ? kSmallestLog : result;
  }
};

// The scalars of a token, merged from partial results.
struct DistillationRow {
  TemperedRow student, teacher;
  double label_loss;    // -ln softmax(student)[label], without a temperature
  float label_inverse;  // 1 / the sum of exp(logit - student.largest)

  // `parts`: the first value of the token's first part; parts of other ranks follow `stride` values later.
  PRIMUS_FORMULA DistillationRow(const float* parts, std::int64_t count, std::int64_t stride,
                                 const DistillationForm& form) {
    float s = -INFINITY, t = -INFINITY, label = -INFINITY;
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + p * stride;
      s = part[0] > s ? part[0] : s;  // ignores NaN, which reaches the loss through the sum
      label = part[3] > label ? part[3] : label;
      t = part[4] > t ? part[4] : t;
    }
    const double inverse = 1.0 / static_cast<double>(form.temperature);
    double student_sum = 0, teacher_sum = 0, plain_sum = 0;
    for (std::int64_t p = 0; p < count; ++p) {
      const float* const part = parts + p * stride;
      const double below_s =
          part[0] == -INFINITY ? 0.0 : static_cast<double>(part[0]) - static_cast<double>(s);
      const double below_t =
          part[4] == -INFINITY ? 0.0 : static_cast<double>(part[4]) - static_cast<double>(t);
      student_sum += static_cast<double>(part[1]) * ::exp(below_s * inverse);
      plain_sum += static_cast<double>(part[2]) * ::exp(below_s);
      teacher_sum += static_cast<double>(part[5]) * ::exp(below_t * inverse);
    }
    student = {s, static_cast<float>(inverse), static_cast<float>(::log(student_sum))};
    teacher = {t, static_cast<float>(inverse), static_cast<float>(::log(teacher_sum))};
    label_loss = ::log(plain_sum) - (static_cast<double>(label) - static_cast<double>(s));
    label_inverse = static_cast<float>(1.0 / plain_sum);
  }
};

// The gradient of a token's loss with respect to the student's capped logits, for tokens with a weight.
template <class Divergence>
struct DistillationSlope {
  Divergence divergence;
  DistillationRow row;
  float reverse;    // KL(q || m) of the token
  float of_logits;  // weight * (1 - label_share) / T
  float of_label;   // weight * label_share

  PRIMUS_FORMULA DistillationSlope(Divergence of, const DistillationRow& scalars, double sum, float weight,
                                   const DistillationForm& form)
      : divergence(of),
        row(scalars),
        reverse(static_cast<float>(sum)),
        of_logits(weight * (1.0F - form.label_share) / form.temperature),
        of_label(weight * form.label_share) {}

  PRIMUS_FORMULA float operator()(float student, float teacher, bool is_label) const {
    const float a = row.student.log_probability(student), b = row.teacher.log_probability(teacher);
    float slope = of_logits * divergence.slope(a, b, reverse);
    if (of_label != 0) {
      const float p = exp(student - row.student.largest) * row.label_inverse;
      slope += of_label * (is_label ? p - 1.0F : p);
    }
    return slope;
  }
};

// Returns the loss of a token with a weight.
template <class Divergence>
PRIMUS_FORMULA float loss_of_token(Divergence divergence, const DistillationRow& row, double forward,
                                   double reverse, float weight, const DistillationForm& form) {
  const auto share = static_cast<double>(form.label_share);
  double loss = (1 - share) * divergence.total(forward, reverse);
  if (form.label_share != 0) loss += share * row.label_loss;
  return static_cast<float>(static_cast<double>(weight) * loss);
}

}  // namespace primus::turbo::PRIMUS_KERNELS
