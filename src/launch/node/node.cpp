#include "launch/node/node.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <tuple>

#include "base/error.h"
#include "base/system/subprocess.h"

namespace primus::launch {
namespace {

constexpr std::int64_t kMaxPort = 65535;

constexpr std::size_t kMaxListedNodes = kMaxNodes;

std::int64_t number_in(const std::string& name, const std::string& text, std::int64_t low,
                       std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw invalid(fmt::format("{}='{}' is not a number from {} to {}", name, text, low, high),
                  "set it to one, or unset it");
  }
  return value;
}

std::optional<std::int64_t> number(const Surroundings& surroundings, const std::string& name,
                                   std::int64_t low, std::int64_t high) {
  const auto text = surroundings.setting(name);
  return text ? std::optional(number_in(name, *text, low, high)) : std::nullopt;
}

Error bad_list(std::string_view list) {
  return invalid(fmt::format("'{}' is not a Slurm list of nodes", list),
                 "set MASTER_ADDR to the first node's address");
}

// Splits at commas outside brackets.
std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') {
      if (inside) throw bad_list(list);
      inside = true;
    } else if (i < list.size() && list[i] == ']') {
      if (!inside) throw bad_list(list);
      inside = false;
    } else if (i == list.size() || (list[i] == ',' && !inside)) {
      if (i == begin || (inside && i == list.size())) throw bad_list(list);
      parts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  return parts;
}

std::uint64_t digits(std::string_view text, std::string_view list) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || text.size() > 9 || error != std::errc() || end != text.data() + text.size()) {
    throw bad_list(list);
  }
  return value;
}

// Appends the names of `part` after `prefix`, up to `limit` names in total.
void expand(const std::string& prefix, std::string_view part, std::string_view list, std::size_t limit,
            std::vector<std::string>& names) {
  const std::size_t open = part.find('[');
  if (open == std::string_view::npos) {
    if (names.size() < limit) names.push_back(prefix + std::string(part));
    return;
  }
  const std::size_t close = part.find(']', open);
  const std::string begin = prefix + std::string(part.substr(0, open));
  const std::string_view rest = part.substr(close + 1);
  for (const std::string_view range : parts_of(part.substr(open + 1, close - open - 1))) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::uint64_t first = digits(low, list);
    const std::uint64_t last = dash == std::string_view::npos ? first : digits(range.substr(dash + 1), list);
    if (last < first) throw bad_list(list);
    for (std::uint64_t n = first; n <= last && names.size() < limit; ++n) {
      expand(fmt::format("{}{:0{}}", begin, n, low.size()), rest, list, limit, names);
    }
  }
}

std::vector<std::string> expand_up_to(std::string_view list, std::size_t limit) {
  std::vector<std::string> names;
  for (const std::string_view part : parts_of(list)) {
    if (names.size() >= limit) break;
    expand("", part, list, limit, names);
  }
  return names;
}

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

// Returns the node's address from Slurm if its name cannot be resolved, as in some clouds; otherwise the
// name.
std::string address_of_node(const std::string& name, const Surroundings& surroundings) {
  const auto scontrol = resolves(name) ? std::nullopt : surroundings.find_program("scontrol");
  if (!scontrol) return name;
  const SubprocessResult shown = run_subprocess({scontrol->string(), "show", "node", name, "--oneliner"}, {});
  if (!shown.ok()) return name;
  const std::string& text = shown.out;
  const std::size_t at = text.find("NodeAddr=");
  if (at == std::string::npos) return name;
  const std::string address = text.substr(at + 9, text.find_first_of(" \n", at) - at - 9);
  return address.empty() ? name : address;
}

bool is_numeric_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// Returns the node list of the step, or else of the job.
std::optional<std::string> nodes_of_slurm(const Surroundings& surroundings) {
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (auto list = surroundings.setting(name)) return list;
  }
  return std::nullopt;
}

// Returns whether `host` may be in `list`, with or without its domain. Always true for an IP address, which
// may belong to another network of a node.
bool may_be_node(const std::string& host, const std::string& list) {
  if (is_numeric_address(host)) return true;
  const auto short_name = [](const std::string& name) { return name.substr(0, name.find('.')); };
  const std::vector<std::string> nodes = expand_up_to(list, kMaxListedNodes);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const std::string& node) { return short_name(node) == short_name(host); });
}

