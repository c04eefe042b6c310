// Compares operators on several ranks, which are threads, with one rank: outputs and all gradients. Every
// rank is measured first and gets exactly the measured memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "base/random/random.h"
#include "comm/local/thread_group.h"
#include "comm/measuring.h"
#include "engine/parallel/expert_dispatch.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/runtime/rank.h"
#include "engine/runtime/weight_gradient_queue.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::engine {
namespace {

using comm::Communicator;
using Floats = std::vector<float>;
using Integers = std::vector<std::int32_t>;

Floats numbers(std::int64_t count, std::uint64_t seed, float scale = 1) {
  Floats values(static_cast<std::size_t>(count));
  fill_normal(RandomStream(seed, RandomPurpose::kTest), 0, values);
  for (float& value : values) value *= scale;
  return values;
}

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  Floats values;

  static Matrix random(std::int64_t rows, std::int64_t cols, std::uint64_t seed, float scale = 1) {
    return {rows, cols, numbers(rows * cols, seed, scale)};
  }
  Matrix rows_of(std::int64_t begin, std::int64_t end) const {
    return {end - begin, cols, {values.begin() + begin * cols, values.begin() + end * cols}};
  }
  Matrix cols_of(std::int64_t begin, std::int64_t end) const {
    Matrix part{rows, end - begin, {}};
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto row = values.begin() + r * cols;
      part.values.insert(part.values.end(), row + begin, row + end);
    }
    return part;
  }
};

Matrix stacked(const std::vector<Matrix>& parts) {
  Matrix whole{0, parts.front().cols, {}};
  for (const Matrix& part : parts) {
    whole.rows += part.rows;
    whole.values.insert(whole.values.end(), part.values.begin(), part.values.end());
  }
  return whole;
}

// Returns part `r` of `n` equal parts.
Matrix row_part(const Matrix& m, int n, int r) { return m.rows_of(m.rows * r / n, m.rows * (r + 1) / n); }
Matrix col_part(const Matrix& m, int n, int r) { return m.cols_of(m.cols * r / n, m.cols * (r + 1) / n); }
// Returns part `r` of the gate rows, followed by part `r` of the up rows.
Matrix gate_up_part(const Matrix& m, int n, int r) {
  return stacked({row_part(m.rows_of(0, m.rows / 2), n, r), row_part(m.rows_of(m.rows / 2, m.rows), n, r)});
}

