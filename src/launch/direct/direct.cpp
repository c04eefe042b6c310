#include "launch/direct/direct.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text/counted.h"
#include "comm/rendezvous/socket.h"
#include "launch/direct/direct_checks.h"
#include "launch/direct/direct_network.h"
#include "launch/node/hardware.h"
#include "launch/node/numa.h"
#include "launch/options/assignment.h"
#include "launch/options/place_options.h"
#include "launch/options/required_file.h"
#include "launch/process.h"

namespace primus::launch {
namespace {

// Returns the variables from --env and from files of variables. Later variables override earlier variables,
// and --env overrides files.
Variables given_variables(const DirectSettings& settings, const std::set<Path>& left_out = {}) {
  Variables variables;
  const auto set = [&](const std::vector<std::string>& assignments) {
    for (const std::string& text : assignments) {
      Assignment assignment = parse_assignment(text, "--env");
      variables[assignment.name] = std::move(assignment.value);
    }
  };
  for (const Path& file : settings.environment_files)
    if (!left_out.contains(file)) set(read_environment_file(file));
  set(settings.environment);
  return variables;
}

Surroundings with(const Surroundings& surroundings, const Variables& variables) {
  Surroundings result = surroundings;
  result.variable = [&surroundings, &variables](const std::string& name) {
    const auto found = variables.find(name);
    return found != variables.end() ? std::optional<std::string>(found->second) : surroundings.variable(name);
  };
  return result;
}

NodeDefaults node_defaults(const DirectSettings& settings, const Variables& given) {
  NodeDefaults defaults{settings.nodes, settings.ranks_per_node, settings.master_address,
                        settings.master_port};
  for (const auto& [name, value] : given) defaults.typed.insert(name);
  return defaults;
}

bool is_python(const std::string& script) { return script.ends_with(".py"); }

void require_program(const Surroundings& surroundings, const std::string& name, const std::string& hint,
                     std::vector<std::string>& notes) {
  if (name.find('/') != std::string::npos || surroundings.find_program(name)) return;
  if (!surroundings.dry_run)
    throw Error(ErrorKind::kDependency, fmt::format("the program '{}' is not installed here", name), hint);
  notes.push_back(fmt::format("the run needs the program '{}', which is not installed here: {}", name, hint));
}

// Sets the variables that the script VENV_ACTIVATE of a Python environment would set.
void use_virtual_environment(const Surroundings& surroundings, Variables& environment) {
  const auto activate = surroundings.setting("VENV_ACTIVATE");
  if (!activate) return;
  require_file(*activate, "script", "correct or unset VENV_ACTIVATE, which names it");
  const Path bin = std::filesystem::absolute(*activate).parent_path();
  environment["VIRTUAL_ENV"] = bin.parent_path().string();
  environment["PATH"] = bin.string() + ":" + surroundings.variable("PATH").value_or("/usr/bin:/bin");
}

// The node's place in a job as words of a command: numbers if known, otherwise placeholders.
struct PlaceWords {
  std::string nodes, node, ranks, address, port;
  bool several_nodes = false, first = true, last = true;
};

std::vector<std::string> torchrun_words(const PlaceWords& place, const Surroundings* surroundings) {
  std::vector<std::string> words{"torchrun",    "--nproc_per_node", place.ranks, "--nnodes",
                                 place.nodes,   "--node_rank",      place.node,  "--master_addr",
                                 place.address, "--master_port",    place.port};
  // Shows only the output of the job's first rank and of its last rank. With pipelines, the last rank has the
  // loss.
  std::string filter = place.first ? "0" : "";
  if (place.last && place.several_nodes && surroundings) {
    filter += fmt::format("{}{}", filter.empty() ? "" : ",", std::stoi(place.ranks) - 1);
  }
  if (!filter.empty()) words.insert(words.end(), {"--local-ranks-filter", filter});
  const std::string more = surroundings ? surroundings->setting("LOCAL_RANKS").value_or("") : "";
  for (std::size_t begin = 0; begin < more.size();) {
    const std::size_t end = std::min(more.find(' ', begin), more.size());
    if (end > begin) words.push_back(more.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

struct Shape {
  bool script = false, python = false, ranks = false;
};

std::vector<std::string> command_line(const DirectSettings& settings, const DirectCommand& command,
                                      const PlaceWords& place, const Shape& shape, bool several,
                                      const std::string& program, const Surroundings* surroundings) {
  std::vector<std::string> words;
  const bool binds = settings.numa == Numa::kOn && shape.ranks;
  if (shape.script) {
    if (shape.python && shape.ranks) {
      words = torchrun_words(place, surroundings);
      if (binds) words.emplace_back("--no-python");
    }
    if (binds) words.insert(words.end(), {program, std::string(kNumaWord)});
    if (shape.python && (binds || !shape.ranks)) words.emplace_back("python3");
    words.push_back(shape.python ? *settings.script : startable(*settings.script));
  } else {
    words = {program};
    if (command.debug) words.emplace_back("--debug");
  }
  words.insert(words.end(), command.words.begin(), command.words.end());
  if (shape.script || !shape.ranks || !several) return words;
  // Adds only options that the user has not written. check_place_options() has refused written options that
  // contradict the job. Another address or port is allowed.
  const auto add = [&](const char* option, const std::string& value) {
    if (!place_option(command.words, option)) words.insert(words.end(), {option, value});
  };
  add("--nproc", place.ranks);
  if (place.several_nodes) {
    add("--nnodes", place.nodes);
    add("--node_rank", place.node);
    add("--master_addr", place.address);
    add("--master_port", place.port);
  }
  if (binds) words.emplace_back("--numa");
  return words;
}

bool is_single(const DirectSettings& settings, const DirectCommand& command,
               const Surroundings& surroundings) {
  const auto mode = surroundings.setting("RUN_MODE");  // hooks may set it
  if (mode && *mode != "single" && *mode != "torchrun") {
    throw invalid(fmt::format("RUN_MODE='{}' is neither single nor torchrun", *mode),
                  "set it to one, or unset it");
  }
  return mode ? *mode == "single" : settings.single.value_or(command.one_process);
}

Shape shape_of(const DirectSettings& settings, const DirectCommand& command, bool single) {
  Shape shape;
  shape.script = settings.script && !settings.script->empty();
  shape.python = shape.script && is_python(*settings.script);
  shape.ranks = !single && (shape.script || command.has_ranks);
  return shape;
}

std::string rank_line(int node, int all_nodes, int ranks, int spares) {
  const int nodes = std::max(1, all_nodes - spares);
  if (node >= nodes)
    return fmt::format("node {}: no ranks; a spare, which takes the place of a lost node", node);
  const auto range = [](int first, int count) {
    return count == 1 ? fmt::format("{}", first) : fmt::format("{}..{}", first, first + count - 1);
  };
  return fmt::format("node {}: RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={}", node,
                     range(node * ranks, ranks), nodes * ranks, range(0, ranks), ranks);
}

std::optional<Path> log_file_of(const DirectSettings& settings) {
  if (settings.log_file && !settings.log_file->empty()) return Path(*settings.log_file);
  if (!settings.silent) return std::nullopt;
  // With --silent, output goes to a log file with AMD Primus's default name.
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char name[40];
  std::strftime(name, sizeof(name), "log_%Y%m%d_%H%M%S.txt", &local);
  return Path("logs") / name;
}

void add_notes(const DirectSettings& settings, const std::vector<Path>& hooks, Step& step) {
  for (const Path& hook : hooks) step.notes.push_back(fmt::format("hook {}", hook.string()));
  for (const Path& patch : settings.patches) step.notes.push_back(fmt::format("patch {}", patch.string()));
}

// Reports errors that would otherwise occur only in the ranks. Skipped with hooks or patches, which may still
// change the settings.
void check_job(const DirectSettings& settings, const DirectCommand& command, int nodes, int ranks,
               const Variables& given) {
  if (command.check_job && settings.hooks.empty() && settings.patches.empty())
    command.check_job(nodes, ranks, given);
}

// Checks a command of Primus on the node that runs it.
void check_on_node(const DirectSettings& settings, const DirectCommand& command, bool has_ranks,
                   const NodePlace& place, const Variables& given) {
  if (!has_ranks) return check_job(settings, command, place.nodes, 1, given);
  if (place.task) return check_job(settings, command, 1, place.task->world, given);
  JobShape job{.nodes = place.nodes, .node = place.node, .ranks = place.ranks};
  if (given.contains("GPUS_PER_NODE")) job.given_ranks = place.ranks;
  check_place_options(command.words, job);
  check_job(settings, command, place.nodes, place.ranks, given);
}

}  // namespace

bool asks_for_ranks(const std::vector<std::string>& words) {
  return place_option(words, "--nproc").has_value();
}

namespace {

// Returns the place as strings for commands and variables.
PlaceWords place_words(const NodePlace& place) {
  const auto number = [](int value) { return std::to_string(value); };
  return {.nodes = number(place.nodes),
          .node = number(place.node),
          .ranks = number(place.ranks),
          .address = place.master_address.empty() ? "localhost" : place.master_address,
          .port = number(place.master_port ? place.master_port : kMasterPort),
          .several_nodes = place.nodes != 1,
          .first = place.node == 0,
          .last = place.node == place.nodes - 1};
}

// Sets the variables that scripts and hooks rely on.
void set_place_variables(const NodePlace& place, const PlaceWords& words, bool script,
                         std::map<std::string, std::string>& environment) {
  environment["NNODES"] = words.nodes;
  environment["NODE_RANK"] = words.node;
  environment["GPUS_PER_NODE"] = words.ranks;
  if (place.ranks_are_tasks) environment[kTasksAsRanks] = words.ranks;
  if (place.nodes != 1 || script || place.task) {
    environment["MASTER_ADDR"] = words.address;
    environment["MASTER_PORT"] = words.port;
  }
}

// Sets the step's variables for the node's place in the job, and variables given by the user. `outside`: the
// environment without the user's variables.
void set_job_variables(const DirectCommand& command, const Shape& shape, const NodePlace& place,
                       const PlaceWords& words, const Variables& given, const Surroundings& outside,
                       Step& step) {
  set_place_variables(place, words, shape.script, step.environment);
  for (const auto& [name, value] : given) step.environment[name] = value;
  if (command.debug) step.environment["PRIMUS_LOG_LEVEL"] = "DEBUG";
  if (const auto task = task_of_step(outside)) step.environment[kLaunchedStep] = task->step;
  // Variables that another launcher set for its processes do not apply to the processes started here.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) {
    if (shape.ranks && outside.variable(name)) step.unset.emplace_back(name);
  }
}

// Sets the variables of a rank for a process that Slurm has started.
void set_rank_variables(const NodePlace::Task& task, int node,
                        std::map<std::string, std::string>& environment) {
  environment["RANK"] = std::to_string(task.rank);
  environment["WORLD_SIZE"] = std::to_string(task.world);
  environment["LOCAL_RANK"] = std::to_string(task.local_rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(task.local_world);
  environment["GROUP_RANK"] = std::to_string(node);
}

// Returns the description of this node's ranks, for a program that Primus starts without torchrun.
LocalLaunch local_launch(const NodePlace& place, const PlaceWords& words, std::vector<std::string> command) {
  const bool one_node = place.nodes == 1;
  LocalLaunch launch{.command = std::move(command), .environment = {}, .ranks = place.ranks};
  launch.hosts = place.nodes;
  launch.host = place.node;
  launch.master_address = one_node ? "" : words.address;
  launch.master_port = one_node ? std::uint16_t{0} : place.master_port;
  return launch;
}

// Checks that the step's program exists: Python, or torchrun, which starts Python on each rank.
void require_python(const Surroundings& surroundings, const Step& step, std::vector<std::string>& notes) {
  require_program(
      with(surroundings, step.environment), step.argv[0],
      step.argv[0] == "torchrun"
          ? "install PyTorch, set VENV_ACTIVATE to its environment, or run one process with --single"
          : "install Python 3",
      notes);
}

JobShape shape_of_job(const ElsewhereNodes& nodes, std::optional<int> ranks) {
  JobShape job{.nodes = nodes.nodes,
               .ranks = ranks,
               .gpus = nodes.gpus,
               .tasks = nodes.tasks,
               .given_ranks = nodes.given_ranks};
  const bool is_number =
      !nodes.node.empty() && std::ranges::all_of(nodes.node, [](char c) { return c >= '0' && c <= '9'; });
  if (is_number) job.node = std::stoi(nodes.node);
  return job;
}

// Checks that the files of the settings exist. Files that exist only on the nodes cannot be checked here.
// Adds a note for each such file, and returns these files, which are checked on the nodes.
std::set<Path> note_files_elsewhere(const DirectSettings& settings, const ElsewhereNodes& nodes,
                                    std::vector<std::string>& notes) {
  std::set<Path> only_there;
  const auto look_for = [&](const Path& file, const std::string& what) {
    if (!(nodes.folder && file.is_relative()) && Env::posix().status(file)) return;
    if (is_looked_for_here(file, nodes.same_folder, false)) {
      throw invalid(fmt::format("{}: there is no '{}'", what, file.string()),
                    "correct its name, or remove it");
    }
    notes.push_back(not_looked_for(what, file));
    only_there.insert(file);
  };
  if (settings.script && !settings.script->empty()) {
    look_for(*settings.script, "--script");
    const bool is_here = nodes.same_folder && is_looked_for_here(*settings.script, true, false);
    if (is_here && !is_python(*settings.script)) require_executable(*settings.script);
  }
  for (const Path& file : settings.patches) look_for(file, "--patch");
  for (const Path& folder : settings.hooks) look_for(folder, "--hooks");
  for (const Path& file : settings.environment_files) look_for(file, "--env");
  if (const auto file = network_file(settings)) look_for(*file, "--topology");
  return only_there;
}

// Checks a command of Primus on the job's nodes, and adds its notes. An error names the file of this folder
// that was read instead of the job's file. Returns whether each node starts only one process.
bool check_job_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                         const ElsewhereNodes& nodes, bool has_ranks, const std::optional<int>& ranks,
                         const Variables& given, std::vector<std::string>& notes) {
  const bool tasks_are_ranks = has_ranks && nodes.all_tasks;
  const int hosts = tasks_are_ranks ? 1 : nodes.nodes;
  const int on_host = tasks_are_ranks ? *nodes.all_tasks
                      : has_ranks     ? ranks.value_or(nodes.gpus.value_or(0))
                                      : 1;
  try {
    check_job(settings, command, hosts, on_host, given);
  } catch (Error& error) {
    for (const std::string& note : command.notes) error.add_hint(note);
    throw;
  }
  note_absent_inputs(settings, command, given, nodes.same_folder, false, notes);
  return note_outline(settings, command, hosts, on_host, given, notes);
}

// Notes sizes of the job in the settings that the job's own sizes override. `ranks`: the job's ranks per
// node.
void note_unused_settings(const DirectSettings& settings, const ElsewhereNodes& nodes,
                          const std::optional<int>& ranks, std::vector<std::string>& notes) {
  if (settings.ranks_per_node && nodes.ranks && ranks == nodes.ranks && *settings.ranks_per_node != *ranks) {
    notes.push_back(
        fmt::format("gpus_per_node: {} in the section direct of the settings is not used: the job "
                    "has {} rank{} per node",
                    *settings.ranks_per_node, *ranks, *ranks == 1 ? "" : "s"));
  }
  // Ignores 1, because AMD Primus's usual settings contain "nnodes: 1".
  if (const int set = settings.nodes.value_or(1); set != 1 && nodes.nodes > 0 && set != nodes.nodes) {
    notes.push_back(
        fmt::format("nnodes: {} in the section direct of the settings is not used: the job has {} node{}",
                    set, nodes.nodes, nodes.nodes == 1 ? "" : "s"));
  }
}

}  // namespace

DirectPlan plan_direct(const DirectSettings& asked, const DirectCommand& command,
                       const Surroundings& outside) {
  const Variables given = given_variables(asked);
  const Surroundings surroundings = with(outside, given);
  const Accelerators gpus = find_accelerators(surroundings);
  DirectSettings settings = asked;
  const bool single = is_single(settings, command, surroundings);
  const Shape shape = shape_of(settings, command, single);
  refuse_ranks_of_single(command, shape.script, single, given);
  // As in AMD Primus's scripts, ENABLE_NUMA_BINDING=1 has the effect of --numa.
  const bool numa_by_variable =
      settings.numa == Numa::kAuto && surroundings.setting("ENABLE_NUMA_BINDING") == "1";
  if (numa_by_variable && (gpus.any() || shape.ranks)) settings.numa = Numa::kOn;
  NodePlace place = find_node(surroundings, node_defaults(settings, given), gpus);
  const auto placed = place_nodes(settings, command, given, surroundings, place);
  const bool own_ranks = shape.ranks && !shape.script;
  const bool reported = own_ranks && asks_for_ranks(command.words);
  const bool several = place.nodes > 1 || place.ranks > 1 || reported;
  if (settings.numa == Numa::kOn) require_gpus_for_numa(gpus, numa_by_variable);
  const RanksHere here{command, place, shape.script, shape.python, shape.ranks};
  check_ranks_here(here, given, gpus, surroundings);
  if (!shape.script) check_on_node(settings, command, shape.ranks, place, given);
  const bool on_network = own_ranks && (place.nodes > 1 || place.task);
  if (on_network && (!command.needs_token || command.needs_token())) require_token(place, surroundings);

  DirectPlan result;
  result.hooks = hook_files(settings.hooks, command.hooks);
  result.patches = settings.patches;
  result.log_file = log_file_of(settings);
  if (result.log_file && surroundings.dry_run) require_log_folder(*result.log_file);
  for (const Path& patch : settings.patches) {
    require_file(patch, "patch", "--patch and 'patch' in the launcher's settings name scripts");
  }

  Step step{.name = "process", .where = "on this node", .argv = {}};
  step.environment = environment_defaults(gpus, surroundings);
  result.notes = environment_notes(step.environment, surroundings);
  if (shape.python) use_virtual_environment(surroundings, step.environment);
  const PlaceWords words = place_words(place);
  set_job_variables(command, shape, place, words, given, outside, step);

  if (shape.script) require_file(*settings.script, "script", "--script names a Python script or a program");
  if (shape.script && !shape.python) require_executable(*settings.script);
  if (place.task && shape.ranks) {  // Slurm has started the ranks
    const NodePlace::Task& task = *place.task;
    set_rank_variables(task, place.node, step.environment);
    step.unset.clear();
    step.where = fmt::format("rank {} of {}", task.rank, task.world);
    const Shape one{.script = shape.script, .python = shape.python, .ranks = false};
    step.argv = command_line(settings, command, words, one, false, surroundings.program, &surroundings);
  } else {
    step.argv = command_line(settings, command, words, shape, several, surroundings.program, &surroundings);
    if (shape.ranks && several && !reported) {
      result.plan.ranks.push_back(
          rank_line(place.node, place.nodes, place.ranks, spare_nodes(command.words)));
    }
    if (shape.ranks && shape.script && !shape.python) {
      result.ranks = local_launch(place, words, step.argv);
    }
  }
  if (shape.python) require_python(surroundings, step, result.notes);
  add_notes(settings, result.hooks, step);
  if (result.log_file) {
    step.notes.push_back(fmt::format("output to {}{}", result.log_file->string(),
                                     settings.silent ? ", and nowhere else" : ""));
  }
  note_ranks_here(here, settings, given, gpus, surroundings, result.notes);
  result.notes.insert(result.notes.end(), place.notes.begin(), place.notes.end());
  // A real run shows the notes before the command starts; a dry run shows them in the step.
  if (surroundings.dry_run) {
    if (!shape.script && note_job_here(here, settings, given, result.notes) && !result.plan.ranks.empty())
      result.plan.ranks = {rank_line(place.node, place.nodes, 1, spare_nodes(command.words))};
    step.notes.insert(step.notes.end(), result.notes.begin(), result.notes.end());
    result.notes.clear();
  }
  if (placed) add_network(*placed, surroundings.dry_run, step, result.plan);
  result.plan.steps.push_back(std::move(step));
  return result;
}

Plan plan_direct_elsewhere(const DirectSettings& settings, const DirectCommand& command,
                           const ElsewhereNodes& job_nodes, const std::string& program) {
  ElsewhereNodes nodes = job_nodes;
  std::vector<std::string> notes = command.notes;
  const Variables given = given_variables(settings, note_files_elsewhere(settings, nodes, notes));
  check_place_variables(given);
  refuse_other_values(given, nodes.outer_variables);
  use_given_master(given, nodes.address, nodes.port);
  const Surroundings nothing{.variable = [](const std::string&) { return std::nullopt; },
                             .variable_names = [] { return std::vector<std::string>(); }};
  const Surroundings reported = with(nothing, given);
  Shape shape = shape_of(settings, command, is_single(settings, command, reported));
  std::optional<int> ranks = nodes.ranks ? nodes.ranks : settings.ranks_per_node;
  if (const auto count = given.find("GPUS_PER_NODE"); count != given.end()) {
    ranks = parse_ranks("GPUS_PER_NODE", count->second);
    note_overridden_setting(settings, count->second, notes);
  }
  const bool has_ranks = shape.ranks;
  refuse_ranks_of_single(command, shape.script, is_single(settings, command, reported), given);
  note_unused_settings(settings, nodes, ranks, notes);
  if (nodes.tasks && has_ranks) {
    if (given.contains("GPUS_PER_NODE") && ranks != nodes.tasks) {
      throw invalid(fmt::format("--env GPUS_PER_NODE is {}, but Slurm starts {} ranks per node, one per task",
                                *ranks, *nodes.tasks),
                    "remove --env GPUS_PER_NODE, or start one task per node");
    }
    ranks = nodes.tasks;
    shape.ranks = false;
  }
  if (nodes.all_tasks && has_ranks) shape.ranks = false;
  JobShape job = shape_of_job(nodes, ranks);
  if (given.contains("GPUS_PER_NODE") && !nodes.tasks) job.given_ranks = ranks;
  check_job_variables(given, job);
  if (has_ranks) {
    const std::vector<std::string> options = shape.script ? std::vector<std::string>() : command.words;
    check_place_options(options, job);
    check_rank_variables(given, options, job);
    if (auto note = idle_gpus(options, job)) notes.push_back(std::move(*note));
    if (nodes.gpus && device_of(options) == "cpu")
      notes.push_back(fmt::format("device is cpu, so the {} that the job requests per node stay idle",
                                  counted(*nodes.gpus, "GPU")));
  } else if (command.has_ranks && !shape.script) {
    job.ranks = 1;
    if (auto note = idle_gpus({}, job)) notes.push_back(std::move(*note));
    const int tasks = nodes.nodes * nodes.tasks.value_or(1);
    if (tasks > 1) {
      notes.push_back(fmt::format("each of the {} {} runs the command separately, with the same exp_name",
                                  tasks, nodes.tasks ? "tasks" : "nodes"));
    }
  }
  const bool one_process =
      !shape.script && check_job_elsewhere(settings, command, nodes, has_ranks, ranks, given, notes);
  if (!ranks && has_ranks) ranks = nodes.gpus;  // one rank per GPU
  const bool several = nodes.nodes != 1 || ranks != 1;
  const PlaceWords words{.nodes = nodes.nodes > 0 ? std::to_string(nodes.nodes) : "<nodes of the job>",
                         .node = nodes.node,
                         .ranks = ranks ? std::to_string(*ranks) : "<its GPUs>",
                         .address = nodes.address.empty() ? "localhost" : nodes.address,
                         .port = nodes.port == "0" ? std::to_string(kMasterPort) : nodes.port,
                         .several_nodes = nodes.nodes != 1};
  Plan plan;
  Step step{.name = "process",
            .where = nodes.nodes == 1 ? "on the node" : "on each node",
            .argv = command_line(settings, command, words, shape, several, program, nullptr)};
  for (const auto& [name, value] : given) step.environment[name] = value;
  add_notes(settings, {}, step);
  step.notes.insert(step.notes.end(), notes.begin(), notes.end());
  for (std::string& note : environment_notes({}, reported)) step.notes.push_back(std::move(note));
  for (const Path& folder : settings.hooks) step.notes.push_back(fmt::format("hooks of {}", folder.string()));
  if (settings.log_file && !settings.log_file->empty())
    step.notes.push_back(fmt::format("output to {}", *settings.log_file));
  plan.steps.push_back(std::move(step));
  const bool chooses_ranks = asks_for_ranks(command.words) && !nodes.tasks;
  if (!has_ranks || !ranks || nodes.nodes == 0 || !several || chooses_ranks) return plan;
  for (int node = 0; node < nodes.nodes; ++node)
    plan.ranks.push_back(rank_line(node, nodes.nodes, one_process ? 1 : *ranks, spare_nodes(command.words)));
  return plan;
}

int run_direct(const DirectSettings& settings, DirectCommand command, const Surroundings& surroundings,
               const std::function<void(std::string_view)>& show) {
  DirectPlan plan = plan_direct(settings, command, surroundings);  // also reports errors before hooks run
  for (const std::string& note : plan.notes) show("note: " + note);
  const Variables given = given_variables(settings);
  const auto is_fixed = [&](const std::string& name) { return given.contains(name); };
  if (!plan.hooks.empty() || !plan.patches.empty()) {
    Step variables;
    variables.environment.insert(plan.plan.steps[0].environment.begin(),
                                 plan.plan.steps[0].environment.end());
    apply_environment(variables);
    const auto run = [&](HookKind kind, const Path& file, const std::vector<std::string>& words) {
      for (std::string& word : run_hook(kind, file, words, is_fixed, show)) {
        command.words.push_back(std::move(word));
      }
    };
    for (const Path& hook : plan.hooks) run(HookKind::kHook, hook, command.hooks.words);
    for (const Path& patch : plan.patches) run(HookKind::kPatch, patch, {});
    plan = plan_direct(settings, command, surroundings);
  }
  if (surroundings.setting("PRIMUS_SKIP_MAIN_LAUNCH") == "1") {
    show("note: PRIMUS_SKIP_MAIN_LAUNCH=1: the command is not run");
    return 0;
  }
  const Step& step = plan.plan.steps[0];
  if (!plan.log_file && !plan.ranks) become(step);  // with --silent, there is always a log file

  apply_environment(step);
  LocalLaunch launch = plan.ranks.value_or(LocalLaunch{.command = step.argv, .environment = {}});
  launch.is_job = plan.ranks.has_value();
  const comm::Socket nothing(settings.silent ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1);
  if (settings.silent) launch.output = launch.error = nothing.fd();
  if (plan.log_file) launch.log_file = *plan.log_file;
  const LaunchResult result = run_local(launch);
  if (result.failed_rank >= 0) {
    show(result.exit_code > 128
             ? fmt::format("error: '{}' was killed by signal {}", step.argv[0], result.exit_code - 128)
             : fmt::format("error: '{}' ended with exit code {}", step.argv[0], result.exit_code));
  }
  return result.exit_code;
}

}  // namespace primus::launch
