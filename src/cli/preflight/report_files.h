// What the commands of preflight share: how a report is shown and written, and the exit code.
#pragma once

#include <string>

#include "cli/command.h"
#include "safe/preflight/report.h"

namespace primus::cli {

// Local time, for people and for names of files.
std::string time_for_people();
std::string time_for_names();  // "20261122-113015"

class ReportOptions {
 public:
  void declare(Arguments& args);
  // Prints the report: as text, or with --json as JSON.
  void show(const preflight::Report& report, Console& console) const;
  // 0: ready. 1: warnings, with --strict. `failed`: something failed.
  int exit_code(const preflight::Report& report, int failed) const;

 private:
  bool json_ = false, all_ = false, strict_ = false;
};

// Ends the process without waiting for threads that the system holds; returns where there are none.
void leave_stuck_threads(const preflight::Report& report, int exit_code);

// Writes DIR/NAME.md, .json and, unless switched off, .html; returns what was written, for people.
std::string write_report(const preflight::Report& report, const Path& folder, const std::string& name,
                         bool html, bool plots);

}  // namespace primus::cli
