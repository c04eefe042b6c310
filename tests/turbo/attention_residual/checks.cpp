#include "turbo/attention_residual/attention_residual.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class AttentionResidualChecks final : public OperatorChecks {
  void run() override {
    const Tensor x = bf16({kTokens, kWidth});
    const Tensor wide = bf16({kTokens, 2 * kWidth});
    const Tensor w = f32({kWidth});
    const Tensor factors = f32({kTokens, 3});
    const ResidualCandidates of{.checkpoints = wide, .stream = x, .norm = w, .proj = w, .eps = 1e-5F};
    using Ar = AttentionResidual;
    expect_checks<Ar>({.of = of, .out = x}, {&Ar::out}, {},
                      {[](Ar& a) {
                         a.of.checkpoints = bf16({kTokens, 2 * kWidth + 1});
                       },
                       [](Ar& a) {
                         a.of.checkpoints = f32({kTokens, 2 * kWidth});
                       },
                       [](Ar& a) {
                         a.of.checkpoints = bf16({kTokens, 64 * kWidth});
                       },
                       [](Ar& a) {
                         a.of.stream = bf16({kTokens + 1, kWidth});
                       },
                       [](Ar& a) { a.of.norm = bf16({kWidth}); },
                       [](Ar& a) { a.of.proj = f32({kWidth + 1}); }, [](Ar& a) { a.of.eps = -1; }});
    using Ab = AttentionResidualBackward;
    expect_checks<Ab>({.of = of,
                       .d_out = x,
                       .previous_checkpoints = wide,
                       .previous_stream = x,
                       .d_checkpoints = wide,
                       .d_stream = x,
                       .factors = factors},
                      {&Ab::d_out, &Ab::previous_checkpoints, &Ab::previous_stream, &Ab::d_checkpoints,
                       &Ab::d_stream, &Ab::factors},
                      {}, {[](Ab& a) { a.of.eps = -1; }});
    using Aw = AttentionResidualBackwardWeight;
    expect_checks<Aw>({.of = of, .factors = factors, .d_norm = w, .d_proj = w, .workspace = {}},
                      {&Aw::factors, &Aw::d_norm, &Aw::d_proj}, {}, {[](Aw& a) { a.of.eps = -1; }});
  }
};

}  // namespace

extern const OperatorCheck kAttentionResidual{"attention_residual", make_checks<AttentionResidualChecks>};

}  // namespace primus::turbo::test
