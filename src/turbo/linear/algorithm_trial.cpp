#include "turbo/linear/algorithm_trial.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace primus::turbo {
namespace {

struct Candidate {
  int index;
  double seconds;
};

bool faster(const Candidate& a, const Candidate& b) { return a.seconds < b.seconds; }

}  // namespace

int AlgorithmTrials::products_of(double slot, double seconds) const {
  constexpr double kMax = 1000;
  return std::max(limits_.in_a_row, static_cast<int>(std::min(std::ceil(slot / seconds), kMax)));
}

// Keeps the device busy until it is warm. Assumes that a pause of s seconds undoes about s seconds of
// warm-up.
void AlgorithmTrials::warm(int candidate, double seconds, const Run& run) {
  const double now = clock_();
  warmth_ = std::max(0.0, warmth_ - (now - warm_at_));
  const int products = products_of(limits_.slot, seconds);
  while (warmth_ < limits_.warm) {
    const double took = run(candidate, products);
    if (took <= 0) break;
    warmth_ += took;
  }
  warm_at_ = clock_();
}

std::optional<AlgorithmTrial> AlgorithmTrials::choose(int candidates, const Run& run) {
  constexpr int kMin = 4;  // min. number of candidates in the first round, regardless of time
  const double begin = clock_();
  // The first product of each candidate loads its kernel, and is not timed.
  std::vector<Candidate> ran;
  int first = 0;
  double rough = 0;
  for (; first < candidates && rough <= 0; ++first) {
    if (run(first, 1) > 0) rough = run(first, 1);
  }
  if (rough <= 0) return std::nullopt;
  --first;
  const bool small = rough < limits_.small;
  const bool sustained = !small && spent_ < limits_.all;
  if (sustained) warm(first, rough, run);

  const double slot = limits_.slot / 10;
  const double sifting = clock_();
  for (int i = first; i < candidates; ++i) {
    if (static_cast<int>(ran.size()) >= kMin && clock_() - sifting > limits_.sift) break;
    if (i != first && run(i, 1) <= 0) continue;
    const int products = products_of(slot, rough);
    const double seconds = run(i, products) / products;
    if (seconds > 0) ran.push_back({i, seconds});
  }
  if (ran.empty()) return std::nullopt;
  AlgorithmTrial result{.of = static_cast<int>(ran.size()), .sustained = sustained};

  // The finalists are the fastest candidates and the library's own choice. The fastest candidate replaces the
  // library's choice only if it is clearly faster.
  const Candidate own = ran.front();
  std::sort(ran.begin(), ran.end(), faster);
  const auto finalists = std::min(ran.size(), static_cast<std::size_t>(limits_.finalists));
  const bool own_is_in = std::any_of(ran.begin(), ran.begin() + static_cast<std::ptrdiff_t>(finalists),
                                     [&](const Candidate& c) { return c.index == own.index; });
  ran.resize(finalists);
  if (!own_is_in) ran.back() = own;

  const double length = sustained ? limits_.slot : slot;
  std::vector<std::vector<double>> times(ran.size());
  for (int round = 0; round < limits_.rounds; ++round) {
    for (std::size_t i = 0; i < ran.size(); ++i) {
      const int products = products_of(length, ran[i].seconds);
      times[i].push_back(run(ran[i].index, products) / products);
    }
  }
  for (std::size_t i = 0; i < ran.size(); ++i) {
    std::sort(times[i].begin(), times[i].end());
    ran[i].seconds = times[i][times[i].size() / 2];
  }
  std::sort(ran.begin(), ran.end(), faster);
  const auto at =
      std::find_if(ran.begin(), ran.end(), [&](const Candidate& c) { return c.index == own.index; });
  auto chosen = ran.begin();
  if (chosen != at && chosen->seconds >= at->seconds * limits_.clearly) chosen = at;
  result.best = chosen->index;
  result.seconds = chosen->seconds;
  for (const Candidate& c : ran) {
    if (c.index == result.best) continue;
    result.next = c.seconds;
    break;
  }

  const double end = clock_();
  spent_ += end - begin;
  if (!small) {
    warmth_ = std::min(limits_.warm, warmth_ + (end - begin));
    warm_at_ = end;
  }
  return result;
}

}  // namespace primus::turbo
