// A JSON-lines file keyed by iteration: the authoritative record of a run. metrics.jsonl has exactly one line
// per iteration, evaluations.jsonl one per evaluation, samples.jsonl one per generated text, warnings.jsonl
// one per detector warning. Keys and units: docs/formats/metrics.md.
//
// Each line is passed to the operating system by one write(2) before the trainer continues. All lines
// therefore survive SIGKILL. sync() makes lines survive a power failure, and is called before a checkpoint is
// committed. Opening the file removes an incomplete last line. It also removes the lines after the iteration
// from which the run resumes, because the run will write these lines again. If another program removes the
// file during the run, the file is restored from its open handle. take_trouble() reports such changes by
// other programs.
//
// Disk errors never throw: lines that cannot be written are buffered (up to 1 MiB) and written with the next
// successful write. Not thread-safe.
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
  // `resume_iteration`: the last iteration that the loaded model was trained on; 0 if the run starts from the
  // beginning. If 0, a file of an earlier run is renamed to <stem>.previous.jsonl, or to
  // <stem>.previous-2.jsonl and so on if that file exists. Throws Error(kInvalid) if the path is not a
  // regular file, FileError if the file cannot be read or truncated.
  MetricsFile(Path path, std::int64_t resume_iteration, Env& env = Env::posix());

  // Returns false if the line could not be written now; the line was then buffered or dropped (see
  // dropped()).
  bool write(const IterationRecord& record);
  bool write(const EvaluationRecord& record);
  bool write(const SampleRecord& record);
  bool write(const RunWarning& warning);
  // Syncs all written lines to disk. Returns false on failure.
  bool sync();

  std::uint64_t dropped() const { return dropped_; }
  // Returns what other programs did to the file since the last call, as a phrase that follows the file name
  // in a message; usually "".
  std::string take_trouble() { return std::exchange(trouble_, {}); }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  bool write_line(std::string line);
  bool flush();
  void look_after_file();

  Env& env_;
  AppendFile file_;
  // Open handle of the same file, for reading the file after another program has removed it.
  std::unique_ptr<File> open_file_;
  std::string trouble_;
  bool changed_ = false;  // whether a change by another program has been reported
  std::string pending_;   // complete lines that are not yet written, because writing failed
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

// Returns the iterations between the file's first line and `last` that have no line: "3-5, 9"; "" if none is
// missing. Long lists are truncated. If the file does not exist, all iterations are missing.
std::string missing_iterations(const Path& file, std::int64_t last, Env& env = Env::posix());

// Returns the loss of each data set in the evaluations recorded for this iteration; NaN if a line has no
// number.
std::map<std::string, double> evaluated_losses(const Path& file, std::int64_t iteration,
                                               Env& env = Env::posix());

// Returns whether the file has a line for this iteration.
bool has_iteration(const Path& file, std::int64_t iteration, Env& env = Env::posix());

// Return the recorded evaluations up to iteration `last`, and all recorded warnings; at most the last
// kMaxRecorded of each. Invalid and incomplete lines are skipped. The result is empty if the file does not
// exist.
constexpr std::size_t kMaxRecorded = 1000;
std::vector<EvaluationRecord> recorded_evaluations(const Path& file, std::int64_t last,
                                                   Env& env = Env::posix());
std::vector<RunWarning> recorded_warnings(const Path& file, Env& env = Env::posix());

// Parses a line of warnings.jsonl. Empty if the line is not a warning.
std::optional<RunWarning> warning_from_json(std::string_view line);

// Renames the file of an earlier run: metrics.jsonl becomes metrics.previous.jsonl, or, if that file exists,
// metrics.previous-N.jsonl with the first free number N. Throws FileError.
void keep_previous(const Path& path, Env& env = Env::posix());

// Returns the iteration that a line belongs to; -1 if the line is invalid (incomplete or edited).
std::int64_t iteration_of_line(std::string_view line);

}  // namespace primus
