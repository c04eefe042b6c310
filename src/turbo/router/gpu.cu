// A warp processes one token. The scores of the token are in shared memory, and each lane processes some of
// the experts.
#include "base/random/random.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/gpu/warp_extremes.h"
#include "turbo/router/formula.h"
#include "turbo/router/router.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

using Scoring = RouterRule::Scoring;
constexpr int kMaxExperts = static_cast<int>(RouterRule::kMaxExperts);
constexpr int kMaxTopK = static_cast<int>(RouterRule::kMaxTopK);

// The random numbers of the tokens of a step.
struct TokenRandom {
  std::uint64_t seed;
  std::uint32_t layer;
  const double* scalars;       // null: no random numbers
  const std::int32_t* tokens;  // null: tokens are numbered from 0

  PRIMUS_DEVICE RandomStream operator[](std::int64_t token) const {
    const double step = scalars[static_cast<std::size_t>(StepScalar::kStep)];
    return {seed, RandomPurpose::kRouting, static_cast<std::uint32_t>(static_cast<std::int64_t>(step)),
            static_cast<std::uint32_t>(tokens[token]), layer};
  }
};

TokenRandom random_of(Context& context, const RouterRandom& r) {
  return {r.seed, r.layer, optional<double>(context, r.scalars), optional<std::int32_t>(context, r.tokens)};
}

// ---- Jitter -------------------------------------------------------------------------------------

template <class From, class To>
struct JitterBody {
  const From* x;
  const To* previous;  // may be null
  To* out;
  TokenRandom random;
  std::int64_t cols;
  float low, width;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::uint32_t bits = random[i / cols].bits(static_cast<std::uint64_t>(i % cols));
    const float u = low + width * RandomStream::to_uniform(bits);
    out[i] = from_float<To>(to_float(x[i]) * u + (previous ? to_float(previous[i]) : 0.0F));
  }
};

void router_jitter(Context& context, const RouterJitter& a) {
  with_float_type(a.x.dtype, [&](auto from_tag) {
    with_float_type(a.out.dtype, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const float low = 1 - a.jitter;
      for_each(context, a.x.elements(),
               JitterBody<From, To>{context.data<From>(a.x), optional<To>(context, a.previous),
                                    context.data<To>(a.out), random_of(context, a.random), a.x.cols(), low,
                                    (1 + a.jitter) - low});
    });
  });
}

// ---- A warp's operations on a row of scores ------------------------------------------------------

struct Scratch {
  float scores[kMaxExperts], other[kMaxExperts];
  std::uint32_t keys[kMaxExperts];
  float group_scores[kMaxTopK];
  std::int32_t chosen[kMaxTopK], groups[kMaxTopK];
  float chosen_scores[kMaxTopK], gradients[kMaxTopK];
};

struct LargerKey {
  PRIMUS_DEVICE std::uint64_t operator()(std::uint64_t a, std::uint64_t b) const { return a > b ? a : b; }
};

// Does the same as choose_keys() for at most kFewKeys keys, which the lanes hold in registers. key_of(e)
// returns the key of expert e. All its loads run concurrently.
constexpr int kKeysOfLane = 8, kFewKeys = kKeysOfLane * kWarp;
template <class KeyOf>
PRIMUS_DEVICE void choose_few(const KeyOf& key_of, int n, int k, std::int32_t* chosen) {
  std::uint32_t own[kKeysOfLane];
  PRIMUS_UNROLL
  for (int j = 0; j < kKeysOfLane; ++j) own[j] = lane() + j * kWarp < n ? key_of(lane() + j * kWarp) : 0;
  for (int i = 0; i < k; ++i) {
    std::uint32_t best = own[0];
    PRIMUS_UNROLL
    for (int j = 1; j < kKeysOfLane; ++j) best = own[j] > best ? own[j] : best;
    best = largest_of_warp(best);
    std::uint32_t first = kFewKeys;
    PRIMUS_UNROLL
    for (int j = kKeysOfLane - 1; j >= 0; --j) {
      if (own[j] == best) first = static_cast<std::uint32_t>(lane() + j * kWarp);
    }
    first = smallest_of_warp(first);
    PRIMUS_UNROLL
    for (int j = 0; j < kKeysOfLane; ++j) {
      if (static_cast<std::uint32_t>(lane() + j * kWarp) == first) own[j] = 0;
    }
    if (lane() == 0) chosen[i] = static_cast<std::int32_t>(first);
  }
  warp_barrier();
}

