// Tests that launch() refuses wrong operands before any kernel runs. The checks.cpp in each operator's folder
// has a correct call for every kernel. The tests change this call in one operand at a time: the operand gets
// a type that no kernel supports, or an additional column. turbo_check_test runs the checks of all operators
// (primus_entry_list finds them) and fails if a kernel has no checks.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::turbo::test {

// All extents are different, so that a wrong extent does not match by chance.
inline constexpr std::int64_t kTokens = 6, kWidth = 10, kExperts = 4, kTopK = 2, kSlots = kTokens * kTopK;
inline constexpr std::int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 8;

inline Tensor f32(Shape shape) { return {nullptr, DType::kF32, shape}; }
inline Tensor bf16(Shape shape) { return {nullptr, DType::kBF16, shape}; }
inline Tensor f64(Shape shape) { return {nullptr, DType::kF64, shape}; }
inline Tensor i16(Shape shape) { return {nullptr, DType::kI16, shape}; }
inline Tensor i32(Shape shape) { return {nullptr, DType::kI32, shape}; }

inline Tensor widened(const Tensor& t) {
  switch (t.shape.rank()) {
    case 1:
      return {t.data, t.dtype, {t.shape[0] + 1}};
    case 2:
      return {t.data, t.dtype, {t.shape[0], t.shape[1] + 1}};
    default:
      return {t.data, t.dtype, {t.shape[0], t.shape[1], t.shape[2] + 1}};
  }
}

inline Tensor retyped(const Tensor& t) { return {t.data, DType::kI8, t.shape}; }

class OperatorChecks {
 public:
  virtual ~OperatorChecks() = default;
  virtual void run() = 0;
  // The kernels for which run() launched a correct call.
  const std::set<KernelId>& covered() const { return covered_; }

  // Launches with a scratch arena that only measures, so no kernel runs. Returns the error, or "".
  template <class Arguments>
  std::string refusal(const Arguments& arguments) {
    try {
      launch(context_, arguments);
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return {};
  }

  template <class Arguments>
  void expect_refused(const Arguments& arguments, const std::string& what) {
    const std::string prefix = std::string(name_of(Arguments::kId)) + ": check failed: ";
    EXPECT_EQ(refusal(arguments).substr(0, prefix.size()), prefix) << what;
  }

  // `shaped` are operands whose type and shape are checked. `typed` are operands whose shape is arbitrary or
  // unknown, such as the first elements of views. `changes` make other attributes wrong.
  template <class Arguments>
  void expect_checks(const Arguments& right, std::vector<Tensor Arguments::*> shaped,
                     std::vector<Tensor Arguments::*> typed = {},
                     std::vector<std::function<void(Arguments&)>> changes = {}) {
    covered_.insert(Arguments::kId);
    EXPECT_EQ(refusal(right), "") << name_of(Arguments::kId);
    int operand = 0;
    for (const auto member : shaped) {
      Arguments wide = right;
      wide.*member = widened(wide.*member);
      expect_refused(wide, "operand " + std::to_string(operand) + " too wide");
      typed.insert(typed.begin() + operand++, member);
    }
    operand = 0;
    for (const auto member : typed) {
      Arguments other = right;
      other.*member = retyped(other.*member);
      expect_refused(other, "operand " + std::to_string(operand++) + " of a wrong type");
    }
    operand = 0;
    for (const auto& change : changes) {
      Arguments changed = right;
      change(changed);
      expect_refused(changed, "change " + std::to_string(operand++));
    }
  }

  // Tests the masters of an optimizer. `right` is correct, except that the remainder of its masters is
  // missing.
  template <class Arguments>
  void expect_split_masters(Arguments right) {
    expect_refused(right, "no masters");
    right.remainder = i16({kWidth});
    expect_checks<Arguments>(right, {&Arguments::working, &Arguments::remainder}, {},
                             {[](Arguments& a) { a.param = f32({kWidth}); },  // both forms of masters at once
                              [](Arguments& a) { a.working = {}; }});
  }

 private:
  cpu::CpuDevice device_{1, cpu_kernel_table(best_isa_level())};
  std::unique_ptr<Stream> stream_ = device_.create_stream(StreamKind::kCompute);
  Arena scratch_{"scratch"};
  Meter meter_;
  Context context_{device_, *stream_, scratch_, meter_};
  std::set<KernelId> covered_;
};

struct OperatorCheck {
  std::string_view folder;  // the folder of the operator, such as "lion"
  std::unique_ptr<OperatorChecks> (*make)();
};

template <class Checks>
std::unique_ptr<OperatorChecks> make_checks() {
  return std::make_unique<Checks>();
}

}  // namespace primus::turbo::test