void place_by_slurm(const Surroundings& surroundings, NodePlace& place) {
  const auto nodes = number(surroundings, "SLURM_NNODES", 1, kMaxNodes);
  const auto tasks = number(surroundings, "SLURM_NTASKS", 1, std::numeric_limits<int>::max());
  const auto rank = number(surroundings, "SLURM_PROCID", 0, std::numeric_limits<int>::max());
  const auto local = number(surroundings, "SLURM_LOCALID", 0, kMaxRanksPerNode - 1);
  const auto per_node = surroundings.setting("SLURM_STEP_TASKS_PER_NODE");
  if (!nodes || !tasks || !rank || !local || !per_node || *tasks <= *nodes) return;
  place.task = {static_cast<int>(*rank), static_cast<int>(*tasks), static_cast<int>(*local),
                tasks_of_node(*per_node, place.node)};
}

}  // namespace

std::optional<StepTask> task_of_step(const Surroundings& surroundings) {
  const auto job = surroundings.setting("SLURM_JOB_ID"), step = surroundings.setting("SLURM_STEP_ID");
  if (!job || !step || surroundings.setting("RANK") || surroundings.setting("WORLD_SIZE")) return {};
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  const auto tasks = number(surroundings, "SLURM_STEP_NUM_TASKS", 1, kMax);
  const auto task = number(surroundings, "SLURM_PROCID", 0, kMax);
  if (!tasks || !task || *tasks < 2) return {};
  StepTask result{.task = *task, .tasks = *tasks, .step = *job + "." + *step};
  result.launched = surroundings.setting(kLaunchedStep) == result.step;
  return result;
}

void check_place_variables(const std::map<std::string, std::string>& variables) {
  constexpr std::tuple<const char*, std::int64_t, std::int64_t> kRanges[] = {
      {"NNODES", 1, kMaxNodes},
      {"NODE_RANK", 0, kMaxNodes - 1},
      {"GPUS_PER_NODE", 1, kMaxRanksPerNode},
      {"MASTER_PORT", 1, kMaxPort}};
  for (const auto& [name, low, high] : kRanges) {
    const auto found = variables.find(name);
    if (found != variables.end() && !found->second.empty()) number_in(name, found->second, low, high);
  }
}

int parse_ranks(const std::string& variable, const std::string& value) {
  return static_cast<int>(number_in(variable, value, 1, kMaxRanksPerNode));
}

std::uint16_t port_of_job(std::uint64_t job) { return static_cast<std::uint16_t>(20000 + job % 10000); }

std::vector<std::string> expand_nodes(std::string_view list) { return expand_up_to(list, kMaxListedNodes); }

std::vector<std::string> nodes_of_step(const Surroundings& surroundings) {
  const auto list = nodes_of_slurm(surroundings);
  return list ? expand_nodes(*list) : std::vector<std::string>();
}

std::string first_node(std::string_view list) { return expand_up_to(list, 1).front(); }

int tasks_of_node(std::string_view text, int node) {
  int passed = 0;
  for (const std::string_view part : parts_of(text)) {
    const std::size_t times = part.find("(x");
    const std::uint64_t tasks = digits(part.substr(0, times), text);
    const bool repeated = times != std::string_view::npos;
    if (repeated && !part.ends_with(')')) throw bad_list(text);
    const std::uint64_t count = repeated ? digits(part.substr(times + 2, part.size() - times - 3), text) : 1;
    passed += static_cast<int>(std::min<std::uint64_t>(count, kMaxNodes));
    if (node < passed) return static_cast<int>(std::min<std::uint64_t>(tasks, kMaxRanksPerNode));
    if (passed > kMaxNodes) break;
  }
  throw invalid(fmt::format("SLURM_STEP_TASKS_PER_NODE='{}' has no entry for node {}", text, node),
                "set GPUS_PER_NODE, and start one task per node");
}

void require_equal_tasks(std::string_view text, int nodes) {
  const int first = tasks_of_node(text, 0);
  for (int node = 1; node < nodes; ++node) {
    const int own = tasks_of_node(text, node);
    if (own == first) continue;
    throw invalid(
        fmt::format("--rank-order needs as many tasks on each node, but node 0 has {} and node {} has {}",
                    first, node, own),
        "set --ntasks-per-node, or remove --rank-order");
  }
}

