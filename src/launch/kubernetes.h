// Mode k8s: the manifest of a job on Kubernetes, as a JobSet (jobset.x-k8s.io/v1alpha2) or a PyTorchJob of
// the Kubeflow training operator (kubeflow.org/v1). Each node is a pod of one container, which runs `primus
// direct`. Pods are spread over the values of a topology key, have no privileges and no token of the cluster,
// and get 2 minutes to save when they are to end. No secret is in a manifest: it names Secrets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan.h"
#include "launch/settings.h"

namespace primus::launch {

struct KubernetesRequest {
  KubernetesSettings settings;       // of files, with the command line's values
  std::vector<std::string> command;  // Primus's words in a pod: direct [options] -- train ...
  bool has_ranks = false;
};

struct KubernetesPlan {
  std::string manifest;                     // YAML
  std::string name, name_space;             // of the job; namespace may be empty: kubectl's current one
  std::optional<std::string> token_secret;  // the Secret that has to hold the job's secret ("token")
};

// Throws Error(kInvalid): no image, a name that Kubernetes does not take, a secret in env.
KubernetesPlan plan_kubernetes(const KubernetesRequest& request);

// The Secret for `plan` with a new random token, as a manifest. Not for showing.
std::string token_manifest(const KubernetesPlan& plan);

// `kubectl ... <words>` in the plan's namespace.
std::vector<std::string> kubectl(const KubernetesPlan& plan, std::vector<std::string> words);

}  // namespace primus::launch
