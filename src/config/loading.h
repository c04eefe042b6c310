// The stages of loading an experiment, in their order; load_experiment() runs them. Internal to config.
//
//   choose_module     which trainer module is run, and which engine the file is written for
//   read_outline      the keys around the trainer's: names of folders, env, framework
//   read_foreign      settings of another framework, as trainer keys; or else
//   add_preset, add_layer    trainer keys, a layer over another
//   bind              typed fields from the merged keys
//   derive_settings   fields that follow from others, from weights and from the environment
//
// An error in the input is added to Loading::problems if later stages may find more errors; otherwise it is
// thrown. One thread.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "config/experiment.h"
#include "config/framework.h"
#include "config/inherit.h"
#include "config/overrides.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/value.h"

namespace primus::config {

// The data that the stages share.
struct Loading {
  FileLoader& files;
  ReadVariable read_variable;
  std::filesystem::path dir;  // of the experiment's file
  std::string file_name;      // without its ending: "try1"
  std::string wanted_module;  // of several
  Value root = {};            // the file, and what the command line has at its top level
  std::string engine = {};    // that the file names
  Origin engine_origin = {};
  Framework framework = Framework::kNative;
  double lr_of_file = TrainerConfig().lr;  // what the command line does not say
  std::map<std::string, Layer> layers = {};
  std::map<std::string, std::string> names = {};  // as the strongest layer has them
  Layer adapters_said_by = Layer::kDefault;       // the layer that set lora.enabled last
  Value kept_settings = {};                       // passed on to their framework unchanged
  Problems problems = {};
  Experiment result = {};

  const Member& module_member() const { return *root.find("modules")->find_member(result.module_name); }
  const Value& module() const { return module_member().value; }
  // Remembers where something outside the trainer's keys was set.
  void note(std::string_view key, const Member& member);
};

// Finds the trainer module to run, gives its name to command-line settings that left it open, and merges
// those that stand outside the trainer's keys into the file.
void choose_module(Loading& loading, Overrides& overrides);

void read_outline(Loading& loading);
// The module's `config` or `model`; null: there is none.
const Value* preset_name(Loading& loading, std::string_view key);

// Puts a map of trainer keys over what is there, under the keys' present names.
void add_layer(Loading& loading, const Value& values, Layer layer);
// Adds the preset `name` as a layer. `kind`: "models" or "modules".
void add_preset(Loading& loading, const Value& name, std::string_view kind, Layer layer);
// Whether a key is an environment variable that stands in the wrong section, of which a warning tells.
bool is_misplaced_variable(Loading& loading, const Member& member);

// False: the file is written with our keys. `arguments`: trainer keys of the command line.
bool read_foreign(Loading& loading, const Value& arguments);

void bind(Loading& loading);

// Gives fields that follow from others their values.
void derive_fields(Experiment& experiment);
// Windows of layers with sinks.
void take_sink_windows(Loading& loading);
// Derives settings from weights, the environment and the file's min_lr. Refuses a missing required key.
void derive_native_settings(Loading& loading);

}  // namespace primus::config
