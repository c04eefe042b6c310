#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>

#include "base/random/random.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/router/formula.h"
#include "turbo/router/router.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

using Row = std::array<float, RouterRule::kMaxExperts>;

// The random number generators of the tokens of a step.
class TokenStreams {
 public:
  TokenStreams(const CpuContext& context, const RouterRandom& random)
      : seed_(random.seed), layer_(random.layer), tokens_(context.data<std::int32_t>(random.tokens)) {
    const double step = context.data<double>(random.scalars)[index(StepScalar::kStep)];
    step_ = static_cast<std::uint32_t>(static_cast<std::int64_t>(step));
  }
  RandomStream operator[](std::int64_t row) const {
    return {seed_, RandomPurpose::kRouting, step_, static_cast<std::uint32_t>(tokens_[row]), layer_};
  }

 private:
  std::uint64_t seed_;
  std::uint32_t layer_, step_ = 0;
  const std::int32_t* tokens_;
};

void router_jitter(CpuContext& context, const RouterJitter& a) {
  with_float_type(a.x.dtype, [&](auto from_tag) {
    with_float_type(a.out.dtype, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const From* x = context.data<From>(a.x);
      const To* previous = a.previous.absent() ? nullptr : context.data<To>(a.previous);
      To* out = context.data<To>(a.out);
      const TokenStreams streams(context, a.random);
      const float jitter = a.jitter;
      const std::int64_t cols = a.x.cols();
      parallel_ranges(context, a.x.elements(), sizeof(From) + 2 * sizeof(To),
                      [&](std::int64_t begin, std::int64_t end) {
                        constexpr std::int64_t kRun = 256;
                        float u[kRun];
                        std::int64_t n = 0;
                        for (std::int64_t at = begin; at < end; at += n) {
                          const std::int64_t row = at / cols, column = at % cols;
                          n = std::min({kRun, end - at, cols - column});
                          fill_uniform(streams[row], static_cast<std::uint64_t>(column),
                                       std::span(u, static_cast<std::size_t>(n)), 1 - jitter, 1 + jitter);
                          PRIMUS_SIMD()
                          for (std::int64_t i = 0; i < n; ++i) {
                            const float base = previous ? to_float(previous[at + i]) : 0.0F;
                            out[at + i] = from_float<To>(to_float(x[at + i]) * u[i] + base);
                          }
                        }
                      });
    });
  });
}

using Keys = std::array<std::uint32_t, RouterRule::kMaxExperts>;

// Finds the k largest of n keys, largest first (if keys are equal, the earlier key first), and sets them to
// 0. At least k keys must not be 0. For small k, k passes without branches are faster than sorting.
void choose_keys(std::uint32_t* keys, std::int64_t n, std::int32_t k, std::int32_t* chosen) {
  for (std::int32_t i = 0; i < k; ++i) {
    std::uint32_t maximum = 0;
    PRIMUS_SIMD(reduction(max : maximum))
    for (std::int64_t e = 0; e < n; ++e) maximum = std::max(maximum, keys[e]);
    auto first = static_cast<std::int32_t>(n);
    PRIMUS_SIMD(reduction(min : first))
    for (std::int32_t e = 0; e < static_cast<std::int32_t>(n); ++e)
      first = std::min(first, keys[e] == maximum ? e : static_cast<std::int32_t>(n));
    chosen[i] = first;
    keys[first] = 0;
  }
}

// Finds the k largest of n scores. A NaN counts as smaller than every number.
void choose(const float* scores, std::int64_t n, std::int32_t k, std::int32_t* chosen) {
  Keys keys;
  std::uint32_t* const to = keys.data();
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) to[i] = expert_key(scores[i]);
  choose_keys(to, n, k, chosen);
}

