// primus doctor
#include "base/terminal/terminal.h"
#include "cli/command.h"
#include "cli/preflight/report_files.h"
#include "safe/preflight/node.h"

namespace primus::cli {
namespace {

class Doctor final : public Command {
 public:
  void declare(Arguments& args) override { report_.declare(args); }

  int run(Console& console) override {
    using namespace preflight;
    const double begin = steady_seconds();
    NodeOptions options;
    options.questions.folders = {{"this folder", "."}, {"temporary files", "/tmp"}};
    const auto machine = std::make_shared<const Machine>();
    Report report{.title = "Doctor of " + machine->host_name(),
                  .generated = time_for_people(),
                  .version = PRIMUS_VERSION};
    report.nodes.push_back(inspect_node(machine, options));
    report.seconds = steady_seconds() - begin;
    report_.show(report, console);
    const int code = report_.exit_code(report, 2);
    leave_stuck_threads(report, code);
    return code;
  }

 private:
  ReportOptions report_;
};

}  // namespace

extern const CommandEntry kDoctor{
    "doctor",
    "Checks this machine for problems that would disturb training",
    "Checks host, GPUs and network: memory, limits, disks, the clock, drivers, device nodes, the health of "
    "GPUs,\n"
    "interfaces and RDMA. Every finding includes the next step. Writes no files. 'primus preflight' also "
    "measures\n"
    "speed, and checks all machines of a job.\n\n"
    "The exit code is 0 if nothing failed, and 2 if a check failed; with --strict, 1 if there are warnings.",
    "primus doctor\n"
    "primus doctor --all-checks\n"
    "primus doctor --json | jq '.nodes[].findings[] | select(.verdict == \"fail\")'",
    make_command<Doctor>,
    {Section::kMachine, 3}};

}  // namespace primus::cli
