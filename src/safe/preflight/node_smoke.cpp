#include "safe/preflight/node_smoke.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/system/subprocess.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "config/loading/inherit.h"
#include "launch/node/node.h"
#include "safe/preflight/all_reduce.h"
#include "turbo/devices/devices.h"

namespace primus::preflight {
namespace {

// Sets this node's ranks and GPUs from the launcher's variables.
void take_variables(const Machine& machine, Requirements& wanted) {
  const auto local = number_of(machine, {"LOCAL_WORLD_SIZE", "GPUS_PER_NODE"});
  wanted.local_ranks = static_cast<int>(std::clamp<std::int64_t>(local.value_or(1), 1, 4096));
  // On a node without GPUs, 'primus direct' sets GPUS_PER_NODE to its number of ranks: 1, or the number of
  // Slurm tasks if there are several.
  const auto gpus = number_of(machine, {"GPUS_PER_NODE"});
  const bool is_wish = gpus && gpus != number_of(machine, {launch::kTasksAsRanks});
  if (is_wish && !wanted.gpus && (*gpus != 1 || gpus_on_bus(machine).any_on_bus()))
    wanted.gpus = Wanted{static_cast<double>(*gpus), "GPUS_PER_NODE"};
}

// Runs the all-reduce as a separate job that can be killed if it hangs.
SubprocessResult run_all_reduce(const SmokeOptions& options, int gpus, const Path& folder) {
  const std::vector<std::string> command{options.program,
                                         "preflight",
                                         "--tests",
                                         "intra-allreduce",
                                         "--nproc",
                                         std::to_string(gpus),
                                         "--comm-sizes-mb",
                                         std::to_string(options.reduce.mib),
                                         "--intra-group-sizes",
                                         std::to_string(gpus),
                                         "--dump-path",
                                         folder.string(),
                                         "--no-html",
                                         "--json"};
  // Unsets the launcher's variables, because they describe another job.
  std::vector<std::string> words{"/usr/bin/env"};
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                           "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"})
    words.insert(words.end(), {"-u", name});
  words.insert(words.end(), command.begin(), command.end());
  const auto timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.reduce.timeout_seconds * 1e3));
  return run_subprocess(words, {.timeout = timeout});
}

// The number of measured rates, and the slowest rate in GB/s.
struct ReducedRates {
  int measured = 0;
  double slowest = 0;
  std::string problem;
};

ReducedRates rates_in(const SubprocessResult& result) {
  ReducedRates rates{.problem = trimmed(result.err)};
  if (!result.found || result.timed_out || result.out.empty()) return rates;
  try {
    const nlohmann::json json = parse_json_object(result.out, "the all-reduce's report");
    for (const nlohmann::json& node : json.value("nodes", nlohmann::json::array())) {
      for (const Measurement& m : node_report(node.dump(), "the all-reduce's report").measurements)
        rates.slowest = rates.measured++ == 0 ? m.value : std::min(rates.slowest, m.value);
    }
  } catch (const std::exception& error) {
    rates.measured = 0;
    rates.problem = error.what();
  }
  return rates;
}

void measure_all_reduce(const SmokeOptions& options, int gpus, const SmokePlace& place,
                        const std::vector<Hardware>& table, NodeReport& report) {
  const auto& demanded = options.node.wanted.min_all_reduce;
  AllReduceFacts facts{.what = fmt::format("all-reduce of {} GPUs", gpus),
                       .gpus = gpus,
                       .minimum = demanded ? demanded : min_all_reduce(table, turbo::list_devices()),
                       .is_demanded = demanded.has_value()};
  if (gpus >= 2) {
    const SubprocessResult result = run_all_reduce(
        options, gpus, options.dump_path / "smoke" / ("all-reduce-" + place.file_of(report.host)));
    const ReducedRates rates = rates_in(result);
    if (rates.measured < gpus) {  // each GPU measures a rate
      facts.problem = result.timed_out
                          ? fmt::format("the all-reduce of {} GPUs did not finish within {:g} s", gpus,
                                        options.reduce.timeout_seconds)
                          : fmt::format("the all-reduce of {} GPUs failed: {}", gpus, rates.problem);
    } else {
      facts.rate = rates.slowest;
      report.measurements.push_back({.name = "all-reduce of the node's GPUs",
                                     .where = "node",
                                     .unit = "GB/s",
                                     .value = rates.slowest,
                                     .wanted = facts.minimum ? facts.minimum->value : 0,
                                     .compared = true});
    }
  }
  check_all_reduce(facts, report.findings);
}

NodeReport look(const std::shared_ptr<const Machine>& machine, const SmokePlace& place,
                SmokeOptions& options) {
  const bool demands_gpus = options.node.wanted.gpus && options.node.wanted.gpus->value > 0;
  take_variables(*machine, options.node.wanted);
  NodeReport report = inspect_node(machine, options.node);
  const std::vector<std::string> devices =
      devices_to_measure(*machine, report.findings, options.measures_speeds || demands_gpus);
  const std::vector<Hardware> table = read_hardware(
      config::default_preset_dirs([&](const std::string& name) { return machine->variable(name); }));
  PerformanceOptions performance = options.performance;
  performance.wanted = options.node.wanted;
  performance.products = performance.memory = options.measures_speeds;
  performance.corruption = performance.quick = true;
  for (const std::string& device : devices) measure_device(device, table, performance, report);
  if (options.measures_speeds) {
    const auto usable = std::count_if(devices.begin(), devices.end(),
                                      [](const std::string& device) { return !device.starts_with("cpu"); });
    measure_all_reduce(options, static_cast<int>(usable), place, table, report);
  }
  return report;
}

}  // namespace

std::optional<SmokeResult> run_node_smoke(const std::shared_ptr<const Machine>& machine, SmokeOptions options,
                                          const std::function<void(std::string_view sentence)>& note) {
  const double begin = steady_seconds();
  // Reads the list first, so that errors in the list are reported before the inspection.
  options.expected.names =
      options.node_list.empty() ? slurm_nodes(*machine) : names_in_file(options.node_list);
  SmokeResult result{.place = smoke_place(*machine)};
  const SmokePlace& place = result.place;
  if (!place.first_here) {
    note(
        fmt::format("note: node_smoke checks each node once: the first process on {} does it, and this "
                    "one ends",
                    machine->node_name()));
    return std::nullopt;
  }
  const double started = machine->wall_clock();
  const SmokeFolder folder(options.dump_path, place);
  if (place.node == 0 && !options.keeps_earlier_reports) folder.clean(note);

  NodeReport own = look(machine, place, options);
  own.rank = own.node = place.node;
  if (!place.named_by_slurm) own.host = short_name(own.host);
  own.seconds = steady_seconds() - begin;
  folder.write(own);

  result.is_whole = place.node == 0;
  Report& report = result.report;
  if (result.is_whole) {
    SmokeFolder::Gathered gathered = folder.gather(own, options.expected, started);
    report.nodes = std::move(gathered.nodes);
    report.cluster = std::move(gathered.cluster);
  } else {
    report.nodes.push_back(std::move(own));
  }
  report.title =
      fmt::format("Node smoke test of {} node{}", report.nodes.size(), report.nodes.size() == 1 ? "" : "s");
  report.seconds = steady_seconds() - begin;
  return result;
}

}  // namespace primus::preflight
