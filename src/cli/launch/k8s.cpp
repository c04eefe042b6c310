// primus k8s
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text/secrets.h"
#include "cli/launch/mode.h"
#include "cli/parse.h"
#include "launch/direct/direct_network.h"
#include "launch/kubernetes/kubernetes.h"
#include "launch/kubernetes/kubernetes_placing.h"
#include "launch/node/node.h"
#include "launch/options/assignment.h"
#include "launch/options/place_options.h"
#include "launch/process.h"

namespace primus::cli {
namespace {

class Kubernetes final : public Mode {
 public:
  void declare(Arguments& args) override {
    const launch::KubernetesSettings usual;
    Argument& action = args.positional("ACTION", &action_, "print the manifest, or pass it to kubectl");
    action.required = false;
    action.choices = {"render", "apply"};
    args.option("--kind", "KIND", &kind_, "kind of job").choices = {"jobset", "pytorchjob"};
    args.option("--name", "NAME", &name_, "name of the job (default: primus)");
    args.option("--namespace", "NAME", &namespace_, "namespace (default: kubectl's current one)");
    args.option("--image", "IMAGE", &image_, "image, which must contain Primus");
    args.option("--program", "NAME", &program_, "path of Primus in the image (default: primus)");
    args.option("--nodes,-N", "N", &nodes_, "number of nodes, with one pod each (default: 1)");
    args.option("--gpus-per-node,--gpus_per_node", "N", &ranks_, "GPUs and ranks per node");
    args.option("--gpu-resource,--gpu_resource", "KIND", &pod_.gpu_resource,
                "amd, nvidia, none, or the resource name of the GPUs");
    args.option("--rdma-resource,--rdma_resource", "NAME", &pod_.rdma_resource,
                "resource name of RDMA devices, e.g. rdma/hca_shared_devices_a: each pod gets one, and may "
                "lock memory");
    args.option("--cpus", "N", &pod_.cpus, "cores per pod");
    args.option("--memory", "SIZE", &pod_.memory, "memory per pod, e.g. 128Gi");
    args.option("--shm-size,--shm_size", "SIZE", &pod_.shared_memory, "shared memory per pod")
        .default_note(usual.shared_memory);
    args.option("--env", "NAME=VALUE", &environment_, "set a variable in the pods; may be repeated");
    args.option(
        "--secret", "NAME=SECRET/KEY", &secrets_,
        "set a variable from a Secret, or all of its variables if only SECRET is given; may be repeated");
    args.option("--volume", "FROM:/INSIDE[:ro]", &volumes_,
                "mount a folder of the node (/PATH) or a claim (pvc/CLAIM); may be repeated");
    args.option("--queue", "NAME", &queue_, "Kueue queue");
    args.option("--service-account,--service_account", "NAME", &account_, "service account of the pods");
    args.option("--priority-class,--priority_class", "NAME", &priority_, "priority class of the pods");
    args.option("--topology-key,--topology_key", "KEY", &topology_,
                "spread pods over the values of this node label")
        .default_note(usual.placing.topology_key);
    args.option("--required-topology,--required_topology", "LABEL", &placing_.required,
                "place all pods on nodes with one value of this label, by Kueue");
    args.option("--preferred-topology,--preferred_topology", "LABEL", &placing_.preferred,
                "like --required-topology, but with more values if the pods do not fit");
    args.option("--slice-topology,--slice_topology", "LABEL", &placing_.slice,
                "place each --slice-size consecutive pods on nodes with one value of this label, by Kueue");
    args.option("--slice-size,--slice_size", "N", &placing_.slice_size, "pods of a slice");
    args.option("--exclusive-topology,--exclusive_topology", "LABEL", &placing_.exclusive,
                "place all pods on nodes with one value of this label, which no other JobSet gets");
    args.option("--gate", "KIND", &placing_.gate,
                "run 'preflight --quick' before the command, which starts only if it succeeds: in the same "
                "pods, or as a separate job (default: none)")
        .choices = {"none", "pods", "job"};
    args.option("--max-restarts,--max_restarts", "N", &restarts_,
                "how often a failed job is restarted (default: 3)");
  }

  // All words belong to the mode, because options may follow ACTION.
  std::size_t count_own(const Arguments&, Words words) const override { return words.size(); }

  launch::LauncherSettings::Switches switches(const launch::LauncherSettings& settings) const override {
    return settings.k8s_switches;
  }

