#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "config/loading/loading.h"

namespace primus::config {
namespace {

class ModuleChoice {
 public:
  explicit ModuleChoice(Loading& loading)
      : wanted_module_(loading.wanted_module),
        engine_(loading.engine),
        engine_origin_(loading.engine_origin),
        root_(loading.root),
        result_(loading.result) {}

  void choose(Overrides& overrides) {
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
    note_engine(module.value);
    merge(root_, overrides.experiment);
  }

 private:
  // Returns the module named `wanted_module_`. If no module has this name, returns the file's only trainer
  // module; throws if the file has none or several.
  const Member* find_module(const Value& modules) const {
    const auto is_trainer = [](const Member& member) {
      return member.key.find("trainer") != std::string::npos;
    };
    if (const Member* wanted = modules.find_member(wanted_module_)) return wanted;
    const auto first = std::find_if(modules.members.begin(), modules.members.end(), is_trainer);
    if (first == modules.members.end()) {
      const Member& module = modules.members[0];
      throw error_at(module.origin, fmt::format("module '{}' is not a trainer", module.key.substr(0, 80)),
                     "the name of a module contains 'trainer': pre_trainer, post_trainer", module.key.size());
    }
    const auto second = std::find_if(first + 1, modules.members.end(), is_trainer);
    if (second != modules.members.end()) {
      throw error_at(second->origin,
                     fmt::format("the experiment has several trainers, {} and {}, but none is called {}",
                                 first->key.substr(0, 80), second->key.substr(0, 80), wanted_module_),
                     fmt::format("rename the one to run to {}", wanted_module_), second->key.size());
    }
    return &*first;
  }

  [[noreturn]] void refuse_module(const std::string& name, const Origin& origin) const {
    throw error_at(origin, fmt::format("there is no module '{}' to run", name.substr(0, 80)),
                   fmt::format("the experiment's module is {}", result_.module_name));
  }

  // Records the file's engine, before the command line can select another engine.
  void note_engine(const Value& module) {
    const Member* framework = module.find_member("framework");
    if (!framework || framework->value.kind != Value::Kind::kString) return;
    engine_ = framework->value.text;
    engine_origin_ = framework->value.origin;
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
        throw error_at(top.origin, "extends has no effect on the command line",
                       "write extends into the experiment file", top.key.size());
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

  const std::string& wanted_module_;
  std::string& engine_;
  Origin& engine_origin_;
  Value& root_;
  Experiment& result_;
};

}  // namespace

void choose_module(Loading& loading, Overrides& overrides) { ModuleChoice(loading).choose(overrides); }

}  // namespace primus::config
