#include "turbo/distillation_loss/distillation_loss.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

// Appends the wrong forms that every call refuses.
template <class Call>
std::vector<std::function<void(Call&)>> wrong_forms(std::vector<std::function<void(Call&)>> others) {
  others.push_back([](Call& a) { a.form.beta = -0.1F; });
  others.push_back([](Call& a) { a.form.beta = 1.1F; });
  others.push_back([](Call& a) { a.form.temperature = 0; });
  others.push_back([](Call& a) { a.form.label_share = 1.5F; });
  others.push_back([](Call& a) { a.form.cap = -1; });
  others.push_back([](Call& a) { a.form.teacher_cap = -1; });
  return others;
}

class DistillationChecks final : public OperatorChecks {
  void run() override {
    const Tensor rows = f32({kTokens}), logits = f32({kTokens, 99});
    using Part = DistillationPart;
    expect_checks<Part>({.student = logits,
                         .teacher = logits,
                         .labels = i32({kTokens}),
                         .part = f32({kTokens, kDistillationValues})},
                        {&Part::student, &Part::teacher, &Part::labels, &Part::part}, {},
                        wrong_forms<Part>({[](Part& a) { a.first = -1; }}));
    using Sums = DistillationSums;
    expect_checks<Sums>({.parts = f32({2, kTokens, kDistillationValues}),
                         .student = logits,
                         .teacher = logits,
                         .weights = rows,
                         .sums = f32({kTokens, kDistillationSumValues})},
                        {&Sums::parts, &Sums::student, &Sums::teacher, &Sums::weights, &Sums::sums}, {},
                        wrong_forms<Sums>({}));
    using Loss = DistillationLoss;
    expect_checks<Loss>({.parts = f32({2, kTokens, kDistillationValues}),
                         .sums = f32({2, kTokens, kDistillationSumValues}),
                         .student = logits,
                         .teacher = logits,
                         .labels = i32({kTokens}),
                         .weights = rows,
                         .loss = rows,
                         .d_logits = bf16({kTokens, 99}),
                         .first = 1,
                         .vocabulary = 100},
                        {&Loss::parts, &Loss::sums, &Loss::student, &Loss::teacher, &Loss::labels,
                         &Loss::weights, &Loss::loss, &Loss::d_logits},
                        {},
                        wrong_forms<Loss>({[](Loss& a) { a.first = 2; }, [](Loss& a) { a.first = -1; },
                                           [](Loss& a) {
                                             a.sums = f32({1, kTokens, kDistillationSumValues});
                                           }}));
  }
};

}  // namespace

extern const OperatorCheck kDistillationCheck{"distillation_loss", make_checks<DistillationChecks>};

}  // namespace primus::turbo::test
