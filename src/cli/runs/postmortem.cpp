// primus postmortem
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/system/subprocess.h"
#include "base/text/json_text.h"
#include "cli/command.h"
#include "lm/events/run_event.h"
#include "safe/postmortem/diagnosis.h"
#include "safe/postmortem/report.h"
#include "safe/postmortem/run_evidence.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::cli {
namespace {

// Adds the kernel's log of this machine if a rank of the run was on it.
void read_own_kernel(postmortem::CaseFile& file) {
  const std::string host = host_name();
  const bool here =
      std::ranges::any_of(file.ranks, [&](const postmortem::RankRecord& rank) { return rank.node == host; });
  if (!here) return;
  const std::vector<std::string> command = {"dmesg", "--time-format", "iso"};
  // The newest lines are the last ones, so the limit must not cut them off.
  const SubprocessResult result = run_subprocess(command, {.output_limit = std::size_t{64} << 20});
  if (!result.ok()) {
    file.notes.emplace_back("the kernel's log of this machine was not read, because 'dmesg' " +
                            std::string(result.found ? "failed" : "does not exist") +
                            "; pass a copy by --log");
    return;
  }
  std::string lines;
  std::string_view text = result.out;
  while (!text.empty()) {  // dmesg names no host
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    if (space != std::string_view::npos)
      lines += fmt::format("{} {} kernel:{}\n", line.substr(0, space), host, line.substr(space));
  }
  postmortem::read_output(lines, "dmesg", 0, file);
}

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
    read_own_kernel(file);
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
    "machine if a "
    "rank ran on it, and the files of --log: the job's output (slurm-123.out), the kernel's log of another "
    "node "
    "('dmesg -T', 'journalctl -k -o short-iso'), the scheduler's log, and Kubernetes' events ('kubectl get "
    "events -o "
    "json').\n\nThe cause is 'certain' if a text of that time names it and no other text names another one; "
    "'likely' "
    "if several causes are named, or the text has no time; 'possible' if a process ended without a reason. "
    "docs/postmortem.md lists the causes.",
    "primus postmortem output/team/me/run\n"
    "primus postmortem output/team/me/run --log slurm-123.out n2-kernel.log\n"
    "primus postmortem output/team/me/run --json",
    make_command<Postmortem>,
    {Section::kTrain, 12}};

}  // namespace primus::cli
