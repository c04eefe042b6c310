// The log of a training run in MLPerf's format (github.com/mlcommons/logging): lines ":::MLLOG {json}", where
// each line is an event with a key, a time in milliseconds since 1970, a value and metadata.
//
//   cache_clear, init_start .. init_stop        the run's settings, MlperfOptions::entries, before init_stop
//   run_start .. run_stop                       metadata of run_stop has `status`: success or aborted
//   block_start .. block_stop                   training between two evaluations
//   eval_start, eval_accuracy .. eval_stop      an evaluation on validation data; the value is its loss
//   tracked_stats                               train_loss of a step, throughput (samples/s) of a block
//
// samples_count in metadata is the number of sequences trained on since the run's first step, including steps
// of earlier processes. Blocks are used instead of epochs, as MLPerf's rules allow. cache_clear is false,
// because this program does not clear caches; a script that clears caches must write its own line.
//
// run_stop reports success if an evaluation has reached the target, and follows that evaluation immediately.
// A run that ends in any other way (last step, request, error) is aborted; a process that is killed writes no
// run_stop.
//
// A run that starts from scratch renames an older file, as MetricsFile does. A run that resumes appends an
// empty line and then all events from init_start on for this process. No line is removed. The steps after the
// loaded checkpoint therefore appear twice. The log of a resumed run cannot be submitted to MLPerf, because
// MLPerf's rules require exactly one run_start.
//
// Lines are passed to the operating system by one write(2) before training continues. While writes fail, up
// to 1 MiB of lines are buffered. begin() throws errors, and so does begin_evaluation() if it begins the run;
// the other functions do not throw. Not thread-safe.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/files/append_file.h"
#include "lm/events/iteration.h"

namespace primus {

using MlperfValue = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string>;
using MlperfEntries = std::vector<std::pair<std::string, MlperfValue>>;

struct MlperfOptions {
  Path file = {};
  std::int64_t init_ms = 0;            // time at which preparation started, in milliseconds since 1970
  MlperfEntries entries = {};          // events to write between init_start and init_stop, in this order
  std::int64_t global_batch_size = 1;  // number of sequences per step
  std::int64_t train_iters = 0;        // last step of the run
  std::int64_t loss_interval = 1;      // number of steps between logged training losses; 0: losses are not
                                       // logged
  bool throughput = true;              // whether the throughput is logged at the end of each block
};

// Returns the milliseconds since 1970.
std::int64_t unix_milliseconds();

class MlperfLog {
 public:
  // Does not open or create the file.
  explicit MlperfLog(MlperfOptions options, Env& env = Env::posix());
  // Records the run as aborted if it has not ended.
  ~MlperfLog();
  MlperfLog(const MlperfLog&) = delete;
  MlperfLog& operator=(const MlperfLog&) = delete;

  // Writes the run's settings and its start. The run continues after `iteration`; 0: from the beginning.
  // Throws Error(kInvalid) if the path is not a regular file, Error(kIo) if the file cannot be written.
  void begin(std::int64_t iteration);

  // These functions return false if a line could not be written now; the line was then buffered or dropped
  // (see dropped()). begin_evaluation() is called before an evaluation on validation data. In a process that
  // has no steps left, it also begins the run.
  bool begin_evaluation(std::int64_t iteration);
  bool iteration(const IterationRecord& record);
  // `reached`: whether the loss has reached the target, which ends the run.
  bool evaluation(const EvaluationRecord& record, bool reached);
  // Ends the run. Does nothing if the run never began or has already ended by reaching its target.
  bool end();

  std::uint64_t dropped() const { return dropped_; }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  enum class Event : std::uint8_t { kStart, kEnd, kPoint };
  using Metadata = std::vector<std::pair<std::string_view, MlperfValue>>;
  // Appends a line. `value` is JSON. The metadata of the line contains the source line of the call.
  void add(Event event, std::string_view key, const std::string& value, const Metadata& metadata = {},
           std::int64_t time_ms = unix_milliseconds(),
           std::source_location place = std::source_location::current());
  bool flush();
  void begin_block();
  void end_block();
  Metadata samples() const;

  const MlperfOptions options_;
  Env& env_;
  AppendFile file_;
  std::string pending_;  // complete lines that are not yet written, because writing failed
  std::uint64_t dropped_ = 0;
  std::int64_t iteration_ = 0;  // number of completed steps
  std::int64_t block_iteration_ = 0, block_ms_ = 0;
  bool running_ = false, in_block_ = false, in_evaluation_ = false;
};

}  // namespace primus
