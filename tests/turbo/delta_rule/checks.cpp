#include <functional>
#include <vector>

#include "turbo/delta_rule/delta_rule.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class DeltaRuleChecks final : public OperatorChecks {
  void run() override {
    const DeltaRuleShape shape{.batch = 2,
                               .sequence = 3,
                               .key_heads = 2,
                               .value_heads = 4,
                               .key_dim = 8,
                               .value_dim = 12,
                               .channel_gates = true,
                               .normalise = true,
                               .scale = 1};
    const Tensor qkv = bf16({kTokens, shape.width()});
    const Tensor out = bf16({kTokens, 48});
    const Tensor g = f32({kTokens, 32});
    const Tensor beta = f32({kTokens, 4});
    const Tensor first_key = i32({kTokens});
    const auto shapes = []<class Call>(std::vector<std::function<void(Call&)>> more = {}) {
      std::vector<std::function<void(Call&)>> all = {
          [](Call& a) { a.shape.batch = 0; },       [](Call& a) { a.shape.sequence = 0; },
          [](Call& a) { a.shape.key_heads = 0; },   [](Call& a) { a.shape.key_heads = 3; },
          [](Call& a) { a.shape.value_heads = 0; }, [](Call& a) { a.shape.key_dim = 257; },
          [](Call& a) { a.shape.value_dim = 257; }, [](Call& a) { a.shape.channel_gates = false; },
          [](Call& a) { a.shape.epsilon = 0; }};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    using Df = DeltaRuleForward;
    Df forward{.shape = shape, .qkv = qkv, .g = g, .beta = beta, .first_key = first_key, .out = out};
    expect_checks<Df>(forward, {&Df::qkv, &Df::g, &Df::beta, &Df::first_key, &Df::out}, {},
                      shapes.operator()<Df>());
    forward.first_key = {};
    EXPECT_EQ(refusal(forward), "");
    using Db = DeltaRuleBackward;
    expect_checks<Db>(
        {.shape = shape,
         .qkv = qkv,
         .g = g,
         .beta = beta,
         .first_key = first_key,
         .d_out = out,
         .d_qkv = qkv,
         .d_g = g,
         .d_beta = beta},
        {&Db::qkv, &Db::g, &Db::beta, &Db::first_key, &Db::d_out, &Db::d_qkv, &Db::d_g, &Db::d_beta}, {},
        shapes.operator()<Db>());
    using Dc = CachedDeltaRule;
    Dc cached{.sequences = {.query_starts = i32({4}),
                            .key_lengths = i32({3}),
                            .block_table = i32({3, 5}),
                            .page_size = 64},
              .shape = shape,
              .spare = 2,
              .qkv = qkv,
              .g = g,
              .beta = beta,
              .state = f32({3, 4, 8, 12}),
              .recent = f32({3, 5, 4 * shape.recent_width()}),
              .committed = i32({3, 4}),
              .out = out};
    cached.shape.batch = 1, cached.shape.sequence = kTokens;
    expect_checks<Dc>(cached,
                      {&Dc::qkv, &Dc::g, &Dc::beta, &Dc::state, &Dc::recent, &Dc::committed, &Dc::out}, {},
                      shapes.operator()<Dc>({[](Dc& a) { a.spare = 5; }, [](Dc& a) { a.spare = -1; },
                                             [](Dc& a) { a.shape.batch = 2, a.shape.sequence = 3; },
                                             [](Dc& a) { a.sequences.key_lengths = i32({2}); }}));
    Dc net = cached;
    net.shape.channel_gates = false;
    net.sequences.single = true;
    net.qkv = net.g = net.beta = {};
    net.recent = f32({3, 5, 4 * net.shape.recent_width()});
    net.out = bf16({kTokens, net.shape.out_width()});
    net.around = {.wide = bf16({kTokens, AroundDeltaRule::columns(net.shape)}),
                  .kernel = bf16({net.shape.width(), 3}),
                  .ring = f32({3, 4, net.shape.width()}),
                  .a_log = f32({4}),
                  .dt_bias = f32({4}),
                  .norm = bf16({12}),
                  .eps = 1e-6F};
    const auto changed = [](auto change) { return [change](Dc& a) { change(a.around); }; };
    expect_checks<Dc>(
        net, {}, {},
        {[](Dc& a) { a.sequences.single = false; }, [&](Dc& a) { a.qkv = qkv; },
         [](Dc& a) { a.out = widened(a.out); }, changed([](AroundDeltaRule& p) { p.wide = widened(p.wide); }),
         changed([](AroundDeltaRule& p) { p.kernel = retyped(p.kernel); }), changed([](AroundDeltaRule& p) {
           p.ring = f32({3, 2, p.ring.shape[2]});
         }),
         changed([](AroundDeltaRule& p) { p.a_log = widened(p.a_log); }),
         changed([](AroundDeltaRule& p) { p.dt_bias = retyped(p.dt_bias); }),
         changed([](AroundDeltaRule& p) { p.norm = widened(p.norm); }),
         changed([](AroundDeltaRule& p) { p.eps = 0; })});
  }
};

}  // namespace

extern const OperatorCheck kDeltaRule{"delta_rule", make_checks<DeltaRuleChecks>};

}  // namespace primus::turbo::test
