#include "turbo/operator_checks.h"
#include "turbo/top_logits/top_logits.h"

namespace primus::turbo::test {
namespace {

class TopLogitsChecks final : public OperatorChecks {
  void run() override {
    using Tl = TopLogits;
    expect_checks<Tl>({.logits = f32({3, 70}), .vocab = 70, .values = f32({3, 64}), .ids = i32({3, 64})},
                      {&Tl::values, &Tl::ids}, {&Tl::logits},
                      {[](Tl& a) { a.vocab = 71; }, [](Tl& a) { a.vocab = 63; },
                       [](Tl& a) {
                         a.values = f32({3, 65});
                         a.ids = i32({3, 65});
                       }});
    expect_checks<Tl>({.logits = f32({3, 70}),
                       .vocab = 70,
                       .values = f32({3, 1}),
                       .draws = f64({3, 2}),
                       .ids = i32({3, 1})},
                      {&Tl::values, &Tl::ids}, {&Tl::logits, &Tl::draws},
                      {[](Tl& a) {
                         a.draws = f64({3, 3});
                       },
                       [](Tl& a) {
                         a.values = f32({3, 2});
                         a.ids = i32({3, 2});
                       }});
  }
};

}  // namespace

extern const OperatorCheck kTopLogits{"top_logits", make_checks<TopLogitsChecks>};

}  // namespace primus::turbo::test
