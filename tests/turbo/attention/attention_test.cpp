#include "turbo/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "turbo/attention/attention_reference.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

AttentionShape shape(std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t head_dim, std::int64_t value_dim, std::int64_t window = 0,
                     bool causal = true, std::int64_t chunk = 0) {
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
  return {batch, seq, seq, seq, heads, kv_heads, head_dim, value_dim, scale, causal, window, chunk};
}

// Returns the shape of attention with a key cache: `seq_q` new tokens follow seq_k - seq_q cached tokens. The
// cache has room for `capacity_k` tokens.
AttentionShape cached(AttentionShape s, std::int64_t seq_q, std::int64_t seq_k, std::int64_t capacity_k) {
  s.seq_q = seq_q, s.seq_k = seq_k, s.capacity_k = capacity_k, s.q_first = seq_k - seq_q;
  return s;
}

// Inputs rounded to `dtype`, and the expected results.
struct Expected {
  Expected(const AttentionShape& s, DType dtype)
      : d_out(draw(s.batch * s.seq_q * s.heads * s.value_dim, 4, dtype)),
        reference(s, draw(s.batch * s.seq_q * s.heads * s.head_dim, 1, dtype),
                  draw(s.batch * s.seq_k * s.kv_heads * s.head_dim, 2, dtype),
                  draw(s.batch * s.seq_k * s.kv_heads * s.value_dim, 3, dtype)) {}

  // Packs documents with these lengths, repeated cyclically, into every sequence except the second.
  Expected& pack(const std::vector<std::int64_t>& lengths) {
    const AttentionShape& s = reference.s;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      std::int64_t start = 0, document = 0;
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        const std::int64_t length = lengths[static_cast<std::size_t>(document) % lengths.size()];
        if (i == start + length) start = i, ++document;
        reference.first_key.push_back(b == 1 ? 0 : static_cast<double>(start));
      }
    }
    return *this;
  }
  Expected& add_sinks(DType dtype) {
    reference.sinks = draw(reference.s.heads, 5, dtype);
    return *this;
  }

  Expected& compute() {
    reference.forward();
    reference.backward(d_out);
    return *this;
  }
  static Values draw(std::int64_t n, std::uint64_t seed, DType dtype) {
    return rounded(random_values(n, seed), dtype);
  }

  Values d_out;
  AttentionReference reference;
};

// One attention call with all its tensors on a bench. Rows have `gap` unused elements, and a cache has unused
// rows. Unused elements and rows are NaN, and must be neither read nor written.
class Problem {
 public:
  Problem(OperatorBench& bench, const Expected& expected, DType dtype, std::int64_t gap = 0)
      : bench_(bench), expected_(expected), s_(expected.reference.s), dtype_(dtype), gap_(gap) {
    forward = {
        .shape = s_,
        .q = upload(expected.reference.q, s_.seq_q, s_.seq_q, s_.heads * s_.head_dim),
        .k = upload(expected.reference.k, s_.seq_k, s_.capacity_k, s_.kv_heads * s_.head_dim),
        .v = upload(expected.reference.v, s_.seq_k, s_.capacity_k, s_.kv_heads * s_.value_dim),
        .q_stride = s_.heads * s_.head_dim + gap,
        .k_stride = s_.kv_heads * s_.head_dim + gap,
        .v_stride = s_.kv_heads * s_.value_dim + gap,
        .first_key = expected.reference.first_key.empty()
                         ? Tensor()
                         : bench.upload(expected.reference.first_key, DType::kI32, {s_.batch * s_.seq_q}),
        .sinks = expected.reference.sinks.empty() ? Tensor()
                                                  : bench.upload(expected.reference.sinks, dtype, {s_.heads}),
        .out = bench.empty(dtype, {s_.batch * s_.seq_q, s_.heads * s_.value_dim}),
        .lse = bench.empty(DType::kF32, {s_.heads, s_.batch * s_.seq_q}),
        .workspace = {}};
    backward = {.shape = s_,
                .q = forward.q,
                .k = forward.k,
                .v = forward.v,
                .q_stride = forward.q_stride,
                .k_stride = forward.k_stride,
                .v_stride = forward.v_stride,
                .first_key = forward.first_key,
                .out = forward.out,
                .lse = forward.lse,
                .d_out = bench.upload(expected.d_out, dtype, forward.out.shape),
                .d_q = bench.empty(dtype, forward.q.shape),
                .d_k = bench.empty(dtype, forward.k.shape),
                .d_v = bench.empty(dtype, forward.v.shape),
                .d_q_stride = forward.q_stride,
                .d_k_stride = forward.k_stride,
                .d_v_stride = forward.v_stride,
                .workspace = {}};
    if (forward.sinks.absent()) return;
    sinks = {.heads = s_.heads,
             .value_dim = s_.value_dim,
             .sinks = forward.sinks,
             .out = forward.out,
             .lse = forward.lse,
             .d_out = backward.d_out,
             .d_sinks = bench.zeros(DType::kF32, {s_.heads}),
             .accumulate = true};
  }