void choose_in_groups(const RouterRule& rule, const float* scores, std::int64_t n, std::int32_t* chosen) {
  const std::int64_t size = n / rule.groups;
  Row group_scores;
  for (std::int32_t g = 0; g < rule.groups; ++g) {
    std::int32_t two[2];
    const std::int32_t count = rule.group_score == RouterRule::GroupScore::kTwoBest && size > 1 ? 2 : 1;
    const float* of_group = scores + g * size;
    choose(of_group, size, count, two);
    group_scores[static_cast<std::size_t>(g)] = of_group[two[0]] + (count == 2 ? of_group[two[1]] : 0.0F);
  }
  std::array<std::int32_t, RouterRule::kMaxExperts> best_groups;
  choose(group_scores.data(), rule.groups, rule.top_groups, best_groups.data());
  Keys keys{};
  for (std::int32_t i = 0; i < rule.top_groups; ++i) {
    const std::int64_t begin = best_groups[static_cast<std::size_t>(i)] * size;
    std::transform(scores + begin, scores + begin + size, keys.data() + begin,
                   [](float score) { return expert_key(score); });
  }
  choose_keys(keys.data(), n, rule.top_k, chosen);
}

// Returns the largest value. If the row has a NaN, the result is unspecified.
float largest(const float* x, std::int64_t n) {
  float maximum = x[0];
  PRIMUS_SIMD(reduction(max : maximum))
  for (std::int64_t i = 1; i < n; ++i) maximum = x[i] > maximum ? x[i] : maximum;
  return maximum;
}

// Sets p = exp(logits - max), unnormalised, and returns their sum.
float exponentials(const float* logits, std::int64_t n, float* p) {
  const float maximum = largest(logits, n);
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) p[i] = softmax_exp(logits[i] - maximum);
  return sum_terms(n, [&](std::int64_t i) { return p[i]; });
}

// Computes the scores of all experts: softmax, or elementwise.
void all_scores(RouterRule::Scoring scoring, const float* logits, std::int64_t n, float* scores) {
  if (scoring == RouterRule::Scoring::kSoftmax) {
    const float scale = 1.0F / exponentials(logits, n, scores);
    for (std::int64_t i = 0; i < n; ++i) scores[i] *= scale;
  } else if (scoring == RouterRule::Scoring::kSigmoid) {
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < n; ++i) scores[i] = sigmoid(logits[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) scores[i] = lone_score(scoring, logits[i]);
  }
}

// Computes the scores of the chosen experts, from which the weights are computed. With normalised softmax,
// exponentials are relative to the best chosen expert, so that at least one score is not 0.
void chosen_scores(const RouterRule& rule, const float* logits, std::int64_t n, const std::int32_t* chosen,
                   float* scores) {
  const std::int32_t k = rule.top_k;
  if (rule.scoring != RouterRule::Scoring::kSoftmax) {
    for (std::int32_t i = 0; i < k; ++i) scores[i] = lone_score(rule.scoring, logits[chosen[i]]);
    return;
  }
  Row p;
  if (rule.normalise) {
    for (std::int32_t i = 0; i < k; ++i) p[static_cast<std::size_t>(i)] = logits[chosen[i]];
    exponentials(p.data(), k, scores);
    return;
  }
  const float scale = 1.0F / exponentials(logits, n, p.data());
  for (std::int32_t i = 0; i < k; ++i) scores[i] = p[static_cast<std::size_t>(chosen[i])] * scale;
}

float sum_of_chosen(const RouterRule& rule, const float* scores) {
  float sum = 0;
  for (std::int32_t i = 0; i < rule.top_k; ++i) sum += scores[i];
  return sum + rule.min_sum;
}