// Finds the k largest of n keys, largest first (if keys are equal, the earlier key first). Changes the keys.
PRIMUS_DEVICE void choose_keys(std::uint32_t* keys, int n, int k, std::int32_t* chosen) {
  warp_barrier();
  if (n <= kFewKeys) return choose_few([&](int e) { return keys[e]; }, n, k, chosen);
  for (int i = 0; i < k; ++i) {
    std::uint64_t best = 0;
    for (int e = lane(); e < n; e += kWarp) {
      best = LargerKey{}(best, std::uint64_t{keys[e]} << 32 | static_cast<std::uint32_t>(~e));
    }
    best = warp_reduce(best, LargerKey{});
    const auto first = static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
    if (lane() == 0) {
      chosen[i] = first;
      keys[first] = 0;
    }
    warp_barrier();
  }
}

PRIMUS_DEVICE void choose(const float* scores, int n, int k, std::uint32_t* keys, std::int32_t* chosen) {
  if (n <= kFewKeys) return choose_few([&](int e) { return expert_key(scores[e]); }, n, k, chosen);
  for (int e = lane(); e < n; e += kWarp) keys[e] = expert_key(scores[e]);
  choose_keys(keys, n, k, chosen);
}

// Returns the score of a group of experts: the best score of its experts, or the sum of the two best scores.
PRIMUS_DEVICE float group_score(const float* scores, int n, bool two) {
  int first = -1, second = -1;
  for (int e = 0; e < n; ++e) {
    if (first < 0 || expert_key(scores[e]) > expert_key(scores[first])) {
      second = first;
      first = e;
    } else if (second < 0 || expert_key(scores[e]) > expert_key(scores[second])) {
      second = e;
    }
  }
  return two && n > 1 ? scores[first] + scores[second] : scores[first];
}

PRIMUS_DEVICE void choose_in_groups(const RouterRule& rule, const float* scores, int n, Scratch& s) {
  const int size = n / rule.groups;
  for (int g = lane(); g < rule.groups; g += kWarp) {
    s.group_scores[g] =
        group_score(scores + g * size, size, rule.group_score == RouterRule::GroupScore::kTwoBest);
  }
  warp_barrier();
  choose(s.group_scores, rule.groups, rule.top_groups, s.keys, s.groups);
  for (int e = lane(); e < n; e += kWarp) {
    bool candidate = false;
    for (int i = 0; i < rule.top_groups; ++i) candidate |= s.groups[i] == e / size;
    s.keys[e] = candidate ? expert_key(scores[e]) : 0;
  }
  choose_keys(s.keys, n, rule.top_k, s.chosen);
}

PRIMUS_DEVICE float largest(const float* x, int n) {
  float maximum = -infinity();
  for (int i = lane(); i < n; i += kWarp) maximum = ::fmaxf(maximum, x[i]);
  return warp_reduce(maximum, Maximum{});
}

// Sets p = exp(x - max), unnormalised, and returns their sum.
PRIMUS_DEVICE float exponentials(const float* x, int n, float* p) {
  const float maximum = largest(x, n);
  float sum = 0;
  for (int i = lane(); i < n; i += kWarp) {
    p[i] = ::expf(x[i] - maximum);
    sum += p[i];
  }
  sum = warp_reduce(sum);
  warp_barrier();
  return sum;
}

// Computes the scores of all experts: softmax, or elementwise.
PRIMUS_DEVICE void all_scores(Scoring scoring, const float* logits, int n, float* scores) {
  if (scoring == Scoring::kSoftmax) {
    const float scale = 1.0F / exponentials(logits, n, scores);
    for (int i = lane(); i < n; i += kWarp) scores[i] *= scale;
  } else {
    for (int i = lane(); i < n; i += kWarp) scores[i] = lone_score(scoring, logits[i]);
  }
  warp_barrier();
}

