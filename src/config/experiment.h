// Loading an experiment: Primus's YAML (or the same structure in TOML) into one typed, validated object.
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
// may have `extends:` (a path or a list; later wins, the file itself last) and ${VAR} or ${VAR:default}.
// docs/formats/experiment.md describes the format, docs/config.md every key.
//
// Whatever is wrong in the input is an Error of kind kInvalid or kUnsupported at its file:line:col; several
// problems found together are reported together. Nothing here prints, and nothing is changed outside the
// returned object.
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
#include "config/trainer_config.h"
#include "config/value.h"

namespace primus::config {

// Where a trainer key got its value, in rising precedence.
enum class Layer { kDefault, kDerived, kModelPreset, kModulePreset, kOverrides, kCommandLine };

struct Provenance {
  Layer layer = Layer::kDefault;
  Origin origin;
  std::string name = {};  // the key as it stands there, where that is an alias
  // "default", "derived", "derived from exp.yaml:5:3", "environment NAME", or origin.describe().
  std::string describe() const;
};

struct Experiment {
  std::string work_group, user_name, exp_name, workspace;
  std::map<std::string, std::string> env;   // to be set for the processes of the run
  std::string module_name;                  // pre_trainer
  std::vector<std::string> other_modules;   // those of the file that are not run
  std::string framework;                    // native, megatron, torchtitan or maxtext
  std::string module_preset, model_preset;  // as named in the experiment; may be empty

  TrainerConfig trainer;

  // Keys that were set, are known, and have no meaning for `framework`, each once, in alphabetical order.
  std::vector<std::string> ignored;
  // Of those that the user's own files or command line set, what happens in place of what they ask for
  // (KeyClass::kReplaced); natively only.
  std::map<std::string, std::string> replaced;
  // Things worth a word that are no errors, as whole sentences with their location.
  std::vector<std::string> warnings;

  // All trainer keys that were set, merged (ignored ones too): what the adapters of other frameworks
  // translate.
  Value settings;
  // Of trainer keys, top-level keys, framework, config, model and env.NAME; only what was set or derived.
  std::map<std::string, Provenance, std::less<>> provenance;

  // The hardware that this is a plan for (--hardware), which need not be here; null: this machine's device.
  std::shared_ptr<const Hardware> hardware;

  Provenance provenance_of(std::string_view key) const;
  // Trainer key `key` by the name that the user knows it by.
  std::string name_of(std::string_view key) const;
  // An Error of kind kInvalid at the place where trainer key `key` was set: for checks made later, by the
  // trainer.
  Error error_for(std::string_view key, std::string what, std::string hint = {}) const;
  // workspace/work_group/user_name/exp_name
  std::filesystem::path output_dir() const;
};

struct LoadOptions {
  // Reads an environment variable; by default the process's own.
  std::function<std::optional<std::string>(const std::string&)> environment;
  // Folders with models/ and modules/, searched in order after the experiment's own folder. By default
  // PRIMUS_PRESETS, then the presets that came with the program.
  std::optional<std::vector<std::filesystem::path>> preset_dirs;
  // The module to run where the file has several.
  std::string module = "pre_trainer";
};

// Reads, merges and validates. `overrides` are command-line arguments: key=value, --key value, --key=value,
// --flag; key is a trainer key, a top-level key, or a dotted path (modules.pre_trainer.overrides.lr). Throws
// Error.
Experiment load_experiment(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                           const LoadOptions& options = {});

// The same, from text in place of a file; relative paths are taken from the folder of `name`. `name` ending
// in .toml is TOML.
Experiment load_experiment_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides = {}, const LoadOptions& options = {});

// The experiment that to_yaml() wrote, to read what it says and not to run it: variables, which may be
// secrets of another environment, may be missing here, and are then empty.
Experiment load_recorded_experiment(std::string_view text, const std::string& name);

// Ends length_is_open(): what follows from the number of steps is derived and checked as load_experiment()
// does it. Throws Error where other settings do not fit so few steps.
void set_train_iters(Experiment& experiment, std::int64_t train_iters);

// The same with every path that lies relative to the present folder made absolute, so that its YAML works
// from elsewhere: what is written, and of what is read the data, and models and tokenizers that are there
// (others are names on a hub).
Experiment with_absolute_paths(Experiment experiment);

// The resolved experiment as one self-contained YAML file, which loads back to an equal Experiment, here and,
// of the values, in PyYAML.
std::string to_yaml(const Experiment& experiment);

// One "key: value" line per resolved key, by group; with `origins`, where each value came from.
std::string show(const Experiment& experiment, bool origins);

// The same as show() for programs: one JSON object with the experiment's own keys, "trainer", "ignored",
// "warnings" and, with `origins`, "origins".
std::string to_json(const Experiment& experiment, bool origins);

// JSON Schema (draft 2020-12) of experiment files, for editors.
std::string json_schema();

// docs/config.md: every key with type, default, range and meaning.
std::string markdown_reference();

// The keys that `word` is the name of; where there is none, those whose name, alias, synonym or meaning has
// it: as text, and as a JSON list. An empty word is in all of them. Error(kInvalid) where no key has it.
std::string reference_text(std::string_view word);
std::string reference_json(std::string_view word);

}  // namespace primus::config