namespace {

// Finds the address and port of node 0, which all ranks of a job use.
void find_master(const Surroundings& surroundings, const NodeDefaults& defaults, bool slurm,
                 NodePlace& place) {
  const auto port = number(surroundings, "MASTER_PORT", 1, kMaxPort);
  // Ignores the address "localhost": in AMD Primus's settings, it means that no address is set.
  const std::string usual = defaults.master_address.value_or("");
  place.master_address = surroundings.setting("MASTER_ADDR").value_or(usual == "localhost" ? "" : usual);
  place.master_port = static_cast<std::uint16_t>(port.value_or(defaults.master_port.value_or(0)));
  const bool is_alone = place.nodes == 1 && !place.task;
  bool anywhere = place.master_address.empty() || place.master_address == "localhost";
  const auto list = slurm ? nodes_of_slurm(surroundings) : std::nullopt;
  if (!anywhere && list && !defaults.typed.contains("MASTER_ADDR") &&
      !may_be_node(place.master_address, *list)) {
    place.notes.push_back(
        fmt::format("MASTER_ADDR={0} is ignored, because it is not a node of this Slurm job ({1}); unset "
                    "MASTER_ADDR, or use --env MASTER_ADDR={0}",
                    place.master_address, *list));
    anywhere = true;
  }
  if (is_alone) {
    if (anywhere) place.master_address.clear();
    return;
  }
  if (list && anywhere) place.master_address = address_of_node(first_node(*list), surroundings);
  if (place.master_address.empty()) {
    throw invalid(fmt::format("MASTER_ADDR is not set, but the job has {} nodes", place.nodes),
                  "set MASTER_ADDR to the address of node 0, the same on all nodes");
  }
  if (place.master_port == 0) {
    place.master_port =
        slurm ? port_of_job(static_cast<std::uint64_t>(
                    number(surroundings, "SLURM_JOB_ID", 0, std::numeric_limits<std::int64_t>::max())
                        .value_or(0)))
              : kMasterPort;
  }
}

}  // namespace

NodePlace find_node(const Surroundings& surroundings, const NodeDefaults& defaults,
                    const Accelerators& gpus) {
  NodePlace place;
  const bool slurm =
      surroundings.setting("SLURM_JOB_ID").has_value() && surroundings.setting("SLURM_PROCID").has_value();
  const auto first_of = [&](std::initializer_list<const char*> names, std::int64_t low, std::int64_t high) {
    for (const char* name : names) {
      if (const auto value = number(surroundings, name, low, high)) return value;
    }
    return std::optional<std::int64_t>();
  };

  // Replaces a value from the submitting shell by Slurm's value, with a note if they differ.
  const auto slurm_wins = [&](const char* name, std::optional<std::int64_t>& value,
                              const std::optional<std::int64_t>& slurms) {
    if (!slurms || defaults.typed.contains(name)) return;
    if (value && *value != *slurms) {
      place.notes.push_back(
          fmt::format("{0}={1} of the environment is ignored, because it is {2} in this Slurm job; unset "
                      "{0}, or use --env {0}={1}",
                      name, *value, *slurms));
    }
    value = slurms;
  };
  auto nodes = number(surroundings, "NNODES", 1, kMaxNodes);
  if (slurm) slurm_wins("NNODES", nodes, first_of({"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, 1, kMaxNodes));
  place.nodes = static_cast<int>(nodes.value_or(defaults.nodes.value_or(1)));

  auto node = number(surroundings, "NODE_RANK", 0, kMaxNodes - 1);
  if (slurm) slurm_wins("NODE_RANK", node, number(surroundings, "SLURM_NODEID", 0, kMaxNodes - 1));
  place.node = static_cast<int>(node.value_or(0));
  if (!node && place.nodes > 1) {
    throw invalid(fmt::format("NODE_RANK is not set, but the job has {} nodes", place.nodes),
                  "set NODE_RANK to the number of this node, counted from 0");
  }
  if (place.node >= place.nodes) {
    throw invalid(fmt::format("NODE_RANK={} is not below NNODES={}", place.node, place.nodes),
                  "nodes are numbered from 0");
  }

  auto ranks = number(surroundings, "GPUS_PER_NODE", 1, kMaxRanksPerNode);
  if (!ranks) ranks = defaults.ranks;
  if (slurm) place_by_slurm(surroundings, place);
  if (!ranks && gpus.any()) ranks = gpus.count;
  if (!ranks && slurm) ranks = first_of({"SLURM_GPUS_ON_NODE"}, 1, kMaxRanksPerNode);
  place.ranks = static_cast<int>(ranks.value_or(1));
  if (place.task) {
    place.ranks = place.task->local_world;
    place.ranks_are_tasks = !ranks;
  }

  find_master(surroundings, defaults, slurm, place);
  return place;
}

}  // namespace primus::launch