// Stores the scores of the chosen experts, from which the weights are computed, in s.chosen_scores. With
// normalised softmax, exponentials are relative to the best chosen expert, so that at least one score is not
// 0. Overwrites s.other.
PRIMUS_DEVICE void score_chosen(const RouterRule& rule, const float* logits, int n, Scratch& s) {
  const int k = rule.top_k;
  warp_barrier();
  if (rule.scoring != Scoring::kSoftmax) {
    for (int i = lane(); i < k; i += kWarp)
      s.chosen_scores[i] = lone_score(rule.scoring, logits[s.chosen[i]]);
  } else if (rule.normalise) {
    for (int i = lane(); i < k; i += kWarp) s.other[i] = logits[s.chosen[i]];
    warp_barrier();
    exponentials(s.other, k, s.chosen_scores);
  } else {
    const float scale = 1.0F / exponentials(logits, n, s.other);
    for (int i = lane(); i < k; i += kWarp) s.chosen_scores[i] = s.other[s.chosen[i]] * scale;
  }
  warp_barrier();
}

PRIMUS_DEVICE float sum_of_chosen(const RouterRule& rule, const Scratch& s) {
  float sum = 0;
  for (int i = 0; i < rule.top_k; ++i) sum += s.chosen_scores[i];
  return sum + rule.min_sum;
}

// ---- Forward ------------------------------------------------------------------------------------

struct Forward {
  static constexpr int kThreads = kWarp;
  using StartsEarly = void;
  RouterRule rule;
  TokenRandom random;
  const float *logits, *bias;  // bias may be null
  const std::int32_t* given;   // may be null
  std::int32_t* experts;
  float* weights;
  int n;

  PRIMUS_DEVICE void choose_experts(std::int64_t token, const float* x, Scratch& s) const {
    if (given) {
      for (int i = lane(); i < rule.top_k; i += kWarp) s.chosen[i] = given[token * rule.top_k + i];
      return;
    }
    if (rule.forced == RouterRule::Forced::kEven) {
      const std::int64_t number = random.tokens ? random.tokens[token] : token;
      for (int i = lane(); i < rule.top_k; i += kWarp) {
        s.chosen[i] = static_cast<std::int32_t>((number * rule.top_k + i) % n);
      }
      return;
    }
    if (rule.forced == RouterRule::Forced::kUniform) {
      for (int e = lane(); e < n; e += kWarp) {
        s.scores[e] = random[token].uniform(static_cast<std::uint64_t>(e));
      }
      return choose(s.scores, n, rule.top_k, s.keys, s.chosen);
    }
    // Every scoring function is monotonic, so experts are ranked by logits unless something is added to the
    // scores.
    if (bias || rule.group_score == RouterRule::GroupScore::kTwoBest) {
      all_scores(rule.scoring, x, n, s.scores);
      if (bias) {
        for (int e = lane(); e < n; e += kWarp) s.scores[e] += bias[e];
        warp_barrier();
      }
      x = s.scores;
    }
    if (rule.top_groups < rule.groups) {
      choose_in_groups(rule, x, n, s);
    } else {
      choose(x, n, rule.top_k, s.keys, s.chosen);
    }
  }

  // With one token, fetching instructions takes longer than computing. So the warp first chooses among
  // arbitrary logits and discards the choice, while the previous kernel still computes the real logits. The
  // instructions are then in the cache.
  PRIMUS_DEVICE void operator()() const {
    struct Memory {
      Scratch s;
      float made_up[kMaxExperts];
    };
    Memory& m = shared<Memory>();
    let_next_begin();
    const std::int64_t token = block();
    const bool rehearses = !given && rule.forced == RouterRule::Forced::kNo;
    for (int e = lane(); e < n; e += kWarp) m.made_up[e] = static_cast<float>(e);
    warp_barrier();
    PRIMUS_UNROLL_BY(1)
    for (int pass = rehearses ? 0 : 1; pass < 2; ++pass) {
      if (pass == 1) wait_for_previous();
      const float* x = pass == 1 ? logits + token * n : m.made_up;
      choose_experts(token, x, m.s);
      score_chosen(rule, x, n, m.s);
      const float scale = rule.normalise ? rule.scale / sum_of_chosen(rule, m.s) : rule.scale;
      for (int i = lane(); pass == 1 && i < rule.top_k; i += kWarp) {
        experts[token * rule.top_k + i] = m.s.chosen[i];
        weights[token * rule.top_k + i] = m.s.chosen_scores[i] * scale;
      }
      warp_barrier();
    }
  }
};