  // Ignores the settings of this machine, which do not apply in the pods.
  std::optional<std::string> asks_for_dry_run_within(const ModeContext& context, Words words) const override {
    const launch::LauncherSettings none;
    return dry_run_of_direct({.surroundings = context.surroundings, .settings = none}, words);
  }

  launch::Plan plan(const ModeContext& context, Words words) override {
    const launch::KubernetesRequest request = this->request(context, words);
    const launch::KubernetesPlan manifest = launch::plan_kubernetes(request);
    launch::Plan plan = inside(context, words, request);
    launch::Step step{
        .name = "k8s", .where = "on this machine", .argv = kubectl(manifest, {"apply", "-f", "-"})};
    step.input = manifest.manifest;
    step.input_name = "manifest";
    if (action_ != "apply")
      step.notes.emplace_back("the manifest is printed, and nothing is started; 'k8s apply' does this:");
    if (manifest.token_secret) {
      step.notes.push_back(
          fmt::format("the Secret {} with a new random token, if it does not exist", *manifest.token_secret));
    }
    if (action_ == "apply") require_kubectl(context);
    plan.steps.insert(plan.steps.begin(), std::move(step));
    return plan;
  }

  int run(const ModeContext& context, Words words, Console& console) override {
    const launch::KubernetesRequest request = this->request(context, words);
    // Reports errors of the pods' command before the job starts.
    const launch::Plan pods = inside(context, words, request);
    for (const std::string& note : pods.steps.front().notes) console.note("note: " + note);
    const launch::KubernetesPlan plan = launch::plan_kubernetes(request);
    if (action_ != "apply") {
      console.write(plan.manifest);
      if (plan.token_secret) {
        console.note(
            fmt::format("note: the pods read the job's secret from the key 'token' of the Secret {}; create "
                        "it by 'apply', or by: kubectl create secret generic {} --from-file=token=FILE",
                        *plan.token_secret, *plan.token_secret));
      }
      return 0;
    }
    require_kubectl(context);
    if (plan.token_secret) {
      launch::Step look{
          .name = "kubectl", .where = {}, .argv = kubectl(plan, {"get", "secret", *plan.token_secret})};
      if (launch::run_and_read(look, [](std::string_view) {}) != 0) {
        launch::Step create{.name = "kubectl", .where = {}, .argv = kubectl(plan, {"create", "-f", "-"})};
        create.input = token_manifest(plan);
        const int code = launch::run_and_wait(create);
        if (code != 0) {
          throw Error(
              ErrorKind::kDependency,
              fmt::format("kubectl could not make the Secret {} (exit code {})", *plan.token_secret, code),
              "its output is above; nothing was started");
        }
      }
    }
    launch::Step apply{.name = "kubectl", .where = {}, .argv = kubectl(plan, {"apply", "-f", "-"})};
    apply.input = plan.manifest;
    launch::become(apply);
  }

 private:
  static void require_kubectl(const ModeContext& context) {
    if (context.surroundings.find_program("kubectl")) return;
    throw Error(ErrorKind::kDependency, "kubectl is not installed here",
                "install it, or print the manifest and apply it elsewhere: primus k8s render ... -- ...");
  }

