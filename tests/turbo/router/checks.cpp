#include "turbo/operator_checks.h"
#include "turbo/router/router.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

class RouterChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor logits = f32({kTokens, kExperts});
    const Tensor load = i32({2, kExperts});
    const Tensor chosen = i32({kTokens, kTopK});
    const Tensor weights = f32({kTokens, kTopK});
    const RouterRandom random{.seed = 1, .scalars = f64({kStepScalars}), .tokens = i32({kTokens})};
    const RouterRule rule{.forced = RouterRule::Forced::kUniform, .top_k = kTopK};
    const auto no_random = [](auto& a) { a.random.tokens = {}; };
    const auto wide_random = [](auto& a) { a.random.tokens = widened(a.random.tokens); };
    const auto too_many = [](auto& a) { a.rule.top_k = kExperts + 1; };
    using Rj = RouterJitter;
    expect_checks<Rj>({.x = x, .previous = x, .out = x, .jitter = 0.1F, .random = random},
                      {&Rj::x, &Rj::previous, &Rj::out}, {},
                      {no_random, wide_random, [](Rj& a) { a.jitter = 0; }});
    using Rf = RouterForward;
    expect_checks<Rf>({.rule = rule,
                       .random = random,
                       .logits = logits,
                       .bias = f32({kExperts}),
                       .given = chosen,
                       .experts = chosen,
                       .weights = weights},
                      {&Rf::logits, &Rf::bias, &Rf::given, &Rf::experts, &Rf::weights}, {},
                      {no_random, wide_random, too_many});
    using Rb = RouterBackward;
    expect_checks<Rb>({.rule = rule,
                       .logits = logits,
                       .experts = chosen,
                       .d_weights = weights,
                       .load = load,
                       .balance_scale = 1,
                       .z_scale = 1,
                       .previous = logits,
                       .d_logits = logits},
                      {&Rb::logits, &Rb::experts, &Rb::d_weights, &Rb::load, &Rb::previous, &Rb::d_logits},
                      {}, {too_many});
    using Rl = RouterLoad;
    expect_checks<Rl>({.top_k = kTopK, .logits = logits, .chosen = chosen, .load = load},
                      {&Rl::logits, &Rl::chosen, &Rl::load}, {}, {[](Rl& a) { a.top_k = kExperts + 1; }});
    using Rs = RouterLosses;
    expect_checks<Rs>({.rule = rule, .logits = logits, .load = load, .losses = f32({2})},
                      {&Rs::logits, &Rs::load, &Rs::losses}, {}, {too_many});
    using Rt = RouterTable;
    expect_checks<Rt>({.tokens = i32({kTokens}), .table = f32({99, kTopK}), .experts = chosen},
                      {&Rt::tokens, &Rt::table, &Rt::experts});
    using Rn = RunningLoad;
    expect_checks<Rn>({.load = i32({1, kExperts}), .running = i32({kExperts})}, {&Rn::load, &Rn::running});
    using El = ExpertLoad;
    expect_checks<El>({.experts = chosen, .rows = chosen, .load = i32({kExperts + 1})},
                      {&El::experts, &El::rows}, {&El::load});
    using Eu = ExpertBiasUpdate;
    expect_checks<Eu>({.load = i32({kExperts + 1}), .bias = f32({kExperts}), .rate = 1},
                      {&Eu::load, &Eu::bias});
  }
};

}  // namespace

extern const OperatorCheck kRouter{"router", make_checks<RouterChecks>};

}  // namespace primus::turbo::test
