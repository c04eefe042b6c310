#include "lm/checkpoint/reading_threads.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/system/available_cores.h"

namespace primus {

std::unique_ptr<ThreadPool> reading_threads(std::uint64_t bytes) {
  constexpr std::int64_t kMostThreads = 16;
  const char* const ranks = std::getenv("LOCAL_WORLD_SIZE");
  const std::int64_t share = available_cores() / std::max<std::int64_t>(1, ranks ? std::atoll(ranks) : 1);
  const auto grains = static_cast<std::int64_t>(bytes / kReadingGrain) + 1;
  for (std::int64_t count = std::clamp<std::int64_t>(std::min(share, grains), 1, kMostThreads);; count /= 2) {
    try {
      return std::make_unique<ThreadPool>(static_cast<int>(count));
    } catch (const Error&) {
      // The system limits the number of threads. One thread can read the checkpoint, too.
      if (count == 1) throw;
    }
  }
}

}  // namespace primus
