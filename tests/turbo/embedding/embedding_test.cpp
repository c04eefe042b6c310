#include "turbo/embedding/embedding.h"

#include "base/error.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Case {
  std::int64_t tokens, vocab, hidden;
};
// Cases with vocabularies whose ids need one, two or three bytes, with many tokens of the same id, and with
// several blocks of sorted tokens.
const Case kCases[] = {{1, 1, 1},       {5, 3, 48},      {100, 40, 65},   {600, 50, 192},
                       {2500, 2, 1040}, {1500, 700, 33}, {3000, 70000, 8}};

Values random_tokens(const Case& c) {
  Values tokens;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    tokens.push_back(RandomStream(5, RandomPurpose::kTest)
                         .below(static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(c.vocab)));
  }
  return tokens;
}

class EmbeddingTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, EmbeddingTest, ::testing::ValuesIn(devices_under_test()));

TEST_P(EmbeddingTest, ForwardGathersRows) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const Values table = rounded(random_values(c.vocab * c.hidden, 1), dtype), tokens = random_tokens(c);
      Values expected;
      for (const double token : tokens) {
        const auto row = table.begin() + static_cast<std::ptrdiff_t>(token) * c.hidden;
        expected.insert(expected.end(), row, row + c.hidden);
      }
      const Tensor out = bench.empty(dtype, {c.tokens, c.hidden});
      bench.run(EmbeddingForward{.tokens = bench.upload(tokens, DType::kI32, {c.tokens}),
                                 .table = bench.upload(table, dtype, {c.vocab, c.hidden}),
                                 .out = out});
      EXPECT_EQ(bench.download(out), expected);
    }
  }
}

// The expected sum is computed in float, in the order that the kernel's header specifies, so the result must
// have the same bits.
TEST_P(EmbeddingTest, BackwardAddsInTokenOrder) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const Values d_out = rounded(random_values(c.tokens * c.hidden, 1), dtype), tokens = random_tokens(c);
      std::vector<float> sums(static_cast<std::size_t>(c.vocab * c.hidden));
      const Tensor d_table = bench.empty(DType::kF32, {c.vocab, c.hidden});
      for (const bool accumulate : {false, true}) {
        for (std::size_t t = 0; t < tokens.size(); ++t) {
          const auto hidden = static_cast<std::size_t>(c.hidden);
          for (std::size_t i = 0; i < hidden; ++i) {
            sums[static_cast<std::size_t>(tokens[t]) * hidden + i] +=
                static_cast<float>(d_out[t * hidden + i]);
          }
        }
        bench.run(EmbeddingBackwardWeight{.tokens = bench.upload(tokens, DType::kI32, {c.tokens}),
                                          .d_out = bench.upload(d_out, dtype, {c.tokens, c.hidden}),
                                          .d_table = d_table,
                                          .accumulate = accumulate});
        EXPECT_EQ(bench.download(d_table), Values(sums.begin(), sums.end())) << c.hidden;
      }
    }
  }
}

// A bf16 gradient is the fp32 sum of the old value and all rows, rounded once.
TEST_P(EmbeddingTest, GradientsOfABf16TableAreRoundedOnce) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c : kCases) {
      const Shape shape{c.vocab, c.hidden};
      const Tensor tokens = bench.upload(random_tokens(c), DType::kI32, {c.tokens});
      const Tensor d_out =
          bench.upload(rounded(random_values(c.tokens * c.hidden, 1), dtype), dtype, {c.tokens, c.hidden});
      if (dtype == DType::kF32 && c.tokens * c.hidden > 100'000) continue;  // bf16 covers these slow cases
      const Values before = rounded(random_values(c.vocab * c.hidden, 2), DType::kBF16);
      for (const bool accumulate : {false, true}) {
        const auto table = [&](DType type) {
          const Tensor d_table = bench.upload(before, type, shape);
          bench.run(EmbeddingBackwardWeight{
              .tokens = tokens, .d_out = d_out, .d_table = d_table, .accumulate = accumulate});
          return bench.download(d_table);
        };
        EXPECT_EQ(table(DType::kBF16), rounded(table(DType::kF32), DType::kBF16)) << c.hidden;
      }
    }
  }
}

