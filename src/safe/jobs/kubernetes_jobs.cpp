#include "safe/jobs/kubernetes_jobs.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace primus::jobs {
namespace {

using Json = nlohmann::json;

// Resources of the jobs that 'primus k8s' makes.
struct Kind {
  const char* name;       // as in RunJob::kind
  const char* resource;   // for kubectl
  const char* pod_label;  // label of the pods, with the job's name
};
constexpr std::array<Kind, 2> kKinds = {
    {{"jobset", "jobsets.jobset.x-k8s.io", "jobset.sigs.k8s.io/jobset-name"},
     {"pytorchjob", "pytorchjobs.kubeflow.org", "training.kubeflow.org/job-name"}}};
constexpr const char* kLabel = "app.kubernetes.io/managed-by=primus";  // launch/kubernetes/kubernetes.cpp
constexpr const char* kTimeout = "--request-timeout=15s";

const Kind& kind_of(const std::string& name) { return name == kKinds[1].name ? kKinds[1] : kKinds[0]; }

// Values of objects from the cluster's API; null or 0 if they are missing or of another type.
const Json& at(const Json& json, const std::vector<const char*>& keys) {
  static const Json kNone;
  const Json* value = &json;
  for (const char* key : keys) {
    const auto found = value->is_object() ? value->find(key) : value->end();
    if (!value->is_object() || found == value->end()) return kNone;
    value = &*found;
  }
  return *value;
}
std::string text_at(const Json& json, const std::vector<const char*>& keys) {
  const Json& value = at(json, keys);
  return value.is_string() ? value.get<std::string>() : "";
}
std::int64_t number_at(const Json& json, const std::vector<const char*>& keys) {
  const Json& value = at(json, keys);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}

// Returns whether a condition of the job's status is true.
bool has_condition(const Json& job, std::string_view type) {
  const Json& conditions = at(job, {"status", "conditions"});
  if (!conditions.is_array()) return false;
  for (const Json& condition : conditions)
    if (text_at(condition, {"type"}) == type && text_at(condition, {"status"}) == "True") return true;
  return false;
}

struct Pods {
  std::int64_t running = 0, all = 0;
};

Pods pods_of(const Json& job, const Kind& kind) {
  Pods pods;
  if (&kind == kKinds.data()) {
    const Json& sets = at(job, {"spec", "replicatedJobs"});
    if (sets.is_array()) {
      for (const Json& set : sets)
        pods.all += std::max<std::int64_t>(number_at(set, {"replicas"}), 1) *
                    number_at(set, {"template", "spec", "parallelism"});
    }
    // JobSet counts jobs, of which 'primus k8s' makes one with all pods.
    const Json& statuses = at(job, {"status", "replicatedJobsStatus"});
    if (statuses.is_array()) {
      for (const Json& status : statuses)
        if (number_at(status, {"ready"}) > 0) pods.running = pods.all;
    }
    return pods;
  }
  for (const char* role : {"Master", "Worker"}) {
    pods.all += number_at(job, {"spec", "pytorchReplicaSpecs", role, "replicas"});
    pods.running += number_at(job, {"status", "replicaStatuses", role, "active"});
  }
  return pods;
}

std::optional<ScheduledJob> job_of(const Json& json, const Kind& kind) {
  if (!json.is_object()) return std::nullopt;
  for (const char* ended : {"Completed", "Succeeded", "Failed"})
    if (has_condition(json, ended)) return std::nullopt;
  using State = ScheduledJob::State;
  ScheduledJob job{.scheduler = RunJob::Scheduler::kKubernetes,
                   .id = text_at(json, {"metadata", "name"}),
                   .name_space = text_at(json, {"metadata", "namespace"}),
                   .kind = kind.name};
  job.shown = fmt::format("k8s:{}{}{}", job.name_space, job.name_space.empty() ? "" : "/", job.id);
  job.name = job.id;
  const Pods pods = pods_of(json, kind);
  if (pods.all > 0) job.nodes = fmt::format("{} of {} pods", pods.running, pods.all);
  const Json& suspended =
      &kind == kKinds.data() ? at(json, {"spec", "suspend"}) : at(json, {"spec", "runPolicy", "suspend"});
  if (!at(json, {"metadata", "deletionTimestamp"}).is_null()) {
    job.state = State::kEnding;
  } else if (suspended.is_boolean() && suspended.get<bool>()) {
    job.reason = "suspended, as by a queue";
  } else {
    job.state = pods.running > 0 ? State::kRunning : State::kWaiting;
  }
  return job;
}

// Returns whether the cluster has no jobs of this kind at all.
bool is_unknown_kind(const SubprocessResult& result) {
  return result.err.find("doesn't have a resource type") != std::string::npos;
}

std::vector<std::string> in_namespace(std::vector<std::string> words, const std::string& name_space) {
  if (name_space == "*") {
    words.emplace_back("--all-namespaces");
  } else if (!name_space.empty()) {
    words.push_back("--namespace=" + name_space);
  }
  return words;
}

}  // namespace

std::vector<ScheduledJob> kubernetes_jobs(const Tools& tools, const std::string& name_space) {
  std::vector<ScheduledJob> jobs;
  for (const Kind& kind : kKinds) {
    const std::vector<std::string> command = in_namespace(
        {"kubectl", "get", kind.resource, "--selector", kLabel, "--output=json", kTimeout}, name_space);
    const SubprocessResult result = tools.run(command);
    if (result.exit_code != 0 && is_unknown_kind(result)) continue;
    const Json list = Json::parse(result.exit_code == 0 ? result.out : tools.output(command), nullptr, false);
    const Json& items = at(list, {"items"});
    if (!items.is_array()) throw Error(ErrorKind::kIo, "the output of 'kubectl get' is not a list");
    for (const Json& item : items)
      if (auto job = job_of(item, kind)) jobs.push_back(std::move(*job));
  }
  return jobs;
}

std::optional<ScheduledJob> find_kubernetes_job(const Tools& tools, const RunJob& job) {
  for (const Kind& kind : kKinds) {
    if (!job.kind.empty() && job.kind != kind.name) continue;
    const std::vector<std::string> command =
        in_namespace({"kubectl", "get", kind.resource, job.id, "--output=json", kTimeout}, job.name_space);
    const SubprocessResult result = tools.run(command);
    if (result.exit_code != 0 &&
        (is_unknown_kind(result) || result.err.find("NotFound") != std::string::npos))
      continue;
    const std::string text = result.exit_code == 0 ? result.out : tools.output(command);
    if (auto found = job_of(Json::parse(text, nullptr, false), kind)) return found;
  }
  return std::nullopt;
}

std::string stop_kubernetes_job(const Tools& tools, const ScheduledJob& found, bool now) {
  const Kind& kind = kind_of(found.kind);
  if (found.state == ScheduledJob::State::kEnding && !now)
    return fmt::format("the {} '{}' is already being deleted", kind.name, found.id);
  tools.output(in_namespace(
      {"kubectl", "delete", kind.resource, found.id, "--wait=false", "--ignore-not-found", kTimeout},
      found.name_space));
  if (now) {
    tools.output(in_namespace(
        {"kubectl", "delete", "pods", "--selector", fmt::format("{}={}", kind.pod_label, found.id),
         "--grace-period=1", "--wait=false", kTimeout},
        found.name_space));
    return fmt::format("the {} '{}' and its pods are deleted without time to save", kind.name, found.id);
  }
  return fmt::format("the {} '{}' is deleted; its ranks have the pods' grace period (two minutes) to save",
                     kind.name, found.id);
}

}  // namespace primus::jobs
