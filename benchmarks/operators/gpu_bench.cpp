// Measures GPU operators: GB/s of the bytes that must be moved, or TFLOP/s.
//
//   gpu_bench PLUGIN [--json] [--attention | --delta | --memory | --products | --experts | --decoding |
//   --mixtures]
//                    [--own] [--fast] [--tune FOLDER]
//
// PLUGIN is libprimus_cuda.so or libprimus_hip.so. Inputs are random. A figure is the median of five runs of
// many launches. Bytes count each input and output once.
#include "gpu_bench.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/plugin.h"
#include "turbo/adamw/adamw.h"
#include "turbo/attention/attention.h"
#include "turbo/causal_conv/causal_conv.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/delta_rule/delta_rule.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/embedding/embedding.h"
#include "turbo/fp8_rows/fp8_rows.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/step_scalars.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo {

void convolution(Bench& bench, const std::string& name, const CausalConvShape& shape) {
  const Tensor x = bench.random(kHalf, {shape.rows(), shape.columns()}),
               y = bench.random(kHalf, {shape.rows(), shape.channels}), d_x = bench.empty(kHalf, x.shape);
  const Tensor weight = bench.random(kHalf, {shape.channels, shape.width}),
               d_weight = bench.empty(kFull, weight.shape), out = bench.empty(kHalf, y.shape);
  const auto wide = static_cast<double>(x.bytes()), row = static_cast<double>(y.bytes());
  bench.run(
      name,
      CausalConvForward{
          .shape = shape, .bcx = x, .weight = weight, .bias = {}, .before = {}, .first_key = {}, .y = out},
      wide + row, "GB/s");
  bench.run(name + ", d_x",
            CausalConvBackwardInput{.shape = shape,
                                    .bcx = x,
                                    .weight = weight,
                                    .bias = {},
                                    .before = {},
                                    .first_key = {},
                                    .d_y = y,
                                    .d_after = {},
                                    .d_bcx = d_x},
            2 * wide + row, "GB/s");
  bench.run(name + ", d_w",
            CausalConvBackwardWeight{.shape = shape,
                                     .bcx = x,
                                     .before = {},
                                     .first_key = {},
                                     .weight = weight,
                                     .bias = {},
                                     .d_y = y,
                                     .of_bias = false,
                                     .d_weight = d_weight,
                                     .accumulate = true,
                                     .workspace = {}},
            wide + row, "GB/s");
  for (const Tensor& tensor : {x, y, d_x, weight, d_weight, out}) bench.release(tensor);
}

