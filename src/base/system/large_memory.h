// Host memory for buffers of megabytes and more, on huge pages where the system gives them: fewer page faults
// when it is first touched, and long runs of physical memory for devices that read it.
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

// A multiple of kHugePageBytes, aligned to it, not initialised; pages are taken when they are touched. Null
// where there is not enough memory.
LargeMemory allocate_large(std::uint64_t bytes);

}  // namespace primus