void choose_experts(const CpuContext& context, const RouterForward& a, const float* logits, const float* bias,
                    const std::int32_t* given, std::int64_t token, std::int32_t* chosen) {
  const RouterRule& rule = a.rule;
  const std::int64_t n = a.logits.cols();
  if (given) {
    std::copy_n(given, rule.top_k, chosen);
    return;
  }
  Row scores;
  switch (rule.forced) {
    case RouterRule::Forced::kEven: {
      const std::int64_t number =
          a.random.tokens.absent() ? token : context.data<std::int32_t>(a.random.tokens)[token];
      for (std::int32_t i = 0; i < rule.top_k; ++i)
        chosen[i] = static_cast<std::int32_t>((number * rule.top_k + i) % n);
      return;
    }
    case RouterRule::Forced::kUniform:
      fill_uniform(TokenStreams(context, a.random)[token], 0,
                   std::span(scores).first(static_cast<std::size_t>(n)));
      return choose(scores.data(), n, rule.top_k, chosen);
    case RouterRule::Forced::kNo:
      break;
  }
  // Every scoring function is monotonic, so experts are ranked by logits unless something is added to the
  // scores.
  const bool sums = bias || rule.group_score == RouterRule::GroupScore::kTwoBest;
  if (sums) {
    all_scores(rule.scoring, logits, n, scores.data());
    if (bias) {
      for (std::int64_t i = 0; i < n; ++i) scores[static_cast<std::size_t>(i)] += bias[i];
    }
    logits = scores.data();
  }
  if (rule.top_groups < rule.groups) {
    choose_in_groups(rule, logits, n, chosen);
  } else {
    choose(logits, n, rule.top_k, chosen);
  }
}

// Returns the approximate cost of a token, as bytes of memory traffic for parallel_ranges().
std::int64_t cost_of(std::int64_t experts) { return 32 * experts; }

void forward(CpuContext& context, const RouterForward& a) {
  const std::int64_t n = a.logits.cols();
  const std::int32_t k = a.rule.top_k;
  const float* bias = a.bias.absent() ? nullptr : context.data<float>(a.bias);
  const std::int32_t* given = a.given.absent() ? nullptr : context.data<std::int32_t>(a.given);
  parallel_ranges(context, a.logits.rows(), cost_of(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float* logits = context.data<float>(a.logits) + token * n;
      auto* chosen = context.data<std::int32_t>(a.experts) + token * k;
      float* weights = context.data<float>(a.weights) + token * k;
      choose_experts(context, a, logits, bias, given ? given + token * k : nullptr, token, chosen);
      chosen_scores(a.rule, logits, n, chosen, weights);
      const float scale = a.rule.normalise ? a.rule.scale / sum_of_chosen(a.rule, weights) : a.rule.scale;
      for (std::int32_t i = 0; i < k; ++i) weights[i] *= scale;
    }
  });
}

// Adds the gradient of the weights to d_logits.
void weights_gradient(const RouterRule& rule, const float* logits, std::int64_t n, const std::int32_t* chosen,
                      const float* d_weights, float* d_logits) {
  const std::int32_t k = rule.top_k;
  float scores[RouterRule::kMaxTopK], d_scores[RouterRule::kMaxTopK];
  chosen_scores(rule, logits, n, chosen, scores);
  // 1 / (sum of the chosen scores) with normalisation, else 1.
  const float inverse = rule.normalise ? 1.0F / sum_of_chosen(rule, scores) : 1.0F;
  float mean = 0;
  for (std::int32_t i = 0; i < k; ++i) mean += d_weights[i] * scores[i] * inverse;
  for (std::int32_t i = 0; i < k; ++i) d_scores[i] = chosen_gradient(rule, d_weights[i], inverse, mean);
  if (rule.scoring != RouterRule::Scoring::kSoftmax) {
    for (std::int32_t i = 0; i < k; ++i)
      d_logits[chosen[i]] += d_scores[i] * lone_slope(rule.scoring, logits[chosen[i]], scores[i]);
    return;
  }
  // Normalised scores are ratios, so common factors of the scores cancel. The gradient is therefore d_scores
  // · scores.
  for (std::int32_t i = 0; i < k; ++i) d_logits[chosen[i]] += d_scores[i] * scores[i];
  if (rule.normalise) return;
  Row p;
  all_scores(rule.scoring, logits, n, p.data());
  const float shared = rule.scale * mean;
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) d_logits[i] -= shared * p[static_cast<std::size_t>(i)];
}