  void run() {
    bench_.run(forward);
    bench_.run(backward);
    if (!sinks.sinks.absent()) bench_.run(sinks);
  }

  void expect_matches_reference() {
    // In fp32, results are sums of a few hundred products with random rounding errors. In bf16, both
    // probabilities and results may be rounded to bf16. In fp16, probabilities and results are rounded in the
    // same way, with three more bits.
    const double tolerance = dtype_ == DType::kF32 ? 2e-6 : dtype_ == DType::kF16 ? 1e-2 / 8 : 1e-2;
    const AttentionReference& reference = expected_.reference;
    EXPECT_LE(normalised_error(bench_.download(forward.out), reference.out), tolerance);
    EXPECT_LE(normalised_error(bench_.download(forward.lse), reference.lse), 1e-6);
    // A query gradient is a sum over all keys, so its error grows with the square root of the number of keys.
    const double of_queries = tolerance * std::max(1.0, std::sqrt(static_cast<double>(s_.seq_k) / 256.0));
    expect_gradient(backward.d_q, reference.d_q, s_.seq_q, s_.seq_q, s_.heads * s_.head_dim, of_queries);
    expect_gradient(backward.d_k, reference.d_k, s_.seq_k, s_.capacity_k, s_.kv_heads * s_.head_dim,
                    tolerance);
    expect_gradient(backward.d_v, reference.d_v, s_.seq_k, s_.capacity_k, s_.kv_heads * s_.value_dim,
                    tolerance);
    // A sink gradient is a sum over all tokens, with terms of both signs, so its tolerance is doubled.
    if (sinks.sinks.absent()) return;
    EXPECT_LE(normalised_error(bench_.download(sinks.d_sinks), reference.d_sinks), 2 * tolerance);
  }

  // Returns the bytes of all results of the calls.
  std::vector<unsigned char> result_bytes() {
    std::vector<unsigned char> all;
    for (const Tensor& t :
         {forward.out, forward.lse, backward.d_q, backward.d_k, backward.d_v, sinks.d_sinks}) {
      if (t.absent()) continue;
      const auto raw = bench_.bytes(t);
      all.insert(all.end(), raw.begin(), raw.end());
    }
    return all;
  }

  AttentionForward forward{};
  AttentionBackward backward{};
  AttentionBackwardSinks sinks{};

 private:
  Tensor upload(const Values& values, std::int64_t seq, std::int64_t capacity, std::int64_t width) {
    const std::int64_t stride = width + gap_;
    Values padded(static_cast<std::size_t>(s_.batch * capacity * stride), NAN);
    for (std::int64_t row = 0; row < s_.batch * seq; ++row) {
      std::copy_n(values.begin() + row * width, width,
                  padded.begin() + (row / seq * capacity + row % seq) * stride);
    }
    return bench_.upload(padded, dtype_, {s_.batch * capacity, stride});
  }

