#include "backends/megatron_arguments.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/train/settings/training_settings.h"

namespace primus::backends::megatron {

using config::Layer;
using config::Value;

Megatron::Megatron(const config::Experiment& of, const config::BackendFields& backend_fields,
                   Path of_checkout, const JobShape& of_job)
    : experiment(of),
      t(of.trainer),
      fields(backend_fields),
      rules(of, backend_fields),
      run(run_folder_of(of)),
      checkout(std::move(of_checkout)),
      shape(of_job) {}

bool Megatron::is_mamba() const { return t.model_type == "mamba"; }

bool Megatron::is_set(std::string_view key) const {
  return experiment.provenance_of(key).layer > Layer::kDerived;
}

bool Megatron::is_null(std::string_view key) const {
  const Value* value = experiment.settings.find(key);
  return value && value->is_null();
}

bool Megatron::is_true(const char* key) const {
  const Value* value = experiment.settings.find(key);
  return value && (value->boolean || value->text == "1");
}

std::optional<std::string> Megatron::text_of(const char* key) const {
  const Value* value = experiment.settings.find(key);
  return value && !value->is_null() ? std::optional(value->text) : std::nullopt;
}

std::string Megatron::model_name() const {
  const std::string& preset = experiment.model_preset;
  return preset.ends_with(".yaml") ? preset.substr(0, preset.size() - 5) : preset;
}

Error Megatron::error_for(std::string_view key, const std::string& what, const std::string& hint) const {
  return unsupported_there(experiment, key, what, hint);
}

bool Megatron::source_says(const char* file, std::string_view text) const {
  const Path path = checkout / file;
  std::error_code error;
  return !checkout.empty() && std::filesystem::exists(path, error) &&
         read_file(path).find(text) != std::string::npos;
}

bool Megatron::is_on(const std::string& argument) const {
  const auto found = arguments.find(argument);
  return found != arguments.end() && found->second.boolean;
}

void Megatron::put(const std::string& argument, Value value) {
  arguments.insert_or_assign(argument, std::move(value));
}

void Megatron::put(const std::string& argument, bool value) {
  put(argument, config::plain_scalar(value ? "true" : "false", {}));
}

void Megatron::put_number(const std::string& argument, double value) {
  put(argument, config::plain_scalar(fmt::format("{}", value), {}));
}

void Megatron::put_text(const std::string& argument, std::string text) {
  Value value;
  value.kind = Value::Kind::kString;
  value.text = std::move(text);
  put(argument, std::move(value));
}

void Megatron::put_words(const std::string& argument, const std::vector<std::string>& words) {
  Value value;
  value.kind = Value::Kind::kList;
  for (const std::string& word : words) {
    Value& item = value.items.emplace_back();
    item.kind = Value::Kind::kString;
    item.text = word;
  }
  put(argument, std::move(value));
}

std::vector<std::string> words_of(const Value& value) {
  std::vector<std::string> words;
  if (value.is_list()) {
    for (const Value& item : value.items) words.push_back(item.text);
    return words;
  }
  std::string word;
  for (const char c : value.text + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

}  // namespace primus::backends::megatron
