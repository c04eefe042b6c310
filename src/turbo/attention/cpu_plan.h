// Work items of tiled attention, and the layout of its workspace.
#pragma once

#include "turbo/attention/cpu_geometry.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// A `Worker` has the memory that a thread needs for a work item. A `Keys` has the packed keys of one
// (sequence, key/value head). The constructors of `Worker` and `Keys` take (carver, engine, shape).
//
// With whole_heads(), an item is a (sequence, key/value head), and each thread packs the keys of its current
// item. Otherwise there are too few heads to keep all threads busy. In this case, the keys of all heads are
// packed first, and an item is a single tile. The choice depends on the number of threads and does not affect
// the result.
template <class Tiles, class Worker, class Keys>
class Plan {
 public:
  // `workspace` may be null if only bytes() is needed.
  Plan(const Tiles& engine, const AttentionShape& shape, int threads, std::byte* workspace)
      : tiles_(engine),
        s(shape),
        whole_heads_(threads == 1 || s.batch * s.kv_heads >= 4 * static_cast<std::int64_t>(threads)),
        worker_bytes_(bytes_of<Worker>()),
        keys_bytes_(bytes_of<Keys>()),
        workers_(workspace),
        keys_(workspace ? workspace + threads * worker_bytes_ : nullptr),
        bytes_(threads * worker_bytes_ + (whole_heads_ ? threads : s.batch * s.kv_heads) * keys_bytes_) {}

  bool whole_heads() const { return whole_heads_; }
  std::int64_t bytes() const { return bytes_; }

  // `index` is the number of the thread if whole_heads(), else sequence * kv_heads + kv_head.
  Keys keys(std::int64_t index) const {
    Carver carver(keys_ + index * keys_bytes_);
    return Keys(carver, tiles_, s);
  }

  // Calls body(worker, thread, sequence, head, tile) for every sequence, head and tile; tiles vary slowest.
  template <class Body>
  void for_each(ThreadPool& pool, std::int64_t heads, std::int64_t tile_count, Body body) const {
    pool.parallel_for(s.batch * heads * tile_count, 1, [&](std::int64_t item, std::int64_t, int thread) {
      Carver carver(workers_ + thread * worker_bytes_);
      const Worker worker(carver, tiles_, s);
      tiles_.begin();
      body(worker, thread, item % (s.batch * heads) / heads, item % heads, item / (s.batch * heads));
      tiles_.end();
    });
  }

 private:
  template <class Part>
  std::int64_t bytes_of() const {
    Carver carver(nullptr);
    Part(carver, tiles_, s);
    return carver.used();
  }

  const Tiles& tiles_;
  const AttentionShape& s;
  bool whole_heads_;
  std::int64_t worker_bytes_, keys_bytes_;
  std::byte *workers_, *keys_;
  std::int64_t bytes_;
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