  launch::KubernetesRequest request(const ModeContext& context, Words words) const {
    launch::KubernetesRequest request;
    request.settings = context.settings.k8s;
    launch::KubernetesSettings& s = request.settings;
    const auto take = [](const std::optional<std::string>& from, std::string& to) {
      if (from) to = *from;
    };
    const auto set_from = [](const char* name, launch::Form form, const std::optional<std::string>& from,
                             std::string& to) {
      if (!from) return;
      if (!from->empty()) launch::require_form(form, *from, name);
      to = *from;
    };
    take(kind_, s.kind);
    take(name_, s.name);
    take(namespace_, s.name_space);
    set_from("--image", launch::Form::kImage, image_, s.image);
    take(program_, s.program);
    take(pod_.gpu_resource, s.gpu_resource);
    take(pod_.rdma_resource, s.rdma_resource);
    set_from("--cpus", launch::Form::kQuantity, pod_.cpus, s.cpus);
    set_from("--memory", launch::Form::kQuantity, pod_.memory, s.memory);
    set_from("--shm-size", launch::Form::kQuantity, pod_.shared_memory, s.shared_memory);
    set_from("--queue", launch::Form::kDnsName, queue_, s.queue);
    set_from("--service-account", launch::Form::kDnsName, account_, s.service_account);
    set_from("--priority-class", launch::Form::kDnsName, priority_, s.priority_class);
    set_from("--topology-key", launch::Form::kLabelName, topology_, s.placing.topology_key);
    set_from("--required-topology", launch::Form::kLabelName, placing_.required, s.placing.required);
    set_from("--preferred-topology", launch::Form::kLabelName, placing_.preferred, s.placing.preferred);
    set_from("--slice-topology", launch::Form::kLabelName, placing_.slice, s.placing.slice);
    set_from("--exclusive-topology", launch::Form::kLabelName, placing_.exclusive, s.placing.exclusive);
    take(placing_.gate, s.placing.gate);
    const auto number = [](const std::optional<std::int64_t>& from, const char* name, std::int64_t low,
                           std::int64_t high, std::optional<int>& to) {
      if (!from) return;
      if (*from < low || *from > high) {
        throw invalid(fmt::format("{} must be a number from {} to {}, not {}", name, low, high, *from));
      }
      to = static_cast<int>(*from);
    };
    number(nodes_, "--nodes", 1, launch::kMaxNodes, s.nodes);
    number(ranks_, "--gpus-per-node", 1, launch::kMaxRanksPerNode, s.ranks_per_node);
    number(placing_.slice_size, "--slice-size", 1, launch::kMaxNodes, s.placing.slice_size);
    number(restarts_, "--max-restarts", 0, 1000, s.max_restarts);
    for (const std::string& text : environment_) {
      if (!launch::is_variable_name(text)) continue;
      throw invalid(
          fmt::format("--env needs NAME=VALUE, not '{}'", text),
          fmt::format("a pod gets no variable of this shell by name: write {0}=VALUE, or for a secret "
                      "--secret {0}=SECRET/KEY",
                      text));
    }
    refuse_secrets(environment_, "k8s");
    refuse_secret_settings(words, "k8s");
    launch::refuse_repeated(environment_, "--env");
    s.environment.insert(s.environment.end(), environment_.begin(), environment_.end());
    s.secrets.insert(s.secrets.end(), secrets_.begin(), secrets_.end());
    s.volumes.insert(s.volumes.end(), volumes_.begin(), volumes_.end());
    if (words[0] == kDirect.about.name) {
      request.command.assign(words.begin(), words.end());
    } else {
      request.command = {std::string(kDirect.about.name), "--"};
      request.command.insert(request.command.end(), words.begin(), words.end());
    }
    const auto split = std::find(request.command.begin(), request.command.end(), "--");
    if (split == request.command.end() || split + 1 == request.command.end()) {
      throw invalid("'k8s' has no command to run",
                    "put it at the end: primus k8s -- direct -- train pretrain ...");
    }
    const std::vector<std::string> command(split + 1, request.command.end());
    const bool is_script = std::find(request.command.begin(), split, "--script") != split;
    if (is_script) return request;
    const launch::DirectCommand checked = check_command(command, false, Experiments::kElsewhere);
    request.has_ranks = checked.has_ranks;
    add_outline(context, checked, request);
    return request;
  }

  // Adds what the command in the pods reads and writes, and the variables of this shell that it reads.
  static void add_outline(const ModeContext& context, const launch::DirectCommand& command,
                          launch::KubernetesRequest& request) {
    launch::KubernetesSettings& s = request.settings;
    std::map<std::string, std::string> given;
    for (const std::string& text : s.environment) {
      launch::Assignment variable = launch::parse_assignment(text, "env");
      given[variable.name] = std::move(variable.value);
    }
    try {
      if (command.outline) request.outline = command.outline(0, 0, given);
    } catch (const Error&) {  // reported when the launcher in the pod is planned
    }
    for (const std::string& name : launch::variables_to_pass(request.outline)) {
      const auto value = context.surroundings.variable(name);
      const bool is_secret_of_cluster = std::ranges::any_of(
          s.secrets, [&](const std::string& secret) { return secret.starts_with(name + "="); });
      if (!value || given.contains(name) || is_secret_of_cluster) continue;
      if (is_secret(name, *value)) {
        request.withheld.push_back(name);
        continue;
      }
      s.environment.push_back(name + "=" + *value);
      request.passed.push_back(name);
    }
  }

