// Where Kubernetes places the pods of a job, and checks of the nodes before the job's command.
//
// Kueue places pods by levels of a topology (topology-aware scheduling, beta and on by default since Kueue
// 0.14); the administrator names the node label of each level. Annotations of the pods request a level. Kueue
// gives consecutive pods neighbouring nodes. JobSet itself can reserve the nodes with one value of a label
// (exclusive placement).
//
// A gate runs `preflight --quick` on all nodes of the job. With "pods", it is an init container of each pod:
// it checks the very nodes that will train, also after each restart. With "job", it is a separate
// replicated job, on which the training job depends: pods of the training job are created after its success,
// perhaps on other nodes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/settings.h"

namespace primus::launch {

inline constexpr const char *kGateOfPods = "pods", *kGateOfJob = "job";

// Throws Error(kInvalid) for requests that contradict each other or the job, or that its kind cannot have.
void check_placing(const KubernetesSettings& settings, bool has_ranks);

// Returns the annotations of the pods.
std::map<std::string, std::string> annotations_of_pods(const KubernetesPlacing& placing);
// Returns the annotations of the replicated job.
std::map<std::string, std::string> annotations_of_job(const KubernetesPlacing& placing);

// Returns the arguments of Primus that check the nodes. `command`: those of the pods' command, of which the
// options --env of `direct` are kept.
std::vector<std::string> gate_command(const std::vector<std::string>& command);

// Returns notes on requests that may have no effect, or another one than expected.
std::vector<std::string> notes_on_placing(const KubernetesSettings& settings);

}  // namespace primus::launch
