#include "launch/options/place_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"

namespace primus::launch {
namespace {

// Returns the option's name without its value, with '_' for '-', and "--nproc" for torchrun's
// --nproc_per_node.
std::string plain_name(std::string_view word) {
  std::string name(word.substr(0, word.find('=')));
  if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '-', '_');
  return name == "--nproc_per_node" ? "--nproc" : name;
}

// Returns nullopt for text that is not a number, because the command will refuse such text.
std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> number_of(const std::vector<std::string>& words, std::string_view option) {
  const auto text = place_option(words, option);
  return text ? number(*text) : std::nullopt;
}

// Returns the number of ranks per node, which the command's words may choose; nullopt: unknown.
std::optional<std::int64_t> ranks_of_node(const std::vector<std::string>& words, const JobShape& job) {
  if (job.tasks) return job.tasks;
  const auto chosen = number_of(words, "--nproc");
  return chosen ? chosen : std::optional<std::int64_t>(job.ranks);
}

void check_nodes(std::string_view name, std::int64_t nodes, const JobShape& job) {
  if (job.nodes == 0 || nodes == job.nodes) return;
  throw invalid(fmt::format("{} is {}, but the job has {}", name, nodes, counted(job.nodes, "node")),
                fmt::format("remove {}: the launcher sets the number of nodes", name));
}

void check_node(std::string_view name, std::int64_t node, const JobShape& job) {
  const std::optional<int> actual = job.nodes == 1 ? std::optional(0) : job.node;
  if (node == actual) return;
  throw invalid(actual ? fmt::format("{} is {}, but this node has the number {}", name, node, *actual)
                       : fmt::format("{} is {} on all nodes of the job", name, node),
                fmt::format("remove {}: the launcher sets it on each node", name));
}

void check_gpus(std::string_view name, std::int64_t ranks, const JobShape& job) {
  if (!job.gpus || ranks <= *job.gpus) return;
  throw invalid(
      fmt::format("{} is {}, but the job requests {} per node", name, ranks, counted(*job.gpus, "GPU")),
      fmt::format("request more GPUs, or lower {}", name));
}

// Throws if a command for several nodes lacks the address or the port of node 0. With --dry-run, a command
// needs neither.
void require_master(const std::vector<std::string>& words) {
  if (number_of(words, "--nnodes").value_or(1) <= 1 || std::ranges::find(words, "--dry-run") != words.end())
    return;
  for (const auto& [option, what] : {std::pair("--master_addr", "the address of node 0"),
                                     std::pair("--master_port", "a free port of node 0")}) {
    if (place_option(words, option)) continue;
    throw invalid(fmt::format("--nnodes needs {}", option),
                  fmt::format("set it to {}, the same on all nodes", what));
  }
}

// Refuses a --world that differs from the job's number of ranks, as the command would on each node.
void check_world(std::int64_t world, std::optional<std::int64_t> ranks, const JobShape& job) {
  if (job.nodes == 0 || job.tasks) return;
  const std::string remedy = "remove --world: the plan is then for the job's ranks";
  if (!ranks) {
    if (world % job.nodes == 0) return;
    throw invalid(
        fmt::format("--world is {}, which {} cannot share equally", world, counted(job.nodes, "node")),
        remedy);
  }
  const std::int64_t actual = job.nodes * *ranks;
  if (world == actual || actual == 1) return;
  throw invalid(fmt::format("--world is {}, but the job has {} ranks ({}, {} per node)", world, actual,
                            counted(job.nodes, "node"), *ranks),
                remedy);
}

}  // namespace

std::optional<std::string> place_option(const std::vector<std::string>& words, std::string_view option) {
  std::optional<std::string> value;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (plain_name(words[i]) != option) continue;
    const std::size_t equals = words[i].find('=');
    if (equals != std::string::npos) {
      value = words[i].substr(equals + 1);
    } else {
      value = i + 1 < words.size() ? words[i + 1] : "";
    }
  }
  return value;
}

int spare_nodes(const std::vector<std::string>& words) {
  constexpr std::int64_t kMost = 1 << 16;
  return static_cast<int>(std::clamp<std::int64_t>(number_of(words, "--spares").value_or(0), 0, kMost));
}

std::optional<std::string> device_of(const std::vector<std::string>& words) {
  constexpr std::string_view kKey = "device=";
  std::optional<std::string> device = place_option(words, "--device");
  for (const std::string& word : words)
    if (word.starts_with(kKey)) device = word.substr(kKey.size());
  return device;
}

