// Distillation losses on the CPU, one row of logits at a time.
#include <algorithm>
#include <cmath>
#include <limits>

#include "turbo/cpu/largest.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/distillation_loss/distillation_loss.h"
#include "turbo/distillation_loss/formula.h"
#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Returns the sum of term(i) over [0, n). Sums of blocks are in fp32, and their sum is in double.
template <class Term>
double sum_of(std::int64_t n, const Term& term) {
  constexpr std::int64_t kBlock = 2048;
  double sum = 0;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    sum += static_cast<double>(
        sum_terms(std::min(kBlock, n - begin), [=](std::int64_t i) { return term(begin + i); }));
  }
  return sum;
}

// Calls body(student's cap, teacher's cap).
template <class Body>
void with_caps(const DistillationForm& form, const Body& body) {
  with_cap(form.cap,
           [&](auto student) { with_cap(form.teacher_cap, [&](auto teacher) { body(student, teacher); }); });
}

// Calls body(token) for every token. `cost`: operations per column.
template <class Body>
void for_each_token(CpuContext& context, const Tensor& logits, std::int64_t cost, const Body& body) {
  parallel_ranges(context, logits.shape[0], logits.shape[1] * cost,
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t t = begin; t < end; ++t) body(t);
                  });
}

// Writes the largest logit, and returns the sum of exp((logit - largest) * inverse).
template <class Cap>
double normaliser(const float* x, std::int64_t n, Cap capped, float inverse, float* largest) {
  *largest = capped(max_of(x, n));
  const float base = *largest == -std::numeric_limits<float>::infinity() ? 0.0F : *largest;
  return sum_of(n, [=](std::int64_t i) { return PRIMUS_CPU_ISA::exp((capped(x[i]) - base) * inverse); });
}

void part(CpuContext& context, const DistillationPart& call) {
  const auto* students = context.data<const float>(call.student);
  const auto* teachers = context.data<const float>(call.teacher);
  const auto* labels = context.data<const std::int32_t>(call.labels);
  auto* parts = context.data<float>(call.part);
  const std::int64_t columns = call.student.shape[1];
  const float inverse = 1.0F / call.form.temperature;
  with_caps(call.form, [&](auto capped, auto teacher_capped) {
    for_each_token(context, call.student, 12, [=, &call](std::int64_t t) {
      const float* row = students + t * columns;
      float* out = parts + t * kDistillationValues;
      const double sum = normaliser(row, columns, capped, inverse, out);
      out[1] = static_cast<float>(sum);
      out[2] = static_cast<float>(inverse == 1 ? sum : normaliser(row, columns, capped, 1.0F, out));
      const std::int64_t label = labels[t] - call.first;
      out[3] = label >= 0 && label < columns ? capped(row[label]) : -std::numeric_limits<float>::infinity();
      out[5] =
          static_cast<float>(normaliser(teachers + t * columns, columns, teacher_capped, inverse, out + 4));
    });
  });
}

void sums(CpuContext& context, const DistillationSums& call) {
  const auto* students = context.data<const float>(call.student);
  const auto* teachers = context.data<const float>(call.teacher);
  const auto* weights = context.data<const float>(call.weights);
  const auto* parts = context.data<const float>(call.parts);
  auto* sums = context.data<float>(call.sums);
  const std::int64_t tokens = call.student.shape[0], columns = call.student.shape[1];
  with_caps(call.form, [&](auto capped, auto teacher_capped) {
    with_divergence(call.form.beta, [&](auto divergence) {
      for_each_token(context, call.student, 12, [=, &call](std::int64_t t) {
        float* out = sums + t * kDistillationSumValues;
        if (weights[t] == 0) {
          out[0] = out[1] = 0;
          return;
        }
        const float *x = students + t * columns, *y = teachers + t * columns;
        const DistillationRow row(parts + t * kDistillationValues, call.parts.shape[0],
                                  tokens * kDistillationValues, call.form);
        const TemperedRow student = row.student, teacher = row.teacher;
        out[0] = static_cast<float>(sum_of(columns, [=](std::int64_t i) {
          return divergence.of_teacher(student.log_probability(capped(x[i])),
                                       teacher.log_probability(teacher_capped(y[i])));
        }));
        out[1] = static_cast<float>(sum_of(columns, [=](std::int64_t i) {
          return divergence.of_student(student.log_probability(capped(x[i])),
                                       teacher.log_probability(teacher_capped(y[i])));
        }));
      });
    });
  });
}

template <class T>
void loss_of(CpuContext& context, const DistillationLoss& call) {
  const auto* students = context.data<const float>(call.student);
  const auto* teachers = context.data<const float>(call.teacher);
  const auto* labels = context.data<const std::int32_t>(call.labels);
  const auto* weights = context.data<const float>(call.weights);
  const auto* parts = context.data<const float>(call.parts);
  const auto* sums = context.data<const float>(call.sums);
  auto* loss = context.data<float>(call.loss);
  T* gradients = call.d_logits.absent() ? nullptr : context.data<T>(call.d_logits);
  const std::int64_t tokens = call.student.shape[0], columns = call.student.shape[1];
  with_caps(call.form, [&](auto capped, auto teacher_capped) {
    with_divergence(call.form.beta, [&](auto divergence) {
      for_each_token(context, call.student, 16, [=, &call](std::int64_t t) {
        T* d = gradients ? gradients + t * columns : nullptr;
        if (weights[t] == 0) {
          loss[t] = 0;
          if (d) std::fill_n(d, columns, from_float<T>(0.0F));
          return;
        }
        assert(labels[t] >= 0 && labels[t] < call.vocabulary);
        const DistillationRow row(parts + t * kDistillationValues, call.parts.shape[0],
                                  tokens * kDistillationValues, call.form);
        double forward = 0, reverse = 0;
        for (std::int64_t p = 0; p < call.parts.shape[0]; ++p) {
          const float* of_part = sums + (p * tokens + t) * kDistillationSumValues;
          forward += static_cast<double>(of_part[0]);
          reverse += static_cast<double>(of_part[1]);
        }
        loss[t] = loss_of_token(divergence, row, forward, reverse, weights[t], call.form);
        if (!d) return;
        const DistillationSlope slope(divergence, row, reverse, weights[t], call.form);
        const float *x = students + t * columns, *y = teachers + t * columns;
        const std::int64_t label = labels[t] - call.first;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < columns; ++i) {
          const float z = capped(x[i]);
          d[i] = from_float<T>(slope(z, teacher_capped(y[i]), i == label) * capped.slope(z));
        }
      });
    });
  });
}

void loss(CpuContext& context, const DistillationLoss& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype,
                  [&](auto type) { loss_of<decltype(type)>(context, call); });
}

}  // namespace

void register_distillation_loss(KernelTable& table) {
  table.add<DistillationPart, CpuContext, &part>();
  table.add<DistillationSums, CpuContext, &sums>();
  table.add<DistillationLoss, CpuContext, &loss>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
