#include "config/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/files/file.h"
#include "base/system/openmp_threads.h"
#include "base/system/user_name.h"
#include "base/text/suggest.h"
#include "base/text/utf8.h"
#include "config/decimal.h"
#include "config/elsewhere.h"
#include "config/experiment_keys.h"
#include "config/foreign.h"
#include "config/framework.h"
#include "config/inherit.h"
#include "config/key_hints.h"
#include "config/keys.h"
#include "config/lora_settings.h"
#include "config/not_yet.h"
#include "config/overrides.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/stages.h"
#include "config/validate.h"
#include "config/zero_bubble.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

// Whether experiments for this framework are written with its settings instead of our keys.
bool has_own_settings(std::string_view framework) {
  const FrameworkEntry* entry = find_framework(framework);
  return entry && entry->translator;
}

bool is_variable_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), allowed);
}

template <class Keys>
std::vector<std::string_view> names_of(const Keys& keys) {
  std::vector<std::string_view> names;
  for (const ExperimentKey& key : keys) names.push_back(key.name);
  return names;
}

void derive_fields(Experiment& experiment) {
  const TrainerConfig before = experiment.trainer;
  derive(experiment.trainer);
  for (const KeySpec& key : all_keys()) {
    if (!same_value(key, before, experiment.trainer)) {
      experiment.provenance.insert_or_assign(std::string(key.name), Provenance{Layer::kDerived, {}});
    }
  }
}

// Builds one Experiment. Members are the stages' intermediate results.
class Loader {
 public:
  Loader(FileLoader& files, ReadVariable read_variable, const fs::path& file, const LoadOptions& options)
      : files_(files),
        read_variable_(std::move(read_variable)),
        dir_(file.parent_path()),
        file_name_(file.stem().string()),
        wanted_module_(options.module) {}

  Experiment run(Value root, std::span<const std::string> arguments) {
    root_ = std::move(root);
    Overrides overrides = parse_overrides(arguments);
    choose_module(overrides);
    note_engine(*module_value());
    merge(root_, overrides.experiment);
    read_top_level();
    const Value& module = *module_value();
    read_module(module);

    if (is_foreign(module)) {
      read_foreign(module, overrides.trainer);
    } else {
      // From the weakest to the strongest.
      if (const Value* name = preset_name(module, "model")) add_preset(*name, "models", Layer::kModelPreset);
      if (const Value* name = preset_name(module, "config"))
        add_preset(*name, "modules", Layer::kModulePreset);
      if (const Value* over = module.find("overrides"); over && !over->is_null())
        add_layer(*over, Layer::kOverrides);
      if (const Value* rate = result_.settings.find("lr"); rate && rate->is_scalar())
        lr_of_file_ = rate->real;
      add_layer(overrides.trainer, Layer::kCommandLine);
    }

    bind();
    refuse_other_engines();
    problems_.throw_if_any();
    take_sink_windows();
    if (framework_ == Framework::kNative) take_zero_bubble(result_, problems_);
    derive_fields(result_);
    if (framework_ == Framework::kNative) {
      take_weights();
      take_threads_of_environment();
      take_target_of_environment();
      scale_min_lr();
      require_keys();
      validate_native(result_, problems_);
    }
    problems_.throw_if_any();
    if (kept_settings_.is_map()) result_.settings = std::move(kept_settings_);
    return std::move(result_);
  }

 private:
  // Finds the trainer module to run, and gives its name to command-line settings that left it open.
  void choose_module(Overrides& overrides) {
    const Value* modules = root_.find("modules");
    if (!modules || !modules->is_map() || modules->members.empty()) {
      const Origin origin = modules ? root_.find_member("modules")->origin : Origin{root_.origin.source};
      throw error_at(
          origin, "the experiment has no modules",
          "add modules: {pre_trainer: {framework: native, config: pre_trainer.yaml, model: NAME.yaml}}");
    }
    const Member& module = *find_module(*modules);
    require_map(module);
    result_.module_name = module.key;
    for (const Member& other : modules->members) {
      if (other.key != module.key) result_.other_modules.push_back(other.key);
    }
    for (const auto& [name, origin] : overrides.modules) {
      if (name != module.key) refuse_module(name, origin);
    }
    name_module(overrides.experiment, module.key);
  }

  // The one there is; of several the one that was asked for, or the only trainer.
  const Member* find_module(const Value& modules) const {
    const auto is_trainer = [](const Member& member) {
      return member.key.find("trainer") != std::string::npos;
    };
    if (const Member* wanted = modules.find_member(wanted_module_)) return wanted;
    const auto first = std::find_if(modules.members.begin(), modules.members.end(), is_trainer);
    if (first == modules.members.end()) {
      const Member& module = modules.members[0];
      throw error_at(module.origin, fmt::format("module '{}' is no trainer", module.key.substr(0, 80)),
                     "a module's name has 'trainer' in it: pre_trainer, post_trainer", module.key.size());
    }
    const auto second = std::find_if(first + 1, modules.members.end(), is_trainer);
    if (second != modules.members.end()) {
      throw error_at(second->origin,
                     fmt::format("there are several trainers, {} and {}, and none is called {}",
                                 first->key.substr(0, 80), second->key.substr(0, 80), wanted_module_),
                     fmt::format("call the one to run {}", wanted_module_), second->key.size());
    }
    return &*first;
  }

