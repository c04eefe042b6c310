// Element-wise loops over vectors, and over the columns of rows.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Calls body(i) for i < n.
template <class Body>
struct ForEach {
  static constexpr int kThreads = 256;
  Body body;
  std::int64_t n;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = block() * kThreads + thread();
    if (i < n) body(i);
  }
};
template <class Body>
void for_each(Context& context, std::int64_t n, const Body& body) {
  launch(context, blocks_for(n, ForEach<Body>::kThreads), ForEach<Body>{body, n});
}

// Calls body(row, column) for columns 0, kCount, 2 * kCount, ... of every row; each call processes kCount
// consecutive columns.
template <class Body, int kCount>
struct ForEachOfRows {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  Body body;
  std::int64_t rows, packs;  // packs: packs of kCount columns per row

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t i = block() * kThreads + thread();
    if (i < rows * packs) body(i / packs, i % packs * kCount);
  }
};
template <int kCount, class Body>
void for_each_of_rows(Context& context, std::int64_t rows, std::int64_t cols, const Body& body) {
  const std::int64_t packs = cols / kCount;
  launch(context, blocks_for(rows * packs, ForEachOfRows<Body, kCount>::kThreads),
         ForEachOfRows<Body, kCount>{body, rows, packs});
}

// Calls body(row, column) as for_each_of_rows() does, but only for the rows before *used, a number on the
// device that is at most `rows`. Each thread processes several packs, so that unused rows cost no blocks.
template <class Body, int kCount>
struct ForEachOfUsedRows {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  Body body;
  const std::int32_t* used;
  std::int64_t packs;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t end = *used * packs;
    for (std::int64_t i = block() * kThreads + thread(); i < end; i += blocks() * kThreads)
      body(i / packs, i % packs * kCount);
  }
};
template <int kCount, class Body>
void for_each_of_used_rows(Context& context, std::int64_t rows, const std::int32_t* used, std::int64_t cols,
                           const Body& body) {
  using Kernel = ForEachOfUsedRows<Body, kCount>;
  constexpr std::int64_t kBlocksPerProcessor = 32;
  const std::int64_t packs = cols / kCount;
  launch(context,
         std::min(blocks_for(rows * packs, Kernel::kThreads), kBlocksPerProcessor * multiprocessors(context)),
         Kernel{body, used, packs});
}

}  // namespace primus::turbo::PRIMUS_GPU
