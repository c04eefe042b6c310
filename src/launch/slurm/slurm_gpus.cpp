#include "launch/slurm/slurm_gpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "base/text/counted.h"
#include "launch/options/place_options.h"

namespace primus::launch {
namespace {

// Returns the number at the end of "[TYPE:]COUNT", or 1 for a type without a count; nullopt for other text
// ("8k").
std::optional<int> count_of(std::string_view text) {
  const std::string_view last = text.substr(text.rfind(':') + 1);
  if (last.find_first_of("0123456789") != 0) return 1;
  int value = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), value);
  return error == std::errc() && end == last.data() + last.size() ? std::optional(value) : std::nullopt;
}

// Returns the number of GPUs that an option requests, summed over types of GPUs; nullopt if the option is not
// given or does not state it.
std::optional<int> gpus_in(const std::vector<GivenOption>& options, std::string_view option) {
  const GivenOption* const given = find_given(options, option);
  if (!given || !given->value) return std::nullopt;
  int sum = 0;
  for (std::string_view rest = *given->value; !rest.empty();) {
    std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    if (option == "gres") {
      if (part.starts_with("gres:") || part.starts_with("gres/")) part.remove_prefix(5);
      const std::string_view name = part.substr(0, part.find(':'));
      if (name != "gpu") continue;
      part.remove_prefix(std::min(name.size() + 1, part.size()));
    }
    const std::optional<int> count = count_of(part);
    if (!count) return std::nullopt;
    sum += *count;
  }
  return sum > 0 ? std::optional(sum) : std::nullopt;
}

// A number of GPUs per node, and the option that requests it.
struct Request {
  std::string option;
  int count = 0;
};

// Returns what --gpus requests per node.
std::optional<Request> share_of_total(const std::vector<GivenOption>& options, int nodes) {
  const std::optional<int> total = gpus_in(options, "gpus");
  if (!total || nodes == 0) return std::nullopt;
  if (*total < nodes) {
    throw invalid(fmt::format("--gpus={} is fewer than one GPU for each of the {} nodes", *total, nodes),
                  "request more GPUs, or fewer nodes");
  }
  if (*total % nodes != 0) {
    throw invalid(
        fmt::format("--gpus={} cannot be shared equally by {} nodes", *total, nodes),
        fmt::format("request --gpus={} or --gpus={}", *total / nodes * nodes, (*total / nodes + 1) * nodes));
  }
  return Request{written(*find_given(options, "gpus")), *total / nodes};
}

}  // namespace

NodeGpus gpus_of_node(const std::vector<GivenOption>& options, int nodes, int tasks) {
  std::vector<Request> requests;
  for (const char* option : {"gpus-per-node", "gres"}) {
    if (const auto count = gpus_in(options, option))
      requests.push_back({written(*find_given(options, option)), *count});
  }
  if (auto share = share_of_total(options, nodes)) requests.push_back(std::move(*share));
  for (std::size_t i = 1; i < requests.size(); ++i) {
    if (requests[i].count == requests[0].count) continue;
    throw invalid(fmt::format("{} and {} request different numbers of GPUs per node ({} and {})",
                              requests[0].option, requests[i].option, requests[0].count, requests[i].count),
                  "remove one of them");
  }
  NodeGpus gpus;
  if (!requests.empty()) gpus.count = requests[0].count;
  const std::optional<int> per_task = gpus_of_task(options);
  if (!per_task) return gpus;
  const int needed = *per_task * tasks;
  const std::string option = written(*find_given(options, "gpus-per-task"));
  if (gpus.count && needed > *gpus.count) {
    throw invalid(
        fmt::format("{} with {} per node needs {} per node, but {} requests {}", option,
                    counted(tasks, "task"), counted(needed, "GPU"), requests[0].option, *gpus.count),
        "request as many GPUs per node as its tasks need");
  }
  if (gpus.count && needed < *gpus.count) {
    gpus.notes.push_back(
        fmt::format("{} with {} per node uses {} of the {} GPUs that {} requests per node; the others stay "
                    "idle",
                    option, counted(tasks, "task"), needed, *gpus.count, requests[0].option));
  }
  gpus.count = needed;
  return gpus;
}

void refuse_few_bound_gpus(const std::vector<GivenOption>& options, const std::optional<int>& count) {
  const GivenOption* const given = find_given(options, "gpu-bind");
  std::string_view binding = given && given->value ? std::string_view(*given->value) : std::string_view();
  if (binding.starts_with("verbose,")) binding.remove_prefix(8);
  std::optional<int> bound;
  if (binding.starts_with("single:") || binding.starts_with("per_task:")) bound = count_of(binding);
  if (binding.starts_with("map_gpu:")) bound = 1;
  if (!bound || !count || *bound >= *count) return;
  throw invalid(fmt::format("{} gives the launcher of a node {} of the node's {} GPUs, and its ranks get no "
                            "others",
                            written(*given), *bound, *count),
                "remove --gpu-bind: the launcher gives each rank its GPU");
}

std::optional<int> gpus_of_task(const std::vector<GivenOption>& options) {
  return gpus_in(options, "gpus-per-task");
}

}  // namespace primus::launch