  // Compares the gradient in the first `seq` of the `capacity` rows of each sequence; the remaining rows must
  // still be NaN.
  void expect_gradient(const Tensor& tensor, const Values& expected, std::int64_t seq, std::int64_t capacity,
                       std::int64_t width, double tolerance) {
    const Values all = bench_.download(tensor);
    const std::int64_t stride = width + gap_;
    Values actual;
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
      const auto begin = all.begin() + row * stride, used = row % capacity < seq ? begin + width : begin;
      actual.insert(actual.end(), begin, used);
      EXPECT_TRUE(std::all_of(used, begin + stride, [](double x) { return std::isnan(x); }));
    }
    EXPECT_LE(normalised_error(actual, expected), tolerance);
  }

  OperatorBench& bench_;
  const Expected& expected_;
  AttentionShape s_;
  DType dtype_;
  std::int64_t gap_;
};

std::vector<AttentionShape> training_shapes() {
  return {
      shape(2, 5, 2, 2, 12, 12),         // sequences shorter than a tile, heads narrower than a vector
      shape(1, 1, 1, 1, 1, 1),           // a single query and a single key
      shape(2, 130, 4, 2, 16, 24),       // grouped queries, values wider than keys, a partial last tile
      shape(1, 200, 3, 1, 80, 80, 33),   // one key head for all queries, sliding window within a tile
      shape(1, 260, 2, 2, 64, 64, 64),   // a window of exactly a tile: tiles before and after it are skipped
      shape(1, 257, 1, 1, 32, 32, 150),  // a window longer than a tile
      shape(1, 100, 2, 1, 20, 7, 0, false),  // not causal
      shape(1, 130, 1, 1, 8, 8, 10, false),  // not causal; the window limits only earlier keys
      shape(1, 70, 1, 1, 256, 256),          // the widest head
      shape(1, 66, 2, 2, 192, 128),          // as in latent attention
      shape(9, 67, 2, 1, 64, 64),            // more heads than threads, so that work items are complete heads
      shape(1, 200, 2, 1, 16, 16, 0, true, 64),   // chunks of exactly a tile
      shape(1, 200, 2, 1, 16, 16, 0, true, 50),   // chunks that end within tiles
      shape(1, 150, 1, 1, 16, 16, 20, true, 70),  // chunks and a window
      shape(1, 90, 1, 1, 16, 16, 0, false, 40),   // chunks, not causal
  };
}

std::vector<AttentionShape> cache_shapes() {
  return {
      cached(shape(1, 0, 4, 2, 32, 16), 1, 300, 320),                // decoding one token
      cached(shape(2, 0, 2, 2, 64, 64), 1, 2000, 2048),              // decoding one token after a long prompt
      cached(shape(1, 0, 8, 1, 12, 20, 100), 1, 700, 700),           // decoding one token, with a window
      cached(shape(3, 0, 4, 4, 80, 80), 3, 70, 90),                  // decoding a few tokens at once
      cached(shape(1, 0, 2, 1, 64, 64), 65, 200, 256),               // prefill of a part of a prompt
      cached(shape(2, 0, 1, 1, 16, 16, 40), 5, 5, 64),               // prefill of a whole prompt
      cached(shape(1, 0, 2, 2, 24, 24, 0, false), 2, 90, 90),        // not causal
      cached(shape(2, 0, 4, 2, 32, 16, 0, true, 128), 1, 300, 320),  // chunks
      cached(shape(2, 0, 4, 2, 32, 16, 0, true, 128), 3, 257, 320),  // chunks; the queries are in two chunks
      cached(shape(1, 0, 2, 2, 32, 16, 0, true, 100), 80, 250, 256),  // chunks; prefill of a part of a prompt
  };
}

// Returns whether the emulator is fast enough for the shape. The emulator computes a few hundred thousand
// query-key pairs per second. Tiles of queries are always computed completely.
bool quick_to_emulate(const AttentionShape& s) {
  return s.batch * s.heads * std::max<std::int64_t>(s.seq_q, 64) * s.seq_k <= 150'000;
}

