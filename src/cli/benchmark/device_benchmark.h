// Base of the `primus benchmark` commands that time single operations on one device. Most of these commands
// consist only of a BenchmarkEntry (bench/benchmark_entry.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bench/benchmark_entry.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "device/plugin.h"

namespace primus::cli {

class DeviceBenchmark : public Command {
 public:
  void declare(Arguments& args) final;
  void check_job(int nodes, int ranks_per_node, const std::map<std::string, std::string>& variables) final;
  int run(Console& console) final;

 private:
  // Throws errors that do not depend on the machine.
  void check_words();

  virtual void declare_case(Arguments& args) = 0;
  virtual void declare_output(Arguments& args, BenchmarkOutput& output) { output.declare(args); }
  virtual void check_case() {}
  virtual std::string file_of_case() const { return {}; }  // read by check_case(); empty: none
  // Types that --dtype accepts; nullopt: the command has no --dtype.
  virtual std::optional<MeasuredTypes> types() const = 0;
  virtual BenchmarkReport report(const DeviceSpec& spec, const OperatorBenchmarkOptions& options);
  virtual BenchmarkReport measure(Device& device, const OperatorBenchmarkOptions& options) = 0;

  DeviceOptions device_;
  double seconds_ = 0.5;
  BenchmarkOutput output_;
};

// A string literal that can be a template argument.
template <std::size_t size>
struct BenchmarkName {
  char text[size];
  constexpr BenchmarkName(const char (&literal)[size]) { std::copy_n(literal, size, text); }
};

std::unique_ptr<Command> make_entry_command(const BenchmarkEntry& entry);

// For a CommandEntry: creates the command of the benchmark with that name.
template <BenchmarkName name>
std::unique_ptr<Command> make_benchmark_command() {
  return make_entry_command(benchmark_named(name.text));
}

// Maps a model name of AMD Primus ("Llama3.1_8B", "mistral_8x7B", "Deepseek_V2_Lite") to the preset of this
// program. Other names are returned unchanged.
std::string preset_of(const std::string& name);

// Shared paragraphs of these commands' help.
#define PRIMUS_BENCHMARK_DETAILS                                                                         \
  "Operands are random. Consecutive calls use different memory, which together exceeds the caches.\n"    \
  "Rates are compared with a large square product and a copy, measured in the same run. Bytes\n"         \
  "count every operand and result once. The median of the samples is shown, the fastest, and the 95th\n" \
  "percentile.\n\n" PRIMUS_BASELINE_HELP
#define PRIMUS_FP8_DETAILS                                                                               \
  "In fp8 each product is measured twice: with bf16 operands, which are quantised with one scale for\n"  \
  "each tensor, and with operands that were quantised before. The large product is also in fp8. Sizes\n" \
  "are multiples of 16, and experts are left out, as in fp16. In fp4 (MXFP4) each product is\n"          \
  "measured with bf16 operands, and the rounding also alone; rounded values are multiplied in bf16."

}  // namespace primus::cli
