#include "launch/slurm/slurm.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/text/counted.h"
#include "launch/node/node.h"
#include "launch/options/place_options.h"
#include "launch/options/secret_values.h"
#include "launch/options/tables.h"
#include "launch/slurm/slurm_contradictions.h"
#include "launch/slurm/slurm_gpus.h"
#include "launch/slurm/slurm_time.h"

namespace primus::launch {
namespace {

constexpr std::size_t kTokenBytes = 32;

bool is_given(const std::vector<GivenOption>& options, std::initializer_list<std::string_view> names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view name) { return find_given(options, name) != nullptr; });
}

// Returns the value as a number; nullopt if the value is missing or not a number ("2-4").
std::optional<int> number_of(const std::vector<GivenOption>& options, std::string_view name) {
  const GivenOption* const option = find_given(options, name);
  if (!option || !option->value) return std::nullopt;
  const std::string& text = *option->value;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < 1 || value > kMaxNodes) {
    throw invalid(fmt::format("--{}={} is not a number from 1 to {}", name, text, kMaxNodes),
                  fmt::format("set --{}=1 or more, or remove it", name));
  }
  return value;
}

// Returns the number of nodes; 0: not known before the job runs. `allocated`: the nodes of the allocation in
// which srun is called; nullopt: none.
int nodes_of(const std::vector<GivenOption>& options, const std::optional<std::string>& allocated) {
  if (find_given(options, "nodes")) return number_of(options, "nodes").value_or(0);
  const GivenOption* const list = find_given(options, "nodelist");
  if (list && list->value) {
    const std::vector<std::string> names = expand_nodes(*list->value);
    return static_cast<int>(std::set<std::string>(names.begin(), names.end()).size());  // as Slurm does
  }
  const auto tasks = number_of(options, "ntasks"), per_node = number_of(options, "ntasks-per-node");
  if (tasks && per_node) return (*tasks + *per_node - 1) / *per_node;
  if (tasks) return 0;
  return allocated ? number_of({{"nodes", *allocated}}, "nodes").value_or(0) : 1;
}

// Returns the names of the job's nodes, if they are known before the job runs.
std::vector<std::string> names_of(const std::vector<GivenOption>& options, int nodes,
                                  const std::optional<std::string>& allocated) {
  const GivenOption* const list = find_given(options, "nodelist");
  const std::optional<std::string> text = list ? list->value : allocated;
  if (!text || nodes == 0) return {};
  std::vector<std::string> names = expand_nodes(*text);
  // Slurm numbers nodes in the order of its configuration, which is usually that of their numbers.
  std::ranges::sort(names, [](const std::string& a, const std::string& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);
  });
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return static_cast<int>(names.size()) == nodes ? names : std::vector<std::string>();
}

// Finds the number and the names of the job's nodes, if they are known before the job runs.
void find_nodes(const std::vector<GivenOption>& options, bool batch, const Surroundings& surroundings,
                ElsewhereNodes& nodes) {
  const auto allocated = [&](const char* name) { return batch ? std::nullopt : surroundings.setting(name); };
  nodes.nodes = nodes_of(options, allocated("SLURM_NNODES"));
  nodes.names = names_of(options, nodes.nodes, allocated("SLURM_JOB_NODELIST"));
}

// Returns the number of tasks that each of `nodes` nodes starts; 0 nodes: not known. With `has_ranks`, the
// tasks are ranks: throws Error(kInvalid) if the nodes do not start equally many.
int tasks_of(const std::vector<GivenOption>& options, int nodes, bool has_ranks) {
  const auto tasks = number_of(options, "ntasks");
  const int per_node = number_of(options, "ntasks-per-node").value_or(1);
  if (!tasks || nodes == 0) return per_node;
  if (*tasks < nodes) {
    throw invalid(fmt::format("--ntasks={} is fewer than one task for each of the {} nodes", *tasks, nodes),
                  "remove --ntasks, or request fewer nodes");
  }
  if (has_ranks && *tasks % nodes != 0) {
    throw invalid(fmt::format("--ntasks={} cannot be shared equally by {} nodes", *tasks, nodes),
                  "set --ntasks to a multiple of the number of nodes, or remove it");
  }
  if (find_given(options, "ntasks-per-node") && *tasks > nodes * per_node) {
    throw invalid(fmt::format("--ntasks={} is more than {} node{} with --ntasks-per-node={} can start",
                              *tasks, nodes, nodes == 1 ? "" : "s", per_node),
                  "remove one of these options");
  }
  return (*tasks + nodes - 1) / nodes;
}

