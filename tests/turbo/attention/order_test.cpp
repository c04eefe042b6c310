// Attention of batch-invariant GPUs: a token has the same bits in a packed sequence of training, in any
// division of a prompt, and in decoding together with any other texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "turbo/attention/attention.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

struct Texts {
  std::int64_t heads, kv_heads, dim;
  std::vector<std::int64_t> lengths;
  std::int64_t window = 0;
  bool sinks = false;

  std::int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  std::int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(dim)); }
};

class Order {
 public:
  Order(const DeviceUnderTest& device, const Texts& texts)
      : c_(texts),
        bench_(device),
        qkv_(bench_.upload(rounded(random_values(texts.tokens() * texts.width(), 3), DType::kBF16),
                           DType::kBF16, {texts.tokens(), texts.width()})) {
    if (texts.sinks)
      sinks_ =
          bench_.upload(rounded(random_values(texts.heads, 4), DType::kBF16), DType::kBF16, {texts.heads});
  }

  // All texts in one sequence, as in training.
  std::vector<unsigned char> packed() {
    Values first_key;
    for (const std::int64_t length : c_.lengths)
      first_key.resize(first_key.size() + static_cast<std::size_t>(length),
                       static_cast<double>(first_key.size()));
    const std::int64_t n = c_.tokens();
    const Tensor out = bench_.empty(DType::kBF16, {n, c_.heads * c_.dim});
    AttentionForward call{.shape = {.batch = 1,
                                    .seq_q = n,
                                    .seq_k = n,
                                    .capacity_k = n,
                                    .heads = c_.heads,
                                    .kv_heads = c_.kv_heads,
                                    .head_dim = c_.dim,
                                    .value_dim = c_.dim,
                                    .scale = c_.scale(),
                                    .causal = true,
                                    .window = c_.window},
                          .q = qkv_,
                          .k = qkv_.from(c_.heads * c_.dim),
                          .v = qkv_.from((c_.heads + c_.kv_heads) * c_.dim),
                          .q_stride = c_.width(),
                          .k_stride = c_.width(),
                          .v_stride = c_.width(),
                          .first_key = bench_.upload(first_key, DType::kI32, {n}),
                          .sinks = sinks_,
                          .out = out,
                          .lse = bench_.empty(DType::kF32, {c_.heads, n}),
                          .workspace = {}};
    bench_.run(call);
    return bench_.bytes(out);
  }

  // Reads the texts into a cache. A pass reads at most `pass` tokens per text. The pages hold NaN where no
  // token was written.
  std::vector<unsigned char> paged(std::int64_t pass) {
    constexpr std::int64_t kPage = 64;
    const auto count = static_cast<std::int64_t>(c_.lengths.size());
    const std::int64_t longest = *std::max_element(c_.lengths.begin(), c_.lengths.end());
    const std::int64_t blocks = (longest + kPage - 1) / kPage, kv = c_.kv_heads * c_.dim;
    const std::int64_t of_out = c_.heads * c_.dim * 2, of_row = c_.width() * 2;
    const Tensor k = bench_.empty(DType::kBF16, {blocks * count * kPage, kv});
    const Tensor v = bench_.empty(DType::kBF16, {blocks * count * kPage, kv});
    Values table;
    for (std::int64_t i = 0; i < blocks * count; ++i)
      table.push_back(static_cast<double>(i % blocks * count + i / blocks));
    const std::vector<unsigned char> rows = bench_.bytes(qkv_);
    std::vector<unsigned char> result(static_cast<std::size_t>(c_.tokens() * of_out));
    for (std::int64_t done = 0; done < longest; done += pass) {
      Values starts{0}, lengths;
      std::vector<unsigned char> given;
      for (std::int64_t b = 0, first = 0; b < count; first += c_.lengths[static_cast<std::size_t>(b++)]) {
        const std::int64_t length = c_.lengths[static_cast<std::size_t>(b)];
        const std::int64_t begin = std::min(done, length), end = std::min(done + pass, length);
        const auto at = rows.begin() + (first + begin) * of_row;
        given.insert(given.end(), at, at + (end - begin) * of_row);
        starts.push_back(starts.back() + static_cast<double>(end - begin));
        lengths.push_back(static_cast<double>(end));
      }
      const auto fresh = static_cast<std::int64_t>(starts.back()), idle = fresh + 3;
      const Tensor x = bench_.empty(DType::kBF16, {idle, c_.width()});
      given.resize(static_cast<std::size_t>(x.bytes()), 0xFF);
      bench_.write_bytes(x, given.data());
      const Tensor out = bench_.empty(DType::kBF16, {idle, c_.heads * c_.dim});
      const PagedSequences sequences{.query_starts = bench_.upload(starts, DType::kI32, {count + 1}),
                                     .key_lengths = bench_.upload(lengths, DType::kI32, {count}),
                                     .block_table = bench_.upload(table, DType::kI32, {count, blocks}),
                                     .page_size = kPage,
                                     .single = pass == 1};
      bench_.run(PagedAppend{.sequences = sequences,
                             .rows = x.from(c_.heads * c_.dim),
                             .pages = k,
                             .tokens = idle,
                             .cols = kv,
                             .stride = c_.width(),
                             .to_stride = kv,
                             .more_rows = x.from((c_.heads + c_.kv_heads) * c_.dim),
                             .more_pages = v,
                             .more_cols = kv,
                             .more_to_stride = kv});
      bench_.run(PagedAttention{.sequences = sequences,
                                .tokens = idle,
                                .heads = c_.heads,
                                .kv_heads = c_.kv_heads,
                                .head_dim = c_.dim,
                                .value_dim = c_.dim,
                                .scale = c_.scale(),
                                .window = c_.window,
                                .chunk = 0,
                                .q = x,
                                .k = k,
                                .v = v,
                                .q_stride = c_.width(),
                                .k_stride = kv,
                                .v_stride = kv,
                                .sinks = sinks_,
                                .out = out,
                                .workspace = {}});
      const std::vector<unsigned char> bytes = bench_.bytes(out);
      for (std::int64_t b = 0, first = 0; b < count; first += c_.lengths[static_cast<std::size_t>(b++)]) {
        const auto begin = static_cast<std::int64_t>(starts[static_cast<std::size_t>(b)]);
        const auto end = static_cast<std::int64_t>(starts[static_cast<std::size_t>(b) + 1]);
        std::copy(bytes.begin() + begin * of_out, bytes.begin() + end * of_out,
                  result.begin() + (first + done) * of_out);
      }
      EXPECT_TRUE(std::all_of(bytes.begin() + fresh * of_out, bytes.end(), [](unsigned char byte) {
        return byte == 0;
      })) << "rows that belong to no sequence";
    }
    return result;
  }

