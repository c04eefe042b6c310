#include "turbo/operator_checks.h"
#include "turbo/oscillation/oscillation.h"

namespace primus::turbo::test {
namespace {

class OscillationChecks final : public OperatorChecks {
  void run() override {
    const Tensor n = f32({kWidth});
    const Tensor one = f32({1});
    const Tensor working = bf16({kWidth});
    using To = TrackOscillation;
    To track{.before_param = n,
             .before_working = working,
             .param = n,
             .working = working,
             .before_rounded = working,
             .rounded = working,
             .moved = n,
             .jumped = n,
             .grad_scale = one,
             .snapped = i32({1}),
             .ratio = 2};
    expect_checks<To>(track,
                      {&To::before_param, &To::before_working, &To::param, &To::working, &To::before_rounded,
                       &To::rounded, &To::moved, &To::jumped, &To::grad_scale, &To::snapped},
                      {}, {[](To& a) { a.ratio = 0; }, [](To& a) { a.before_param = {}; }});
    track.param = {};
    expect_split_masters<To>(track);
  }
};

}  // namespace

extern const OperatorCheck kOscillation{"oscillation", make_checks<OscillationChecks>};

}  // namespace primus::turbo::test
