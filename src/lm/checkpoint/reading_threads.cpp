#include "lm/checkpoint/reading_threads.h"

#include <algorithm>
#include <cstdlib>

#include "base/system/available_cores.h"

namespace primus {

std::unique_ptr<ThreadPool> reading_threads(std::uint64_t bytes) {
  constexpr std::int64_t kMostThreads = 16;
  const char* const ranks = std::getenv("LOCAL_WORLD_SIZE");
  const std::int64_t share = available_cores() / std::max<std::int64_t>(1, ranks ? std::atoll(ranks) : 1);
  const auto grains = static_cast<std::int64_t>(bytes / kReadingGrain) + 1;
  return std::make_unique<ThreadPool>(
      static_cast<int>(std::clamp<std::int64_t>(std::min(share, grains), 1, kMostThreads)));
}

}  // namespace primus
