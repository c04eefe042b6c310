#include "launch/container/container_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/counted.h"
#include "launch/container/container_values.h"
#include "launch/options/place_options.h"
#include "launch/options/secret_values.h"

namespace primus::launch {
namespace {

constexpr const char* kUsualSharedMemory = "16g";

std::string value_of(const GivenOption* option) { return option ? option->value.value_or("") : ""; }

// Refuses a variable that the command line sets in two ways: "A=1" and "A=2", or "A=1" and "A".
void refuse_repeated_variables(const std::vector<GivenOption>& given) {
  std::map<std::string, std::string> seen;
  for (const GivenOption& option : given) {
    if (option.name != "env" || !option.value) continue;
    const std::string name = option.value->substr(0, option.value->find('='));
    const auto [earlier, is_new] = seen.emplace(name, *option.value);
    if (is_new || earlier->second == *option.value) continue;
    throw invalid(fmt::format("--env sets {} twice, to different values", name), "keep one of them");
  }
}

// Refuses a volume whose options contradict each other, and a name that may be a folder or a volume of the
// runtime.
void check_volume(const std::string& text) {
  const auto parts = forms::split(text, ":");
  if (parts.size() == 3) {
    const auto options = forms::split(parts[2], ",");
    const auto has = [&](std::string_view option) {
      return std::ranges::find(options, option) != options.end();
    };
    if (has("ro") && has("rw"))
      throw invalid(fmt::format("--volume {}: ro and rw contradict each other", text), "keep one of them");
  }
  const std::string host(parts[0]);
  const bool is_name = host.find('/') == std::string::npos && !host.starts_with('.');
  std::error_code ignored;
  if (parts.size() < 2 || !is_name || !std::filesystem::exists(host, ignored)) return;
  throw invalid(
      fmt::format(
          "--volume {}: without a '/', '{}' names a volume of the runtime, but this folder has a file "
          "or folder of that name",
          text, host),
      fmt::format("write --volume ./{} to mount it, or rename the volume", text));
}

// Refuses a file of variables that sets a variable of the launcher. The runtime reads the file, so the
// launcher would not get its value.
void check_variables_of_file(const std::string& file) {
  if (!Env::posix().status(file)) return;
  constexpr std::string_view kPlace[] = {"NNODES",      "NODE_RANK", "GPUS_PER_NODE",   "MASTER_ADDR",
                                         "MASTER_PORT", "RANK",      "WORLD_SIZE",      "LOCAL_RANK",
                                         "GROUP_RANK",  "RUN_MODE",  "LOCAL_WORLD_SIZE"};
  constexpr std::uint64_t kMaxFile = 1 << 20;
  const std::string text = read_file(file, kMaxFile);
  int number = 0;
  for (const std::string_view line : forms::split(text, "\n")) {
    ++number;
    const std::string_view name = line.substr(0, line.find('='));
    if (std::ranges::find(kPlace, name) == std::end(kPlace)) continue;
    throw invalid(
        fmt::format("--env-file sets {}, which the launcher sets in the container", name),
        fmt::format("remove it from the file; --env {}=VALUE changes it, if the job allows it", name))
        .at(fmt::format("{}:{}", file, number));
  }
}

bool shares_memory_of_host(const ContainerRequest& request, const std::vector<GivenOption>& options) {
  const GivenOption* const ipc = find_given(options, "ipc");
  return ipc ? value_of(ipc) == "host" : request.settings.privileged_set;
}

void note_memory(const ContainerRequest& request, const std::vector<GivenOption>& options,
                 std::vector<std::string>& notes) {
  const GivenOption* const shared = find_given(options, "shm-size");
  if (shares_memory_of_host(request, options)) {
    if (shared)
      notes.push_back(fmt::format("{} has no effect: {} gives the container the host's shared memory",
                                  written(*shared),
                                  find_given(options, "ipc") ? "--ipc host" : "--privileged-set"));
    return;
  }
  const std::string memory = value_of(find_given(options, "memory"));
  const std::string size = shared ? value_of(shared) : kUsualSharedMemory;
  if (find_given(options, "ipc") && !shared) return;
  if (!forms::is_bytes(memory) || !forms::is_bytes(size) ||
      forms::value_of_bytes(size) <= forms::value_of_bytes(memory))
    return;
  notes.push_back(
      fmt::format("the shared memory ({}) may become larger than the container's memory ({}), to which it "
                  "counts: the system then ends the container; set --shm-size below --memory",
                  size, memory));
}

}  // namespace

void check_container_options(const ContainerRequest& request, const std::vector<GivenOption>& options) {
  if (find_given(options, "detach")) {
    throw invalid("--detach does not wait for the container, so the launcher's exit code would mean nothing",
                  "remove it: the launcher waits and returns the command's exit code");
  }
  if (value_of(find_given(options, "rm")) == "false") {
    throw invalid(fmt::format("--rm=false: {}", kKeptContainer),
                  "remove --rm=false; --log_file keeps the output");
  }
  refuse_repeated_variables(request.given);
  refuse_secret_values(options, "export {0} first, and pass it on by name: --env {0}");
  for (const GivenOption& option : options) {
    if (option.name == "volume" && option.value) check_volume(*option.value);
    if (option.name == "env-file" && option.value) check_variables_of_file(*option.value);
  }
}

void refuse_gpus_of_nvidia(Vendor vendor, const ContainerRequest& request,
                           const std::vector<GivenOption>& options) {
  const GivenOption* const gpus = find_given(options, "gpus");
  if (!gpus || (vendor != Vendor::kAmd && request.settings.accelerator != "amd")) return;
  throw invalid(fmt::format("{} selects NVIDIA GPUs, but the container gets AMD GPUs", written(*gpus)),
                "remove --gpus; to use only some GPUs: --env HIP_VISIBLE_DEVICES=0,1");
}

std::vector<std::string> notes_on_container(const ContainerRequest& request,
                                            const std::vector<GivenOption>& options, bool several_nodes,
                                            const Surroundings& surroundings) {
  std::vector<std::string> notes;
  note_memory(request, options, notes);
  const GivenOption* const network = find_given(options, "network");
  const std::string kind = value_of(network).substr(0, value_of(network).find(':'));
  if (several_nodes &&
      forms::is_one_of(kind, {"none", "bridge", "default", "private", "slirp4netns", "pasta"}))
    notes.push_back(
        fmt::format("--network {}: the ranks of different nodes cannot reach each other; without it, the "
                    "container uses the host's network",
                    value_of(network)));
  if (network && request.settings.privileged_set && value_of(network) != "host")
    notes.push_back(fmt::format("{} replaces the host's network, which --privileged-set uses without it",
                                written(*network)));
  if (const GivenOption* const user = find_given(request.given, "user"))
    notes.push_back(fmt::format(
        "{}: Primus sets no HOME, USER and HF_HOME in the container; --env sets them if the image does not",
        written(*user)));
  for (const GivenOption& option : request.given) {
    const std::string text = option.value.value_or("");
    if (option.name != "env" || text.empty() || text.find('=') != std::string::npos) continue;
    if (!surroundings.setting(text))
      notes.push_back(fmt::format("--env {0}: {0} is not set here, so the container does not get it", text));
  }
  return notes;
}

std::vector<std::string> notes_on_resources(const ContainerRequest& request,
                                            const std::vector<GivenOption>& options,
                                            const ElsewhereNodes& job) {
  std::vector<std::string> notes;
  if (request.settings.accelerator == "none" && job.gpus)
    notes.push_back(fmt::format(
        "the container gets no GPU (--accelerator none), so the {} that the job requests per node "
        "stay idle",
        counted(*job.gpus, "GPU")));
  const std::string cores = value_of(find_given(options, "cpus"));
  if (job.cores && forms::decimal(cores) == cores.size() && !cores.empty() && std::stod(cores) > *job.cores)
    notes.push_back(fmt::format("--cpus={} of the container is more than the {} that the job gets on a node",
                                cores, counted(*job.cores, "core")));
  const std::string memory = value_of(find_given(options, "memory"));
  if (job.memory && forms::is_bytes(memory) && forms::value_of_bytes(memory) > *job.memory)
    notes.push_back(fmt::format(
        "--memory={} of the container is more than the memory that the job gets on a node ({:.4g} "
        "GiB): Slurm may end the job",
        memory, *job.memory / (1 << 30)));
  return notes;
}

}  // namespace primus::launch
