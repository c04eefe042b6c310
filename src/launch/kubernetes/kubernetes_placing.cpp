#include "launch/kubernetes/kubernetes_placing.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace primus::launch {
namespace {

constexpr const char* kHost = "kubernetes.io/hostname";

bool uses_kueue(const KubernetesPlacing& p) {
  return !p.required.empty() || !p.preferred.empty() || !p.slice.empty();
}

// Pods are spread over the values of the topology key, so they cannot also share one of its values.
void check_spread(const KubernetesSettings& s) {
  const KubernetesPlacing& p = s.placing;
  const bool shares_slice = p.slice_size.value_or(1) > 1;
  for (const auto& [option, label] :
       {std::pair("--required-topology", p.required), std::pair("--preferred-topology", p.preferred),
        std::pair("--exclusive-topology", p.exclusive),
        std::pair("--slice-topology", shares_slice ? p.slice : "")}) {
    if (label.empty() || label != s.placing.topology_key || s.nodes.value_or(1) == 1) continue;
    throw invalid(fmt::format("{} {} places several pods on nodes with one value of the label, but "
                              "--topology-key spreads them over its values",
                              option, label),
                  label == kHost
                      ? "name the label of a rack or a block: a node has one pod"
                      : fmt::format("remove --topology-key, so that only hosts differ ({})", kHost));
  }
}

}  // namespace

void check_placing(const KubernetesSettings& s, bool has_ranks) {
  const KubernetesPlacing& p = s.placing;
  const bool has_gate = p.gate != "none";
  if (s.kind == "pytorchjob" && (uses_kueue(p) || !p.exclusive.empty() || has_gate)) {
    throw invalid(fmt::format("a PyTorchJob has no {}", has_gate ? "gate" : "placing by topology"),
                  "it has two kinds of pods, which are created and placed separately; use --kind jobset");
  }
  if (!p.required.empty() && !p.preferred.empty())
    throw invalid("--required-topology and --preferred-topology exclude each other", "remove one of them");
  if (p.slice.empty() != !p.slice_size.has_value()) {
    throw invalid(p.slice.empty() ? "--slice-size has no effect without --slice-topology"
                                  : "--slice-topology needs the number of pods of a slice",
                  "set both --slice-topology and --slice-size, or none");
  }
  const int nodes = s.nodes.value_or(1);
  if (p.slice_size && nodes % *p.slice_size != 0) {
    throw invalid(fmt::format("--slice-size {} does not divide the {} nodes", *p.slice_size, nodes),
                  "Kueue needs slices of equal size");
  }
  if (!p.exclusive.empty() && uses_kueue(p)) {
    throw invalid("--exclusive-topology is JobSet's own placing, and excludes that of Kueue",
                  "remove --exclusive-topology, or the options --required-topology, --preferred-topology and "
                  "--slice-topology");
  }
  if (has_gate && !has_ranks) {
    throw invalid("--gate checks nodes before a command that runs on ranks, such as train pretrain",
                  "remove --gate");
  }
  check_spread(s);
}

std::map<std::string, std::string> annotations_of_pods(const KubernetesPlacing& p) {
  std::map<std::string, std::string> annotations;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) annotations[fmt::format("kueue.x-k8s.io/podset-{}", name)] = value;
  };
  add("required-topology", p.required);
  add("preferred-topology", p.preferred);
  add("slice-required-topology", p.slice);
  if (p.slice_size) add("slice-size", std::to_string(*p.slice_size));
  return annotations;
}

std::map<std::string, std::string> annotations_of_job(const KubernetesPlacing& p) {
  if (p.exclusive.empty()) return {};
  return {{"alpha.jobset.sigs.k8s.io/exclusive-topology", p.exclusive}};
}

std::vector<std::string> gate_command(const std::vector<std::string>& command) {
  std::vector<std::string> words{"direct"};
  for (std::size_t i = 1; i < command.size() && command[i] != "--"; ++i) {
    const bool has_value = command[i] == "--env" && i + 1 < command.size();
    if (!has_value && !command[i].starts_with("--env=")) continue;
    words.push_back(command[i]);
    if (has_value) words.push_back(command[++i]);
  }
  words.insert(words.end(), {"--", "preflight", "--quick", "--dump-path", "/tmp/preflight"});
  return words;
}

std::vector<std::string> notes_on_placing(const KubernetesSettings& s) {
  std::vector<std::string> notes;
  const KubernetesPlacing& p = s.placing;
  if (uses_kueue(p) && s.queue.empty()) {
    notes.emplace_back(
        "Kueue places only jobs of its queues: without --queue, the topology has an effect only if the "
        "namespace has the queue 'default'");
  }
  if (p.gate == kGateOfPods)
    notes.emplace_back(
        "the gate: each pod runs 'preflight --quick' first, and the command only if it succeeds");
  if (p.gate == kGateOfJob) {
    notes.emplace_back(
        "the gate: a job of as many pods runs 'preflight --quick' first; the command's pods are created only "
        "if it succeeds, perhaps on other nodes (--gate pods checks the same nodes)");
    if (!s.queue.empty())
      notes.emplace_back(
          "Kueue reserves the resources of the gate and of the command at the same time: the "
          "queue needs twice the quota (--gate pods does not)");
  }
  return notes;
}

}  // namespace primus::launch