// d_logits += scale · (gradient of Σ_e load[e] p[e]).
void balance_gradient(RouterRule::Scoring scoring, const float* logits, std::int64_t n,
                      const std::int32_t* load, float scale, float* d_logits) {
  Row scores;
  all_scores(scoring, logits, n, scores.data());
  const float* s = scores.data();
  const float inverse = scoring != RouterRule::Scoring::kSoftmax
                            ? 1.0F / (sum_terms(n, [&](std::int64_t i) { return s[i]; }) + kTinySum)
                            : 1.0F;
  const float mean =
      sum_terms(n, [&](std::int64_t i) { return static_cast<float>(load[i]) * s[i]; }) * inverse;
  if (scoring == RouterRule::Scoring::kSoftmax) {
    for (std::int64_t i = 0; i < n; ++i) d_logits[i] += scale * s[i] * (static_cast<float>(load[i]) - mean);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      d_logits[i] +=
          scale * inverse * lone_slope(scoring, logits[i], s[i]) * (static_cast<float>(load[i]) - mean);
    }
  }
}

void backward(CpuContext& context, const RouterBackward& a) {
  const std::int64_t n = a.logits.cols(), tokens = a.logits.rows();
  const std::int32_t k = a.rule.top_k;
  const bool balance = !a.load.absent() && a.balance_scale != 0;
  const std::int64_t segment = balance ? tokens / a.load.rows() : 1;
  const float balance_scale = balance ? a.balance_scale * balance_factor(a.rule, a.load, tokens) : 0.0F;
  const float z_scale = 2 * a.z_scale / static_cast<float>(tokens);
  const float* previous = a.previous.absent() ? nullptr : context.data<float>(a.previous);
  parallel_ranges(context, tokens, cost_of(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float* logits = context.data<float>(a.logits) + token * n;
      Row sum;
      float* d = sum.data();
      std::fill(d, d + n, 0.0F);
      if (previous) std::copy(previous + token * n, previous + (token + 1) * n, d);
      weights_gradient(a.rule, logits, n, context.data<std::int32_t>(a.experts) + token * k,
                       context.data<float>(a.d_weights) + token * k, d);
      if (balance) {
        balance_gradient(a.rule.scoring, logits, n, context.data<std::int32_t>(a.load) + token / segment * n,
                         balance_scale, d);
      }
      if (z_scale != 0) {
        Row p;
        const float total = exponentials(logits, n, p.data());
        const float factor = z_scale * log_sum(total, largest(logits, n)) / total;
        for (std::int64_t i = 0; i < n; ++i) d[i] += factor * p[static_cast<std::size_t>(i)];
      }
      std::copy(d, d + n, context.data<float>(a.d_logits) + token * n);
    }
  });
}

void router_table(CpuContext& context, const RouterTable& a) {
  const std::int64_t k = a.table.cols();
  const auto* tokens = context.data<std::int32_t>(a.tokens);
  const auto* from = context.data<float>(a.table);
  auto* experts = context.data<std::int32_t>(a.experts);
  for (std::int64_t t = 0; t < a.tokens.elements(); ++t) {
    for (std::int64_t i = 0; i < k; ++i)
      experts[t * k + i] = static_cast<std::int32_t>(from[tokens[t] * k + i]);
  }
}

// Each segment is counted by one thread, so that threads do not add to the same counter concurrently.
void load(CpuContext& context, const RouterLoad& a) {
  const std::int64_t n = a.logits.cols(), segments = a.load.rows(), each = a.logits.rows() / segments;
  context.pool().parallel_for(segments, 1, [&](std::int64_t segment, std::int64_t, int) {
    auto* counts = context.data<std::int32_t>(a.load) + segment * n;
    std::fill(counts, counts + n, 0);
    std::int32_t best[RouterRule::kMaxTopK];
    for (std::int64_t token = segment * each; token < (segment + 1) * each; ++token) {
      const std::int32_t* chosen = best;
      if (a.chosen.absent()) {
        choose(context.data<float>(a.logits) + token * n, n, a.top_k, best);
      } else {
        chosen = context.data<std::int32_t>(a.chosen) + token * a.top_k;
      }
      for (std::int32_t i = 0; i < a.top_k; ++i) ++counts[chosen[i]];
    }
  });
}