// Returns whether a value of --distribution places consecutive tasks on different nodes.
bool spreads_tasks(std::string_view order) {
  return order.starts_with("cyclic") || order.starts_with("plane") || order.starts_with("arbitrary");
}

// Removes from `options` the options that `tool` does not have. For batch jobs, srun's options move to the
// job's step. For srun, an option of sbatch is an error on the command line; in settings it is skipped with a
// note.
std::vector<std::string> sort_by_tool(const SlurmRequest& request, const std::string& tool,
                                      std::vector<GivenOption>& options, std::vector<GivenOption>& of_step) {
  std::vector<std::string> notes;
  std::erase_if(options, [&](const GivenOption& option) {
    if (takes(slurm_options(), option, tool)) return false;
    if (request.batch) {
      of_step.push_back(option);
      return true;
    }
    if (std::find(request.given.begin(), request.given.end(), option) != request.given.end()) {
      throw invalid(fmt::format("srun has no option '{}', which belongs to sbatch", written(option)),
                    "remove it, or submit a batch job: primus slurm sbatch ...");
    }
    notes.push_back(fmt::format("without {} of the settings, which only sbatch has", written(option)));
    return true;
  });
  return notes;
}

std::vector<std::string> words_of(const std::string& tool, const std::vector<GivenOption>& options) {
  std::vector<std::string> words{tool};
  for (const GivenOption& option : options) words.push_back(written(option));
  return words;
}

}  // namespace

std::string batch_script(const std::vector<std::string>& srun, bool has_ranks, bool requeue,
                         const std::string& ranks_per_node) {
  std::string script = "#!/bin/sh\n";
  if (!ranks_per_node.empty()) script += fmt::format("export GPUS_PER_NODE={}\n", ranks_per_node);
  if (!has_ranks) return script + "exec " + shell_line(srun) + "\n";
  script +=
      "# The secret that the ranks share. It is in no file and on no command line.\n"
      "if [ -z \"$PRIMUS_JOB_TOKEN$PRIMUS_JOB_TOKEN_FILE\" ]; then\n"
      "  PRIMUS_JOB_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n"
      "  export PRIMUS_JOB_TOKEN\n"
      "fi\n"
      "# Numbers the starts of this job, so that a run which this job began continues.\n"
      "export PRIMUS_JOB_START=\"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}\"\n"
      "# Passes on USR1, the warning before the time limit (--signal), after which ranks save and stop.\n"
      "warned= ended= heard= step=\n"
      "trap 'warned=1 heard=1; [ -z \"$step\" ] || kill -USR1 \"$step\"' USR1\n"
      "# Slurm sends TERM to the ranks itself; this script waits for them.\n"
      "trap 'ended=1 heard=1' TERM\n";
  if (requeue) script += "began=$(date +%s)\n";
  script += shell_line(srun) + " &\n";
  script +=
      "step=$!\n"
      "code=0\n"
      "while :; do\n"
      "  heard=\n"
      "  wait \"$step\"\n"
      "  last=$?\n"
      "  [ \"$last\" -eq 127 ] || code=$last\n"
      "  [ -n \"$heard\" ] || break\n"
      "done\n";
  if (requeue) {
    script +=
        "if [ -n \"$warned\" ] && [ \"$code\" -eq 0 ]; then\n"
        "  exec scontrol requeue \"$SLURM_JOB_ID\"\n"
        "fi\n"
        "# A node or a rank was lost (not: a mistake, codes 1 and 2). Early failures are retried a few "
        "times.\n"
        "ran=$(($(date +%s) - began))\n"
        "if [ \"$code\" -ge 3 ] && [ -z \"$ended\" ] && { [ \"$ran\" -ge 600 ] || [ "
        "\"${SLURM_RESTART_COUNT:-0}\" -lt 3 ]; }; then\n"
        "  echo \"primus: the ranks ended with code $code; the job is queued again\" >&2\n"
        "  exec scontrol requeue \"$SLURM_JOB_ID\"\n"
        "fi\n";
  }
  return script + "exit \"$code\"\n";
}

