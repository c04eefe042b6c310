#include "base/system/large_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <limits>

namespace primus {

void FreeLargeMemory::operator()(std::byte* memory) const { std::free(memory); }

LargeMemory allocate_large(std::uint64_t bytes) {
  if (bytes > std::numeric_limits<std::uint64_t>::max() - kHugePageBytes) return nullptr;
  const std::uint64_t size = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  LargeMemory memory(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, size)));
  if (memory) ::madvise(memory.get(), size, MADV_HUGEPAGE);  // a failure is ignored: small pages work, too
  return memory;
}

}  // namespace primus
