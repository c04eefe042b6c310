#include "launch/kubernetes/kubernetes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/text/json_text.h"
#include "base/text/secrets.h"
#include "launch/direct/direct_network.h"
#include "launch/kubernetes/kubernetes_placing.h"
#include "launch/kubernetes/kubernetes_values.h"
#include "launch/node/node.h"
#include "launch/options/assignment.h"
#include "launch/options/place_options.h"

namespace primus::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kGraceSeconds = 120;  // time between SIGTERM and SIGKILL, in which ranks save a checkpoint
// Kubernetes allows 63 characters, and names of pods add up to 23 characters to the job's name
constexpr std::size_t kMaxName = 40;
constexpr const char *kReplicatedJob = "node", *kGateJob = "gate";
// The gate has its own port, so that ranks of the command cannot meet ranks of a gate that still runs.
constexpr const char* kGatePort = "29501";
constexpr const char* kTokenKey = "token";
// 'primus jobs' finds the jobs by this label.
constexpr const char *kManagedBy = "app.kubernetes.io/managed-by", *kProgramLabel = "primus";

// Writes YAML in block style. Scalars are written as JSON, which is valid YAML.
void write_yaml(const Json& value, int indent, std::string& out) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  const auto write_child = [&](const Json& child) {
    if (child.is_structured() && !child.empty()) {
      out += "\n";
      write_yaml(child, indent + 2, out);
    } else {
      out +=
          " " + (child.is_structured() ? std::string(child.is_object() ? "{}" : "[]") : child.dump()) + "\n";
    }
  };
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) {
      const bool plain = std::all_of(key.begin(), key.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '/' ||
               (c >= '0' && c <= '9');
      });
      out += margin + (plain ? key : Json(key).dump()) + ":";
      write_child(child);
    }
    return;
  }
  for (const Json& child : value) {
    if (child.is_object() && !child.empty()) {
      std::string text;
      write_yaml(child, indent + 2, text);
      text[static_cast<std::size_t>(indent)] = '-';
      out += text;
    } else {
      out += margin + "-";
      write_child(child);
    }
  }
}

bool is_name(std::string_view text, std::size_t longest) {
  const auto is_inner = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
  return !text.empty() && text.size() <= longest && std::all_of(text.begin(), text.end(), is_inner) &&
         text.front() >= 'a' && text.front() <= 'z' && text.back() != '-';
}

void require_name(const std::string& text, std::string_view what, std::size_t longest) {
  if (is_name(text, longest)) return;
  throw invalid(fmt::format("{} '{}' is not a valid Kubernetes name", what, text),
                fmt::format("use up to {} lower-case letters, digits and '-', with a letter first", longest));
}

Json named(const std::string& name, const std::string& value) { return {{"name", name}, {"value", value}}; }

Json from_secret(const std::string& name, const std::string& secret, const std::string& key) {
  return {{"name", name}, {"valueFrom", {{"secretKeyRef", {{"name", secret}, {"key", key}}}}}};
}

// Adds the variable NAME for "NAME=SECRET/KEY", or all values of a Secret for a text that only names the
// Secret.
void add_secret(const std::string& text, Json& environment, Json& whole) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    require_name(text, "the Secret", 253);
    whole.push_back({{"secretRef", {{"name", text}}}});
    return;
  }
  const std::size_t slash = text.find('/', equals);
  const std::string name = text.substr(0, equals);
  if (!is_variable_name(name) || slash == std::string::npos || slash + 1 == text.size()) {
    throw invalid("a secret must be NAME=SECRET/KEY, or the name of a Secret",
                  "for example HF_TOKEN=hugging-face/token");
  }
  if (std::ranges::any_of(environment, [&](const Json& variable) { return variable["name"] == name; })) {
    throw invalid(fmt::format("--secret {} sets a variable that is already set", name),
                  fmt::format("give {} one value, by --secret or by --env", name));
  }
  const std::string secret = text.substr(equals + 1, slash - equals - 1);
  require_name(secret, "the Secret", 253);
  environment.push_back(from_secret(name, secret, text.substr(slash + 1)));
}

