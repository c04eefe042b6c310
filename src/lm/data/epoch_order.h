// The order in which a run draws the items of a data set: all items in each epoch, in a different order in
// each epoch or always in the order of the files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace primus::data {

// The purpose of a shuffle. Each purpose has its own stream of random numbers.
enum class Shuffle : std::uint32_t { kEpoch = 0x5F70, kHeldOut, kPacks };

// Shuffles `entries`. The order depends on the seed, the purpose and the epoch only.
void shuffle(std::vector<std::uint32_t>& entries, std::int64_t seed, Shuffle purpose,
             std::uint32_t epoch = 0);

// Returns 0, 1, ..., n - 1.
std::vector<std::uint32_t> numbers_below(std::size_t n);

// Thread-safety: at() may be called from any number of threads at once.
class EpochOrder {
 public:
  EpochOrder(std::size_t items, std::int64_t seed, bool shuffled)
      : items_(items), seed_(seed), shuffled_(shuffled) {}

  // Returns the item of draw `draw` >= 0. With P items, draw d is item d mod P of epoch d div P. There
  // must be at least one item.
  std::size_t at(std::int64_t draw) const;

 private:
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::uint32_t> items;
  };

  const std::size_t items_;
  const std::int64_t seed_;
  const bool shuffled_;
  mutable std::mutex mutex_;
  // The orders of two epochs. Threads that read ahead use at most two adjacent epochs at a time.
  mutable std::array<std::shared_ptr<const Epoch>, 2> kept_;
};

}  // namespace primus::data
