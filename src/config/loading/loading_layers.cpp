#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "config/key_hints.h"
#include "config/keys.h"
#include "config/loading/loading.h"
#include "config/validation/not_yet.h"

namespace primus::config {
namespace {

class LayerStack {
 public:
  explicit LayerStack(Loading& loading)
      : files_(loading.files),
        dir_(loading.dir),
        engine_(loading.engine),
        framework_(loading.framework),
        layers_(loading.layers),
        names_(loading.names),
        adapters_said_by_(loading.adapters_said_by),
        problems_(loading.problems),
        result_(loading.result) {}

  void add_preset(const Value& name, std::string_view kind, Layer layer) {
    std::optional<Error> stop;  // set if further checks make no sense
    problems_.collect([&] {
      try {
        // If a framework has its own settings, its preset folders contain these settings and not our keys.
        // For our keys, the presets of the native engine are used.
        const bool own = has_own_settings(result_.framework);
        const Value preset = files_.load_preset(name, kind, own ? "native" : result_.framework, dir_);
        refuse_model_that_needs_more(name, kind, preset);
        add_layer(preset, layer);
      } catch (const Error& error) {
        // Stop if the model is not supported: its settings would only cause more errors about unknown keys.
        if (error.kind() == ErrorKind::kUnsupported &&
            (engine_.empty() || engine_ == "native" || engine_ == "megatron"))
          stop = error;
        throw;
      }
    });
    if (stop) throw *stop;
  }

  // Merges a map of trainer keys over the existing ones, under the keys' canonical names.
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
        // A key may be set under its name and under an alias, as in some of AMD Primus's files. The values
        // must then be equal. If both norm_epsilon and layernorm_epsilon are set, Megatron-LM's models read
        // layernorm_epsilon.
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
        if (member.value.is_null() && !member.value.origin.variable.empty()) {
          const std::string& text = member.value.text;
          result_.warnings.push_back(fmt::format("{}: the environment variable {} is {}, so {} is unset",
                                                 member.origin.location(), member.value.origin.variable,
                                                 text.empty() ? "empty" : "'" + text + "'", member.key));
        }
        renamed.members.push_back({std::string(key->name), member.origin, member.value});
        layers_[std::string(key->name)] = layer;
        names_[std::string(key->name)] = member.key;
      }
    }
    if (framework_ == Framework::kNative) switch_adapters_on(renamed, layer);
    merge(result_.settings, renamed);
  }

  bool is_misplaced_variable(const Member& member) {
    const bool capitals = std::ranges::all_of(
        member.key, [](char c) { return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; });
    if (!capitals || member.key.size() < 4 || !member.value.is_scalar()) return false;
    result_.warnings.push_back(
        fmt::format("{}: {} looks like an environment variable, and is not set here: move it under env:",
                    member.origin.describe(), member.key));
    return true;
  }

 private:
  // Refuses AMD Primus's preset of an unsupported model with one sentence that gives the reason.
  void refuse_model_that_needs_more(const Value& name, std::string_view kind, const Value& preset) const {
    const std::string_view reason = kind == "models" ? reason_without_preset(name.text) : "";
    if (reason.empty()) return;
    const bool known = std::ranges::all_of(preset.members, [](const Member& m) { return find_key(m.key); });
    const Value* type = preset.find("model_type");
    const bool megatron_has_it = known && type && type->text == "mamba";
    // Accepts presets of hybrids, because `spec` in the experiment may choose supported layers.
    if (megatron_has_it && preset.find("is_hybrid_model") && framework_ == Framework::kNative) return;
    if (megatron_has_it && framework_ == Framework::kMegatron) return;
    if (known && (!type || reason_without_preset(type->text).empty())) return;
    throw unsupported(fmt::format("{}: {}", name.show(), reason),
                      megatron_has_it ? "set framework: megatron, which has them, or choose another model"
                                      : "choose another model")
        .at(name.origin.location(), name.origin.snippet(name.width()));
  }

  // Adapter options imply enabled: true, which overrides a preset's lora.enabled. If the user's own file or
  // command line sets enabled: false, adapter options of a later layer are an error.
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
    result_.warnings.push_back(fmt::format(
        "{}: norm_epsilon and layernorm_epsilon differ; Primus uses the second, as Megatron-LM does: {}",
        taken.origin.describe(), taken.show()));
    if (!is_it) return;
    renamed.set("norm_epsilon", second.origin, second.value);
    names_["norm_epsilon"] = second.key;
  }

  FileLoader& files_;
  const std::filesystem::path& dir_;
  std::string& engine_;
  Framework& framework_;
  std::map<std::string, Layer>& layers_;
  std::map<std::string, std::string>& names_;
  Layer& adapters_said_by_;
  Problems& problems_;
  Experiment& result_;
};

}  // namespace

void add_layer(Loading& loading, const Value& values, Layer layer) {
  LayerStack(loading).add_layer(values, layer);
}

void add_preset(Loading& loading, const Value& name, std::string_view kind, Layer layer) {
  LayerStack(loading).add_preset(name, kind, layer);
}

bool is_misplaced_variable(Loading& loading, const Member& member) {
  return LayerStack(loading).is_misplaced_variable(member);
}

}  // namespace primus::config