// Adds "/host/path:/inside[:ro]" or "pvc/CLAIM:/inside[:ro]".
void add_volume(const std::string& text, std::size_t number, Json& volumes, Json& mounts) {
  const std::size_t colon = text.find(':');
  const std::string from = text.substr(0, colon);
  std::string inside = colon == std::string::npos ? from : text.substr(colon + 1);
  const bool read_only = inside.ends_with(":ro");
  if (read_only) inside.resize(inside.size() - 3);
  const bool is_claim = from.starts_with("pvc/");
  if ((!is_claim && !from.starts_with('/')) || !inside.starts_with('/') ||
      inside.find(':') != std::string::npos) {
    throw invalid(fmt::format("'{}' is not a volume", text),
                  "write /HOST/PATH:/INSIDE or pvc/CLAIM:/INSIDE, optionally with ':ro'");
  }
  const auto path_of = [](std::string path) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    return path;
  };
  for (const Json& mount : mounts) {
    if (path_of(mount["mountPath"].get<std::string>()) != path_of(inside)) continue;
    throw invalid(fmt::format("'{}': another volume of the pod has the path {}", text, path_of(inside)),
                  "choose another path in the pod");
  }
  const std::string name = fmt::format("volume-{}", number);
  if (is_claim) {
    require_name(from.substr(4), "the claim", 253);
    volumes.push_back({{"name", name}, {"persistentVolumeClaim", {{"claimName", from.substr(4)}}}});
  } else {
    volumes.push_back({{"name", name}, {"hostPath", {{"path", from}}}});
  }
  Json mount{{"name", name}, {"mountPath", inside}};
  if (read_only) mount["readOnly"] = true;
  mounts.push_back(std::move(mount));
}

std::string resource_of(const KubernetesSettings& s) {
  if (s.gpu_resource == "amd") return "amd.com/gpu";
  if (s.gpu_resource == "nvidia") return "nvidia.com/gpu";
  return s.gpu_resource == "none" ? "" : s.gpu_resource;
}

// Refuses sizes that no pod can use. They come from docker's units: in Kubernetes, "64m" is 0.064 bytes.
void check_sizes(const KubernetesSettings& s) {
  constexpr double kLeastBytes = 1 << 20, kMostCores = 1 << 16;
  for (const auto& [option, value] :
       {std::pair("--memory", s.memory), std::pair("--shm-size", s.shared_memory)}) {
    if (!forms::is_quantity(value)) continue;
    const double bytes = forms::value_of_quantity(value);
    if (bytes <= 0 || bytes >= kLeastBytes) continue;
    const std::string number = value.substr(0, value.find_first_not_of("0123456789."));
    throw invalid(fmt::format("{} is {}, which is {:g} bytes in Kubernetes", option, value, bytes),
                  fmt::format("write a unit of Kubernetes: {0}Mi or {0}Gi", number));
  }
  if (forms::is_quantity(s.cpus) && forms::value_of_quantity(s.cpus) > kMostCores)
    throw invalid(fmt::format("--cpus is {}, which is {:g} cores", s.cpus, forms::value_of_quantity(s.cpus)),
                  "write a number of cores, such as 8 or 500m");
}

// Names of resources outside of the Kubernetes core contain a domain. The API server refuses other names.
void require_resource(const std::string& name, std::string_view option, std::string_view example) {
  const std::size_t slash = name.find('/');
  if (slash != std::string::npos && slash > 0 && slash + 1 < name.size() &&
      name.find('/', slash + 1) == std::string::npos)
    return;
  throw invalid(fmt::format("{} '{}' is not a Kubernetes resource: it needs a domain", option, name),
                fmt::format("write DOMAIN/NAME; {}", example));
}

class Manifest {
 public:
  explicit Manifest(const KubernetesRequest& request) : request_(request), s_(request.settings) {
    nodes_ = s_.nodes.value_or(1);
    name_ = s_.name.empty() ? "primus" : s_.name;
    require_name(name_, "the job", kMaxName);
    if (!s_.name_space.empty()) require_name(s_.name_space, "the namespace", 63);
    if (s_.image.empty()) {
      throw invalid("no image is named",
                    "name an image that contains Primus, by --image or k8s.image in .primus.yaml");
    }
    const std::string& kind = s_.gpu_resource;
    check_device(request.command,
                 kind.empty() || kind == "none"             ? "none"
                 : kind.find("amd") != std::string::npos    ? "amd"
                 : kind.find("nvidia") != std::string::npos ? "nvidia"
                                                            : "",
                 kind.empty() ? "no --gpu-resource" : "--gpu-resource " + kind);
    check_sizes(s_);
    check_placing(s_, request.has_ranks);
    const std::string resource = resource_of(s_);
    if (!resource.empty()) require_resource(resource, "--gpu-resource", "amd, nvidia, none, or amd.com/gpu");
    if (!s_.rdma_resource.empty())
      require_resource(s_.rdma_resource, "--rdma-resource", "for example rdma/hca_shared_devices_a");
    if (s_.ranks_per_node && *s_.ranks_per_node > 1 && s_.gpu_resource.empty()) {
      throw invalid("the job requests GPUs, but their kind is not set",
                    "set --gpu-resource to amd, nvidia or a resource name; 'none' means ranks on CPUs");
    }
  }