  [[noreturn]] void refuse_module(const std::string& name, const Origin& origin) const {
    throw error_at(origin, fmt::format("there is no module '{}' to run", name.substr(0, 80)),
                   fmt::format("the experiment's module is {}", result_.module_name));
  }

  // The engine that the file itself is written for, before the command line says another.
  void note_engine(const Value& module) {
    const Member* framework = module.find_member("framework");
    if (!framework || framework->value.kind != Value::Kind::kString) return;
    engine_ = framework->value.text;
    engine_origin_ = framework->value.origin;
  }

  // ---- Experiments with another framework's settings ----------------------------------------------

  // Whether the file is written with the settings of its framework, and not with our keys.
  bool is_foreign(const Value& module) {
    if (!has_own_settings(engine_)) return false;
    foreign_.emplace(BackendFields::load(engine_, files_.preset_dirs()));
    const Value* overrides = module.find("overrides");
    if (!overrides || !overrides->is_map()) return true;
    const auto theirs = [&](const Member& m) { return knows(*foreign_, m.key); };
    const auto ours = [&](const Member& m) { return find_key(m.key) && !knows(*foreign_, m.key); };
    return std::ranges::count_if(overrides->members, theirs) >=
           std::ranges::count_if(overrides->members, ours);
  }

  // The preset `name`, into `settings`; a model of ours becomes a layer of its own.
  void merge_preset(const Value& name, std::string_view kind, Value& settings) {
    problems_.collect([&] {
      const Value preset = files_.load(files_.find_preset(name, kind, engine_, dir_));
      const bool theirs =
          std::ranges::all_of(preset.members, [&](const Member& m) { return knows(*foreign_, m.key); });
      if (!theirs && kind == "models") {
        add_layer(preset, Layer::kModelPreset);
        has_own_model_ = true;
      } else {
        merge(settings, preset);
      }
    });
  }

  void read_foreign(const Value& module, const Value& arguments) {
    Value settings, own;
    settings.kind = own.kind = Value::Kind::kMap;
    if (const Value* name = preset_name(module, "model")) merge_preset(*name, "models", settings);
    if (const Value* name = preset_name(module, "config")) merge_preset(*name, "modules", settings);
    if (const Value* over = module.find("overrides"); over && over->is_map()) {
      for (const Member& member : over->members) {
        if (!knows(*foreign_, member.key) && is_misplaced_variable(member)) continue;
        Value one;
        one.kind = Value::Kind::kMap;
        one.members.push_back(member);
        merge(settings, one);
      }
    }
    // On the command line both kinds of keys do; ours stand over theirs.
    for (const Member& argument : arguments.members) {
      Value& target = knows(*foreign_, argument.key) && !is_own_scalar(argument) ? settings : own;
      Value one;
      one.kind = Value::Kind::kMap;
      one.members.push_back(argument);
      merge(target, one);
    }
    check_settings(*foreign_, settings, problems_);
    problems_.throw_if_any();
    const bool stays = result_.framework == engine_;
    Problems unmapped;  // what stays with its framework need not mean anything here
    Translation translation = to_own_keys(*foreign_, settings, ranks(), stays ? unmapped : problems_);
    if (!stays) {
      result_.warnings.insert(result_.warnings.end(), translation.warnings.begin(),
                              translation.warnings.end());
      for (const auto& [reason, names] : translation.dropped)
        result_.warnings.push_back(
            fmt::format("without a counterpart ({}): {}", reason, fmt::join(names, ", ")));
    }
    problems_.throw_if_any();
    if (!translation.model_preset.empty() && !has_own_model_) {
      problems_.collect([&] {
        Value name;
        name.kind = Value::Kind::kString;
        name.text = translation.model_preset;
        name.origin = translation.model_origin;
        add_layer(files_.load(files_.find_preset(name, "models", "native", dir_)), Layer::kModelPreset);
      });
    }
    // One that names no tokenizer has the model's.
    add_layer(translation.settings, Layer::kOverrides);
    for (const auto& [key, name] : translation.names) {
      if (layers_.contains(key)) names_[key] = name;
    }
    add_layer(own, Layer::kCommandLine);
    if (stays) {
      put_own_keys(own, settings);
      kept_settings_ = std::move(settings);
    }
  }

  // Of the job, as torchrun's variable has it.
  int64_t ranks() const {
    const std::optional<std::string> text = read_variable_("WORLD_SIZE");
    const Value value = text ? plain_scalar(*text, {}) : Value{};
    return value.kind == Value::Kind::kInt && value.integer > 0 ? value.integer : 1;
  }