// Returns max |a - b| / max |b|.
double difference(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return INFINITY;
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    error = std::max(error, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? error / largest : error;
}

void add_to(Floats& sum, const Floats& part) {
  sum.resize(part.size());
  for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
}

// The inputs of a program on its rank.
struct Scene {
  Value x;                      // differentiable, [rows, cols]
  std::vector<Value> integers;  // [n] each
  std::vector<Parameter*> weights;
  Communicator *world, *tokens;  // null: a single rank
  ExpertParallel* experts;       // null: a single rank
};

struct Program {
  Matrix x;
  std::vector<Integers> integers = {};
  Floats token_weights = {};
  std::vector<Matrix> weights = {};
  std::vector<Shape> shapes = {};  // shapes of the weights; empty: matrices
  std::function<Value(const Scene&)> forward = {};
  Floats d_y = {};  // empty: y is a loss
  RecomputePolicy recompute = {};
  int tokens = 1;  // consecutive ranks that share tokens
  bool overlap = true;
  int host = 0;  // consecutive ranks that share a host, for all-to-all in two hops; 0: one hop
};

struct Outcome {
  Floats y, d_x;
  std::vector<Floats> d_weights;
  bool operator==(const Outcome&) const = default;
};

// Runs one microbatch of the program, on a rank that measures or has memory.
Outcome step(Rank& rank, const Program& p, Communicator* world) {
  std::unique_ptr<Communicator> tokens;
  if (world && p.tokens > 1) {
    std::vector<int> members(static_cast<std::size_t>(p.tokens));
    std::iota(members.begin(), members.end(), world->rank() / p.tokens * p.tokens);
    tokens = world->split(members, "tokens." + std::to_string(members.front()));
  }
  std::unique_ptr<Communicator> between, within;
  if (world && p.host > 0) {
    std::vector<int> same_place, same_host;
    for (int r = 0; r < world->size(); ++r) {
      if (r % p.host == world->rank() % p.host) same_place.push_back(r);
      if (r / p.host == world->rank() / p.host) same_host.push_back(r);
    }
    between = world->split(same_place, "between." + std::to_string(same_place.front()));
    within = world->split(same_host, "within." + std::to_string(same_host.front()));
  }
  ParameterStore store;
  store.begin_group("all");
  std::vector<Parameter*> weights;
  for (std::size_t i = 0; i < p.weights.size(); ++i) {
    const Shape shape = p.shapes.empty() ? Shape{p.weights[i].rows, p.weights[i].cols} : p.shapes[i];
    weights.push_back(&store.add("w" + std::to_string(i), shape, Initializer::constant(0)));
    weights.back()->uses.push_back(0);
  }
  store.allocate({.compute = DType::kF32, .train = true}, rank.persistent());
  const auto upload = [&](const Tensor& to, const void* from) {
    if (rank.measuring()) return;
    rank.compute().copy_to_device(to.data, from, to.bytes());
    rank.compute().synchronize();
  };
  const auto download = [&](const Tensor& from) {
    Floats values(static_cast<std::size_t>(from.elements()));
    if (rank.measuring()) return values;
    rank.compute().copy_to_host(values.data(), from.data, from.bytes());
    rank.compute().synchronize();
    return values;
  };
  for (std::size_t i = 0; i < weights.size(); ++i) upload(weights[i]->value, p.weights[i].values.data());

  Outcome outcome;
  std::optional<ExpertParallel> experts;
  if (world)
    experts.emplace(rank, *world, ExpertParallel::Options{.shared_experts = p.overlap},
                    ExpertHosts{between.get(), within.get()});
  WeightGradientQueue queue;
  Tape tape(rank.context(), rank.stash());
  tape.begin({.recompute = p.recompute, .weight_gradients = &queue});
  {
    Scene scene{.x = tape.input(DType::kF32, {p.x.rows, p.x.cols}, true),
                .integers = {},
                .weights = weights,
                .world = world,
                .tokens = tokens.get(),
                .experts = experts ? &*experts : nullptr};
    upload(scene.x.tensor(), p.x.values.data());
    for (const Integers& values : p.integers) {
      scene.integers.push_back(tape.input(DType::kI32, {static_cast<std::int64_t>(values.size())}, false));
      upload(scene.integers.back().tensor(), values.data());
    }
    if (!p.token_weights.empty()) {
      const auto count = static_cast<std::int64_t>(p.token_weights.size());
      scene.integers.push_back(tape.input(DType::kF32, {count}, false));
      upload(scene.integers.back().tensor(), p.token_weights.data());
    }
    tape.enter_block(0);
    Value y = p.forward(scene);
    tape.leave_block();
    if (!p.d_y.empty()) {
      const Value d_y = tape.input(DType::kF32, y.shape(), false);
      EXPECT_EQ(y.shape().elements(), static_cast<std::int64_t>(p.d_y.size()));
      upload(d_y.tensor(), p.d_y.data());
      tape.set_gradient(y, d_y.tensor());
      outcome.y = download(y.tensor());
      y = {};
    }
    tape.backward();
    if (y) outcome.y = download(y.tensor());
    outcome.d_x = download(tape.gradient(scene.x));
    for (const Parameter* weight : weights) outcome.d_weights.push_back(download(weight->gradient));
  }
  tape.clear();
  return outcome;
}

// Measures, reserves exactly the measured memory, and runs.
Outcome run(const Program& p, Communicator* world) {
  Rank rank(turbo::make_cpu_device(1));
  std::unique_ptr<Communicator> measuring;
  if (world)
    measuring = std::make_unique<comm::MeasuringCommunicator>(world->name(), world->rank(), world->size());
  step(rank, p, measuring.get());
  const MemoryPlan plan = rank.high_water();
  rank.reserve(plan);
  Outcome outcome = step(rank, p, world);
  const MemoryPlan used = rank.high_water();
  EXPECT_EQ(used.persistent, plan.persistent);
  EXPECT_EQ(used.stash, plan.stash);
  EXPECT_EQ(used.scratch, plan.scratch);
  if (!world) return outcome;
  if (p.host > 0) {
    EXPECT_EQ(world->traffic()[comm::Kind::kAllToAll].calls, 0) << "rows travel in two hops";
  }
  for (int i = 0; i < static_cast<int>(comm::Kind::kCount); ++i) {
    const auto kind = static_cast<comm::Kind>(i);
    const double sent = world->traffic()[kind].bytes, measured = measuring->traffic()[kind].bytes;
    // A dry run knows only the maximum number of rows for experts.
    if (kind == comm::Kind::kAllToAll) {
      EXPECT_LE(sent, measured);
    } else {
      EXPECT_EQ(sent, measured);
    }
  }
  return outcome;
}

std::vector<Outcome> run_ranks(int ranks, const std::function<Program(int)>& program) {
  auto worlds = comm::local::make_thread_group(ranks);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto i = static_cast<std::size_t>(r);
      try {
        outcomes[i] = run(program(r), worlds[i].get());
      } catch (const std::exception& error) {
        worlds[i]->abort(error.what());
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// The tolerance for sums of n terms in another order, each rounded to fp32: a few units in the last place.
constexpr double kRounding = 2e-6;

const RecomputePolicy kPolicies[] = {{}, {.classes = 0, .full_layers = 1, .layers_per_group = 1}};

// --- Products that overlap collectives (for results see tests/lm/train/mesh_test.cpp)

// A product is split so that the part that overlaps the collective takes as long as the collective.
TEST(TensorParallelOptions, OverlapAsMuchOfAProductAsTheCollectiveTakes) {
  const TensorParallel::Options options{.min_bytes = 0, .flops_per_byte = 1000, .rows_multiple = 128};
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 1'000'000), 1024);  // 1000 rows, rounded up to whole tiles
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 1'024'000), 1024);
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 1), 128);
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 8'000'000), 4096);  // the collective takes longer
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 3'000'000), 3072);
  EXPECT_EQ(options.overlapped_rows(4096, 1e6, 3'100'000), 4096);  // otherwise too few rows would be left
  EXPECT_EQ(options.overlapped_rows(100, 1e6, 1), 100);
}

