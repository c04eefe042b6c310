// Converts the log of a backend to the records that native runs write.
//
//   LogReader reader("megatron", {.train_iters = 100, .global_batch_size = 8, .tokens_per_sample = 1024,
//                                 .ranks = 1});
//   if (const auto record = reader.iteration(line)) file.write(*record);
//
// Lines are another program's output: unexpected lines are ignored, and no function throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "lm/events/iteration.h"

namespace primus::backends {

// Properties of the run that log lines do not contain.
struct LoggedRun {
  std::int64_t train_iters = 0, global_batch_size = 0, tokens_per_sample = 0;
  int ranks = 1;
  bool second_line_is_mean = false;  // the values in the second line are means over the first two steps
};

class LogReader {
 public:
  // Throws Error(kUnsupported) if the framework is not a backend.
  LogReader(std::string_view framework, LoggedRun run) : backend_(backend_of(framework)), run_(run) {}

  // Returns the step that a line reports, or nullopt. Losses and times are means over the steps since the
  // previous line.
  std::optional<IterationRecord> iteration(std::string_view line);
  // Returns the evaluation that a line reports, or nullopt. If the line has no iteration, the evaluation gets
  // the last iteration that iteration() returned.
  std::optional<EvaluationRecord> evaluation(std::string_view line) const;

 private:
  void separate(IterationRecord& record);
  void complete(IterationRecord& record);

  const BackendEntry& backend_;
  LoggedRun run_;
  std::optional<IterationRecord> first_;
  std::int64_t last_ = 0;
  double elapsed_ = 0;
};

// Removes terminal escape sequences.
std::string without_colors(std::string_view line);

}  // namespace primus::backends