// Compares attention with the reference on all devices. `prepare` completes the inputs; in every second
// shape, rows have `gap` unused elements.
template <class Prepare>
void expect_all_match(const std::vector<AttentionShape>& shapes, Prepare prepare, std::int64_t gap = 5,
                      const std::vector<DType>& dtypes = {DType::kF32, DType::kBF16}) {
  const std::vector<DeviceUnderTest> specs = devices_under_test();
  std::vector<std::unique_ptr<OperatorBench>> benches;
  for (const DeviceUnderTest& spec : specs) benches.push_back(std::make_unique<OperatorBench>(spec));
  for (const DType dtype : dtypes) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      Expected expected(shapes[i], dtype);
      prepare(expected, dtype);
      expected.compute();
      for (std::size_t device = 0; device < specs.size(); ++device) {
        if (specs[device].emulated_warp > 0 && !quick_to_emulate(shapes[i])) continue;
        SCOPED_TRACE("shape " + std::to_string(i) + " " + std::string(name_of(dtype)) + ", " +
                     specs[device].name());
        Problem problem(*benches[device], expected, dtype, i % 2 == 0 ? 0 : gap);
        problem.run();
        problem.expect_matches_reference();
      }
    }
  }
}

void expect_finite_differences(const AttentionShape& s) {
  const Values first_key{0, 0, 0, 3, 3, 3, 0, 0, 2, 2, 2, 5}, sinks{0.3, -0.7};
  const Values q = random_values(2 * 6 * 2 * 3, 1), k = random_values(2 * 6 * 3, 2),
               v = random_values(2 * 6 * 2, 3);
  const Values d_out = random_values(2 * 6 * 2 * 2, 4);
  const auto loss = [&](const Values& q_, const Values& k_, const Values& v_, const Values& sinks_) {
    AttentionReference reference(s, q_, k_, v_);
    reference.first_key = first_key, reference.sinks = sinks_;
    reference.forward();
    return dot(reference.out, d_out);
  };
  AttentionReference reference(s, q, k, v);
  reference.first_key = first_key, reference.sinks = sinks;
  reference.forward();
  reference.backward(d_out);
  const auto numeric_q = numeric_gradient([&](const Values& x) { return loss(x, k, v, sinks); }, q);
  const auto numeric_k = numeric_gradient([&](const Values& x) { return loss(q, x, v, sinks); }, k);
  const auto numeric_v = numeric_gradient([&](const Values& x) { return loss(q, k, x, sinks); }, v);
  const auto numeric_sinks = numeric_gradient([&](const Values& x) { return loss(q, k, v, x); }, sinks);
  EXPECT_LE(normalised_error(reference.d_q, numeric_q), 1e-8);
  EXPECT_LE(normalised_error(reference.d_k, numeric_k), 1e-8);
  EXPECT_LE(normalised_error(reference.d_v, numeric_v), 1e-8);
  EXPECT_LE(normalised_error(reference.d_sinks, numeric_sinks), 1e-8);
}

// Adds a soft cap that is low enough to change the scores.
AttentionShape capped(AttentionShape s, float cap = 0.5F) {
  s.score_cap = cap;
  return s;
}

TEST(Attention, ReferenceGradientsAreFiniteDifferences) {
  expect_finite_differences(shape(2, 6, 2, 1, 3, 2, 4));
  expect_finite_differences(capped(shape(2, 6, 2, 1, 3, 2, 4)));
}

void as_is(Expected&, DType) {}
void with_sinks(Expected& expected, DType dtype) { expected.add_sinks(dtype); }

TEST(Attention, TrainingMatchesReference) { expect_all_match(training_shapes(), as_is); }

TEST(Attention, Fp16MatchesReference) {
  const auto packed = [](Expected& expected, DType) { expected.pack({40, 7, 90}); };
  expect_all_match(training_shapes(), as_is, 5, {DType::kF16});
  expect_all_match(cache_shapes(), as_is, 5, {DType::kF16});
  expect_all_match({shape(2, 130, 4, 2, 64, 64), shape(1, 150, 2, 1, 16, 16, 20)}, packed, 5, {DType::kF16});
}

