#include "turbo/attention_residual/attention_residual.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class AttentionResidualTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, AttentionResidualTest, ::testing::ValuesIn(devices_under_test()));

constexpr float kEps = 1e-5F;

struct Model {
  std::int64_t tokens, checkpoints, hidden;

  std::size_t stream_size() const { return static_cast<std::size_t>(tokens * hidden); }
  // `all` concatenates checkpoints, stream, norm and proj.
  Values mixed(const Values& all) const {
    const auto n = static_cast<std::size_t>(checkpoints), h = static_cast<std::size_t>(hidden);
    const double *stream = all.data() + n * stream_size(), *norm = stream + stream_size(), *proj = norm + h;
    Values out;
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
      std::vector<const double*> candidates;
      for (std::size_t j = 0; j < n; ++j) candidates.push_back(all.data() + (t * n + j) * h);
      candidates.push_back(stream + t * h);
      Values shares;
      double sum = 0;
      for (const double* v : candidates) {
        double squares = 0, dot = 0;
        for (std::size_t i = 0; i < h; ++i) squares += v[i] * v[i], dot += v[i] * norm[i] * proj[i];
        const double score =
            dot / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(kEps));
        shares.push_back(std::exp(score));
        sum += shares.back();
      }
      for (std::size_t i = 0; i < h; ++i) {
        double value = 0;
        for (std::size_t j = 0; j < candidates.size(); ++j) value += shares[j] / sum * candidates[j][i];
        out.push_back(value);
      }
    }
    return out;
  }
};

Values slice(const Values& all, std::size_t begin, std::size_t size) {
  const auto from = all.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(size)};
}

TEST_P(AttentionResidualTest, ForwardAndBackward) {
  OperatorBench bench(GetParam());
  for (const Model& model : {Model{5, 1, 33}, Model{3, 4, 64}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::size_t size = model.stream_size(), h = static_cast<std::size_t>(model.hidden);
      const std::size_t stream_at = static_cast<std::size_t>(model.checkpoints) * size;
      Values all = rounded(random_values(static_cast<std::int64_t>(stream_at + size), 1), dtype);
      for (const double w : rounded(random_values(2 * model.hidden, 2, 0.7), DType::kF32)) all.push_back(w);
      const Values d_out = rounded(random_values(model.tokens * model.hidden, 3), dtype);
      const Shape rows{model.tokens, model.hidden}, wide{model.tokens, model.checkpoints * model.hidden};
      const ResidualCandidates of{
          .checkpoints = bench.upload(slice(all, 0, stream_at), dtype, wide),
          .stream = bench.upload(slice(all, stream_at, size), dtype, rows),
          .norm = bench.upload(slice(all, stream_at + size, h), DType::kF32, {model.hidden}),
          .proj = bench.upload(slice(all, stream_at + size + h, h), DType::kF32, {model.hidden}),
          .eps = kEps};
      const double tolerance = rounding_error(dtype) + 5e-6;
      const Tensor out = bench.empty(dtype, rows);
      bench.run(AttentionResidual{.of = of, .out = out});
      EXPECT_LE(normalised_error(bench.download(out), model.mixed(all)), tolerance);

      const Values gradient =
          numeric_gradient([&](const Values& v) { return dot(model.mixed(v), d_out); }, all);
      const Tensor d_y = bench.upload(d_out, dtype, rows);
      const Tensor factors = bench.empty(DType::kF32, {model.tokens, model.checkpoints + 1});
      const Values ones_wide(stream_at, 1.0);
      // Tests both writing the gradients and adding them to existing values.
      for (const bool adds : {false, true}) {
        const Tensor d_checkpoints = bench.upload(ones_wide, dtype, wide);
        const Tensor d_stream = bench.upload(Values(size, 1.0), dtype, rows);
        bench.run(AttentionResidualBackward{.of = of,
                                            .d_out = d_y,
                                            .previous_checkpoints = adds ? d_checkpoints : Tensor(),
                                            .previous_stream = adds ? d_stream : Tensor(),
                                            .d_checkpoints = d_checkpoints,
                                            .d_stream = d_stream,
                                            .factors = factors});
        Values expected = gradient;
        for (std::size_t i = 0; i < stream_at + size; ++i) expected[i] += adds ? 1 : 0;
        EXPECT_LE(normalised_error(bench.download(d_checkpoints), slice(expected, 0, stream_at)), tolerance);
        EXPECT_LE(normalised_error(bench.download(d_stream), slice(expected, stream_at, size)), tolerance);
      }
      const Tensor d_norm = bench.empty(DType::kF32, {model.hidden});
      const Tensor d_proj = bench.empty(DType::kF32, {model.hidden});
      bench.run(AttentionResidualBackwardWeight{
          .of = of, .factors = factors, .d_norm = d_norm, .d_proj = d_proj, .workspace = {}});
      EXPECT_LE(normalised_error(bench.download(d_norm), slice(gradient, stream_at + size, h)), 1e-5);
      EXPECT_LE(normalised_error(bench.download(d_proj), slice(gradient, stream_at + size + h, h)), 1e-5);
    }
  }
}

// If all candidates are equal, the mixture equals the candidate.
TEST_P(AttentionResidualTest, EqualCandidatesAreMixedToThemselves) {
  OperatorBench bench(GetParam());
  const Values one = rounded(random_values(48, 1), DType::kF32);
  Values twice = one;
  twice.insert(twice.end(), one.begin(), one.end());
  const Tensor w = bench.upload(rounded(random_values(48, 2), DType::kF32), DType::kF32, {48});
  const Tensor out = bench.empty(DType::kF32, {1, 48});
  bench.run(AttentionResidual{.of = {.checkpoints = bench.upload(twice, DType::kF32, {1, 96}),
                                     .stream = bench.upload(one, DType::kF32, {1, 48}),
                                     .norm = w,
                                     .proj = w,
                                     .eps = kEps},
                              .out = out});
  EXPECT_LE(normalised_error(bench.download(out), one), 2e-7);
}

}  // namespace
}  // namespace primus::turbo::test
