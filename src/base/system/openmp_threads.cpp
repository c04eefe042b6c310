#include "base/system/openmp_threads.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "base/system/thread_pool.h"

namespace primus {

OpenMpThreads parse_openmp_threads(std::string_view text, std::string_view where) {
  if (text.empty()) return {};
  std::string_view first = text.substr(0, text.find(','));
  const std::size_t begin = first.find_first_not_of(" \t");
  if (begin != std::string_view::npos) first = first.substr(begin, first.find_last_not_of(" \t") + 1 - begin);
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(first.data(), first.data() + first.size(), count);
  if (error == std::errc() && end == first.data() + first.size() && count >= 1 &&
      count <= ThreadPool::kMaxThreads) {
    return {.count = count, .warning = {}};
  }
  return {.count = {},
          .warning = fmt::format("{}: OMP_NUM_THREADS is ignored, because '{}' is not a number of threads",
                                 where, text.substr(0, 80))};
}

}  // namespace primus