void forward(Context& context, const RouterForward& a) {
  launch(context, a.logits.rows(),
         Forward{a.rule, random_of(context, a.random), context.data<float>(a.logits),
                 optional<float>(context, a.bias), optional<std::int32_t>(context, a.given),
                 context.data<std::int32_t>(a.experts), context.data<float>(a.weights),
                 static_cast<int>(a.logits.cols())});
}

// ---- Backward -----------------------------------------------------------------------------------

struct Backward {
  static constexpr int kThreads = kWarp;
  RouterRule rule;
  const float* logits;
  const std::int32_t* experts;
  const float* d_weights;
  const std::int32_t* load;  // null: there is no balance loss
  const float* previous;     // may be null
  float* d_logits;
  float balance_scale, z_scale;
  std::int64_t segment;  // number of tokens per row of load
  int n;

  struct Memory {
    Scratch s;
    float sum[kMaxExperts];
  };

  // Adds the gradient of the weights to sum.
  PRIMUS_DEVICE void add_weights(std::int64_t token, const float* x, Memory& m) const {
    Scratch& s = m.s;
    const int k = rule.top_k;
    for (int i = lane(); i < k; i += kWarp) s.chosen[i] = experts[token * k + i];
    score_chosen(rule, x, n, s);
    // 1 / (sum of the chosen scores) with normalisation, else 1.
    const float inverse = rule.normalise ? 1.0F / sum_of_chosen(rule, s) : 1.0F;
    const float* d = d_weights + token * k;
    float mean = 0;
    for (int i = 0; i < k; ++i) mean += d[i] * s.chosen_scores[i] * inverse;
    if (lane() == 0) {
      for (int i = 0; i < k; ++i) {
        const float d_score = chosen_gradient(rule, d[i], inverse, mean);
        const float score = s.chosen_scores[i];
        m.sum[s.chosen[i]] +=
            d_score *
            (rule.scoring == Scoring::kSoftmax ? score : lone_slope(rule.scoring, x[s.chosen[i]], score));
      }
    }
    warp_barrier();
    if (rule.scoring != Scoring::kSoftmax || rule.normalise) return;
    all_scores(rule.scoring, x, n, s.scores);
    for (int e = lane(); e < n; e += kWarp) m.sum[e] -= rule.scale * mean * s.scores[e];
    warp_barrier();
  }

  // Adds the gradient of the balance loss to sum.
  PRIMUS_DEVICE void add_balance(std::int64_t token, const float* x, Memory& m) const {
    const std::int32_t* counts = load + token / segment * n;
    float* scores = m.s.scores;
    all_scores(rule.scoring, x, n, scores);
    float total = 0, weighted = 0;
    for (int e = lane(); e < n; e += kWarp) {
      total += scores[e];
      weighted += static_cast<float>(counts[e]) * scores[e];
    }
    total = warp_reduce(total);
    const bool lone = rule.scoring != Scoring::kSoftmax;
    const float inverse = lone ? 1.0F / (total + kTinySum) : 1.0F;
    const float mean = warp_reduce(weighted) * inverse;
    for (int e = lane(); e < n; e += kWarp) {
      const float slope = lone ? inverse * lone_slope(rule.scoring, x[e], scores[e]) : scores[e];
      m.sum[e] += balance_scale * slope * (static_cast<float>(counts[e]) - mean);
    }
    warp_barrier();
  }

