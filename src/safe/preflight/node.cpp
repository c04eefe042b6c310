#include "safe/preflight/node.h"

#include <fmt/format.h>

#include "base/terminal/terminal.h"
#include "safe/preflight/environment_facts.h"
#include "safe/preflight/guard.h"

namespace primus::preflight {
namespace {

// Returns the facts from `collect`; on a failure or timeout, default facts and a finding.
template <class Facts>
Facts collected(const char* category, std::function<Facts()> collect, const NodeOptions& options,
                NodeReport& report) {
  Guarded<Facts> result = guarded<Facts>(std::move(collect), options.timeout);
  if (result.value) return std::move(*result.value);
  report.has_stuck_threads |= result.timed_out;
  report.findings.push_back(
      {.check = std::string(category) + ".inventory",
       .category = category,
       .verdict = Verdict::kFail,
       .measured = "the machine could not be looked at: " + result.problem,
       .wanted = "an answer",
       .source = "checks that cannot be made have failed",
       .fix = result.timed_out ? "look for a file system or driver that hangs (ps axo pid,stat,wchan,cmd "
                                 "shows state D), and reboot the node if it stays"
                               : "see to what the message names"});
  return {};
}

}  // namespace

NodeReport inspect_node(const std::shared_ptr<const Machine>& machine, const NodeOptions& options) {
  const double begin = steady_seconds();
  NodeReport report{.host = machine->node_name(), .wall_clock = machine->wall_clock()};
  const bool any_section = options.host || options.gpu || options.network;
  if (!any_section && !any_demanded(options.wanted)) return report;
  HostQuestions questions = options.questions;
  if (!options.host) {  // skip what is not judged; a folder may hang
    questions.folders.clear();
    questions.read_kernel_log = false;
  }
  // Collect all facts, because checks of one section also use facts of others.
  Inventory found;
  found.host = collected<HostFacts>(
      "host", [machine, questions] { return collect_host(*machine, questions); }, options, report);
  found.gpu = collected<GpuFacts>(
      "gpu", [machine, timeout = options.tool_timeout] { return collect_gpus(*machine, timeout); }, options,
      report);
  found.network = collected<NetworkFacts>(
      "network", [machine, ports = options.rdma_ports] { return collect_network(*machine, ports); }, options,
      report);

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

}  // namespace primus::preflight
