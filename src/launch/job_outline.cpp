#include "launch/job_outline.h"

#include <fmt/format.h>

namespace primus::launch {
namespace {

// Returns the folder that contains `path` and has the longest name; null: no folder contains `path`.
const KeptFolder* folder_of(const std::string& path, const std::vector<KeptFolder>& kept) {
  const KeptFolder* nearest = nullptr;
  for (const KeptFolder& folder : kept) {
    std::string name = folder.inside;
    while (name.size() > 1 && name.ends_with('/')) name.pop_back();
    const bool contains = path == name || path.starts_with(name == "/" ? name : name + "/");
    if (contains && (!nearest || folder.inside.size() >= nearest->inside.size())) nearest = &folder;
  }
  return nearest;
}

}  // namespace

std::set<std::string> variables_to_pass(const JobOutline& outline) {
  std::set<std::string> variables = outline.variables;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NNODES",
                           "NODE_RANK", "GPUS_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "PATH", "HOME", "USER",
                           "PWD", "TMPDIR", "HOSTNAME", "SLURM_PROCID", "OMP_NUM_THREADS", "PRIMUS_PRESETS"})
    variables.erase(name);
  return variables;
}

std::vector<std::string> notes_on_lost_folders(const JobOutline& outline, const std::vector<KeptFolder>& kept,
                                               const std::string& start, const std::string& place,
                                               const std::string& remedy) {
  std::vector<std::string> notes;
  for (const Path& folder : outline.writes) {
    const bool is_known = folder.is_absolute() || !start.empty();
    const std::string path = (is_known ? Path(start) / folder : folder).lexically_normal().string();
    const KeptFolder* const volume = is_known ? folder_of(path, kept) : nullptr;
    if (volume && !volume->read_only) continue;
    notes.push_back(volume ? fmt::format("the run cannot write its folder '{}': the volume {} is read-only; "
                                         "remove ':ro', or choose another workspace",
                                         path, volume->inside)
                           : fmt::format("the run's folder '{}' is in no volume of the {}, so its logs and "
                                         "checkpoints are lost with the {}; {}",
                                         path, place, place, remedy));
    break;  // the folder of the checkpoints is usually in the run's folder
  }
  return notes;
}

}  // namespace primus::launch