  // `optimizer=muon` is our key, `optimizer.lr=1e-4` one of TorchTitan's.
  bool is_own_scalar(const Member& member) const {
    return find_key(member.key) && member.value.is_scalar() && !foreign_->find(member.key);
  }

  // Keys of ours from the command line, as the settings of the framework that they are.
  void put_own_keys(const Value& own, Value& settings) {
    for (const Member& member : own.members) {
      const KeySpec* key = find_key(member.key);
      if (!key) continue;  // add_layer() has said so
      const Member* found = nullptr;
      for (const Member& row : foreign_->keys("settings").members) {
        const Value* mine = row.value.find("key");
        if (mine && mine->text == key->name) found = &row;
      }
      if (!found) {
        problems_.add(error_at(member.origin,
                               fmt::format("{} has no single setting of {} that says it", key->name,
                                           foreign_->keys().find("title")->text),
                               fmt::format("set it by {}'s own names, such as --training.steps 100", engine_),
                               member.key.size()));
        continue;
      }
      Value value = member.value;
      if (const Value* values = found->value.find("values")) {
        for (const Member& pair : values->members) {
          if (pair.value.text == member.value.text) value = plain_scalar(pair.key, member.value.origin);
        }
      }
      set_path(settings, found->key, std::move(value));
    }
  }

  // Keys of other engines are not unknown to their users: one sentence says what is the matter.
  void refuse_other_engines() {
    const std::string_view title = engine_name(engine_);
    if (problems_.empty() || title.empty() || parse_framework(engine_)) return;
    Error error = unsupported(
        fmt::format("this experiment is written for {}, which cannot be run yet", title),
        fmt::format(
            "write it with Megatron-LM's keys to run it with framework: native ('primus config reference' "
            "lists them){}",
            result_.model_preset.empty() ? "" : "; examples/native/configs has experiments for most models"));
    throw error.at(engine_origin_.location(), engine_origin_.snippet(engine_.size()));
  }

  static void require_map(const Member& member) {
    if (member.value.is_map()) return;
    throw error_at(member.value.origin,
                   fmt::format("{} expects a map, not {}", member.key, member.value.show()),
                   "write KEY: VALUE lines below it, indented by two spaces more", member.value.width());
  }

  void name_module(Value& overrides, const std::string& module) const {
    for (Member& top : overrides.members) {
      if (top.key == "extends") {
        throw error_at(top.origin, "extends has no effect on the command line", "write it into the file",
                       top.key.size());
      }
      if (top.key != "modules") continue;
      require_map(top);
      Value named;
      named.kind = Value::Kind::kMap;
      for (Member& entry : top.value.members) {
        require_map(entry);
        if (entry.key != "*" && entry.key != module) refuse_module(entry.key, entry.origin);
        Value merged;
        if (const Value* before = named.find(module)) merged = *before;
        merge(merged, entry.value);
        named.set(module, entry.origin, std::move(merged));
      }
      top.value = std::move(named);
    }
  }

  const Member& module_member() const { return *root_.find("modules")->find_member(result_.module_name); }
  const Value* module_value() const { return &module_member().value; }

