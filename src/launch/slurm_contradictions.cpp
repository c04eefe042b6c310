#include "launch/slurm_contradictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "launch/node.h"
#include "launch/place_options.h"
#include "launch/value_words.h"

namespace primus::launch {
namespace {

// Options of which Slurm uses only one.
constexpr std::pair<std::string_view, std::string_view> kExclusive[] = {
    {"requeue", "no-requeue"}, {"exclusive", "oversubscribe"}, {"mem", "mem-per-cpu"},
    {"mem", "mem-per-gpu"},    {"mem-per-cpu", "mem-per-gpu"},
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

}  // namespace

void settle_contradictions(const std::vector<GivenOption>& given, std::vector<GivenOption>& options) {
  for (const auto& [one, other] : kExclusive) {
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

}  // namespace primus::launch