// --- Feed-forward: column and row parts of two matrices

TEST(ParallelOperators, FeedForwardOnAnyNumberOfRanks) {
  constexpr std::int64_t kTokens = 12, kHidden = 8, kFfn = 24;
  const Matrix x = Matrix::random(kTokens, kHidden, 1), gate_up = Matrix::random(2 * kFfn, kHidden, 2);
  const Matrix down = Matrix::random(kHidden, kFfn, 3), d_y = Matrix::random(kTokens, kHidden, 4);
  const auto forward = [](const Scene& s) {
    const Value all = gather_tokens(s.x, s.world);
    return scatter_tokens(linear(swiglu(linear(all, *s.weights[0])), *s.weights[1]), s.world);
  };
  for (const RecomputePolicy& recompute : kPolicies) {
    const Outcome one = run(
        {.x = x, .weights = {gate_up, down}, .forward = forward, .d_y = d_y.values, .recompute = recompute},
        nullptr);
    for (const int n : {2, 3, 4}) {
      SCOPED_TRACE(n);
      const std::vector<Outcome> many = run_ranks(n, [&](int r) {
        return Program{.x = row_part(x, n, r),
                       .weights = {gate_up_part(gate_up, n, r), col_part(down, n, r)},
                       .forward = forward,
                       .d_y = row_part(d_y, n, r).values,
                       .recompute = recompute};
      });
      const Matrix y{kTokens, kHidden, one.y}, d_x{kTokens, kHidden, one.d_x};
      const Matrix d_gate_up{2 * kFfn, kHidden, one.d_weights[0]}, d_down{kHidden, kFfn, one.d_weights[1]};
      for (int r = 0; r < n; ++r) {
        const Outcome& own = many[static_cast<std::size_t>(r)];
        EXPECT_LE(difference(own.y, row_part(y, n, r).values), kRounding);
        EXPECT_LE(difference(own.d_x, row_part(d_x, n, r).values), kRounding);
        EXPECT_LE(difference(own.d_weights[0], gate_up_part(d_gate_up, n, r).values), kRounding);
        EXPECT_LE(difference(own.d_weights[1], col_part(d_down, n, r).values), kRounding);
      }
    }
  }
}