  PRIMUS_DEVICE void add_z(const float* x, Memory& m) const {
    const float total = exponentials(x, n, m.s.scores);
    const float factor = z_scale * log_sum(total, largest(x, n)) / total;
    for (int e = lane(); e < n; e += kWarp) m.sum[e] += factor * m.s.scores[e];
    warp_barrier();
  }

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const std::int64_t token = block();
    const float* x = logits + token * n;
    for (int e = lane(); e < n; e += kWarp) m.sum[e] = previous ? previous[token * n + e] : 0.0F;
    warp_barrier();
    add_weights(token, x, m);
    if (load) add_balance(token, x, m);
    if (z_scale != 0) add_z(x, m);
    for (int e = lane(); e < n; e += kWarp) d_logits[token * n + e] = m.sum[e];
  }
};

void backward(Context& context, const RouterBackward& a) {
  const std::int64_t tokens = a.logits.rows();
  const bool balance = !a.load.absent() && a.balance_scale != 0;
  launch(context, tokens,
         Backward{a.rule, context.data<float>(a.logits), context.data<std::int32_t>(a.experts),
                  context.data<float>(a.d_weights), balance ? context.data<std::int32_t>(a.load) : nullptr,
                  optional<float>(context, a.previous), context.data<float>(a.d_logits),
                  balance ? a.balance_scale * balance_factor(a.rule, a.load, tokens) : 0.0F,
                  2 * a.z_scale / static_cast<float>(tokens), balance ? tokens / a.load.rows() : 1,
                  static_cast<int>(a.logits.cols())});
}

// ---- Experts by a table -------------------------------------------------------------------------

struct LookUp {
  const std::int32_t* tokens;
  const float* table;
  std::int32_t* experts;
  std::int64_t top_k;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    experts[i] = static_cast<std::int32_t>(table[tokens[i / top_k] * top_k + i % top_k]);
  }
};

void router_table(Context& context, const RouterTable& a) {
  for_each(context, a.experts.elements(),
           LookUp{context.data<std::int32_t>(a.tokens), context.data<float>(a.table),
                  context.data<std::int32_t>(a.experts), a.table.cols()});
}

// ---- Loads and losses ---------------------------------------------------------------------------

struct ClearCounts {
  std::int32_t* counts;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { counts[i] = 0; }
};

struct CountLoad {
  static constexpr int kThreads = kWarp;
  const float* logits;
  const std::int32_t* chosen;  // may be null
  std::int32_t* load;
  std::int64_t segment;
  int n, top_k;

  PRIMUS_DEVICE void operator()() const {
    Scratch& s = shared<Scratch>();
    const std::int64_t token = block();
    if (!chosen) choose(logits + token * n, n, top_k, s.keys, s.chosen);
    const std::int32_t* best = chosen ? chosen + token * top_k : s.chosen;
    for (int i = lane(); i < top_k; i += kWarp) atomic_add(load + token / segment * n + best[i], 1);
  }
};

void router_load(Context& context, const RouterLoad& a) {
  auto* counts = context.data<std::int32_t>(a.load);
  for_each(context, a.load.elements(), ClearCounts{counts});
  launch(context, a.logits.rows(),
         CountLoad{context.data<float>(a.logits), optional<std::int32_t>(context, a.chosen), counts,
                   std::max<std::int64_t>(a.logits.rows() / a.load.rows(), 1),
                   static_cast<int>(a.logits.cols()), a.top_k});
}

struct LossParts {
  static constexpr int kThreads = kWarp;
  static constexpr std::int64_t kMaxBlocks = 1 << 17;
  RouterRule rule;
  const float* logits;
  const std::int32_t* load;  // may be null
  double *balance, *z;       // each has one value per block
  std::int64_t tokens, segment;
  int n;

  PRIMUS_DEVICE void operator()() const {
    Scratch& s = shared<Scratch>();
    double balance_sum = 0, z_sum = 0;
    for (std::int64_t token = block(); token < tokens; token += blocks()) {
      const float* x = logits + token * n;
      float total = exponentials(x, n, s.scores);
      const auto lse = static_cast<double>(log_sum(total, largest(x, n)));
      z_sum += lse * lse;
      if (!load) continue;
      if (rule.scoring != Scoring::kSoftmax) {
        all_scores(rule.scoring, x, n, s.scores);
        total = 0;
        for (int e = lane(); e < n; e += kWarp) total += s.scores[e];
        total = warp_reduce(total);
      }
      const std::int32_t* counts = load + token / segment * n;
      float weighted = 0;
      for (int e = lane(); e < n; e += kWarp) weighted += static_cast<float>(counts[e]) * s.scores[e];
      weighted = warp_reduce(weighted);
      balance_sum += static_cast<double>(weighted) / static_cast<double>(total);
      warp_barrier();
    }
    if (lane() == 0) {
      balance[block()] = balance_sum;
      z[block()] = z_sum;
    }
  }
};

