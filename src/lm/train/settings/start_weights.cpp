#include "lm/train/settings/start_weights.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/weights.h"
#include "lm/train/resume.h"
#include "lm/train/settings/base_weights.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Returns the state of the run's own newest checkpoint; empty for a new run.
std::optional<TrainerState> own_state(const config::Experiment& experiment) {
  if (!experiment.trainer->auto_continue_train) return std::nullopt;
  const ResumePoint point = find_resume_point(checkpoint_root_of(experiment), Validation::kStructure);
  return point.reader ? std::optional(read_trainer_state(*point.reader)) : std::nullopt;
}

bool has_model(const Path& folder) { return Env::posix().status(folder / "config.json").has_value(); }

}  // namespace

void load_start_weights(const config::Experiment& experiment, engine::Rank& rank, ModelInstance& model) {
  const config::TrainerConfig& c = experiment.trainer;
  const std::optional<TrainerState> state = own_state(experiment);
  const bool from_nothing = state ? state->base.empty() : !c.load;
  if (from_nothing) {
    model.store().initialize(rank.context(), static_cast<std::uint64_t>(c.seed));
  } else {
    Path folder = state ? Path(state->base) : loaded_folder(*c.load);
    // A recorded path may be relative to an earlier working folder, so `load` is tried next.
    if (!has_model(folder) && c.load && Env::posix().status(*c.load)) folder = loaded_folder(*c.load);
    const auto refuse = [&](const std::string& what) {
      throw experiment.error_for(
          "load", fmt::format("the reference model is the model at the start of the run, but {}", what),
          "restore the folder, or start another run (exp_name=NAME load=FOLDER)");
    };
    if (!has_model(folder)) refuse(fmt::format("'{}' does not exist any more", folder.string()));
    if (state && state->base_weights &&
        identity_of_weights(folder).fingerprint != state->base_weights->fingerprint)
      refuse(fmt::format("the weights of '{}' have changed since then", folder.string()));
    if (Env::posix().status(folder / Manifest::kFileName)) {
      load_checkpoint(CheckpointReader::open(folder, Validation::kStructure), model.store(), rank, false,
                      Adapters::kMayBeMissing);
    } else {
      load_weights(SafetensorsFolder::open(folder), model.store(), rank, Adapters::kMayBeMissing);
    }
  }
  model.parallel().distribute_values();
}

}  // namespace primus