// x has two users, so the gradient that returns through the group is added to the gradient of the other user.
TEST(ParallelOperators, GradientsAreAddedToGradientsOfOtherUsers) {
  const Matrix x = Matrix::random(4, 3, 1), w = Matrix::random(3, 3, 2), d_y = Matrix::random(4, 3, 3);
  const auto forward = [](const Scene& s) {
    Residual sum{s.x, {}};
    add(sum, scatter_tokens(linear(gather_tokens(s.x, s.world), *s.weights[0]), s.world));
    add(sum, scatter_tokens(gather_tokens(s.x, s.world), s.world));
    flush(sum);
    return sum.sum;
  };
  // The sum of the ranks' halves of w is w. The residual x is added once to the local result, and once by
  // each rank.
  const int n = 2;
  const auto halves = [&] {
    Matrix half = w;
    for (float& value : half.values) value /= 2;
    return half;
  }();
  const std::vector<Outcome> many = run_ranks(n, [&](int r) {
    return Program{
        .x = row_part(x, n, r), .weights = {halves}, .forward = forward, .d_y = row_part(d_y, n, r).values};
  });
  for (int r = 0; r < n; ++r) {
    const Matrix own = row_part(x, n, r), d_own = row_part(d_y, n, r);
    Floats y, d_x;
    for (std::int64_t t = 0; t < own.rows; ++t) {
      for (std::int64_t i = 0; i < 3; ++i) {
        double out = 0, in = 0;
        for (std::int64_t k = 0; k < 3; ++k) {
          const auto at = static_cast<std::size_t>(t * 3 + k);
          out += static_cast<double>(own.values[at]) *
                 static_cast<double>(w.values[static_cast<std::size_t>(i * 3 + k)]);
          in += static_cast<double>(d_own.values[at]) *
                static_cast<double>(w.values[static_cast<std::size_t>(k * 3 + i)]);
        }
        const auto at = static_cast<std::size_t>(t * 3 + i);
        y.push_back(static_cast<float>(3 * static_cast<double>(own.values[at]) + out));
        d_x.push_back(static_cast<float>(3 * static_cast<double>(d_own.values[at]) + in));
      }
    }
    EXPECT_LE(difference(many[static_cast<std::size_t>(r)].y, y), kRounding);
    EXPECT_LE(difference(many[static_cast<std::size_t>(r)].d_x, d_x), kRounding);
  }
}

// --- Vocabulary: embedding and loss

TEST(ParallelOperators, VocabularyPartsCoverItAndAreNeverEmpty) {
  for (const std::int64_t size : {4, 5, 100, 511, 512, 1000, 50257, 128256}) {
    for (const int n : {1, 2, 3, 4}) {
      std::int64_t end = 0, minimum = size, maximum = 0;
      for (int r = 0; r < n; ++r) {
        const FlatRange part = vocabulary_rows(size, n, r);
        EXPECT_EQ(part.begin, end);
        EXPECT_FALSE(part.empty());
        end = part.end;
        minimum = std::min(minimum, part.size());
        maximum = std::max(maximum, part.size());
      }
      EXPECT_EQ(end, size);
      EXPECT_LT(maximum - minimum, 128);
    }
  }
}

