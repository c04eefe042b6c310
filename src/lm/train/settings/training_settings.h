// Converts an experiment into the settings of data, model and step.
//
// Free functions without state. Errors are Error(kInvalid) at the offending key.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "config/experiment.h"
#include "device/plugin.h"
#include "engine/parallel/mesh.h"
#include "lm/data/dataset.h"
#include "lm/events/run_folder.h"
#include "lm/model/family.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/step/session.h"

namespace primus {

RunFolder run_folder_of(const config::Experiment& experiment);
// Returns how long ranks wait for each other until the time of a step is known (distributed_timeout_minutes).
std::chrono::minutes first_patience_of(const config::Experiment& experiment);
// Returns the folder for checkpoints: `save`, or the run's folder.
Path checkpoint_root_of(const config::Experiment& experiment);
// Resolves `load`: a Hugging Face folder, a Primus checkpoint or a folder of checkpoints. If `load` is a
// run's folder, returns the folder of its checkpoints.
Path loaded_root(const Path& load);
// Returns the folder of the model to load, which is loaded_root() or a folder in it. For a folder of
// checkpoints, returns the checkpoint from which a run would resume.
Path loaded_folder(const Path& load);
// Returns the error for a `load` without weights.
Error nothing_to_load(const config::Experiment& experiment);
// If `load` is set, keys that are not set get their values from the loaded config.json. A sequence length
// that is not set is limited to the length that the model supports.
config::Experiment with_loaded_model(config::Experiment experiment, const FamilyRegistry& families,
                                     std::vector<std::string>* notes = nullptr);

// Returns the first tokenizer file that the experiment names and that does not exist; nullopt: none is
// missing.
std::optional<std::string> missing_tokenizer(const config::TrainerConfig& trainer);
// Returns the run's newest checkpoint if a file of missing_tokenizer() is missing, the run resumes, and the
// checkpoint has the files of the tokenizer; otherwise nullopt.
std::optional<Path> kept_tokenizer(const config::Experiment& experiment);
// Converts the keys `device` and `num_threads` for one of `ranks` ranks that share the cores of this host.
DeviceSpec device_spec_of(const config::Experiment& experiment, int ranks = 1);
// Returns a warning if `ranks` ranks of this host compute on the CPU with more threads than the host has
// cores because of num_threads; otherwise "". `spec`: the device of a rank.
std::string excess_of_threads(const config::Experiment& experiment, const DeviceSpec& spec, int ranks);

// Loads the experiment's tokenizer, which may be in the folder of a run; if the experiment sets only `load`,
// loads the tokenizer of the loaded folder. If the files of the tokenizer are missing and a resumed run has a
// copy (kept_tokenizer), loads the copy with a note. If a preset's tokenizer is missing, but data is mock
// data and vocab_size is set, the tokenizer is skipped with a note.
std::unique_ptr<const Tokenizer> tokenizer_of(const config::Experiment& experiment,
                                              std::vector<std::string>* notes = nullptr);
// Returns the architecture to train: the architecture of the loaded weights, reconciled with the experiment
// (loaded_model.h, which adds `notes`). Without `load`, returns the experiment's architecture.
ModelConfig model_of(const config::Experiment& experiment, const FamilyRegistry& families,
                     const Tokenizer* tokenizer, std::vector<std::string>* notes = nullptr);
// Returns the settings of `experiment` for one of `ranks` ranks: batch shape, recomputation, optimizer and
// sharding. Throws if batches do not divide evenly.
SessionSettings session_settings_of(const config::Experiment& experiment, const ModelConfig& model,
                                    int ranks = 1);
// Makes the checks of session_settings_of() that need no model: throws if `ranks` ranks cannot divide the
// batches evenly.
void check_batches(const config::Experiment& experiment, int ranks);
// Throws if `world` ranks cannot split the model or the batch as requested. Each rank would also refuse such
// a split, but only the first rank's error would be reported. Loaded models are checked by the ranks, which
// read the models.
void check_mesh(const config::Experiment& experiment, const FamilyRegistry& families, int world);

// Returns a sentence that says why the run cannot write a checkpoint of `checkpoint_bytes` into `folder`; ""
// if there is room, or if the run writes none. If the folder does not exist yet, checks the nearest existing
// parent.
std::string lack_of_disk(const config::TrainerConfig& c, const Path& folder, std::int64_t checkpoint_bytes);
// Returns the mesh shape for `ranks` ranks. Throws if the sizes do not divide the number of ranks.
engine::MeshShape mesh_shape_of(const config::Experiment& experiment, int ranks);
// Sets moe_ranks_per_host of an experiment that is planned, if a run with `on_host` ranks on each host would
// send tokens in two hops. The planned hardware (--hardware) replaces `on_host`.
void assume_expert_hosts(config::Experiment& e, const MoeConfig& moe, int world, int on_host);
engine::Sharding sharding_of(const config::TrainerConfig& trainer);
// Returns why overlap_moe_expert_parallel_comm has no effect on `world` ranks; "" if it has.
std::string why_microbatches_do_not_alternate(const config::Experiment& e, int world);
// Returns whether forward passes add sums over ranks in one order (comm::Communicator::ordered_sums): in
// batch-invariant runs on GPUs. Sums of CPUs always have one order.
bool orders_sums(const config::Experiment& experiment);
// Returns the mesh of rank `rank`, without connections to other ranks, for measuring.
engine::Mesh measuring_mesh(const config::Experiment& experiment, int ranks, int rank);
data::DataOptions data_options_of(const config::Experiment& experiment, const Tokenizer& tokenizer);
// Returns whether a run starts from trained weights, and does not resume another run. Such a run may be
// short, so its warm-up starts above rate 0 (lm/optimizer/schedule.h).
bool starts_from_weights(const config::TrainerConfig& trainer);

// Returns the number of microbatches to read ahead.
int batches_read_ahead(std::int64_t microbatches);

// Returns the experiment as YAML that needs no presets and describes the same run.
std::string experiment_text(config::Experiment experiment);

// Returns `experiment` with the settings that a run of `world` ranks derives from the data (sft_fit_to_data)
// and from the model that `load` names. Returns `experiment` unchanged if this model does not exist, or if
// the framework is not the native engine. Throws the errors of Objective::plan() and with_loaded_tokenizer().
config::Experiment planned_experiment(const config::Experiment& experiment, const FamilyRegistry& families,
                                      int world);

// Returns planned_experiment() as experiment_text(); for other frameworks, the experiment as YAML. `on_host`:
// number of ranks per host.
std::string exported_text(const config::Experiment& experiment, const FamilyRegistry& families, int world,
                          int on_host = 1);

// Returns the size of one checkpoint in bytes: the model in the compute type, with a copy of embedding and
// head for each multi-token prediction module. If `optimizer` is true, adds the optimizer states, and master
// weights if the model is stored in a narrower type.
std::int64_t checkpoint_bytes(const StepMeasurement& measured, const SessionSettings& settings,
                              bool optimizer);

}  // namespace primus
