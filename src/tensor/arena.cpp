#include "tensor/arena.h"

#include <cassert>
#include <limits>

#include "base/error.h"

namespace primus {

Arena::Arena(std::string name, void* base, std::int64_t capacity)
    : name_(std::move(name)), base_(static_cast<char*>(base)), capacity_(capacity) {
  // Half the range of the type, so that no sum of offsets can overflow.
  end_ = base_ ? capacity : std::numeric_limits<std::int64_t>::max() / 2;
  free_[0] = end_;
}

Arena::Block Arena::allocate(std::int64_t bytes) {
  const std::int64_t need = ((bytes > 0 ? bytes : 1) + kAlignment - 1) / kAlignment * kAlignment;
  // The smallest hole that fits; the open end only when none does. The open end is the one run whose size a
  // measuring arena cannot know, so its size must never decide.
  const auto open_end = free_.empty() || free_.rbegin()->first + free_.rbegin()->second != end_
                            ? free_.end()
                            : std::prev(free_.end());
  auto best = free_.end();
  for (auto run = free_.begin(); run != open_end; ++run) {
    if (run->second >= need && (best == free_.end() || run->second < best->second)) best = run;
  }
  if (best == free_.end() && open_end != free_.end() && open_end->second >= need) best = open_end;
  if (best == free_.end()) {
    throw invalid("arena '" + name_ + "' has no room for " + std::to_string(bytes) + " more bytes (" +
                      std::to_string(in_use_) + " of " + std::to_string(capacity_) + " in use)",
                  "this step needs more memory than the measured one; please report it with the config");
  }
  const auto [offset, run_bytes] = *best;
  free_.erase(best);
  if (run_bytes > need) free_[offset + need] = run_bytes - need;
  taken_[offset] = need;
  in_use_ += need;
  if (offset + need > high_water_) high_water_ = offset + need;
  return {offset, bytes, base_ ? base_ + offset : nullptr};
}

void Arena::release(const Block& block) {
  const auto it = taken_.find(block.offset);
  assert(it != taken_.end());
  std::int64_t begin = block.offset, end = begin + it->second;
  in_use_ -= it->second;
  taken_.erase(it);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      previous->second += end - begin;
      return;
    }
  }
  free_[begin] = end - begin;
}

}  // namespace primus
