// The kernel that copies the counted rows of an all-to-all to other GPUs of the host
// (DevicePeers::copy_rows). A few blocks copy all parts, and every block takes a share of every part. So the
// blocks have equal work for all counts. The counts are read on the device. Half of a block's threads copy
// the rows for other GPUs, and the other half copies the rows that stay, because the links and this GPU's
// memory can be busy at the same time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "device/collectives.h"
#include "device/gpu/launch.h"

namespace primus::gpu::PRIMUS_GPU {

struct alignas(16) SixteenBytes {
  std::uint32_t words[4];
};

struct CopyRows {
  static constexpr int kThreads = 1024;
  static constexpr int kParts = 16;  // of one launch; copy_rows() makes several launches for more parts

  RowCopies::Part parts[kParts];
  int count;
  std::int64_t row_bytes, maximum;
  std::uint64_t* sent;

  PRIMUS_DEVICE void operator()() const {
    std::uint64_t sent_bytes = 0;
    const bool to_peers = thread() < kHalf;
    for (int i = 0; i < count; ++i) {
      const RowCopies::Part& part = parts[i];
      if (part.to_peer != to_peers) continue;
      const std::int64_t rows = *part.rows;
      // A wrong count must not write outside the part.
      const std::int64_t bytes = (rows < 0 ? 0 : rows > maximum ? maximum : rows) * row_bytes;
      if (to_peers) sent_bytes += static_cast<std::uint64_t>(bytes);
      const auto* const from = static_cast<const std::byte*>(part.from);
      auto* const to = static_cast<std::byte*>(part.to);
      const auto addresses = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to);
      const std::int64_t wide = addresses % sizeof(SixteenBytes) == 0 ? bytes / 16 : 0;
      copy(reinterpret_cast<const SixteenBytes*>(from), reinterpret_cast<SixteenBytes*>(to), wide);
      copy(from + wide * 16, to + wide * 16, bytes - wide * 16);
    }
    if (block() == 0 && thread() == 0) add(sent_bytes);
#ifdef PRIMUS_GPU_VENDOR
    __threadfence_system();  // the rows are visible to the other GPU before a flag tells it so
#endif
  }

 private:
  static constexpr int kHalf = kThreads / 2;

  // Each thread has several loads in flight, because a store to another GPU takes long.
  template <class T>
  PRIMUS_DEVICE void copy(const T* from, T* to, std::int64_t size) const {
    constexpr int kLoads = 8;
    const std::int64_t step = blocks() * kHalf;
    std::int64_t i = block() * kHalf + thread() % kHalf;
    for (; i + (kLoads - 1) * step < size; i += kLoads * step) {
      T values[kLoads];
      PRIMUS_UNROLL
      for (int k = 0; k < kLoads; ++k) values[k] = from[i + k * step];
      PRIMUS_UNROLL
      for (int k = 0; k < kLoads; ++k) to[i + k * step] = values[k];
    }
    for (; i < size; i += step) to[i] = from[i];
  }

  // Only one kernel at a time uses `sent`, so a GPU needs no atomic operation on this host memory.
  PRIMUS_DEVICE void add(std::uint64_t bytes) const {
#ifdef PRIMUS_GPU_VENDOR
    volatile std::uint64_t* const total = sent;
    *total = *total + bytes;
#else
    std::atomic_ref(*sent) += bytes;
#endif
  }
};

// Calls launch(blocks, kernel) for all parts of `copies`.
template <class Launch>
void each_copy_rows(const RowCopies& copies, Launch launch) {
  for (std::size_t first = 0; first < copies.parts.size(); first += CopyRows::kParts) {
    CopyRows kernel{
        .parts = {},
        .count = static_cast<int>(std::min<std::size_t>(CopyRows::kParts, copies.parts.size() - first)),
        .row_bytes = copies.row_bytes,
        .maximum = copies.maximum,
        .sent = copies.sent};
    std::copy_n(copies.parts.begin() + static_cast<std::ptrdiff_t>(first), kernel.count, kernel.parts);
    launch(copies.processors, kernel);
  }
}

}  // namespace primus::gpu::PRIMUS_GPU
