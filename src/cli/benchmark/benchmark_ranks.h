// Declares the options for a benchmark's ranks, starts the ranks and connects them.
#pragma once

#include <functional>
#include <string>

#include "bench/report.h"
#include "cli/benchmark/output.h"
#include "cli/command.h"
#include "cli/options/device.h"
#include "cli/options/rank_options.h"
#include "comm/communicator.h"
#include "comm/rendezvous/environment.h"

namespace primus::cli {

class BenchmarkRanks {
 public:
  // Measures on one rank. Called on each rank; several ranks may be threads of this process.
  using Measure = std::function<BenchmarkReport(comm::Communicator& world, Device& device)>;

  // Declares --nproc, --nnodes and related options, and --transport.
  void declare(Arguments& args);
  // Checks the options without examining the machine. Throws Error.
  void check_words() const;
  std::int64_t nodes() const { return ranks_.nodes(); }
  // Starts the ranks if no launcher has started them. Otherwise connects the ranks and measures on each.
  // Returns the exit code; rank 0 shows its report through `output`.
  int run(const DeviceOptions& device, const BenchmarkOutput& output, const SideBySide& jobs,
          Console& console, const Measure& measure) const;

 private:
  int run_rank(const comm::JobEnvironment& place, const DeviceOptions& device, const BenchmarkOutput& output,
               Console& console, const Measure& measure) const;
  int run_threads(int ranks, const DeviceOptions& device, const BenchmarkOutput& output, Console& console,
                  const Measure& measure) const;

  RankOptions ranks_;
  std::string transport_ = "auto";
};

}  // namespace primus::cli