struct AddLoss {
  float* loss;
  double factor;
  PRIMUS_DEVICE void operator()(double sum) const { *loss += static_cast<float>(sum * factor); }
};

void losses(Context& context, const RouterLosses& a) {
  const std::int64_t tokens = a.logits.rows(), count = std::min(tokens, LossParts::kMaxBlocks);
  const auto* counts = optional<std::int32_t>(context, a.load);
  auto* parts = partials<double>(context, 2 * std::max<std::int64_t>(count, 1));
  launch(context, count,
         LossParts{a.rule, context.data<float>(a.logits), counts, parts, parts + count, tokens,
                   counts ? tokens / a.load.rows() : 1, static_cast<int>(a.logits.cols())});
  auto* out = context.data<float>(a.losses);
  if (counts) {
    launch(
        context, 1,
        SumOfParts<AddLoss, double>{
            {out, static_cast<double>(a.load_share * balance_factor(a.rule, a.load, tokens))}, parts, count});
  }
  launch(context, 1,
         SumOfParts<AddLoss, double>{{out + 1, 1 / static_cast<double>(tokens)}, parts + count, count});
}

struct CountExperts {
  const std::int32_t *experts, *rows;
  std::int32_t* load;
  std::int64_t dropped;
  PRIMUS_DEVICE void operator()(std::int64_t slot) const {
    atomic_add(load + experts[slot], 1);
    if (rows[slot] < 0) atomic_add(load + dropped, 1);
  }
};

struct AddRunning {
  std::int32_t *load, *running;
  PRIMUS_DEVICE void operator()(std::int64_t e) const { load[e] = running[e] += load[e]; }
};

void running_load(Context& context, const RunningLoad& a) {
  for_each(context, a.load.elements(),
           AddRunning{context.data<std::int32_t>(a.load), context.data<std::int32_t>(a.running)});
}

void expert_load(Context& context, const ExpertLoad& a) {
  for_each(context, a.experts.elements(),
           CountExperts{context.data<std::int32_t>(a.experts), context.data<std::int32_t>(a.rows),
                        context.data<std::int32_t>(a.load), a.load.elements() - 1});
}

struct UpdateBias {
  static constexpr int kThreads = 256;
  const std::int32_t* load;
  float* bias;
  std::int64_t experts;
  float rate;

  PRIMUS_DEVICE void operator()() const {
    std::int64_t total = 0;
    for (std::int64_t e = thread(); e < experts; e += kThreads) total += load[e];
    total = block_reduce<kThreads>(total);
    for (std::int64_t e = thread(); e < experts; e += kThreads) {
      // An exact integer with sign(-excess) = sign(mean - load).
      const std::int64_t excess = load[e] * experts - total;
      if (excess != 0) bias[e] += excess < 0 ? rate : -rate;
    }
  }
};

void expert_bias_update(Context& context, const ExpertBiasUpdate& a) {
  launch(
      context, 1,
      UpdateBias{context.data<std::int32_t>(a.load), context.data<float>(a.bias), a.bias.elements(), a.rate});
}

}  // namespace

void register_router(KernelTable& table) {
  table.add<RouterJitter, Context, &router_jitter>();
  table.add<RouterForward, Context, &forward>();
  table.add<RouterBackward, Context, &backward>();
  table.add<RouterTable, Context, &router_table>();
  table.add<RouterLoad, Context, &router_load>();
  table.add<RouterLosses, Context, &losses>();
  table.add<RunningLoad, Context, &running_load>();
  table.add<ExpertLoad, Context, &expert_load>();
  table.add<ExpertBiasUpdate, Context, &expert_bias_update>();
}

}  // namespace primus::turbo::PRIMUS_GPU
