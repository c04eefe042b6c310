// A JSON-lines file keyed by iteration: the authoritative record of a run. metrics.jsonl has exactly one line
// per iteration, evaluations.jsonl one per evaluation, samples.jsonl one per generated text, warnings.jsonl
// one per detector warning. Keys and units: docs/formats/metrics.md.
//
// Each line is passed to the kernel by one write(2) before the trainer continues, so SIGKILL loses no line.
// sync() makes lines survive a power failure, and is called before a checkpoint is committed. Opening the
// file repairs it: a torn last line is removed, and so are the lines after the iteration from which the run
// resumes. The run writes these lines again. If another program removes the file during the run, the file is
// restored from its open handle. take_trouble() reports this change and any other.
//
// Disk errors never throw: lines that cannot be written are buffered (up to 1 MiB) and written with the next
// successful write. One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/append_file.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/iteration.h"

namespace primus {

class MetricsFile {
 public:
  // `resume_iteration`: the last iteration in the model's state; 0 if the run starts from the beginning. In
  // that case a file of an earlier run is renamed to <stem>.previous.jsonl, or to <stem>.previous-2.jsonl and
  // so on if that file exists. Throws Error(kInvalid) if the path is not a regular file, FileError if the
  // file cannot be read or truncated.
  MetricsFile(Path path, std::int64_t resume_iteration, Env& env = Env::posix());

  // Returns false if the line could not be written now; the line was then buffered or dropped (see
  // dropped()).
  bool write(const IterationRecord& record);
  bool write(const EvaluationRecord& record);
  bool write(const SampleRecord& record);
  bool write(const RunWarning& warning);
  // Makes everything written so far durable. Returns false on failure.
  bool sync();

  std::uint64_t dropped() const { return dropped_; }
  // Describes what other programs did to the file since the last call. The text is a predicate that follows
  // the file name in a message; usually "".
  std::string take_trouble() { return std::exchange(trouble_, {}); }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  bool write_line(std::string line);
  bool flush();
  void look_after_file();

  Env& env_;
  AppendFile file_;
  // Open handle of the same file, to read the file again after its name was removed.
  std::unique_ptr<File> open_file_;
  std::string trouble_;
  bool changed_ = false;  // whether a change by another program was reported
  std::string pending_;   // complete lines that could not be written yet
  std::uint64_t dropped_ = 0;
};

// Return the text of a line, without the newline. Numbers are written in the shortest form that reads back
// exactly; NaN and infinities are "NaN", "Infinity" or "-Infinity", because JSON numbers cannot express them.
std::string to_json(const IterationRecord& record);
// Returns the values of a step that differ between ranks: time, wait for data, memory.
std::string rank_json(const IterationRecord& record);
std::string to_json(const EvaluationRecord& record);
std::string to_json(const SampleRecord& record);
std::string to_json(const RunWarning& warning);

// Returns the iterations up to `last` that are missing from the file, counted from its first line: "3-5, 9";
// "" if none. Long lists are cut. If the file does not exist, all iterations are missing.
std::string missing_iterations(const Path& file, std::int64_t last, Env& env = Env::posix());

// Returns the losses by data set of this iteration's recorded evaluations; NaN if the line has no number.
std::map<std::string, double> evaluated_losses(const Path& file, std::int64_t iteration,
                                               Env& env = Env::posix());

// Whether the file has a line for this iteration.
bool has_iteration(const Path& file, std::int64_t iteration, Env& env = Env::posix());

// Return the recorded evaluations up to iteration `last`, and all recorded warnings: at most the last
// kMaxRecorded. Other and incomplete lines are skipped. Empty if the file does not exist.
constexpr std::size_t kMaxRecorded = 1000;
std::vector<EvaluationRecord> recorded_evaluations(const Path& file, std::int64_t last,
                                                   Env& env = Env::posix());
std::vector<RunWarning> recorded_warnings(const Path& file, Env& env = Env::posix());

// Parses a line of warnings.jsonl. Empty if the line is not a warning.
std::optional<RunWarning> warning_from_json(std::string_view line);

// Renames an earlier run's file: metrics.jsonl becomes metrics.previous.jsonl, with the first free number if
// that exists. Throws FileError.
void keep_previous(const Path& path, Env& env = Env::posix());

// Returns the iteration that a line belongs to; -1 if the line is invalid (torn or edited).
std::int64_t iteration_of_line(std::string_view line);

}  // namespace primus
