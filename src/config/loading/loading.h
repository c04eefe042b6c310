// The stages of loading an experiment, in the order in which load_experiment() runs them. Internal to config.
//
//   choose_module     the trainer module to run, and the engine that the file names
//   read_outline      keys that are not trainer keys: folder names, env, framework
//   read_foreign      translates settings of another framework to trainer keys; or else
//   add_preset, add_layer    merge layers of trainer keys
//   bind              typed fields from the merged keys
//   derive_settings   fields that follow from others, from weights and from the environment
//
// An error in the input is added to Loading::problems if later stages may find more errors; otherwise it is
// thrown. Not thread-safe.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "config/experiment.h"
#include "config/framework.h"
#include "config/loading/inherit.h"
#include "config/loading/overrides.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/value.h"

namespace primus::config {

// The state of loading, which each stage reads and changes.
struct Loading {
  FileLoader& files;
  ReadVariable read_variable;
  std::filesystem::path dir;  // folder of the experiment's file
  std::string file_name;      // the file's name without extension: "try1"
  std::string wanted_module;  // the module to run if the file has several
  Value root = {};            // the file's content, merged with the command line's top-level keys
  std::string engine = {};    // the framework named in the file
  Origin engine_origin = {};
  Framework framework = Framework::kNative;
  double lr_of_file = 0;  // lr before the command line changes it
  std::map<std::string, Layer> layers = {};
  // for each key: the name or alias that the strongest layer uses for it
  std::map<std::string, std::string> names = {};
  Layer adapters_said_by = Layer::kDefault;  // the last layer that set lora.enabled
  Value kept_settings = {};                  // settings that are passed unchanged to their framework
  Problems problems = {};
  Experiment result = {};

  const Member& module_member() const { return *root.find("modules")->find_member(result.module_name); }
  const Value& module() const { return module_member().value; }
  // Records where a key that is not a trainer key was set.
  void note(std::string_view key, const Member& member);
};

// Finds the trainer module to run, and adds its name to command-line settings without a module. Merges the
// command line's other settings, except trainer keys, into the file.
void choose_module(Loading& loading, Overrides& overrides);

void read_outline(Loading& loading);
// Returns the preset name in the module's `key` ("config" or "model"), or null.
const Value* preset_name(Loading& loading, std::string_view key);

// Merges a map of trainer keys over the existing ones, under the keys' canonical names.
void add_layer(Loading& loading, const Value& values, Layer layer);
// Adds the preset `name` as a layer. `kind`: "models" or "modules".
void add_preset(Loading& loading, const Value& name, std::string_view kind, Layer layer);
// Returns whether a key is an environment variable in the wrong section; if so, adds a warning.
bool is_misplaced_variable(Loading& loading, const Member& member);

// Reads settings of another framework; returns false if the file has our keys. `arguments`: trainer keys of
// the command line.
bool read_foreign(Loading& loading, const Value& arguments);

void bind(Loading& loading);

// Computes the fields that follow from other fields.
void derive_fields(Experiment& experiment);
// Applies the sliding-window settings of layers with attention sinks.
void derive_sink_windows(Loading& loading);
// Derives settings from weights, the environment and the file's min_lr. Refuses a missing required key.
void derive_native_settings(Loading& loading);

}  // namespace primus::config