// The vocabulary has three parts; one part has a single row. The sum of the embeddings of the parts equals
// the complete embedding, because each element comes from one part. Each part also computes its rows of the
// gradient.
TEST_P(EmbeddingTest, VocabularyPartsSumToTheWhole) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c{500, 90, 40};
    const Values table = rounded(random_values(c.vocab * c.hidden, 1), dtype),
                 token_values = random_tokens(c);
    const Values d_values = rounded(random_values(c.tokens * c.hidden, 2), dtype);
    const Tensor tokens = bench.upload(token_values, DType::kI32, {c.tokens});
    const Tensor whole = bench.upload(table, dtype, {c.vocab, c.hidden});
    const Tensor d_out = bench.upload(d_values, dtype, {c.tokens, c.hidden});
    const Tensor out = bench.empty(dtype, {c.tokens, c.hidden});
    const Tensor d_whole = bench.empty(DType::kF32, {c.vocab, c.hidden});
    bench.run(EmbeddingForward{.tokens = tokens, .table = whole, .out = out});
    bench.run(
        EmbeddingBackwardWeight{.tokens = tokens, .d_out = d_out, .d_table = d_whole, .accumulate = false});
    Values sum(static_cast<std::size_t>(c.tokens * c.hidden)), d_parts;
    const std::int64_t cuts[] = {0, 31, 32, c.vocab};
    for (int part = 0; part < 3; ++part) {
      const std::int64_t first = cuts[part], rows = cuts[part + 1] - first;
      const Tensor of_part = bench.empty(dtype, {c.tokens, c.hidden});
      bench.run(EmbeddingForward{.tokens = tokens,
                                 .table = whole.slice(first, first + rows),
                                 .out = of_part,
                                 .first = first,
                                 .vocabulary = c.vocab});
      const Values values = bench.download(of_part);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        if (values[i] == 0) continue;
        EXPECT_EQ(sum[i], 0) << "two parts embed the same token";
        sum[i] += values[i];
      }
      const Tensor d_table = bench.empty(DType::kF32, {rows, c.hidden});
      bench.run(EmbeddingBackwardWeight{.tokens = tokens,
                                        .d_out = d_out,
                                        .d_table = d_table,
                                        .accumulate = false,
                                        .first = first,
                                        .vocabulary = c.vocab});
      const Values d_values_of_part = bench.download(d_table);
      d_parts.insert(d_parts.end(), d_values_of_part.begin(), d_values_of_part.end());
    }
    EXPECT_EQ(sum, bench.download(out));
    EXPECT_EQ(d_parts, bench.download(d_whole));
  }
}

TEST_P(EmbeddingTest, TokensBeyondTheVocabularyOfAPartAreErrors) {
  OperatorBench bench(GetParam());
  const Tensor table = bench.zeros(DType::kF32, {4, 8}), out = bench.zeros(DType::kF32, {2, 8});
  const auto forward = [&](double token) {
    bench.run(EmbeddingForward{.tokens = bench.upload({9, token}, DType::kI32, {2}),
                               .table = table,
                               .out = out,
                               .first = 4,
                               .vocabulary = 10});
  };
  EXPECT_NO_THROW(forward(0));
  EXPECT_THROW(forward(10), Error);
}

TEST_P(EmbeddingTest, TokensBeyondTheTableAreErrorsThatNameThem) {
  OperatorBench bench(GetParam());
  const Tensor table = bench.zeros(DType::kF32, {4, 8}), out = bench.zeros(DType::kF32, {3, 8});
  for (const double bad : {4.0, -1.0, 2e9}) {
    const Tensor tokens = bench.upload({0, bad, 1}, DType::kI32, {3});
    const auto message = [&](auto call) -> std::string {
      try {
        bench.run(call);
      } catch (const Error& error) {
        return error.what();
      }
      return "no error";
    };
    const std::string name = std::to_string(static_cast<int>(bad));
    EXPECT_THAT(message(EmbeddingForward{.tokens = tokens, .table = table, .out = out}),
                ::testing::HasSubstr(name));
    EXPECT_THAT(message(EmbeddingBackwardWeight{
                    .tokens = tokens, .d_out = out, .d_table = table, .accumulate = true}),
                ::testing::HasSubstr(name));
  }
}

TEST(Embedding, NoThreadCountChangesABit) {
  const Case c{2000, 30, 200};
  const Values d_out = random_values(c.tokens * c.hidden, 1), tokens = random_tokens(c);
  std::vector<unsigned char> first;
  for (const int threads : {1, 2, 5}) {
    OperatorBench bench({.threads = threads});
    const Tensor d_table = bench.empty(DType::kF32, {c.vocab, c.hidden});
    bench.run(EmbeddingBackwardWeight{.tokens = bench.upload(tokens, DType::kI32, {c.tokens}),
                                      .d_out = bench.upload(d_out, DType::kF32, {c.tokens, c.hidden}),
                                      .d_table = d_table,
                                      .accumulate = false});
    if (first.empty()) first = bench.bytes(d_table);
    EXPECT_EQ(bench.bytes(d_table), first) << threads << " threads";
  }
}

}  // namespace
}  // namespace primus::turbo::test
