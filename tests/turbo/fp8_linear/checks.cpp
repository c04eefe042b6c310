#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class Fp8LinearChecks final : public OperatorChecks {
  void run() override {
    // Extents of fp8 operands must be multiples of 16.
    const auto e4m3 = [](Shape shape) { return Tensor(nullptr, DType::kF8E4M3, shape); };
    const auto e5m2 = [](Shape shape) { return Tensor(nullptr, DType::kF8E5M2, shape); };
    using Qf = QuantizeFp8;
    expect_checks<Qf>(
        {.x = bf16({32, 48}), .codes = e5m2({32, 48}), .transposed = e5m2({48, 32}), .scales = f32({2})},
        {&Qf::x, &Qf::codes, &Qf::transposed, &Qf::scales}, {},
        {[](Qf& a) { a.codes = a.transposed = {}; },
         [&](Qf& a) {
           a.codes = e4m3({32, 48});
         },
         [](Qf& a) { a.codes.data = reinterpret_cast<void*>(8); }});
    expect_checks<Qf>({.x = bf16({32, 48}),
                       .codes = e5m2({32, 48}),
                       .scales = f32({2}),
                       .known = true,
                       .largest = i32({1})},
                      {&Qf::x, &Qf::codes, &Qf::scales, &Qf::largest}, {}, {[](Qf& a) { a.known = false; }});
    using Us = UpdateFp8Scales;
    expect_checks<Us>(
        {.largest = i32({5, 3}), .history = f32({5, 3, 7}), .scales = f32({5, 3, 4}), .norm = f32({1})},
        {&Us::largest, &Us::scales, &Us::norm}, {&Us::history},
        {[](Us& a) { a.gradients = DType::kBF16; }, [](Us& a) { a.margin = -1; }});
    using Fg = Fp8Gemm;
    expect_checks<Fg>({.a = e5m2({32, 48}),
                       .b = e4m3({16, 48}),
                       .a_scales = f32({2}),
                       .b_scales = f32({2}),
                       .c = bf16({32, 16})},
                      {&Fg::a, &Fg::b, &Fg::a_scales, &Fg::b_scales, &Fg::c}, {},
                      {[&](Fg& a) {
                         a.b = e5m2({16, 48});
                       },  // both operands are e5m2, which GPUs cannot multiply
                       [](Fg& a) { a.b.data = reinterpret_cast<void*>(8); }});
  }
};

}  // namespace

extern const OperatorCheck kFp8Linear{"fp8_linear", make_checks<Fp8LinearChecks>};

}  // namespace primus::turbo::test
