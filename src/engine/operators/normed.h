// The norm of a residual stream, fused where possible into the product that reads it.
//
// During bf16 decoding, on devices with such a kernel, a product of a few rows also adds the pending addend,
// normalises the rows, and rotates or gates the result (turbo/linear/linear.h, AroundProduct). Otherwise
// norm(), linear(), and rope() or swiglu() run one after another.
#pragma once

#include "engine/operators/operators.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

class Normed {
 public:
  // `decoding`: calls are not recorded, and all parameters are resident. If `decoding` is false, the norm
  // runs immediately. The stream and the weight must outlive this object.
  Normed(Residual& x, Parameter& weight, double epsilon, bool decoding);
  // Wraps a value that is already normalised. Several branches may read this value.
  Normed(Value value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  // Returns the normalised value. The first call computes the norm.
  const Value& value() const;

  // Returns value() · weightᵀ, plus an optional bias (null: none): [T, hidden] -> [T, out].
  Value linear(Parameter& weight, Parameter* bias = nullptr) const;
  // Returns rope() of linear(weight, bias).
  Value rotated_linear(Parameter& weight, Parameter* bias, const Value& positions, const Tensor& table,
                       const RopeShape& shape) const;
  // Returns swiglu() of value() · weightᵀ.
  Value gated_linear(Parameter& weight, turbo::GluGate gate = turbo::GluGate::kSilu) const;

 private:
  struct Fused;
  bool fuses(const Parameter& weight, turbo::AroundProduct::End end) const;
  Value multiply(Parameter& weight, const Fused& how, std::int64_t cols, const Value& positions) const;
  Fused fused(Parameter* bias) const;

  Residual* x_ = nullptr;  // null: value_ is set
  Parameter* weight_ = nullptr;
  double epsilon_ = 0;
  mutable Value value_;  // empty: the norm has not run yet
};

}  // namespace primus::engine
