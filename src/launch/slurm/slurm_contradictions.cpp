#include "launch/slurm/slurm_contradictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"
#include "launch/container/container_values.h"
#include "launch/node/node.h"
#include "launch/options/place_options.h"
#include "launch/options/value_words.h"

namespace primus::launch {
namespace {

// Options of which Slurm uses only one.
constexpr std::pair<std::string_view, std::string_view> kExclusive[] = {
    {"requeue", "no-requeue"}, {"exclusive", "oversubscribe"}, {"mem", "mem-per-cpu"},
    {"mem", "mem-per-gpu"},    {"mem-per-cpu", "mem-per-gpu"}, {"exclusive", "overlap"},
};

// Refuses nodes that are both required and excluded. Lists in files are not read.
void refuse_excluded_nodes(const std::vector<GivenOption>& options) {
  const GivenOption* const list = find_given(options, "nodelist");
  const GivenOption* const out = find_given(options, "exclude");
  const auto is_list = [](const GivenOption* option) {
    return option && option->value && option->value->find('/') == std::string::npos;
  };
  if (!is_list(list) || !is_list(out)) return;
  const std::vector<std::string> wanted = expand_nodes(*list->value);
  for (const std::string& node : expand_nodes(*out->value)) {
    if (std::ranges::find(wanted, node) == wanted.end()) continue;
    throw invalid(fmt::format("{} and {} both name the node {}", written(*list), written(*out), node),
                  "remove the node from one of them");
  }
}

// Refuses a list with more nodes than the job has.
void refuse_more_nodes(const std::vector<GivenOption>& options) {
  const GivenOption* const number = find_given(options, "nodes");
  const GivenOption* const list = find_given(options, "nodelist");
  if (!number || !number->value || !list || !list->value || list->value->find('/') != std::string::npos)
    return;
  const auto nodes = forms::counted(*number->value);
  const auto named = static_cast<std::int64_t>(expand_nodes(*list->value).size());
  if (!nodes || named <= *nodes) return;
  throw invalid(fmt::format("{} names {}, but {} requests {}", written(*list), counted(named, "node"),
                            written(*number), *nodes),
                "name fewer nodes, or request more");
}

// Refuses an array of which Slurm may start no element.
void refuse_idle_array(const std::vector<GivenOption>& options) {
  const GivenOption* const array = find_given(options, "array");
  if (!array || !array->value || !array->value->ends_with("%0")) return;
  throw invalid(fmt::format("{}: 0 is not a limit of elements that run at the same time", written(*array)),
                "write 1 or more after '%', or remove it");
}

}  // namespace

void settle_contradictions(const std::vector<GivenOption>& given, bool batch,
                           std::vector<GivenOption>& options) {
  for (const auto& [one, other] : kExclusive) {
    // In a batch job, --exclusive is an option of the job, and --overlap of its step.
    if (batch && other == "overlap") continue;
    const GivenOption *const a = find_given(options, one), *const b = find_given(options, other);
    if (!a || !b) continue;
    const bool gives_one = find_given(given, one), gives_other = find_given(given, other);
    if (gives_one == gives_other) {
      throw invalid(fmt::format("{} and {} contradict each other", written(*a), written(*b)),
                    "remove one of them");
    }
    const std::string_view unused = gives_one ? other : one;
    std::erase_if(options, [&](const GivenOption& option) { return option.name == unused; });
  }
  refuse_excluded_nodes(options);
  refuse_more_nodes(options);
  refuse_idle_array(options);
}

void set_limits(const std::vector<GivenOption>& options, ElsewhereNodes& nodes) {
  const auto text_of = [&](std::string_view name) {
    const GivenOption* const given = find_given(options, name);
    return given ? given->value.value_or("") : std::string();
  };
  const auto per_task = forms::whole(text_of("cpus-per-task")),
             per_gpu = forms::whole(text_of("cpus-per-gpu"));
  if (per_task && !nodes.tasks) {
    nodes.cores = static_cast<int>(*per_task);
  } else if (per_gpu && nodes.gpus) {
    nodes.cores = static_cast<int>(*per_gpu) * *nodes.gpus;
  }
  std::string memory = text_of("mem");
  if (memory.empty() || !forms::is_bytes(memory)) return;
  if (forms::all_digits(memory)) memory += "m";  // Slurm's usual unit
  const double bytes = forms::value_of_bytes(memory);
  if (bytes > 0) nodes.memory = bytes;  // 0 is all memory of the node
}

void note_no_gpus(const std::vector<GivenOption>& options, std::vector<std::string>& notes) {
  for (const char* name : {"gpus", "gpus-per-node", "gpus-per-task", "gres"}) {
    const GivenOption* const given = find_given(options, name);
    if (!given || !given->value) continue;
    const std::string& text = *given->value;
    if (text != "0" && text != "gpu:0" && text != "gres:gpu:0") continue;
    notes.push_back(fmt::format(
        "{} requests no GPU: each node starts one rank, unless GPUS_PER_NODE sets more", written(*given)));
  }
}

void note_few_cores(const std::vector<GivenOption>& options, const ElsewhereNodes& nodes,
                    std::vector<std::string>& notes) {
  const GivenOption* const given = find_given(options, "cpus-per-task");
  const std::optional<int> ranks = nodes.ranks ? nodes.ranks : nodes.gpus;
  if (!given || nodes.tasks || !ranks) return;
  const auto cores = forms::whole(given->value.value_or(""));
  if (!cores || *cores >= *ranks) return;
  notes.push_back(fmt::format("{}: the {} ranks of a node share {}; request at least one core per rank",
                              written(*given), *ranks, counted(*cores, "core")));
}

void note_output_folders(const std::vector<GivenOption>& options, bool is_known,
                         std::vector<std::string>& notes) {
  for (const char* name : {"output", "error"}) {
    const GivenOption* const option = find_given(options, name);
    if (!option || !option->value) continue;
    const std::filesystem::path folder = std::filesystem::path(*option->value).parent_path();
    // Slurm replaces patterns such as %j when the job starts.
    if (folder.empty() || folder.string().find('%') != std::string::npos) continue;
    if (folder.is_relative() && !is_known) continue;
    std::error_code unreadable;
    if (std::filesystem::is_directory(folder, unreadable)) continue;
    notes.push_back(
        fmt::format("{}: the folder '{}' does not exist here; if it is missing on the nodes, Slurm "
                    "ends the job at once, without any output: make it first",
                    written(*option), folder.string()));
  }
}

}  // namespace primus::launch
