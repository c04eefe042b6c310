#include "lm/report/curves.h"

#include <algorithm>
#include <cmath>

namespace primus {

void Bucket::add(double value) {
  if (!std::isfinite(value)) {
    ++other;
    return;
  }
  minimum = finite == 0 ? value : std::min(minimum, value);
  largest = finite == 0 ? value : std::max(largest, value);
  sum += value;
  ++finite;
}

void Bucket::add(const Bucket& later) {
  if (later.finite > 0) {
    minimum = finite == 0 ? later.minimum : std::min(minimum, later.minimum);
    largest = finite == 0 ? later.largest : std::max(largest, later.largest);
  }
  sum += later.sum;
  finite += later.finite;
  other += later.other;
}

void Curves::begin(std::int64_t step, double samples, double seconds) {
  if (positions_.empty() || in_last_ == width_) {
    if (positions_.size() == max_) halve();
    positions_.push_back({.first = step});
    for (auto& [name, buckets] : curves_) buckets.emplace_back();
    in_last_ = 0;
  }
  Position& position = positions_.back();
  position.last = step;
  position.samples = samples;
  position.seconds = seconds;
  ++in_last_;
}

void Curves::add(std::string_view name, double value) {
  auto found = curves_.find(name);
  if (found == curves_.end()) {
    if (curves_.size() == kMaxCurves) return;
    found = curves_.emplace(name, std::vector<Bucket>(positions_.size())).first;
  }
  found->second.back().add(value);
}

// Merges pairs of neighbouring buckets. The number of buckets is even, and all are full.
void Curves::halve() {
  const std::size_t half = positions_.size() / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const Position first = positions_[2 * i];
    positions_[i] = positions_[2 * i + 1];
    positions_[i].first = first.first;
  }
  positions_.resize(half);
  for (auto& [name, buckets] : curves_) {
    for (std::size_t i = 0; i < half; ++i) {
      Bucket both = buckets[2 * i];
      both.add(buckets[2 * i + 1]);
      buckets[i] = both;
    }
    buckets.resize(half);
  }
  width_ *= 2;
}

}  // namespace primus