  std::optional<std::string> token_secret() const {
    if (nodes_ == 1 || !request_.has_ranks) return std::nullopt;
    return name_ + "-job-token";
  }
  const std::string& name() const { return name_; }

  std::string text() const {
    Json metadata{{"name", name_}};
    if (!s_.name_space.empty()) metadata["namespace"] = s_.name_space;
    metadata["labels"] = {{kManagedBy, kProgramLabel}};
    if (!s_.queue.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = s_.queue;
    Json manifest;
    if (s_.kind == "pytorchjob") {
      manifest = {{"apiVersion", "kubeflow.org/v1"}, {"kind", "PyTorchJob"}, {"metadata", metadata}};
      manifest["spec"] = pytorch_job();
    } else {
      manifest = {{"apiVersion", "jobset.x-k8s.io/v1alpha2"}, {"kind", "JobSet"}, {"metadata", metadata}};
      manifest["spec"] = job_set();
    }
    std::string text;
    write_yaml(manifest, 0, text);
    return text;
  }

 private:
  // Says what a container runs.
  enum class Part { kCommand, kGateJob, kGateInPod };

  // A job of all nodes. `gate`: it runs the gate's command instead of the request's.
  Json replicated_job(bool gate) const {
    Json spec{{"parallelism", nodes_},
              {"completions", nodes_},
              {"completionMode", "Indexed"},
              {"backoffLimit", 0},
              {"template", pod("primus", {{"jobset.sigs.k8s.io/jobset-name", name_}}, gate)}};
    Json job{{"name", gate ? kGateJob : kReplicatedJob}, {"replicas", 1}};
    if (const auto annotations = annotations_of_job(s_.placing); !gate && !annotations.empty())
      job["template"]["metadata"]["annotations"] = annotations;
    job["template"]["spec"] = std::move(spec);
    return job;
  }

  Json job_set() const {
    Json failures{{"maxRestarts", s_.max_restarts.value_or(3)}};
    Json jobs = Json::array({replicated_job(false)});
    if (s_.placing.gate == kGateOfJob) {
      jobs[0]["dependsOn"] = Json::array({{{"name", kGateJob}, {"status", "Complete"}}});
      jobs.insert(jobs.begin(), replicated_job(true));
      // A restart would check the same nodes again.
      failures["rules"] = Json::array({{{"name", "gateFailed"},
                                        {"action", "FailJobSet"},
                                        {"targetReplicatedJobs", Json::array({kGateJob})}}});
    }
    return {
        {"failurePolicy", failures}, {"network", {{"enableDNSHostnames", true}}}, {"replicatedJobs", jobs}};
  }

  Json pytorch_job() const {
    const Json labels{{"training.kubeflow.org/job-name", name_}};
    const auto replicas = [&](int count) -> Json {
      return {
          {"replicas", count}, {"restartPolicy", "OnFailure"}, {"template", pod("pytorch", labels, false)}};
    };
    Json specs{{"Master", replicas(1)}};
    if (nodes_ > 1) specs["Worker"] = replicas(nodes_ - 1);
    return {{"runPolicy", {{"cleanPodPolicy", "Running"}, {"backoffLimit", s_.max_restarts.value_or(3)}}},
            {"pytorchReplicaSpecs", specs}};
  }

  Json pod(const std::string& container_name, const Json& labels, bool gate) const {
    Json volumes = Json::array(), mounts = Json::array();
    volumes.push_back(
        {{"name", "shared-memory"}, {"emptyDir", {{"medium", "Memory"}, {"sizeLimit", s_.shared_memory}}}});
    mounts.push_back({{"name", "shared-memory"}, {"mountPath", "/dev/shm"}});
    for (std::size_t i = 0; i < s_.volumes.size(); ++i) add_volume(s_.volumes[i], i, volumes, mounts);

    Json container{{"name", container_name},
                   {"image", s_.image},
                   {"command", command(gate ? gate_command(request_.command) : request_.command)}};
    add_environment(gate ? Part::kGateJob : Part::kCommand, container);
    container["resources"] = resources();
    container["securityContext"] = {{"allowPrivilegeEscalation", false},
                                    {"capabilities", {{"drop", {"ALL"}}}}};
    // The container gets the capability to lock memory, because RDMA needs locked memory.
    if (!s_.rdma_resource.empty())
      container["securityContext"]["capabilities"]["add"] = Json::array({"IPC_LOCK"});
    container["volumeMounts"] = mounts;

    Json spec{{"restartPolicy", "Never"}};
    if (s_.kind == "pytorchjob") spec.erase("restartPolicy");  // a PyTorchJob sets restartPolicy per replica
    if (!s_.service_account.empty()) spec["serviceAccountName"] = s_.service_account;
    spec["automountServiceAccountToken"] = false;
    if (!s_.priority_class.empty()) spec["priorityClassName"] = s_.priority_class;
    spec["terminationGracePeriodSeconds"] = kGraceSeconds;
    if (nodes_ > 1) {
      spec["topologySpreadConstraints"] = Json::array({{{"maxSkew", 1},
                                                        {"topologyKey", s_.placing.topology_key},
                                                        {"whenUnsatisfiable", "DoNotSchedule"},
                                                        {"labelSelector", {{"matchLabels", labels}}}}});
    }
    if (!gate && s_.placing.gate == kGateOfPods) {
      Json check = container;
      check["name"] = kGateJob;
      check["command"] = command(gate_command(request_.command));
      add_environment(Part::kGateInPod, check);
      spec["initContainers"] = Json::array({check});
    }
    spec["containers"] = Json::array({container});
    spec["volumes"] = volumes;
    Json pod{{"spec", spec}};
    if (const auto annotations = annotations_of_pods(s_.placing); !annotations.empty())
      pod = {{"metadata", {{"annotations", annotations}}}, {"spec", spec}};
    return pod;
  }

  // Sets the variables of a container: its place in the job, and the user's variables.
  void add_environment(Part part, Json& container) const {
    Json environment = Json::array(), whole = Json::array();
    add_place(environment, part);
    for (const std::string& text : s_.environment) {
      const Assignment variable = parse_assignment(text, "env");
      if (is_secret(variable.name, variable.value)) {
        throw invalid(
            fmt::format("{} is a secret, but the manifest would show it to all its readers", variable.name),
            fmt::format("put it into a Secret, and name the Secret: --secret {}=SECRET/KEY", variable.name));
      }
      add_variable(variable, environment);
    }
    for (const std::string& secret : s_.secrets) add_secret(secret, environment, whole);
    container["env"] = environment;
    if (!whole.empty()) container["envFrom"] = whole;
  }

  Json command(const std::vector<std::string>& arguments) const {
    Json words = Json::array({s_.program.empty() ? "primus" : s_.program});
    const auto begin = arguments.begin();
    words.push_back(*begin);
    // The operator sets RANK to the pod's number, and Kubernetes substitutes it here.
    if (s_.kind == "pytorchjob") words.insert(words.end(), {"--env", "NODE_RANK=$(RANK)"});
    for (auto word = begin + 1; word != arguments.end(); ++word) words.push_back(escaped(*word));
    return words;
  }

  // Escapes "$(NAME)", which Kubernetes would replace.
  static std::string escaped(const std::string& word) {
    std::string out;
    for (std::size_t i = 0; i < word.size(); ++i) {
      if (word[i] == '$' && i + 1 < word.size() && word[i + 1] == '(') out += '$';
      out += word[i];
    }
    return out;
  }

  void add_place(Json& environment, Part part) const {
    environment.push_back(named("NNODES", std::to_string(nodes_)));
    // The run records its job, so that 'primus stop' can end it.
    environment.push_back(named("PRIMUS_KUBERNETES_JOB", name_));
    environment.push_back(named("PRIMUS_KUBERNETES_KIND", s_.kind));
    Json name_space;
    name_space["fieldRef"]["fieldPath"] = "metadata.namespace";
    environment.push_back({{"name", "PRIMUS_KUBERNETES_NAMESPACE"}, {"valueFrom", name_space}});
    if (s_.placing.slice_size)
      environment.push_back(named(kTopologyVariable, fmt::format("slices={}", *s_.placing.slice_size)));
    if (s_.ranks_per_node) environment.push_back(named("GPUS_PER_NODE", std::to_string(*s_.ranks_per_node)));
    if (s_.kind == "jobset") {
      Json index;
      index["fieldRef"]["fieldPath"] = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
      environment.push_back({{"name", "NODE_RANK"}, {"valueFrom", index}});
      if (nodes_ > 1) {
        environment.push_back(
            named("MASTER_ADDR",
                  fmt::format("{0}-{1}-0-0.{0}", name_, part == Part::kGateJob ? kGateJob : kReplicatedJob)));
        environment.push_back(named("MASTER_PORT", part == Part::kCommand ? "29500" : kGatePort));
      }
    }
    if (const auto secret = token_secret())
      environment.push_back(from_secret("PRIMUS_JOB_TOKEN", *secret, kTokenKey));
  }

  // Adds a variable of the user, which replaces the variable that add_place() set. Throws if the variable
  // contradicts the job.
  void add_variable(const Assignment& variable, Json& environment) const {
    const std::map<std::string, std::string> given{{variable.name, variable.value}};
    check_place_variables(given);
    check_job_variables(given, {.nodes = nodes_, .gpus = requested_gpus(s_)});
    // In a PyTorchJob, RANK is reserved even without ranks: the operator sets RANK to the pod's number.
    if (request_.has_ranks || s_.kind == "pytorchjob")
      check_rank_variables(given, request_.command, {.nodes = nodes_, .ranks = s_.ranks_per_node});
    if (variable.name == "GPUS_PER_NODE" && s_.ranks_per_node &&
        variable.value != std::to_string(*s_.ranks_per_node)) {
      throw invalid(
          fmt::format("--env GPUS_PER_NODE is {}, but --gpus-per-node is {}", variable.value,
                      *s_.ranks_per_node),
          fmt::format(
              "remove --env GPUS_PER_NODE; to start fewer ranks, write -- direct --env GPUS_PER_NODE={} "
              "-- before the command",
              variable.value));
    }
    for (std::size_t i = 0; i < environment.size(); ++i)
      if (environment[i]["name"] == variable.name) environment.erase(i--);
    environment.push_back(named(variable.name, escaped(variable.value)));
  }

  Json resources() const {
    Json limits = Json::object();
    const std::string resource = resource_of(s_);
    if (const auto gpus = requested_gpus(s_)) limits[resource] = *gpus;
    if (!s_.rdma_resource.empty()) limits[s_.rdma_resource] = 1;
    for (const auto& [resource_name, option, value] :
         {std::tuple("cpu", "--cpus", s_.cpus), std::tuple("memory", "--memory", s_.memory)}) {
      if (value.empty()) continue;
      if (forms::is_quantity(value) && forms::value_of_quantity(value) <= 0)
        throw invalid(fmt::format("{} is {}, with which no process can run", option, value),
                      fmt::format("request more, or remove {}", option));
      limits[resource_name] = value;
    }
    if (limits.empty()) return Json::object();
    return {{"requests", limits}, {"limits", limits}};
  }

  const KubernetesRequest& request_;
  const KubernetesSettings& s_;
  std::string name_;
  int nodes_ = 1;
};

}  // namespace

