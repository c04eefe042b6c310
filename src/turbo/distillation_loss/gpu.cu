// A block processes one token.
#include "turbo/distillation_loss/distillation_loss.h"
#include "turbo/distillation_loss/formula.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/soft_cap/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kThreadsPerRow = 1024;

// A cap that may be absent. The branch is cheap next to the exponentials, and saves three of four
// combinations of caps to compile.
struct MaybeCapped {
  float cap;
  PRIMUS_DEVICE float operator()(float x) const { return cap > 0 ? soft_cap(x, cap) : x; }
  PRIMUS_DEVICE float slope(float y) const { return cap > 0 ? soft_cap_slope(y, cap) : 1.0F; }
};

// Calls body(i, x[i .. i + kCount)) for the columns of this thread.
template <int kCount, class Body>
PRIMUS_DEVICE void for_each_column(const float* x, std::int64_t columns, const Body& body) {
  PRIMUS_UNROLL_BY(4)
  for (std::int64_t i = thread() * kCount; i < columns; i += kThreadsPerRow * kCount) {
    float v[kCount];
    load<kCount>(x + i, v);
    body(i, v);
  }
}

template <int kCount>
struct DistillationPartKernel {
  static constexpr int kThreads = kThreadsPerRow;
  const float *students, *teachers;
  const std::int32_t* labels;
  float* parts;
  std::int64_t columns, first;
  float inverse;  // 1 / temperature
  MaybeCapped capped, teacher_capped;

  // Returns the largest logit of the row.
  PRIMUS_DEVICE float largest_of(const float* x, MaybeCapped cap) const {
    float largest = -infinity();
    for_each_column<kCount>(x, columns, [&](std::int64_t, const float(&v)[kCount]) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) largest = ::fmaxf(largest, cap(v[k]));
    });
    return block_reduce<kThreads>(largest, Maximum{});
  }

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    const float *x = students + token * columns, *y = teachers + token * columns;
    const float s = largest_of(x, capped), t = largest_of(y, teacher_capped);
    const float from_s = s == -infinity() ? 0.0F : s, from_t = t == -infinity() ? 0.0F : t;
    float student_sum = 0, plain_sum = 0, teacher_sum = 0;
    for_each_column<kCount>(x, columns, [&](std::int64_t, const float(&v)[kCount]) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const float below = capped(v[k]) - from_s;
        student_sum += ::expf(below * inverse);
        if (inverse != 1) plain_sum += ::expf(below);
      }
    });
    for_each_column<kCount>(y, columns, [&](std::int64_t, const float(&v)[kCount]) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) teacher_sum += ::expf((teacher_capped(v[k]) - from_t) * inverse);
    });
    const double student = block_reduce<kThreads>(static_cast<double>(student_sum));
    const double plain = inverse == 1 ? student : block_reduce<kThreads>(static_cast<double>(plain_sum));
    const double teacher = block_reduce<kThreads>(static_cast<double>(teacher_sum));
    if (thread() != 0) return;
    const std::int64_t label = labels[token] - first;
    float* const out = parts + token * kDistillationValues;
    out[0] = s;
    out[1] = static_cast<float>(student);
    out[2] = static_cast<float>(plain);
    out[3] = label >= 0 && label < columns ? capped(x[label]) : -infinity();
    out[4] = t;
    out[5] = static_cast<float>(teacher);
  }
};

// The operands that the second and the third kernel read.
template <class Divergence>
struct DistillationOperands {
  const float *parts, *students, *teachers, *weights;
  std::int64_t count, tokens, columns;
  DistillationForm form;
  MaybeCapped capped, teacher_capped;
  Divergence divergence;

  PRIMUS_DEVICE DistillationRow row(std::int64_t token) const {
    return {parts + token * kDistillationValues, count, tokens * kDistillationValues, form};
  }
};

template <int kCount, class Divergence>
struct DistillationSumsKernel {
  static constexpr int kThreads = kThreadsPerRow;
  DistillationOperands<Divergence> in;
  float* sums;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block();
    float* const out = sums + token * kDistillationSumValues;
    float forward = 0, reverse = 0;
    if (in.weights[token] != 0) {
      const DistillationRow row = in.row(token);
      const float* const y = in.teachers + token * in.columns;
      for_each_column<kCount>(in.students + token * in.columns, in.columns,
                              [&](std::int64_t i, const float(&x)[kCount]) {
                                float teacher[kCount];
                                load<kCount>(y + i, teacher);
                                PRIMUS_UNROLL
                                for (int k = 0; k < kCount; ++k) {
                                  const float a = row.student.log_probability(in.capped(x[k]));
                                  const float b = row.teacher.log_probability(in.teacher_capped(teacher[k]));
                                  forward += in.divergence.of_teacher(a, b);
                                  reverse += in.divergence.of_student(a, b);
                                }
                              });
    }
    const double all_forward = block_reduce<kThreads>(static_cast<double>(forward));
    const double all_reverse = block_reduce<kThreads>(static_cast<double>(reverse));
    if (thread() != 0) return;
    out[0] = static_cast<float>(all_forward);
    out[1] = static_cast<float>(all_reverse);
  }
};