namespace {

// Times linear attention (delta rule) of full sequences, and for decoding one token of many sequences.
void delta_rule(Bench& bench, const std::string& name, std::int64_t key_heads, std::int64_t value_heads,
                bool channel_gates) {
  DeltaRuleShape shape{.batch = 1,
                       .sequence = 8192,
                       .key_heads = key_heads,
                       .value_heads = value_heads,
                       .key_dim = 128,
                       .value_dim = 128,
                       .channel_gates = channel_gates,
                       .normalise = true,
                       .scale = 0.088F};
  const Tensor qkv = bench.random(kHalf, {shape.rows(), shape.width()}),
               d_qkv = bench.empty(kHalf, qkv.shape);
  const Tensor out = bench.random(kHalf, {shape.rows(), shape.out_width()});
  const Tensor g = bench.random(kFull, {shape.rows(), shape.gates()}, 0.01F, -0.1F);
  const Tensor beta = bench.random(kFull, {shape.rows(), value_heads}, 0.1F, 0.5F);
  const Tensor d_g = bench.empty(kFull, g.shape), d_beta = bench.empty(kFull, beta.shape);
  const DeltaRuleBackward backward{.shape = shape,
                                   .qkv = qkv,
                                   .g = g,
                                   .beta = beta,
                                   .first_key = {},
                                   .d_out = out,
                                   .d_qkv = d_qkv,
                                   .d_g = d_g,
                                   .d_beta = d_beta,
                                   .workspace = {}};
  bench.run("delta rule backward, " + name, backward, backward.flops(), "TFLOP/s");
  const DeltaRuleForward forward{
      .shape = shape, .qkv = qkv, .g = g, .beta = beta, .first_key = {}, .out = out, .workspace = {}};
  bench.run("delta rule, " + name, forward, forward.flops(), "TFLOP/s");
  const std::int64_t texts = 64, ring = 16;
  shape.sequence = texts;
  const Tensor state = bench.random(kFull, {texts, value_heads, 128, 128}, 0.1F);
  const Tensor recent = bench.random(kFull, {texts, ring, value_heads * shape.recent_width()}, 0.1F, -0.1F);
  const auto first = [](const Tensor& tensor) { return tensor.slice(0, texts); };
  // 20 positions, of which 12 are committed: eight tokens are between the committed state and the new token.
  bench.run("delta rule, 64 x 1 token, " + name,
            CachedDeltaRule{
                .sequences = {.query_starts = bench.integers(
                                  texts + 1, [](std::int64_t i) { return static_cast<std::int32_t>(i); }),
                              .key_lengths = bench.integers(texts, [](std::int64_t) { return 21; }),
                              .block_table =
                                  bench.integers(texts, [](std::int64_t) { return 0; }).reshaped({texts, 1}),
                              .page_size = 64},
                .shape = shape,
                .spare = 6,
                .qkv = first(qkv),
                .g = first(g),
                .beta = first(beta),
                .state = state,
                .recent = recent,
                .committed = bench.integers(texts * value_heads, [](std::int64_t) { return 12; })
                                 .reshaped({texts, value_heads}),
                .out = first(out),
                .workspace = {}},
            static_cast<double>(state.bytes() + recent.bytes() / 2), "GB/s");
  for (const Tensor& tensor : {qkv, d_qkv, out, g, beta, d_g, d_beta, state, recent}) bench.release(tensor);
}

void delta_rules(Bench& bench) {
  delta_rule(bench, "16/32 heads of 128, bf16", 16, 32, false);          // Qwen3.5-35B-A3B
  delta_rule(bench, "32 heads of 128, by channel, bf16", 32, 32, true);  // Kimi Linear 48B-A3B
}

// Times attention in parts, as context-parallel ranks compute it, for 16 384 tokens of Llama 3.1 8B.
void parts_of_attention(Bench& bench) {
  const std::int64_t tokens = 16384, heads = 32, dim = 128, width = heads * dim + 16 * dim;
  const Tensor out = bench.random(kHalf, {tokens, heads * dim}), part = bench.random(kHalf, out.shape);
  const Tensor lse = bench.random(kFull, {heads, tokens}), part_lse = bench.random(kFull, lse.shape);
  const Tensor fused = bench.random(kHalf, {tokens, width});
  const double bytes = static_cast<double>(out.bytes());
  bench.run("merge of two parts 16384x32 heads of 128",
            AttentionMerge{.heads = heads,
                           .value_dim = dim,
                           .part = part,
                           .part_lse = part_lse,
                           .out = out,
                           .lse = lse,
                           .accumulate = true},
            3 * bytes, "GB/s");
  CopyRows rows = CopyRows::strided(part, fused, tokens, heads * dim, heads * dim, width);
  bench.run("copy_rows 16384x4096 into 6144, bf16", rows, 2 * bytes, "GB/s");
  rows.add = true;
  bench.run("copy_rows, added", rows, 3 * bytes, "GB/s");
  for (const Tensor& tensor : {out, part, lse, part_lse, fused}) bench.release(tensor);
}

// Rows that travel to experts in fp8, and the same rows in bf16.
void rows_for_sending(Bench& bench) {
  const std::int64_t tokens = 8192, hidden = 4096;
  const Tensor x = bench.random(kHalf, {tokens, hidden}), out = bench.empty(kHalf, {tokens, hidden});
  const Tensor coded = bench.empty(DType::kU8, {tokens, Fp8RowLayout{hidden}.bytes()});
  const Tensor list =
      bench.integers(tokens, [](std::int64_t i) { return static_cast<std::int32_t>(i * 4093 % 8192); });
  const auto bytes = static_cast<double>(x.bytes() + coded.bytes());
  bench.run("rows to fp8 8192x4096 bf16", EncodeRows{.x = x, .rows = list, .out = coded}, bytes, "GB/s");
  bench.run("rows from fp8 8192x4096 bf16", DecodeRows{.x = coded, .used = list, .out = out}, bytes, "GB/s");
  bench.run(
      "rows packed 8192x4096 bf16",
      CombineRows{.x = x, .rows = list.reshaped({tokens, 1}), .weights = {}, .previous = {}, .out = out},
      2 * static_cast<double>(x.bytes()), "GB/s");
}

void memory_bound(Bench& bench) {
  const std::int64_t tokens = 8192, hidden = 4096, ffn = 14336, vocab = 32768;
  const double row = static_cast<double>(tokens * hidden) * 2;
  const Tensor x = bench.random(kHalf, {tokens, hidden}), delta = bench.random(kHalf, {tokens, hidden});
  const Tensor w = bench.random(kHalf, {hidden}), y = bench.empty(kHalf, {tokens, hidden});
  const Tensor sum = bench.empty(kHalf, {tokens, hidden}), rstd = bench.empty(kFull, {tokens});
  const std::int64_t large = std::int64_t{256} << 20;
  const Tensor from = bench.random(kFull, {large}), to = bench.empty(kFull, {large});
  bench.run("copy, 1 GiB fp32", Cast{.x = from, .out = to}, static_cast<double>(large) * 8, "GB/s");
  bench.run("add, 64 MiB bf16", Add{.a = x, .b = delta, .out = y}, 3 * row, "GB/s");
  bench.run("rms_norm 8192x4096 bf16",
            RmsNormForward{.x = x, .delta = {}, .weight = w, .sum = {}, .y = y, .rstd = rstd, .eps = 1e-5F},
            2 * row, "GB/s");
  bench.run(
      "rms_norm + residual 8192x4096 bf16",
      RmsNormForward{.x = x, .delta = delta, .weight = w, .sum = sum, .y = y, .rstd = rstd, .eps = 1e-5F},
      4 * row, "GB/s");
  bench.run("rms_norm d_x 8192x4096 bf16",
            RmsNormBackwardInput{.x = x, .weight = w, .rstd = rstd, .d_y = delta, .d_sum = sum, .d_x = y},
            4 * row, "GB/s");
  const Tensor d_w = bench.empty(kFull, {hidden});
  bench.run("rms_norm d_w 8192x4096 bf16",
            RmsNormBackwardWeight{
                .x = x, .rstd = rstd, .d_y = delta, .d_weight = d_w, .accumulate = false, .workspace = {}},
            2 * row, "GB/s");
  const Tensor gate_up = bench.random(kHalf, {tokens, 2 * ffn}), act = bench.random(kHalf, {tokens, ffn});
  const Tensor d_gate_up = bench.empty(kHalf, {tokens, 2 * ffn});
  const double wide = static_cast<double>(tokens * ffn) * 2;
  bench.run("swiglu 8192x14336 bf16", SwigluForward{.gate_up = gate_up, .out = act}, 3 * wide, "GB/s");
  bench.run("swiglu backward 8192x14336 bf16",
            SwigluBackward{.gate_up = gate_up, .d_out = act, .d_gate_up = d_gate_up}, 5 * wide, "GB/s");
  // The short convolution of LFM2-1.2B and 8B-A1B.
  convolution(bench, "causal_conv 8192x2048, width 3, bf16", {2, 4096, 2048, 3});
  rows_for_sending(bench);
  parts_of_attention(bench);
  const Tensor positions =
      bench.integers(tokens, [](std::int64_t i) { return static_cast<std::int32_t>(i); });
  const Tensor table = bench.random(kFull, {tokens, 128});
  bench.run("rope 8192x32x128 bf16, in place",
            Rope{.x = y,
                 .y = y,
                 .positions = positions,
                 .table = table,
                 .heads = 32,
                 .head_dim = 128,
                 .rotary_dim = 128,
                 .inverse = false},
            2 * row, "GB/s");
  const Tensor logits = bench.random(kFull, {2048, vocab});
  const Tensor labels =
      bench.integers(2048, [&](std::int64_t i) { return static_cast<std::int32_t>(i * 7919 % vocab); });
  const Tensor weights = bench.random(kFull, {2048}), loss = bench.empty(kFull, {2048});
  const Tensor d_logits = bench.empty(kHalf, {2048, vocab});
  bench.run("cross_entropy 2048x32768, bf16 gradient",
            CrossEntropy{
                .logits = logits, .labels = labels, .weights = weights, .loss = loss, .d_logits = d_logits},
            2048.0 * static_cast<double>(vocab) * 6, "GB/s");
  const std::int64_t n = std::int64_t{64} << 20;
  const Tensor grad = bench.random(kFull, {n}, 0.01F), m = bench.empty(kFull, {n}),
               v = bench.empty(kFull, {n});
  const Tensor param = bench.random(kFull, {n}), working = bench.empty(kHalf, {n}),
               one = bench.empty(kFull, {1});
  AdamW adamw{};
  adamw.param = param, adamw.grad = grad, adamw.exp_avg = m, adamw.exp_avg_sq = v, adamw.grad_scale = one;
  adamw.working = working, adamw.beta1 = 0.9F, adamw.beta2 = 0.95F, adamw.eps = 1e-8F;
  adamw.scalars = bench.empty(DType::kF64, {kStepScalars});
  bench.run("adamw 64 Mi, fp32 and bf16 copy", adamw, static_cast<double>(n) * 30, "GB/s");
  const Tensor squares = bench.empty(DType::kF64, {1});
  bench.run("sum of squares 64 Mi fp32", SumOfSquares{.x = grad, .out = squares, .accumulate = false},
            static_cast<double>(n) * 4, "GB/s");
  const Tensor tokens_of =
      bench.integers(tokens, [&](std::int64_t i) { return static_cast<std::int32_t>(i * i * 31 % 32000); });
  const Tensor d_table = bench.empty(kFull, {32000, hidden});
  bench.run("embedding d_table 8192 tokens of 32000x4096",
            EmbeddingBackwardWeight{.tokens = tokens_of, .d_out = x, .d_table = d_table, .accumulate = true},
            3.0 * row, "GB/s");
}

void products(Bench& bench, std::int64_t tokens, std::int64_t out, std::int64_t in) {
  const Tensor x = bench.random(kHalf, {tokens, in}), w = bench.random(kHalf, {out, in}, 0.02F);
  const Tensor y = bench.random(kHalf, {tokens, out}), d_w = bench.empty(kFull, {out, in});
  const std::string size = std::to_string(tokens) + " x " + std::to_string(out) + " x " + std::to_string(in);
  Gemm gemm{};
  gemm.role = GemmRole::kForward, gemm.a = x, gemm.b = w, gemm.c = y;
  bench.run("gemm y = x Wt, " + size + " bf16", gemm, gemm.flops(), "TFLOP/s");
  gemm.role = GemmRole::kInputGradient, gemm.a = y, gemm.b = w, gemm.c = x;
  bench.run("gemm d_x, bf16", gemm, gemm.flops(), "TFLOP/s");
  gemm.role = GemmRole::kWeightGradient, gemm.a = y, gemm.b = x, gemm.c = d_w, gemm.accumulate = true;
  bench.run("gemm d_W += into fp32, bf16", gemm, gemm.flops(), "TFLOP/s");
  for (const Tensor& tensor : {x, w, y, d_w}) bench.release(tensor);
}

// Outputs and inputs of Llama-3-8B's layers: fused QKV, attention output, fused gate and up, down.
constexpr std::pair<std::int64_t, std::int64_t> kLinearShapes[] = {
    {6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};

// Times grouped products against one dense product with the same number of rows. Each token goes to `top_k`
// experts: either all experts get the same load, or an eighth of the experts gets half of the tokens.
void experts(Bench& bench, const std::string& name, std::int64_t experts, std::int64_t top_k, std::int64_t in,
             std::int64_t out) {
  const std::int64_t rows = 8192 * top_k;
  const Tensor x = bench.random(kHalf, {rows, in}), y = bench.random(kHalf, {rows, out});
  const Tensor w = bench.random(kHalf, {experts, out, in}, 0.02F);
  const Tensor d_w = bench.empty(kFull, {experts, out, in});
  const Tensor d_w_half(d_w.data, kHalf, d_w.shape);
  const Tensor one(w.data, kHalf, {out, in}), d_one(d_w.data, kFull, {out, in});
  const Tensor d_one_half(d_w.data, kHalf, {out, in});
  const std::string size =
      std::to_string(rows) + " x " + std::to_string(out) + " x " + std::to_string(in) + " bf16";
  for (const bool skewed : {false, true}) {
    const std::int64_t few = std::max<std::int64_t>(experts / 8, 1);
    const Tensor offsets = bench.integers(experts + 1, [&](std::int64_t e) {
      if (!skewed) return static_cast<std::int32_t>(rows * e / experts);
      const std::int64_t half = rows / 2;
      return static_cast<std::int32_t>(e <= few ? half * e / few : half + half * (e - few) / (experts - few));
    });
    const std::string kind = name + (skewed ? ", skewed, " : ", even, ");
    const auto product = [&](GemmRole role, const char* what, const Tensor& a, const Tensor& b,
                             const Tensor& c) {
      GroupedGemm grouped{.role = role, .a = a, .b = b, .c = c, .offsets = offsets};
      grouped.accumulate = role == GemmRole::kWeightGradient;
      bench.run(kind + what, grouped, grouped.flops(), "TFLOP/s");
    };
    product(GemmRole::kForward, "y", x, w, y);
    product(GemmRole::kInputGradient, "d_x", y, w, x);
    product(GemmRole::kWeightGradient, "d_W", y, x, d_w);
    product(GemmRole::kWeightGradient, "d_W in bf16", y, x, d_w_half);
  }
  Gemm dense{};
  dense.role = GemmRole::kForward, dense.a = x, dense.b = one, dense.c = y;
  bench.run("dense " + size + ", y", dense, dense.flops(), "TFLOP/s");
  dense.role = GemmRole::kInputGradient, dense.a = y, dense.b = one, dense.c = x;
  bench.run("dense d_x", dense, dense.flops(), "TFLOP/s");
  dense.role = GemmRole::kWeightGradient, dense.a = y, dense.b = x, dense.c = d_one, dense.accumulate = true;
  bench.run("dense d_W", dense, dense.flops(), "TFLOP/s");
  dense.c = d_one_half;
  bench.run("dense d_W in bf16", dense, dense.flops(), "TFLOP/s");
  for (const Tensor& tensor : {x, y, w, d_w}) bench.release(tensor);
}

// Times the router's products of bf16 tokens and an fp32 weight. Bytes count each operand once.
void router(Bench& bench, std::int64_t tokens, std::int64_t experts, std::int64_t hidden) {
  const Tensor x = bench.random(kHalf, {tokens, hidden}), y = bench.random(kFull, {tokens, experts});
  const Tensor w = bench.random(kFull, {experts, hidden}, 0.02F);
  const std::string name = "router " + std::to_string(tokens) + " x " + std::to_string(experts) + ", ";
  const auto product = [&](GemmRole role, const char* what, const Tensor& a, const Tensor& b,
                           const Tensor& c) {
    bench.run(name + what, Gemm{.role = role, .a = a, .b = b, .c = c, .workspace = {}},
              static_cast<double>(x.bytes() + w.bytes() + y.bytes()), "GB/s");
  };
  product(GemmRole::kForward, "y", x, w, y);
  product(GemmRole::kInputGradient, "d_x", y, w, x);
  product(GemmRole::kWeightGradient, "d_W", y, x, w);
}

// Times the products of a block of an 8B model that decodes `rows` sequences. Includes the preceding norm and
// the following operation if these are fused. Bytes count only the weights.
void decoding(Bench& bench, std::int64_t rows) {
  struct Product {
    const char* name;
    std::int64_t in, out;
    bool normed;
    AroundProduct::End end;
  };
  using End = AroundProduct::End;
  constexpr std::int64_t kPositions = 1024, kHeads = 40, kHeadDim = 128, kInTurn = std::int64_t{600} << 20;
  for (const Product& p : {Product{"norm, q k v, rope", 4096, 6144, true, End::kRope},
                           {"out", 4096, 4096, false, End::kNone},
                           {"norm, gate up, swiglu", 4096, 28672, true, End::kSwiglu},
                           {"down", 14336, 4096, false, End::kNone},
                           {"head", 4096, 128256, false, End::kNone}}) {
    const Shape x_shape{rows, p.in};
    Gemm call{.role = GemmRole::kForward,
              .a = bench.random(kHalf, x_shape),
              .b = {},
              .c = bench.empty(kHalf, {rows, p.end == End::kSwiglu ? p.out / 2 : p.out}),
              .workspace = {}};
    if (p.normed) {
      call.around = {.norm = bench.random(kHalf, {p.in}),
                     .delta = bench.random(kHalf, x_shape),
                     .sum = bench.empty(kHalf, x_shape),
                     .eps = 1e-5F,
                     .end = p.end};
    }
    if (p.end == End::kRope) {
      call.around.positions =
          bench.integers(rows, [](std::int64_t i) { return static_cast<std::int32_t>(i); });
      call.around.table = bench.random(kFull, {kPositions, kHeadDim});
      call.around.heads = kHeads, call.around.head_dim = kHeadDim;
    }
    std::vector<Gemm> calls;
    const std::int64_t bytes = p.in * p.out * 2;
    for (std::int64_t all = 0; all < kInTurn; all += bytes) {
      call.b = bench.random(kHalf, {p.out, p.in});
      calls.push_back(call);
    }
    bench.run_in_turn("decode " + std::to_string(rows) + ", " + p.name, calls, static_cast<double>(bytes),
                      "GB/s");
    for (const Gemm& one : calls) bench.release(one.b);
  }
}

struct AttentionCase {
  std::int64_t batch, seq, heads, kv_heads, dim, value_dim, window = 0;
  std::int64_t documents = 1;  // per sequence, of equal length
};

void attention(Bench& bench, const AttentionCase& c) {
  const std::int64_t tokens = c.batch * c.seq, k_at = c.heads * c.dim, v_at = k_at + c.kv_heads * c.dim;
  const std::int64_t width = v_at + c.kv_heads * c.value_dim;
  const Tensor qkv = bench.random(kHalf, {tokens, width}), d_qkv = bench.empty(kHalf, {tokens, width});
  const Tensor out = bench.empty(kHalf, {tokens, c.heads * c.value_dim});
  const Tensor lse = bench.empty(kFull, {c.heads, tokens});
  const Tensor d_out = bench.random(kHalf, out.shape);
  AttentionForward forward{};
  const std::int64_t length = c.seq / c.documents;
  forward.shape = {.batch = c.batch,
                   .seq_q = c.seq,
                   .seq_k = c.seq,
                   .capacity_k = c.seq,
                   .heads = c.heads,
                   .kv_heads = c.kv_heads,
                   .head_dim = c.dim,
                   .value_dim = c.value_dim,
                   .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim))),
                   .causal = true,
                   .window = c.window};
  AttentionShape one = forward.shape;  // the shape of a single document, for counting the necessary work
  one.batch *= c.documents, one.seq_q = one.seq_k = one.capacity_k = length;
  Tensor first_key;
  if (c.documents > 1) {
    first_key = bench.integers(
        tokens, [&](std::int64_t i) { return static_cast<std::int32_t>(i % c.seq / length * length); });
  }
  forward.q = qkv, forward.k = qkv.from(k_at), forward.v = qkv.from(v_at);
  forward.q_stride = forward.k_stride = forward.v_stride = width;
  forward.first_key = first_key;
  forward.out = out, forward.lse = lse;
  std::string name = "causal, " + std::to_string(c.batch) + " x " + std::to_string(c.seq) + " x " +
                     std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " +
                     std::to_string(c.dim);
  if (c.value_dim != c.dim) name += "/" + std::to_string(c.value_dim);
  if (c.window > 0) name += ", window " + std::to_string(c.window);
  if (c.documents > 1) name += ", " + std::to_string(c.documents) + " documents";
  AttentionForward counted = forward;
  counted.shape = one;
  bench.run("attention " + name, forward, counted.flops(), "TFLOP/s");
  AttentionBackward backward{};
  backward.shape = forward.shape;
  backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  backward.q_stride = backward.k_stride = backward.v_stride = width;
  backward.first_key = first_key;
  backward.out = out, backward.lse = lse, backward.d_out = d_out;
  backward.d_q = d_qkv, backward.d_k = d_qkv.from(k_at), backward.d_v = d_qkv.from(v_at);
  backward.d_q_stride = backward.d_k_stride = backward.d_v_stride = width;
  bench.run("attention backward " + name, backward, 2.5 * counted.flops(), "TFLOP/s");
  for (const Tensor& tensor : {qkv, d_qkv, out, lse, d_out, first_key}) {
    if (!tensor.absent()) bench.release(tensor);
  }
}

