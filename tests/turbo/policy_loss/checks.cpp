#include <utility>

#include "turbo/operator_checks.h"
#include "turbo/policy_loss/policy_loss.h"

namespace primus::turbo::test {
namespace {

class PolicyLossChecks final : public OperatorChecks {
  void run() override {
    constexpr std::int64_t kDocuments = 4;
    const PolicyTerms terms{.correction = PolicyCorrection::kTokenMask, .beta = 0.1};
    const PolicyTokens tokens{.losses = f32({kTokens}),
                              .mask = f32({kTokens}),
                              .old = f32({kTokens}),
                              .sampled = f32({kTokens}),
                              .reference = f32({kTokens}),
                              .entropies = f32({kTokens}),
                              .chosen = f32({kTokens})};
    using Ps = PolicySums;
    expect_checks<Ps>({.terms = terms,
                       .tokens = tokens,
                       .starts = i32({kDocuments + 1}),
                       .sums = f64({kDocuments, kPolicySums})},
                      {&Ps::starts, &Ps::sums}, {},
                      {[](Ps& a) { a.tokens.losses = widened(a.tokens.losses); },
                       [](Ps& a) { a.tokens.mask = widened(a.tokens.mask); },
                       [](Ps& a) { a.tokens.old = retyped(a.tokens.old); },
                       [](Ps& a) { a.tokens.chosen = retyped(a.tokens.chosen); },
                       [](Ps& a) { a.tokens.sampled = {}; }, [](Ps& a) { a.tokens.reference = {}; }});
    using Pl = PolicyLoss;
    expect_checks<Pl>(
        {.terms = terms,
         .tokens = tokens,
         .entropy_coef = 0.01,
         .places = {},
         .adds_answers = true,
         .starts = i32({kDocuments + 1}),
         .roles = i32({kDocuments}),
         .advantages = f32({kDocuments}),
         .sums = f64({kDocuments, kPolicySums}),
         .totals = f64({2}),
         .weights = f32({kTokens}),
         .entropy_weights = f32({kTokens}),
         .metrics = f32({3}),
         .workspace = {}},
        {&Pl::starts, &Pl::roles, &Pl::advantages, &Pl::sums, &Pl::totals, &Pl::weights,
         &Pl::entropy_weights},
        {&Pl::metrics},
        {[](Pl& a) { a.tokens.losses = retyped(a.tokens.losses); },
         [](Pl& a) { a.tokens.reference = widened(a.tokens.reference); }, [](Pl& a) { a.places[1] = 3; },
         [](Pl& a) { a.microbatches = 0; }, [](Pl& a) { a.terms.beta = 0; },
         [](Pl& a) { a.terms.max_length = 0; }, [](Pl& a) { a.entropy_coef = 0; },
         [](Pl& a) { a.tokens.entropies = {}; }, [](Pl& a) { a.terms.ratio = PolicyRatio::kSum; },
         [](Pl& a) { a.tokens.advantages = f32({kTokens}); },
         [](Pl& a) { a.tokens.returns = f32({kTokens}); },
         [](Pl& a) { a.terms.type = PolicyType::kValues; }});
    independent_tokens();
  }

  // The losses of PPO: each token has an advantage or a return.
  void independent_tokens() {
    constexpr std::int64_t kRows = 2;
    using Pl = PolicyLoss;
    const PolicyLoss policy{.terms = {},
                            .tokens = {.losses = f32({kTokens}),
                                       .mask = f32({kTokens}),
                                       .old = f32({kTokens}),
                                       .sampled = {},
                                       .reference = {},
                                       .entropies = f32({kTokens}),
                                       .chosen = {},
                                       .advantages = f32({kTokens})},
                            .places = {},
                            .adds_answers = false,
                            .starts = i32({kRows + 1}),
                            .roles = i32({kRows}),
                            .advantages = {},
                            .sums = {},
                            .totals = f64({2}),
                            .weights = f32({kTokens}),
                            .entropy_weights = {},
                            .metrics = f32({3}),
                            .workspace = {}};
    expect_checks<Pl>(
        policy, {&Pl::starts, &Pl::roles, &Pl::totals, &Pl::weights}, {&Pl::metrics},
        {[](Pl& a) { a.tokens.advantages = widened(a.tokens.advantages); },
         [](Pl& a) { a.tokens.advantages = retyped(a.tokens.advantages); },
         [](Pl& a) { a.tokens.returns = a.tokens.advantages; }, [](Pl& a) { a.advantages = f32({kRows}); },
         [](Pl& a) {
           a.sums = f64({kRows, kPolicySums});
         },
         [](Pl& a) { a.terms.type = PolicyType::kSapo; }, [](Pl& a) { a.terms.ratio = PolicyRatio::kMean; },
         [](Pl& a) { a.terms.average = PolicyAverage::kLengths; },
         [](Pl& a) { a.terms.masks_drift = true; }});
    PolicyLoss values = policy;
    values.terms.type = PolicyType::kValues;
    values.tokens.returns = std::exchange(values.tokens.advantages, {});
    expect_checks<Pl>(
        values, {&Pl::starts, &Pl::roles, &Pl::totals, &Pl::weights}, {&Pl::metrics},
        {[](Pl& a) { a.tokens.returns = widened(a.tokens.returns); },
         [](Pl& a) { a.tokens.returns = retyped(a.tokens.returns); }, [](Pl& a) { a.tokens.old = {}; },
         [](Pl& a) { a.terms.factor = 0; }, [](Pl& a) { a.terms.type = PolicyType::kClipped; },
         [](Pl& a) { a.tokens.chosen = f32({kTokens}); },
         [](Pl& a) {
           a.entropy_coef = 0.01;
           a.entropy_weights = f32({kTokens});
         }});
    PolicySums sums{
        .terms = {}, .tokens = policy.tokens, .starts = i32({kRows + 1}), .sums = f64({kRows, kPolicySums})};
    expect_refused(sums, "sums of independent tokens");
  }
};

}  // namespace

extern const OperatorCheck kPolicyLoss{"policy_loss", make_checks<PolicyLossChecks>};

}  // namespace primus::turbo::test
