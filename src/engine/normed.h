// The norm of a residual stream, on its way to the product that reads it.
//
// While a model decodes in bf16, a product of a few rows takes up the addend and norms the rows itself, and
// does what follows it, too, on devices that take that (turbo/linear/linear.h, AroundProduct). In every other
// case this is norm() and the operators of the functions' names, one after the other.
#pragma once

#include "engine/operators.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

class Normed {
 public:
  // `decoding`: nothing is recorded, and all parameters are where they are read. Else normed at once. The
  // stream and the weight must outlive this.
  Normed(Residual& x, Parameter& weight, double epsilon, bool decoding);
  // What is normed already: several branches may read the same.
  Normed(Value value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  // Normed now, if it was not before.
  const Value& value() const;

  // value() · weightᵀ, plus a bias (null: none): [T, hidden] -> [T, out].
  Value linear(Parameter& weight, Parameter* bias = nullptr) const;
  // rope() of that.
  Value rotated_linear(Parameter& weight, Parameter* bias, const Value& positions, const Tensor& table,
                       const RopeShape& shape) const;
  // swiglu() of value() · weightᵀ.
  Value gated_linear(Parameter& weight, turbo::GluGate gate = turbo::GluGate::kSilu) const;

 private:
  struct Fused;
  bool fuses(const Parameter& weight, turbo::AroundProduct::End end) const;
  Value multiply(Parameter& weight, const Fused& how, std::int64_t cols, const Value* positions) const;
  Fused fused(Parameter* bias) const;

  Residual* x_ = nullptr;  // null: value_ is there
  Parameter* weight_ = nullptr;
  double epsilon_ = 0;
  mutable Value value_;  // empty: not normed yet
};

}  // namespace primus::engine
