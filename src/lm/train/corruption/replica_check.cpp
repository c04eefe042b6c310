#include "lm/train/corruption/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace primus {
namespace {

std::string copies_of(const engine::ParameterUnit& unit, const engine::Mesh& mesh, bool sharded) {
  using enum engine::ReduceGroup;
  const engine::MeshPlace& place = mesh.place();
  std::string text = unit.at_both_ends ? "ends" : fmt::format("stage {}", place.stage);
  if (unit.group == kData) text += fmt::format(", tensor {}", place.tensor);
  if (unit.group == kExperts || unit.group == kExpertTokens) text += fmt::format(", expert {}", place.expert);
  if (unit.group == kExperts) text += fmt::format(".{}", place.expert_tensor);
  if (!sharded) return text;
  const engine::Reduction& reduction = mesh.reduction(unit.group);
  return text + fmt::format(", shard {} of {}", reduction.rank() % reduction.shards(), reduction.shards());
}

std::string line_of(const std::string& copies, const std::string& name, std::uint64_t hash) {
  return fmt::format("{}\t{}\t{:016x}\n", copies, name, hash);
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const engine::ParameterStore& store, const engine::Mesh& mesh,
                                         const std::string& prefix) {
  std::vector<StoredTensor> all;
  for (const engine::ParameterUnit& unit : store.units()) {
    const auto add = [&](const Tensor& tensor, bool sharded, const std::string& what) {
      if (tensor.absent() || tensor.bytes() == 0) return;
      all.push_back(
          {copies_of(unit, mesh, sharded), fmt::format("{}{} {}", prefix, unit.name, what), tensor});
    };
    const bool split_values = unit.sharding == engine::Sharding::kParameters;
    const bool split = unit.sharding != engine::Sharding::kNone;
    add(split_values ? unit.stored.values : unit.values, split_values, "weights");
    if (unit.stored.master.data != unit.stored.values.data) add(unit.stored.master, split, "master weights");
    add(unit.stored.remainder, split, "low bits of master weights");
    for (const engine::UnitState& state : unit.states) {
      add(state.values, split, state.spec.name);
      add(state.scales, split, "scales of " + state.spec.name);
    }
  }
  return all;
}

Corruption compare_copies(const std::vector<StoredTensor>& tensors, DeviceHash& hash, CheckpointGroup& group,
                          bool* copied) {
  std::map<std::string, std::vector<Tensor>> kinds;
  for (const StoredTensor& tensor : tensors) kinds[tensor.copies].push_back(tensor.tensor);
  std::string lines;
  for (const auto& [copies, of_kind] : kinds) lines += line_of(copies, "", hash.of(of_kind));
  const std::vector<std::string> answers = group.gather(lines);
  std::string differs;
  if (group.rank() == 0) differs = judge_copies(answers, copied).found() ? "1" : "";
  if (group.broadcast(differs).empty()) return {};
  lines.clear();
  for (const StoredTensor& tensor : tensors)
    lines += line_of(tensor.copies, tensor.name, hash.of({&tensor.tensor, 1}));
  const std::vector<std::string> details = group.gather(lines);
  Corruption finding;
  if (group.rank() == 0) finding = judge_copies(details);
  return corruption_from(group.broadcast(to_text(finding)));
}

Corruption judge_copies(const std::vector<std::string>& lines_of_ranks, bool* copied) {
  // For each tensor (its copies and its name): the ranks that have each hash.
  std::map<std::pair<std::string, std::string>, std::map<std::string, std::vector<int>>> tensors;
  std::vector<std::pair<std::string, std::string>> order;
  for (std::size_t rank = 0; rank < lines_of_ranks.size(); ++rank) {
    std::string_view rest = lines_of_ranks[rank];
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      const std::size_t first = line.find('\t'), second = line.rfind('\t');
      if (first == line.npos || second == first) continue;
      const std::pair key{std::string(line.substr(0, first)),
                          std::string(line.substr(first + 1, second - first - 1))};
      const auto [found, is_new] = tensors.try_emplace(key);
      if (is_new) order.push_back(key);
      found->second[std::string(line.substr(second + 1))].push_back(static_cast<int>(rank));
    }
  }
  if (copied) *copied = false;
  Corruption finding;
  for (const auto& key : order) {
    const auto& hashes = tensors.at(key);
    std::size_t ranks = 0, most = 0;
    for (const auto& [hash, of_hash] : hashes) {
      ranks += of_hash.size();
      most = std::max(most, of_hash.size());
    }
    if (copied && ranks > 1) *copied = true;
    if (hashes.size() == 1 || finding.found()) continue;
    const bool decided = 2 * most > ranks;
    for (const auto& [hash, of_hash] : hashes) {
      if (decided && of_hash.size() == most) continue;
      finding.ranks.insert(finding.ranks.end(), of_hash.begin(), of_hash.end());
    }
    std::ranges::sort(finding.ranks);
    const char* const verb = finding.ranks.size() == 1 ? "was" : "were";
    finding.text =
        decided
            ? fmt::format("{} {} found to hold other bits of {} than {} ranks with copies",
                          name_ranks(finding.ranks), verb, key.second, most)
            : fmt::format("{} {} found to hold different bits of {}, and no majority tells which are right",
                          name_ranks(finding.ranks), verb, key.second);
  }
  return finding;
}

}  // namespace primus
