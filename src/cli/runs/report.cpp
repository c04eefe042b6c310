// primus report
#include "lm/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text/counted.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/report/mlflow.h"

namespace primus::cli {
namespace {

// Maximum number of runs in a report. With more runs, the page would open slowly.
constexpr std::size_t kMaxRuns = 64;
constexpr const char* kPage = "report.html";

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local);
  return text;
}

class Report final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("RUN", &folders_, "folders of runs, or folders with runs below them; one or more");
    args.option("--output,-o", "FILE", &output_, "file to write; '-' is standard output").default_note(kPage);
    args.flag("--overwrite", overwrite_, "replace FILE even if it is not a report");
    args.option(
        "--mlflow", "FOLDER", &mlflow_,
        "write the runs into this MLflow folder (mlruns) instead of a page; repeat the command to update it");
    args.flag("--json", json_, "print the content of the page as JSON, and write no file");
  }

  int run(Console& console) override {
    if (mlflow_ && mlflow_->empty()) {
      throw invalid("--mlflow needs a folder, not ''", "name MLflow's folder: --mlflow mlruns");
    }
    if (mlflow_ && (json_ || output_ || overwrite_)) {
      throw invalid("--mlflow excludes a page and JSON",
                    "remove --output, --overwrite and --json, or run the command twice");
    }
    if (json_ && (output_ || overwrite_))
      throw invalid("--json writes no file, so --output and --overwrite have no effect",
                    "remove --json for a page, or redirect the JSON: primus report RUN --json > FILE");
    const std::string output = output_.value_or(kPage);
    if (output == "-" && overwrite_)
      throw invalid("--overwrite has no effect with -o -, which writes no file", "remove --overwrite");
    const std::vector<Path> folders = find(console);
    if (mlflow_) {
      export_to_mlflow(folders, console);
      return 0;
    }
    const bool writes = !json_ && output != "-";
    if (writes) refuse_another_file(output);  // checked now, because reading the runs may take long
    std::vector<RunHistory> runs;
    for (const Path& folder : folders) runs.push_back(read_history(folder));
    name_runs(runs);
    for (const RunHistory& run : runs) {
      for (const std::string& note : run.notes) console.note(fmt::format("note: {}: {}", run.name, note));
    }
    const nlohmann::ordered_json report = report_json(runs, now(), PRIMUS_VERSION);
    if (json_) {
      console.write(json_text(report) + "\n");
    } else if (!writes) {
      console.write(report_page(report));
    } else {
      const std::string page = report_page(report);
      write_output(output, page, Existing::kReplace);  // refuse_another_file() has already refused files
                                                       // that must not be replaced
      console.print(fmt::format("{}: {} run{}, {}\n", output, runs.size(), runs.size() == 1 ? "" : "s",
                                human_bytes(static_cast<double>(page.size()))));
    }
    return 0;
  }

 private:
  // Skips runs without steps: such runs have no records, and must not block the export of other runs.
  void export_to_mlflow(const std::vector<Path>& folders, const Console& console) const {
    std::size_t exported = 0;
    for (const Path& folder : folders) {
      const RunStatus status = run_status(folder);
      if (status.step == 0 && status.state != RunState::kDamaged) {
        console.note(fmt::format("note: '{}' is left out, because it has no step yet (no metrics.jsonl)",
                                 folder.string()));
        continue;
      }
      const MlflowRun written = write_mlflow_run(*mlflow_, folder);
      console.print(fmt::format("{}: experiment '{}', run '{}', {}\n", *mlflow_, written.experiment,
                                written.name, counted(written.steps, "step")));
      ++exported;
    }
    if (exported == 0) {
      throw invalid("nothing to export: none of these runs has a step",
                    "train one, or name other runs; 'primus runs' lists them");
    }
  }

  std::vector<Path> find(Console& console) const {
    std::vector<Path> folders;
    std::set<Path> seen;
    const auto add = [&](const Path& folder) {
      if (seen.insert(std::filesystem::weakly_canonical(folder)).second) {
        folders.push_back(folder);
      } else {
        console.note(fmt::format("note: '{}' is named more than once, and appears once", folder.string()));
      }
    };
    for (const std::string& name : folders_) {
      if (is_run_folder(name)) {
        add(name);
        continue;
      }
      const RunSearch found = find_runs(name);
      console.notes(found.notes);
      if (found.folders.empty()) {
        throw invalid(fmt::format("'{}' has no run: there is no metrics.jsonl in it or below it", name),
                      "'primus runs' lists the runs under a folder");
      }
      std::ranges::for_each(found.folders, add);
    }
    if (folders.size() > kMaxRuns && !mlflow_ && !json_) {
      throw invalid(
          fmt::format("these are {} runs, but a page can show {}", folders.size(), kMaxRuns),
          "name the runs to compare; 'primus runs --sort loss' helps to choose, and --json has no limit");
    }
    return folders;
  }

  // Throws if the output exists and is not an earlier report, unless --overwrite is given.
  void refuse_another_file(const std::string& output) const {
    const auto status = Env::posix().status(output);
    if (overwrite_ || !status || status->type != FileStatus::Type::kFile || status->size == 0) return;
    std::string begin(1024, '\0');
    const auto file = Env::posix().open(output, OpenMode::kRead);
    begin.resize(file->read_at(std::as_writable_bytes(std::span(begin.data(), begin.size())), 0));
    if (begin.find("content=\"primus report\"") != std::string::npos) return;
    throw invalid(fmt::format("'{}' already exists and is not a report", output),
                  "choose another name with -o, or replace it with --overwrite");
  }

  std::vector<std::string> folders_;
  std::optional<std::string> output_, mlflow_;
  bool overwrite_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kReport{
    "report",
    "Writes the curves of runs into one HTML page, side by side",
    "The page shows loss, validation, gradient norm, learning rate, throughput, memory and expert balance, "
    "with the values under the cursor, zoom, log scale and smoothing. It also shows how the settings of the "
    "runs differ. The page needs no network and no other file, and prints well. A run that is still training "
    "is shown up to its last step.\n\n"
    "--mlflow FOLDER writes the runs as MLflow files instead. Writing a run again updates the same MLflow "
    "run. A run without a step is left out, with a note.",
    "primus report output/primus/root/quickstart\n"
    "primus report output/team/user/try1 output/team/user/try2 -o compare.html\n"
    "primus report output/team/user --mlflow mlruns\n"
    "primus report output --json | jq '.runs[].loss'",
    make_command<Report>,
    {Section::kTrain, 11}};

}  // namespace primus::cli