void losses(CpuContext& context, const RouterLosses& a) {
  const std::int64_t n = a.logits.cols(), tokens = a.logits.rows();
  const std::int64_t segment = a.load.absent() ? 1 : tokens / a.load.rows();
  struct Sums {
    double balance = 0, z = 0;
    Sums& operator+=(const Sums& other) {
      balance += other.balance;
      z += other.z;
      return *this;
    }
  };
  const Sums sums = ordered_sum<Sums>(context, tokens, [&](std::int64_t begin, std::int64_t end) {
    Sums part;
    Row row;
    for (std::int64_t token = begin; token < end; ++token) {
      const float* logits = context.data<float>(a.logits) + token * n;
      float* const scores = row.data();
      float total = exponentials(logits, n, scores);
      const double lse = static_cast<double>(log_sum(total, largest(logits, n)));
      part.z += lse * lse;
      if (a.load.absent()) continue;
      const auto* counts = context.data<std::int32_t>(a.load) + token / segment * n;
      if (a.rule.scoring != RouterRule::Scoring::kSoftmax) {
        all_scores(a.rule.scoring, logits, n, scores);
        total = sum_terms(n, [&](std::int64_t i) { return scores[i]; });
      }
      const float weighted =
          sum_terms(n, [&](std::int64_t i) { return static_cast<float>(counts[i]) * scores[i]; });
      part.balance += static_cast<double>(weighted) / static_cast<double>(total);
    }
    return part;
  });
  float* out = context.data<float>(a.losses);
  if (!a.load.absent()) {
    const float factor = a.load_share * balance_factor(a.rule, a.load, tokens);
    out[0] += static_cast<float>(sums.balance * static_cast<double>(factor));
  }
  out[1] += static_cast<float>(sums.z / static_cast<double>(tokens));
}

void running_load(CpuContext& context, const RunningLoad& a) {
  auto *load = context.data<std::int32_t>(a.load), *running = context.data<std::int32_t>(a.running);
  for (std::int64_t e = 0; e < a.load.elements(); ++e) load[e] = running[e] += load[e];
}

void expert_load(CpuContext& context, const ExpertLoad& a) {
  const auto* experts = context.data<std::int32_t>(a.experts);
  const auto* rows = context.data<std::int32_t>(a.rows);
  auto* counts = context.data<std::int32_t>(a.load);
  const std::int64_t dropped = a.load.elements() - 1;
  for (std::int64_t slot = 0; slot < a.experts.elements(); ++slot) {
    ++counts[experts[slot]];
    counts[dropped] += rows[slot] < 0;
  }
}

void expert_bias_update(CpuContext& context, const ExpertBiasUpdate& a) {
  const std::int64_t experts = a.bias.elements();
  const auto* counts = context.data<std::int32_t>(a.load);
  float* bias = context.data<float>(a.bias);
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < experts; ++e) total += counts[e];
  for (std::int64_t e = 0; e < experts; ++e) {
    // An exact integer with sign(-excess) = sign(mean - load).
    const std::int64_t excess = counts[e] * experts - total;
    if (excess != 0) bias[e] += excess < 0 ? a.rate : -a.rate;
  }
}

}  // namespace

void register_router(KernelTable& table) {
  table.add<RouterJitter, CpuContext, &router_jitter>();
  table.add<RouterForward, CpuContext, &forward>();
  table.add<RouterBackward, CpuContext, &backward>();
  table.add<RouterTable, CpuContext, &router_table>();
  table.add<RouterLoad, CpuContext, &load>();
  table.add<RouterLosses, CpuContext, &losses>();
  table.add<RunningLoad, CpuContext, &running_load>();
  table.add<ExpertLoad, CpuContext, &expert_load>();
  table.add<ExpertBiasUpdate, CpuContext, &expert_bias_update>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
