#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files/file.h"
#include "base/system/user_name.h"
#include "base/text/suggest.h"
#include "base/text/utf8.h"
#include "config/experiment_keys.h"
#include "config/framework.h"
#include "config/key_hints.h"
#include "config/keys.h"
#include "config/loading/elsewhere.h"
#include "config/loading/loading.h"

namespace primus::config {
namespace fs = std::filesystem;
namespace {

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

class Outline {
 public:
  explicit Outline(Loading& loading)
      : loading_(loading),
        file_name_(loading.file_name),
        root_(loading.root),
        framework_(loading.framework),
        problems_(loading.problems),
        result_(loading.result) {}

  void read_top_level() {
    refuse_unknown(top_level_keys(), names_of(kExperimentKeys), "at the top level");
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

  void read_module(const Value& module) {
    refuse_unknown(module, names_of(kModuleKeys), "in a module");
    result_.framework = "native";
    const Value* framework = module.find("framework");
    if (!framework || framework->is_null()) return;
    const std::optional<Framework> parsed = parse_framework(framework->text);
    if (!parsed || framework->kind != Value::Kind::kString) {
      const std::string near = did_you_mean(framework->text, framework_names());
      problems_.add(error_at(
          framework->origin,
          fmt::format("framework is {}; it must be one of {}", framework->show(),
                      fmt::join(framework_names(), ", ")),
          answer_for(framework->text)
              .value_or(near.empty() ? "framework: native trains with the native engine of Primus" : near),
          framework->width()));
      return;
    }
    framework_ = *parsed;
    loading_.note("framework", *module.find_member("framework"));
    const FrameworkEntry& entry = *find_framework(framework->text);
    if (!entry.runs_natively) {
      result_.framework = framework->text;
    } else if (framework->text == loading_.engine) {
      result_.written_for = entry.title;
    } else {
      problems_.add(error_at(framework->origin,
                             fmt::format("Primus does not start {}: the native engine runs experiments that "
                                         "are written for it",
                                         entry.title),
                             fmt::format("choose one of {}", fmt::join(engine_names(), ", ")),
                             framework->width()));
    }
  }

 private:
  // Returns the file's top-level keys. Leaves out maps of a framework whose sections may be there
  // (read_foreign() reads them).
  Value top_level_keys() const {
    const FrameworkEntry* engine = find_framework(loading_.engine);
    Value keys = root_;
    if (engine && engine->runs_natively) {
      std::erase_if(keys.members, [](const Member& member) {
        return member.value.is_map() && !is_experiment_key(member.key);
      });
    }
    return keys;
  }

  void refuse_unknown(const Value& map, std::span<const std::string_view> known, std::string_view where) {
    for (const Member& member : map.members) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
      if (!problems_.are_kept()) {
        problems_.add(invalid("unknown key"));
        continue;
      }
      std::string hint = did_you_mean(member.key, known);
      if (hint.empty() && find_key(member.key)) {
        hint = fmt::format("write trainer keys under modules.{}.overrides", result_.module_name);
      }
      if (hint.empty()) hint = hint_for_unknown_key(member.key);
      problems_.add(error_at(member.origin,
                             fmt::format("unknown key '{}' {}", member.key.substr(0, 80), where),
                             std::move(hint), member.key.size()));
    }
  }

  void read_text(std::string_view key, std::string& target, std::string otherwise) {
    const Member* member = root_.find_member(key);
    if (!member || member->value.is_null()) {
      target = std::move(otherwise);
    } else if (!member->value.is_scalar() || member->value.kind == Value::Kind::kBool ||
               member->value.text.empty()) {
      problems_.add(error_at(
          member->value.origin, fmt::format("{} expects text, not {}", key, member->value.show()),
          fmt::format("write {}: NAME, in quotes if the name looks like a number or a truth value", key),
          member->value.width()));
    } else {
      target = member->value.text;
      loading_.note(key, *member);
    }
  }

  // Refuses a value that would lead out of the workspace: these values become folders below it.
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
                           "the key workspace sets where the folders are", value.width()));
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
            member.origin, fmt::format("'{}' is not a valid name for a variable", member.key.substr(0, 80)),
            "names have letters, digits and _, and do not begin with a digit", member.key.size()));
      } else if (!member.value.is_scalar() || member.value.is_null()) {
        problems_.add(
            error_at(member.value.origin,
                     fmt::format("variable {} expects text, not {}", member.key, member.value.show()),
                     "write one value, in quotes if it has several words", member.value.width()));
      } else {
        result_.env[member.key] = member.value.text;
        loading_.note("env." + member.key, member);
      }
    }
  }

  Loading& loading_;
  const std::string& file_name_;
  Value& root_;
  Framework& framework_;
  Problems& problems_;
  Experiment& result_;
};

}  // namespace

void Loading::note(std::string_view key, const Member& member) {
  const Origin& origin = member.value.origin.source ? member.value.origin : member.origin;
  const bool argument = origin.source && !origin.source->is_file;
  result.provenance[std::string(key)] = {argument ? Layer::kCommandLine : Layer::kOverrides, origin};
}

void read_outline(Loading& loading) {
  Outline outline(loading);
  outline.read_top_level();
  outline.read_module(loading.module());
}

const Value* preset_name(Loading& loading, std::string_view key) {
  const Value& module = loading.module();
  const Value* name = module.find(key);
  if (!name || name->is_null()) return nullptr;
  if (!name->is_scalar() || name->kind == Value::Kind::kBool || name->text.empty()) {
    loading.problems.add(error_at(name->origin,
                                  fmt::format("{} expects the name of a preset, not {}", key, name->show()),
                                  fmt::format("write {}: NAME.yaml", key), name->width()));
    return nullptr;
  }
  (key == "model" ? loading.result.model_preset : loading.result.module_preset) = name->text;
  loading.note(key, *module.find_member(key));
  return name;
}

}  // namespace primus::config