 private:
  Texts c_;
  OperatorBench bench_;
  Tensor qkv_, sinks_;
};

void expect_one_order(const DeviceUnderTest& device, const Texts& texts,
                      const std::vector<std::int64_t>& passes) {
  SCOPED_TRACE(testing::Message() << device.name() << ", heads of " << texts.dim << ", window "
                                  << texts.window);
  Order order(device, texts);
  const std::vector<unsigned char> packed = order.packed();
  for (const std::int64_t pass : passes) {
    const std::vector<unsigned char> paged = order.paged(pass);
    ASSERT_EQ(paged.size(), packed.size());
    const auto differing = std::mismatch(paged.begin(), paged.end(), packed.begin()).first - paged.begin();
    ASSERT_EQ(differing, static_cast<std::ptrdiff_t>(paged.size())) << "passes of " << pass << " tokens";
  }
}

TEST(OrderOfAttention, ATokenHasTheSameBitsInTrainingPromptsAndDecoding) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    expect_one_order(device, {4, 2, 64, {3, 70, 1, 140, 40}}, {200, 33});
    expect_one_order(device, {2, 1, 64, {6, 3}}, {1});
    expect_one_order(device, {2, 1, 64, {50, 150, 9}, 40, true}, {64});
    // The texts have several runs of keys. The second pass decodes three tokens, and each run has a block.
    expect_one_order(device, {2, 1, 64, {297 + 3, 40}}, {297});
    expect_one_order(device, {2, 1, 64, {40, 381 + 3}, 260, true}, {381});
    if (device.plugin.empty()) continue;
    expect_one_order(device, {4, 2, 64, {3, 70, 1, 140, 40}}, {1, 7});
    expect_one_order(device, {2, 1, 64, {50, 150, 9}, 40, true}, {1});
    expect_one_order(device, {16, 8, 128, {1, 700, 64, 129, 300, 128, 127}}, {1, 8, 100, 1000});
    expect_one_order(device, {32, 4, 128, {300, 400, 90}, 200}, {1, 50, 1000});
    expect_one_order(device, {32, 8, 64, {2000, 90, 1100}, 0, true}, {1, 512});
    expect_one_order(device, {16, 8, 128, {5000}}, {4999, 1000});
    expect_one_order(device, {32, 8, 128, {4001, 900}, 1500, true}, {3998, 700});
    expect_one_order(device, {8, 2, 128, {1700, 1600}}, {1});
  }
}

TEST(OrderOfAttention, OtherHeadsAreRefused) {
  for (const DeviceUnderTest& device : batch_invariant_gpus()) {
    try {
      Order(device, {2, 1, 32, {5}}).packed();
      FAIL() << "heads of 32 columns";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_THAT(error.what(), testing::HasSubstr("batch_invariant has no kernel for attention in bf16"));
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
