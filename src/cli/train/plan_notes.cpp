#include "cli/train/plan_notes.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/files/creatable.h"
#include "cli/train/external.h"
#include "config/hardware.h"
#include "config/keys.h"
#include "config/validation/without_effect.h"
#include "lm/train/job_start.h"
#include "lm/train/settings/training_settings.h"

namespace primus::cli {

void note_unused_settings(const config::Experiment& experiment, const Console& console) {
  for (const std::string& sentence : config::unused_settings_of_file(experiment))
    console.note("note: " + sentence);
}

namespace {

// Returns nullopt if `ranks` ranks cannot have the mesh, which other checks report, or if the number of ranks
// is not known and therefore 1.
std::optional<launch::JobMesh> mesh_of(const config::Experiment& experiment, std::int64_t ranks) {
  if (ranks <= 1) return std::nullopt;
  try {
    const engine::MeshShape mesh = mesh_shape_of(experiment, static_cast<int>(ranks));
    return launch::JobMesh{.tensor = mesh.tensor,
                           .context = mesh.context,
                           .pipeline = mesh.pipeline,
                           .expert = mesh.expert,
                           .expert_tensor = mesh.expert_tensor};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

launch::JobOutline outline_of(const ExperimentArguments& arguments, const config::Experiment& experiment,
                              std::int64_t nodes, std::int64_t ranks_per_node) {
  launch::JobOutline outline{.reads = arguments.files_of(experiment),
                             .variables = arguments.variables_read()};
  outline.framework = experiment.framework;
  // Other frameworks have their own settings instead of this key.
  outline.starts_anew = config::find_key("auto_continue_train")
                            ->has_meaning_for(*config::parse_framework(experiment.framework)) &&
                        starts_anew(experiment);
  outline.writes = {run_folder_of(experiment).root(), checkpoint_root_of(experiment)};
  std::vector<std::string> notes = ExperimentArguments::announcements(experiment);
  if (experiment.framework == "native") {
    outline.mesh = mesh_of(experiment, nodes * ranks_per_node);
    for (std::string& sentence : config::unused_settings_of_file(experiment))
      notes.push_back(std::move(sentence));
  } else {
    ExternalNotes external = notes_on_external(experiment, nodes, ranks_per_node);
    outline.process_per_node = external.process_per_node;
    outline.amd_image = external.amd_image;
    outline.deaf = external.deaf;
    notes.insert(notes.end(), external.notes.begin(), external.notes.end());
  }
  for (const std::string& note : notes)
    outline.notes.push_back(note.starts_with("note: ") ? note.substr(6) : note);
  return outline;
}

void note_unused_gpus(const config::Hardware& hardware, std::int64_t used, const Console& console) {
  const auto there = static_cast<std::int64_t>(hardware.gpus_per_host);
  if (there <= used) return;
  console.note(
      fmt::format("note: the plan uses {} of {} GPUs per host; --nproc {} uses all", used, there, there));
}

void note_replaced_by_fit(std::span<const std::string> settings, const config::Experiment& given,
                          const config::Experiment& fitted, const Console& console) {
  for (const std::string& setting : settings) {
    const std::string name = setting.substr(0, setting.find('='));
    if (given.provenance_of(name).layer != config::Layer::kCommandLine) continue;
    const config::KeySpec& key = *config::find_key(name);
    if (config::same_value(key, given.trainer, fitted.trainer)) continue;
    console.note(fmt::format("note: --fit chooses {}: {} replaces the command line's {}", name,
                             config::current_value(key, fitted.trainer).show(),
                             config::current_value(key, given.trainer).show()));
  }
}

void note_storage(const config::Experiment& experiment, std::int64_t checkpoint_bytes,
                  const Console& console) {
  const Path output = run_folder_of(experiment).root(), checkpoints = checkpoint_root_of(experiment);
  const auto note = [&](std::string_view key, const Path& folder) {
    console.note(
        fmt::format("warning: files cannot be created in the folder '{}': training will need it; choose "
                    "another folder ({})",
                    folder.string(), key));
  };
  if (!can_create_files_in(output)) {
    note("workspace", output);
  } else if (!can_create_files_in(checkpoints)) {
    note("save", checkpoints);
  }
  const std::string lack = lack_of_disk(experiment.trainer, output, checkpoint_bytes);
  if (!lack.empty()) console.note(fmt::format("warning: {}: training will need it", lack));
}

}  // namespace primus::cli