namespace {

// Returns the value of a variable in the job: the value that --export sets, or else that of this shell,
// unless
// --export does not pass it on.
std::optional<std::string> exported_value(const std::string& name, const std::vector<GivenOption>& options,
                                          const Surroundings& surroundings) {
  const GivenOption* const exported = find_given(options, "export");
  const auto here = surroundings.setting(name);
  if (!exported || !exported->value) return here;
  bool passed_on = false;
  for (std::string_view rest = *exported->value; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    if (word.starts_with(name + "=")) return std::string(word.substr(name.size() + 1));
    passed_on = passed_on || word == "ALL" || word == name;
  }
  return passed_on ? here : std::nullopt;
}

// Notes variables of this shell that --export keeps from the job.
void note_export(const std::vector<GivenOption>& options, const Surroundings& surroundings,
                 std::vector<std::string>& notes) {
  const GivenOption* const exported = find_given(options, "export");
  if (!exported) return;
  const std::string option = written(*exported);
  constexpr const char* kRanks = "GPUS_PER_NODE";
  const auto here = surroundings.setting(kRanks), there = exported_value(kRanks, options, surroundings);
  if (here && here != there) {
    notes.push_back(there ? fmt::format("{} sets {}={}, which overrides {} of the environment", option,
                                        kRanks, *there, *here)
                          : fmt::format("{}={} of the environment is not used: {} does not pass it on",
                                        kRanks, *here, option));
  }
  if (!exported->value.value_or("").starts_with("ALL"))
    notes.push_back(
        fmt::format("{} keeps this shell's variables from the job: a placeholder ${{NAME}} of the experiment "
                    "has its default there, unless the nodes set the variable",
                    option));
}

// Refuses options that would replace the command after '--', and options with a secret.
void refuse_unusable(const std::vector<GivenOption>& options) {
  for (const auto& [name, whose] : {std::pair("wrap", "sbatch"), std::pair("multi-prog", "srun")}) {
    if (find_given(options, name)) {
      throw invalid(fmt::format("--{} gives {} another command", name, whose),
                    "remove it, and write the command after '--'");
    }
  }
  refuse_secret_values(options,
                       "export {} in this shell first: Slurm then passes it on (--export=ALL, the default)");
}

// Refuses values of --export with which Slurm would not pass on the variables of the job's secret and ranks.
void require_export(const std::vector<GivenOption>& options) {
  const GivenOption* const exported = find_given(options, "export");
  if (exported && exported->value.value_or("") != "ALL" &&
      !exported->value.value_or("").starts_with("ALL,")) {
    throw invalid(fmt::format("with --export={} Slurm does not pass on the job's secret and ranks",
                              exported->value.value_or("")),
                  "write --export=ALL,NAME=VALUE, or remove it");
  }
}

// Notes values that have another effect than a reader may expect.
void note_values(const SlurmSettings& settings, const SlurmRequest& request,
                 const std::vector<GivenOption>& options, int nodes, const Surroundings& surroundings,
                 std::vector<std::string>& notes) {
  const auto shell = surroundings.setting("NNODES");
  if (shell && nodes > 0 && *shell != std::to_string(nodes)) {
    notes.push_back(
        fmt::format("NNODES={} of the environment is not used: the job has {} node{} (-N sets "
                    "their number)",
                    *shell, nodes, nodes == 1 ? "" : "s"));
  }
  for (const char* name : {"MASTER_ADDR", "NODE_RANK"}) {
    const auto here = exported_value(name, options, surroundings);
    if (request.has_ranks && here)
      notes.push_back(fmt::format(
          "{}={} of the environment is not used: Slurm's variables determine the nodes", name, *here));
  }
  const auto model = surroundings.setting("PRIMUS_GPU_MODEL");
  if (request.has_ranks && surroundings.dry_run && model &&
      !is_given(options, {"gpus-per-node", "gres", "gpus", "gpus-per-task"})) {
    notes.push_back(fmt::format(
        "PRIMUS_GPU_MODEL={} does not set the number of GPUs of a Slurm job: --gpus-per-node requests them",
        *model));
  }
  if (request.has_ranks && settings.ranks_per_node &&
      !is_given(options,
                {"gpus-per-node", "gres", "gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task"})) {
    notes.emplace_back(
        "gpus_per_node in the section slurm of the settings is the number of ranks, and requests no GPUs: "
        "write gpus-per-node, or --gpus-per-node, to request them");
  }
}

// Adds defaults of options that the user has not set: to the options of the tool, and to the options of the
// job's step (srun).
void add_default_options(const SlurmRequest& request, bool tasks_are_given, const Surroundings& surroundings,
                         std::vector<GivenOption>& options, std::vector<GivenOption>& step_options) {
  const auto step_option = [&](const char* name, const std::string& value) {
    if (!find_given(step_options, name)) step_options.push_back({name, value});
  };
  if (!tasks_are_given) step_option("ntasks-per-node", "1");
  // Lets the failure of a rank end the job. Without ranks, the nodes are independent, and a failure on one
  // node does not end the command on other nodes.
  // With spare machines (train ... --supervise --spares N), the supervisors decide: the loss of a node ends
  // neither the job nor its step.
  const bool has_spares = spare_nodes(request.inner) > 0;
  if (request.has_ranks) step_option("kill-on-bad-exit", has_spares ? "0" : "1");
  if (has_spares) {
    step_option("wait", "0");
    if (!find_given(step_options, "no-kill")) step_options.push_back({"no-kill"});
    if (request.batch && !find_given(options, "no-kill")) options.push_back({"no-kill"});
  } else if (request.has_ranks && !surroundings.setting("SLURM_WAIT")) {
    step_option("wait", std::to_string(request.own_ranks ? kWaitForOwnRanks : kWaitForRanks));
  }
  if (request.batch) {
    if (!tasks_are_given) options.push_back({"ntasks-per-node", "1"});
    if (request.has_ranks && request.deaf.empty() && !find_given(options, "signal"))
      options.push_back({"signal", usual_warning(options)});
    if (find_given(options, "requeue") && !find_given(options, "open-mode"))
      options.push_back({"open-mode", "append"});
    // Repeats two options for the step, because Slurm does not pass them on from a job to its steps.
    step_option("export", "ALL");
    if (const GivenOption* const cpus = find_given(options, "cpus-per-task")) step_options.push_back(*cpus);
  } else {
    for (const GivenOption& option : step_options) {
      if (!find_given(options, option.name)) options.push_back(option);
    }
  }
}

// Notes tasks whose place on the nodes the plan does not show.
void note_tasks(const std::vector<GivenOption>& options, const std::optional<int>& all_tasks,
                bool tasks_are_known, int tasks, std::vector<std::string>& notes) {
  if (all_tasks) {
    notes.push_back(
        fmt::format("{} without a number of nodes: only Slurm decides how many ranks each node starts; the "
                    "plan checks the {} of the job",
                    written(*find_given(options, "ntasks")), counted(*all_tasks, "rank")));
  } else if (!tasks_are_known) {
    notes.push_back(fmt::format(
        "{} without a number of nodes: only Slurm decides how many ranks each node starts, so the "
        "plan does not check them; -N sets the number of nodes",
        written(*find_given(options, "ntasks"))));
  }
  const GivenOption* const order = find_given(options, "distribution");
  if (tasks <= 1 || !order || !spreads_tasks(order->value.value_or(""))) return;
  notes.push_back(fmt::format(
      "{}: the ranks of a node do not follow each other as in this plan, so groups of ranks, such as "
      "those of tensor parallelism, may extend over several nodes",
      written(*order)));
}

// Notes what a batch job loses at its time limit and when it is queued again.
void note_restarts(const SlurmRequest& request, const std::vector<GivenOption>& options,
                   std::vector<std::string>& notes) {
  const bool requeued = find_given(options, "requeue") != nullptr;
  if (request.has_ranks && !request.deaf.empty() && !find_given(options, "signal")) {
    notes.push_back(fmt::format(
        "{} does not save at a signal, so Slurm sends none before the time limit: steps after the last "
        "checkpoint are lost there{}; if it handles SIGUSR1: --signal=B:USR1@SECONDS",
        request.deaf, requeued ? ", and --requeue does not queue the job again" : ""));
  }
  if (!request.starts_anew || !requeued) return;
  notes.emplace_back(
      request.own_ranks
          ? "auto_continue_train is false: the job begins at the first step; when it is queued again, it "
            "continues from its own checkpoints"
          : "auto_continue_train is false: whenever the job is queued again, it begins at the first step; "
            "auto_continue_train=true lets it continue from its checkpoints");
}

void note_array(const std::vector<GivenOption>& options, bool has_ranks, std::vector<std::string>& notes) {
  const GivenOption* const array = find_given(options, "array");
  if (!array) return;
  notes.push_back(
      fmt::format("--array={}: each element is a separate job with its own nodes, and runs this command",
                  array->value.value_or("")));
  if (!has_ranks) return;
  notes.emplace_back(
      "elements of an array that train need different runs: set exp_name: ${SLURM_ARRAY_TASK_ID:0} in the "
      "experiment");
}

// Notes what happens to the job after its submission. `same_folder`: it runs in the current folder.
void note_course(const SlurmRequest& request, const std::vector<GivenOption>& options, bool same_folder,
                 std::vector<std::string>& notes) {
  note_array(options, request.has_ranks, notes);
  if (!request.batch) return;
  note_output_folders(options, same_folder, notes);
  note_restarts(request, options, notes);
}

}  // namespace

