// Loading an experiment: AMD Primus's YAML (or the same structure in TOML) into one typed, validated object.
//
//   work_group: ${PRIMUS_TEAM:amd}        # workspace/work_group/user_name/exp_name is the output folder
//   user_name: ${PRIMUS_USER:root}
//   exp_name: llama_124M-pretrain
//   workspace: ./output
//   env: {OMP_NUM_THREADS: 2}
//   modules:
//     pre_trainer:
//       framework: native                 # native | megatron | torchtitan | maxtext
//       config: pre_trainer.yaml          # module preset
//       model: llama_124M.yaml            # model preset
//       overrides: {train_iters: 50}
//
// Precedence: command line > overrides > module preset > model preset > the defaults of keys.def. Every file
// may have `extends:` (a path or a list; later files override earlier files, and the file itself overrides
// all) and ${VAR} or ${VAR:default}. docs/formats/experiment.md describes the format, docs/config.md every
// key.
//
// Errors in the input have kind kInvalid or kUnsupported and a position file:line:col; several problems are
// reported together. Loading prints no output and has no other effect than the returned object.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/hardware.h"
#include "config/value.h"

namespace primus::config {

struct TrainerConfig;

// A TrainerConfig on the heap, copied with its owner. A new key therefore recompiles only the files that
// include config/trainer_config.h: the files that read trainer keys. A moved-from object may only be assigned
// to or destroyed.
class OwnedTrainerConfig {
 public:
  OwnedTrainerConfig();
  OwnedTrainerConfig(const OwnedTrainerConfig& other);
  OwnedTrainerConfig(OwnedTrainerConfig&& other) noexcept;
  OwnedTrainerConfig& operator=(const OwnedTrainerConfig& other);
  OwnedTrainerConfig& operator=(OwnedTrainerConfig&& other) noexcept;
  OwnedTrainerConfig& operator=(const TrainerConfig& config);
  ~OwnedTrainerConfig();
  bool operator==(const OwnedTrainerConfig& other) const;

  TrainerConfig* operator->() { return config_.get(); }
  const TrainerConfig* operator->() const { return config_.get(); }
  operator TrainerConfig&() { return *config_; }
  operator const TrainerConfig&() const { return *config_; }

 private:
  std::unique_ptr<TrainerConfig> config_;
};

// The possible sources of a trainer key's value, in rising precedence.
enum class Layer { kDefault, kDerived, kModelPreset, kModulePreset, kOverrides, kCommandLine };

struct Provenance {
  Layer layer = Layer::kDefault;
  Origin origin;
  std::string name = {};  // the alias under which the key was set, if any
  // Returns "default", "derived", "derived from exp.yaml:5:3", "environment NAME", or origin.describe().
  std::string describe() const;
};

struct Experiment {
  std::string work_group, user_name, exp_name, workspace;
  std::map<std::string, std::string> env;  // environment variables for the processes of the run
  std::string module_name;                 // pre_trainer
  std::vector<std::string> other_modules;  // other modules of the file, which are not run
  std::string framework;                   // native, megatron, torchtitan or maxtext
  // The title of the framework that the file names, if the native engine runs it in place of that framework.
  std::string written_for;
  std::string module_preset, model_preset;  // names of the presets in the experiment; may be empty

  OwnedTrainerConfig trainer;

  // Known keys that were set but have no meaning for `framework`, without repetitions, in alphabetical order.
  std::vector<std::string> ignored;
  // For each set key that the native engine replaces (KeyClass::kReplaced), a description of what the engine
  // does instead. Contains only keys set in the user's own files or on the command line. Empty for other
  // frameworks.
  std::map<std::string, std::string> replaced;
  // Warnings as complete sentences with their location.
  std::vector<std::string> warnings;

  // All trainer keys that were set, including ignored keys, merged from all layers. Adapters of other
  // frameworks read them.
  Value settings;
  // The provenance of trainer keys, top-level keys, framework, config, model and env.NAME, by key. Contains
  // only keys that were set or derived.
  std::map<std::string, Provenance, std::less<>> provenance;

