#include <functional>
#include <vector>

#include "turbo/operator_checks.h"
#include "turbo/selected_attention/selected_attention.h"

namespace primus::turbo::test {
namespace {

class SelectedAttentionChecks final : public OperatorChecks {
  void run() override {
    const SelectedAttentionShape shape{
        .tokens = kTokens, .rows = 9, .selected = 5, .heads = 3, .key_dim = 8, .value_dim = 7, .scale = 1};
    const Tensor q = bf16({kTokens, 24});
    const Tensor kv = bf16({9, 8});
    const Tensor selected = i32({kTokens, 5});
    const Tensor out = bf16({kTokens, 21});
    const Tensor lse = f32({3, kTokens});
    const auto shapes = []<class Call>(std::vector<std::function<void(Call&)>> more = {}) {
      std::vector<std::function<void(Call&)>> all = {
          [](Call& a) { a.shape.tokens = 7; },   [](Call& a) { a.shape.rows = 0; },
          [](Call& a) { a.shape.selected = 6; }, [](Call& a) { a.shape.heads = 2; },
          [](Call& a) { a.shape.key_dim = 6; },  [](Call& a) { a.shape.value_dim = 9; },
          [](Call& a) { a.shape.scale = 0; }};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    using Sf = SelectedAttentionForward;
    expect_checks<Sf>(
        {.shape = shape, .q = q, .kv = kv, .selected = selected, .sinks = bf16({3}), .out = out, .lse = lse},
        {&Sf::q, &Sf::kv, &Sf::selected, &Sf::sinks, &Sf::out, &Sf::lse}, {}, shapes.operator()<Sf>());
    using Sb = SelectedAttentionBackward;
    expect_checks<Sb>({.shape = shape,
                       .q = q,
                       .kv = kv,
                       .selected = selected,
                       .out = out,
                       .lse = lse,
                       .d_out = out,
                       .d_q = q,
                       .d_kv = kv},
                      {&Sb::q, &Sb::kv, &Sb::selected, &Sb::out, &Sb::lse, &Sb::d_out, &Sb::d_q, &Sb::d_kv},
                      {}, shapes.operator()<Sb>({[](Sb& a) { a.queries_at_once = -1; }}));
  }
};

}  // namespace

extern const OperatorCheck kSelectedAttention{"selected_attention", make_checks<SelectedAttentionChecks>};

}  // namespace primus::turbo::test
