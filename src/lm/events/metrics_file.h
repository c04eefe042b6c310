// A JSON-lines file keyed by iteration: the record of a run, and the truth that everything else is drawn
// from. metrics.jsonl has exactly one line for each iteration; evaluations.jsonl one for each evaluation,
// samples.jsonl one for each text that the model wrote meanwhile, warnings.jsonl one for each thing that a
// detector found.
// Keys and units: docs/formats/metrics.md.
//
// Each line reaches the kernel by one write(2) before the trainer goes on, so SIGKILL loses none; sync()
// makes them outlive a power failure and is called before a checkpoint is committed. Opening repairs the
// file: a torn last line goes, and so do the lines after the iteration that the run resumes from, which are
// about to be written again. A file that somebody removes during the run is written again from what is still
// open; whatever else happened to it is told by take_trouble().
//
// Writing never throws for the disk's sake: lines that do not fit wait in memory (1 MiB of them) and go out
// with the next that does. One thread at a time.
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
  // resume_iteration: the last iteration already in the model's state; 0 when the run starts from the
  // beginning. A file that an earlier run left is then kept beside as <stem>.previous.jsonl, or
  // <stem>.previous-2.jsonl and so on where that is taken. Throws Error(kInvalid) when something else than a
  // file has the name, FileError when the file cannot be read or cut.
  MetricsFile(Path path, std::int64_t resume_iteration, Env& env = Env::posix());

  // False when the line could not be written now; it waits, or was dropped (dropped() counts).
  bool write(const IterationRecord& record);
  bool write(const EvaluationRecord& record);
  bool write(const SampleRecord& record);
  bool write(const RunWarning& warning);
  // Everything up to here on the disk. False when not.
  bool sync();

  std::uint64_t dropped() const { return dropped_; }
  // What others did to the file since the last call, as the rest of a sentence that begins with its name;
  // mostly empty.
  std::string take_trouble() { return std::exchange(trouble_, {}); }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  bool write_line(std::string line);
  bool flush();
  void look_after_file();

  Env& env_;
  AppendFile file_;
  std::unique_ptr<File> open_file_;  // the same file, to read it once more when its name is gone
  std::string trouble_;
  bool changed_ = false;  // by somebody else, which was told
  std::string pending_;   // whole lines
  std::uint64_t dropped_ = 0;
};

// The lines' text, without the newline. Numbers in the shortest form that reads back to the same bits; what
// JSON has no number for is "NaN", "Infinity" or "-Infinity".
std::string to_json(const IterationRecord& record);
// The keys of a step that are a rank's own: its time, wait for data, and memory.
std::string rank_json(const IterationRecord& record);
std::string to_json(const EvaluationRecord& record);
std::string to_json(const SampleRecord& record);
std::string to_json(const RunWarning& warning);

// The iterations up to `last` of which the file, beginning with its first line, has none: "3-5, 9", or empty.
// More than a few are cut short. A file that is not there lacks them all.
std::string missing_iterations(const Path& file, std::int64_t last, Env& env = Env::posix());

// Losses by data set of the evaluations that a file has lines of for this iteration; NaN where the line has
// no number.
std::map<std::string, double> evaluated_losses(const Path& file, std::int64_t iteration,
                                               Env& env = Env::posix());

// Whether the file has a line for this iteration.
bool has_iteration(const Path& file, std::int64_t iteration, Env& env = Env::posix());

// The evaluations up to this iteration, and all warnings, that a file has whole lines of; other lines are
// passed over. At most the last kMostRecorded of them. A file that is not there has none.
constexpr std::size_t kMostRecorded = 1000;
std::vector<EvaluationRecord> recorded_evaluations(const Path& file, std::int64_t last,
                                                   Env& env = Env::posix());
std::vector<RunWarning> recorded_warnings(const Path& file, Env& env = Env::posix());

// A line of warnings.jsonl; empty where it is none.
std::optional<RunWarning> warning_from_json(std::string_view line);

// Gives an earlier run's file a free name beside: metrics.jsonl becomes metrics.previous.jsonl, or the first
// number that is free. Throws FileError.
void keep_previous(const Path& path, Env& env = Env::posix());

// The iteration a line belongs to; -1 when it is not one of ours (torn, or edited).
std::int64_t iteration_of_line(std::string_view line);

}  // namespace primus
