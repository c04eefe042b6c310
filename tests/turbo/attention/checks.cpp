#include <functional>
#include <vector>

#include "turbo/attention/attention.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/operator_checks.h"

namespace primus::turbo::test {
namespace {

class AttentionChecks final : public OperatorChecks {
  void run() override {
    constexpr std::int64_t kValueDim = 12;
    const Tensor positions = i32({kTokens});
    const AttentionShape shape{.batch = 2,
                               .seq_q = 3,
                               .seq_k = 3,
                               .capacity_k = 3,
                               .heads = kHeads,
                               .kv_heads = kKvHeads,
                               .head_dim = kHeadDim,
                               .value_dim = kValueDim,
                               .scale = 1,
                               .causal = true,
                               .window = 0};
    const std::int64_t q_width = kHeads * kHeadDim;
    const std::int64_t k_width = kKvHeads * kHeadDim;
    const std::int64_t v_width = kKvHeads * kValueDim;
    const Tensor q = bf16({kTokens, q_width});
    const Tensor k = bf16({kTokens, k_width});
    const Tensor v = bf16({kTokens, v_width});
    const Tensor out = bf16({kTokens, kHeads * kValueDim});
    const Tensor lse = f32({kHeads, kTokens});
    const Tensor sinks = bf16({kHeads});
    const auto with_qkv = [&](auto call) {
      call.q = q, call.k = k, call.v = v;
      call.q_stride = q_width, call.k_stride = k_width, call.v_stride = v_width;
      return call;
    };
    using Af = AttentionForward;
    expect_checks<Af>(
        with_qkv(Af{.shape = shape, .first_key = positions, .sinks = sinks, .out = out, .lse = lse}),
        {&Af::first_key, &Af::sinks, &Af::out, &Af::lse}, {&Af::q, &Af::k, &Af::v},
        {[](Af& a) { a.q_stride -= 1; }, [](Af& a) { a.k_stride -= 1; }, [](Af& a) { a.v_stride -= 1; },
         [](Af& a) { a.shape.kv_heads = 3; }, [](Af& a) { a.shape.capacity_k = 2; },
         [](Af& a) { a.shape.causal = false; }});
    using Ab = AttentionBackward;
    expect_checks<Ab>(
        with_qkv(Ab{.shape = shape,
                    .first_key = positions,
                    .out = out,
                    .lse = lse,
                    .d_out = out,
                    .d_q = q,
                    .d_k = k,
                    .d_v = v,
                    .d_q_stride = q_width,
                    .d_k_stride = k_width,
                    .d_v_stride = v_width}),
        {&Ab::first_key, &Ab::out, &Ab::lse, &Ab::d_out},
        {&Ab::q, &Ab::k, &Ab::v, &Ab::d_q, &Ab::d_k, &Ab::d_v},
        {[](Ab& a) { a.d_q_stride -= 1; }, [](Ab& a) { a.d_k_stride -= 1; }, [](Ab& a) { a.d_v_stride -= 1; },
         [](Ab& a) { a.shape.capacity_k = 2; }, [](Ab& a) { a.shape.q_first = -1; },
         [](Ab& a) { a.d_q.dtype = DType::kF32; }});  // the other gradients stay bf16
    using As = AttentionBackwardSinks;
    expect_checks<As>({.heads = kHeads,
                       .value_dim = kValueDim,
                       .sinks = sinks,
                       .out = out,
                       .lse = lse,
                       .d_out = out,
                       .d_sinks = f32({kHeads}),
                       .accumulate = false},
                      {&As::sinks, &As::out, &As::lse, &As::d_out, &As::d_sinks}, {},
                      {[](As& a) { a.heads = 3; }});
    using Am = AttentionMerge;
    expect_checks<Am>({.heads = kHeads,
                       .value_dim = kValueDim,
                       .part = out,
                       .part_lse = lse,
                       .out = f32(out.shape),
                       .lse = lse,
                       .accumulate = true},
                      {&Am::part, &Am::part_lse, &Am::out, &Am::lse}, {}, {[](Am& a) { a.heads = 3; }});
    const PagedSequences pages{
        .query_starts = i32({4}), .key_lengths = i32({3}), .block_table = i32({3, 5}), .page_size = 64};
    const auto wrong_pages = []<class Call>() {
      return std::vector<std::function<void(Call&)>>{
          [](Call& a) { a.sequences.query_starts = widened(a.sequences.query_starts); },
          [](Call& a) { a.sequences.query_starts = retyped(a.sequences.query_starts); },
          [](Call& a) { a.sequences.key_lengths = widened(a.sequences.key_lengths); },
          [](Call& a) { a.sequences.key_lengths = retyped(a.sequences.key_lengths); },
          [](Call& a) {
            a.sequences.block_table = i32({4, 5});
          },
          [](Call& a) { a.sequences.block_table = retyped(a.sequences.block_table); },
          [](Call& a) { a.sequences.page_size = 32; },
          [](Call& a) { a.sequences.page_size = 96; }};
    };
    using Pp = PagedAppend;
    std::vector<std::function<void(Pp&)>> wrong_append = wrong_pages.operator()<Pp>();
    wrong_append.insert(wrong_append.end(),
                        {[](Pp& a) { a.stride = a.cols - 1; }, [](Pp& a) { a.to_stride = a.cols - 1; },
                         [](Pp& a) { a.more_cols = 0; }, [](Pp& a) { a.more_cols = a.stride + 1; },
                         [](Pp& a) { a.more_to_stride = a.more_cols - 1; }, [](Pp& a) { a.more_rows = {}; },
                         [](Pp& a) { a.more_pages = {}; }});
    expect_checks<Pp>({.sequences = pages,
                       .rows = k,
                       .pages = k,
                       .tokens = kTokens,
                       .cols = k_width,
                       .stride = k_width,
                       .to_stride = k_width,
                       .more_rows = k,
                       .more_pages = k,
                       .more_cols = k_width,
                       .more_to_stride = k_width},
                      {}, {&Pp::rows, &Pp::pages, &Pp::more_rows, &Pp::more_pages}, wrong_append);
    const Pp latents{
        .sequences = pages,
        .rows = k,
        .pages = k,
        .tokens = kTokens,
        .cols = k_width,
        .stride = k_width,
        .to_stride = k_width,
        .around = {
            .norm = bf16({k_width - 4}), .eps = 1e-6F, .positions = i32({kTokens}), .table = f32({9, 4})}};
    const auto changed = [](auto change) { return [change](Pp& a) { change(a.around); }; };
    expect_checks<Pp>(
        latents, {}, {},
        {changed([](AroundAppend& p) { p.norm = retyped(p.norm); }),
         changed([&](AroundAppend& p) { p.norm = bf16({k_width}); }),
         changed([](AroundAppend& p) { p.eps = 0; }), changed([](AroundAppend& p) { p.positions = {}; }),
         changed([](AroundAppend& p) { p.positions = widened(p.positions); }),
         changed([](AroundAppend& p) { p.table = widened(p.table); })});
    using Pa = PagedAttention;
    std::vector<std::function<void(Pa&)>> wrong_paged = wrong_pages.operator()<Pa>();
    wrong_paged.insert(wrong_paged.end(), {[](Pa& a) { a.q_stride -= 1; }, [](Pa& a) { a.k_stride -= 1; },
                                           [](Pa& a) { a.v_stride -= 1; }, [](Pa& a) { a.kv_heads = 3; },
                                           [](Pa& a) { a.window = -1; }});
    expect_checks<Pa>(with_qkv(Pa{.sequences = pages,
                                  .tokens = kTokens,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = kHeadDim,
                                  .value_dim = kValueDim,
                                  .scale = 1,
                                  .window = 0,
                                  .chunk = 0,
                                  .sinks = sinks,
                                  .out = out}),
                      {&Pa::sinks, &Pa::out}, {&Pa::q, &Pa::k, &Pa::v}, wrong_paged);
  }
};

}  // namespace

extern const OperatorCheck kAttention{"attention", make_checks<AttentionChecks>};

}  // namespace primus::turbo::test
