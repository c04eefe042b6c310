// Arenas: all tensor memory of a rank comes from a few named arenas that are reserved once, before the first
// step.
//
// An Arena allocates blocks of one address range by a deterministic rule (best fit) over offsets. It never
// reads the memory, so the class serves two purposes. With a base address it is the allocator; without one
// ("measuring") it finds the required size of that range. Both run the same sequence of calls, so the size is
// exact.
//
// Streams: a block may be reused as soon as it is released. That is correct if all users of the arena enqueue
// their work on one stream in program order. Work on other streams must hold the block until its event has
// passed.
//
// Under AddressSanitizer only the bytes of live blocks may be accessed (base/poison.h).
//
// Not thread-safe: an arena belongs to one rank.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace primus {

class Arena {
 public:
  // Alignment of every block in bytes: the alignment of a GPU's memory transactions, and more than any CPU
  // vector needs.
  static constexpr std::int64_t kAlignment = 256;

  // Blocks lie in [base, base + capacity). A null base measures: blocks have no address and the capacity is
  // unbounded.
  Arena(std::string name, void* base, std::int64_t capacity);
  explicit Arena(std::string name) : Arena(std::move(name), nullptr, 0) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  struct Block {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;   // the requested size; the used space is rounded up to kAlignment
    void* address = nullptr;  // null while measuring
  };

  // Allocates from the smallest hole that fits (of equal holes, the lowest); O(log holes). If no hole fits,
  // throws Error(kInvalid), which names the arena.
  Block allocate(std::int64_t bytes);
  void release(const Block& block);

  const std::string& name() const { return name_; }
  bool measuring() const { return base_ == nullptr; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t in_use() const { return in_use_; }          // bytes allocated now
  std::int64_t high_water() const { return high_water_; }  // the maximum end of any block up to now

 private:
  std::string name_;
  char* base_;
  std::int64_t capacity_, end_ = 0, in_use_ = 0, high_water_ = 0;
  using Runs = std::map<std::int64_t, std::int64_t>;
  void add_run(std::int64_t offset, std::int64_t bytes);
  Runs::iterator remove_run(Runs::iterator run);

  Runs free_;  // offset -> bytes of each free run; adjacent runs are joined
  // (bytes, offset) of each free run except the open end. In a measuring arena the open end has no known
  // size, so this size must never affect a choice.
  std::set<std::pair<std::int64_t, std::int64_t>> holes_;
  std::unordered_map<std::int64_t, std::int64_t> taken_;
};

}  // namespace primus
