#include "launch/direct/direct_checks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/files/creatable.h"
#include "base/text/counted.h"
#include "comm/rendezvous/environment.h"
#include "launch/options/place_options.h"

namespace primus::launch {
namespace {

// Checks variables of the ranks' communication, as each rank does when it starts. `has_places`: the launcher
// sets each rank's number.
void check_communication(bool has_places, const Surroundings& surroundings) {
  Variables read;
  const auto get = [&](const char* name) -> const char* {
    const std::string text = name;
    if (has_places && text == "RANK") return "0";
    if (has_places && text == "WORLD_SIZE") return "1";
    if (has_places && (text == "LOCAL_RANK" || text == "LOCAL_WORLD_SIZE" || text == "GROUP_RANK"))
      return nullptr;
    const auto value = surroundings.variable(text);
    return value ? read.insert_or_assign(text, *value).first->second.c_str() : nullptr;
  };
  comm::JobEnvironment::read(get);
}

void refuse_ranks_without_gpus(const RanksHere& here, const Accelerators& gpus) {
  if (!gpus.assumed || here.place.task || device_of(here.command.words) == "cpu") return;
  if (here.count() <= gpus.count) return;
  throw invalid(
      fmt::format("the node starts {}, but the plan is for a host with {} {} GPUs (PRIMUS_GPU_MODEL)",
                  counted(here.count(), "rank"), gpus.count, gpus.model),
      "lower --nproc or GPUS_PER_NODE, or unset PRIMUS_GPU_MODEL");
}

void note_gpus(const Accelerators& gpus, std::vector<std::string>& notes) {
  if (gpus.assumed) {
    notes.push_back(
        fmt::format("planned for {} {} {} GPUs, because PRIMUS_GPU_MODEL is set and this node has no GPUs",
                    gpus.count, vendor_name(gpus.vendor), gpus.model));
  } else if (gpus.any()) {
    notes.push_back(fmt::format("{} {} {} GPU{} on this node", gpus.count, vendor_name(gpus.vendor),
                                gpus.model, gpus.count == 1 ? "" : "s"));
  }
}

void note_idle_gpus(const RanksHere& here, const Accelerators& gpus, std::vector<std::string>& notes) {
  const bool uses_ranks = here.script ? here.ranks : here.command.has_ranks;
  if (!uses_ranks || here.place.task || device_of(here.command.words) == "cpu") return;
  if (here.count() >= gpus.count) return;
  notes.push_back(fmt::format("this node starts {}, so {} of its {} GPUs stay idle",
                              counted(here.count(), "rank"), gpus.count - here.count(), gpus.count));
}

// Returns whether this node is the entire job.
bool is_alone(const RanksHere& here) {
  return here.place.nodes == 1 && !here.place.task && !place_option(here.command.words, "--nnodes");
}

}  // namespace

bool is_looked_for_here(const Path& file, bool in_this_folder, bool on_this_machine) {
  if (on_this_machine) return true;
  const Path here = std::filesystem::current_path();
  const Path place = (file.is_absolute() ? file : here / file).lexically_normal();
  const auto [end, unused] = std::mismatch(here.begin(), here.end(), place.begin(), place.end());
  return in_this_folder && (file.is_relative() || end == here.end());
}

std::string not_looked_for(const std::string& what, const Path& file) {
  return fmt::format("{} '{}' was not checked, because the job reads it on its nodes", what, file.string());
}

std::string looked_for_in_this_folder(const std::string& what, const Path& file) {
  return fmt::format("the plan reads {} '{}' of this folder; the job reads that file of its own folder", what,
                     file.string());
}

int RanksHere::count() const {
  if (!ranks) return 1;
  int chosen = 0;
  const std::string text = script ? "" : place_option(command.words, "--nproc").value_or("");
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), chosen);
  return error == std::errc() && chosen > 0 ? chosen : place.ranks;
}

void refuse_ranks_of_single(const DirectCommand& command, bool script, bool single, const Variables& given) {
  if (!single || script || !command.has_ranks) return;
  constexpr const char* kSingle = "the launcher starts a single process (--single, run_mode or RUN_MODE)";
  const auto ranks = place_option(command.words, "--nproc");
  if (ranks && *ranks != "1")
    throw invalid(fmt::format("{}, but --nproc is {}", kSingle, *ranks), "remove one of them");
  const auto usual = given.find("GPUS_PER_NODE");
  if (usual == given.end() || usual->second.empty() || usual->second == "1") return;
  throw invalid(fmt::format("{}, but --env GPUS_PER_NODE is {}", kSingle, usual->second),
                "remove one of them");
}

void require_token(const NodePlace& place, const Surroundings& surroundings) {
  if (surroundings.setting("PRIMUS_JOB_TOKEN") || surroundings.setting("PRIMUS_JOB_TOKEN_FILE")) return;
  const std::string& address = place.master_address;
  if (address == "localhost" || address == "::1" || address.starts_with("127.")) return;
  throw invalid("a job on several nodes needs a secret that its ranks share, but PRIMUS_JOB_TOKEN is not set",
                "export PRIMUS_JOB_TOKEN with the same random text on all nodes, or PRIMUS_JOB_TOKEN_FILE "
                "with the name of a file that holds it; 'primus slurm' does this automatically");
}

