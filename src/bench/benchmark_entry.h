// Device benchmarks that need only a device: their options, as data, and their work. The command `primus
// benchmark NAME` declares the options, opens the device, and shows, saves and compares the report
// (cli/benchmark/device_benchmark.h).
//
// A benchmark consists of a file in this folder, which ends with its entry, and a command file in
// cli/benchmark.
// The build finds the entry (primus_entry_list in cmake/PrimusBuild.cmake):
//   extern const BenchmarkEntry kMemoryEntry{"memory", make_benchmark<MemoryBenchmark>};
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bench/report.h"

namespace primus {

class Device;
struct OperatorBenchmarkOptions;  // bench/operator_benchmark.h

// Types that a benchmark times in addition to fp32 and bf16. Only matrix products of linear layers support
// fp8 and fp4.
struct MeasuredTypes {
  bool fp16 = false, fp8 = false, fp4 = false;
};

// An option and where its value is stored. Optionals and vectors stay empty if the option is not given; other
// targets keep their initial value, which is the default.
struct BenchmarkOption {
  std::string_view names, value, help;  // "--sizes", "LIST"
  std::variant<std::string*, std::int64_t*, std::optional<std::int64_t>*, std::optional<double>*,
               std::vector<std::string>*>
      target;
};

// An option of another program that has no meaning here: the reason, and what to do instead.
struct RefusedOption {
  std::string_view names, reason, instead;
};

// One run of a benchmark. Single-threaded.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  virtual std::vector<BenchmarkOption> options() = 0;
  virtual std::vector<RefusedOption> refused() const { return {}; }
  // Reads the options' values. Throws Error(kInvalid) for values that are invalid on every machine.
  virtual void prepare() {}
  // Call after prepare().
  virtual BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) = 0;
};

struct BenchmarkEntry {
  std::string_view name;  // "memory": the command is "benchmark memory"
  std::unique_ptr<Benchmark> (*make)();
  std::optional<MeasuredTypes> types = {};  // nullopt: moves bytes; no --dtype
};

template <class B>
std::unique_ptr<Benchmark> make_benchmark() {
  return std::make_unique<B>();
}

// All benchmarks, sorted by name.
std::span<const BenchmarkEntry* const> benchmarks();
// Throws std::logic_error if no benchmark has that name.
const BenchmarkEntry& benchmark_named(std::string_view name);

}  // namespace primus