constexpr AttentionCase kAttentionCases[] = {
    {1, 8192, 32, 8, 128, 128},        // Llama-3-8B
    {1, 8192, 32, 32, 64, 64},         //
    {4, 2048, 32, 8, 128, 128},        //
    {1, 32768, 32, 8, 128, 128},       //
    {4, 4096, 14, 2, 64, 64},          // Qwen2.5-0.5B
    {2, 4096, 16, 16, 192, 128},       // latent attention
    {1, 8192, 32, 8, 128, 128, 1024},  // a sliding window
    {1, 8192, 32, 8, 128, 128, 0, 8},  // packed documents
};

int run(int argc, char** argv) {
  if (argc < 2 || std::strcmp(argv[1], "--help") == 0) {
    std::printf(
        "usage: gpu_bench PLUGIN [--json] [--attention | --delta | --memory | --products | --experts | "
        "--decoding | --mixtures] [--own] [--fast] [--tune FOLDER]\n"
        "  --attention    only attention\n"
        "  --delta        only the delta rule of linear attention\n"
        "  --memory       only memory-bound operators\n"
        "  --products     only matrix products\n"
        "  --experts      only grouped products with the shapes of Mixtral and DeepSeek-V2-Lite, and dense "
        "ones\n"
        "  --decoding     only products with few rows, as in decoding, each with other weights\n"
        "  --mixtures     only memory-bound operators with the sizes of mixtures of experts\n"
        "  --own          uses our attention kernels instead of the vendor's library\n"
        "  --fast         also uses kernels whose last bits vary between runs\n"
        "  --tune FOLDER  chooses the algorithms of products by timing, and stores the choices in FOLDER\n");
    return argc < 2 ? 2 : 0;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<DevicePluginEntry>(dlsym(library, kDevicePluginEntry));
  if (!entry) throw std::runtime_error(std::string(argv[1]) + " is not a device plug-in");
  const auto has = [&](const char* word) {
    return std::any_of(argv + 2, argv + argc, [&](const char* a) { return std::strcmp(a, word) == 0; });
  };
  const char** const tune =
      std::find_if(const_cast<const char**>(argv) + 2, const_cast<const char**>(argv) + argc,
                   [](const char* a) { return std::strcmp(a, "--tune") == 0; });
  const std::unique_ptr<Device> device =
      entry()->open({.kind = entry()->kind,
                     .deterministic = !has("--fast"),
                     .attention_library = !has("--own"),
                     .tuning_folder = tune + 1 < const_cast<const char**>(argv) + argc ? tune[1] : ""});
  std::printf("%s\n", device->description().c_str());
  Bench bench(*device, has("--json"));
  if (has("--decoding")) {
    for (const std::int64_t rows : {1, 2}) decoding(bench, rows);
  } else if (has("--products")) {
    for (const auto& [n, k] : kLinearShapes) products(bench, 8192, n, k);
  } else if (has("--delta")) {
    delta_rules(bench);
  } else if (has("--memory")) {
    memory_bound(bench);
  } else if (has("--mixtures")) {
    mixtures(bench);
  } else if (!has("--attention")) {
    if (!has("--experts")) {
      memory_bound(bench);
      mixtures(bench);
      delta_rules(bench);
      products(bench, 8192, 28672, 4096);
    }
    // The shapes of the fused gate and up products, and of the down products.
    experts(bench, "8 experts, top 2", 8, 2, 4096, 28672);
    experts(bench, "8 experts, top 2, down", 8, 2, 14336, 4096);
    experts(bench, "64 experts, top 6", 64, 6, 2048, 2816);
    experts(bench, "64 experts, top 6, down", 64, 6, 1408, 2048);
    experts(bench, "128 experts, top 8", 128, 8, 2048, 1536);
    experts(bench, "128 experts, top 8, down", 128, 8, 768, 2048);
    for (const std::int64_t tokens : {8192, 64, 1}) router(bench, tokens, 128, 2048);
    router(bench, 8192, 8, 4096);
  }
  const bool of_one_kind = has("--products") || has("--memory") || has("--experts") || has("--decoding") ||
                           has("--delta") || has("--mixtures");
  if (!of_one_kind) {
    for (const AttentionCase& one : kAttentionCases) attention(bench, one);
  }
  for (const KernelChoice& choice : device->choices()) {
    std::printf("%s: %lld calls\n", choice.what.c_str(), static_cast<long long>(choice.calls));
  }
  return 0;
}

}  // namespace
}  // namespace primus::turbo

int main(int argc, char** argv) {
  try {
    return primus::turbo::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