TEST(ParallelOperators, VocabularyOnAnyNumberOfRanks) {
  constexpr std::int64_t kTokens = 12, kHidden = 6;
  for (const std::int64_t vocab : {11, 400}) {
    const Matrix x = Matrix::random(kTokens, kHidden, 1);
    const Matrix table = Matrix::random(vocab, kHidden, 2), head = Matrix::random(vocab, kHidden, 3);
    Integers tokens, labels;
    for (std::int32_t t = 0; t < kTokens; ++t) {
      tokens.push_back(t * 7919 % static_cast<std::int32_t>(vocab));
      labels.push_back(t * 104729 % static_cast<std::int32_t>(vocab));
    }
    Floats weights(kTokens, 1.0F / kTokens);
    weights[3] = 0;
    labels[3] = -100;
    const auto forward = [vocab](const Scene& s) {
      const SharedVocabulary shared{s.world, s.world ? vocab : 0};
      Residual h{s.x, {}};
      add(h, scatter_tokens(embedding(s.integers[0], *s.weights[0], shared), s.world));
      flush(h);
      return lm_head_loss(gather_tokens(h.sum, s.world, Gathered::kKept), *s.weights[1], s.integers[1],
                          s.integers[2], shared);
    };
    const Outcome one = run({.x = x,
                             .integers = {tokens, labels},
                             .token_weights = weights,
                             .weights = {table, head},
                             .forward = forward},
                            nullptr);
    EXPECT_EQ(one.y[3], 0);
    for (const int n : {2, 3, 4}) {
      SCOPED_TRACE(std::to_string(n) + " ranks, vocabulary " + std::to_string(vocab));
      const auto part = [&](const Matrix& m, int r) {
        const FlatRange rows = vocabulary_rows(vocab, n, r);
        return m.rows_of(rows.begin, rows.end);
      };
      const std::vector<Outcome> many = run_ranks(n, [&](int r) {
        return Program{.x = row_part(x, n, r),
                       .integers = {tokens, labels},
                       .token_weights = weights,
                       .weights = {part(table, r), part(head, r)},
                       .forward = forward};
      });
      const Matrix d_x{kTokens, kHidden, one.d_x};
      for (int r = 0; r < n; ++r) {
        const Outcome& own = many[static_cast<std::size_t>(r)];
        EXPECT_EQ(own.y, many[0].y) << "the loss must have equal bits on all ranks";
        EXPECT_LE(difference(own.y, one.y), kRounding);
        EXPECT_LE(difference(own.d_x, row_part(d_x, n, r).values), kRounding);
        for (const std::size_t w : {0U, 1U}) {
          const Matrix d_whole{vocab, kHidden, one.d_weights[w]};
          // If no token is in the part, both gradients are zero.
          EXPECT_LE(difference(own.d_weights[w], part(d_whole, r).values), kRounding) << w;
        }
      }
    }
  }
}

// --- Experts

constexpr std::int64_t kHidden = 8, kFfn = 6, kTokens = 12;

struct Mixture {
  const char* name;
  std::int64_t capacity;
  bool biases;  // also applies the weights to the results, as gpt-oss does
  int ranks, tokens, expert_tensor;
  bool all_to_all = false;
  bool shared = false;  // two more products, one during the dispatch and one during the return
  int host = 0;         // consecutive ranks that share a host, for all-to-all in two hops; 0: one hop
  std::int64_t experts = 4, top_k = 2;
  std::int64_t favorites = 0;  // above 0: all tokens choose these last experts first
};

// Returns part `r` of `n` of `count` experts from `first` on. `m` has `rows` rows for each expert.
Matrix expert_part(const Matrix& m, std::int64_t rows, std::int64_t first, std::int64_t count, bool gate_up,
                   int n, int r) {
  std::vector<Matrix> parts;
  for (std::int64_t e = first; e < first + count; ++e) {
    const Matrix expert = m.rows_of(e * rows, (e + 1) * rows);
    parts.push_back(gate_up ? gate_up_part(expert, n, r) : col_part(expert, n, r));
  }
  return stacked(parts);
}

class ParallelExperts : public ::testing::TestWithParam<Mixture> {};

