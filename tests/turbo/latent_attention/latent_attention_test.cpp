#include "turbo/latent_attention/latent_attention.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

constexpr LatentShape kShapes[] = {
    {1, 1, 1, 1, 1}, {4, 16, 12, 8, 12}, {3, 40, 7, 2, 20}, {16, 64, 32, 16, 32}};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Returns the index of element `i` of head `h` in row `row`; a row has `heads` heads of width `dim`.
std::size_t in_head(std::int64_t row, std::int64_t heads, std::int64_t h, std::int64_t dim, std::int64_t i) {
  return at((row * heads + h) * dim + i);
}

Values reference_qkv(const LatentShape& s, std::int64_t tokens, const Values& q, const Values& kv,
                     const Values& rope_key) {
  Values out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t i = 0; i < s.heads * s.key_dim(); ++i)
      out.push_back(q[at(t * s.heads * s.key_dim() + i)]);
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = 0; i < s.nope_dim; ++i) out.push_back(kv[in_head(t, s.heads, h, s.up_dim(), i)]);
      for (std::int64_t i = 0; i < s.rope_dim; ++i) out.push_back(rope_key[at(t * s.rope_dim + i)]);
    }
    for (std::int64_t h = 0; h < s.heads; ++h) {
      for (std::int64_t i = s.nope_dim; i < s.up_dim(); ++i)
        out.push_back(kv[in_head(t, s.heads, h, s.up_dim(), i)]);
    }
  }
  return out;
}

class LatentAttentionTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, LatentAttentionTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(LatentAttentionTest, JoinsAndTheGradientIsTheTranspose) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kTokens = 5;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const LatentShape& s : kShapes) {
      const std::int64_t width = s.heads * (2 * s.key_dim() + s.value_dim);
      const auto draw = [&](std::int64_t cols, std::uint64_t seed) {
        return rounded(random_values(kTokens * cols, seed), dtype);
      };
      const Values q = draw(s.heads * s.key_dim(), 1), kv = draw(s.heads * s.up_dim(), 2),
                   rope_key = draw(s.rope_dim, 3), d_qkv = draw(width, 4);
      const Tensor qkv = bench.empty(dtype, {kTokens, width});
      bench.run(LatentQkv{.shape = s,
                          .q = bench.upload(q, dtype, {kTokens, s.heads * s.key_dim()}),
                          .kv = bench.upload(kv, dtype, {kTokens, s.heads * s.up_dim()}),
                          .rope_key = bench.upload(rope_key, dtype, {kTokens, s.rope_dim}),
                          .qkv = qkv});
      EXPECT_EQ(bench.download(qkv), reference_qkv(s, kTokens, q, kv, rope_key));

      const Tensor d_q = bench.empty(dtype, {kTokens, s.heads * s.key_dim()}),
                   d_kv = bench.empty(dtype, {kTokens, s.heads * s.up_dim()}),
                   d_rope_key = bench.empty(dtype, {kTokens, s.rope_dim});
      bench.run(LatentQkvBackward{.shape = s,
                                  .d_qkv = bench.upload(d_qkv, dtype, {kTokens, width}),
                                  .d_q = d_q,
                                  .d_kv = d_kv,
                                  .d_rope_key = d_rope_key});
      // The map is linear, so element i of its gradient is the dot product of d_qkv with the image of unit
      // vector i.
      const auto gradient_of = [&](const std::function<Values(const Values&)>& map, const Values& like) {
        Values gradient;
        Values unit(like.size(), 0.0);
        for (std::size_t i = 0; i < like.size(); ++i) {
          unit[i] = 1;
          gradient.push_back(dot(map(unit), d_qkv));
          unit[i] = 0;
        }
        return gradient;
      };
      if (s.heads > 4) continue;  // the reference is slow
      const Values no_q(q.size()), no_kv(kv.size()), no_key(rope_key.size());
      EXPECT_EQ(bench.download(d_q),
                gradient_of([&](const Values& v) { return reference_qkv(s, kTokens, v, no_kv, no_key); }, q));
      EXPECT_EQ(bench.download(d_kv),
                gradient_of([&](const Values& v) { return reference_qkv(s, kTokens, no_q, v, no_key); }, kv));
      EXPECT_LE(normalised_error(
                    bench.download(d_rope_key),
                    gradient_of([&](const Values& v) { return reference_qkv(s, kTokens, no_q, no_kv, v); },
                                rope_key)),
                rounding_error(dtype) + 1e-6);
    }
  }
}