// Gradients of fp16 operands must be fp16 and cannot be accumulated. Other calls throw, because no test
// covers the accuracy of such calls.
TEST(Attention, Fp16OperandsNeedFp16GradientsWithoutAccumulation) {
  OperatorBench bench;
  const AttentionShape s = shape(1, 8, 2, 2, 8, 8);
  Expected expected(s, DType::kF16);
  expected.compute();
  const Problem problem(bench, expected, DType::kF16);
  EXPECT_NO_THROW(problem.backward.check());
  AttentionBackward wide = problem.backward, added = problem.backward, mixed = problem.backward;
  for (Tensor* const gradient : {&wide.d_q, &wide.d_k, &wide.d_v}) gradient->dtype = DType::kF32;
  added.accumulate_d_kv = true;
  mixed.d_out.dtype = DType::kBF16;
  for (const AttentionBackward& call : {wide, added, mixed}) EXPECT_THROW(call.check(), std::logic_error);
}

TEST(Attention, CachedKeysMatchReference) { expect_all_match(cache_shapes(), as_is); }

// Shapes for the warpgroup tiles (Hopper, and emulated warps of 32): more tiles than buffers, tiles that few
// or no rows see, and sequences that end within a tile.
TEST(Attention, HeadsForWarpgroupsMatchReference) {
  expect_all_match(
      {
          shape(1, 270, 2, 1, 128, 128),                    // three tiles of queries and of keys
          cached(shape(1, 0, 2, 1, 64, 64), 70, 750, 760),  // six tiles of keys; one warpgroup ends early
          cached(shape(2, 0, 1, 1, 128, 128), 3, 1200,
                 1210),                                 // ten tiles of keys; one warpgroup has no queries
          shape(1, 260, 2, 2, 64, 64, 130),             // a window
          shape(2, 140, 2, 1, 192, 128),                // values narrower than keys
          shape(1, 270, 1, 1, 128, 128, 0, true, 100),  // chunks that end within tiles
          cached(shape(2, 0, 2, 1, 64, 64, 0, false), 130, 260, 264)  // not causal
      },
      as_is, 8, {DType::kBF16});
  expect_all_match(
      {shape(1, 270, 2, 1, 128, 128), shape(2, 180, 2, 1, 64, 64), shape(1, 260, 2, 2, 64, 64, 150)},
      [](Expected& expected, DType dtype) {
        expected.pack({3, 130, 1, 64}).add_sinks(dtype);
      },
      8, {DType::kBF16});
}

TEST(Attention, SinksMatchReference) {
  expect_all_match(
      {shape(2, 130, 4, 2, 16, 24), shape(1, 200, 3, 1, 80, 80, 33), shape(9, 67, 2, 1, 64, 64),
       cached(shape(1, 0, 4, 2, 32, 16), 1, 300, 320), cached(shape(2, 0, 4, 2, 64, 64, 128), 1, 2000, 2048),
       cached(shape(1, 0, 2, 1, 64, 64), 65, 200, 256)},
      with_sinks);
}

// For heads of 64 and 128, GPUs use different kernels with and without a cap.
TEST(Attention, CappedScoresMatchReference) {
  const std::vector<AttentionShape> shapes{capped(shape(2, 130, 4, 2, 16, 24)),
                                           capped(shape(1, 200, 3, 1, 80, 80, 33), 3),
                                           capped(shape(1, 70, 1, 1, 256, 256)),
                                           capped(shape(9, 67, 2, 1, 64, 64)),
                                           capped(shape(1, 140, 2, 1, 128, 128), 50),
                                           capped(shape(1, 130, 1, 1, 8, 8, 10, false)),
                                           capped(cached(shape(1, 0, 4, 2, 32, 16), 1, 300, 320)),
                                           capped(cached(shape(1, 0, 8, 1, 12, 20, 100), 1, 700, 700)),
                                           capped(cached(shape(1, 0, 2, 1, 64, 64), 65, 200, 256))};
  expect_all_match(shapes, as_is, 8);
  expect_all_match({capped(shape(2, 150, 2, 1, 16, 16))}, [](Expected& expected, DType dtype) {
    expected.pack({3, 64}).add_sinks(dtype);
  });
}

