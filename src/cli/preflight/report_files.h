// Functions that all preflight commands share, for showing and writing a report and for the exit code.
#pragma once

#include <string>

#include "cli/command.h"
#include "safe/preflight/report.h"

namespace primus::cli {

// Returns the local time, for display and for file names.
std::string time_for_people();
std::string time_for_names();  // "20261122-113015"

class ReportOptions {
 public:
  void declare(Arguments& args);
  // Prints the report as text, or with --json as JSON.
  void show(const preflight::Report& report, Console& console) const;
  // Returns 0 if ready, 1 for warnings with --strict, and `failed` if a check failed.
  int exit_code(const preflight::Report& report, int failed) const;

 private:
  bool json_ = false, all_ = false, strict_ = false;
};

// Exits the process without joining threads that are stuck in the system. Returns if there are no such
// threads.
void leave_stuck_threads(const preflight::Report& report, int exit_code);

// Writes DIR/NAME.md, DIR/NAME.json and, by default, DIR/NAME.html. Returns a description of the written
// files.
std::string write_report(const preflight::Report& report, const Path& folder, const std::string& name,
                         bool html, bool plots);

}  // namespace primus::cli