std::optional<int> requested_gpus(const KubernetesSettings& settings) {
  if (resource_of(settings).empty()) return std::nullopt;
  return settings.ranks_per_node.value_or(1);
}

KubernetesPlan plan_kubernetes(const KubernetesRequest& request) {
  const Manifest manifest(request);
  return {manifest.text(), manifest.name(), request.settings.name_space, manifest.token_secret()};
}

namespace {

std::vector<std::string> notes_on_volumes(const KubernetesRequest& request) {
  if (request.settings.volumes.empty()) return {};
  std::vector<KeptFolder> kept;
  for (const std::string& volume : request.settings.volumes) {
    std::string inside = volume.substr(volume.find(':') + 1);
    const bool read_only = inside.ends_with(":ro");
    if (read_only) inside.resize(inside.size() - 3);
    kept.push_back({inside, read_only});
  }
  return notes_on_lost_folders(
      request.outline, kept, "", "pod",
      "choose a workspace in a volume, such as workspace=" + (Path(kept.front().inside) / "output").string());
}

}  // namespace

std::vector<std::string> notes_on_pods(const KubernetesRequest& request) {
  const KubernetesSettings& settings = request.settings;
  std::vector<std::string> notes = notes_on_volumes(request);
  if (!request.passed.empty())
    notes.push_back(fmt::format("the pods get these variables of this shell, which the experiment reads: {}",
                                fmt::join(request.passed, ", ")));
  for (const std::string& name : request.withheld)
    notes.push_back(
        fmt::format("the experiment reads {0}, which the pods do not get, because it is a secret: --secret "
                    "{0}=SECRET/KEY",
                    name));
  if (request.has_ranks && settings.volumes.empty()) {
    notes.emplace_back(
        "the pods have no volume: the experiment and the data must be in the image, and checkpoints are lost "
        "with the pod, so a restarted pod begins at step 0; --volume pvc/CLAIM:/PATH keeps them");
  }
  if (request.has_ranks && request.outline.starts_anew && settings.max_restarts.value_or(1) != 0) {
    notes.emplace_back(
        "auto_continue_train is false, so pods that are started again begin at the first step; "
        "auto_continue_train=true lets them continue from the checkpoints, and --max-restarts 0 starts none");
  }
  const std::string &memory = settings.memory, &shared = settings.shared_memory;
  if (forms::is_quantity(memory) && forms::is_quantity(shared) &&
      forms::value_of_quantity(shared) > forms::value_of_quantity(memory)) {
    notes.push_back(fmt::format(
        "the shared memory ({}) may become larger than the pod's memory ({}), to which it counts: "
        "Kubernetes then ends the pod; set --shm-size below --memory",
        shared, memory));
  }
  return notes;
}

