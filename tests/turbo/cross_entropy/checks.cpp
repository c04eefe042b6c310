#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class CrossEntropyChecks final : public OperatorChecks {
  void run() override {
    const Tensor rows = f32({kTokens});
    using Ce = CrossEntropy;
    expect_checks<Ce>({.logits = f32({kTokens, 99}),
                       .labels = i32({kTokens}),
                       .weights = rows,
                       .loss = rows,
                       .d_logits = bf16({kTokens, 99})},
                      {&Ce::logits, &Ce::labels, &Ce::weights, &Ce::loss, &Ce::d_logits}, {},
                      {[](Ce& a) { a.cap = -1; }});
    using Cp = CrossEntropyPart;
    expect_checks<Cp>(
        {.logits = f32({kTokens, 99}), .labels = i32({kTokens}), .part = f32({kTokens, kCrossEntropyValues})},
        {&Cp::labels, &Cp::part}, {&Cp::logits},
        {[](Cp& a) { a.first = -1; }, [](Cp& a) { a.cap = -1; },
         [](Cp& a) {
           a.part = f32({kTokens, 4});
         }});
    using Co = CrossEntropyOfParts;
    expect_checks<Co>(
        {.parts = f32({2, kTokens, kCrossEntropyValues}),
         .logits = f32({kTokens, 99}),
         .labels = i32({kTokens}),
         .weights = rows,
         .loss = rows,
         .d_logits = bf16({kTokens, 99}),
         .first = 1,
         .vocabulary = 100},
        {&Co::parts, &Co::logits, &Co::labels, &Co::weights, &Co::loss, &Co::d_logits}, {},
        {[](Co& a) { a.first = 2; }, [](Co& a) { a.first = -1; }, [](Co& a) { a.cap = -1; },
         [](Co& a) { a.entropy_weights = f32({kTokens}); }, [](Co& a) { a.entropies = f32({kTokens}); }});
    expect_checks<Co>({.parts = f32({2, kTokens, kEntropyValues}),
                       .logits = f32({kTokens, 99}),
                       .labels = i32({kTokens}),
                       .weights = rows,
                       .loss = rows,
                       .d_logits = bf16({kTokens, 99}),
                       .first = 1,
                       .vocabulary = 100,
                       .entropy_weights = rows,
                       .entropies = rows,
                       .collisions = rows},
                      {&Co::entropy_weights, &Co::entropies, &Co::collisions});
  }
};

}  // namespace

extern const OperatorCheck kCrossEntropy{"cross_entropy", make_checks<CrossEntropyChecks>};

}  // namespace primus::turbo::test
