// What an experiment says of a training run, as the settings that data, model and step are built from.
//
// Free functions without state. Errors are Error(kInvalid) at the place of the key that is to blame.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "config/experiment.h"
#include "device/plugin.h"
#include "engine/mesh.h"
#include "lm/data/dataset.h"
#include "lm/events/run_folder.h"
#include "lm/model/family.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/session.h"

namespace primus {

RunFolder run_folder_of(const config::Experiment& experiment);
// Where checkpoints are saved: `save`, or the run's folder.
Path checkpoint_root_of(const config::Experiment& experiment);
// What `load` names: a Hugging Face folder, one of our checkpoints, or a folder of checkpoints; of the folder
// of a run, its checkpoints.
Path loaded_root(const Path& load);
// The model's own folder there: of a folder of checkpoints, the one that a run would go on from.
Path loaded_folder(const Path& load);
// The error where there is none.
Error nothing_to_load(const config::Experiment& experiment);
// With `load`: what nobody chose of the model's architecture is as in its config.json, and sequences are no
// longer than it is made for, unless the experiment itself says so.
config::Experiment with_loaded_model(config::Experiment experiment, const FamilyRegistry& families,
                                     std::vector<std::string>* notes = nullptr);

// A tokenizer's file that the experiment names and that is not there.
std::optional<std::string> missing_tokenizer(const config::TrainerConfig& trainer);
// Of the keys `device` and `num_threads`, for one of `ranks` that share this host and its cores.
DeviceSpec device_spec_of(const config::Experiment& experiment, int ranks = 1);

// The tokenizer; with `load` alone, the loaded folder's own. Mock data with a vocab_size does without a
// preset's that is not there, and notes it.
std::unique_ptr<const Tokenizer> tokenizer_of(const config::Experiment& experiment,
                                              std::vector<std::string>* notes = nullptr);
// What to train: the architecture of what is loaded (loaded_model.h, also on `notes`), which defines the
// model where the experiment says nothing of it; without `load` the experiment's.
ModelConfig model_of(const config::Experiment& experiment, const FamilyRegistry& families,
                     const Tokenizer* tokenizer, std::vector<std::string>* notes = nullptr);
// `experiment`'s batch shape, recompute policy, optimizer and sharding settings, on one of `ranks`. Refuses
// batches that cannot be shared out.
SessionSettings session_settings_of(const config::Experiment& experiment, const ModelConfig& model,
                                    int ranks = 1);
// Its part that no model is needed for: how `ranks` share batches. Refuses those that they cannot.
void check_batches(const config::Experiment& experiment, int ranks);

// What keeps a run from writing a checkpoint of so many bytes into its folder, as a sentence. Empty where
// there is room, or where the run writes none. Of a folder that is not there yet, the nearest one above it
// counts.
std::string lack_of_disk(const config::TrainerConfig& c, const Path& folder, std::int64_t checkpoint_bytes);
// How `ranks` share the work. Refuses numbers that do not divide them.
engine::MeshShape mesh_shape_of(const config::Experiment& experiment, int ranks);
engine::Sharding sharding_of(const config::TrainerConfig& trainer);
// The place of `rank` among them, without peers: for measuring.
engine::Mesh measuring_mesh(const config::Experiment& experiment, int ranks, int rank);
data::DataOptions data_options_of(const config::Experiment& experiment, const Tokenizer& tokenizer);
// Whether a run begins with weights that were trained, and not with another run's state: then every step
// counts.
bool starts_from_weights(const config::TrainerConfig& trainer);

// Microbatches that are read before their turn.
int batches_read_ahead(std::int64_t microbatches);

// The experiment as text that means the same without its presets.
std::string experiment_text(config::Experiment experiment);

// Bytes of one checkpoint: the model in the compute type, with a copy of embedding and head for each module
// of multi-token prediction; with `optimizer`, its states, and master weights where the model is narrower.
std::int64_t checkpoint_bytes(const StepMeasurement& measured, const SessionSettings& settings,
                              bool optimizer);

}  // namespace primus