std::vector<std::string> notes_on_shell(const KubernetesSettings& settings,
                                        const Surroundings& surroundings) {
  std::vector<std::string> notes;
  const auto compare = [&](const char* name, const std::optional<int>& actual, const char* option) {
    const auto here = surroundings.setting(name);
    if (!here || (actual && *here == std::to_string(*actual))) return;
    notes.push_back(fmt::format("{}={} of the environment is not used: the pods get {} from {}", name, *here,
                                name, option));
  };
  compare("NNODES", settings.nodes.value_or(1), "-N");
  compare("GPUS_PER_NODE", settings.ranks_per_node, "--gpus-per-node");
  return notes;
}

std::vector<std::string> notes_on_output(const KubernetesSettings& settings,
                                         const std::vector<std::string>& options) {
  std::vector<std::string> notes;
  const bool is_silent = std::ranges::find(options, "--silent") != options.end();
  const auto named = place_option(options, "--log_file");
  if (is_silent) notes.emplace_back("--silent: 'kubectl logs' does not show the output of the command");
  if (!named && !is_silent) return notes;
  const std::string file = named.value_or("logs/log_<time>.txt");
  const bool is_kept = std::ranges::any_of(settings.volumes, [&](const std::string& volume) {
    std::string inside = volume.substr(volume.find(':') + 1);
    if (inside.ends_with(":ro")) inside.resize(inside.size() - 3);
    return file.starts_with(inside.ends_with('/') ? inside : inside + "/");
  });
  if (!is_kept)
    notes.push_back(fmt::format(
        "the log file '{}' is in no volume, so it is lost with the pod; --log_file names a file in "
        "the folder of a --volume",
        file));
  return notes;
}

std::string token_manifest(const KubernetesPlan& plan) {
  Json metadata{{"name", plan.token_secret.value_or("")}};
  if (!plan.name_space.empty()) metadata["namespace"] = plan.name_space;
  const Json secret{{"apiVersion", "v1"},
                    {"kind", "Secret"},
                    {"metadata", metadata},
                    {"stringData", {{kTokenKey, hex(random_bytes(32))}}}};
  return secret.dump();
}

std::vector<std::string> kubectl(const KubernetesPlan& plan, std::vector<std::string> words) {
  words.insert(words.begin(), "kubectl");
  if (!plan.name_space.empty()) words.insert(words.end(), {"--namespace", plan.name_space});
  return words;
}

}  // namespace primus::launch
