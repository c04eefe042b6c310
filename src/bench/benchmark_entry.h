// Benchmarks of a device that need nothing else: what each can be asked, as data, and its work. The command
// `primus benchmark NAME` offers the options, opens the device, and shows, keeps and compares the report
// (cli/benchmark/device_benchmark.h).
//
// A benchmark is its file in this folder, which ends with its entry, and its command's file in cli/benchmark.
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

// Types besides fp32 and bf16 that a benchmark times. Only products of linear layers can be in fp8 and fp4.
struct MeasuredTypes {
  bool fp16 = false, fp8 = false, fp4 = false;
};

// An option, and where its value goes. Optionals and vectors stay empty when it is not given; the others keep
// what they hold, which is the default.
struct BenchmarkOption {
  std::string_view names, value, help;  // "--sizes", "LIST"
  std::variant<std::string*, std::int64_t*, std::optional<std::int64_t>*, std::optional<double>*,
               std::vector<std::string>*>
      target;
};

// An option of another program that stands for nothing here: why, and what to do instead.
struct RefusedOption {
  std::string_view names, reason, instead;
};

// One run of it. One thread.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  virtual std::vector<BenchmarkOption> options() = 0;
  virtual std::vector<RefusedOption> refused() const { return {}; }
  // Reads the options' values. Throws Error(kInvalid) for those that are wrong on every machine.
  virtual void prepare() {}
  // After prepare().
  virtual BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) = 0;
};

struct BenchmarkEntry {
  std::string_view name;  // "memory": the command is "benchmark memory"
  std::unique_ptr<Benchmark> (*make)();
  std::optional<MeasuredTypes> types = {};  // none: it moves bytes, and has no --dtype
};

template <class B>
std::unique_ptr<Benchmark> make_benchmark() {
  return std::make_unique<B>();
}

// All, by name.
std::span<const BenchmarkEntry* const> benchmarks();
// Throws std::logic_error where there is none of that name.
const BenchmarkEntry& benchmark_named(std::string_view name);

}  // namespace primus
