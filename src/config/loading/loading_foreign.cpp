#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "config/experiment_keys.h"
#include "config/foreign.h"
#include "config/keys.h"
#include "config/loading/loading.h"

namespace primus::config {
namespace {

class ForeignSettings {
 public:
  explicit ForeignSettings(Loading& loading)
      : loading_(loading),
        files_(loading.files),
        read_variable_(loading.read_variable),
        dir_(loading.dir),
        engine_(loading.engine),
        layers_(loading.layers),
        names_(loading.names),
        problems_(loading.problems),
        result_(loading.result) {}

  // Returns whether the file uses its framework's settings instead of our keys.
  bool is_foreign(const Value& module) {
    if (!has_own_settings(engine_)) return false;
    foreign_.emplace(BackendFields::load(engine_, files_.preset_dirs()));
    if (foreign_->accepts_own_keys()) return true;
    const Value* overrides = module.find("overrides");
    if (!overrides || !overrides->is_map()) return true;
    const auto theirs = [&](const Member& m) { return knows(*foreign_, m.key); };
    const auto ours = [&](const Member& m) { return find_key(m.key) && !knows(*foreign_, m.key); };
    return std::ranges::count_if(overrides->members, theirs) >=
           std::ranges::count_if(overrides->members, ours);
  }

  void read(const Value& module, const Value& arguments) {
    Value settings, own;
    settings.kind = own.kind = Value::Kind::kMap;
    settings.origin = loading_.engine_origin;
    if (const Value* name = preset_name(loading_, "model")) merge_preset(*name, "models", settings);
    if (const Value* name = preset_name(loading_, "config")) merge_preset(*name, "modules", settings);
    if (const Value* over = module.find("overrides"); over && over->is_map()) {
      for (const Member& member : over->members) {
        if (!knows(*foreign_, member.key) && is_misplaced_variable(loading_, member)) continue;
        Value one;
        one.kind = Value::Kind::kMap;
        one.members.push_back(member);
        merge(settings, one);
      }
    }
    if (foreign_->accepts_own_keys()) read_top_level_sections(settings);
    const Value* const rate = settings.find("lr");
    const double lr_of_file = rate && rate->is_scalar() ? rate->real : 0;
    // The command line may use our keys and the framework's settings; our keys have priority.
    for (const Member& argument : arguments.members) {
      Value one;
      one.kind = Value::Kind::kMap;
      one.members.push_back(argument);
      const bool is_own = foreign_->accepts_own_keys()
                              ? find_key(argument.key) && !foreign_->keys("settings").find(argument.key)
                              : !knows(*foreign_, argument.key) || is_own_scalar(argument);
      if (is_own) merge(own, one);
      // A framework that accepts our keys also sees them, because some of its values depend on them.
      if (foreign_->accepts_own_keys() && find_extra(*foreign_, argument.key + ".")) {
        add_section(argument, settings);
      } else if (!is_own || foreign_->accepts_own_keys()) {
        merge(settings, one);
      }
    }
    note_repetitions(arguments, own);
    check_settings(*foreign_, settings, problems_);
    problems_.throw_if_any();
    const bool stays = result_.framework == engine_;
    Problems unmapped;  // not reported, because settings that stay with their framework need no translation
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
        add_layer(loading_, files_.load_preset(name, "models", "native", dir_), Layer::kModelPreset);
      });
    }
    add_layer(loading_, translation.recipe, Layer::kModulePreset);
    if (const Value* usual = translation.recipe.find("lr"); usual || lr_of_file > 0)
      loading_.lr_of_file = lr_of_file > 0 ? lr_of_file : usual->real;
    // Adds the translated settings. If they name no tokenizer, the model preset's tokenizer is used.
    add_layer(loading_, translation.settings, Layer::kOverrides);
    for (const auto& [key, name] : translation.names) {
      if (layers_.contains(key)) names_[key] = name;
    }
    add_layer(loading_, own, Layer::kCommandLine);
    if (stays) {
      put_own_keys(own, settings);
      loading_.kept_settings = std::move(settings);
    }
  }

 private:
  // Adds the settings of a section under their dotted names, so that they override the section of a weaker
  // layer, and so that a setting and a section may have the same name (peft).
  static void add_section(const Member& section, Value& settings) {
    if (!section.value.is_map()) settings.set(section.key, section.origin, section.value);
    for (const Member& member : section.value.members)
      settings.set(section.key + "." + member.key, member.origin, member.value);
  }

  // Adds sections of the framework that the file has at its top level, where AMD Primus does not read them.
  void read_top_level_sections(Value& settings) {
    for (const Member& section : loading_.root.members) {
      if (is_experiment_key(section.key) || !section.value.is_map()) continue;
      add_section(section, settings);
      result_.warnings.push_back(fmt::format(
          "{}: '{}' is at the top level of the file, where AMD Primus does not read it: Primus reads "
          "it as a part of overrides",
          section.origin.describe(), section.key));
    }
  }

  // Merges the framework's preset `name` into `settings`. If `name` is one of our model presets, adds it as a
  // separate layer.
  void merge_preset(const Value& name, std::string_view kind, Value& settings) {
    problems_.collect([&] {
      const Value preset = files_.load_preset(name, kind, engine_, dir_);
      const bool theirs =
          std::ranges::all_of(preset.members, [&](const Member& m) { return knows(*foreign_, m.key); });
      if (!theirs && kind == "models") {
        add_layer(loading_, preset, Layer::kModelPreset);
        has_own_model_ = true;
      } else {
        merge(settings, preset);
      }
    });
  }

  // Returns the job's number of ranks, from torchrun's environment variable.
  std::int64_t ranks() const {
    const std::optional<std::string> text = read_variable_("WORLD_SIZE");
    const Value value = text ? plain_scalar(*text, {}) : Value{};
    return value.kind == Value::Kind::kInt && value.integer > 0 ? value.integer : 1;
  }

  // Returns whether an argument sets our key: `optimizer=muon` does, `optimizer.lr=1e-4` sets TorchTitan's.
  bool is_own_scalar(const Member& member) const {
    return find_key(member.key) && member.value.is_scalar() && !foreign_->find(member.key);
  }

  // Returns whether the framework's setting of a row of keys.yaml means our key on the command line.
  static bool means(const Member& row, std::string_view key) {
    return std::ranges::any_of(std::initializer_list<const char*>{"key", "command_line"},
                               [&](const char* name) {
                                 const Value* mine = row.value.find(name);
                                 return mine && mine->text == key;
                               });
  }

  // Warns of a setting that the command line gives by our key and by the framework's name.
  void note_repetitions(const Value& arguments, const Value& own) {
    for (const Member& row : foreign_->keys("settings").members) {
      const Value* theirs = find_path(arguments, row.key);
      if (!theirs) continue;
      for (const Member& member : own.members) {
        if (!means(row, member.key) || member.key == row.key || member.value.text == theirs->text) continue;
        result_.warnings.push_back(
            fmt::format("{} and {} are one setting: the value {} of {} is used, not {}", member.key, row.key,
                        member.value.show(), member.key, theirs->show()));
      }
    }
  }

  // Translates our keys from the command line to settings of the framework.
  void put_own_keys(const Value& own, Value& settings) {
    for (const Member& member : own.members) {
      const KeySpec* key = find_key(member.key);
      if (!key) continue;  // add_layer() has reported the unknown key
      const Member* found = nullptr;
      for (const Member& row : foreign_->keys("settings").members) {
        if (means(row, key->name)) found = &row;
      }
      if (!found) {
        problems_.add(error_at(
            member.origin,
            fmt::format("{} has no single counterpart among the settings of {}", key->name,
                        foreign_->keys().find("title")->text),
            fmt::format("use the settings of {} instead, such as {}=100", engine_, setting_of_steps()),
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

  // Returns the framework's setting for the number of steps, as an example: "training.steps" or "steps".
  std::string setting_of_steps() const {
    for (const Member& row : foreign_->keys("settings").members)
      if (means(row, "train_iters")) return row.key;
    return "steps";
  }

  std::optional<BackendFields> foreign_;  // fields of the engine whose settings the file uses
  bool has_own_model_ = false;            // the framework's settings are used with one of our presets
  Loading& loading_;
  FileLoader& files_;
  const ReadVariable& read_variable_;
  const std::filesystem::path& dir_;
  std::string& engine_;
  std::map<std::string, Layer>& layers_;
  std::map<std::string, std::string>& names_;
  Problems& problems_;
  Experiment& result_;
};

}  // namespace

bool read_foreign(Loading& loading, const Value& arguments) {
  ForeignSettings settings(loading);
  const Value& module = loading.module();
  if (!settings.is_foreign(module)) return false;
  settings.read(module, arguments);
  return true;
}

}  // namespace primus::config
