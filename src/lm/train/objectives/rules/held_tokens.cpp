#include "lm/train/objectives/rules/held_tokens.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "engine/parallel/context_attention.h"

namespace primus {

HeldTokens::HeldTokens(const engine::MeshShape& shape, const engine::MeshPlace& place, std::int64_t sequence)
    : sequence_(static_cast<std::size_t>(sequence)) {
  if (shape.context == 1) {  // context_positions() is only for sequences with an even number of tokens
    positions_.resize(sequence_);
    std::iota(positions_.begin(), positions_.end(), 0);
    return;
  }
  for (const std::int64_t position : engine::context_positions(sequence, shape.context, place.context))
    positions_.push_back(static_cast<std::int32_t>(position));
}

std::vector<float> HeldTokens::select(std::span<const float> all) const {
  std::vector<float> held(all.size() / sequence_ * positions_.size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = all[index(i)];
  return held;
}

void HeldTokens::scatter(std::span<const float> held, std::span<float> all) const {
  PRIMUS_CHECK("HeldTokens::scatter", held.size() == all.size() / sequence_ * positions_.size());
  for (std::size_t i = 0; i < held.size(); ++i) all[index(i)] = held[i];
}

std::vector<std::int32_t> HeldTokens::starts(std::span<const std::int32_t> all) const {
  std::vector<std::int32_t> held;
  const auto length = static_cast<std::int32_t>(sequence_),
             mine = static_cast<std::int32_t>(positions_.size());
  for (const std::int32_t start : all) {
    const auto before = std::ranges::lower_bound(positions_, start % length) - positions_.begin();
    held.push_back(start / length * mine + static_cast<std::int32_t>(before));
  }
  return held;
}

}  // namespace primus