// `ranks` ranks share the experts, and each `tokens` consecutive ranks share a microbatch. The results equal
// those of one rank that has all experts and computes the microbatches in sequence.
TEST_P(ParallelExperts, EqualOneRankWithAllExperts) {
  const Mixture m = GetParam();
  const int shards = m.ranks / m.expert_tensor, microbatches = m.ranks / m.tokens;
  const std::int64_t count = m.experts / shards;
  Matrix router = Matrix::random(m.experts, kHidden, 5);
  // The first element of each token is 4 below.
  for (std::int64_t e = m.experts - m.favorites; e < m.experts; ++e)
    router.values[static_cast<std::size_t>(e * kHidden)] = 3;
  const Matrix gate_up = Matrix::random(m.experts * 2 * kFfn, kHidden, 6, 0.5F);
  const Matrix down = Matrix::random(m.experts * kHidden, kFfn, 7, 0.5F);
  const Matrix up_bias = Matrix::random(m.experts, 2 * kFfn, 8),
               down_bias = Matrix::random(m.experts, kHidden, 9);
  const Matrix shared_up = Matrix::random(kFfn, kHidden, 10), shared_down = Matrix::random(kHidden, kFfn, 11);
  const auto forward_of = [&](std::int64_t first, std::int64_t own_experts) {
    return [m, first, own_experts](const Scene& s) {
      RoutingRule rule;
      rule.router.top_k = m.top_k;
      rule.capacity = m.capacity;
      rule.balance_scale = 0.3F;
      rule.z_scale = 0.1F;
      const Routing routing = route(replicate_tokens(router_logits(s.x, *s.weights[0]), s.tokens), rule);
      const SharedExperts experts{s.world, s.tokens, first, own_experts};
      const auto through_experts = [&](const Value& x, const Routing& r) {
        const Value rows = dispatch_linear(x, *s.weights[1], r);
        if (!m.biases) return linear_combine(weighted_swiglu(rows, r), *s.weights[2], r);
        const Value out = swiglu(grouped_bias(rows, *s.weights[3], r));
        return combine(grouped_bias(grouped_linear(out, *s.weights[2], r), *s.weights[4], r), r);
      };
      const auto shared = [&](const Value& x, std::size_t i) {
        return m.shared ? linear(x, *s.weights[s.weights.size() - 2 + i]) : Value();
      };
      const Dispatch d =
          plan_dispatch(routing, experts, rule.capacity,
                        {.parallel = s.experts, .all_to_all = m.all_to_all, .shared = m.shared});
      InFlight there = begin_dispatch(s.x, d);
      const Value wide = shared(s.x, 0);
      InFlight back = begin_return(through_experts(end_dispatch(std::move(there), d), d.routing), d);
      Residual sum{shared(wide, 1), {}};
      if (!m.shared) return end_return(std::move(back), d);
      add(sum, end_return(std::move(back), d));
      flush(sum);
      return sum.sum;
    };
  };
  const auto shapes_of = [&](std::int64_t experts, std::int64_t ffn) {
    std::vector<Shape> shapes{{m.experts, kHidden}, {experts, 2 * ffn, kHidden}, {experts, kHidden, ffn}};
    if (m.biases) shapes.insert(shapes.end(), {Shape{experts, 2 * ffn}, Shape{experts, kHidden}});
    if (m.shared) shapes.insert(shapes.end(), {Shape{kFfn, kHidden}, Shape{kHidden, kFfn}});
    return shapes;
  };
  const auto x_of = [&](int b) {
    Matrix x = Matrix::random(kTokens, kHidden, 20 + static_cast<std::uint64_t>(b));
    for (std::int64_t t = 0; m.favorites > 0 && t < kTokens; ++t)
      x.values[static_cast<std::size_t>(t * kHidden)] = 4;
    return x;
  };
  const auto d_y_of = [](int b) {
    return Matrix::random(kTokens, kHidden, 40 + static_cast<std::uint64_t>(b));
  };

  for (const RecomputePolicy& recompute : kPolicies) {
    std::vector<Outcome> one;
    std::vector<Floats> d_whole(3 + (m.biases ? 2 : 0) + (m.shared ? 2 : 0));
    for (int b = 0; b < microbatches; ++b) {
      std::vector<Matrix> weights{router, gate_up, down};
      if (m.biases) weights.insert(weights.end(), {up_bias, down_bias});
      if (m.shared) weights.insert(weights.end(), {shared_up, shared_down});
      one.push_back(run({.x = x_of(b),
                         .weights = weights,
                         .shapes = shapes_of(m.experts, kFfn),
                         .forward = forward_of(0, m.experts),
                         .d_y = d_y_of(b).values,
                         .recompute = recompute},
                        nullptr));
      for (std::size_t w = 0; w < d_whole.size(); ++w) add_to(d_whole[w], one.back().d_weights[w]);
    }
    const auto first_of = [&](int r) { return r / m.expert_tensor * count; };
    const auto program_of = [&](int r, bool overlap) {
      const int b = r / m.tokens, place = r % m.tokens, part = r % m.expert_tensor;
      const std::int64_t first = first_of(r);
      std::vector<Matrix> weights{router,
                                  expert_part(gate_up, 2 * kFfn, first, count, true, m.expert_tensor, part),
                                  expert_part(down, kHidden, first, count, false, m.expert_tensor, part)};
      if (m.biases) {
        weights.push_back(up_bias.rows_of(first, first + count));
        weights.push_back(down_bias.rows_of(first, first + count));
      }
      if (m.shared) weights.insert(weights.end(), {shared_up, shared_down});
      return Program{.x = row_part(x_of(b), m.tokens, place),
                     .weights = weights,
                     .shapes = shapes_of(count, kFfn / m.expert_tensor),
                     .forward = forward_of(first, count),
                     .d_y = row_part(d_y_of(b), m.tokens, place).values,
                     .recompute = recompute,
                     .tokens = m.tokens,
                     .overlap = overlap,
                     .host = m.host};
    };
    const std::vector<Outcome> many = run_ranks(m.ranks, [&](int r) { return program_of(r, true); });
    if (m.shared) {
      EXPECT_EQ(run_ranks(m.ranks, [&](int r) { return program_of(r, false); }), many);
    }
    Floats d_router;
    std::vector<Floats> d_shared(2);
    for (int r = 0; r < m.ranks; ++r) {
      const Outcome& own = many[static_cast<std::size_t>(r)];
      const Outcome& of_microbatch = one[static_cast<std::size_t>(r / m.tokens)];
      const Matrix y{kTokens, kHidden, of_microbatch.y}, d_x{kTokens, kHidden, of_microbatch.d_x};
      EXPECT_LE(difference(own.y, row_part(y, m.tokens, r % m.tokens).values), kRounding);
      EXPECT_LE(difference(own.d_x, row_part(d_x, m.tokens, r % m.tokens).values), kRounding);
      add_to(d_router, own.d_weights[0]);
      for (std::size_t i = 0; m.shared && i < 2; ++i)
        add_to(d_shared[i], own.d_weights[own.d_weights.size() - 2 + i]);
      const Matrix d_gate_up{gate_up.rows, gate_up.cols, d_whole[1]},
          d_down{down.rows, down.cols, d_whole[2]};
      const int part = r % m.expert_tensor;
      const std::int64_t first = first_of(r);
      EXPECT_LE(
          difference(own.d_weights[1],
                     expert_part(d_gate_up, 2 * kFfn, first, count, true, m.expert_tensor, part).values),
          kRounding);
      EXPECT_LE(difference(own.d_weights[2],
                           expert_part(d_down, kHidden, first, count, false, m.expert_tensor, part).values),
                kRounding);
      if (!m.biases) continue;
      const Matrix d_up{m.experts, 2 * kFfn, d_whole[3]}, d_down_bias{m.experts, kHidden, d_whole[4]};
      EXPECT_LE(difference(own.d_weights[3], d_up.rows_of(first, first + count).values), kRounding);
      EXPECT_LE(difference(own.d_weights[4], d_down_bias.rows_of(first, first + count).values), kRounding);
    }
    EXPECT_LE(difference(d_router, d_whole[0]), kRounding);
    for (std::size_t i = 0; m.shared && i < 2; ++i)
      EXPECT_LE(difference(d_shared[i], d_whole[d_whole.size() - 2 + i]), kRounding);
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, ParallelExperts,
                         ::testing::Values(Mixture{"own_microbatches", 0, false, 2, 1, 1},
                                           Mixture{"own_microbatches_of_four", 0, false, 4, 1, 1},
                                           Mixture{"with_capacity", 4, false, 4, 1, 1},
                                           Mixture{"with_biases", 0, true, 2, 1, 1},
                                           Mixture{"shared_microbatch", 0, false, 4, 4, 1},
                                           Mixture{"two_and_two", 5, true, 4, 2, 1},
                                           Mixture{"width_too", 0, false, 4, 2, 2},
                                           Mixture{"width_only", 5, false, 2, 2, 2},
                                           Mixture{"shared_experts", 0, false, 2, 1, 1, false, true},
                                           Mixture{"shared_with_limit", 4, true, 4, 2, 1, false, true}),
                         [](const auto& c) { return std::string(c.param.name); });

INSTANTIATE_TEST_SUITE_P(AllToAll, ParallelExperts,
                         ::testing::Values(Mixture{"own_microbatches", 0, false, 2, 1, 1, true},
                                           Mixture{"own_microbatches_of_four", 0, false, 4, 1, 1, true},
                                           Mixture{"with_capacity", 4, false, 4, 1, 1, true},
                                           Mixture{"with_small_capacity", 1, false, 4, 1, 1, true},
                                           Mixture{"with_biases", 0, true, 2, 1, 1, true},
                                           Mixture{"shared_microbatch", 0, false, 4, 4, 1, true},
                                           Mixture{"two_and_two", 5, true, 4, 2, 1, true},
                                           Mixture{"width_too", 0, false, 4, 2, 2, true},
                                           Mixture{"width_only", 5, false, 2, 2, 2, true},
                                           Mixture{"shared_experts", 0, false, 2, 1, 1, true, true},
                                           Mixture{"shared_with_limit", 4, true, 4, 2, 1, true, true}),
                         [](const auto& c) { return std::string(c.param.name); });

// Rows travel to each host once, and from there to the ranks of the host. The cases have two hosts of two
// ranks, two of four and four of two; the last ones have experts divided over ranks of one host and of two.
INSTANTIATE_TEST_SUITE_P(
    TwoHops, ParallelExperts,
    ::testing::Values(Mixture{"two_hosts_of_two", 0, false, 4, 1, 1, true, false, 2},
                      Mixture{"with_capacity", 4, false, 4, 1, 1, true, false, 2},
                      Mixture{"with_small_capacity", 1, false, 4, 1, 1, true, false, 2},
                      Mixture{"with_biases", 0, true, 4, 1, 1, true, false, 2},
                      Mixture{"shared_microbatch", 0, false, 4, 4, 1, true, false, 2},
                      Mixture{"two_and_two", 5, true, 4, 2, 1, true, false, 2},
                      Mixture{"shared_experts", 0, false, 4, 1, 1, true, true, 2},
                      Mixture{"shared_with_limit", 4, true, 4, 2, 1, true, true, 2},
                      Mixture{"two_hosts_of_four_top_1", 0, false, 8, 1, 1, true, true, 4, 16, 1},
                      Mixture{"two_hosts_of_four_top_8", 0, false, 8, 1, 1, true, true, 4, 16, 8},
                      Mixture{"four_hosts_of_two_top_1", 0, false, 8, 1, 1, true, true, 2, 16, 1},
                      Mixture{"four_hosts_of_two_top_8", 0, false, 8, 1, 1, true, true, 2, 16, 8},
                      Mixture{"four_hosts_of_two_top_8_dropped", 3, false, 8, 1, 1, true, true, 2, 16, 8},
                      Mixture{"all_tokens_to_one_expert", 0, false, 4, 1, 1, true, true, 2, 4, 1, 1},
                      Mixture{"all_tokens_to_one_host", 0, false, 8, 1, 1, true, true, 4, 16, 4, 4},
                      Mixture{"most_tokens_dropped", 1, false, 8, 1, 1, true, true, 4, 16, 2, 2},
                      Mixture{"width_over_ranks_of_a_host", 0, false, 8, 2, 2, true, false, 4},
                      Mixture{"width_over_a_host", 3, false, 8, 2, 2, true, false, 2},
                      Mixture{"width_over_parts_of_hosts", 0, false, 6, 3, 3, true, true, 2},
                      Mixture{"width_over_all_ranks", 4, false, 6, 6, 6, true, false, 2, 4, 2}),
    [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace primus::engine