TEST(Attention, PackedDocumentsMatchReference) {
  const std::vector<AttentionShape> shapes{
      shape(3, 5, 2, 2, 12, 12), shape(2, 300, 4, 2, 16, 24), shape(1, 260, 2, 2, 64, 64, 64),
      shape(1, 200, 2, 1, 16, 16, 0, true, 50), shape(9, 150, 2, 1, 32, 32)};
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{1, 2, 1}, {3, 130, 1, 64}, {64, 128}, {1000}}) {
    SCOPED_TRACE("documents from " + std::to_string(lengths[0]));
    expect_all_match(shapes, [&](Expected& expected, DType dtype) {
      expected.pack(lengths);
      if (lengths.size() == 2) expected.add_sinks(dtype);
    });
  }
}

// There are few documents, so that the vendor's library can compute the calls. Tests calls with and without
// grouped heads.
TEST(Attention, FewDocumentsMatchReference) {
  expect_all_match({shape(2, 180, 2, 2, 64, 64), shape(2, 180, 2, 1, 64, 64), shape(1, 200, 2, 1, 128, 128)},
                   [](Expected& expected, DType) {
                     expected.pack({70, 110});
                   },
                   8, {DType::kBF16});
}

TEST(Attention, APackedDocumentEqualsTheDocumentAlone) {
  constexpr std::int64_t kLengths[] = {64, 100, 36, 192};
  OperatorBench bench;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    AttentionShape s = shape(1, 392, 2, 1, 32, 32);
    Expected packed(s, dtype);
    packed.pack({std::begin(kLengths), std::end(kLengths)});
    Problem together(bench, packed, dtype);
    together.run();
    const Values all = bench.download(together.forward.out), all_d_q = bench.download(together.backward.d_q),
                 all_d_k = bench.download(together.backward.d_k);
    std::int64_t start = 0;
    for (const std::int64_t length : kLengths) {
      s.seq_q = s.seq_k = s.capacity_k = length;
      const auto part = [&](const Values& values, std::int64_t width) {
        return Values(values.begin() + start * width, values.begin() + (start + length) * width);
      };
      Expected separate(s, dtype);
      separate.reference.q = part(packed.reference.q, 64),
      separate.reference.k = part(packed.reference.k, 32);
      separate.reference.v = part(packed.reference.v, 32), separate.d_out = part(packed.d_out, 64);
      Problem single(bench, separate, dtype);
      single.run();
      const double tolerance = dtype == DType::kF32 ? 2e-6 : 1e-2;
      EXPECT_LE(normalised_error(part(all, 64), bench.download(single.forward.out)), tolerance);
      EXPECT_LE(normalised_error(part(all_d_q, 64), bench.download(single.backward.d_q)), tolerance);
      EXPECT_LE(normalised_error(part(all_d_k, 32), bench.download(single.backward.d_k)), tolerance);
      start += length;
    }
  }
}

// Attention skips keys of other documents, so a sequence of 16 documents takes about a tenth of the time of a
// single document.
TEST(Attention, ShortDocumentsCostLess) {
  OperatorBench bench({.threads = 1});
  const Expected whole(shape(1, 2048, 1, 1, 64, 64), DType::kF32);
  Expected packed = whole;
  packed.pack({128});
  Problem slow(bench, whole, DType::kF32), fast(bench, packed, DType::kF32);
  const auto best_of = [&](Problem& problem) {
    double best = INFINITY;
    for (int i = 0; i < 5; ++i) {
      const auto start = std::chrono::steady_clock::now();
      problem.run();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  };
  best_of(fast);
  EXPECT_LT(best_of(fast), 0.5 * best_of(slow));
}

TEST(Attention, ManyThreadsGiveTheSameBits) {
  std::vector<AttentionShape> shapes = training_shapes();
  for (const AttentionShape& s : cache_shapes()) shapes.push_back(s);
  OperatorBench one({.threads = 1}), two({.threads = 2}), three({.threads = 3});
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE("shape " + std::to_string(i) + " " + std::string(name_of(dtype)));
      Expected inputs(shapes[i], dtype);
      if (i % 2 == 1) inputs.add_sinks(dtype);
      if (shapes[i].causal) inputs.pack({3, 100, 50});
      const auto run = [&](OperatorBench& bench) {
        Problem problem(bench, inputs, dtype);
        problem.run();
        return problem.result_bytes();
      };
      const auto bytes = run(one);
      EXPECT_EQ(run(two), bytes);
      EXPECT_EQ(run(three), bytes);
    }
  }
}

