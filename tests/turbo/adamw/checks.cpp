#include <utility>

#include "turbo/adamw/adamw.h"
#include "turbo/block_moments.h"
#include "turbo/operator_checks.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class AdamwChecks final : public OperatorChecks {
  void run() override {
    const Tensor n = f32({kWidth});
    const Tensor one = f32({1});
    AdamW call{.param = n,
               .grad = n,
               .exp_avg = n,
               .exp_avg_sq = n,
               .grad_scale = one,
               .working = bf16({kWidth}),
               .scalars = f64({kStepScalars}),
               .beta1 = 0.9F,
               .beta2 = 0.95F,
               .eps = 1e-8F};
    expect_checks<AdamW>(call,
                         {&AdamW::param, &AdamW::grad, &AdamW::exp_avg, &AdamW::exp_avg_sq,
                          &AdamW::grad_scale, &AdamW::working, &AdamW::scalars},
                         {}, {[](AdamW& a) { a.grad_scale = {}; }});
    call.param = {};
    expect_split_masters<AdamW>(call);
    const Tensor blocks = f32({2 * kMomentBlock});
    const Tensor of_block = bf16({2});
    expect_checks<AdamW>(
        {.param = blocks,
         .grad = blocks,
         .exp_avg = {nullptr, DType::kF8E4M3, {2 * kMomentBlock}},
         .exp_avg_sq = {nullptr, DType::kU8, {2 * kMomentBlock}},
         .grad_scale = one,
         .working = {},
         .exp_avg_scale = of_block,
         .exp_avg_sq_scale = of_block,
         .scalars = f64({kStepScalars}),
         .beta1 = 0.9F,
         .beta2 = 0.95F,
         .eps = 1e-8F},
        {&AdamW::exp_avg, &AdamW::exp_avg_sq, &AdamW::exp_avg_scale, &AdamW::exp_avg_sq_scale}, {},
        {[](AdamW& a) { a.exp_avg_scale = {}; }, [](AdamW& a) { a.exp_avg_sq_scale = {}; },
         [](AdamW& a) { std::swap(a.exp_avg, a.exp_avg_sq); }, [&](AdamW& a) { a.exp_avg = blocks; },
         [](AdamW& a) { a.grad.data = reinterpret_cast<void*>(8); },
         [&](AdamW& a) {  // the number of elements is not a multiple of the block size
           a.param = a.grad = f32({kMomentBlock + 16});
           a.exp_avg.shape = a.exp_avg_sq.shape = {kMomentBlock + 16};
           a.exp_avg_scale = a.exp_avg_sq_scale = bf16({1});
         }});
    using Sq = SumOfSquares;
    expect_checks<Sq>({.x = n, .out = f64({1}), .accumulate = false}, {&Sq::out}, {&Sq::x});
    using Cc = ClipCoefficient;
    expect_checks<Cc>({.sum_of_squares = f64({1}), .norm = one, .scale = one, .max_norm = 1},
                      {&Cc::sum_of_squares, &Cc::norm, &Cc::scale}, {}, {[](Cc& a) { a.max_norm = -1; }});
  }
};

}  // namespace

extern const OperatorCheck kAdamw{"adamw", make_checks<AdamwChecks>};

}  // namespace primus::turbo::test
