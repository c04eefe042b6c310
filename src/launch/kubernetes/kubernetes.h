// Mode k8s: the manifest of a Kubernetes job, as a JobSet (jobset.x-k8s.io/v1alpha2) or a PyTorchJob of the
// Kubeflow training operator (kubeflow.org/v1). Each node is a pod with one container that runs `primus
// direct`. Pods are spread over the values of a topology key, and have no privileges and no cluster token. A
// pod has 2 minutes to save before it is ended. Manifests contain no secrets; they refer to Secrets by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/job_outline.h"
#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

struct KubernetesRequest {
  KubernetesSettings settings;       // settings from files and from the command line
  std::vector<std::string> command;  // arguments of Primus in a pod: direct [options] -- train ...
  bool has_ranks = false;
  JobOutline outline = {};  // the command in the pods
  // Variables of this shell that the experiment reads: those added to the settings' variables, and secrets,
  // which no manifest contains.
  std::vector<std::string> passed = {}, withheld = {};
};

struct KubernetesPlan {
  std::string manifest;                     // YAML
  std::string name, name_space;             // name and namespace of the job; empty namespace: kubectl's
                                            // default
  std::optional<std::string> token_secret;  // name of the Secret that must contain the job's secret under the
                                            // key "token"
};

// Throws Error(kInvalid) for a missing image, an invalid Kubernetes name, or a secret in env.
KubernetesPlan plan_kubernetes(const KubernetesRequest& request);

// Returns the number of GPUs that each pod requests; nullopt: none.
std::optional<int> requested_gpus(const KubernetesSettings& settings);

// Returns notes on settings that are allowed, but with which a job may fail or lose its checkpoints.
std::vector<std::string> notes_on_pods(const KubernetesRequest& request);

// Returns notes on variables of this shell that state another size of the job. The pods do not get them.
std::vector<std::string> notes_on_shell(const KubernetesSettings& settings, const Surroundings& surroundings);

// Returns notes on output that is lost with a pod, or that Kubernetes does not show. `options`: those of
// `direct` in the pod.
std::vector<std::string> notes_on_output(const KubernetesSettings& settings,
                                         const std::vector<std::string>& options);

// Returns a manifest of the Secret for `plan` with a new random token. The caller must not display it.
std::string token_manifest(const KubernetesPlan& plan);

// Returns `kubectl ... <words>` for the plan's namespace.
std::vector<std::string> kubectl(const KubernetesPlan& plan, std::vector<std::string> words);

}  // namespace primus::launch
