// Times operators that only move data, with the sizes of mixtures of experts.
#include <cstdint>
#include <string>

#include "gpu_bench.h"
#include "turbo/cross_entropy/cross_entropy.h"
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

}  // namespace

void mixtures(Bench& bench) {
  // The convolution before the delta rule of Qwen3.5-35B-A3B.
  convolution(bench, "causal_conv with silu 8192x8192, width 4",
              {1, 8192, 8192, 4, 0, 0, CausalConvShape::Form::kSilu});
  rounding(bench);
  for (const std::int64_t vocab : {32000, 151936, 163840, 201088, 248320}) loss(bench, vocab);
}

}  // namespace primus::turbo
