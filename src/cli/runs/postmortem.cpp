// primus postmortem
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "safe/postmortem/bundle.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/incident_folder.h"
#include "safe/postmortem/kernel_log.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::cli {
namespace {

class Postmortem final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("RUN", &folder_, "folder of the run, or a bundle of it").required = true;
    args.option(
            "--log,-l", "FILE", &logs_,
            "further logs: the job's output, a node's kernel log, Kubernetes' events as JSON; one or more")
        .several = true;
    args.option("--bundle", "FILE", &bundle_,
                "write all records that were read into this archive (FILE.tar.gz), without secrets");
    args.option("--output,-o", "FILE", &output_, "write a page (HTML) into this file");
    overwrite_.declare(args);
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    overwrite_.require(bundle_.has_value() || output_.has_value(), "--bundle or --output");
    if (bundle_) refuse_existing(*bundle_, overwrite_.existing());
    if (output_) refuse_existing(*output_, overwrite_.existing());
    std::optional<ScratchFolder> scratch;
    std::optional<postmortem::OpenedBundle> opened;
    const auto status = Env::posix().status(folder_);
    if (status && status->type == FileStatus::Type::kFile) {
      if (bundle_) throw invalid("--bundle cannot be combined with a bundle", "copy the file instead");
      scratch.emplace("primus-postmortem-");
      opened = postmortem::open_bundle(folder_, scratch->path());
    }
    postmortem::CaseFile file = postmortem::read_run(opened ? opened->run : Path(folder_));
    const std::string kernel = add_logs(opened, file);
    if (opened) name_files(*opened, scratch->path(), file);
    const postmortem::Diagnosis diagnosis = postmortem::diagnose(file);
    if (bundle_) {
      const postmortem::Bundle bundle =
          postmortem::pack({.run = folder_,
                            .running = file.running,
                            .shown = file.shown,
                            .logs = all_logs(),
                            .kernel_log = kernel,
                            .report = postmortem::report_text(file, diagnosis, Terminal{})});
      write_output(*bundle_, bundle.archive, overwrite_.existing());
      console.notes(bundle.notes);
      console.note(
          fmt::format("{} files are in {}; look at them before you send it", bundle.files, *bundle_));
    }
    if (output_)
      write_output(*output_, postmortem::report_page(file, diagnosis, "primus postmortem"),
                   overwrite_.existing());
    if (json_) {
      console.write(json_text(postmortem::report_json(file, diagnosis)) + "\n");
    } else {
      console.print(postmortem::report_text(file, diagnosis, console.out));
      if (output_) console.print(fmt::format("\nthe page is in {}\n", *output_));
    }
    return 0;
  }

 private:
  // Reads the files of --log, the logs of a bundle, and the kernel's log, which is returned.
  std::string add_logs(const std::optional<postmortem::OpenedBundle>& opened,
                       postmortem::CaseFile& file) const {
    double newest = 0;
    for (const postmortem::RankRecord& rank : file.ranks) newest = std::max(newest, rank.last_time);
    std::vector<Path> logs = all_logs();
    if (opened) logs.insert(logs.end(), opened->logs.begin(), opened->logs.end());
    if (opened && opened->kernel_log) logs.push_back(*opened->kernel_log);
    for (const Path& log : logs) postmortem::read_log(log, newest, file);
    postmortem::complete_nodes(logs, file);
    if (opened) return {};
    const char* const path = std::getenv("PATH");
    std::string kernel = postmortem::kernel_log(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin", file);
    if (!kernel.empty()) postmortem::read_output(kernel, "dmesg", 0, file);
    return kernel;
  }

  // Returns the files of --log, and the logs in the run's folder that the run itself did not write.
  std::vector<Path> all_logs() const {
    std::vector<Path> logs(logs_.begin(), logs_.end());
    const auto status = Env::posix().status(folder_);
    if (!status || status->type != FileStatus::Type::kFolder) return logs;
    for (const Path& log : postmortem::logs_beside(folder_)) {
      if (std::ranges::find(logs, log) == logs.end()) logs.push_back(log);
    }
    return logs;
  }

  // Replaces the names of extracted files by the names that they had.
  static void name_files(const postmortem::OpenedBundle& opened, const Path& scratch,
                         postmortem::CaseFile& file) {
    const auto rename = [&](std::string& name) {
      for (const auto& [from, to] :
           {std::pair(opened.run.string(), opened.name), std::pair(scratch.string() + "/", std::string())}) {
        for (std::size_t at = name.find(from); at != std::string::npos; at = name.find(from, at + to.size()))
          name.replace(at, from.size(), to);
      }
    };
    file.run = opened.name;
    file.running = opened.running;
    // An older version packed no state.
    if (!opened.shown.state.empty()) file.shown = opened.shown;
    for (postmortem::Evidence& evidence : file.evidence) rename(evidence.file);
    for (std::string& note : file.notes) rename(note);
  }

  std::string folder_;
  std::optional<std::string> bundle_;
  std::vector<std::string> logs_;
  std::optional<std::string> output_;
  OverwriteFlag overwrite_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kPostmortem{
    "postmortem",
    "Finds out why a run ended: cause, rank, node, evidence, next step",
    "Reads the events, error logs and flight recorders of all ranks of the run's last process, the "
    "supervisor's record, the kernel's log of this machine if a rank ran on it, and the files of --log: the "
    "job's output (slurm-123.out), the kernel's log of another node ('dmesg -T', 'journalctl -k -o "
    "short-iso'), the scheduler's log, and Kubernetes' events ('kubectl get events -o json').\n\nThe cause "
    "is 'certain' if a record from the end of the run names it and no record names another cause; 'likely' "
    "if several causes are named, or the record has no time; 'possible' if a process ended without a "
    "reason. docs/postmortem.md lists the causes.\n\n--bundle packs all records into one file. On another "
    "machine, give the command this file instead of the run. Values that look like secrets are replaced.",
    "primus postmortem output/team/me/run\n"
    "primus postmortem output/team/me/run --log slurm-123.out n2-kernel.log\n"
    "primus postmortem output/team/me/run --bundle incident.tar.gz\n"
    "primus postmortem incident.tar.gz\n"
    "primus postmortem output/team/me/run --json",
    make_command<Postmortem>,
    {Section::kTrain, 12}};

}  // namespace primus::cli
