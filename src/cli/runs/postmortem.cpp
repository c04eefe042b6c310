// primus postmortem
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/kernel_log.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::cli {
namespace {

class Postmortem final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("RUN", &folder_, "folder of the run").required = true;
    args.option(
            "--log,-l", "FILE", &logs_,
            "further logs: the job's output, a node's kernel log, Kubernetes' events as JSON; one or more")
        .several = true;
    args.option("--output,-o", "FILE", &output_, "write a page (HTML) into this file");
    overwrite_.declare(args);
    args.flag("--json", json_, "print as JSON");
  }

  int run(Console& console) override {
    postmortem::CaseFile file = postmortem::read_run(folder_);
    double newest = 0;
    for (const postmortem::RankRecord& rank : file.ranks) newest = std::max(newest, rank.last_time);
    for (const std::string& log : logs_) postmortem::read_text(log, {}, newest, file);
    const char* const path = std::getenv("PATH");
    postmortem::read_kernel_log(path ? path : "/usr/sbin:/usr/bin:/sbin:/bin", file);
    const postmortem::Diagnosis diagnosis = postmortem::diagnose(file);
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
  std::string folder_;
  std::vector<std::string> logs_;
  std::optional<std::string> output_;
  OverwriteFlag overwrite_;
  bool json_ = false;
};

}  // namespace

extern const CommandEntry kPostmortem{
    "postmortem",
    "Finds out why a run ended: cause, rank, node, evidence, next step",
    "Reads the events and error logs of all ranks of the run's last process, the kernel's log of this "
    "machine if a rank ran on it, and the files of --log: the job's output (slurm-123.out), the kernel's "
    "log of another node ('dmesg -T', 'journalctl -k -o short-iso'), the scheduler's log, and Kubernetes' "
    "events ('kubectl get events -o json').\n\nThe cause is 'certain' if a text of that time names it and "
    "no other text names another one; 'likely' if several causes are named, or the text has no time; "
    "'possible' if a process ended without a reason. docs/postmortem.md lists the causes.",
    "primus postmortem output/team/me/run\n"
    "primus postmortem output/team/me/run --log slurm-123.out n2-kernel.log\n"
    "primus postmortem output/team/me/run --json",
    make_command<Postmortem>,
    {Section::kTrain, 12}};

}  // namespace primus::cli
