// Declares benchmarks: the options of a benchmark, as data, and its work. The command `primus benchmark NAME`
// declares the options, prepares the subject (a device, an experiment, or ranks), and shows progress. At the
// end it shows, saves and compares the report (cli/benchmark/benchmark_command.h).
//
// A benchmark consists of a file in this folder and a command file in cli/benchmark. The file in this folder
// ends with the benchmark's entry. The build collects the entries (primus_entry_list in
// cmake/PrimusBuild.cmake):
//   extern const BenchmarkEntry kMemoryEntry{.name = "memory",
//                                            .make = make_benchmark<MemoryBenchmark>,
//                                            .subject = BenchmarkSubject::kDevice,
//                                            .seconds = 0.5};
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "bench/report.h"
#include "device/plugin.h"
#include "tensor/dtype.h"

namespace primus {

class Device;
struct OperatorBenchmarkOptions;  // bench/operator_benchmark.h
namespace comm {
class Communicator;
}
namespace config {
struct Experiment;
}

// Types that a benchmark times in addition to fp32 and bf16. Only matrix products of linear layers support
// fp8 and fp4.
struct MeasuredTypes {
  bool fp16 = false, fp8 = false, fp4 = false;
};

// An option or value of another program that Primus refuses, with the reason and an alternative.
struct RefusedOption {
  std::string_view names, reason, instead;
};

// An option and where its value is stored. If the option is not given, optionals and vectors stay empty.
// Other targets keep their initial value, which is the default.
struct BenchmarkOption {
  std::string_view names, value;  // "--sizes", "LIST"; empty `value`: the option is a switch
  std::string help;
  std::variant<bool*, std::string*, std::int64_t*, std::optional<std::int64_t>*, std::optional<double>*,
               std::vector<std::string>*>
      target;
  std::string shown_default = {};                       // default of a target that stays empty
  std::optional<std::pair<double, double>> range = {};  // minimum and maximum
  std::vector<std::string> choices = {};                // allowed words; empty: any
  std::vector<RefusedOption> refused = {};              // words that Primus refuses, with the reasons
  bool several = false;  // all words up to the next option belong to this option
  // Returns the elements of `values` that name files or folders, which must exist. Null: no value names a
  // file.
  std::vector<std::string> (*reads)(const std::vector<std::string>& values) = nullptr;
};

// The subject that the command prepares before Benchmark::measure().
enum class BenchmarkSubject : std::uint8_t {
  kNothing,
  kDevice,      // --device, --threads and, with BenchmarkEntry::types, --dtype
  kExperiment,  // --config and overrides
  kRanks,       // the options of kDevice, and --nproc, --nnodes and --transport; measure() runs on every rank
};

// The input that the command provides to measure(). All callbacks are set.
struct BenchmarkRun {
  DeviceSpec device = {};  // kDevice and kRanks: the device to open
  DType dtype = DType::kF32;
  bool fp8 = false, fp4 = false;  // `dtype` is then bf16
  double seconds = 0;             // duration of each measurement; see BenchmarkEntry::seconds
  const config::Experiment* experiment = nullptr;  // kExperiment: the experiment; otherwise null
  // kRanks: the ranks, and this rank's open device.
  comm::Communicator* world = nullptr;
  Device* rank_device = nullptr;
  std::string report_file = {};  // value of --output; empty: not given
  // Callbacks that report progress. `measured` takes the number of finished measurements. The other callback
  // takes the name of a phase and the finished share of the phase (0 of 0: unknown). Only rank 0 shows
  // progress.
  std::function<void(std::int64_t done)> measured = [](std::int64_t) {};
  std::function<void(std::string_view what, std::int64_t done, std::int64_t total)> progress =
      [](std::string_view, std::int64_t, std::int64_t) {};
  std::function<void(const std::string& text)> note = [](const std::string&) {};  // shows a line immediately
  // Returns the file to write in place of `file`, which the user named. If several processes run the command,
  // the name contains the number of this process ("gemm.0-of-2.html"), so that they write different files.
  std::function<std::string(const std::string& file)> own_file = [](const std::string& file) { return file; };
};

// One run of a benchmark. Single-threaded, except that measure() with kRanks may run concurrently in one
// thread per rank.
class Benchmark {
 public:
  virtual ~Benchmark() = default;
  virtual std::vector<BenchmarkOption> options() = 0;
  virtual std::vector<RefusedOption> refused() const { return {}; }
  // Throws Error(kInvalid) for values that are invalid on every machine. Does not read the user's files.
  virtual void check() {}
  // Returns the user's file or folder that prepare() reads; empty if prepare() reads none. The file may exist
  // only on the nodes of a job.
  virtual std::string input() const { return {}; }
  // Reads the options' values. Call once, after check(). Throws Error(kInvalid) for invalid values.
  virtual void prepare() {}
  // Measures and returns the report. Call after prepare(). With kRanks, the command fills in
  // BenchmarkReport::device, and uses only rank 0's report.
  virtual BenchmarkReport measure(const BenchmarkRun& run) = 0;
};

// A benchmark that opens the device once and times operators on it.
class DeviceBenchmark : public Benchmark {
 public:
  BenchmarkReport measure(const BenchmarkRun& run) final;
  virtual BenchmarkReport measure_on(Device& device, const OperatorBenchmarkOptions& options) = 0;
};
OperatorBenchmarkOptions operator_options(const BenchmarkRun& run);

struct BenchmarkEntry {
  std::string_view name;  // "memory": the command is "benchmark memory"
  std::unique_ptr<Benchmark> (*make)();
  BenchmarkSubject subject = BenchmarkSubject::kNothing;
  std::optional<double> seconds = {};       // default of --seconds; nullopt: the command has no --seconds
  std::optional<MeasuredTypes> types = {};  // nullopt: the command has no --dtype
  const char* dtype = "fp32";               // default of --dtype
  const char* output_names = "--output,--output-file";
  const char* appended = "";  // file to which --append writes if --output is not given; empty: none
};

template <class B>
std::unique_ptr<Benchmark> make_benchmark() {
  return std::make_unique<B>();
}

// Returns all benchmarks, sorted by name.
std::span<const BenchmarkEntry* const> benchmarks();
// Throws std::logic_error if no benchmark has that name.
const BenchmarkEntry& benchmark_named(std::string_view name);

}  // namespace primus
