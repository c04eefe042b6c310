#include "bench/benchmark_entry.h"

#include <algorithm>

#include "base/check.h"
#include "base/entries.h"
#include "bench/operator_benchmark.h"
#include "turbo/devices/devices.h"

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

OperatorBenchmarkOptions operator_options(const BenchmarkRun& run) {
  return {
      .dtype = run.dtype, .fp8 = run.fp8, .fp4 = run.fp4, .seconds = run.seconds, .progress = run.measured};
}

BenchmarkReport DeviceBenchmark::measure(const BenchmarkRun& run) {
  return measure_on(*turbo::open_device(run.device), operator_options(run));
}

}  // namespace primus
