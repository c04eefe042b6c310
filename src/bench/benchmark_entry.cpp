#include "bench/benchmark_entry.h"

#include <algorithm>

#include "base/check.h"
#include "base/entries.h"

namespace primus {

#include "bench/benchmarks.def"  // generated: kAllBenchmarkEntry

std::span<const BenchmarkEntry* const> benchmarks() {
  static const auto all = sorted_entries(kAllBenchmarkEntry, &BenchmarkEntry::name);
  return all;
}

const BenchmarkEntry& benchmark_named(std::string_view name) {
  const auto found = std::ranges::find(kAllBenchmarkEntry, name, &BenchmarkEntry::name);
  PRIMUS_CHECK("benchmark_named", found != std::end(kAllBenchmarkEntry));
  return **found;
}

}  // namespace primus
