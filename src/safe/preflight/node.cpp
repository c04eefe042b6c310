#include "safe/preflight/node.h"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/terminal/terminal.h"
#include "safe/preflight/check.h"
#include "safe/preflight/environment_facts.h"
#include "safe/preflight/guard.h"

namespace primus::preflight {
// The errors that occurred while a section's facts were collected.
struct CollectionFacts {
  struct Problem {
    std::string what;
    bool timed_out = false;
  };
  std::optional<Problem> host, gpu, network;
};

namespace {

template <std::optional<CollectionFacts::Problem> CollectionFacts::*section>
void judge_collection(const CheckInput& in, Judge& judge) {
  const auto& problem = in.facts<CollectionFacts>().*section;
  if (!problem) return;
  judge.fail({.measured = "the machine could not be examined: " + problem->what,
              .wanted = "an answer",
              .source = "a check that cannot run counts as failed",
              .fix = problem->timed_out ? "check for a file system or driver that hangs (ps axo "
                                          "pid,stat,wchan,cmd shows state D), and reboot the node if it stays"
                                        : "fix the cause that the message names"});
}

// Returns the facts from `collect`. After a failure or timeout, returns default facts and adds the problem.
template <class Facts>
Facts collected(std::function<Facts()> collect, std::chrono::milliseconds timeout,
                std::optional<CollectionFacts::Problem>& problem) {
  Guarded<Facts> result = guarded<Facts>(std::move(collect), timeout);
  if (result.value) return std::move(*result.value);
  problem = {result.problem, result.timed_out};
  return {};
}

}  // namespace

NodeReport inspect_node(const std::shared_ptr<const Machine>& machine, const NodeOptions& options) {
  const double begin = steady_seconds();
  NodeReport report{.host = machine->node_name(), .wall_clock = machine->wall_clock()};
  const bool any_section = options.host || options.gpu || options.network;
  if (!any_section && !any_demanded(options.wanted)) return report;
  HostQuestions questions = options.questions;
  if (!options.host) {  // skips folders that are not judged, because access to a folder may hang
    questions.folders.clear();
    questions.read_kernel_log = false;
  }
  // Collects the facts of all sections, because checks of one section also use facts of other sections.
  Inventory found;
  CollectionFacts problems;
  found.host = collected<HostFacts>([machine, questions] { return collect_host(*machine, questions); },
                                    options.timeout, problems.host);
  found.gpu = collected<GpuFacts>(
      [machine, timeout = options.tool_timeout] { return collect_gpus(*machine, timeout); }, options.timeout,
      problems.gpu);
  found.network = collected<NetworkFacts>(
      [machine, ports = options.rdma_ports] { return collect_network(*machine, ports); }, options.timeout,
      problems.network);
  for (const auto& problem : {problems.host, problems.gpu, problems.network})
    report.has_stuck_threads |= problem && problem->timed_out;

  judge_group("inventory", problems, report.findings);
  const CheckInput input{.machine = *machine, .found = found, .wanted = options.wanted};
  run_checks(host_checks(), input, report.findings, !options.host);
  run_checks(gpu_checks(), input, report.findings, !options.gpu);
  run_checks(network_checks(), input, report.findings, !options.network);
  if (options.host) add_facts(found.host, report.facts);
  if (options.gpu) add_facts(found.gpu, report.facts);
  if (options.network) add_facts(found.network, report.facts);
  if (options.host || options.network) add_environment_facts(*machine, report.facts);
  report.seconds = steady_seconds() - begin;
  return report;
}

extern const Check kHostInventory{.name = "host.inventory",
                                  .category = "host",
                                  .question = "Could the machine's system be examined?",
                                  .judge = judge_collection<&CollectionFacts::host>,
                                  .may_be_silent = true,
                                  .group = "inventory"};
extern const Check kGpuInventory{.name = "gpu.inventory",
                                 .category = "gpu",
                                 .question = "Could the machine's GPUs be examined?",
                                 .judge = judge_collection<&CollectionFacts::gpu>,
                                 .may_be_silent = true,
                                 .group = "inventory"};
extern const Check kNetworkInventory{.name = "network.inventory",
                                     .category = "network",
                                     .question = "Could the machine's network be examined?",
                                     .judge = judge_collection<&CollectionFacts::network>,
                                     .may_be_silent = true,
                                     .group = "inventory"};

}  // namespace primus::preflight
