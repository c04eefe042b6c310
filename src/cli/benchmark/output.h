// What the commands of `primus benchmark` share: how a report is shown, written and compared with an earlier
// one, and lists of sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/terminal/terminal.h"
#include "bench/report.h"
#include "cli/command.h"
#include "cli/options/side_by_side.h"

namespace primus::cli {

class BenchmarkOutput {
 public:
  // `names`: of the option --output, where a suite of Primus's has another one. `appended`: the report that
  // --append continues where nobody names one.
  void declare(Arguments& args, std::string_view names = "--output,--output-file",
               const std::string& appended = {});
  // What is wrong with the options, before anything is measured. Throws Error(kInvalid). Where this process,
  // or its job, was started side by side with others, its files have names of their own from then on.
  void check(const SideBySide& place = side_by_side(launch::Surroundings::here()));
  // Of that what is wrong on every machine: no file is looked at.
  void check_words();
  bool json() const { return json_; }
  const std::string& file() const { return output_; }  // of --output, as it was given; empty: none
  // The name under which this process writes another file that the user named. After check().
  std::string own(const std::string& file) const { return own_file(file, place_); }
  // Shows the report as asked for, writes --output, saves or compares the baseline. `shown`, where given, is
  // printed in place of the report's own text or JSON. The exit code: 0, or 1 where a case is slower than in
  // the baseline.
  int finish(BenchmarkReport report, Console& console, const std::optional<std::string>& shown = {}) const;

 private:
  void name_place(BenchmarkReport& report, Console& console) const;
  void write_output(const BenchmarkReport& report, const BaselineComparison* comparison) const;

  bool json_ = false, csv_ = false, markdown_ = false, append_ = false;
  std::string output_, appended_;
  std::vector<std::string> baseline_;
  SideBySide place_;
  std::string earlier_, earlier_file_;  // the baseline's text, and where it is from
};

// Runs measure(progress), which calls progress(N) when N measurements are done, and shows "measuring  N
// measurements done" meanwhile: on a terminal the line is gone at the end, elsewhere there is one every ten
// seconds.
template <class Measure>
BenchmarkReport measured(const Console& console, Measure&& measure) {
  ProgressLine line(console.err, {.label = "measuring"});
  return measure([&line](std::int64_t done) {
    line.update(static_cast<std::uint64_t>(done), steady_seconds(),
                std::to_string(done) + " measurements done");
  });
}

// Shows what a benchmark does now, and how much of it is done: one line in place on a terminal; elsewhere a
// note of each phase, and a line every ten seconds. Belongs to one thread.
class PhaseProgress {
 public:
  explicit PhaseProgress(const Console& console) : console_(console) {}
  // `total`: 0 where it is not known. Both count any unit of work.
  void show(std::string_view what, std::int64_t done, std::int64_t total);

 private:
  const Console& console_;
  std::string what_;
  std::optional<ProgressLine> line_;
};

// A paragraph of these commands' help.
#define PRIMUS_BASELINE_HELP                                                                                 \
  "--baseline save FILE keeps the report, --baseline compare FILE holds this one against it: a case is "     \
  "slower where its median grew by more than both runs' noise, and by more than 5 %; then the exit code is " \
  "1. Noise is how far the medians of five consecutive parts of the samples lie apart ('repeats').\n\n"      \
  "Started several times side by side (srun, torchrun, mpirun), each process that measures by itself "       \
  "writes "                                                                                                  \
  "files of its own, and compares with them: of two, FILE.json is FILE.0-of-2.json and FILE.1-of-2.json."

}  // namespace primus::cli
