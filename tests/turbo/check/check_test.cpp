// launch() refuses wrong operands before any kernel sees them: for every kernel, a call that is right, and
// each of its operands in turn with a type that no kernel takes, and one column too wide.
#include "turbo/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "turbo/adamw/adamw.h"
#include "turbo/attention/attention.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/attention_residual/attention_residual.h"
#include "turbo/bias/bias.h"
#include "turbo/block_moments.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/channel_gate/channel_gate.h"
#include "turbo/column_runs/column_runs.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/delta_gates/delta_gates.h"
#include "turbo/delta_rule/delta_rule.h"
#include "turbo/dropout/dropout.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/embedding/embedding.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/gate/gate.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/hyper_connection/hyper_connection.h"
#include "turbo/indexer/indexer.h"
#include "turbo/latent_attention/latent_attention.h"
#include "turbo/latent_pooling/latent_pooling.h"
#include "turbo/layer_norm/layer_norm.h"
#include "turbo/linear/linear.h"
#include "turbo/lion/lion.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/muon/muon.h"
#include "turbo/mxfp4/mxfp4.h"
#include "turbo/oscillation/oscillation.h"
#include "turbo/position_scale/position_scale.h"
#include "turbo/quantile_balance/quantile_balance.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/router/router.h"
#include "turbo/selected_attention/selected_attention.h"
#include "turbo/sgd/sgd.h"
#include "turbo/situ/situ.h"
#include "turbo/soft_cap/soft_cap.h"
#include "turbo/step_scalars.h"
#include "turbo/swiglu/swiglu.h"
#include "turbo/top_logits/top_logits.h"