  void refuse_unknown(const Value& map, std::span<const std::string_view> known, std::string_view where) {
    for (const Member& member : map.members) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
      if (!problems_.are_kept()) {
        problems_.add(invalid("unknown key"));
        continue;
      }
      std::string hint = did_you_mean(member.key, known);
      if (hint.empty() && find_key(member.key)) {
        hint = fmt::format("trainer keys stand under modules.{}.overrides", result_.module_name);
      }
      if (hint.empty()) hint = hint_for_unknown_key(member.key);
      problems_.add(error_at(member.origin,
                             fmt::format("unknown key '{}' {}", member.key.substr(0, 80), where),
                             std::move(hint), member.key.size()));
    }
  }

  void read_top_level() {
    refuse_unknown(root_, names_of(kExperimentKeys), "at the top level");
    read_text("work_group", result_.work_group, "primus");
    read_text("user_name", result_.user_name, user_name());
    read_text("exp_name", result_.exp_name,
              is_plain_name(file_name_) && unicode::is_valid(file_name_) ? file_name_ : "run");
    read_text("workspace", result_.workspace, "./output");
    for (const auto& [key, text] :
         {std::pair("work_group", &result_.work_group), std::pair("user_name", &result_.user_name),
          std::pair("exp_name", &result_.exp_name)}) {
      require_relative_path(key, *text);
    }
    if (const Value* env = root_.find("env")) read_env(*env);
    if (root_.find("platform")) result_.ignored.emplace_back("platform");
  }

  void read_text(std::string_view key, std::string& target, std::string otherwise) {
    const Member* member = root_.find_member(key);
    if (!member || member->value.is_null()) {
      target = std::move(otherwise);
    } else if (!member->value.is_scalar() || member->value.kind == Value::Kind::kBool ||
               member->value.text.empty()) {
      problems_.add(error_at(member->value.origin,
                             fmt::format("{} expects text, not {}", key, member->value.show()),
                             fmt::format("write {}: NAME, in quotes where it looks like something else", key),
                             member->value.width()));
    } else {
      target = member->value.text;
      note(key, *member);
    }
  }

  // Remembers where something outside the trainer's keys was set.
  void note(std::string_view key, const Member& member) {
    const Origin& origin = member.value.origin.source ? member.value.origin : member.origin;
    const bool argument = origin.source && !origin.source->is_file;
    result_.provenance[std::string(key)] = {argument ? Layer::kCommandLine : Layer::kOverrides, origin};
  }

  // These become folders below workspace, and must stay below it.
  void require_relative_path(std::string_view key, const std::string& text) {
    if (text.empty()) return;
    const fs::path path(text);
    const bool inside =
        path.is_relative() && std::none_of(path.begin(), path.end(),
                                           [](const fs::path& part) { return part == ".." || part == "."; });
    if (inside) return;
    const Value& value = *root_.find(key);
    problems_.add(error_at(value.origin,
                           fmt::format("{} is {}; it must be the name of a folder", key, value.show()),
                           "workspace says where the folders lie", value.width()));
  }

  void read_env(const Value& env) {
    if (env.is_null()) return;
    if (!env.is_map()) {
      problems_.add(error_at(env.origin, fmt::format("env expects a map, not {}", env.show()),
                             "write NAME: VALUE lines below it", env.width()));
      return;
    }
    for (const Member& member : env.members) {
      if (!is_variable_name(member.key)) {
        problems_.add(error_at(
            member.origin, fmt::format("'{}' is no name for a variable", member.key.substr(0, 80)),
            "names have letters, digits and _, and begin with none of the digits", member.key.size()));
      } else if (!member.value.is_scalar() || member.value.is_null()) {
        problems_.add(
            error_at(member.value.origin,
                     fmt::format("variable {} expects text, not {}", member.key, member.value.show()),
                     "write one value, in quotes where it has several words", member.value.width()));
      } else {
        result_.env[member.key] = member.value.text;
        note("env." + member.key, member);
      }
    }
  }

  void read_module(const Value& module) {
    refuse_unknown(module, names_of(kModuleKeys), "in a module");
    result_.framework = "native";
    const Value* framework = module.find("framework");
    if (!framework || framework->is_null()) return;
    const std::optional<Framework> parsed = parse_framework(framework->text);
    if (!parsed || framework->kind != Value::Kind::kString) {
      const std::string near = did_you_mean(framework->text, framework_names());
      problems_.add(
          error_at(framework->origin,
                   fmt::format("framework is {}; it must be one of {}", framework->show(),
                               fmt::join(framework_names(), ", ")),
                   answer_for(framework->text)
                       .value_or(near.empty() ? "framework: native trains with Primus's own engine" : near),
                   framework->width()));
      return;
    }
    framework_ = *parsed;
    result_.framework = framework->text;
    note("framework", *module.find_member("framework"));
  }

  // The module's `config` or `model`, when there is one.
  const Value* preset_name(const Value& module, std::string_view key) {
    const Value* name = module.find(key);
    if (!name || name->is_null()) return nullptr;
    if (!name->is_scalar() || name->kind == Value::Kind::kBool || name->text.empty()) {
      problems_.add(error_at(name->origin,
                             fmt::format("{} expects the name of a preset, not {}", key, name->show()),
                             fmt::format("write {}: NAME.yaml", key), name->width()));
      return nullptr;
    }
    (key == "model" ? result_.model_preset : result_.module_preset) = name->text;
    note(key, *module.find_member(key));
    return name;
  }

  void add_preset(const Value& name, std::string_view kind, Layer layer) {
    problems_.collect([&] {
      try {
        // Under the names of frameworks with settings of their own lie presets with them.
        const bool own = has_own_settings(result_.framework);
        const Value preset =
            files_.load(files_.find_preset(name, kind, own ? "native" : result_.framework, dir_));
        refuse_model_that_needs_more(name, kind, preset);
        add_layer(preset, layer);
      } catch (const Error& error) {
        // A model that is not there yet: what is said of it would only be more unknown keys.
        if (error.kind() == ErrorKind::kUnsupported &&
            (engine_.empty() || engine_ == "native" || engine_ == "megatron"))
          stop_.push_back(error);
        throw;
      }
    });
    if (!stop_.empty()) throw stop_.front();
  }

  // Primus's own preset of a model that is not there yet has keys of its own; one sentence says why.
  void refuse_model_that_needs_more(const Value& name, std::string_view kind, const Value& preset) const {
    const std::string_view reason = kind == "models" ? reason_without_preset(name.text) : "";
    if (reason.empty()) return;
    const bool known = std::ranges::all_of(preset.members, [](const Member& m) { return find_key(m.key); });
    const Value* type = preset.find("model_type");
    const bool megatron_has_it = known && type && type->text == "mamba";
    if (megatron_has_it && framework_ == Framework::kMegatron) return;
    if (known && (!type || reason_without_preset(type->text).empty())) return;
    throw unsupported(fmt::format("{}: {}", name.show(), reason),
                      megatron_has_it ? "choose framework: megatron, which has them, or another model"
                                      : "choose another model")
        .at(name.origin.location(), name.origin.snippet(name.width()));
  }

  // Names in capitals are environment variables that stand in the wrong section. Primus sets none of them,
  // either.
  bool is_misplaced_variable(const Member& member) {
    const bool capitals = std::ranges::all_of(
        member.key, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
    if (!capitals || member.key.size() < 4 || !member.value.is_scalar()) return false;
    result_.warnings.push_back(
        fmt::format("{}: {} looks like an environment variable, and is not set from here: "
                    "it belongs under env:",
                    member.origin.describe(), member.key));
    return true;
  }

  // Puts a map of trainer keys over what is there, under the keys' present names.
  void add_layer(const Value& layer_values, Layer layer) {
    if (!layer_values.is_map()) {
      problems_.add(error_at(
          layer_values.origin,
          fmt::format("overrides expects a map of trainer keys, not {}", layer_values.show()),
          "write KEY: VALUE lines below it; 'primus config reference' lists the keys", layer_values.width()));
      return;
    }
    Value renamed;
    renamed.kind = Value::Kind::kMap;
    for (const Member& member : layer_values.members) {
      const KeySpec* key = find_key(member.key);
      if (!key && layer == Layer::kOverrides && is_misplaced_variable(member)) continue;
      if (!key && !problems_.are_kept()) {
        problems_.add(invalid("unknown key"));
      } else if (!key) {
        problems_.add(error_at(member.origin, fmt::format("unknown key '{}'", member.key.substr(0, 80)),
                               hint_for_unknown_key(member.key), member.key.size()));
      } else if (const Value* twin = renamed.find(key->name)) {
        // Under its name and under an alias, as some of Primus's files do: harmless while both say the same.
        // Of norm_epsilon and layernorm_epsilon, it is the second that Megatron-LM's models read.
        const bool same = twin->is_scalar() && (twin->text == member.value.text ||
                                                (twin->real != 0 && twin->real == member.value.real));
        if (same) continue;
        if (key->name == "norm_epsilon") {
          take_layernorm_epsilon(renamed, member);
          continue;
        }
        problems_.add(error_at(member.origin,
                               fmt::format("{} is given twice, here as {}", key->name, member.key),
                               "keep one of the two", member.key.size()));
      } else {
        renamed.members.push_back({std::string(key->name), member.origin, member.value});
        layers_[std::string(key->name)] = layer;
        names_[std::string(key->name)] = member.key;
      }
    }
    if (framework_ == Framework::kNative) switch_adapters_on(renamed, layer);
    merge(result_.settings, renamed);
  }

  // Whoever says how adapters are wants them. What a preset says of lora.enabled gives way; what the user's
  // own file says must be changed there.
  void switch_adapters_on(Value& renamed, Layer layer) {
    const auto here = std::ranges::find(renamed.members, "lora", &Member::key);
    if (here == renamed.members.end() || !here->value.is_map()) return;
    Value& lora = here->value;
    const Value* const enabled = lora.find("enabled");
    if (enabled && !enabled->is_null()) {
      adapters_said_by_ = layer;
      return;
    }
    const Value* const before = result_.settings.find("lora");
    const Value* const said = before ? before->find("enabled") : nullptr;
    if (lora.members.empty() || (said && said->boolean)) return;
    if (said && adapters_said_by_ >= Layer::kOverrides) {
      const Member& first = lora.members.front();
      problems_.add(error_at(first.origin,
                             fmt::format("lora.{} has no effect: lora.enabled is false ({})", first.key,
                                         said->origin.describe()),
                             "set lora.enabled to true, too", first.key.size()));
      return;
    }
    Value on = plain_scalar("true", lora.members.front().origin);
    lora.set("enabled", on.origin, on);
  }

  void take_layernorm_epsilon(Value& renamed, const Member& second) {
    const bool is_it = second.key == "layernorm_epsilon";
    const Value& before = *renamed.find("norm_epsilon");
    const Value& taken = is_it ? second.value : before;
    result_.warnings.push_back(
        fmt::format("{}: norm_epsilon and layernorm_epsilon differ; the second counts, as in Megatron-LM: {}",
                    taken.origin.describe(), taken.show()));
    if (!is_it) return;
    renamed.set("norm_epsilon", second.origin, second.value);
    names_["norm_epsilon"] = second.key;
  }

  // From the merged settings to typed fields.
  void bind() {
    result_.settings.kind = Value::Kind::kMap;
    // A warm-up is given in steps or as a share of the decay; the stronger layer decides which.
    resolve_warmup();
    resolve_length();
    resolve_data();
    resolve_tokenizer();
    for (const Member& member : result_.settings.members) {
      const KeySpec& key = *find_key(member.key);
      problems_.collect([&] {
        assign(key, member.value, result_.trainer);
        if (framework_ == Framework::kNative && !is_moot(key.name)) require_native_support(key, member.value);
        if (framework_ == Framework::kNative && key.name == "lora") read_lora(member.value);
        note_replaced(key, member.value);
      });
      if (!key.has_meaning_for(framework_)) result_.ignored.emplace_back(key.name);
      Origin origin = member.value.origin.source ? member.value.origin : member.origin;
      const std::string& name = names_[member.key];
      result_.provenance[member.key] = {layers_[member.key], std::move(origin),
                                        name == member.key ? "" : name};
    }
    std::sort(result_.ignored.begin(), result_.ignored.end());
  }

  // Whether a key's value does not matter because of another one: nothing is loaded, or nothing reads it.
  bool is_moot(std::string_view key) const {
    const auto is_on = [&](std::string_view other) {
      const Value* const value = result_.settings.find(other);
      return value && value->kind == Value::Kind::kBool && value->boolean;
    };
    if (key == "exit_on_missing_checkpoint") {
      const Value* load = result_.settings.find("load");
      return !load || load->is_null();
    }
    if (key == "turbo_mega_moe_precision") return !is_on("use_turbo_mega_moe");
    if (key == "sequence_parallel") {
      const Value* tensor = result_.settings.find("tensor_model_parallel_size");
      return !tensor || (tensor->kind == Value::Kind::kInt && tensor->integer == 1);
    }
    return false;
  }

  // What the native engine does in place of what the user asks for. Presets of AMD Primus set hundreds of
  // keys; those have no line.
  void note_replaced(const KeySpec& key, const Value& value) {
    if (framework_ != Framework::kNative || layers_[std::string(key.name)] < Layer::kOverrides) return;
    if (is_moot(key.name) || !asks_for_more(key, value)) return;
    result_.replaced.emplace(key.name, key.instead);
  }

  void resolve_warmup() {
    const Member* iters = result_.settings.find_member("lr_warmup_iters");
    const Member* fraction = result_.settings.find_member("lr_warmup_fraction");
    if (!iters || !fraction || iters->value.is_null() || fraction->value.is_null()) return;
    if (iters->value.kind == Value::Kind::kInt && iters->value.integer == 0) return;
    const Layer of_iters = layers_["lr_warmup_iters"], of_fraction = layers_["lr_warmup_fraction"];
    if (of_iters == of_fraction) {
      problems_.add(error_at(fraction->origin, "lr_warmup_iters and lr_warmup_fraction exclude each other",
                             "keep one of the two", fraction->key.size()));
      return;
    }
    const std::string weaker = of_iters < of_fraction ? "lr_warmup_iters" : "lr_warmup_fraction";
    std::erase_if(result_.settings.members, [&](const Member& member) { return member.key == weaker; });
  }

  // Primus-Turbo's keys for windows beside sinks mean window_size, unless that is set at the same level or a
  // stronger one.
  void take_sink_windows() {
    TrainerConfig& c = result_.trainer;
    const Provenance sink = result_.provenance_of("sink_sliding_window");
    if (!c.use_sink_attention || sink.layer <= result_.provenance_of("window_size").layer) return;
    c.window_size.clear();
    c.window_attn_skip_freq.clear();
    if (c.sink_sliding_window > 0) {
      c.window_size = {std::to_string(c.sink_sliding_window), "0"};
      if (c.sink_window_even_layers_only) {
        for (int64_t layer = 0; layer < c.num_layers; ++layer)
          c.window_attn_skip_freq.push_back(layer % 2 == 0 ? "1" : "0");
      }
    }
    for (const char* key : {"window_size", "window_attn_skip_freq"})
      result_.provenance.insert_or_assign(key, Provenance{Layer::kDerived, sink.origin});
  }

  // How long to train is said in one way; the stronger layer decides which.
  void resolve_length() {
    const Member* chosen = nullptr;
    for (const char* name : {"train_iters", "train_epochs", "train_tokens", "train_minutes"}) {
      const Member* member = result_.settings.find_member(name);
      if (!member || member->value.is_null()) continue;
      if (!chosen || layers_[member->key] > layers_[chosen->key]) {
        chosen = member;
      } else if (layers_[member->key] == layers_[chosen->key]) {
        problems_.add(
            error_at(member->origin,
                     fmt::format("{} and {} exclude each other", names_[chosen->key], names_[member->key]),
                     "both say how long to train: keep one", member->key.size()));
        return;
      }
    }
    if (!chosen) return;
    const std::string kept = chosen->key;
    std::erase_if(result_.settings.members, [&](const Member& member) {
      const bool length = member.key == "train_iters" || member.key == "train_epochs" ||
                          member.key == "train_tokens" || member.key == "train_minutes";
      return length && member.key != kept;
    });
    if (kept != "train_iters") result_.trainer.train_iters = 0;
  }

  // Data that a stronger layer names takes the place of mock data: `data_path=FILE` on the command line is
  // enough to train on it, whatever the experiment says.
  void resolve_data() {
    const Member* mock = result_.settings.find_member("mock_data");
    if (!mock || mock->value.is_null()) return;
    const Layer of_mock = layers_["mock_data"];
    for (const char* name : {"data_path", "train_data_path", "valid_data_path", "test_data_path"}) {
      const Member* paths = result_.settings.find_member(name);
      if (!paths || paths->value.is_null() || layers_[name] <= of_mock) continue;
      const bool none = paths->value.is_list() ? paths->value.items.empty() : paths->value.text.empty();
      if (none) continue;
      std::erase_if(result_.settings.members, [](const Member& member) { return member.key == "mock_data"; });
      return;
    }
  }

  // The byte tokenizer has no file. A file that a stronger layer names takes its place, and is read as what
  // it is: `tokenizer_model=FILE` over a preset's ByteTokenizer must not train on bytes.
  void resolve_tokenizer() {
    const Member* type = result_.settings.find_member("tokenizer_type");
    if (!type || !type->value.is_scalar() || !same_ignoring_case(type->value.text, "ByteTokenizer")) return;
    const Layer of_type = layers_["tokenizer_type"];
    for (const char* name : {"tokenizer_model", "vocab_file"}) {
      const Member* file = result_.settings.find_member(name);
      if (!file || file->value.is_null() || file->value.text.empty() || layers_[name] < of_type) continue;
      if (layers_[name] == of_type) {
        problems_.add(error_at(
            file->origin, fmt::format("tokenizer_type ByteTokenizer has no file, and {} names one", name),
            "keep one of the two: without tokenizer_type the file says what it is", file->key.size()));
        return;
      }
      std::erase_if(result_.settings.members,
                    [](const Member& member) { return member.key == "tokenizer_type"; });
      return;
    }
  }

  // An environment variable of the run: of the experiment's env, or else of the process. `from` says which.
  struct Variable {
    std::string text;
    Provenance from;
    std::string place() const { return from.origin.source ? from.origin.location() : "environment"; }
  };
  // Empty: not set, or set to nothing.
  std::optional<Variable> variable_of_run(const std::string& name) const {
    const auto own = result_.env.find(name);
    const std::optional<std::string> text =
        own != result_.env.end() ? std::optional(own->second) : read_variable_(name);
    if (!text || text->empty()) return std::nullopt;
    Provenance from{Layer::kDerived, Origin{.source = nullptr, .variable = name}};
    if (own != result_.env.end()) from.origin = result_.provenance_of("env." + name).origin;
    return Variable{.text = *text, .from = std::move(from)};
  }

  // The other names of what a run begins from: Megatron-LM's second `load`, which takes the weights alone,
  // and the model that Primus converts before it fine-tunes.
  void take_weights() {
    TrainerConfig& c = result_.trainer;
    for (const auto& [name, folder] :
         {std::pair("pretrained_checkpoint", &c.pretrained_checkpoint), std::pair("hf_path", &c.hf_path)}) {
      if (c.load || !*folder) continue;
      c.load = *folder;
      c.finetune = true;
      Provenance from = result_.provenance_of(name);
      from.name = name;
      result_.provenance.insert_or_assign("load", std::move(from));
    }
  }

  // num_threads that nobody chose: what OpenMP would take.
  void take_threads_of_environment() {
    if (result_.trainer.num_threads != 0) return;
    std::optional<Variable> variable = variable_of_run("OMP_NUM_THREADS");
    if (!variable) return;
    const OpenMpThreads threads = parse_openmp_threads(variable->text, variable->place());
    if (!threads.warning.empty()) result_.warnings.push_back(threads.warning);
    if (!threads.count) return;
    result_.trainer.num_threads = *threads.count;
    result_.provenance.insert_or_assign("num_threads", std::move(variable->from));
  }

  // The target of an MLPerf run, where the experiment leaves it to the environment. Primus's scripts for
  // MLPerf set one of the two variables, or both.
  void take_target_of_environment() {
    if (!stage_of(result_.trainer).mlperf_log || result_.provenance.contains("target_eval_loss")) return;
    std::optional<std::pair<std::string, double>> first;
    for (const std::string name : {"MLLOG_TARGET_EVAL_LOSS", "TARGET_EVAL_LOSS"}) {
      std::optional<Variable> variable = variable_of_run(name);
      if (!variable) continue;
      const Value value = plain_scalar(variable->text, {});
      const bool number = value.kind == Value::Kind::kInt || value.kind == Value::Kind::kFloat;
      if (!number || !(value.real >= 0 && value.real <= 1e6)) {
        problems_.add(invalid(fmt::format("{} is '{}', which is no loss", name, variable->text.substr(0, 80)),
                              fmt::format("set {} to the loss at which the run ends, or to 0 for none", name))
                          .at(variable->place()));
        return;
      }
      if (first && first->second != value.real) {
        problems_.add(
            invalid(fmt::format("{} is {}, and {} is {}", first->first, first->second, name, value.real),
                    "set one of them, or both to the same loss")
                .at(variable->place()));
        return;
      }
      if (!first && value.real > 0) {
        result_.trainer.target_eval_loss = value.real;
        result_.provenance.insert_or_assign("target_eval_loss", std::move(variable->from));
      }
      first = {name, value.real};
    }
  }

  // An lr of the command line that is below the file's min_lr: a sweep over lr keeps the file's decay, so
  // min_lr keeps its share of lr.
  void scale_min_lr() {
    TrainerConfig& c = result_.trainer;
    const Provenance from = result_.provenance_of("min_lr");
    const bool typed = result_.provenance_of("lr").layer == Layer::kCommandLine;
    if (!typed || from.layer >= Layer::kCommandLine || c.min_lr <= c.lr) return;
    const double share = c.min_lr / lr_of_file_;
    if (!(share <= 1)) return;  // the file's own mistake, which is refused
    const double before = std::exchange(c.min_lr, decimal(c.lr * share));
    result_.warnings.push_back(
        fmt::format("min_lr is {} in place of {} ({}): lr={} is below it, and min_lr keeps its share of lr",
                    c.min_lr, before, from.describe(), c.lr));
    result_.provenance.insert_or_assign("min_lr", Provenance{Layer::kDerived, from.origin});
  }

  void require_keys() {
    for (const KeySpec& key : all_keys()) {
      // The shape of a model that is loaded stands in its config.json.
      if (!key.is_required || result_.trainer.load) continue;
      const auto given = result_.provenance.find(key.name);
      const Value* value = result_.settings.find(key.name);
      if (given != result_.provenance.end() && value && !value->is_null()) continue;
      const Member& module = module_member();
      problems_.add(
          error_at(module.origin, fmt::format("{} is missing", key.name),
                   fmt::format("choose a model preset with model: NAME.yaml, load a model with load: "
                               "FOLDER, or set {}",
                               key.name),
                   module.key.size()));
    }
  }

  FileLoader& files_;
  ReadVariable read_variable_;
  fs::path dir_;
  std::string file_name_;  // without its ending: "try1"
  std::string wanted_module_;
  std::optional<BackendFields> foreign_;  // of the engine that the file is written for
  bool has_own_model_ = false;            // beside settings of another framework
  Value kept_settings_;                   // that are handed on to the framework as they are
  std::string engine_;                    // as the file has it
  Origin engine_origin_;
  std::vector<Error> stop_;  // a problem that makes others pointless
  Value root_;
  Framework framework_ = Framework::kNative;
  double lr_of_file_ = TrainerConfig().lr;  // what the command line does not say
  std::map<std::string, Layer> layers_;
  Layer adapters_said_by_ = Layer::kDefault;  // whoever said lora.enabled last
  std::map<std::string, std::string> names_;  // as the strongest layer has them
  Problems problems_;
  Experiment result_;
};