  // Plans what `primus direct` runs in a pod.
  static launch::Plan inside(const ModeContext& context, Words, const launch::KubernetesRequest& request) {
    const auto split = std::find(request.command.begin(), request.command.end(), "--");
    const std::vector<std::string> options(request.command.begin() + 1, split),
        command(split + 1, request.command.end());
    Arguments arguments;
    const DeclaredMode direct = cli::declare(kDirect, arguments);
    parse(arguments, options, "primus direct");
    const launch::LauncherSettings none;  // this machine's settings do not apply in the pods
    const launch::Surroundings& here = context.surroundings;
    launch::Surroundings pod = here;
    pod.program = request.settings.program.empty() ? "primus" : request.settings.program;
    const ModeContext there{.surroundings = pod, .settings = none};
    const int nodes = request.settings.nodes.value_or(1);
    launch::ElsewhereNodes pods{.nodes = nodes,
                                .ranks = request.settings.ranks_per_node,
                                .tasks = {},
                                .address = "<pod 0>",
                                .port = "<MASTER_PORT>",
                                .node = "<the pod's number>",
                                .gpus = launch::requested_gpus(request.settings)};
    std::map<std::string, std::string> given;
    for (const std::string& text : request.settings.environment) {
      launch::Assignment variable = launch::parse_assignment(text, "env");
      given[variable.name] = std::move(variable.value);
    }
    launch::check_place_variables(given);
    launch::use_given_master(given, pods.address, pods.port);
    if (const auto ranks = given.find("GPUS_PER_NODE"); ranks != given.end() && !ranks->second.empty())
      pods.ranks = pods.given_ranks = launch::parse_ranks("GPUS_PER_NODE", ranks->second);
    if (const auto slice = request.settings.placing.slice_size)
      given.emplace(launch::kTopologyVariable, fmt::format("slices={}", *slice));
    pods.outer_variables = std::move(given);
    launch::Plan plan = direct.mode->plan_elsewhere(there, command, pods);
    plan.steps.front().where = nodes == 1 ? "in the pod" : "in each pod";
    for (const auto& notes :
         {launch::notes_on_pods(request), launch::notes_on_shell(request.settings, here),
          launch::notes_on_output(request.settings, options), launch::notes_on_placing(request.settings)})
      plan.steps.front().notes.insert(plan.steps.front().notes.end(), notes.begin(), notes.end());
    return plan;
  }

  std::string action_ = "render";
  std::optional<std::string> kind_, name_, namespace_, image_, program_, queue_, account_, priority_,
      topology_;
  // Options that give a pod resources of its node.
  struct {
    std::optional<std::string> gpu_resource, rdma_resource, cpus, memory, shared_memory;
  } pod_;
  struct {
    std::optional<std::string> required, preferred, slice, exclusive, gate;
    std::optional<std::int64_t> slice_size;
  } placing_;
  std::optional<std::int64_t> nodes_, ranks_, restarts_;
  std::vector<std::string> environment_, secrets_, volumes_;
};

}  // namespace

const ModeEntry kKubernetes{
    {"k8s", "Writes the manifest of a Kubernetes job that runs a command, or starts the job",
     "Write the command after '--'. 'direct [options] --' before the command passes options to the launcher "
     "in the pods. 'render', the default, prints the manifest. 'apply' passes it to kubectl, and creates the "
     "Secret with the job's random token if it does not exist. For other settings, use the section k8s of "
     ".primus.yaml.",
     "primus k8s --image primus:1 -N 2 --gpus-per-node 8 --gpu-resource amd -- train pretrain --config "
     "/exp.yaml\n"
     "primus k8s apply --kind pytorchjob --image primus:1 --volume pvc/data:/data -- train pretrain "
     "--config "
     "/data/exp.yaml\n"
     "primus k8s --image primus:1 -N 16 --queue gpus --required-topology cloud.provider.com/topology-block "
     "--slice-topology cloud.provider.com/topology-rack --slice-size 4 --gate pods -- train pretrain "
     "--config "
     "/exp.yaml\n"
     "primus k8s --image primus:1 --secret HF_TOKEN=hugging-face/token -- direct --numa -- train pretrain "
     "--config "
     "/exp.yaml",
     nullptr},
    []() -> std::unique_ptr<Mode> { return std::make_unique<Kubernetes>(); }};

}  // namespace primus::cli
