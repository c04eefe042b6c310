#include "cli/preflight/report_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text/json_text.h"

namespace primus::cli {
namespace {

std::string local_time(const char* format) {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[64];
  std::strftime(text, sizeof(text), format, &local);
  return text;
}

}  // namespace

std::string time_for_people() { return local_time("%Y-%m-%d %H:%M"); }
std::string time_for_names() { return local_time("%Y%m%d-%H%M%S"); }

void ReportOptions::declare(Arguments& args) {
  args.flag("--all-checks,--verbose", all_, "also show the checks that passed or were skipped");
  args.flag("--strict", strict_, "end with exit code 1 if there are warnings and no failures");
  args.flag("--json", json_, "print the report as JSON");
}

void ReportOptions::show(const preflight::Report& report, Console& console) const {
  json_ ? console.write(json_text(to_json(report)) + "\n")
        : console.print(to_text(report, console.out, all_));
}

int ReportOptions::exit_code(const preflight::Report& report, int failed) const {
  if (report.verdict() == preflight::Verdict::kFail) return failed;
  return strict_ && report.verdict() == preflight::Verdict::kWarn ? 1 : 0;
}

void leave_stuck_threads(const preflight::Report& report, int exit_code) {
  if (report.has_stuck_threads()) ::_exit(exit_code);
}

std::string write_report(const preflight::Report& report, const Path& folder, const std::string& name,
                         bool html, bool plots) {
  if (!is_plain_name(name)) {
    throw invalid(fmt::format("--report-file-name '{}' is not a file name", name),
                  "choose a name without '/'; --dump-path sets the folder");
  }
  make_folders(folder);
  const std::string base = (folder / name).string();
  write_file_atomic(base + ".md", to_markdown(report));
  write_file_atomic(base + ".json", json_text(to_json(report)) + "\n");
  if (html) write_file_atomic(base + ".html", to_html(report, plots));
  return fmt::format("{}.md, .json{}", base, html ? ", .html" : "");
}

}  // namespace primus::cli