ReadVariable reader_of(const LoadOptions& options) {
  return options.environment ? options.environment : process_variable;
}

FileLoader make_file_loader(const LoadOptions& options) {
  ReadVariable read = reader_of(options);
  std::vector<fs::path> dirs = options.preset_dirs ? *options.preset_dirs : default_preset_dirs(read);
  return {std::move(read), std::move(dirs)};
}

}  // namespace

void set_train_iters(Experiment& experiment, int64_t train_iters) {
  experiment.trainer.train_iters = train_iters;
  experiment.provenance.insert_or_assign("train_iters", Provenance{Layer::kDerived, {}});
  if (experiment.provenance_of("lr_decay_iters").layer <= Layer::kDerived)
    experiment.trainer.lr_decay_iters = 0;
  derive_fields(experiment);
  Problems problems;
  Experiment checked = experiment;  // keeps the warnings that load_experiment() has given
  validate_native(checked, problems);
  problems.throw_if_any();
}

fs::path Experiment::output_dir() const { return fs::path(workspace) / work_group / user_name / exp_name; }

Experiment load_experiment(const fs::path& file, std::span<const std::string> overrides,
                           const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  return Loader(files, reader_of(options), file, options).run(files.load(file), overrides);
}

Experiment load_experiment_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides, const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  const std::shared_ptr<const Source> source = make_source(name, std::string(text));
  return Loader(files, reader_of(options), fs::path(name), options).run(files.load(source), overrides);
}

Experiment load_recorded_experiment(std::string_view text, const std::string& name) {
  LoadOptions options;
  options.environment = [](const std::string& variable) -> std::optional<std::string> {
    const char* const value = std::getenv(variable.c_str());
    return value ? value : R"("")";  // an empty text, where nothing at all would be null
  };
  return load_experiment_text(text, name, {}, options);
}

}  // namespace primus::config
