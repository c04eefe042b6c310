#include <functional>
#include <vector>

#include "turbo/causal_conv/causal_conv.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class CausalConvChecks final : public OperatorChecks {
  void run() override {
    const CausalConvShape inside{2, 3, kWidth, 3, 4, 7};
    const CausalConvShape front{2, 3, kWidth, 3};
    const Tensor bcx = bf16({kTokens, 3 * kWidth});
    const Tensor y = bf16({kTokens, kWidth});
    const Tensor weight = bf16({kWidth, 3});
    const Tensor bias = f32({kWidth});
    const Tensor edge = f32({4, kWidth});
    const Tensor first_key = i32({kTokens});
    const auto shapes = []<class Call>(std::vector<std::function<void(Call&)>> more = {}) {
      std::vector<std::function<void(Call&)>> all = {
          [](Call& a) { a.shape.segments = 0; },      [](Call& a) { a.shape.tokens = 0; },
          [](Call& a) { a.shape.channels = 0; },      [](Call& a) { a.shape.width = 0; },
          [](Call& a) { a.shape.width = 17; },        [](Call& a) { a.shape.first_of_even = -1; },
          [](Call& a) { a.shape.first_of_odd = -1; }, [](Call& a) { a.shape.tokens = 2; }};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    using Cf = CausalConvForward;
    Cf forward{.shape = inside,
               .bcx = bcx,
               .weight = weight,
               .bias = bias,
               .before = edge,
               .first_key = first_key,
               .y = y};
    expect_checks<Cf>(forward, {&Cf::bcx, &Cf::weight, &Cf::bias, &Cf::before, &Cf::first_key, &Cf::y}, {},
                      shapes.operator()<Cf>({[](Cf& a) { a.before = {}; }}));
    // A segment at the beginning of a sequence has no edge before it.
    forward.shape = front, forward.before = forward.bias = forward.first_key = {};
    EXPECT_EQ(refusal(forward), "");
    using Ci = CausalConvBackwardInput;
    expect_checks<Ci>(
        {.shape = inside,
         .bcx = bcx,
         .weight = weight,
         .bias = bias,
         .before = edge,
         .first_key = first_key,
         .d_y = y,
         .d_after = edge,
         .d_bcx = bcx},
        {&Ci::bcx, &Ci::weight, &Ci::bias, &Ci::before, &Ci::first_key, &Ci::d_y, &Ci::d_after, &Ci::d_bcx},
        {}, shapes.operator()<Ci>({[](Ci& a) { a.before = {}; }}));
    using Cw = CausalConvBackwardWeight;
    Cw of_weight{.shape = inside,
                 .bcx = bcx,
                 .before = edge,
                 .first_key = first_key,
                 .d_y = y,
                 .of_bias = false,
                 .d_weight = f32({kWidth, 3}),
                 .accumulate = false};
    expect_checks<Cw>(of_weight, {&Cw::bcx, &Cw::before, &Cw::first_key, &Cw::d_y, &Cw::d_weight}, {},
                      shapes.operator()<Cw>({[](Cw& a) { a.of_bias = true; }}));
    of_weight.of_bias = true, of_weight.d_weight = bf16({kWidth});
    EXPECT_EQ(refusal(of_weight), "");
    const Tensor x = bf16({kTokens, kWidth});
    CausalConvShape silu = inside;
    silu.form = CausalConvShape::Form::kSilu;
    expect_checks<Cw>(
        {.shape = silu,
         .bcx = x,
         .before = edge,
         .first_key = first_key,
         .weight = weight,
         .bias = bias,
         .d_y = y,
         .of_bias = false,
         .d_weight = f32({kWidth, 3}),
         .accumulate = false},
        {&Cw::bcx, &Cw::before, &Cw::first_key, &Cw::weight, &Cw::bias, &Cw::d_y, &Cw::d_weight}, {},
        shapes.operator()<Cw>(
            {[](Cw& a) { a.weight = {}; }, [](Cw& a) { a.shape.form = CausalConvShape::Form::kGated; }}));
    using Ce = CausalConvEdge;
    const auto short_segments = [](auto& a) { a.shape.segments = 6, a.shape.tokens = 1; };
    expect_checks<Ce>({.shape = inside, .bcx = bcx, .edge = edge}, {&Ce::bcx, &Ce::edge}, {},
                      shapes.operator()<Ce>({short_segments}));
    using Cb = CausalConvBackwardEdge;
    expect_checks<Cb>(
        {.shape = inside, .bcx = bcx, .weight = weight, .first_key = first_key, .d_y = y, .d_edge = edge},
        {&Cb::bcx, &Cb::weight, &Cb::first_key, &Cb::d_y, &Cb::d_edge}, {},
        shapes.operator()<Cb>({[&](Cb& a) { a.before = edge; }, [&](Cb& a) { a.bias = bias; }}));
    expect_checks<Cb>({.shape = silu,
                       .bcx = x,
                       .weight = weight,
                       .first_key = first_key,
                       .bias = bias,
                       .before = edge,
                       .d_y = y,
                       .d_edge = edge},
                      {&Cb::bcx, &Cb::weight, &Cb::first_key, &Cb::bias, &Cb::before, &Cb::d_y, &Cb::d_edge},
                      {}, shapes.operator()<Cb>({[](Cb& a) { a.before = {}; }}));
    using Cc = CachedCausalConv;
    expect_checks<Cc>({.sequences = {.query_starts = i32({4}),
                                     .key_lengths = i32({3}),
                                     .block_table = i32({3, 5}),
                                     .page_size = 64},
                       .width = 3,
                       .form = CausalConvShape::Form::kGated,
                       .bcx = bcx,
                       .weight = weight,
                       .bias = bias,
                       .ring = f32({3, 4, kWidth}),
                       .y = y},
                      {&Cc::bcx, &Cc::weight, &Cc::bias, &Cc::ring, &Cc::y}, {},
                      {[](Cc& a) { a.width = 0; }, [](Cc& a) { a.width = 17; },
                       [](Cc& a) {
                         a.ring = f32({3, 2, kWidth});
                       },
                       [](Cc& a) {
                         a.ring = f32({2, 4, kWidth});
                       },
                       [](Cc& a) { a.sequences.key_lengths = i32({2}); }});
  }
};

}  // namespace

extern const OperatorCheck kCausalConv{"causal_conv", make_checks<CausalConvChecks>};

}  // namespace primus::turbo::test
