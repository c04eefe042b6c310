// primus jobs
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "safe/jobs/job_list.h"

namespace primus::cli {
namespace {

Color color_of(const std::string& state) {
  if (state == "running") return Color::kGreen;
  return state == "waiting" ? Color::kBlue : Color::kYellow;
}

class Jobs final : public Command {
 public:
  void declare(Arguments& args) override {
    Argument& folder = args.positional("FOLDER", &folder_, "folder to search for runs, at any depth");
    folder.required = false;
    folder.default_note("output");
    args.option("--namespace", "NAME", &namespace_, "namespace of Kubernetes, or '*' for all")
        .default_note("kubectl's current one");
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    const char* const path = std::getenv("PATH");
    const jobs::Tools tools(path ? path : "/usr/bin:/bin");
    if (namespace_ && namespace_->empty())
      throw invalid("--namespace needs a name, not ''", "name a namespace, or '*' for all");
    if (namespace_ && !tools.has("kubectl"))
      throw invalid("--namespace has no effect: kubectl is not installed here", "remove --namespace");
    // Without runs in the usual folder, there may still be jobs of a scheduler.
    constexpr const char* kUsual = "output";
    std::error_code none;
    const bool has_folder = folder_ || std::filesystem::is_directory(kUsual, none);
    const jobs::JobList list = jobs::list_jobs(
        {.folder = has_folder ? folder_.value_or(kUsual) : "", .name_space = namespace_.value_or("")}, tools);
    console.notes(list.notes);
    if (json_) {
      print_json(list.jobs, console);
    } else if (list.jobs.empty()) {
      console.print(fmt::format("nothing runs or waits{}\n",
                                has_folder ? fmt::format(" ('{}')", folder_.value_or(kUsual)) : ""));
    } else {
      print_table(list.jobs, console);
    }
    return 0;
  }

 private:
  static void print_json(const std::vector<jobs::ListedJob>& all, Console& console) {
    using Json = nlohmann::ordered_json;
    Json list = Json::array();
    for (const jobs::ListedJob& job : all) {
      Json json{{"job", job.name}, {"state", job.state}};
      for (const auto& [key, text] : {std::pair("name", &job.title),
                                      {"place", &job.place},
                                      {"reason", &job.reason},
                                      {"starts", &job.starts}})
        if (!text->empty()) json[key] = *text;
      if (job.seconds_left) json["seconds_left"] = *job.seconds_left;
      if (!job.run.empty()) {
        json["run"] = job.run.string();
        json["step"] = job.step;
        json["steps"] = job.steps ? Json(*job.steps) : Json();
        json["eta_seconds"] = job.eta_seconds ? Json(*job.eta_seconds) : Json();
      }
      list.push_back(std::move(json));
    }
    console.write(json_text(list) + "\n");
  }

  // Returns why a job waits, when it may start, and its time limit.
  static std::string notes_of(const jobs::ListedJob& job) {
    std::string notes = job.reason;
    const auto add = [&](const std::string& text) { notes += (notes.empty() ? "" : "; ") + text; };
    if (!job.starts.empty()) add("may start " + job.starts);
    if (job.seconds_left) add(fmt::format("time limit in {}", human_duration(*job.seconds_left)));
    return notes;
  }

  static void print_table(const std::vector<jobs::ListedJob>& all, Console& console) {
    const std::vector<std::string> titles{"JOB", "STATE", "WHERE", "STEP", "ETA", "RUN OR NAME"};
    std::vector<std::vector<std::string>> rows;
    for (const jobs::ListedJob& job : all) {
      const bool has_run = !job.run.empty();
      const std::string step = !has_run    ? "-"
                               : job.steps ? fmt::format("{}/{}", job.step, *job.steps)
                                           : fmt::format("{}", job.step);
      rows.push_back({job.name, job.state, job.place.empty() ? "-" : job.place, step,
                      job.eta_seconds ? human_duration(*job.eta_seconds) : "-",
                      has_run ? job.run.string() : job.title});
      for (std::string& cell : rows.back()) cell = printable(cell);
    }
    const auto padded = [&](std::size_t row, std::size_t column) {
      const std::string& cell = rows[row][column];
      if (column + 1 == titles.size()) return cell;
      std::size_t width = titles[column].size();
      for (const auto& cells : rows) width = std::max(width, cells[column].size());
      return fmt::format("{:<{}}  ", cell, width);
    };
    std::string head;
    for (std::size_t column = 0; column < titles.size(); ++column) {
      std::size_t width = titles[column].size();
      for (const auto& cells : rows) width = std::max(width, cells[column].size());
      head += column + 1 == titles.size() ? titles[column] : fmt::format("{:<{}}  ", titles[column], width);
    }
    console.print(Color::kBold, head + "\n");
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (std::size_t column = 0; column < titles.size(); ++column) {
        constexpr std::size_t kState = 1;
        column == kState ? console.print(color_of(all[row].state), padded(row, column))
                         : console.print(padded(row, column));
      }
      const std::string notes = notes_of(all[row]);
      console.print(notes.empty() ? "\n" : "  " + notes + "\n");
    }
  }

  std::optional<std::string> folder_, namespace_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kJobs{
    "jobs",
    "Lists running and waiting jobs: local runs, and jobs of Slurm and Kubernetes",
    "Shows the runs under the folder that train now, your jobs of Slurm (squeue), and the jobs that 'primus "
    "k8s' made (kubectl). If a scheduler's program is not installed, its jobs are left out; if the program "
    "fails, a note says so. A job's run is shown if it is under the folder. ETA is the time until the last "
    "step at the mean speed of the recent steps.\n\nStates: running; waiting: the job has no nodes yet, its "
    "pods are not ready, or the supervisor of the run waits for the other machines; restarting: a fault "
    "ended the processes of the run, and its supervisor starts them again; ending: the processes are "
    "ending. 'primus runs' uses the first three words in the same way. 'primus stop' accepts a run or a "
    "job's name.",
    "primus jobs\n"
    "primus jobs output/team\n"
    "primus jobs --namespace team --json",
    make_command<Jobs>,
    {Section::kTrain, 13}};

}  // namespace primus::cli
