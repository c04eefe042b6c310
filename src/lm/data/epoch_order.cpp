#include "lm/data/epoch_order.h"

#include <numeric>
#include <utility>

#include "base/random/random.h"

namespace primus::data {

void shuffle(std::vector<std::uint32_t>& entries, std::int64_t seed, Shuffle purpose, std::uint32_t epoch) {
  const RandomStream random(static_cast<std::uint64_t>(seed), RandomPurpose::kData, epoch, 0,
                            static_cast<std::uint32_t>(purpose));
  for (std::size_t i = entries.size(); i > 1; --i)
    std::swap(entries[i - 1], entries[random.below(i, static_cast<std::uint32_t>(i))]);
}

std::vector<std::uint32_t> numbers_below(std::size_t n) {
  std::vector<std::uint32_t> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0U);
  return numbers;
}

std::size_t EpochOrder::at(std::int64_t draw) const {
  const auto all = static_cast<std::int64_t>(items_);
  const std::int64_t epoch = draw / all;
  const auto within = static_cast<std::size_t>(draw % all);
  if (!shuffled_) return within;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Epoch>& kept = kept_[static_cast<std::size_t>(epoch % 2)];
  if (!kept || kept->number != epoch) {
    Epoch made{epoch, numbers_below(items_)};
    shuffle(made.items, seed_, Shuffle::kEpoch, static_cast<std::uint32_t>(epoch));
    kept = std::make_shared<const Epoch>(std::move(made));
  }
  return kept->items[within];
}

}  // namespace primus::data
