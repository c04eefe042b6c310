#include "turbo/distillation_loss/distillation_loss.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_logits(const Tensor& student, const Tensor& teacher) {
  return student.dtype == DType::kF32 && student.shape.rank() == 2 && student.cols() > 0 &&
         teacher.dtype == DType::kF32 && teacher.shape == student.shape;
}

bool is_of_tokens(const Tensor& tensor, DType dtype, const Tensor& student) {
  return tensor.dtype == dtype && tensor.elements() == student.shape[0];
}

// Returns whether the tensor holds `values` numbers per token for each part.
bool are_parts(const Tensor& tensor, std::int64_t values, const Tensor& student) {
  return tensor.dtype == DType::kF32 && tensor.shape.rank() == 3 && tensor.shape[0] > 0 &&
         tensor.shape[1] == student.shape[0] && tensor.shape[2] == values;
}

bool is_part(const Tensor& tensor, std::int64_t values, const Tensor& student) {
  return tensor.dtype == DType::kF32 && tensor.shape == Shape{student.shape[0], values};
}

}  // namespace

bool DistillationForm::valid() const {
  return beta >= 0 && beta <= 1 && temperature > 0 && label_share >= 0 && label_share <= 1 && cap >= 0 &&
         teacher_cap >= 0;
}

void DistillationPart::check() const {
  PRIMUS_CHECK(kId, form.valid() && first >= 0);
  PRIMUS_CHECK(kId, are_logits(student, teacher));
  PRIMUS_CHECK(kId, is_of_tokens(labels, DType::kI32, student));
  PRIMUS_CHECK(kId, is_part(part, kDistillationValues, student));
}

void DistillationSums::check() const {
  PRIMUS_CHECK(kId, form.valid());
  PRIMUS_CHECK(kId, are_logits(student, teacher));
  PRIMUS_CHECK(kId, are_parts(parts, kDistillationValues, student));
  PRIMUS_CHECK(kId, is_of_tokens(weights, DType::kF32, student));
  PRIMUS_CHECK(kId, is_part(sums, kDistillationSumValues, student));
}

void DistillationLoss::check() const {
  PRIMUS_CHECK(kId, form.valid());
  PRIMUS_CHECK(kId, are_logits(student, teacher));
  PRIMUS_CHECK(kId, first >= 0 && first + student.cols() <= vocabulary);
  PRIMUS_CHECK(kId, are_parts(parts, kDistillationValues, student));
  PRIMUS_CHECK(kId, are_parts(sums, kDistillationSumValues, student) && sums.shape[0] == parts.shape[0]);
  PRIMUS_CHECK(kId, is_of_tokens(labels, DType::kI32, student));
  PRIMUS_CHECK(kId, is_of_tokens(weights, DType::kF32, student));
  PRIMUS_CHECK(kId, is_of_tokens(loss, DType::kF32, student));
  PRIMUS_CHECK(kId, d_logits.absent() ||
                        (is_float(d_logits) && d_logits.shape == student.shape &&
                         (!student.data || d_logits.data != student.data || d_logits.dtype == DType::kF32)));
}

}  // namespace primus::turbo
