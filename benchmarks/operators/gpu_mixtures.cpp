// Times operators that only move data, with the sizes of mixtures of experts.
#include <cstdint>
#include <string>

#include "gpu_bench.h"
#include "turbo/cross_entropy/cross_entropy.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/mxfp4/mxfp4.h"

namespace primus::turbo {
namespace {

void rounding(Bench& bench) {
  using Blocks = RoundMxfp4::Blocks;
  const Tensor x = bench.random(kHalf, {8192, 4096}), out = bench.empty(kHalf, x.shape);
  const double bytes = 2 * static_cast<double>(x.bytes());
  bench.run("mxfp4 8192x4096, along rows", RoundMxfp4{.x = x, .out = out, .blocks = Blocks::kRows}, bytes,
            "GB/s");
  bench.run("mxfp4, along columns after Hadamard",
            RoundMxfp4{.x = x, .out = out, .blocks = Blocks::kColumns, .hadamard = true}, bytes, "GB/s");
  bench.run("mxfp4, squares", RoundMxfp4{.x = x, .out = out, .blocks = Blocks::kTiles}, bytes, "GB/s");
  constexpr std::int64_t kExperts = 32;
  const Tensor offsets = bench.integers(kExperts + 1, [&](std::int64_t e) {
    return static_cast<std::int32_t>(x.rows() * e * e / (kExperts * kExperts));
  });
  const Tensor picks = bench.integers(
      x.rows(), [&](std::int64_t i) { return static_cast<std::int32_t>(i * 7919 % x.rows()); });
  bench.run("mxfp4, along columns of 32 experts' picked rows",
            RoundMxfp4{.x = x,
                       .out = out,
                       .blocks = Blocks::kColumns,
                       .hadamard = true,
                       .offsets = offsets,
                       .picks = picks},
            bytes, "GB/s");
  for (const Tensor& tensor : {x, out, offsets, picks}) bench.release(tensor);
}

// Bytes count each logit once.
void loss(Bench& bench, std::int64_t vocab) {
  const std::int64_t tokens = 2048;
  const Tensor logits = bench.random(kFull, {tokens, vocab}), d_logits = bench.empty(kHalf, logits.shape);
  const Tensor labels =
      bench.integers(tokens, [&](std::int64_t i) { return static_cast<std::int32_t>(i * 7919 % vocab); });
  const Tensor weights = bench.random(kFull, {tokens}, 0, 1), losses = bench.empty(kFull, {tokens});
  bench.run("cross_entropy " + std::to_string(tokens) + "x" + std::to_string(vocab) + ", bf16 gradient",
            CrossEntropy{
                .logits = logits, .labels = labels, .weights = weights, .loss = losses, .d_logits = d_logits},
            static_cast<double>(logits.elements()) * 6, "GB/s");
  for (const Tensor& tensor : {logits, d_logits, labels, weights, losses}) bench.release(tensor);
}

// The heads of Qwen3-30B-A3B. The columns of values are copied.
void head_norms(Bench& bench) {
  const HeadNormShape shape{.heads = 32, .kv_heads = 4, .head_dim = 128};
  const std::int64_t tokens = 8192, values = shape.kv_heads * shape.head_dim;
  const std::int64_t width = shape.normed() * shape.head_dim + values;
  const Tensor x = bench.random(kHalf, {tokens, width}), d_y = bench.random(kHalf, x.shape);
  const Tensor y = bench.empty(kHalf, x.shape), weight = bench.random(kHalf, {2 * shape.head_dim});
  const Tensor rstd = bench.empty(kFull, {tokens, shape.normed()});
  const Tensor d_weight = bench.empty(kHalf, weight.shape);
  const auto bytes = static_cast<double>(x.bytes());
  bench.run("head norms 8192x36x128",
            HeadNormForward{.shape = shape, .x = x, .weight = weight, .y = y, .rstd = rstd, .eps = 1e-6F},
            2 * bytes, "GB/s");
  bench.run(
      "head norms, d_x",
      HeadNormBackwardInput{.shape = shape, .x = x, .weight = weight, .rstd = rstd, .d_y = d_y, .d_x = y},
      3 * bytes, "GB/s");
  const double of_heads = bytes * static_cast<double>(width - values) / static_cast<double>(width);
  bench.run("head norms, d_w",
            HeadNormBackwardWeight{.shape = shape,
                                   .x = x,
                                   .rstd = rstd,
                                   .d_y = d_y,
                                   .d_weight = d_weight,
                                   .accumulate = false,
                                   .workspace = {}},
            2 * of_heads, "GB/s");
  for (const Tensor& tensor : {x, d_y, y, weight, rstd, d_weight}) bench.release(tensor);
}

}  // namespace

void mixtures(Bench& bench) {
  // The convolution before the delta rule of Qwen3.5-35B-A3B.
  convolution(bench, "causal_conv with silu 8192x8192, width 4",
              {1, 8192, 8192, 4, 0, 0, CausalConvShape::Form::kSilu});
  rounding(bench);
  head_norms(bench);
  for (const std::int64_t vocab : {32000, 151936, 163840, 201088, 248320}) loss(bench, vocab);
}

}  // namespace primus::turbo