  // config.json of the model that `load` names; null before with_loaded_model()
  // (lm/train/settings/training_settings.h) has read it.
  std::shared_ptr<const Source> loaded_config;

  // The hardware to plan for (--hardware), which this machine need not have; null: this machine's device.
  std::shared_ptr<const Hardware> hardware;

  // Returns whether a preset, the file, the command line or the environment gives the key a value other than
  // null.
  bool sets(std::string_view key) const;
  Provenance provenance_of(std::string_view key) const;
  // Returns the name under which the user set trainer key `key`.
  std::string name_of(std::string_view key) const;
  // Returns an Error of kind kInvalid at the position where trainer key `key` was set. The trainer's later
  // checks use this function.
  Error error_for(std::string_view key, std::string what, std::string hint = {}) const;
  // Returns workspace/work_group/user_name/exp_name.
  std::filesystem::path output_dir() const;
};

// A cache of settings files, by path. Every file is read once. Loads that share this object see the same
// content even if a file changes in between. Not thread-safe.
class SettingsFiles {
 public:
  // Throws Error if the file cannot be read.
  std::shared_ptr<const Source> read(const std::filesystem::path& path);

 private:
  std::map<std::filesystem::path, std::shared_ptr<const Source>> sources_;
};

struct LoadOptions {
  // Reads the experiment, its presets and the files that these extend. Null: each load reads the files again.
  std::shared_ptr<SettingsFiles> files;
  // Reads an environment variable; by default the process's own.
  std::function<std::optional<std::string>(const std::string&)> environment;
  // Folders with models/ and modules/, searched in order after the experiment's own folder. By default
  // PRIMUS_PRESETS, then the presets installed with the program.
  std::optional<std::vector<std::filesystem::path>> preset_dirs;
  // The module to run if the file has several.
  std::string module = "pre_trainer";
};

// Reads, merges and validates. `overrides` are command-line arguments: key=value, --key value, --key=value,
// --flag; a key is a trainer key, a top-level key, or a dotted path (modules.pre_trainer.overrides.lr).
// Throws Error.
Experiment load_experiment(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                           const LoadOptions& options = {});

// Loads from text instead of a file. Relative paths are relative to the folder of `name`. If `name` ends in
// .toml, the text is TOML.
Experiment load_experiment_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides = {}, const LoadOptions& options = {});

// Loads an experiment that to_yaml() wrote, for reading and not for running: missing environment variables,
// such as secrets of another environment, are empty.
Experiment load_recorded_experiment(std::string_view text, const std::string& name);

// Sets the number of steps if length_is_open(): derives and checks dependent settings as load_experiment()
// does. Throws Error if other settings do not fit the number of steps.
void set_train_iters(Experiment& experiment, std::int64_t train_iters);

// Returns the experiment with absolute paths, so that its YAML works from other folders. Converts all output
// paths and data paths, and existing paths of models and tokenizers. Other models and tokenizers are names on
// a hub.
Experiment with_absolute_paths(Experiment experiment);

// Returns the resolved experiment as one self-contained YAML file, which loads back to an equal Experiment.
// PyYAML reads the same values.
std::string to_yaml(const Experiment& experiment);

// Returns one "key: value" line per resolved key, by group; with `origins`, also the source of each value.
std::string show(const Experiment& experiment, bool origins);

// Returns the content of show() for programs: one JSON object with the experiment's own keys, "trainer",
// "ignored", "warnings" and, with `origins`, "origins".
std::string to_json(const Experiment& experiment, bool origins);

// Returns the JSON Schema (draft 2020-12) of experiment files, for editors.
std::string json_schema();

// Returns the content of docs/config.md: each key with type, default, range and meaning.
std::string markdown_reference();

// Describes the keys named `word` or, if there are none, the keys with `word` in name, alias, synonym or
// help. reference_text returns text, reference_json a JSON list. An empty word matches all keys. Throws
// Error(kInvalid) if no key matches.
std::string reference_text(std::string_view word);
std::string reference_json(std::string_view word);

}  // namespace primus::config
