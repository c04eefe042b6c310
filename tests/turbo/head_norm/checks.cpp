#include "turbo/head_norm/head_norm.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class HeadNormChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim});
    const HeadNormShape heads{kHeads, kKvHeads, kHeadDim};
    const Tensor rstd = f32({kTokens, heads.normed()});
    const Tensor head_weight = bf16({2 * kHeadDim});
    const auto too_many = [](auto& a) { a.shape.heads = 99; };
    using Hf = HeadNormForward;
    expect_checks<Hf>({.shape = heads, .x = x, .weight = head_weight, .y = x, .rstd = rstd, .eps = 1e-5F},
                      {&Hf::x, &Hf::weight, &Hf::y, &Hf::rstd}, {}, {too_many});
    using Hi = HeadNormBackwardInput;
    expect_checks<Hi>({.shape = heads, .x = x, .weight = head_weight, .rstd = rstd, .d_y = x, .d_x = x},
                      {&Hi::x, &Hi::weight, &Hi::rstd, &Hi::d_y, &Hi::d_x}, {}, {too_many});
    using Hw = HeadNormBackwardWeight;
    expect_checks<Hw>({.shape = heads,
                       .x = x,
                       .rstd = rstd,
                       .d_y = x,
                       .d_weight = f32({2 * kHeadDim}),
                       .accumulate = false},
                      {&Hw::x, &Hw::rstd, &Hw::d_y, &Hw::d_weight}, {}, {too_many});
  }
};

}  // namespace

extern const OperatorCheck kHeadNorm{"head_norm", make_checks<HeadNormChecks>};

}  // namespace primus::turbo::test
