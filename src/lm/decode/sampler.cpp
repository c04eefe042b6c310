#include "lm/decode/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/random/random.h"

namespace primus {
namespace {

void check_logits(std::span<const float> logits) {
  if (logits.empty()) throw invalid("the vocabulary is empty, so no token can be chosen");
  bool possible = false;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == std::numeric_limits<float>::infinity()) {
      throw Error(ErrorKind::kNumerics, fmt::format("the logit of token {} is {}", i, logits[i]),
                  "the weights may be damaged: 'primus model export MODEL NEW' names tensors with nan; with "
                  "--dtype bf16, "
                  "also try fp32");
    }
    possible = possible || std::isfinite(logits[i]);
  }
  if (!possible) throw Error(ErrorKind::kNumerics, "every token has probability 0");
}

// Returns a uniform random number in [0, 1) with 53 random bits.
double uniform(const SamplingSettings& settings, std::int64_t position) {
  const RandomStream stream(settings.seed, RandomPurpose::kSampling, static_cast<std::uint32_t>(position));
  const std::uint64_t high = stream.bits(0) >> 5, low = stream.bits(1) >> 6;
  return static_cast<double>(high << 26 | low) * 0x1p-53;
}

// Returns the first index at which the running sum of `weights` exceeds u * (sum of all weights).
std::size_t pick(std::span<const double> weights, double u) {
  const double target = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    sum += weights[i];
    if (sum > target) break;
  }
  return last;  // because of rounding, the running sum may stay just below the target
}

// Samples one of the tokens `ids`, which are the only candidates and are sorted by descending logit.
std::int32_t choose_from_top(std::span<const float> values, std::span<const std::int32_t> ids,
                             const SamplingSettings& settings, double u) {
  std::vector<double> weights;
  double total = 0;
  for (const float value : values) {
    weights.push_back(
        std::exp((static_cast<double>(value) - static_cast<double>(values.front())) / settings.temperature));
    total += weights.back();
  }
  double sum = 0;
  std::size_t kept = 0;
  while (kept < weights.size() && (settings.top_p >= 1 || sum < settings.top_p * total))
    sum += weights[kept++];
  return ids[pick(std::span(weights).first(kept), u)];
}

}  // namespace

void SamplingSettings::check() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    throw invalid(fmt::format("temperature must be 0 or more, not {}", temperature));
  }
  if (top_k < 0) throw invalid(fmt::format("top-k must be 0 or more, not {}", top_k));
  if (!(top_p > 0 && top_p <= 1))
    throw invalid(fmt::format("top-p must be above 0 and at most 1, not {}", top_p));
}

std::int32_t sample_token(std::span<const float> logits, const SamplingSettings& settings,
                          std::int64_t position) {
  check_logits(logits);
  const auto top_k = std::max_element(logits.begin(), logits.end());
  if (settings.temperature == 0) return static_cast<std::int32_t>(top_k - logits.begin());
  auto weight = [&](std::int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - static_cast<double>(*top_k)) / settings.temperature);
  };
  const double u = uniform(settings, position);
  const auto vocab = static_cast<std::int64_t>(logits.size());
  const std::int64_t allowed = settings.top_k > 0 ? std::min(settings.top_k, vocab) : vocab;
  std::vector<double> weights;
  if (allowed == vocab && settings.top_p >= 1) {
    weights.resize(logits.size());
    for (std::int64_t id = 0; id < vocab; ++id) weights[id] = weight(static_cast<std::int32_t>(id));
    return static_cast<std::int32_t>(pick(weights, u));
  }

  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  auto likelier = [&](std::int32_t a, std::int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (allowed < vocab) {
    std::partial_sort(ids.begin(), ids.begin() + allowed, ids.end(), likelier);
    ids.resize(allowed);
    std::vector<float> values;
    for (const std::int32_t id : ids) values.push_back(logits[id]);
    return choose_from_top(values, ids, settings, u);
  }
  double total = 0;
  for (const std::int32_t id : ids) total += weight(id);
  // Sorts only as many tokens as top-p needs, which are usually a few dozen of a large vocabulary.
  double sum = 0;
  std::size_t sorted = 0;
  while (sorted < ids.size() && sum < settings.top_p * total) {
    const std::size_t end = std::min(ids.size(), std::max<std::size_t>(64, 4 * sorted));
    std::partial_sort(ids.begin() + static_cast<std::ptrdiff_t>(sorted),
                      ids.begin() + static_cast<std::ptrdiff_t>(end), ids.end(), likelier);
    for (; sorted < end && sum < settings.top_p * total; ++sorted) {
      weights.push_back(weight(ids[sorted]));
      sum += weights.back();
    }
    if (sorted < end) break;
  }
  return ids[pick(weights, u)];
}

bool is_drawn_on_device(const SamplingSettings& settings) {
  return settings.temperature == 0 || (settings.top_k == 0 && settings.top_p >= 1);
}

TokenDraw draw_of(const SamplingSettings& settings, std::int64_t position) {
  if (settings.temperature == 0) return {};
  return {uniform(settings, position), settings.temperature};
}

std::int64_t top_k_needed(const SamplingSettings& settings) {
  return settings.temperature == 0 ? 1 : settings.top_k;
}

std::int32_t sample_token(const NextLogits& logits, const SamplingSettings& settings, std::int64_t position) {
  if (logits.ids.empty()) return sample_token(logits.values, settings, position);
  if (logits.drawn) return logits.ids.front();
  if (settings.temperature == 0) return logits.ids.front();
  const auto allowed = std::min(logits.ids.size(), static_cast<std::size_t>(settings.top_k));
  return choose_from_top(logits.values.first(allowed), logits.ids.first(allowed), settings,
                         uniform(settings, position));
}

}  // namespace primus
