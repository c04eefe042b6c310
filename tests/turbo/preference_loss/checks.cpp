#include "turbo/operator_checks.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus::turbo::test {
namespace {

class PreferenceLossChecks final : public OperatorChecks {
  void run() override {
    constexpr std::int64_t kDocuments = 4;
    using Ds = DocumentSums;
    expect_checks<Ds>({.losses = f32({kTokens}),
                       .factors = f32({kTokens}),
                       .starts = i32({kDocuments + 1}),
                       .sums = f64({kDocuments}),
                       .collisions = f32({kTokens})},
                      {&Ds::losses, &Ds::factors, &Ds::starts, &Ds::sums, &Ds::collisions});
    using Pl = PreferenceLoss;
    expect_checks<Pl>(
        {.terms = {},
         .microbatches = 1,
         .places = {},
         .adds_metrics = true,
         .roles = i32({kDocuments}),
         .lengths = f32({kDocuments}),
         .sums = f64({kDocuments}),
         .reference = f64({kDocuments}),
         .likelihoods = f64({kDocuments}),
         .totals = f64({kPreferenceTotals}),
         .confidences = f64({kDocuments}),
         .slopes = f32({kDocuments, 2}),
         .metrics = f32({3}),
         .workspace = {}},
        {&Pl::roles, &Pl::lengths, &Pl::sums, &Pl::reference, &Pl::likelihoods, &Pl::totals, &Pl::confidences,
         &Pl::slopes},
        {&Pl::metrics},
        {[](Pl& a) { a.places[1] = 3; }, [](Pl& a) { a.microbatches = 0; }, [](Pl& a) { a.terms.beta = 0; },
         [](Pl& a) {
           a.terms.likelihood_weight = 1;
           a.likelihoods = {};
         }});
    using Dw = DocumentWeights;
    expect_checks<Dw>(
        {.slopes = f32({kDocuments, 2}),
         .factors = f32({kTokens}),
         .likelihood_factors = f32({kTokens}),
         .starts = i32({kDocuments + 1}),
         .weights = f32({kTokens}),
         .losses = f32({kTokens})},
        {&Dw::slopes, &Dw::factors, &Dw::likelihood_factors, &Dw::starts, &Dw::weights, &Dw::losses});
  }
};

}  // namespace

extern const OperatorCheck kPreferenceLoss{"preference_loss", make_checks<PreferenceLossChecks>};

}  // namespace primus::turbo::test
