#include "config/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/openmp_threads.h"
#include "base/suggest.h"
#include "config/experiment_keys.h"
#include "config/inherit.h"
#include "config/keys.h"
#include "config/overrides.h"
#include "config/problems.h"
#include "config/readers.h"
#include "config/validate.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
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

// Builds one Experiment. Members are the stages' intermediate results.
class Loader {
 public:
  Loader(FileLoader& files, ReadVariable read_variable, fs::path experiment_dir)
      : files_(files), read_variable_(std::move(read_variable)), dir_(std::move(experiment_dir)) {}

  Experiment run(Value root, std::span<const std::string> arguments) {
    root_ = std::move(root);
    Overrides overrides = parse_overrides(arguments);
    choose_module(overrides.experiment);
    merge(root_, overrides.experiment);
    read_top_level();
    const Value& module = *module_value();
    read_module(module);

    // From the weakest to the strongest.
    if (const Value* name = preset_name(module, "model")) add_preset(*name, "models", Layer::kModelPreset);
    if (const Value* name = preset_name(module, "config")) add_preset(*name, "modules", Layer::kModulePreset);
    if (const Value* over = module.find("overrides"); over && !over->is_null())
      add_layer(*over, Layer::kOverrides);
    add_layer(overrides.trainer, Layer::kCommandLine);

    bind();
    problems_.throw_if_any();
    derive_fields();
    if (framework_ == Framework::kNative) {
      take_threads_of_environment();
      require_keys();
      validate_native(result_, problems_);
    }
    problems_.throw_if_any();
    return std::move(result_);
  }

 private:
  // Finds the one trainer module, and gives its name to command-line settings that left it open.
  void choose_module(Value& overrides) {
    const Value* modules = root_.find("modules");
    if (!modules || !modules->is_map() || modules->members.empty()) {
      const Origin origin = modules ? root_.find_member("modules")->origin : Origin{root_.origin.source};
      throw error_at(
          origin, "the experiment has no modules",
          "add modules: {pre_trainer: {framework: native, config: pre_trainer.yaml, model: NAME.yaml}}");
    }
    if (modules->members.size() > 1) {
      throw error_at(modules->members[1].origin, "an experiment runs one module, and this is a second",
                     fmt::format("keep either {} or {}", modules->members[0].key, modules->members[1].key),
                     modules->members[1].key.size());
    }
    const Member& module = modules->members[0];
    if (module.key.find("trainer") == std::string::npos) {
      throw error_at(module.origin, fmt::format("module '{}' is no trainer", module.key.substr(0, 80)),
                     "a module's name has 'trainer' in it: pre_trainer, post_trainer", module.key.size());
    }
    require_map(module);
    result_.module_name = module.key;
    name_module(overrides, module.key);
  }

  static void require_map(const Member& member) {
    if (member.value.is_map()) return;
    throw error_at(member.value.origin,
                   fmt::format("{} expects a map, not {}", member.key, member.value.show()), {},
                   member.value.width());
  }

