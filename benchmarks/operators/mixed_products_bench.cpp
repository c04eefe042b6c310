// Measures products of bf16 hidden states with fp32 weights, as in routers during bf16 training. Compares one
// call with mixed types to a conversion of the hidden states to fp32 followed by an fp32 product.
//   mixed_products_bench [--threads N] [--seconds S] [--tokens N] [--hidden N] [--clock wall|cpu]
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "operators/bench.h"
#include "turbo/linear/linear.h"

namespace {

using namespace primus;
using namespace primus::turbo;

Gemm product(GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c) {
  return {.role = role, .a = a, .b = b, .c = c, .accumulate = false, .workspace = {}};
}

void measure(Bench& bench, std::int64_t tokens, std::int64_t hidden, std::int64_t experts) {
  const Tensor x = bench.tensor(DType::kBF16, {tokens, hidden}), wide = bench.tensor(DType::kF32, x.shape);
  const Tensor weight = bench.tensor(DType::kF32, {experts, hidden}),
               d_weight = bench.tensor(DType::kF32, weight.shape);
  const Tensor logits = bench.tensor(DType::kF32, {tokens, experts});
  const auto report = [&](std::string_view name, double copies, double mixed) {
    fmt::print("{:>4} experts  {:<16} {:>8.3f} ms {:>8.3f} ms {:>7.2f}\n", experts, name, copies * 1e3,
               mixed * 1e3, mixed / copies);
  };
  const auto copied = [&](const Tensor& from, const Tensor& to) { bench.run(Cast{.x = from, .out = to}); };
  report("forward", bench.best_time([&] {
    copied(x, wide);
    bench.run(product(GemmRole::kForward, wide, weight, logits));
  }),
         bench.best_time([&] { bench.run(product(GemmRole::kForward, x, weight, logits)); }));
  report("input gradient", bench.best_time([&] {
    bench.run(product(GemmRole::kInputGradient, logits, weight, wide));
    copied(wide, x);
  }),
         bench.best_time([&] { bench.run(product(GemmRole::kInputGradient, logits, weight, x)); }));
  report("weight gradient", bench.best_time([&] {
    copied(x, wide);
    bench.run(product(GemmRole::kWeightGradient, logits, wide, d_weight));
  }),
         bench.best_time([&] { bench.run(product(GemmRole::kWeightGradient, logits, x, d_weight)); }));
  bench.release();
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  std::int64_t tokens = 2048, hidden = 512;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--threads") options.threads = std::stoi(value);
    if (flag == "--seconds") options.seconds = std::stod(value);
    if (flag == "--tokens") tokens = std::stoll(value);
    if (flag == "--hidden") hidden = std::stoll(value);
    if (flag == "--clock") options.cpu_time = value == "cpu";
  }
  Bench bench(options);
  fmt::print("{}, {} tokens, {} wide\n{:>31} {:>8} {:>11}\n", bench.description(), tokens, hidden,
             "fp32 copies", "mixed", "ratio");
  for (const std::int64_t experts : {8, 64, 256}) measure(bench, tokens, hidden, experts);
}
