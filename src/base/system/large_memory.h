// Host memory for buffers of megabytes and more, on huge pages if available. Huge pages cause fewer page
// faults. Devices that read the buffer find long contiguous physical ranges.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace primus {

struct FreeLargeMemory {
  void operator()(std::byte* memory) const;
};
using LargeMemory = std::unique_ptr<std::byte[], FreeLargeMemory>;

constexpr std::uint64_t kHugePageBytes = 2U << 20;

// Allocates `bytes`, rounded up to a multiple of kHugePageBytes and aligned to it. Not initialized; pages are
// allocated when touched. Returns null if out of memory.
LargeMemory allocate_large(std::uint64_t bytes);

}  // namespace primus
