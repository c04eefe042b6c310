#include "lm/train/settings/start_weights.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/weights.h"
#include "lm/train/continued_run.h"
#include "lm/train/resume.h"
#include "lm/train/settings/base_weights.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

bool has_model(const Path& folder) { return Env::posix().status(folder / "config.json").has_value(); }

// Throws if the folder of the start weights is missing, or if its weights have changed.
void refuse_other_start(const config::Experiment& experiment, const StartWeights& start) {
  const std::string folder = start.folder.string();
  std::string what;
  if (!has_model(start.folder)) {
    what = fmt::format("'{}' does not exist any more", folder);
  } else if (start.fingerprint && identity_of_weights(start.folder).fingerprint != *start.fingerprint) {
    what = fmt::format("the weights of '{}' have changed since then", folder);
  }
  if (what.empty()) return;
  throw experiment.error_for(
      "load", fmt::format("the reference model is the model at the start of the run, but {}", what),
      fmt::format(
          "restore '{}', or set load to a copy of it; or start another run (exp_name=NEW load=FOLDER)",
          folder));
}

}  // namespace

std::optional<StartWeights> start_weights_of(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  const std::optional<TrainerState> state = own_state(experiment);
  if (!state) {
    return c.load ? std::optional(StartWeights{.folder = loaded_folder(*c.load)}) : std::nullopt;
  }
  if (state->base.empty()) return std::nullopt;
  StartWeights start{.folder = state->base};
  if (state->base_weights) start.fingerprint = state->base_weights->fingerprint;
  const auto fits = [&](const Path& folder) {
    return has_model(folder) &&
           (!start.fingerprint || identity_of_weights(folder).fingerprint == *start.fingerprint);
  };
  // The recorded folder may have moved, and its path may be relative to another folder.
  if (!fits(start.folder) && c.load && Env::posix().status(*c.load)) {
    Path loaded = loaded_folder(*c.load);
    if (fits(loaded)) start.folder = std::move(loaded);
  }
  return start;
}

void load_model_weights(const Path& folder, engine::Rank& rank, ModelInstance& model) {
  if (Env::posix().status(folder / Manifest::kFileName)) {
    load_checkpoint(CheckpointReader::open(folder, Validation::kStructure), model.store(), rank, false,
                    Adapters::kMayBeMissing);
  } else {
    load_weights(SafetensorsFolder::open(folder), model.store(), rank, Adapters::kMayBeMissing);
  }
}

void load_reference_weights(const config::Experiment& experiment, engine::Rank& rank, ModelInstance& model) {
  const std::optional<std::string>& adapters = experiment.trainer->reference_adapters;
  if (!adapters) return load_start_weights(experiment, rank, model);
  const std::optional<StartWeights> start = start_weights_of(experiment);
  if (!start) {
    throw experiment.error_for("reference_adapters",
                               "reference_adapters needs load, the base model of the adapters", "set load");
  }
  refuse_other_start(experiment, *start);
  load_weights(SafetensorsFolder::open_adapted(start->folder, *adapters), model.store(), rank);
  model.parallel().distribute_values();
}

void load_start_weights(const config::Experiment& experiment, engine::Rank& rank, ModelInstance& model) {
  const std::optional<StartWeights> start = start_weights_of(experiment);
  if (!start) {
    model.store().initialize(rank.context(), static_cast<std::uint64_t>(experiment.trainer->seed));
  } else {
    refuse_other_start(experiment, *start);
    load_model_weights(start->folder, rank, model);
  }
  model.parallel().distribute_values();
}

}  // namespace primus
