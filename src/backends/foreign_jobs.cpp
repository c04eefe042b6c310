// TorchTitan and MaxText: settings as the framework's own configuration file.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "backends/job.h"
#include "base/error.h"
#include "config/foreign.h"
#include "lm/train/training_settings.h"

namespace primus::backends {
namespace {

using config::BackendField;
using config::KeyType;
using config::Value;

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// A value as TOML and as YAML's flow style, of the field's type.
std::string inline_text(const Value& value, KeyType type) {
  using Kind = Value::Kind;
  if (value.is_null()) return "null";
  if (value.is_list()) {
    std::string text = "[";
    for (const Value& item : value.items)
      text += (text.size() > 1 ? ", " : "") + inline_text(item, KeyType::kAny);
    return text + "]";
  }
  if (value.is_map()) {
    std::string text = "{";
    for (const config::Member& member : value.members)
      text += (text.size() > 1 ? ", " : "") + quoted(member.key) + ": " +
              inline_text(member.value, KeyType::kAny);
    return text + "}";
  }
  const bool is_number = value.kind == Kind::kInt || value.kind == Kind::kFloat;
  if (type == KeyType::kString) return quoted(value.text);
  if (type == KeyType::kBool && is_number) return value.real != 0 ? "true" : "false";
  if (type == KeyType::kList && value.kind == Kind::kString) return "[" + quoted(value.text) + "]";
  if (is_number && (type == KeyType::kFloat || value.kind == Kind::kFloat)) {
    std::string text = fmt::format("{}", value.real);
    if (std::isfinite(value.real) && text.find_first_of(".e") == std::string::npos) text += ".0";
    // YAML 1.1 takes 1e-08 for text.
    if (const std::size_t e = text.find('e'); e != std::string::npos && text.find('.') == std::string::npos)
      text.insert(e, ".0");
    return text;
  }
  if (value.kind == Kind::kInt) return fmt::format("{}", value.integer);
  if (value.kind == Kind::kBool) return value.boolean ? "true" : "false";
  return quoted(value.text);
}

// The settings that the framework itself has; what Primus adds to them is noted in `job`.
Value own_settings(const config::Experiment& experiment, const config::BackendFields& fields,
                   ExternalJob& job) {
  Value result;
  result.kind = Value::Kind::kMap;
  config::for_each_setting(
      fields, experiment.settings, [&](const std::string& path, const config::Member& member) {
        if (fields.find(path)) {
          config::set_path(result, path, member.value);
        } else if (const Value* extra = config::find_extra(fields, path); extra && !member.value.is_null()) {
          const Value* because = extra->find("because");
          job.dropped[because ? because->text : "Primus adds it"].push_back(path);
        }
      });
  return result;
}

Value text_value(const std::string& text) {
  Value value;
  value.kind = Value::Kind::kString;
  value.text = text;
  return value;
}

void require_settings(const config::Experiment& experiment, const ExternalJob& job) {
  if (config::has_foreign_settings(experiment)) return;
  throw unsupported(
      fmt::format("the experiment is written with Megatron-LM's keys, which are not rendered for {} yet",
                  job.title),
      fmt::format("write its overrides with {}'s own settings (docs/backends.md), or choose framework: "
                  "native or megatron",
                  job.title))
      .at(experiment.provenance_of("framework").origin.location());
}

std::string toml(const Value& settings, const config::BackendFields& fields) {
  // Sections in the order of the table, each with its settings.
  std::map<std::string, std::string> sections;
  config::for_each_setting(fields, settings, [&](const std::string& path, const config::Member& member) {
    if (member.value.is_null()) return;  // TOML has no null: the default is meant
    const std::size_t dot = path.rfind('.');
    const BackendField* field = fields.find(path);
    sections[dot == std::string::npos ? "" : path.substr(0, dot)] +=
        fmt::format("{} = {}\n", member.key, inline_text(member.value, field->type));
  });
  std::string text = "# Written by Primus from an experiment.\n";
  for (const auto& [name, lines] : sections) text += fmt::format("\n[{}]\n{}", name, lines);
  return text;
}

}  // namespace

ExternalJob render_torchtitan(const config::Experiment& experiment, const config::BackendFields& fields,
                              const Path& checkout, const JobShape&) {
  ExternalJob job{.framework = "torchtitan", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  if (const Value* converters = config::find_path(settings, "model.converters");
      converters && converters->is_list()) {
    Value kept = *converters;
    if (std::erase_if(kept.items, [](const Value& item) { return item.text == "primus_turbo"; }) > 0)
      job.dropped["Primus-Turbo's kernels"].emplace_back("model.converters: primus_turbo");
    config::set_path(settings, "model.converters", kept);
  }
  const Value* mock = config::find_path(experiment.settings, "training.mock_data");
  if (mock && mock->boolean) {
    job.warnings.emplace_back(
        "TorchTitan has no generated data (training.mock_data): it reads the small text that comes with its "
        "sources, c4_test");
    config::set_path(settings, "training.dataset", text_value("c4_test"));
    config::set_path(settings, "training.dataset_path", Value{});
    if (!checkout.empty())
      config::set_path(settings, "training.dataset_path",
                       text_value((checkout / "tests/assets/c4_test").string()));
  }
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "job.dump_folder", text_value(run.string()));
  // Primus's own extension of the settings is not part of a plain TorchTitan.
  const Value* module = config::find_path(settings, "experimental.custom_args_module");
  if (module && module->text.starts_with("primus."))
    config::set_path(settings, "experimental.custom_args_module", Value{});
  const Path file = run / "torchtitan.toml";
  job.files.push_back({file, toml(settings, fields)});
  job.command = {"-m", fields.keys().find("entry")->text, "--job.config_file", file.string()};
  if (!checkout.empty()) job.environment["PYTHONPATH"] = checkout.string();
  return job;
}

ExternalJob render_maxtext(const config::Experiment& experiment, const config::BackendFields& fields,
                           const Path& checkout, const JobShape& shape) {
  ExternalJob job{.framework = "maxtext", .title = fields.keys().find("title")->text, .command = {}};
  require_settings(experiment, job);
  Value settings = own_settings(experiment, fields, job);
  job.process_per_node = true;
  job.last_rank_reports = false;
  const Path run = std::filesystem::absolute(run_folder_of(experiment).root()).lexically_normal();
  config::set_path(settings, "base_output_directory", text_value(run.parent_path().string()));
  config::set_path(settings, "run_name", text_value(run.filename().string()));
  // On CPUs it wants a cluster's variables, even alone.
  const Value* hardware = settings.find("hardware");
  if (hardware && hardware->text == "cpu" && shape.nodes == 1 &&
      !settings.find("skip_jax_distributed_system"))
    config::set_path(settings, "skip_jax_distributed_system", config::plain_scalar("true", {}));
  // A token stands in the environment alone: its file would show it.
  std::erase_if(settings.members,
                [](const config::Member& member) { return member.key == "hf_access_token"; });
  // base_config names the file that this one extends, which MaxText looks for beside its own.
  if (const Value* base = settings.find("base_config"); !base || base->is_null() || base->text.empty())
    config::set_path(settings, "base_config", text_value("base.yml"));
  std::string text = "# Written by Primus from an experiment.\n";
  for (const config::Member& member : settings.members) {
    if (member.value.is_null()) continue;
    text += fmt::format("{}: {}\n", member.key, inline_text(member.value, fields.find(member.key)->type));
  }
  const Path file = run / "maxtext.yml";
  job.files.push_back({file, text});
  job.command = {"-m", fields.keys().find("entry")->text, file.string()};
  if (!checkout.empty()) job.environment["PYTHONPATH"] = (checkout / "src").string();
  return job;
}

}  // namespace primus::backends
