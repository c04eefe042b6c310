#include "cli/benchmark/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json_text.h"
#include "cli/preflight/report_files.h"
#include "launch/node.h"
#include "safe/preflight/machine.h"

namespace primus::cli {
namespace {

constexpr std::uint64_t kMostBaselineBytes = 64 << 20;

// Tasks that Slurm starts side by side mix their tables, and each uses what the others measure.
void name_task(Console& console) {
  const auto task = launch::task_of_step(launch::Surroundings::here());
  if (!task) return;
  console.note(
      fmt::format("note: this is task {} of {} of a step of Slurm's, on {}, and each measures by itself; "
                  "'srun --nodes=1 --ntasks=1' starts one",
                  task->task, task->tasks, preflight::Machine().host_name()));
}

}  // namespace

void BenchmarkOutput::declare(Arguments& args, std::string_view names, const std::string& appended) {
  appended_ = appended;
  args.flag("--json", json_, "print the report as JSON");
  args.flag("--csv", csv_, "print it as comma-separated values");
  args.flag("--markdown", markdown_, "print it as a Markdown table");
  args.option(names, "FILE", &output_,
              "write it, too: by the name's end .html (with plots), .json, .jsonl, .csv, .tsv or .md; '-' "
              "prints Markdown");
  args.flag("--append", append_,
            "with --output FILE.csv, .tsv, .jsonl or .md: behind what is there" +
                (appended.empty() ? "" : "; without it, behind ./" + appended));
  Argument& baseline = args.option("--baseline", "save|compare FILE", &baseline_,
                                   "keep this report, or compare it with one that was kept");
  baseline.several = true;
  baseline.reads = [](const std::vector<std::string>& words) {
    const bool compares = words.size() == 2 && words[0] == "compare";
    return compares ? std::vector<std::string>{words[1]} : std::vector<std::string>();
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
    throw invalid(fmt::format("--output '{}' does not say in which form", output_),
                  "let its name end in .html, .json, .jsonl, .csv, .tsv or .md");
  if (append_ && !is_one_of({".jsonl", ".csv", ".tsv", ".md"}))
    throw invalid("--append needs --output FILE.csv, FILE.tsv, FILE.jsonl or FILE.md",
                  "other forms cannot be continued");
  if (baseline_.empty()) return;
  if (baseline_.size() != 2 || (baseline_[0] != "save" && baseline_[0] != "compare"))
    throw invalid("--baseline takes two words: save or compare, and a file",
                  "for example --baseline save gemm.json; other arguments go in front of it");
}

void BenchmarkOutput::check() {
  check_words();
  if (!baseline_.empty() && baseline_[0] == "compare") earlier_ = read_file(baseline_[1], kMostBaselineBytes);
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
    if (append_ && Env::posix().status(output_)) {
      const std::string before = read_file(output_, kMostBaselineBytes);
      // The head of a table is there already, where it is the same one.
      const std::string head = text.substr(0, text.find('\n') + 1);
      if ((end == ".csv" || end == ".tsv") && before.starts_with(head)) text.erase(0, head.size());
      text = before + (end == ".md" ? "\n" : "") + text;
    }
  }
  write_file_atomic(output_, text);
}

int BenchmarkOutput::finish(const BenchmarkReport& report, Console& console,
                            const std::optional<std::string>& shown) const {
  name_task(console);
  std::optional<BaselineComparison> comparison;
  if (!baseline_.empty() && baseline_[0] == "compare")
    comparison = compare_with_baseline(report, earlier_, baseline_[1]);
  if (csv_) {
    console.write(to_csv(report));
  } else if (markdown_) {
    console.write(to_markdown(report));
  } else if (json_) {
    nlohmann::ordered_json json = to_json(report);
    if (comparison) json["baseline"] = to_json(*comparison);
    console.write(shown ? *shown : json_text(json) + "\n");
  } else {
    console.print(shown ? *shown : to_text(report));
  }
  // Where the report itself is for a program, the comparison goes beside it.
  if (comparison && !json_)
    csv_ || markdown_ ? console.note(to_text(*comparison)) : console.print(to_text(*comparison));
  if (!output_.empty()) {
    write_output(report, comparison ? &*comparison : nullptr);
    console.note("report: " + output_);
  }
  if (!baseline_.empty() && baseline_[0] == "save") {
    write_file_atomic(baseline_[1], json_text(to_json(report)) + "\n");
    console.note("baseline: " + baseline_[1]);
  }
  return comparison && comparison->slower() ? 1 : 0;
}

}  // namespace primus::cli
