// The log of a training run in MLPerf's format (github.com/mlcommons/logging): lines ":::MLLOG {json}", each
// an event with a key, its time in milliseconds since 1970, a value and metadata.
//
//   cache_clear, init_start .. init_stop        between them what the run is: MlperfOptions::entries
//   run_start .. run_stop                       its metadata has `status`: success or aborted
//   block_start .. block_stop                   training between two evaluations
//   eval_start, eval_accuracy .. eval_stop      an evaluation on validation data; the value is its loss
//   tracked_stats                               train_loss of a step, throughput (samples/s) of a block
//
// samples_count in metadata counts the sequences trained on since the run's first step, also by earlier
// processes. There are no epochs: the rules take blocks in their place. cache_clear is false, because nothing
// here clears caches; a script that does writes a line of its own.
//
// run_stop says success when an evaluation has reached the target, and stands right behind that evaluation. A
// run that ends otherwise, by its last step, on request or by an error, is aborted; a process that is killed
// writes no run_stop.
//
// A run that starts anew keeps an older file beside, as MetricsFile does. One that goes on appends: an empty
// line, and then everything from init_start again, of this process. Nothing is removed, so the steps behind
// the checkpoint that it goes on from are there twice. MLPerf's rules want one run_start: such a log shows
// what happened, and is none to submit.
//
// Lines reach the kernel by one write(2) before training goes on. While the disk takes nothing, up to 1 MiB
// of lines wait in memory. Of the methods only begin(), and begin_evaluation() where it stands for it, throw.
// One thread at a time.
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
  std::int64_t init_ms = 0;            // when the process began to prepare; since 1970
  MlperfEntries entries = {};          // point-in-time events between init_start and init_stop, in this order
  std::int64_t global_batch_size = 1;  // sequences in a step
  std::int64_t train_iters = 0;        // the last step of the run
  std::int64_t loss_interval = 1;      // steps between losses of training; 0: none
  bool throughput = true;              // at the end of each block
};

// Milliseconds since 1970.
std::int64_t unix_milliseconds();

class MlperfLog {
 public:
  // Touches no file.
  explicit MlperfLog(MlperfOptions options, Env& env = Env::posix());
  // Ends a run that was not ended: aborted.
  ~MlperfLog();
  MlperfLog(const MlperfLog&) = delete;
  MlperfLog& operator=(const MlperfLog&) = delete;

  // The run goes on behind `iteration`, 0 at its beginning: what it is, and that it starts. Throws
  // Error(kInvalid) when something else than a file has the name, Error(kIo) when the file cannot be written.
  void begin(std::int64_t iteration);

  // These are false when a line could not be written now; it waits, or was dropped (dropped() counts).
  // Of validation data. A process that has nothing to do but to evaluate begins with it.
  bool begin_evaluation(std::int64_t iteration);
  bool iteration(const IterationRecord& record);
  // reached: the target, which ends the run.
  bool evaluation(const EvaluationRecord& record, bool reached);
  // The run ends. Nothing happens where it never began, or has reached its target.
  bool end();

  std::uint64_t dropped() const { return dropped_; }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  enum class Event : std::uint8_t { kStart, kEnd, kPoint };
  using Metadata = std::vector<std::pair<std::string_view, MlperfValue>>;
  // Adds a line. `value`: as JSON. The line's metadata names the place in this source where it comes from.
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
  std::string pending_;  // whole lines
  std::uint64_t dropped_ = 0;
  std::int64_t iteration_ = 0;  // steps done
  std::int64_t block_iteration_ = 0, block_ms_ = 0;
  bool running_ = false, in_block_ = false, in_evaluation_ = false;
};

}  // namespace primus
