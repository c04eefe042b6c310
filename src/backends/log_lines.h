// Reads the log of a backend into the records that native runs write.
//
//   LogReader reader("megatron", {.train_iters = 100, .global_batch_size = 8, .tokens_per_sample = 1024,
//   .ranks = 1}); if (const auto record = reader.iteration(line)) file.write(*record);
//
// Lines are another program's output: what is no number is passed over, and nothing is ever thrown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "lm/events/iteration.h"

namespace primus::backends {

// What lines do not say and the experiment does.
struct LoggedRun {
  std::int64_t train_iters = 0, global_batch_size = 0, tokens_per_sample = 0;
  int ranks = 1;
  bool second_line_is_mean = false;  // where the first two lines are of two steps in turn
};

class LogReader {
 public:
  // Throws Error(kUnsupported) for a framework that is no backend.
  LogReader(std::string_view framework, LoggedRun run) : backend_(backend_of(framework)), run_(run) {}

  // The step that a line reports, or nothing. Losses and times are means over the steps since the line
  // before.
  std::optional<IterationRecord> iteration(std::string_view line);
  // The evaluation that a line reports; its iteration is the last one that iteration() has seen where it says
  // none.
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

// Without the escape sequences of terminals.
std::string without_colors(std::string_view line);

}  // namespace primus::backends