TEST_P(LatentAttentionTest, ProjectsPerHead) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const LatentShape& s : kShapes) {
      for (const std::int64_t tokens : {1, 3, 70}) {
        SCOPED_TRACE(std::to_string(s.heads) + " heads, " + std::to_string(tokens) + " tokens");
        const Values up = rounded(random_values(s.heads * s.up_dim() * s.rank, 1), dtype);
        const Values q = rounded(random_values(tokens * s.heads * s.key_dim(), 2), dtype);
        const Values o = rounded(random_values(tokens * s.heads * s.rank, 3), dtype);
        const std::int64_t absorbed_dim = s.rank + s.rope_dim;
        Values queries(at(tokens * s.heads * absorbed_dim)), values(at(tokens * s.heads * s.value_dim));
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t h = 0; h < s.heads; ++h) {
            const auto weight = [&](std::int64_t i, std::int64_t r) {
              return up[at((h * s.up_dim() + i) * s.rank + r)];
            };
            for (std::int64_t r = 0; r < s.rank; ++r) {
              for (std::int64_t i = 0; i < s.nope_dim; ++i) {
                queries[in_head(t, s.heads, h, absorbed_dim, r)] +=
                    q[in_head(t, s.heads, h, s.key_dim(), i)] * weight(i, r);
              }
              for (std::int64_t i = 0; i < s.value_dim; ++i) {
                values[in_head(t, s.heads, h, s.value_dim, i)] +=
                    o[in_head(t, s.heads, h, s.rank, r)] * weight(s.nope_dim + i, r);
              }
            }
            for (std::int64_t i = 0; i < s.rope_dim; ++i) {
              queries[in_head(t, s.heads, h, absorbed_dim, s.rank + i)] =
                  q[in_head(t, s.heads, h, s.key_dim(), s.nope_dim + i)];
            }
          }
        }
        const Tensor up_device = bench.upload(up, dtype, {s.heads * s.up_dim(), s.rank});
        const Tensor absorbed = bench.empty(dtype, {tokens, s.heads * absorbed_dim});
        bench.run(LatentProject{.shape = s,
                                .side = LatentProject::Side::kQueries,
                                .x = bench.upload(q, dtype, {tokens, s.heads * s.key_dim()}),
                                .up = up_device,
                                .out = absorbed,
                                .workspace = {}});
        EXPECT_LE(normalised_error(bench.download(absorbed), queries), rounding_error(dtype) + 2e-6);
        const Tensor out = bench.empty(dtype, {tokens, s.heads * s.value_dim});
        bench.run(LatentProject{.shape = s,
                                .side = LatentProject::Side::kValues,
                                .x = bench.upload(o, dtype, {tokens, s.heads * s.rank}),
                                .up = up_device,
                                .out = out,
                                .workspace = {}});
        EXPECT_LE(normalised_error(bench.download(out), values), rounding_error(dtype) + 2e-6);
      }
    }
  }
}

// The product is linear in both operands, so its gradients satisfy <d_x, x> = <d_up, up> = <d_out, product of
// x and up>. The expected values are computed in double from the definition.
TEST_P(LatentAttentionTest, GradientsOfProjections) {
  using Side = LatentProject::Side;
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const LatentShape& s : {kShapes[1], kShapes[2]}) {
      for (const Side side : {Side::kQueries, Side::kValues}) {
        constexpr std::int64_t kTokens = 5;
        const bool queries = side == Side::kQueries;
        const std::int64_t width = queries ? s.nope_dim : s.value_dim, first = queries ? 0 : s.nope_dim;
        const std::int64_t x_dim = queries ? s.key_dim() : s.rank,
                           out_dim = queries ? s.rank + s.rope_dim : s.value_dim;
        const auto draw = [&](std::int64_t n, std::uint64_t seed) {
          return rounded(random_values(n, seed), dtype);
        };
        const Values x = draw(kTokens * s.heads * x_dim, 1), d_out = draw(kTokens * s.heads * out_dim, 2),
                     up = draw(s.heads * s.up_dim() * s.rank, 3);
        Values d_x(x.size()), d_up(up.size(), 1.0);  // the gradient is added to ones
        for (std::int64_t t = 0; t < kTokens; ++t) {
          for (std::int64_t h = 0; h < s.heads; ++h) {
            for (std::int64_t i = 0; i < width; ++i) {
              for (std::int64_t r = 0; r < s.rank; ++r) {
                const std::size_t weight = at((h * s.up_dim() + first + i) * s.rank + r);
                const std::size_t in = in_head(t, s.heads, h, x_dim, queries ? i : r),
                                  out = in_head(t, s.heads, h, out_dim, queries ? r : i);
                d_x[in] += d_out[out] * up[weight];
                d_up[weight] += d_out[out] * x[in];
              }
            }
            for (std::int64_t i = 0; queries && i < s.rope_dim; ++i) {
              d_x[in_head(t, s.heads, h, x_dim, s.nope_dim + i)] =
                  d_out[in_head(t, s.heads, h, out_dim, s.rank + i)];
            }
          }
        }
        const Shape rows{kTokens, s.heads * x_dim}, matrix{s.heads * s.up_dim(), s.rank};
        const Tensor gradient = bench.upload(d_out, dtype, {kTokens, s.heads * out_dim});
        const Tensor d_x_device = bench.empty(dtype, rows);
        bench.run(LatentProjectBackwardInput{.shape = s,
                                             .side = side,
                                             .d_out = gradient,
                                             .up = bench.upload(up, dtype, matrix),
                                             .d_x = d_x_device,
                                             .workspace = {}});
        EXPECT_LE(normalised_error(bench.download(d_x_device), d_x), rounding_error(dtype) + 2e-6);
        for (const DType of_gradient : {DType::kF32, DType::kBF16}) {
          const Tensor d_up_device = bench.upload(Values(up.size(), 1.0), of_gradient, matrix);
          bench.run(LatentProjectBackwardWeight{.shape = s,
                                                .side = side,
                                                .x = bench.upload(x, dtype, rows),
                                                .d_out = gradient,
                                                .d_up = d_up_device,
                                                .workspace = {}});
          EXPECT_LE(normalised_error(bench.download(d_up_device), d_up), rounding_error(of_gradient) + 2e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