void check_device(const std::vector<std::string>& words, std::string_view gpus, std::string_view origin) {
  const std::string device = device_of(words).value_or("");
  const bool is_nvidia = device.starts_with("cuda"), is_amd = device.starts_with("hip");
  if (!is_nvidia && !is_amd) return;
  if (gpus != "none" && gpus != "amd" && gpus != "nvidia") return;
  if (gpus == (is_amd ? "amd" : "nvidia")) return;
  throw invalid(fmt::format("device is {}, but the command gets {} ({})", device,
                            gpus == "none"  ? "no GPUs"
                            : gpus == "amd" ? "AMD GPUs"
                                            : "NVIDIA GPUs",
                            origin),
                "change one of them");
}

void check_place_options(const std::vector<std::string>& words, const JobShape& job) {
  const auto ranks = number_of(words, "--nproc");
  if (ranks && job.given_ranks && *ranks != *job.given_ranks) {
    throw invalid(fmt::format("--nproc is {}, but --env GPUS_PER_NODE is {}", *ranks, *job.given_ranks),
                  "remove one of them: both set the number of ranks per node");
  }
  // Without a launcher of several nodes, the command's options may make this node a part of a job.
  if (job.nodes == 1 && job.node && place_option(words, "--nnodes")) return require_master(words);
  if (const auto nodes = number_of(words, "--nnodes")) check_nodes("--nnodes", *nodes, job);
  if (const auto node = number_of(words, "--node_rank")) check_node("--node_rank", *node, job);
  if (ranks && job.tasks && *ranks != 1 && *ranks != *job.tasks) {
    throw invalid(fmt::format("--nproc is {}, but Slurm starts {} per node, one per task", *ranks,
                              counted(*job.tasks, "rank")),
                  "remove --nproc");
  }
  if (ranks && !job.tasks) {
    check_gpus("--nproc", *ranks, job);
  } else if (const auto usual = job.tasks ? job.tasks : job.ranks) {
    check_gpus(job.tasks ? "the number of tasks per node" : "the number of ranks per node", *usual, job);
  }
  if (const auto world = number_of(words, "--world")) {
    const std::optional<std::int64_t> usual = job.ranks ? job.ranks : job.gpus;
    check_world(*world, ranks ? ranks : usual, job);
  }
}

void check_job_variables(const std::map<std::string, std::string>& variables, const JobShape& job) {
  const auto number_in = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : number(found->second);
  };
  if (const auto nodes = number_in("NNODES")) check_nodes("--env NNODES", *nodes, job);
  if (const auto node = number_in("NODE_RANK")) check_node("--env NODE_RANK", *node, job);
  if (const auto ranks = number_in("GPUS_PER_NODE")) check_gpus("--env GPUS_PER_NODE", *ranks, job);
}

void check_rank_variables(const std::map<std::string, std::string>& variables,
                          const std::vector<std::string>& words, const JobShape& job) {
  std::optional<std::int64_t> ranks = ranks_of_node(words, job);
  if (!ranks) ranks = job.gpus;
  std::optional<std::int64_t> world;
  if (ranks && job.nodes > 0) world = *ranks * job.nodes;
  for (const auto& [name, agreed] : {std::pair("WORLD_SIZE", world), std::pair("LOCAL_WORLD_SIZE", ranks),
                                     std::pair("RANK", std::optional<std::int64_t>()),
                                     std::pair("LOCAL_RANK", std::optional<std::int64_t>()),
                                     std::pair("GROUP_RANK", std::optional<std::int64_t>())}) {
    const auto found = variables.find(name);
    if (found == variables.end() || (agreed && number(found->second) == agreed)) continue;
    throw invalid(agreed ? fmt::format("--env {} is {}, but the job has {}", name, found->second, *agreed)
                         : fmt::format("--env {} is {} in all ranks of the job", name, found->second),
                  fmt::format("remove --env {}: the launcher sets it for each rank", name));
  }
}

void use_given_master(const std::map<std::string, std::string>& variables, std::string& address,
                      std::string& port) {
  const auto host = variables.find("MASTER_ADDR"), number = variables.find("MASTER_PORT");
  if (host != variables.end() && !host->second.empty() && host->second != "localhost") address = host->second;
  if (number != variables.end() && !number->second.empty()) port = number->second;
}

std::optional<std::string> idle_gpus(const std::vector<std::string>& words, const JobShape& job) {
  const std::optional<std::int64_t> ranks = ranks_of_node(words, job);
  if (!ranks || !job.gpus || *ranks >= *job.gpus) return std::nullopt;
  return fmt::format("each node starts {}, so {} of the {} GPUs that the job requests per node stay idle",
                     counted(*ranks, "rank"), *job.gpus - *ranks, *job.gpus);
}

}  // namespace primus::launch
