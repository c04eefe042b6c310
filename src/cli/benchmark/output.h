// Functions that all commands of `primus benchmark` share, for showing, writing and comparing reports, and
// for parsing lists of sizes.
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
  // `names`: names of the --output option, including AMD Primus's name if different. `appended`: default
  // report for --append.
  void declare(Arguments& args, std::string_view names = "--output,--output-file",
               const std::string& appended = {});
  // Checks the options before anything is measured. Throws Error(kInvalid). If other processes or jobs run
  // side by side with this process, its files get unique names from now on.
  void check(const SideBySide& place = side_by_side(launch::Surroundings::here()));
  // Performs the checks of check() that do not depend on the machine. Reads no files.
  void check_words();
  const std::string& file() const { return output_; }  // value of --output as given; empty: none
  // Returns the file name that this process uses for another file given by the user. Call after check().
  std::string own(const std::string& file) const { return own_file(file, place_); }
  // Shows the report as requested, writes --output, and saves or compares the baseline. Returns
  // the exit code: 1 if a case is slower than in the baseline, else 0.
  int finish(BenchmarkReport report, Console& console) const;

 private:
  void name_place(BenchmarkReport& report, Console& console) const;
  void write_output(const BenchmarkReport& report, const BaselineComparison* comparison) const;

  bool json_ = false, csv_ = false, markdown_ = false, append_ = false;
  std::string output_, appended_;
  std::vector<std::string> baseline_;
  SideBySide place_;
  std::string earlier_, earlier_file_;  // text of the baseline, and the name of its file
};

// Shows the progress of a benchmark. Use from one thread only.
class BenchmarkProgress {
 public:
  explicit BenchmarkProgress(const Console& console) : console_(console) {}
  // Shows "measuring  N measurements done": on a terminal in a line updated in place, otherwise in one line
  // every ten seconds.
  void count(std::int64_t done);
  // Shows the current phase and its progress, on a terminal in a line updated in place, otherwise in one line
  // every ten seconds. Without a terminal, also prints a note for each phase. `total`: 0 if unknown. `done`
  // and `total` may count any unit of work.
  void show(std::string_view what, std::int64_t done, std::int64_t total);

 private:
  void begin(std::string_view what, std::int64_t total);

  const Console& console_;
  std::string what_;
  std::optional<ProgressLine> line_;
};

// A paragraph that the help of all these commands contains.
#define PRIMUS_BASELINE_HELP                                                                                \
  "--baseline save FILE stores the report; --baseline compare FILE compares the report with a stored "      \
  "report. A case "                                                                                         \
  "counts as slower if its median grew by more than 5 % and by more than the noise of both runs; the "      \
  "exit code is then 1. "                                                                                   \
  "Noise is the spread of the medians of five consecutive parts of the samples ('repeats').\n\n"            \
  "If several processes run side by side (srun, torchrun, mpirun) and measure separately, each one writes " \
  "its own files and compares with them: FILE.json becomes FILE.0-of-2.json and FILE.1-of-2.json for two "  \
  "processes."

}  // namespace primus::cli