namespace primus::turbo::test {
namespace {

// Extents that differ from each other, so that no wrong one is right by chance.
constexpr std::int64_t kTokens = 6, kWidth = 10, kExperts = 4, kTopK = 2, kSlots = kTokens * kTopK;

Tensor f32(Shape shape) { return {nullptr, DType::kF32, shape}; }
Tensor bf16(Shape shape) { return {nullptr, DType::kBF16, shape}; }
Tensor f64(Shape shape) { return {nullptr, DType::kF64, shape}; }
Tensor i16(Shape shape) { return {nullptr, DType::kI16, shape}; }
Tensor i32(Shape shape) { return {nullptr, DType::kI32, shape}; }

Tensor widened(const Tensor& t) {
  switch (t.shape.rank()) {
    case 1:
      return {t.data, t.dtype, {t.shape[0] + 1}};
    case 2:
      return {t.data, t.dtype, {t.shape[0], t.shape[1] + 1}};
    default:
      return {t.data, t.dtype, {t.shape[0], t.shape[1], t.shape[2] + 1}};
  }
}

Tensor retyped(const Tensor& t) { return {t.data, DType::kI8, t.shape}; }

class CheckTest : public ::testing::Test {
 protected:
  // Launches without running anything: a scratch arena that only measures.
  template <class Arguments>
  std::string refusal(const Arguments& arguments) {
    try {
      launch(context_, arguments);
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return {};
  }

  template <class Arguments>
  void expect_refused(const Arguments& arguments, const std::string& what) {
    const std::string prefix = std::string(name_of(Arguments::kId)) + ": check failed: ";
    EXPECT_EQ(refusal(arguments).substr(0, prefix.size()), prefix) << what;
  }

  // `shaped` are operands whose type and shape a check can know, `typed` are the first elements of views and
  // what has any extent; `changes` make other attributes wrong.
  template <class Arguments>
  void expect_checks(const Arguments& right, std::vector<Tensor Arguments::*> shaped,
                     std::vector<Tensor Arguments::*> typed = {},
                     std::vector<std::function<void(Arguments&)>> changes = {}) {
    covered_[Arguments::kId] = true;
    EXPECT_EQ(refusal(right), "") << name_of(Arguments::kId);
    int operand = 0;
    for (const auto member : shaped) {
      Arguments wide = right;
      wide.*member = widened(wide.*member);
      expect_refused(wide, "operand " + std::to_string(operand) + " too wide");
      typed.insert(typed.begin() + operand++, member);
    }
    operand = 0;
    for (const auto member : typed) {
      Arguments other = right;
      other.*member = retyped(other.*member);
      expect_refused(other, "operand " + std::to_string(operand++) + " of a wrong type");
    }
    operand = 0;
    for (const auto& change : changes) {
      Arguments changed = right;
      change(changed);
      expect_refused(changed, "change " + std::to_string(operand++));
    }
  }

  // `right` lacks nothing but the remainder of its masters.
  template <class Arguments>
  void expect_split_masters(Arguments right) {
    expect_refused(right, "no masters");
    right.remainder = i16({kWidth});
    expect_checks<Arguments>(right, {&Arguments::working, &Arguments::remainder}, {},
                             {[](Arguments& a) { a.param = f32({kWidth}); },  // two forms at once
                              [](Arguments& a) { a.working = {}; }});
  }

  cpu::CpuDevice device_{1, cpu_kernel_table(best_isa_level())};
  std::unique_ptr<Stream> stream_ = device_.create_stream(StreamKind::kCompute);
  Arena scratch_{"scratch"};
  Meter meter_;
  Context context_{device_, *stream_, scratch_, meter_};
  std::map<KernelId, bool> covered_;

  void check_dense();
  void check_kimi();
  void check_attention();
  void check_convolutions();
  void check_delta_rule();
  void check_gates();
  void check_selection();
  void check_compressed();
  void check_experts();
  void check_update();
};

// What Kimi Linear and Kimi K3 alone have.
void CheckTest::check_kimi() {
  const Tensor x = bf16({kTokens, kWidth});
  const ChannelGates gates{.z = bf16({kTokens, 6}),
                           .b = bf16({kTokens, 2}),
                           .a_log = f32({2}),
                           .bias = f32({6}),
                           .lower_bound = -5};
  const Tensor of_channels = f32({kTokens, 6}), of_heads = f32({kTokens, 2});
  using Dg = ChannelGateForward;
  expect_checks<Dg>({.of = gates, .g = of_channels, .beta = of_heads}, {&Dg::g, &Dg::beta}, {},
                    {[](Dg& a) {
                       a.of.z = bf16({kTokens, 7});
                     },
                     [](Dg& a) {
                       a.of.b = f32({kTokens, 2});
                     },
                     [](Dg& a) { a.of.a_log = f32({3}); }, [](Dg& a) { a.of.bias = f32({7}); },
                     [](Dg& a) { a.of.lower_bound = 1; }});
  using Db = ChannelGateBackward;
  expect_checks<Db>({.of = gates,
                     .d_g = of_channels,
                     .d_beta = of_heads,
                     .d_z = bf16({kTokens, 6}),
                     .d_b = bf16({kTokens, 2})},
                    {&Db::d_g, &Db::d_beta, &Db::d_z, &Db::d_b}, {}, {[](Db& a) { a.of.lower_bound = 1; }});
  using Dw = ChannelGateBackwardWeight;
  expect_checks<Dw>({.of = gates, .d_g = of_channels, .d_weight = f32({8}), .workspace = {}},
                    {&Dw::d_g, &Dw::d_weight}, {}, {[](Dw& a) { a.of.lower_bound = 1; }});
  using Cb = ChannelGateBias;
  expect_checks<Cb>({.x = f32({8}), .low = 1, .high = 2}, {}, {&Cb::x},
                    {[](Cb& a) { a.low = 0; }, [](Cb& a) { a.high = 1; }});
  using Mh = MarginHistogram;
  const MarginBins bins{.low = -1, .high = 1};
  const auto no_range = [](auto& a) { a.bins.high = -1; };
  const auto all_chosen = [](auto& a) { a.top_k = 9; };
  expect_checks<Mh>({.bins = bins,
                     .top_k = 2,
                     .logits = f32({kTokens, 8}),
                     .bias = f32({8}),
                     .counts = i32({8, 16}),
                     .workspace = {}},
                    {&Mh::logits, &Mh::bias}, {&Mh::counts}, {no_range, all_chosen});
  using Qb = QuantileBiasUpdate;
  expect_checks<Qb>(
      {.bins = bins, .top_k = 2, .counts = i32({8, 16}), .bias = f32({8}), .centred = true, .kept = 0},
      {&Qb::bias}, {&Qb::counts}, {no_range, all_chosen, [](Qb& a) { a.kept = 1; }});
  using Si = SituForward;
  expect_checks<Si>({.gate_up = bf16({kTokens, 2 * kWidth}), .out = x, .beta = 4, .linear_beta = 0},
                    {&Si::gate_up, &Si::out}, {},
                    {[](Si& a) { a.beta = 0; }, [](Si& a) { a.linear_beta = -1; }});
  using Sb = SituBackward;
  const Tensor wide = bf16({kTokens, 2 * kWidth});
  expect_checks<Sb>({.gate_up = wide, .d_out = x, .d_gate_up = wide, .beta = 4, .linear_beta = 25},
                    {&Sb::gate_up, &Sb::d_out, &Sb::d_gate_up}, {},
                    {[](Sb& a) { a.beta = 0; }, [](Sb& a) { a.linear_beta = -1; }});
  const Tensor w = f32({kWidth}), factors = f32({kTokens, 3});
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
                     [](Ar& a) { a.of.norm = bf16({kWidth}); }, [](Ar& a) { a.of.proj = f32({kWidth + 1}); },
                     [](Ar& a) { a.of.eps = -1; }});
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

void CheckTest::check_dense() {
  const Tensor x = bf16({kTokens, kWidth}), rows = f32({kTokens});
  using Ef = EmbeddingForward;
  expect_checks<Ef>({.tokens = i32({kTokens}), .table = bf16({99, kWidth}), .out = x},
                    {&Ef::tokens, &Ef::table, &Ef::out}, {}, {[](Ef& a) { a.first = 1; }});
  expect_checks<Ef>(
      {.tokens = i32({kTokens}), .table = bf16({99, kWidth}), .out = x, .first = 1, .vocabulary = 100}, {},
      {}, {[](Ef& a) { a.first = 2; }, [](Ef& a) { a.first = -1; }});
  using Eb = EmbeddingBackwardWeight;
  expect_checks<Eb>({.tokens = i32({kTokens}), .d_out = x, .d_table = f32({99, kWidth}), .accumulate = false},
                    {&Eb::tokens, &Eb::d_out, &Eb::d_table}, {},
                    {[](Eb& a) { a.first = 1; }, [](Eb& a) { a.vocabulary = 98; }});
  using Nf = RmsNormForward;
  expect_checks<Nf>(
      {.x = x, .delta = x, .weight = bf16({kWidth}), .sum = x, .y = x, .rstd = rows, .eps = 1e-5F},
      {&Nf::x, &Nf::delta, &Nf::weight, &Nf::sum, &Nf::y, &Nf::rstd}, {}, {[](Nf& a) { a.sum = {}; }});
  using Ni = RmsNormBackwardInput;
  expect_checks<Ni>({.x = x,
                     .weight = bf16({kWidth}),
                     .rstd = rows,
                     .d_y = x,
                     .d_sum = x,
                     .d_x = x,
                     .d_weight = f32({kWidth})},
                    {&Ni::x, &Ni::weight, &Ni::rstd, &Ni::d_y, &Ni::d_sum, &Ni::d_x, &Ni::d_weight});
  using Nw = RmsNormBackwardWeight;
  expect_checks<Nw>({.x = x, .rstd = rows, .d_y = x, .d_weight = f32({kWidth}), .accumulate = false},
                    {&Nw::x, &Nw::rstd, &Nw::d_y, &Nw::d_weight});
  const Tensor weight = bf16({7, kWidth}), y = bf16({kTokens, 7});
  expect_checks<Gemm>({.role = GemmRole::kForward, .a = x, .b = weight, .c = y},
                      {&Gemm::a, &Gemm::b, &Gemm::c});
  constexpr std::int64_t kVectors = 2 * AroundProduct::kColumnMultiple;
  using End = AroundProduct::End;
  const Tensor few = bf16({kTokens, kVectors});
  Gemm around{.role = GemmRole::kForward,
              .a = few,
              .b = bf16({12, kVectors}),
              .c = bf16({kTokens, 12}),
              .around = {.norm = bf16({kVectors}), .delta = few, .sum = few, .bias = bf16({12})}};
  const auto changed = [](auto change) { return [change](Gemm& g) { change(g.around); }; };
  using Ap = AroundProduct;
  expect_checks<Gemm>(
      around, {&Gemm::a, &Gemm::b, &Gemm::c}, {},
      {[](Gemm& g) { g.accumulate = true; }, changed([](Ap& p) { p.sum = {}; }),
       changed([](Ap& p) { p.delta = widened(p.delta); }), changed([](Ap& p) { p.norm = widened(p.norm); }),
       changed([](Ap& p) { p.norm = retyped(p.norm); }), changed([](Ap& p) { p.bias = widened(p.bias); }),
       changed([](Ap& p) { p.end = End::kSwiglu; }), changed([](Ap& p) { p.end = End::kRope; })});
  around.around.end = End::kRope;
  around.around.positions = i32({kTokens}), around.around.table = f32({99, 4});
  around.around.heads = 2, around.around.head_dim = 4;
  expect_checks<Gemm>(around, {}, {},
                      {changed([](Ap& p) { p.positions = widened(p.positions); }),
                       changed([](Ap& p) { p.table = widened(p.table); }),
                       changed([](Ap& p) { p.heads = 4; }), changed([](Ap& p) { p.head_dim = 3; })});
  expect_checks<Gemm>({.role = GemmRole::kInputGradient, .a = y, .b = weight, .c = x},
                      {&Gemm::a, &Gemm::b, &Gemm::c});
  expect_checks<Gemm>({.role = GemmRole::kWeightGradient, .a = y, .b = x, .c = f32({7, kWidth})},
                      {&Gemm::a, &Gemm::b, &Gemm::c});
  // Extents of fp8 are multiples of 16.
  const auto e4m3 = [](Shape shape) { return Tensor(nullptr, DType::kF8E4M3, shape); };
  const auto e5m2 = [](Shape shape) { return Tensor(nullptr, DType::kF8E5M2, shape); };
  using Qf = QuantizeFp8;
  expect_checks<Qf>(
      {.x = bf16({32, 48}), .codes = e5m2({32, 48}), .transposed = e5m2({48, 32}), .scales = f32({2})},
      {&Qf::x, &Qf::codes, &Qf::transposed, &Qf::scales}, {},
      {[](Qf& a) { a.codes = a.transposed = {}; },
       [&](Qf& a) {
         a.codes = e4m3({32, 48});
       },
       [](Qf& a) { a.codes.data = reinterpret_cast<void*>(8); }});
  expect_checks<Qf>(
      {.x = bf16({32, 48}), .codes = e5m2({32, 48}), .scales = f32({2}), .known = true, .largest = i32({1})},
      {&Qf::x, &Qf::codes, &Qf::scales, &Qf::largest}, {}, {[](Qf& a) { a.known = false; }});
  using Us = UpdateFp8Scales;
  expect_checks<Us>(
      {.largest = i32({5, 3}), .history = f32({5, 3, 7}), .scales = f32({5, 3, 4}), .norm = f32({1})},
      {&Us::largest, &Us::scales, &Us::norm}, {&Us::history},
      {[](Us& a) { a.gradients = DType::kBF16; }, [](Us& a) { a.margin = -1; }});
  using Fg = Fp8Gemm;
  expect_checks<Fg>({.a = e5m2({32, 48}),
                     .b = e4m3({16, 48}),
                     .a_scales = f32({2}),
                     .b_scales = f32({2}),
                     .c = bf16({32, 16})},
                    {&Fg::a, &Fg::b, &Fg::a_scales, &Fg::b_scales, &Fg::c}, {},
                    {[&](Fg& a) {
                       a.b = e5m2({16, 48});
                     },  // GPUs do not multiply e5m2 by e5m2
                     [](Fg& a) { a.b.data = reinterpret_cast<void*>(8); }});
  using Rm = RoundMxfp4;
  expect_checks<Rm>({.x = bf16({32, 48}), .out = bf16({32, 48})}, {&Rm::x, &Rm::out}, {},
                    {[](Rm& a) { a.hadamard = true; }, [](Rm& a) { a.offsets = i32({3}); }});
  expect_checks<Rm>({.x = bf16({32, 48}),
                     .out = bf16({50, 48}),
                     .blocks = Rm::Blocks::kColumns,
                     .offsets = i32({3}),
                     .picks = i32({50})},
                    {&Rm::x, &Rm::out, &Rm::picks}, {&Rm::offsets}, {[](Rm& a) { a.offsets = {}; }});
  const Rm random{.x = bf16({32, 48}),
                  .out = bf16({32, 48}),
                  .random = {.tokens = i32({32}), .scalars = f64({kStepScalars}), .width = 48}};
  expect_checks<Rm>(random, {&Rm::x, &Rm::out}, {},
                    {[](Rm& a) { a.blocks = Rm::Blocks::kTiles; }, [](Rm& a) { a.random.tokens = i32({31}); },
                     [](Rm& a) { a.random.scalars = f32({kStepScalars}); },
                     [](Rm& a) { a.random.width = 47; }, [](Rm& a) { a.random.run_count = 4; }});
  expect_checks<AddBias>({.x = x, .bias = bf16({kWidth}), .y = x},
                         {&AddBias::x, &AddBias::bias, &AddBias::y});
  using Bw = AddBiasBackwardWeight;
  expect_checks<Bw>({.d_y = x, .d_bias = f32({kWidth}), .accumulate = false}, {&Bw::d_y, &Bw::d_bias});
  const Tensor gate_up = bf16({kTokens, 2 * kWidth});
  using Sf = SwigluForward;
  expect_checks<Sf>({.gate_up = gate_up, .out = x}, {&Sf::gate_up, &Sf::out});
  using Sb = SwigluBackward;
  expect_checks<Sb>({.gate_up = gate_up, .d_out = x, .d_gate_up = gate_up},
                    {&Sb::gate_up, &Sb::d_out, &Sb::d_gate_up});
  using Cf = ClampedSwigluForward;
  expect_checks<Cf>({.gate_up = gate_up, .out = x, .limit = 7}, {&Cf::gate_up, &Cf::out}, {},
                    {[](Cf& a) { a.limit = 0; }});
  using Cb = ClampedSwigluBackward;
  expect_checks<Cb>({.gate_up = gate_up, .d_out = x, .d_gate_up = gate_up, .limit = 7},
                    {&Cb::gate_up, &Cb::d_out, &Cb::d_gate_up}, {}, {[](Cb& a) { a.limit = 0; }});
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
      {&Cp::labels, &Cp::part}, {&Cp::logits}, {[](Cp& a) { a.first = -1; }, [](Cp& a) { a.cap = -1; }});
  using Co = CrossEntropyOfParts;
  expect_checks<Co>({.parts = f32({2, kTokens, kCrossEntropyValues}),
                     .logits = f32({kTokens, 99}),
                     .labels = i32({kTokens}),
                     .weights = rows,
                     .loss = rows,
                     .d_logits = bf16({kTokens, 99}),
                     .first = 1,
                     .vocabulary = 100},
                    {&Co::parts, &Co::logits, &Co::labels, &Co::weights, &Co::loss, &Co::d_logits}, {},
                    {[](Co& a) { a.first = 2; }, [](Co& a) { a.first = -1; }, [](Co& a) { a.cap = -1; }});
  const auto no_cap = [](auto& a) { a.cap = 0; };
  expect_checks<SoftCap>({.x = x, .y = x, .cap = 30}, {&SoftCap::x, &SoftCap::y}, {}, {no_cap});
  using Sc = SoftCapBackward;
  expect_checks<Sc>({.y = x, .d_y = x, .d_x = x, .cap = 30}, {&Sc::y, &Sc::d_y, &Sc::d_x}, {}, {no_cap});
  expect_checks<Add>({.a = x, .b = x, .out = x}, {&Add::a, &Add::b, &Add::out});
  expect_checks<Add>({.a = x, .b = bf16({2 * kTokens, kWidth}), .out = x, .ranks = 3, .rank = 2},
                     {&Add::a, &Add::b, &Add::out}, {},
                     {[](Add& a) { a.ranks = 2; }, [](Add& a) { a.rank = 3; }, [](Add& a) { a.rank = -1; }});
  const Tensor masters = f32({kWidth}), values = bf16({kWidth});
  using Round = RoundMasters;
  expect_checks<Round>({.masters = masters, .working = values, .remainder = i16({kWidth})},
                       {&Round::masters, &Round::working, &Round::remainder});
  expect_checks<Cast>({.x = x, .out = f32({kTokens, kWidth})}, {&Cast::x, &Cast::out});
  expect_checks<Sum>({.x = rows, .out = f32({1}), .accumulate = false}, {&Sum::out}, {&Sum::x});
  using Nan = CountNonFinite;
  expect_checks<Nan>({.x = x, .out = i32({1}), .accumulate = false}, {&Nan::out}, {&Nan::x});
  using Rn = RandomNormal;
  expect_checks<Rn>({.out = rows, .seed = 1, .stream = 2, .offset = 0, .mean = 0, .std = 1}, {}, {&Rn::out},
                    {[](Rn& a) { a.offset = -1; }, [](Rn& a) { a.length = -1; }, [](Rn& a) { a.stride = 1; },
                     [](Rn& a) { a.length = 7; }});
  expect_checks<Scale>({.x = x, .out = x, .factor = 2}, {&Scale::x, &Scale::out});
  expect_checks<LogUniform>({.x = rows, .low = 1, .high = 2}, {}, {&LogUniform::x},
                            {[](LogUniform& a) { a.low = 0; }, [](LogUniform& a) { a.high = 1; }});
  check_gates();
  const auto runs_backwards = [](Dropout& a) { a.run_count = 2, a.runs = {{{0, 0}, {0, 4}, {}}}; };
  expect_checks<Dropout>({.x = bf16({kTokens, kWidth}),
                          .out = bf16({kTokens, kWidth}),
                          .tokens = i32({kTokens}),
                          .scalars = f64({kStepScalars}),
                          .rate = 0.1F},
                         {&Dropout::x, &Dropout::out, &Dropout::tokens, &Dropout::scalars}, {},
                         {[](Dropout& a) { a.rate = 0; }, [](Dropout& a) { a.rate = 1; },
                          [](Dropout& a) { a.run_count = Dropout::kMostRuns + 1; }, runs_backwards});
  expect_checks<Fill>({.out = x, .value = 1}, {}, {&Fill::out});
  using Cr = CopyRows;
  expect_checks<Cr>({.from = x,
                     .to = x,
                     .rows = kTokens,
                     .cols = kWidth,
                     .from_stride = kWidth,
                     .to_stride = kWidth,
                     .group_rows = kTokens,
                     .to_group_stride = kTokens * kWidth},
                    {}, {&Cr::from, &Cr::to},
                    {[](Cr& a) { a.from_stride = kWidth - 1; }, [](Cr& a) { a.to_stride = kWidth - 1; },
                     [](Cr& a) { a.group_rows = 0; }, [](Cr& a) { a.rows = -1; },
                     [](Cr& a) { a.from.dtype = a.to.dtype = DType::kI32, a.add = true; }});
}

void CheckTest::check_compressed() {
  const HyperShape hyper{.streams = 2, .iterations = 3, .eps = 1e-6F, .norm_eps = 1e-6F};
  const Tensor streams = bf16({kTokens, 2 * kWidth}), y = bf16({kTokens, kWidth});
  const Tensor products = f32({kTokens, hyper.products()}), mixing = f32({kTokens, hyper.mixing()});
  const Tensor base = f32({hyper.products()}), scale = f32({hyper.scales()}), rstd = f32({kTokens});
  const auto shapes = []<class Call>() {
    return std::vector<std::function<void(Call&)>>{
        [](Call& a) { a.shape.streams = 9; }, [](Call& a) { a.shape.streams = 1; },
        [](Call& a) { a.shape.iterations = -1; }, [](Call& a) { a.shape.iterations = 65; }};
  };
  using Hr = HyperRead;
  expect_checks<Hr>({.shape = hyper,
                     .x = streams,
                     .products = products,
                     .base = base,
                     .scale = scale,
                     .y = y,
                     .mixing = mixing,
                     .rstd = rstd},
                    {&Hr::x, &Hr::products, &Hr::base, &Hr::scale, &Hr::y, &Hr::mixing, &Hr::rstd}, {},
                    shapes.operator()<Hr>());
  using Hb = HyperReadBackward;
  expect_checks<Hb>({.shape = hyper,
                     .x = streams,
                     .products = products,
                     .base = base,
                     .scale = scale,
                     .rstd = rstd,
                     .d_y = y,
                     .d_mixing = mixing,
                     .previous = streams,
                     .d_x = streams,
                     .d_products = products,
                     .d_base = products,
                     .d_scale = f32({kTokens, hyper.scales()})},
                    {&Hb::x, &Hb::products, &Hb::base, &Hb::scale, &Hb::rstd, &Hb::d_y, &Hb::d_mixing,
                     &Hb::previous, &Hb::d_x, &Hb::d_products, &Hb::d_base, &Hb::d_scale},
                    {}, shapes.operator()<Hb>());
  using Hw = HyperWrite;
  expect_checks<Hw>({.shape = hyper, .x = streams, .out = y, .mixing = mixing, .z = streams},
                    {&Hw::x, &Hw::out, &Hw::mixing, &Hw::z}, {}, shapes.operator()<Hw>());
  using Hg = HyperWriteBackward;
  expect_checks<Hg>(
      {.shape = hyper,
       .x = streams,
       .out = y,
       .mixing = mixing,
       .d_z = streams,
       .previous = streams,
       .d_x = streams,
       .d_out = y,
       .d_mixing = mixing},
      {&Hg::x, &Hg::out, &Hg::mixing, &Hg::d_z, &Hg::previous, &Hg::d_x, &Hg::d_out, &Hg::d_mixing}, {},
      shapes.operator()<Hg>());

  const PoolingShape pooling{.batch = 2, .sequence = 3, .ratio = 2, .dim = kWidth, .overlap = true};
  const Tensor projection = bf16({kTokens, 4 * kWidth}), bias = f32({2, 2 * kWidth}),
               pooled = bf16({2, kWidth});
  const auto pools = []<class Call>() {
    return std::vector<std::function<void(Call&)>>{
        [](Call& a) { a.shape.ratio = 0; }, [](Call& a) { a.shape.ratio = 4; },
        [](Call& a) { a.shape.overlap = false; }, [](Call& a) { a.shape.batch = 0; }};
  };
  using Lp = LatentPooling;
  expect_checks<Lp>({.shape = pooling, .x = projection, .bias = bias, .out = pooled},
                    {&Lp::x, &Lp::bias, &Lp::out}, {}, pools.operator()<Lp>());
  using Lb = LatentPoolingBackward;
  expect_checks<Lb>(
      {.shape = pooling, .x = projection, .bias = bias, .d_out = pooled, .d_x = projection, .d_bias = bias},
      {&Lb::x, &Lb::bias, &Lb::d_out, &Lb::d_x, &Lb::d_bias}, {}, pools.operator()<Lb>());
  using Wp = WindowAndPooled;
  expect_checks<Wp>({.batch = 2,
                     .sequence = 3,
                     .window = 2,
                     .ratio = 2,
                     .chosen = i32({kTokens, 4}),
                     .selected = i32({kTokens, 6})},
                    {&Wp::chosen, &Wp::selected}, {},
                    {[](Wp& a) { a.window = 0; }, [](Wp& a) { a.ratio = 0; }, [](Wp& a) { a.batch = 3; }});
}

void CheckTest::check_gates() {
  const Tensor x = bf16({kTokens, kWidth}), rows = bf16({kTokens, 1});
  using Gf = GateForward;
  expect_checks<Gf>({.x = x, .gate = x, .y = x}, {&Gf::x, &Gf::gate, &Gf::y});
  EXPECT_EQ(refusal(Gf{.x = x, .gate = f32({kTokens, 1}), .y = x}), "");
  using Gb = GateBackward;
  expect_checks<Gb>({.x = x, .gate = rows, .d_y = x, .d_x = x, .d_gate = rows},
                    {&Gb::x, &Gb::gate, &Gb::d_y, &Gb::d_x, &Gb::d_gate});
  // Two heads.
  constexpr std::int64_t kDim = kWidth / 2;
  const Tensor weight = bf16({kDim}), rstd = f32({kTokens, 2});
  using Nf = GatedNormForward;
  expect_checks<Nf>({.activation = GateActivation::kSilu,
                     .x = x,
                     .gate = x,
                     .weight = weight,
                     .y = x,
                     .rstd = rstd,
                     .eps = 1e-5F},
                    {&Nf::x, &Nf::gate, &Nf::weight, &Nf::y, &Nf::rstd});
  using Ni = GatedNormBackwardInput;
  expect_checks<Ni>({.activation = GateActivation::kSilu,
                     .x = x,
                     .gate = x,
                     .weight = weight,
                     .rstd = rstd,
                     .d_y = x,
                     .d_x = x,
                     .d_gate = x},
                    {&Ni::x, &Ni::gate, &Ni::weight, &Ni::rstd, &Ni::d_y, &Ni::d_x, &Ni::d_gate});
  using Nw = GatedNormBackwardWeight;
  expect_checks<Nw>({.activation = GateActivation::kSilu,
                     .x = x,
                     .gate = x,
                     .rstd = rstd,
                     .d_y = x,
                     .d_weight = f32({kDim}),
                     .accumulate = false},
                    {&Nw::x, &Nw::gate, &Nw::rstd, &Nw::d_y, &Nw::d_weight});
  const Tensor ba = bf16({kTokens, 6}), heads = f32({3}), gates = f32({kTokens, 3});
  using Df = DeltaGatesForward;
  expect_checks<Df>({.ba = ba, .a_log = heads, .dt_bias = heads, .g = gates, .beta = gates},
                    {&Df::ba, &Df::a_log, &Df::dt_bias, &Df::g, &Df::beta});
  using Di = DeltaGatesBackwardInput;
  expect_checks<Di>({.ba = ba, .a_log = heads, .dt_bias = heads, .d_g = gates, .d_beta = gates, .d_ba = ba},
                    {&Di::ba, &Di::a_log, &Di::dt_bias, &Di::d_g, &Di::d_beta, &Di::d_ba});
  using Dw = DeltaGatesBackwardWeight;
  expect_checks<Dw>({.ba = ba, .a_log = heads, .dt_bias = heads, .d_g = gates, .d_weights = f32({6})},
                    {&Dw::ba, &Dw::a_log, &Dw::dt_bias, &Dw::d_g, &Dw::d_weights});
  using Cc = CopyColumns;
  const Cc right{
      .from = x,
      .to = bf16({kTokens, 2}),
      .runs = {{{.from = 1, .to = 0, .groups = 2, .columns = 1, .from_stride = 2, .to_stride = 1}}},
      .run_count = 1};
  const auto run = [](auto change) { return [change](Cc& a) { change(a.runs[0]); }; };
  expect_checks<Cc>(
      right, {}, {&Cc::from, &Cc::to},
      {[](Cc& a) { a.run_count = 0; }, [](Cc& a) { a.run_count = Cc::kMostRuns + 1; },
       [](Cc& a) {
         a.to = bf16({kTokens + 1, 2});
       },
       run([](ColumnRun& r) { r.from = -1; }), run([](ColumnRun& r) { r.to = 1; }),
       run([](ColumnRun& r) { r.groups = 0; }), run([](ColumnRun& r) { r.columns = 0; }),
       run([](ColumnRun& r) { r.from_stride = 0; }), run([](ColumnRun& r) { r.from = kWidth; })});
}

void CheckTest::check_convolutions() {
  const CausalConvShape inside{2, 3, kWidth, 3, 4, 7}, front{2, 3, kWidth, 3};
  const Tensor bcx = bf16({kTokens, 3 * kWidth}), y = bf16({kTokens, kWidth}), weight = bf16({kWidth, 3});
  const Tensor bias = f32({kWidth}), edge = f32({4, kWidth}), first_key = i32({kTokens});
  const auto shapes = []<class Call>(std::vector<std::function<void(Call&)>> more = {}) {
    std::vector<std::function<void(Call&)>> all = {
        [](Call& a) { a.shape.segments = 0; },      [](Call& a) { a.shape.tokens = 0; },
        [](Call& a) { a.shape.channels = 0; },      [](Call& a) { a.shape.width = 0; },
        [](Call& a) { a.shape.width = 17; },        [](Call& a) { a.shape.first_of_even = -1; },
        [](Call& a) { a.shape.first_of_odd = -1; }, [](Call& a) { a.shape.tokens = 2; }};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  using Cf = CausalConvForward;
  Cf forward{.shape = inside,
             .bcx = bcx,
             .weight = weight,
             .bias = bias,
             .before = edge,
             .first_key = first_key,
             .y = y};
  expect_checks<Cf>(forward, {&Cf::bcx, &Cf::weight, &Cf::bias, &Cf::before, &Cf::first_key, &Cf::y}, {},
                    shapes.operator()<Cf>({[](Cf& a) { a.before = {}; }}));
  // Nothing is in front of what begins a sequence.
  forward.shape = front, forward.before = forward.bias = forward.first_key = {};
  EXPECT_EQ(refusal(forward), "");
  using Ci = CausalConvBackwardInput;
  expect_checks<Ci>(
      {.shape = inside,
       .bcx = bcx,
       .weight = weight,
       .bias = bias,
       .before = edge,
       .first_key = first_key,
       .d_y = y,
       .d_after = edge,
       .d_bcx = bcx},
      {&Ci::bcx, &Ci::weight, &Ci::bias, &Ci::before, &Ci::first_key, &Ci::d_y, &Ci::d_after, &Ci::d_bcx}, {},
      shapes.operator()<Ci>({[](Ci& a) { a.before = {}; }}));
  using Cw = CausalConvBackwardWeight;
  Cw of_weight{.shape = inside,
               .bcx = bcx,
               .before = edge,
               .first_key = first_key,
               .d_y = y,
               .of_bias = false,
               .d_weight = f32({kWidth, 3}),
               .accumulate = false};
  expect_checks<Cw>(of_weight, {&Cw::bcx, &Cw::before, &Cw::first_key, &Cw::d_y, &Cw::d_weight}, {},
                    shapes.operator()<Cw>({[](Cw& a) { a.of_bias = true; }}));
  of_weight.of_bias = true, of_weight.d_weight = bf16({kWidth});
  EXPECT_EQ(refusal(of_weight), "");
  const Tensor x = bf16({kTokens, kWidth});
  CausalConvShape silu = inside;
  silu.form = CausalConvShape::Form::kSilu;
  expect_checks<Cw>({.shape = silu,
                     .bcx = x,
                     .before = edge,
                     .first_key = first_key,
                     .weight = weight,
                     .bias = bias,
                     .d_y = y,
                     .of_bias = false,
                     .d_weight = f32({kWidth, 3}),
                     .accumulate = false},
                    {&Cw::bcx, &Cw::before, &Cw::first_key, &Cw::weight, &Cw::bias, &Cw::d_y, &Cw::d_weight},
                    {},
                    shapes.operator()<Cw>({[](Cw& a) { a.weight = {}; },
                                           [](Cw& a) { a.shape.form = CausalConvShape::Form::kGated; }}));
  using Ce = CausalConvEdge;
  const auto short_segments = [](auto& a) { a.shape.segments = 6, a.shape.tokens = 1; };
  expect_checks<Ce>({.shape = inside, .bcx = bcx, .edge = edge}, {&Ce::bcx, &Ce::edge}, {},
                    shapes.operator()<Ce>({short_segments}));
  using Cb = CausalConvBackwardEdge;
  expect_checks<Cb>(
      {.shape = inside, .bcx = bcx, .weight = weight, .first_key = first_key, .d_y = y, .d_edge = edge},
      {&Cb::bcx, &Cb::weight, &Cb::first_key, &Cb::d_y, &Cb::d_edge}, {},
      shapes.operator()<Cb>({[&](Cb& a) { a.before = edge; }, [&](Cb& a) { a.bias = bias; }}));
  expect_checks<Cb>({.shape = silu,
                     .bcx = x,
                     .weight = weight,
                     .first_key = first_key,
                     .bias = bias,
                     .before = edge,
                     .d_y = y,
                     .d_edge = edge},
                    {&Cb::bcx, &Cb::weight, &Cb::first_key, &Cb::bias, &Cb::before, &Cb::d_y, &Cb::d_edge},
                    {}, shapes.operator()<Cb>({[](Cb& a) { a.before = {}; }}));
  using Cc = CachedCausalConv;
  expect_checks<Cc>({.sequences = {.query_starts = i32({4}),
                                   .key_lengths = i32({3}),
                                   .block_table = i32({3, 5}),
                                   .page_size = 64},
                     .width = 3,
                     .form = CausalConvShape::Form::kGated,
                     .bcx = bcx,
                     .weight = weight,
                     .bias = bias,
                     .ring = f32({3, 4, kWidth}),
                     .y = y},
                    {&Cc::bcx, &Cc::weight, &Cc::bias, &Cc::ring, &Cc::y}, {},
                    {[](Cc& a) { a.width = 0; }, [](Cc& a) { a.width = 17; },
                     [](Cc& a) {
                       a.ring = f32({3, 2, kWidth});
                     },
                     [](Cc& a) {
                       a.ring = f32({2, 4, kWidth});
                     },
                     [](Cc& a) { a.sequences.key_lengths = i32({2}); }});
}

void CheckTest::check_delta_rule() {
  const DeltaRuleShape shape{.batch = 2,
                             .sequence = 3,
                             .key_heads = 2,
                             .value_heads = 4,
                             .key_dim = 8,
                             .value_dim = 12,
                             .channel_gates = true,
                             .normalise = true,
                             .scale = 1};
  const Tensor qkv = bf16({kTokens, shape.width()}), out = bf16({kTokens, 48});
  const Tensor g = f32({kTokens, 32}), beta = f32({kTokens, 4}), first_key = i32({kTokens});
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
            .committed = i32({3}),
            .out = out};
  cached.shape.batch = 1, cached.shape.sequence = kTokens;
  expect_checks<Dc>(cached, {&Dc::qkv, &Dc::g, &Dc::beta, &Dc::state, &Dc::recent, &Dc::committed, &Dc::out},
                    {},
                    shapes.operator()<Dc>({[](Dc& a) { a.spare = 5; }, [](Dc& a) { a.spare = -1; },
                                           [](Dc& a) { a.shape.batch = 2, a.shape.sequence = 3; },
                                           [](Dc& a) { a.sequences.key_lengths = i32({2}); }}));
}

void CheckTest::check_selection() {
  const SelectedAttentionShape shape{
      .tokens = kTokens, .rows = 9, .selected = 5, .heads = 3, .key_dim = 8, .value_dim = 7, .scale = 1};
  const Tensor q = bf16({kTokens, 24}), kv = bf16({9, 8}), selected = i32({kTokens, 5}),
               out = bf16({kTokens, 21}), lse = f32({3, kTokens});
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
                    {&Sb::q, &Sb::kv, &Sb::selected, &Sb::out, &Sb::lse, &Sb::d_out, &Sb::d_q, &Sb::d_kv}, {},
                    shapes.operator()<Sb>({[](Sb& a) { a.queries_at_once = -1; }}));
  using Ln = LayerNorm;
  expect_checks<Ln>({.x = q, .weight = bf16({24}), .bias = f32({24}), .y = q, .eps = 1},
                    {&Ln::x, &Ln::weight, &Ln::bias, &Ln::y}, {}, {[](Ln& a) { a.eps = -1; }});
  const Tensor weights = f32({kTokens, 3}), rows = i32({kTokens});
  using Is = IndexerSelect;
  expect_checks<Is>({.shape = {.batch = 2, .seq_q = 3, .seq_k = 5, .heads = 3, .head_dim = 8, .top_k = 5},
                     .q = q,
                     .k = bf16({10, 8}),
                     .w = weights,
                     .first_row = rows,
                     .end_row = rows,
                     .selected = selected},
                    {&Is::q, &Is::k, &Is::w, &Is::first_row, &Is::end_row, &Is::selected}, {},
                    {[](Is& a) { a.shape.batch = 0; }, [](Is& a) { a.shape.stride = 0; },
                     [](Is& a) { a.shape.q_first = -1; }, [](Is& a) { a.shape.top_k = 4; }});
  using Pi = PagedIndexerSelect;
  expect_checks<Pi>({.sequences = {.query_starts = i32({4}),
                                   .key_lengths = i32({3}),
                                   .block_table = i32({3, 5}),
                                   .page_size = 64},
                     .heads = 3,
                     .head_dim = 8,
                     .top_k = 5,
                     .q = q,
                     .pages = bf16({128, 8}),
                     .w = weights,
                     .selected = selected},
                    {&Pi::q, &Pi::pages, &Pi::w, &Pi::selected}, {},
                    {[](Pi& a) { a.top_k = 0; }, [](Pi& a) { a.heads = 0; },
                     [](Pi& a) { a.sequences.key_lengths = i32({2}); }});
}

