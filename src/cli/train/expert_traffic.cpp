#include "cli/train/expert_traffic.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string_view>

#include "base/terminal/terminal.h"
#include "lm/train/settings/expert_hosts.h"

namespace primus::cli {
namespace {

// Bytes between hosts and within a host.
struct Sent {
  double between = 0, within = 0;
};

struct Method {
  std::string_view name, key;
  Sent most;                  // if all buffers are full
  std::optional<Sent> equal;  // if every choice of experts is equally probable
};

// Returns both methods, two hops first; empty if the stage has no all-to-all in two hops.
std::optional<std::array<Method, 2>> methods_of(const TrainingForecast& f, const StepMeasurement& stage) {
  const engine::MeshShape& mesh = f.mesh;
  if (!mesh.experts_on_hosts()) return std::nullopt;
  Sent two;
  for (const GroupTraffic& group : stage.communication) {
    const double bytes = group.traffic[comm::Kind::kAllToAll].bytes;
    if (group.group == "expert_places") two.between = bytes;
    if (group.group == "expert_host") two.within = bytes;
  }
  if (two.within == 0) return std::nullopt;
  const int ranks = mesh.expert * mesh.expert_tensor, hosts = ranks / mesh.host, others = mesh.host - 1;
  // The bytes of one full buffer from one rank to another, in all transfers of a step.
  const double part = two.within / (hosts * others);
  std::array<Method, 2> methods{
      Method{"two hops", "two_hops", two, {}},
      Method{"one hop", "one_hop", {part * (ranks - mesh.host), part * others}, {}}};
  // With capacities, a full buffer is smaller than all tokens, and the expected share of it is not known.
  if (f.model.moe.training.capacity_factor > 0) return methods;
  const auto times = [&](const ExpertRows& rows) {
    return Sent{part * rows.between_hosts, part * rows.within_host};
  };
  methods[0].equal = times(rows_in_two_hops(f.model.moe, mesh));
  methods[1].equal = times(rows_in_one_hop(f.model.moe, mesh));
  return methods;
}

}  // namespace

std::string expert_traffic_text(const TrainingForecast& f, const StepMeasurement& stage) {
  const auto methods = methods_of(f, stage);
  if (!methods) return "";
  std::string text;
  for (const Method& method : *methods) {
    const bool used = &method == &methods->front();
    text += fmt::format("    {:<18}{} between hosts and {} within a host at most",
                        fmt::format("{}{}", method.name, used ? "" : ", not used"),
                        human_bytes(method.most.between), human_bytes(method.most.within));
    if (method.equal) {
      text += fmt::format("; {} and {} if all experts are chosen equally often",
                          human_bytes(method.equal->between), human_bytes(method.equal->within));
    }
    text += "\n";
  }
  return text;
}

nlohmann::json expert_traffic_json(const TrainingForecast& f, const StepMeasurement& stage) {
  nlohmann::json json;
  const auto methods = methods_of(f, stage);
  if (!methods) return json;
  const auto sent = [](const Sent& of) {
    return nlohmann::json{{"between_hosts", of.between}, {"within_host", of.within}};
  };
  for (const Method& method : *methods) {
    nlohmann::json& entry = json[std::string(method.key)];
    entry["bytes_per_step_at_most"] = sent(method.most);
    if (method.equal) entry["bytes_per_step_if_chosen_equally"] = sent(*method.equal);
  }
  json["ranks_per_host"] = f.mesh.host;
  return json;
}

}  // namespace primus::cli
