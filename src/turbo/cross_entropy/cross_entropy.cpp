#include "turbo/cross_entropy/cross_entropy.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_logits(const Tensor& logits) {
  return logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.cols() > 0;
}

// Returns whether the tensor has one element of this type per token.
bool is_of_tokens(const Tensor& tensor, DType dtype, const Tensor& logits) {
  return tensor.dtype == dtype && tensor.elements() == logits.shape[0];
}

// Returns whether `d_logits` has a valid shape and type. fp32 gradients may use the memory of the logits.
bool is_gradient_of(const Tensor& d_logits, const Tensor& logits) {
  return d_logits.absent() ||
         (is_float(d_logits) && d_logits.shape == logits.shape &&
          (!logits.data || d_logits.data != logits.data || d_logits.dtype == DType::kF32));
}

// Returns whether a partial result may have this number of values per token.
bool has_values(std::int64_t values) { return values == kCrossEntropyValues || values == kEntropyValues; }

}  // namespace

void CrossEntropy::check() const {
  PRIMUS_CHECK(kId, are_logits(logits));
  PRIMUS_CHECK(kId, is_of_tokens(labels, DType::kI32, logits));
  PRIMUS_CHECK(kId, is_of_tokens(weights, DType::kF32, logits));
  PRIMUS_CHECK(kId, is_of_tokens(loss, DType::kF32, logits));
  PRIMUS_CHECK(kId, is_gradient_of(d_logits, logits));
  PRIMUS_CHECK(kId, cap >= 0);
}

void CrossEntropyPart::check() const {
  PRIMUS_CHECK(kId, are_logits(logits) && first >= 0 && cap >= 0);
  PRIMUS_CHECK(kId, is_of_tokens(labels, DType::kI32, logits));
  PRIMUS_CHECK(kId, part.dtype == DType::kF32 && part.shape.rank() == 2 && has_values(part.shape[1]));
  PRIMUS_CHECK(kId, part.shape[0] == logits.shape[0]);
}

void CrossEntropyOfParts::check() const {
  PRIMUS_CHECK(kId, are_logits(logits) && first >= 0 && first + logits.cols() <= vocabulary);
  PRIMUS_CHECK(kId, parts.dtype == DType::kF32 && parts.shape.rank() == 3 && parts.shape[0] > 0);
  PRIMUS_CHECK(kId, parts.shape[1] == logits.shape[0] && has_values(parts.shape[2]));
  PRIMUS_CHECK(kId, is_of_tokens(labels, DType::kI32, logits));
  PRIMUS_CHECK(kId, is_of_tokens(weights, DType::kF32, logits));
  PRIMUS_CHECK(kId, is_of_tokens(loss, DType::kF32, logits));
  PRIMUS_CHECK(kId, is_gradient_of(d_logits, logits));
  PRIMUS_CHECK(kId, cap >= 0);
  for (const Tensor& tensor : {entropy_weights, entropies, collisions}) {
    PRIMUS_CHECK(kId, tensor.absent() ||
                          (parts.shape[2] == kEntropyValues && is_of_tokens(tensor, DType::kF32, logits)));
  }
}

}  // namespace primus::turbo
