// The commands `primus benchmark NAME`: each consists of a CommandEntry that names its BenchmarkEntry
// (bench/benchmark_entry.h). This file handles the common options of benchmarks, progress, reports and
// baselines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "bench/benchmark_entry.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"

namespace primus::cli {

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

// Paragraphs that the help of all these commands contains.
#define PRIMUS_BENCHMARK_DETAILS                                                                       \
  "Operands are random. Consecutive calls rotate through sets of operands: as many as exceed\n"        \
  "192 MiB together (more than most caches), but at most 16. Rates are compared with a large square\n" \
  "product and a copy, measured in the same run. Bytes count every operand and result once. The\n"     \
  "report shows the median, the fastest and the 95th percentile of the samples.\n\n" PRIMUS_BASELINE_HELP
#define PRIMUS_FP8_DETAILS                                                                               \
  "In fp8 each product is measured twice: with bf16 operands, which are quantised with one scale for\n"  \
  "each tensor, and with operands that were quantised before. The large product is also in fp8. Sizes\n" \
  "are multiples of 16, and experts are left out, as in fp16. In fp4 (MXFP4) each product is\n"          \
  "measured with bf16 operands, and the rounding separately. Rounded values are multiplied in bf16."

}  // namespace primus::cli