void CheckTest::check_attention() {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 8, kValueDim = 12;
  const Tensor positions = i32({kTokens});
  const Tensor x = bf16({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim});
  using Rp = Rope;
  expect_checks<Rp>(
      {.x = x,
       .y = x,
       .positions = positions,
       .table = f32({32, kHeadDim}),
       .heads = kHeads + kKvHeads,
       .head_dim = kHeadDim,
       .rotary_dim = kHeadDim,
       .inverse = false},
      {&Rp::x, &Rp::y, &Rp::positions, &Rp::table}, {},
      {[](Rp& a) { a.rotary_dim = 7; }, [](Rp& a) { a.rotary_begin = 1; }, [](Rp& a) { a.heads = 99; }});
  using Ps = PositionScale;
  expect_checks<Ps>(
      {.x = x, .y = x, .positions = positions, .cols = kHeadDim, .floor_scale = 8192, .attn_scale = 0.1F},
      {&Ps::x, &Ps::y, &Ps::positions}, {}, {[](Ps& a) { a.cols = 999; }, [](Ps& a) { a.floor_scale = 0; }});
  const HeadNormShape heads{kHeads, kKvHeads, kHeadDim};
  const Tensor rstd = f32({kTokens, heads.normed()}), head_weight = bf16({2 * kHeadDim});
  const auto too_many = [](auto& a) { a.shape.heads = 99; };
  using Hf = HeadNormForward;
  expect_checks<Hf>({.shape = heads, .x = x, .weight = head_weight, .y = x, .rstd = rstd, .eps = 1e-5F},
                    {&Hf::x, &Hf::weight, &Hf::y, &Hf::rstd}, {}, {too_many});
  using Hi = HeadNormBackwardInput;
  expect_checks<Hi>({.shape = heads, .x = x, .weight = head_weight, .rstd = rstd, .d_y = x, .d_x = x},
                    {&Hi::x, &Hi::weight, &Hi::rstd, &Hi::d_y, &Hi::d_x}, {}, {too_many});
  using Hw = HeadNormBackwardWeight;
  expect_checks<Hw>(
      {.shape = heads, .x = x, .rstd = rstd, .d_y = x, .d_weight = f32({2 * kHeadDim}), .accumulate = false},
      {&Hw::x, &Hw::rstd, &Hw::d_y, &Hw::d_weight}, {}, {too_many});

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
  const std::int64_t q_width = kHeads * kHeadDim, k_width = kKvHeads * kHeadDim,
                     v_width = kKvHeads * kValueDim;
  const Tensor q = bf16({kTokens, q_width}), k = bf16({kTokens, k_width}), v = bf16({kTokens, v_width});
  const Tensor out = bf16({kTokens, kHeads * kValueDim}), lse = f32({kHeads, kTokens}),
               sinks = bf16({kHeads});
  using Af = AttentionForward;
  expect_checks<Af>({.shape = shape,
                     .q = q,
                     .k = k,
                     .v = v,
                     .q_stride = q_width,
                     .k_stride = k_width,
                     .v_stride = v_width,
                     .first_key = positions,
                     .sinks = sinks,
                     .out = out,
                     .lse = lse},
                    {&Af::first_key, &Af::sinks, &Af::out, &Af::lse}, {&Af::q, &Af::k, &Af::v},
                    {[](Af& a) { a.q_stride -= 1; }, [](Af& a) { a.k_stride -= 1; },
                     [](Af& a) { a.v_stride -= 1; }, [](Af& a) { a.shape.kv_heads = 3; },
                     [](Af& a) { a.shape.capacity_k = 2; }, [](Af& a) { a.shape.causal = false; }});
  using Ab = AttentionBackward;
  expect_checks<Ab>(
      {.shape = shape,
       .q = q,
       .k = k,
       .v = v,
       .q_stride = q_width,
       .k_stride = k_width,
       .v_stride = v_width,
       .first_key = positions,
       .out = out,
       .lse = lse,
       .d_out = out,
       .d_q = q,
       .d_k = k,
       .d_v = v,
       .d_q_stride = q_width,
       .d_k_stride = k_width,
       .d_v_stride = v_width},
      {&Ab::first_key, &Ab::out, &Ab::lse, &Ab::d_out},
      {&Ab::q, &Ab::k, &Ab::v, &Ab::d_q, &Ab::d_k, &Ab::d_v},
      {[](Ab& a) { a.d_q_stride -= 1; }, [](Ab& a) { a.d_k_stride -= 1; }, [](Ab& a) { a.d_v_stride -= 1; },
       [](Ab& a) { a.shape.capacity_k = 2; }, [](Ab& a) { a.shape.q_first = -1; },
       [](Ab& a) { a.d_q.dtype = DType::kF32; }});  // the others are bf16
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
  using Pa = PagedAttention;
  std::vector<std::function<void(Pa&)>> wrong_paged = wrong_pages.operator()<Pa>();
  wrong_paged.insert(wrong_paged.end(), {[](Pa& a) { a.q_stride -= 1; }, [](Pa& a) { a.k_stride -= 1; },
                                         [](Pa& a) { a.v_stride -= 1; }, [](Pa& a) { a.kv_heads = 3; },
                                         [](Pa& a) { a.window = -1; }});
  expect_checks<Pa>({.sequences = pages,
                     .tokens = kTokens,
                     .heads = kHeads,
                     .kv_heads = kKvHeads,
                     .head_dim = kHeadDim,
                     .value_dim = kValueDim,
                     .scale = 1,
                     .window = 0,
                     .chunk = 0,
                     .q = q,
                     .k = k,
                     .v = v,
                     .q_stride = q_width,
                     .k_stride = k_width,
                     .v_stride = v_width,
                     .sinks = sinks,
                     .out = out},
                    {&Pa::sinks, &Pa::out}, {&Pa::q, &Pa::k, &Pa::v}, wrong_paged);

  using Tl = TopLogits;
  expect_checks<Tl>({.logits = f32({3, 70}), .vocab = 70, .values = f32({3, 64}), .ids = i32({3, 64})},
                    {&Tl::values, &Tl::ids}, {&Tl::logits},
                    {[](Tl& a) { a.vocab = 71; }, [](Tl& a) { a.vocab = 63; },
                     [](Tl& a) {
                       a.values = f32({3, 65});
                       a.ids = i32({3, 65});
                     }});

  const LatentShape latent{.heads = 2, .rank = 16, .nope_dim = 5, .rope_dim = 4, .value_dim = 7};
  const Tensor lq = bf16({kTokens, 2 * 9}), kv = bf16({kTokens, 2 * 12}), key = bf16({kTokens, 4});
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

void CheckTest::check_experts() {
  const Tensor x = bf16({kTokens, kWidth}), by_row = bf16({kSlots, kWidth});
  const Tensor logits = f32({kTokens, kExperts}), load = i32({2, kExperts});
  const Tensor chosen = i32({kTokens, kTopK}), weights = f32({kTokens, kTopK});
  const Tensor offsets = i32({kExperts + 1}), slots = i32({kSlots});
  const RouterRandom random{.seed = 1, .scalars = f64({kStepScalars}), .tokens = i32({kTokens})};
  const RouterRule rule{.forced = RouterRule::Forced::kUniform, .top_k = kTopK};
  const auto no_random = [](auto& a) { a.random.tokens = {}; };
  const auto wide_random = [](auto& a) { a.random.tokens = widened(a.random.tokens); };
  const auto too_many = [](auto& a) { a.rule.top_k = kExperts + 1; };

  using Rj = RouterJitter;
  expect_checks<Rj>({.x = x, .previous = x, .out = x, .jitter = 0.1F, .random = random},
                    {&Rj::x, &Rj::previous, &Rj::out}, {},
                    {no_random, wide_random, [](Rj& a) { a.jitter = 0; }});
  using Rf = RouterForward;
  expect_checks<Rf>({.rule = rule,
                     .random = random,
                     .logits = logits,
                     .bias = f32({kExperts}),
                     .given = chosen,
                     .experts = chosen,
                     .weights = weights},
                    {&Rf::logits, &Rf::bias, &Rf::given, &Rf::experts, &Rf::weights}, {},
                    {no_random, wide_random, too_many});
  using Rb = RouterBackward;
  expect_checks<Rb>({.rule = rule,
                     .logits = logits,
                     .experts = chosen,
                     .d_weights = weights,
                     .load = load,
                     .balance_scale = 1,
                     .z_scale = 1,
                     .previous = logits,
                     .d_logits = logits},
                    {&Rb::logits, &Rb::experts, &Rb::d_weights, &Rb::load, &Rb::previous, &Rb::d_logits}, {},
                    {too_many});
  using Rl = RouterLoad;
  expect_checks<Rl>({.top_k = kTopK, .logits = logits, .chosen = chosen, .load = load},
                    {&Rl::logits, &Rl::chosen, &Rl::load}, {}, {[](Rl& a) { a.top_k = kExperts + 1; }});
  using Rs = RouterLosses;
  expect_checks<Rs>({.rule = rule, .logits = logits, .load = load, .losses = f32({2})},
                    {&Rs::logits, &Rs::load, &Rs::losses}, {}, {too_many});
  using Rt = RouterTable;
  expect_checks<Rt>({.tokens = i32({kTokens}), .table = f32({99, kTopK}), .experts = chosen},
                    {&Rt::tokens, &Rt::table, &Rt::experts});
  using Rn = RunningLoad;
  expect_checks<Rn>({.load = i32({1, kExperts}), .running = i32({kExperts})}, {&Rn::load, &Rn::running});
  using El = ExpertLoad;
  expect_checks<El>({.experts = chosen, .rows = chosen, .load = i32({kExperts + 1})},
                    {&El::experts, &El::rows}, {&El::load});
  using Eu = ExpertBiasUpdate;
  expect_checks<Eu>({.load = i32({kExperts + 1}), .bias = f32({kExperts}), .rate = 1},
                    {&Eu::load, &Eu::bias});

  using Pr = PlanRouting;
  expect_checks<Pr>({.experts = chosen,
                     .weights = weights,
                     .kept = chosen,
                     .plan = i32(RoutingPlan::shape(kExperts, kTokens, kTopK)),
                     .expert_count = kExperts,
                     .capacity = 0},
                    {&Pr::experts, &Pr::weights, &Pr::kept, &Pr::plan}, {},
                    {[](Pr& a) { a.expert_count += 1; }, [](Pr& a) { a.sequences = 5; },
                     [](Pr& a) { a.capacity = -1; }, [](Pr& a) { a.first = 1; }});
  expect_checks<Pr>(
      {.experts = chosen,
       .plan = i32(RoutingPlan::shape(kExperts, kTokens, kTopK, kSlots / 2)),
       .expert_count = kExperts,
       .capacity = 0,
       .first = kExperts,
       .all = 2 * kExperts},
      {&Pr::plan}, {&Pr::experts},
      {[](Pr& a) { a.first += 1; }, [](Pr& a) { a.first = -1; }, [](Pr& a) { a.all = 0, a.first = 0; }});
  constexpr std::int64_t kRanks = 2, kMost = 3;
  using Pd = PlanDispatch;
  expect_checks<Pd>({.experts = chosen,
                     .kept = chosen,
                     .plan = i32(DispatchPlan::shape(kRanks, kTokens / kRanks, kTopK, kMost)),
                     .ranks = kRanks,
                     .rank = 1,
                     .most = kMost,
                     .experts_of_rank = kExperts / kRanks,
                     .ranks_of_expert = 1},
                    {&Pd::experts, &Pd::kept, &Pd::plan}, {},
                    {[](Pd& a) { a.rank = a.ranks; }, [](Pd& a) { a.most = a.tokens() + 1; },
                     [](Pd& a) { a.ranks_of_expert = 0; }});
  using Gr = GatherRows;
  expect_checks<Gr>(
      {.x = x, .offsets = offsets, .rows = chosen, .slots = slots, .weights = weights, .out = by_row},
      {&Gr::x, &Gr::rows, &Gr::slots, &Gr::weights, &Gr::out}, {&Gr::offsets});
  using Cr = CombineRows;
  expect_checks<Cr>({.x = by_row, .rows = chosen, .weights = weights, .previous = x, .out = x},
                    {&Cr::x, &Cr::rows, &Cr::weights, &Cr::previous, &Cr::out});
  using Rd = RowDots;
  expect_checks<Rd>({.by_token = x, .by_row = by_row, .rows = chosen, .previous = weights, .out = weights},
                    {&Rd::by_token, &Rd::by_row, &Rd::rows, &Rd::previous, &Rd::out}, {},
                    {[](Rd& a) { a.out = {}; }});

  const Tensor expert_weights = bf16({kExperts, 7, kWidth}), y = bf16({kSlots, 7});
  using Gg = GroupedGemm;
  expect_checks<Gg>(
      {.role = GemmRole::kForward, .a = x, .b = expert_weights, .c = y, .offsets = offsets, .a_rows = slots},
      {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets, &Gg::a_rows}, {},
      {[](Gg& a) { a.accumulate = true; }, [](Gg& a) { a.b_rows = a.a_rows; }});
  expect_checks<Gg>(
      {.role = GemmRole::kInputGradient, .a = y, .b = expert_weights, .c = by_row, .offsets = offsets},
      {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets}, {}, {[](Gg& a) { a.accumulate = true; }});
  expect_checks<Gg>({.role = GemmRole::kWeightGradient,
                     .a = y,
                     .b = x,
                     .c = f32({kExperts, 7, kWidth}),
                     .offsets = offsets,
                     .b_rows = slots},
                    {&Gg::a, &Gg::b, &Gg::c, &Gg::offsets, &Gg::b_rows});
  using Gb = GroupedBias;
  expect_checks<Gb>({.x = by_row, .bias = bf16({kExperts, kWidth}), .y = by_row, .offsets = offsets},
                    {&Gb::x, &Gb::bias, &Gb::y, &Gb::offsets});
  using Gw = GroupedBiasBackward;
  expect_checks<Gw>(
      {.d_y = by_row, .d_bias = f32({kExperts, kWidth}), .offsets = offsets, .accumulate = false},
      {&Gw::d_y, &Gw::d_bias, &Gw::offsets});
  const Tensor gate_up = bf16({kSlots, 2 * kWidth});
  using Wf = WeightedSwigluForward;
  expect_checks<Wf>({.gate_up = gate_up,
                     .weights = weights,
                     .offsets = offsets,
                     .slots = slots,
                     .weigh_input = false,
                     .out = by_row},
                    {&Wf::gate_up, &Wf::slots, &Wf::out}, {&Wf::weights, &Wf::offsets});
  using Wb = WeightedSwigluBackward;
  expect_checks<Wb>({.gate_up = gate_up,
                     .weights = weights,
                     .offsets = offsets,
                     .slots = slots,
                     .weigh_input = false,
                     .d_out = by_row,
                     .d_gate_up = gate_up,
                     .previous_weights = weights,
                     .d_weights = weights},
                    {&Wb::gate_up, &Wb::weights, &Wb::slots, &Wb::d_out, &Wb::d_gate_up,
                     &Wb::previous_weights, &Wb::d_weights},
                    {&Wb::offsets});
}

void CheckTest::check_update() {
  const Tensor n = f32({kWidth}), one = f32({1});
  expect_checks<AdamW>({.param = n,
                        .grad = n,
                        .exp_avg = n,
                        .exp_avg_sq = n,
                        .grad_scale = one,
                        .working = bf16({kWidth}),
                        .scalars = f64({kStepScalars}),
                        .beta1 = 0.9F,
                        .beta2 = 0.95F,
                        .eps = 1e-8F},
                       {&AdamW::param, &AdamW::grad, &AdamW::exp_avg, &AdamW::exp_avg_sq, &AdamW::grad_scale,
                        &AdamW::working, &AdamW::scalars},
                       {}, {[](AdamW& a) { a.grad_scale = {}; }});
  const Tensor blocks = f32({2 * kMomentBlock}), of_block = bf16({2});
  expect_checks<AdamW>(
      {.param = blocks,
       .grad = blocks,
       .exp_avg = {nullptr, DType::kF8E4M3, {2 * kMomentBlock}},
       .exp_avg_sq = {nullptr, DType::kU8, {2 * kMomentBlock}},
       .grad_scale = one,
       .working = {},
       .exp_avg_scale = of_block,
       .exp_avg_sq_scale = of_block,
       .scalars = f64({kStepScalars}),
       .beta1 = 0.9F,
       .beta2 = 0.95F,
       .eps = 1e-8F},
      {&AdamW::exp_avg, &AdamW::exp_avg_sq, &AdamW::exp_avg_scale, &AdamW::exp_avg_sq_scale}, {},
      {[](AdamW& a) { a.exp_avg_scale = {}; }, [](AdamW& a) { a.exp_avg_sq_scale = {}; },
       [](AdamW& a) { std::swap(a.exp_avg, a.exp_avg_sq); }, [&](AdamW& a) { a.exp_avg = blocks; },
       [](AdamW& a) { a.grad.data = reinterpret_cast<void*>(8); },
       [&](AdamW& a) {  // no whole blocks
         a.param = a.grad = f32({kMomentBlock + 16});
         a.exp_avg.shape = a.exp_avg_sq.shape = {kMomentBlock + 16};
         a.exp_avg_scale = a.exp_avg_sq_scale = bf16({1});
       }});
  const Tensor working = bf16({kWidth}), scalars = f64({kStepScalars});
  using Sgd = SgdMomentum;
  expect_checks<Sgd>(
      {.param = n,
       .grad = n,
       .momentum_buffer = n,
       .grad_scale = one,
       .working = working,
       .scalars = scalars,
       .momentum = 0.9F},
      {&Sgd::param, &Sgd::grad, &Sgd::momentum_buffer, &Sgd::grad_scale, &Sgd::working, &Sgd::scalars}, {},
      {[](Sgd& a) { a.momentum_buffer = {}; }});
  expect_checks<Lion>(
      {.param = n,
       .grad = n,
       .exp_avg = n,
       .grad_scale = one,
       .working = working,
       .scalars = scalars,
       .beta1 = 0.9F,
       .beta2 = 0.95F},
      {&Lion::param, &Lion::grad, &Lion::exp_avg, &Lion::grad_scale, &Lion::working, &Lion::scalars});
  using To = TrackOscillation;
  To track{.before_param = n,
           .before_working = working,
           .param = n,
           .working = working,
           .before_rounded = working,
           .rounded = working,
           .moved = n,
           .jumped = n,
           .grad_scale = one,
           .snapped = i32({1}),
           .ratio = 2};
  expect_checks<To>(track,
                    {&To::before_param, &To::before_working, &To::param, &To::working, &To::before_rounded,
                     &To::rounded, &To::moved, &To::jumped, &To::grad_scale, &To::snapped},
                    {}, {[](To& a) { a.ratio = 0; }, [](To& a) { a.before_param = {}; }});
  track.param = {};
  expect_split_masters<To>(track);
  expect_split_masters<AdamW>({.param = {},
                               .grad = n,
                               .exp_avg = n,
                               .exp_avg_sq = n,
                               .grad_scale = one,
                               .working = working,
                               .scalars = scalars,
                               .beta1 = 0.9F,
                               .beta2 = 0.95F,
                               .eps = 1e-8F});
  expect_split_masters<Sgd>({.param = {},
                             .grad = n,
                             .momentum_buffer = n,
                             .grad_scale = one,
                             .working = working,
                             .scalars = scalars,
                             .momentum = 0.9F});
  expect_split_masters<Lion>({.param = {},
                              .grad = n,
                              .exp_avg = n,
                              .grad_scale = one,
                              .working = working,
                              .scalars = scalars,
                              .beta1 = 0.9F,
                              .beta2 = 0.95F});
  expect_split_masters<MuonUpdate>(
      {.param = {}, .direction = n, .grad_scale = one, .working = working, .scalars = scalars, .scale = 1});
  using Mm = MuonMomentum;
  expect_checks<Mm>(
      {.grad = n, .momentum = n, .direction = n, .grad_scale = one, .beta = 0.9F, .nesterov = false},
      {&Mm::grad, &Mm::momentum, &Mm::direction, &Mm::grad_scale});
  using Mn = MuonNormalize;
  expect_checks<Mn>({.x = n, .sum_of_squares = f64({1}), .out = working},
                    {&Mn::x, &Mn::sum_of_squares, &Mn::out});
  using Mp = MuonPolynomial;
  const Tensor square = f32({7, 7});
  expect_checks<Mp>({.gram = square, .square = square, .out = bf16({7, 7}), .a = 1, .b = 1, .c = 1},
                    {&Mp::gram, &Mp::square, &Mp::out});
  using Mu = MuonUpdate;
  expect_checks<Mu>({.param = n,
                     .direction = working,
                     .grad_scale = one,
                     .working = working,
                     .scalars = scalars,
                     .scale = 1},
                    {&Mu::param, &Mu::direction, &Mu::grad_scale, &Mu::working, &Mu::scalars});
  using Sq = SumOfSquares;
  expect_checks<Sq>({.x = n, .out = f64({1}), .accumulate = false}, {&Sq::out}, {&Sq::x});
  using Cc = ClipCoefficient;
  expect_checks<Cc>({.sum_of_squares = f64({1}), .norm = one, .scale = one, .max_norm = 1},
                    {&Cc::sum_of_squares, &Cc::norm, &Cc::scale}, {}, {[](Cc& a) { a.max_norm = -1; }});
}

TEST_F(CheckTest, EveryKernelRefusesWrongOperands) {
  check_dense();
  check_kimi();
  check_attention();
  check_convolutions();
  check_delta_rule();
  check_selection();
  check_compressed();
  check_experts();
  check_update();
#define PRIMUS_KERNEL(name) \
  EXPECT_TRUE(covered_[KernelId::k##name]) << #name << " has no entry here: give it one";
#include "turbo/kernels.def"
#undef PRIMUS_KERNEL
}

TEST_F(CheckTest, TheMessageNamesKernelAndCondition) {
  EXPECT_EQ(refusal(Fill{.out = i32({3}), .value = 1}), "Fill: check failed: is_float(out)");
}

}  // namespace
}  // namespace primus::turbo::test
