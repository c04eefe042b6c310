#include "turbo/latent_attention/latent_attention.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class LatentAttentionChecks final : public OperatorChecks {
  void run() override {
    const LatentShape latent{.heads = 2, .rank = 16, .nope_dim = 5, .rope_dim = 4, .value_dim = 7};
    const Tensor lq = bf16({kTokens, 2 * 9});
    const Tensor kv = bf16({kTokens, 2 * 12});
    const Tensor key = bf16({kTokens, 4});
    const Tensor qkv = bf16({kTokens, 2 * (2 * 9 + 7)});
    using Lf = LatentQkv;
    expect_checks<Lf>({.shape = latent, .q = lq, .kv = kv, .rope_key = key, .qkv = qkv},
                      {&Lf::q, &Lf::kv, &Lf::rope_key, &Lf::qkv}, {}, {[](Lf& a) { a.shape.heads = 1; }});
    using Lb = LatentQkvBackward;
    expect_checks<Lb>({.shape = latent, .d_qkv = qkv, .d_q = lq, .d_kv = kv, .d_rope_key = key},
                      {&Lb::d_qkv, &Lb::d_q, &Lb::d_kv, &Lb::d_rope_key}, {},
                      {[](Lb& a) { a.shape.heads = 1; }});
    using Lp = LatentProject;
    expect_checks<Lp>({.shape = latent,
                       .side = Lp::Side::kQueries,
                       .x = lq,
                       .up = bf16({2 * 12, 16}),
                       .out = bf16({kTokens, 2 * 20})},
                      {&Lp::x, &Lp::up, &Lp::out}, {}, {[](Lp& a) { a.side = Lp::Side::kValues; }});
    expect_checks<Lp>({.shape = latent,
                       .side = Lp::Side::kValues,
                       .x = bf16({kTokens, 2 * 16}),
                       .up = bf16({2 * 12, 16}),
                       .out = bf16({kTokens, 2 * 7})},
                      {&Lp::x, &Lp::up, &Lp::out});
    using Li = LatentProjectBackwardInput;
    expect_checks<Li>({.shape = latent,
                       .side = Lp::Side::kQueries,
                       .d_out = bf16({kTokens, 2 * 20}),
                       .up = bf16({2 * 12, 16}),
                       .d_x = lq},
                      {&Li::d_out, &Li::up, &Li::d_x}, {}, {[](Li& a) { a.side = Lp::Side::kValues; }});
    using Lw = LatentProjectBackwardWeight;
    expect_checks<Lw>({.shape = latent,
                       .side = Lp::Side::kValues,
                       .x = bf16({kTokens, 2 * 16}),
                       .d_out = bf16({kTokens, 2 * 7}),
                       .d_up = f32({2 * 12, 16})},
                      {&Lw::x, &Lw::d_out, &Lw::d_up}, {}, {[](Lw& a) { a.side = Lp::Side::kQueries; }});
  }
};

}  // namespace

extern const OperatorCheck kLatentAttention{"latent_attention", make_checks<LatentAttentionChecks>};

}  // namespace primus::turbo::test