void require_gpus_for_numa(const Accelerators& gpus, bool by_variable) {
  if (gpus.any()) return;
  throw invalid(fmt::format("{} binds each rank to the memory next to its GPU, but this node has no GPU",
                            by_variable ? "ENABLE_NUMA_BINDING=1" : "--numa"),
                by_variable ? "unset ENABLE_NUMA_BINDING, or add --no-numa" : "remove --numa");
}

void check_ranks_here(const RanksHere& here, const Variables& given, const Accelerators& gpus,
                      const Surroundings& surroundings) {
  if (here.ranks) {
    const std::vector<std::string> options = here.script ? std::vector<std::string>() : here.command.words;
    // With --nnodes, the command itself determines the size of the job.
    const int nodes = place_option(options, "--nnodes") ? 0 : here.place.nodes;
    check_rank_variables(given, options, {.nodes = nodes, .ranks = here.place.ranks});
    refuse_ranks_without_gpus(here, gpus);
  }
  const bool communicates = here.ranks ? here.count() > 1 || !is_alone(here) : here.command.has_ranks;
  if (here.script || !communicates) return;
  try {
    check_communication(here.ranks, surroundings);
  } catch (const Error&) {
    // Ranks of other frameworks, which need no token, do not read these variables.
    if (!here.command.needs_token || here.command.needs_token()) throw;
  }
}

void note_overridden_setting(const DirectSettings& settings, const std::string& variable,
                             std::vector<std::string>& notes) {
  if (!settings.ranks_per_node || variable.empty() || variable == std::to_string(*settings.ranks_per_node))
    return;
  notes.push_back(fmt::format(
      "GPUS_PER_NODE={} of the environment or of --env overrides gpus_per_node: {} in the section "
      "direct of the settings",
      variable, *settings.ranks_per_node));
}

void note_ranks_here(const RanksHere& here, const DirectSettings& settings, const Variables& given,
                     const Accelerators& gpus, const Surroundings& surroundings,
                     std::vector<std::string>& notes) {
  note_gpus(gpus, notes);
  if (surroundings.dry_run && gpus.any()) note_idle_gpus(here, gpus, notes);
  const auto usual = surroundings.setting("GPUS_PER_NODE");
  if (here.ranks && usual) note_overridden_setting(settings, *usual, notes);
  if (here.own_ranks()) {
    const auto nproc = place_option(here.command.words, "--nproc");
    if (usual && nproc && *usual != *nproc)
      notes.push_back(fmt::format("--nproc {} overrides GPUS_PER_NODE={}", *nproc, *usual));
  }
  if (!here.ranks || here.python || !is_alone(here)) return;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    if (given.contains(name))
      notes.push_back(fmt::format("--env {} has no effect: all ranks of the job are on this node", name));
  }
}

void note_absent_inputs(const DirectSettings& settings, const DirectCommand& command, const Variables& given,
                        bool in_this_folder, bool on_this_machine, std::vector<std::string>& notes) {
  if (!command.absent_inputs || !settings.hooks.empty() || !settings.patches.empty()) return;
  for (const AbsentInput& input : command.absent_inputs(given)) {
    notes.push_back(is_looked_for_here(input.path, in_this_folder, on_this_machine)
                        ? fmt::format("{} is '{}' ({}), which does not exist: training will need it",
                                      input.key, input.path.string(), input.origin)
                        : not_looked_for(input.key, input.path));
  }
}

bool note_outline(const DirectSettings& settings, const DirectCommand& command, int nodes, int ranks,
                  const Variables& given, std::vector<std::string>& notes) {
  if (!command.outline || !settings.hooks.empty() || !settings.patches.empty()) return false;
  const JobOutline outline = command.outline(nodes, ranks, given);
  notes.insert(notes.end(), outline.notes.begin(), outline.notes.end());
  if (outline.process_per_node.empty()) return false;
  notes.push_back(
      fmt::format("{} runs one process per node, which uses all GPUs of the node", outline.process_per_node));
  return true;
}

bool note_job_here(const RanksHere& here, const DirectSettings& settings, const Variables& given,
                   std::vector<std::string>& notes) {
  note_absent_inputs(settings, here.command, given, true, true, notes);
  const auto& task = here.place.task;
  return note_outline(settings, here.command, task ? 1 : here.place.nodes, task ? task->world : here.count(),
                      given, notes);
}

std::string startable(const std::string& script) {
  return script.find('/') == std::string::npos ? "./" + script : script;
}

void require_executable(const std::string& script) {
  if (access(script.c_str(), X_OK) == 0) return;
  throw invalid(
      fmt::format("cannot run '{}': the file is not executable", script),
      fmt::format("make it executable: chmod +x {}; a Python script needs a name that ends with .py",
                  script));
}

void require_log_folder(const Path& log_file) {
  const Path folder = std::filesystem::absolute(log_file).lexically_normal().parent_path();
  if (can_create_files_in(folder)) return;
  throw invalid(fmt::format("--log_file {}: files cannot be created in the folder '{}'", log_file.string(),
                            folder.string()),
                "name a file in another folder");
}

}  // namespace primus::launch