template <class T, int kCount, class Divergence>
struct DistillationLossKernel {
  static constexpr int kThreads = kThreadsPerRow;
  DistillationOperands<Divergence> in;
  const float* sums;
  const std::int32_t* labels;
  float* loss;
  T* d_logits;  // may be null; may share the memory of the student's logits
  std::int64_t first, vocabulary;
  Fault* fault;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block(), columns = in.columns;
    T* const d = d_logits ? d_logits + token * columns : nullptr;
    const float weight = in.weights[token];
    if (weight == 0) {
      if (thread() == 0) loss[token] = 0;
      if (!d) return;
      for (std::int64_t i = thread(); i < columns; i += kThreads) d[i] = from_float<T>(0.0F);
      return;
    }
    const std::int32_t label = labels[token];
    if ((label < 0 || label >= vocabulary) && thread() == 0)
      report_fault(fault, Fault::Kind::kLabelOutsideVocabulary, label, vocabulary);
    const DistillationRow row = in.row(token);
    double forward = 0, reverse = 0;
    for (std::int64_t p = 0; p < in.count; ++p) {
      const float* const of_part = sums + (p * in.tokens + token) * kDistillationSumValues;
      forward += static_cast<double>(of_part[0]);
      reverse += static_cast<double>(of_part[1]);
    }
    if (thread() == 0) loss[token] = loss_of_token(in.divergence, row, forward, reverse, weight, in.form);
    if (!d) return;
    const DistillationSlope<Divergence> slope(in.divergence, row, reverse, weight, in.form);
    const float* const y = in.teachers + token * columns;
    for_each_column<kCount>(
        in.students + token * columns, columns, [&](std::int64_t i, const float(&x)[kCount]) {
          float teacher[kCount], out[kCount];
          load<kCount>(y + i, teacher);
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) {
            const float z = in.capped(x[k]);
            out[k] = slope(z, in.teacher_capped(teacher[k]), i + k == label - first) * in.capped.slope(z);
          }
          store<kCount>(d + i, out);
        });
  }
};

void distillation_part(Context& context, const DistillationPart& call) {
  const std::int64_t columns = call.student.shape[1];
  const auto *students = context.data<float>(call.student), *teachers = context.data<float>(call.teacher);
  with_vector<float>(rows_of_vectors<float>(columns, students, teachers), [&](auto count) {
    constexpr int kCount = count;
    launch(context, call.student.shape[0],
           DistillationPartKernel<kCount>{students,
                                          teachers,
                                          context.data<std::int32_t>(call.labels),
                                          context.data<float>(call.part),
                                          columns,
                                          call.first,
                                          1.0F / call.form.temperature,
                                          {call.form.cap},
                                          {call.form.teacher_cap}});
  });
}

// Calls body(operands) for a DistillationSums or a DistillationLoss.
template <class Call, class Body>
void with_operands(Context& context, const Call& call, Body&& body) {
  with_divergence(call.form.beta, [&](auto divergence) {
    body(DistillationOperands<decltype(divergence)>{context.data<float>(call.parts),
                                                    context.data<float>(call.student),
                                                    context.data<float>(call.teacher),
                                                    context.data<float>(call.weights),
                                                    call.parts.shape[0],
                                                    call.student.shape[0],
                                                    call.student.shape[1],
                                                    call.form,
                                                    {call.form.cap},
                                                    {call.form.teacher_cap},
                                                    divergence});
  });
}

void distillation_sums(Context& context, const DistillationSums& call) {
  const auto *students = context.data<float>(call.student), *teachers = context.data<float>(call.teacher);
  with_vector<float>(rows_of_vectors<float>(call.student.shape[1], students, teachers), [&](auto count) {
    constexpr int kCount = count;
    with_operands(context, call, [&]<class D>(const DistillationOperands<D>& in) {
      launch(context, call.student.shape[0],
             DistillationSumsKernel<kCount, D>{in, context.data<float>(call.sums)});
    });
  });
}

void distillation_loss(Context& context, const DistillationLoss& call) {
  with_float_type(call.d_logits.absent() ? DType::kF32 : call.d_logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const d = optional<T>(context, call.d_logits);
    const auto *students = context.data<float>(call.student), *teachers = context.data<float>(call.teacher);
    with_vector<float>(rows_of_vectors<float>(call.student.shape[1], students, teachers, d), [&](auto count) {
      constexpr int kCount = count;
      with_operands(context, call, [&]<class D>(const DistillationOperands<D>& in) {
        launch(context, call.student.shape[0],
               DistillationLossKernel<T, kCount, D>{
                   in, context.data<float>(call.sums), context.data<std::int32_t>(call.labels),
                   context.data<float>(call.loss), d, call.first, call.vocabulary, faults(context)});
      });
    });
  });
}

}  // namespace

void register_distillation_loss(KernelTable& table) {
  table.add<DistillationPart, Context, &distillation_part>();
  table.add<DistillationSums, Context, &distillation_sums>();
  table.add<DistillationLoss, Context, &distillation_loss>();
}

}  // namespace primus::turbo::PRIMUS_GPU
