// A JSON-lines file keyed by iteration: the record of a run, and the truth that everything else is drawn
// from. metrics.jsonl has exactly one line for each iteration; evaluations.jsonl one for each evaluation.
// Keys and units: docs/formats/metrics.md.
//
// Each line reaches the kernel by one write(2) before the trainer goes on, so SIGKILL loses none; sync()
// makes them outlive a power failure and is called before a checkpoint is committed. Opening repairs the
// file: a torn last line goes, and so do the lines after the iteration that the run resumes from, which are
// about to be written again.
//
// Writing never throws for the disk's sake: lines that do not fit wait in memory (1 MiB of them) and go out
// with the next that does. One thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/append_file.h"
#include "lm/monitor/iteration.h"

namespace primus {

class MetricsFile {
 public:
  // resume_iteration: the last iteration already in the model's state; 0 when the run starts from the
  // beginning. A file that an earlier run left is then kept beside as <stem>.previous.jsonl. Throws
  // FileError when the file cannot be read or cut.
  MetricsFile(Path path, std::int64_t resume_iteration, Env& env = Env::posix());

  // False when the line could not be written now; it waits, or was dropped (dropped() counts).
  bool write(const IterationRecord& record);
  bool write(const EvaluationRecord& record);
  // Everything up to here on the disk. False when not.
  bool sync();

  std::uint64_t dropped() const { return dropped_; }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  bool write_line(std::string line);
  bool flush();

  AppendFile file_;
  std::string pending_;  // whole lines
  std::uint64_t dropped_ = 0;
};

// The lines' text, without the newline. Numbers in the shortest form that reads back to the same bits; what
// JSON has no number for is "NaN", "Infinity" or "-Infinity".
std::string to_json(const IterationRecord& record);
std::string to_json(const EvaluationRecord& record);

// The iteration a line belongs to; -1 when it is not one of ours (torn, or edited).
std::int64_t iteration_of_line(std::string_view line);

}  // namespace primus
