// The arguments of Megatron-LM's command, and the job of this command. Internal to backends.
//
// megatron_model.cpp, megatron_mesh.cpp and megatron_run.cpp compute the arguments that depend on several
// keys. megatron.cpp translates all other keys and writes the command. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "backends/key_rules.h"
#include "base/error.h"
#include "base/files/file.h"
#include "config/problems.h"
#include "lm/events/run_folder.h"

namespace primus::backends::megatron {

inline constexpr std::int64_t kMockVocabulary = 131072;  // AMD Primus's vocabulary size for mock data

struct Megatron {
  Megatron(const config::Experiment& of, const config::BackendFields& backend_fields, Path of_checkout,
           const JobShape& of_job);

  bool is_mamba() const;
  bool is_set(std::string_view key) const;
  // Returns whether the key is explicitly null, in the experiment or a preset.
  bool is_null(std::string_view key) const;
  bool is_true(const char* key) const;
  std::optional<std::string> text_of(const char* key) const;
  // Returns the name of the model preset, without extension.
  std::string model_name() const;
  Error error_for(std::string_view key, const std::string& what, const std::string& hint) const;
  // Returns whether a file of the checkout contains this text. Used to distinguish versions of Megatron-LM.
  bool source_says(const char* file, std::string_view text) const;

  // Returns whether the arguments contain this switch and turn it on.
  bool is_on(const std::string& argument) const;
  void put(const std::string& argument, config::Value value);
  void put(const std::string& argument, bool value);
  void put_number(const std::string& argument, double value);
  void put_text(const std::string& argument, std::string text);
  void put_words(const std::string& argument, const std::vector<std::string>& words);

  const config::Experiment& experiment;
  const config::TrainerConfig& t;
  const config::BackendFields& fields;
  KeyRules rules;
  const RunFolder run;
  const Path checkout;
  const JobShape shape;
  std::map<std::string, config::Value> arguments;
  config::Problems problems;
  ExternalJob job;
};

// Returns the words of a text, or the items of a list.
std::vector<std::string> words_of(const config::Value& value);

// Each function throws Error if Megatron-LM does not support the experiment's settings.

// The model (megatron_model.cpp).
void fill_family(Megatron& m);
void experts(Megatron& m);
void rope(Megatron& m);
void temperature(Megatron& m);
void layers(Megatron& m);
void recipes(Megatron& m);
void patterns(Megatron& m);

// Parallelism and memory (megatron_mesh.cpp).
void parallelism(Megatron& m);
void narrow_states(Megatron& m);
void stages(Megatron& m);
void recomputation(Megatron& m);
void pipeline_patches(Megatron& m);

// Length, data, tokenizer, checkpoints and reports (megatron_run.cpp).
void schedule(Megatron& m);
void data(Megatron& m);
void tokenizer(Megatron& m);
void checkpoints(Megatron& m);
void reports(Megatron& m);

}  // namespace primus::backends::megatron
