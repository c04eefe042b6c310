#include "cli/benchmark/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "cli/preflight/report_files.h"
#include "safe/preflight/machine.h"

namespace primus::cli {
namespace {

constexpr std::uint64_t kMaxBaselineBytes = 64 << 20;

}  // namespace

void BenchmarkOutput::declare(Arguments& args, std::string_view names, const std::string& appended) {
  appended_ = appended;
  args.flag("--json", json_, "print the report as JSON");
  args.flag("--csv", csv_, "print it as comma-separated values");
  args.flag("--markdown", markdown_, "print it as a Markdown table");
  args.option(names, "FILE", &output_,
              "also write the report to this file; the ending chooses the format: .html (with plots), .json, "
              ".jsonl, .csv, .tsv or .md; '-' prints Markdown");
  args.flag("--append", append_,
            "with --output FILE.csv, .tsv, .jsonl or .md: append to the file" +
                (appended.empty() ? "" : "; without --output, append to ./" + appended));
  Argument& baseline = args.option("--baseline", "save|compare FILE", &baseline_,
                                   "save this report as a baseline, or compare it with a saved one");
  baseline.several = true;
  baseline.reads = [](const std::vector<std::string>& words) {
    const bool compares = words.size() == 2 && words[0] == "compare";
    // If several processes saved baselines, each process compares with its own file.
    const bool is_several = compares && !Env::posix().status(words[1]) && has_own_files(words[1]);
    return compares && !is_several ? std::vector<std::string>{words[1]} : std::vector<std::string>();
  };
}

void BenchmarkOutput::check_words() {
  if (append_ && output_.empty()) output_ = appended_;
  if (output_ == "-") output_.clear(), markdown_ = true;
  if (json_ + csv_ + markdown_ > 1) throw invalid("--json, --csv and --markdown exclude each other");
  const std::string end = Path(output_).extension();
  const auto is_one_of = [&](std::initializer_list<const char*> ends) {
    return std::any_of(ends.begin(), ends.end(), [&](const char* one) { return end == one; });
  };
  if (!output_.empty() && !is_one_of({".html", ".json", ".jsonl", ".csv", ".tsv", ".md"}))
    throw invalid(fmt::format("--output '{}' does not have an ending that chooses a format", output_),
                  "end the name in .html, .json, .jsonl, .csv, .tsv or .md");
  if (append_ && !is_one_of({".jsonl", ".csv", ".tsv", ".md"}))
    throw invalid("--append needs --output FILE.csv, FILE.tsv, FILE.jsonl or FILE.md",
                  "Primus cannot append to other formats");
  if (baseline_.empty()) return;
  if (baseline_.size() != 2 || (baseline_[0] != "save" && baseline_[0] != "compare"))
    throw invalid("--baseline needs two words: save or compare, and a file",
                  "for example --baseline save gemm.json; put other arguments before it");
}

void BenchmarkOutput::check(const SideBySide& place) {
  check_words();
  place_ = place;
  // Checks before the measurement, because an error about a missing folder after an hour would lose all
  // results.
  const bool saves = !baseline_.empty() && baseline_[0] == "save";
  for (const std::string& file : {output_, saves ? baseline_[1] : std::string()})
    if (const Path folder = Path(file).parent_path(); !folder.empty()) make_folders(folder);
  if (baseline_.empty() || baseline_[0] != "compare") return;
  // Compares with the baseline that the process with the same number saved. If no such baseline exists,
  // compares with the baseline of a single process.
  earlier_file_ = own(baseline_[1]);
  if (!Env::posix().status(earlier_file_) && Env::posix().status(baseline_[1])) earlier_file_ = baseline_[1];
  if (!place_.single() && !Env::posix().status(earlier_file_))
    throw invalid(fmt::format("no baseline of {} exists: there is neither '{}' nor '{}'", place_.text(),
                              earlier_file_, baseline_[1]),
                  "'--baseline save' writes the first with the same number of processes, and the second with "
                  "one process");
  earlier_ = read_file(earlier_file_, kMaxBaselineBytes);
}

// Processes that run side by side print their tables to the same stream and compete for the hardware. So each
// report contains the number of its process.
void BenchmarkOutput::name_place(BenchmarkReport& report, Console& console) const {
  if (place_.single()) return;
  const std::string host = preflight::Machine().node_name();
  const bool is_task = place_.what == "task";
  console.note(fmt::format("note: this is {}{}, on {}; each process measures independently{}", place_.text(),
                           is_task ? " of a Slurm step" : "", host,
                           is_task ? "; 'srun --nodes=1 --ntasks=1' starts one process" : ""));
  report.notes.push_back(fmt::format("{}, on {}", place_.text(), host));
}

void BenchmarkOutput::write_output(const BenchmarkReport& report,
                                   const BaselineComparison* comparison) const {
  const std::string end = Path(output_).extension();
  std::string text;
  if (end == ".html") {
    text = to_html(report, comparison, time_for_people(), PRIMUS_VERSION);
  } else if (end == ".json") {
    nlohmann::ordered_json json = to_json(report);
    if (comparison) json["baseline"] = to_json(*comparison);
    text = json_text(json) + "\n";
  } else {
    text = end == ".csv"     ? to_csv(report)
           : end == ".tsv"   ? to_csv(report, '\t')
           : end == ".jsonl" ? to_json_lines(report)
                             : to_markdown(report);
    if (append_ && Env::posix().status(own(output_))) {
      const std::string before = read_file(own(output_), kMaxBaselineBytes);
      // Skips the table's header if the file already has the same header.
      const std::string head = text.substr(0, text.find('\n') + 1);
      if ((end == ".csv" || end == ".tsv") && before.starts_with(head)) text.erase(0, head.size());
      text = before + (end == ".md" ? "\n" : "") + text;
    }
  }
  write_file_atomic(own(output_), text);
}

int BenchmarkOutput::finish(BenchmarkReport report, Console& console) const {
  name_place(report, console);
  std::optional<BaselineComparison> comparison;
  if (!baseline_.empty() && baseline_[0] == "compare")
    comparison = compare_with_baseline(report, earlier_, earlier_file_);
  if (csv_) {
    console.write(to_csv(report));
  } else if (markdown_) {
    console.write(to_markdown(report));
  } else if (json_) {
    nlohmann::ordered_json json = to_json(report);
    if (comparison) json["baseline"] = to_json(*comparison);
    console.write(report.own_json.empty() ? json_text(json) + "\n" : report.own_json);
  } else {
    console.print(report.own_text.empty() ? to_text(report) : report.own_text);
  }
  // If standard output is JSON for a program, the comparison goes to standard error.
  if (comparison && !json_)
    csv_ || markdown_ ? console.note(to_text(*comparison)) : console.print(to_text(*comparison));
  if (!output_.empty()) {
    write_output(report, comparison ? &*comparison : nullptr);
    console.note("report: " + own(output_));
  }
  if (!baseline_.empty() && baseline_[0] == "save") {
    write_file_atomic(own(baseline_[1]), json_text(to_json(report)) + "\n");
    console.note("baseline: " + own(baseline_[1]));
  }
  return comparison && comparison->slower() ? 1 : 0;
}

void BenchmarkProgress::begin(std::string_view what, std::int64_t total) {
  what_ = what;
  line_.reset();
  line_.emplace(console_.err, ProgressOptions{.label = what_, .total = static_cast<std::uint64_t>(total)});
}

void BenchmarkProgress::count(std::int64_t done) {
  if (!line_) begin("measuring", 0);
  line_->update(static_cast<std::uint64_t>(done), steady_seconds(),
                std::to_string(done) + " measurements done");
}

void BenchmarkProgress::show(std::string_view what, std::int64_t done, std::int64_t total) {
  if (what != what_) {
    begin(what, total);
    if (!console_.err.ansi) console_.note(what);
  }
  line_->update(static_cast<std::uint64_t>(done), steady_seconds());
}

}  // namespace primus::cli
