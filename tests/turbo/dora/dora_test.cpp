#include "turbo/dora/dora.h"

#include <cmath>

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class DoraTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, DoraTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(DoraTest, SquareIsThatOfTheAdaptedRow) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [out, in, rank] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {5, 77, 3}, {33, 512, 8}, {3, 2050, 2}}) {
      const Values w = rounded(random_values(out * in, 1), dtype),
                   down = rounded(random_values(rank * in, 2), dtype),
                   up = rounded(random_values(out * rank, 3), dtype);
      const double scale = 0.5;
      Values expected;
      for (std::int64_t o = 0; o < out; ++o) {
        double squares = 0;
        for (std::int64_t i = 0; i < in; ++i) {
          double sum = 0;
          for (std::int64_t r = 0; r < rank; ++r)
            sum += up[static_cast<std::size_t>(o * rank + r)] * down[static_cast<std::size_t>(r * in + i)];
          const double v = w[static_cast<std::size_t>(o * in + i)] + scale * sum;
          squares += v * v;
        }
        expected.push_back(squares);
      }
      const Tensor square = bench.empty(DType::kF32, {out});
      bench.run(DoraNorm{.w = bench.upload(w, dtype, {out, in}),
                         .down = bench.upload(down, dtype, {rank, in}),
                         .up = bench.upload(up, dtype, {out, rank}),
                         .square = square,
                         .scale = static_cast<float>(scale)});
      EXPECT_LE(normalised_error(bench.download(square), expected), 2e-6) << out << " " << in;
    }
  }
}

TEST_P(DoraTest, ScalesSomeColumnsAndSumsTheirGradients) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [tokens, cols, first, n] :
         {std::array<std::int64_t, 4>{1, 1, 0, 1}, {3, 77, 0, 77}, {300, 64, 16, 32}, {9000, 5, 2, 3}}) {
      const Values x = rounded(random_values(tokens * cols, 1), dtype),
                   d_y = rounded(random_values(tokens * cols, 2), dtype),
                   magnitude = rounded(random_values(n, 3), dtype);
      Values square = random_values(n, 4);
      for (double& v : square) v = static_cast<double>(static_cast<float>(1 + std::abs(v)));
      Values y = x, sums(static_cast<std::size_t>(n), 0.5);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(t * cols + first + i), o = static_cast<std::size_t>(i);
          y[at] *= magnitude[o] / std::sqrt(square[o]);
          sums[o] += x[at] * d_y[at] / std::sqrt(square[o]);
        }
      }
      const Tensor x_device = bench.upload(x, dtype, {tokens, cols}),
                   square_device = bench.upload(square, DType::kF32, {n}),
                   d_magnitude = bench.upload(Values(sums.size(), 0.5), DType::kF32, {n});
      for (const bool accumulate : {true, false}) {
        bench.run(DoraBackwardMagnitude{.x = x_device,
                                        .d_y = bench.upload(d_y, dtype, {tokens, cols}),
                                        .square = square_device,
                                        .d_magnitude = d_magnitude,
                                        .first = first,
                                        .accumulate = accumulate});
        EXPECT_LE(normalised_error(bench.download(d_magnitude), sums), 2e-6) << tokens;
        for (double& sum : sums) sum -= 0.5;
      }
      for (const Tensor& out : {bench.empty(dtype, {tokens, cols}), x_device}) {
        bench.run(DoraScale{.x = x_device,
                            .magnitude = bench.upload(magnitude, dtype, {n}),
                            .square = square_device,
                            .y = out,
                            .first = first});
        // The root, the quotient and the product are each rounded to fp32. The result is then rounded to
        // `dtype`.
        EXPECT_LE(normalised_error(bench.download(out), y),
                  rounding_error(dtype) + rounding_error(DType::kF32))
            << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