TEST(Attention, WorkspaceIsLargeEnoughAndNeedsNoClearing) {
  for (const AttentionShape& s : {shape(2, 130, 4, 2, 16, 24), shape(9, 67, 2, 1, 64, 64),
                                  cached(shape(2, 0, 2, 2, 64, 64), 1, 2000, 2048)}) {
    OperatorBench bench;
    const auto block = bench.context().scratch.allocate(OperatorBench::kScratchBytes);
    const Tensor scratch(block.address, DType::kU8, {OperatorBench::kScratchBytes});
    bench.context().scratch.release(block);
    std::memset(scratch.data, 0xFF, static_cast<std::size_t>(scratch.bytes()));
    Expected expected(s, DType::kF32);
    Problem problem(bench, expected.compute(), DType::kF32);
    problem.run();
    problem.expect_matches_reference();

    const auto need = [&](const auto& call) {
      return bench.device().kernels()[call.kId].workspace_bytes(bench.device().kernel_context(), &call);
    };
    const std::int64_t used = std::max(need(problem.forward), need(problem.backward));
    const auto raw = bench.bytes(scratch);
    EXPECT_TRUE(std::all_of(raw.begin() + used, raw.end(), [](unsigned char byte) { return byte == 0xFF; }));
  }
}

TEST(Attention, LogSumExpIsOptional) {
  OperatorBench bench;
  Expected expected(shape(1, 70, 2, 1, 16, 16), DType::kF32);
  Problem problem(bench, expected.compute(), DType::kF32);
  problem.forward.lse = Tensor();
  bench.run(problem.forward);
  EXPECT_LE(normalised_error(bench.download(problem.forward.out), expected.reference.out), 2e-6);
}

TEST(Attention, LargeScoresDoNotOverflow) {
  OperatorBench bench;
  AttentionShape s = shape(1, 80, 1, 1, 16, 16);
  s.scale = 100;
  Expected expected(s, DType::kF32);
  Problem problem(bench, expected.compute(), DType::kF32);
  problem.run();
  // Scores reach 1000, where half an ulp is 3e-5. The relative error of a probability is equally large.
  EXPECT_LE(normalised_error(bench.download(problem.forward.out), expected.reference.out), 1e-3);
}

TEST(Attention, NanInAKeyReachesTheQueriesThatSeeIt) {
  OperatorBench bench;
  const Expected inputs(shape(1, 140, 1, 1, 8, 8), DType::kF32);
  Problem problem(bench, inputs, DType::kF32);
  Values keys = inputs.reference.k;
  keys[100 * 8 + 3] = NAN;
  bench.write(problem.forward.k, keys);
  bench.run(problem.forward);
  const Values out = bench.download(problem.forward.out);
  for (std::size_t i = 0; i < 140; ++i) EXPECT_EQ(std::isnan(out[i * 8]), i >= 100) << i;
}

TEST(Attention, FlopsCountVisiblePairs) {
  for (const AttentionShape& s :
       {shape(2, 50, 4, 2, 16, 24), shape(1, 50, 1, 1, 8, 8, 7), shape(1, 9, 1, 1, 8, 8, 3, false),
        cached(shape(1, 0, 1, 1, 8, 8, 5), 4, 30, 40), shape(1, 50, 1, 1, 8, 8, 5, true, 12),
        shape(1, 50, 1, 1, 8, 8, 0, false, 12)}) {
    AttentionForward call{};
    call.shape = s;
    const AttentionReference reference(s, {}, {}, {});
    double pairs = 0;
    for (std::int64_t i = 0; i < s.seq_q; ++i) {
      for (std::int64_t j = 0; j < s.seq_k; ++j) pairs += reference.visible(0, i, j) ? 1 : 0;
    }
    EXPECT_EQ(call.flops(), pairs * static_cast<double>(s.batch * s.heads * 2 * (s.head_dim + s.value_dim)));
  }
}

}  // namespace
}  // namespace primus::turbo::test