SlurmPlan plan_slurm(const SlurmSettings& settings, const SlurmRequest& request,
                     const Surroundings& surroundings) {
  const std::string tool = request.batch ? "sbatch" : "srun";
  const bool is_here = surroundings.find_program(tool).has_value();
  if (!is_here && !surroundings.dry_run) {
    throw Error(ErrorKind::kDependency, fmt::format("'{}' is not installed here", tool),
                "run this on a machine of the cluster, or run without Slurm: primus direct -- ...");
  }
  std::vector<GivenOption> options = merged(slurm_options(), settings.options, request.given);
  refuse_unusable(options);
  settle_contradictions(request.given, request.batch, options);

  SlurmPlan plan;
  std::vector<GivenOption> step_options;
  std::vector<std::string> notes = sort_by_tool(request, tool, options, step_options);
  find_nodes(options, request.batch, surroundings, plan.nodes);
  const GivenOption* const folder = find_given(options, "chdir");
  plan.nodes.same_folder = !folder;
  if (folder) plan.nodes.folder = folder->value;
  plan.nodes.node = "<SLURM_NODEID>";
  plan.nodes.address = "<the first node>";
  plan.nodes.port = exported_value("MASTER_PORT", options, surroundings).value_or("<by the job's number>");
  const bool tasks_are_given = is_given(
      options, {"ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket"});
  const auto own_ranks = exported_value("GPUS_PER_NODE", options, surroundings);
  int tasks = tasks_of(options, plan.nodes.nodes, request.has_ranks);
  // Without the number of nodes, a number of tasks does not tell the tasks of a node.
  const bool tasks_are_known = plan.nodes.nodes > 0 || !find_given(options, "ntasks");
  NodeGpus gpus;
  if (tasks_are_known) gpus = gpus_of_node(options, plan.nodes.nodes, tasks);
  notes.insert(notes.end(), gpus.notes.begin(), gpus.notes.end());
  plan.nodes.gpus = gpus.count;
  const auto per_gpu = number_of(options, "ntasks-per-gpu");
  if (per_gpu && plan.nodes.gpus && !is_given(options, {"ntasks", "ntasks-per-node"}))
    tasks = *per_gpu * *plan.nodes.gpus;
  if (!tasks_are_known && gpus_of_task(options) == 1) plan.nodes.all_tasks = number_of(options, "ntasks");
  if (request.has_ranks) note_tasks(options, plan.nodes.all_tasks, tasks_are_known, tasks, notes);
  if (tasks > 1) {
    plan.nodes.tasks = tasks;
  } else {
    plan.nodes.ranks =
        own_ranks ? std::optional(parse_ranks("GPUS_PER_NODE", *own_ranks)) : settings.ranks_per_node;
  }

  const bool requeue = is_given(options, {"requeue"});
  add_default_options(request, tasks_are_given, surroundings, options, step_options);

  const std::string ranks = plan.nodes.ranks && !own_ranks ? std::to_string(*plan.nodes.ranks) : "";
  plan.step = {.name = "slurm", .where = "on this machine", .argv = words_of(tool, options)};
  plan.step.notes = std::move(notes);
  if (!is_here) {
    plan.step.notes.push_back(
        fmt::format("'{}' is not installed here: the plan is for a machine of the cluster", tool));
  }
  note_export(options, surroundings, plan.step.notes);
  if (request.has_ranks) {
    for (std::string& note : check_warning(options)) plan.step.notes.push_back(std::move(note));
  }
  note_values(settings, request, options, plan.nodes.nodes, surroundings, plan.step.notes);
  note_no_gpus(options, plan.step.notes);
  set_limits(options, plan.nodes);
  if (request.has_ranks && tasks == 1) refuse_few_bound_gpus(options, plan.nodes.gpus);
  if (request.has_ranks) note_few_cores(options, plan.nodes, plan.step.notes);
  note_course(request, options, plan.nodes.same_folder, plan.step.notes);
  if (request.batch) {
    std::vector<std::string> srun = words_of("srun", step_options);
    srun.insert(srun.end(), request.inner.begin(), request.inner.end());
    plan.step.input = batch_script(srun, request.has_ranks, requeue, ranks);
    plan.step.input_name = "batch script";
    return plan;
  }
  plan.step.argv.insert(plan.step.argv.end(), request.inner.begin(), request.inner.end());
  if (!ranks.empty()) plan.step.environment["GPUS_PER_NODE"] = ranks;
  const bool has_token =
      surroundings.setting("PRIMUS_JOB_TOKEN") || surroundings.setting("PRIMUS_JOB_TOKEN_FILE");
  if (request.has_ranks && !has_token)
    plan.step.environment["PRIMUS_JOB_TOKEN"] = hex(random_bytes(kTokenBytes));
  if (!plan.step.environment.empty()) require_export(options);
  return plan;
}

}  // namespace primus::launch