  static void name_module(Value& overrides, const std::string& module) {
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
        if (entry.key != "*" && entry.key != module) {
          throw error_at(entry.origin, fmt::format("there is no module '{}'", entry.key.substr(0, 80)),
                         fmt::format("the experiment's module is {}", module));
        }
        Value merged;
        if (const Value* before = named.find(module)) merged = *before;
        merge(merged, entry.value);
        named.set(module, entry.origin, std::move(merged));
      }
      top.value = std::move(named);
    }
  }

  const Value* module_value() const { return &root_.find("modules")->members[0].value; }

  void refuse_unknown(const Value& map, std::span<const std::string_view> known, std::string_view where) {
    for (const Member& member : map.members) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
      if (!problems_.are_shown()) {
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
    read_text("work_group", result_.work_group);
    read_text("user_name", result_.user_name);
    read_text("exp_name", result_.exp_name);
    read_text("workspace", result_.workspace);
    for (const auto& [key, text] :
         {std::pair("work_group", &result_.work_group), std::pair("user_name", &result_.user_name),
          std::pair("exp_name", &result_.exp_name)}) {
      require_relative_path(key, *text);
    }
    if (const Value* env = root_.find("env")) read_env(*env);
    if (root_.find("platform")) result_.ignored.emplace_back("platform");
  }

  void read_text(std::string_view key, std::string& target) {
    const Member* member = root_.find_member(key);
    if (!member || member->value.is_null()) {
      problems_.add(error_at(member ? member->origin : Origin{root_.origin.source},
                             fmt::format("{} is missing", key), fmt::format("add {}: NAME", key),
                             key.size()));
    } else if (!member->value.is_scalar() || member->value.kind == Value::Kind::kBool ||
               member->value.text.empty()) {
      problems_.add(error_at(member->value.origin,
                             fmt::format("{} expects text, not {}", key, member->value.show()), {},
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
      problems_.add(
          error_at(env.origin, fmt::format("env expects a map, not {}", env.show()), {}, env.width()));
      return;
    }
    for (const Member& member : env.members) {
      if (!is_variable_name(member.key)) {
        problems_.add(error_at(member.origin,
                               fmt::format("'{}' is no name for a variable", member.key.substr(0, 80)), {},
                               member.key.size()));
      } else if (!member.value.is_scalar() || member.value.is_null()) {
        problems_.add(
            error_at(member.value.origin,
                     fmt::format("variable {} expects text, not {}", member.key, member.value.show()), {},
                     member.value.width()));
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
      problems_.add(error_at(framework->origin,
                             fmt::format("framework is {}; it must be one of {}", framework->show(),
                                         fmt::join(kFrameworks, ", ")),
                             did_you_mean(framework->text, kFrameworks), framework->width()));
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
                             fmt::format("{} expects the name of a preset, not {}", key, name->show()), {},
                             name->width()));
      return nullptr;
    }
    (key == "model" ? result_.model_preset : result_.module_preset) = name->text;
    note(key, *module.find_member(key));
    return name;
  }

  void add_preset(const Value& name, std::string_view kind, Layer layer) {
    problems_.collect(
        [&] { add_layer(files_.load(files_.find_preset(name, kind, result_.framework, dir_)), layer); });
  }

  // Puts a map of trainer keys over what is there, under the keys' present names.
  void add_layer(const Value& layer_values, Layer layer) {
    if (!layer_values.is_map()) {
      problems_.add(
          error_at(layer_values.origin,
                   fmt::format("overrides expects a map of trainer keys, not {}", layer_values.show()), {},
                   layer_values.width()));
      return;
    }
    Value renamed;
    renamed.kind = Value::Kind::kMap;
    for (const Member& member : layer_values.members) {
      const KeySpec* key = find_key(member.key);
      if (!key && !problems_.are_shown()) {
        problems_.add(invalid("unknown key"));
      } else if (!key) {
        problems_.add(error_at(member.origin, fmt::format("unknown key '{}'", member.key.substr(0, 80)),
                               hint_for_unknown_key(member.key), member.key.size()));
      } else if (const Value* twin = renamed.find(key->name)) {
        // Under its name and under an alias: harmless while both say the same, as some of Primus's files do.
        if (twin->is_scalar() && twin->text == member.value.text) continue;
        problems_.add(error_at(member.origin,
                               fmt::format("{} is given twice, here as {}", key->name, member.key),
                               "keep one of the two", member.key.size()));
      } else {
        renamed.members.push_back({std::string(key->name), member.origin, member.value});
        layers_[std::string(key->name)] = layer;
        names_[std::string(key->name)] = member.key;
      }
    }
    merge(result_.settings, renamed);
  }

  // From the merged settings to typed fields.
  void bind() {
    result_.settings.kind = Value::Kind::kMap;
    // A warm-up is given in steps or as a share of the decay; the stronger layer decides which.
    resolve_warmup();
    for (const Member& member : result_.settings.members) {
      const KeySpec& key = *find_key(member.key);
      problems_.collect([&] {
        assign(key, member.value, result_.trainer);
        if (framework_ == Framework::kNative) require_native_support(key, member.value);
      });
      if (!key.has_meaning_for(framework_)) result_.ignored.emplace_back(key.name);
      Origin origin = member.value.origin.source ? member.value.origin : member.origin;
      const std::string& name = names_[member.key];
      result_.provenance[member.key] = {layers_[member.key], std::move(origin),
                                        name == member.key ? "" : name};
    }
    std::sort(result_.ignored.begin(), result_.ignored.end());
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

  void derive_fields() {
    const TrainerConfig before = result_.trainer;
    derive(result_.trainer);
    for (const KeySpec& key : all_keys()) {
      if (!same_value(key, before, result_.trainer)) {
        result_.provenance.insert_or_assign(std::string(key.name), Provenance{Layer::kDerived, {}});
      }
    }
  }

  // num_threads that nobody chose: what OpenMP would take.
  void take_threads_of_environment() {
    if (result_.trainer.num_threads != 0) return;
    const std::string name = "OMP_NUM_THREADS";
    const auto own = result_.env.find(name);
    const std::optional<std::string> text =
        own != result_.env.end() ? std::optional(own->second) : read_variable_(name);
    if (!text || text->empty()) return;
    Provenance from{Layer::kDerived, Origin{.source = nullptr, .variable = name}};
    if (own != result_.env.end()) from.origin = result_.provenance_of("env." + name).origin;
    const OpenMpThreads threads =
        parse_openmp_threads(*text, from.origin.source ? from.origin.location() : "environment");
    if (!threads.warning.empty()) result_.warnings.push_back(threads.warning);
    if (!threads.count) return;
    result_.trainer.num_threads = *threads.count;
    result_.provenance.insert_or_assign("num_threads", std::move(from));
  }

  void require_keys() {
    for (const KeySpec& key : all_keys()) {
      if (!key.is_required) continue;
      const auto given = result_.provenance.find(key.name);
      const Value* value = result_.settings.find(key.name);
      if (given != result_.provenance.end() && value && !value->is_null()) continue;
      const Member& module = root_.find("modules")->members[0];
      problems_.add(error_at(module.origin, fmt::format("{} is missing", key.name),
                             fmt::format("choose a model preset with model: NAME.yaml, or set {}", key.name),
                             module.key.size()));
    }
  }

  FileLoader& files_;
  ReadVariable read_variable_;
  fs::path dir_;
  Value root_;
  Framework framework_ = Framework::kNative;
  std::map<std::string, Layer> layers_;
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

std::string Provenance::describe() const {
  if (layer == Layer::kDefault) return "default";
  if (layer == Layer::kDerived) {
    if (origin.source) return "derived from " + origin.describe();
    return origin.variable.empty() ? "derived" : "environment " + origin.variable;
  }
  return origin.describe();
}

Provenance Experiment::provenance_of(std::string_view key) const {
  const auto found = provenance.find(key);
  return found == provenance.end() ? Provenance{} : found->second;
}

std::string Experiment::name_of(std::string_view key) const {
  const std::string name = provenance_of(key).name;
  return name.empty() ? std::string(key) : name;
}

Error Experiment::error_for(std::string_view key, std::string what, std::string hint) const {
  const Provenance provenance_of_key = provenance_of(key);
  if (provenance_of_key.layer <= Layer::kDerived) {
    // Nothing was written that could be pointed at.
    return invalid(std::move(what), std::move(hint));
  }
  const Value* value = settings.find(key);
  return error_at(provenance_of_key.origin, std::move(what), std::move(hint), value ? value->width() : 1);
}

fs::path Experiment::output_dir() const { return fs::path(workspace) / work_group / user_name / exp_name; }

Experiment load_experiment(const fs::path& file, std::span<const std::string> overrides,
                           const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  return Loader(files, reader_of(options), file.parent_path()).run(files.load(file), overrides);
}

Experiment load_experiment_text(std::string_view text, const std::string& name,
                                std::span<const std::string> overrides, const LoadOptions& options) {
  FileLoader files = make_file_loader(options);
  const std::shared_ptr<const Source> source = make_source(name, std::string(text));
  return Loader(files, reader_of(options), fs::path(name).parent_path()).run(files.load(source), overrides);
}

}  // namespace primus::config
