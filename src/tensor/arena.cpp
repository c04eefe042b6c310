#include "tensor/arena.h"

#include <cassert>
#include <limits>

#include "base/error.h"
#include "base/poison.h"

namespace primus {

Arena::Arena(std::string name, void* base, std::int64_t capacity)
    : name_(std::move(name)), base_(static_cast<char*>(base)), capacity_(capacity) {
  // The end of a measuring arena is half the range of the type, so that sums of offsets cannot overflow.
  end_ = base_ ? capacity : std::numeric_limits<std::int64_t>::max() / 2;
  add_run(0, end_);
  if (base_) poison(base_, static_cast<std::size_t>(capacity_));
}

Arena::~Arena() {
  if (base_) unpoison(base_, static_cast<std::size_t>(capacity_));
}

Arena::Block Arena::allocate(std::int64_t bytes) {
  const std::int64_t need = ((bytes > 0 ? bytes : 1) + kAlignment - 1) / kAlignment * kAlignment;
  auto best = free_.end();
  const auto hole = holes_.lower_bound({need, 0});
  if (hole != holes_.end()) {
    best = free_.find(hole->second);
  } else if (!free_.empty() && std::prev(free_.end())->second >= need) {
    best = std::prev(free_.end());  // the free range at the end, because no hole is large enough
  }
  if (best == free_.end()) {
    throw invalid("arena '" + name_ + "' has no room for " + std::to_string(bytes) + " more bytes (" +
                      std::to_string(in_use_) + " of " + std::to_string(capacity_) + " in use)",
                  "this step needs more memory than the measured step; please report this with the config");
  }
  const auto [offset, run_bytes] = *best;
  remove_run(best);
  if (run_bytes > need) add_run(offset + need, run_bytes - need);
  taken_[offset] = need;
  in_use_ += need;
  if (offset + need > high_water_) high_water_ = offset + need;
  if (base_) unpoison(base_ + offset, static_cast<std::size_t>(bytes > 0 ? bytes : 0));
  return {offset, bytes, base_ ? base_ + offset : nullptr};
}

void Arena::release(const Block& block) {
  const auto it = taken_.find(block.offset);
  assert(it != taken_.end());
  std::int64_t begin = block.offset, end = begin + it->second;
  if (base_) poison(base_ + begin, static_cast<std::size_t>(it->second));
  in_use_ -= it->second;
  taken_.erase(it);
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == end) {
    end += next->second;
    next = remove_run(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      remove_run(previous);
    }
  }
  add_run(begin, end - begin);
}

void Arena::add_run(std::int64_t offset, std::int64_t bytes) {
  free_[offset] = bytes;
  if (offset + bytes != end_) holes_.emplace(bytes, offset);
}

Arena::Runs::iterator Arena::remove_run(Runs::iterator run) {
  holes_.erase({run->second, run->first});
  return free_.erase(run);
}

}  // namespace primus
