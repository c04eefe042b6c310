// Arenas: all tensor memory of a rank comes from a few named arenas that are reserved once, before the first
// step.
//
// An Arena allocates blocks of one address range by a deterministic rule (best fit) over offsets. An arena
// never reads the memory. An arena with a base address allocates memory. An arena without a base address
// ("measuring") finds the size that the address range needs. The size is exact, because measuring and
// allocating arenas get the same sequence of calls.
//
// Streams: a released block may be reused immediately. This is correct if all users of the arena enqueue
// their work on one stream in program order. If other streams use a block, the block must not be released
// before an event shows that their work is done.
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
  // Alignment of every block in bytes: the alignment of memory transactions of GPUs, and more than CPU
  // vectors need.
  static constexpr std::int64_t kAlignment = 256;

  // Blocks are in [base, base + capacity). If base is null, the arena measures: blocks have no address and
  // the capacity is unlimited.
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

  // Allocates from the smallest hole that is large enough; of several holes with this size, it uses the one
  // with the lowest address. Takes O(log holes). If no hole is large enough, throws Error(kInvalid) with the
  // name of the arena.
  Block allocate(std::int64_t bytes);
  void release(const Block& block);

  const std::string& name() const { return name_; }
  bool measuring() const { return base_ == nullptr; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t in_use() const { return in_use_; }          // bytes that are currently allocated
  std::int64_t high_water() const { return high_water_; }  // the maximum end of all blocks so far

 private:
  std::string name_;
  char* base_;
  std::int64_t capacity_, end_ = 0, in_use_ = 0, high_water_ = 0;
  using Runs = std::map<std::int64_t, std::int64_t>;
  void add_run(std::int64_t offset, std::int64_t bytes);
  Runs::iterator remove_run(Runs::iterator run);

  Runs free_;  // maps the offset of each free range to its bytes; adjacent free ranges are joined
  // (bytes, offset) of each free range except the last range, which extends to the end of the arena. In a
  // measuring arena, the size of the last range is unknown. Therefore this size must not affect where blocks
  // are allocated.
  std::set<std::pair<std::int64_t, std::int64_t>> holes_;
  std::unordered_map<std::int64_t, std::int64_t> taken_;
};

}  // namespace primus
