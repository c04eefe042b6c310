#include "lm/model/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/model/config_keys.h"
#include "lm/model/config_reader.h"

namespace primus {
namespace {

using nlohmann::json;
using Kind = RopeScaling::Kind;

constexpr const char *kMain = "main", *kCompress = "compress", *kTheta = "rope_theta",
                     *kPart = "partial_rotary_factor", *kOriginal = "original_max_position_embeddings",
                     *kLocalTheta = "rope_local_base_freq", *kFull = "full_attention",
                     *kLocal = "sliding_attention", *kScaling = "rope_scaling",
                     *kParameters = "rope_parameters";

// Returns the key that describes the rotation, or null if there is none. transformers 4 writes rope_theta and
// rope_scaling; transformers 5 writes rope_parameters. Both versions prefer a non-empty rope_scaling.
const char* rope_key(const json& root) {
  for (const char* key : {kScaling, kParameters}) {
    const auto it = root.find(key);
    if (it != root.end() && !it->empty()) return key;
  }
  return nullptr;
}

bool has_branches(const json& rope, const Family& family) {
  return family.rope_by_branch && rope.contains(kMain) && rope.contains(kCompress);
}

void refuse_nested(const json& rope, const char* key, const ConfigReader& common) {
  for (const auto& [name, value] : rope.items()) {
    if (!value.is_object()) continue;
    throw common.not_supported(
        key, fmt::format(" contains '{}': rotations per layer type are not supported", name),
        "use one rotation for all layers");
  }
}

std::string type_of(const ConfigReader& rope) {
  return rope.text_or("rope_type", rope.text_or("type", "default"));
}

Kind kind_of(const std::string& type) {
  for (const Kind kind : {Kind::kLinear, Kind::kLlama3, Kind::kYarn, Kind::kLongrope}) {
    if (name_of(kind) == type) return kind;
  }
  if (type == "su") return Kind::kLongrope;  // name used in the first Phi-3 files
  throw ConfigKeyError(ErrorKind::kUnsupported, "rope_type",
                       "rope_type '" + printable(type) + "' is not supported",
                       "choose default, linear, llama3, yarn or longrope");
}

// Reads longrope's frequency divisors. The number of divisors is checked later, when all sizes are known.
std::vector<double> read_divisors(const json& object, const ConfigReader& rope, const char* key) {
  const auto it = object.find(key);
  std::vector<double> divisors;
  for (const json& value : it != object.end() && it->is_array() ? *it : json::array()) {
    if (!value.is_number() || !(value.get<double>() > 0)) throw rope.bad(key, "must have positive numbers");
    divisors.push_back(value.get<double>());
  }
  return divisors;
}

// Reads the scaling of rotary frequencies. `original`: the context length of pre-training, if a key outside
// the object sets it.
void read_scaling(const json& object, const ConfigReader& rope, const char* key,
                  const std::optional<std::int64_t>& original, ModelConfig& config) {
  const std::string type = type_of(rope);
  if (type == "default") return;
  RopeScaling& s = config.rope_scaling;
  s.kind = kind_of(type);
  s.original_max_positions =
      original ? *original : rope.integer_or(kOriginal, config.max_positions, 1, ConfigReader::kMaxWidth);
  const auto factor = object.find("factor");
  const bool by_context = s.kind == Kind::kYarn || s.kind == Kind::kLongrope;
  if (factor == object.end() && s.kind != Kind::kLongrope)
    throw rope.bad("factor", fmt::format("is missing in '{}'", key));
  if (factor != object.end() && factor->is_null() && !by_context)
    throw rope.bad("factor", "must be a number");
  s.factor = rope.positive_or(
      "factor", static_cast<double>(config.max_positions) / static_cast<double>(s.original_max_positions));
  for (const char* const needed : {"low_freq_factor", "high_freq_factor"}) {
    if (s.kind == Kind::kLlama3 && !rope.find(needed))
      throw rope.bad(needed, fmt::format("is missing in '{}', which llama3 needs", key));
  }
  s.low_freq_factor = rope.positive_or("low_freq_factor", 1);
  s.high_freq_factor = rope.positive_or("high_freq_factor", 4);
  if (s.kind == Kind::kLlama3 && s.high_freq_factor < s.low_freq_factor) {
    throw rope.bad("high_freq_factor", "must not be below low_freq_factor");
  }
  s.beta_fast = rope.positive_or("beta_fast", 32);
  s.beta_slow = rope.positive_or("beta_slow", 1);
  s.attention_factor = rope.optional_number("attention_factor");
  s.mscale = rope.optional_number("mscale");
  s.mscale_all_dim = rope.optional_number("mscale_all_dim");
  s.truncate = rope.flag_or("truncate", true);
  if (s.kind != Kind::kLongrope) return;
  s.short_factor = read_divisors(object, rope, "short_factor");
  s.long_factor = read_divisors(object, rope, "long_factor");
}

double fraction_of(const ConfigReader& rope, double otherwise) {
  const double fraction = rope.positive_or(kPart, otherwise);
  if (fraction > 1) throw rope.bad(kPart, "must be at most 1");
  return fraction;
}

// Reads the rotary settings of the objects "main" and "compress". As in transformers, a few keys next to
// these objects are the defaults for keys that an object omits.
void read_branches(const json& rope, const char* key, const std::string& where, const ConfigReader& common,
                   ModelConfig& config) {
  const json &main = rope.at(kMain), &compress = rope.at(kCompress);
  if (!main.is_object() || !compress.is_object()) throw common.bad(key, "must have objects for its branches");
  refuse_nested(main, key, common);
  refuse_nested(compress, key, common);
  const ConfigReader plain(main, where), pooled(compress, where);
  const double theta = common.positive_or(kTheta, 10000);
  config.rope_theta = plain.positive_or(kTheta, theta);
  config.attention.pooled.theta = pooled.positive_or(kTheta, theta);
  const std::optional<double> flat = common.optional_number(kPart);
  for (const ConfigReader* branch : {&plain, &pooled}) {
    if (!branch->find(kPart) && !flat)
      throw branch->bad(kPart, fmt::format("is missing both in a branch of '{}' and next to it", key));
  }
  config.rotary_fraction = fraction_of(plain, flat.value_or(1));
  if (fraction_of(pooled, flat.value_or(1)) != config.rotary_fraction)
    throw common.not_supported(kPart, " differs between the branches of rope_parameters",
                               "all layers must rotate the same number of columns");
  if (const std::string type = type_of(plain); type != "default") {
    throw ConfigKeyError(ErrorKind::kUnsupported, "rope_type",
                         fmt::format("rope_type '{}' of '{}.main' is not supported", printable(type), key),
                         "layers without pooled latents rotate by 'default'");
  }
  read_scaling(compress, pooled, key, std::nullopt, config);
}

// The objects of rope_parameters for full attention and for layers with a window. As in transformers,
// rope_scaling overrides the object for full attention.
struct LayerTypes {
  json full = json::object(), local = json::object();
};

LayerTypes layer_types(const ConfigReader& common) {
  LayerTypes types;
  if (const json* const parameters = common.find(kParameters); parameters && !parameters->empty()) {
    if (!parameters->is_object()) throw common.bad(kParameters, "must be an object");
    for (const auto& [name, value] : parameters->items()) {
      if (!value.is_object() && !value.is_null())
        throw common.bad(kParameters,
                         fmt::format("must have an object for each layer type: {} and {}", kFull, kLocal));
    }
    for (const auto& [key, object] : {std::pair(kFull, &types.full), {kLocal, &types.local}}) {
      const auto it = parameters->find(key);
      if (it != parameters->end() && it->is_object()) *object = *it;
    }
  }
  if (const json* const scaling = common.find(kScaling); scaling && !scaling->empty()) {
    if (!scaling->is_object()) throw common.bad(kScaling, "must be an object");
    types.full.update(*scaling);
  }
  refuse_nested(types.full, kParameters, common);
  refuse_nested(types.local, kParameters, common);
  return types;
}

void read_by_layer_type(const std::string& where, const ConfigReader& common, ModelConfig& config) {
  constexpr double kDefaultTheta = 1e6, kDefaultLocal = 1e4;
  const LayerTypes types = layer_types(common);
  const ConfigReader full(types.full, where), local(types.local, where);
  config.rope_theta = full.positive_or(kTheta, common.positive_or(kTheta, kDefaultTheta));
  const double theta = local.positive_or(kTheta, common.positive_or(kLocalTheta, kDefaultLocal));
  read_scaling(types.full, full, kParameters, std::nullopt, config);
  if (const std::string type = type_of(local); type != "default") {
    throw ConfigKeyError(
        ErrorKind::kUnsupported, "rope_type",
        fmt::format("rope_type '{}' of '{}.{}' is not supported", printable(type), kParameters, kLocal),
        "layers with a window rotate by 'default'");
  }
  const double flat = common.positive_or(kPart, 1);
  config.rotary_fraction = fraction_of(full, flat);
  if (fraction_of(local, flat) != config.rotary_fraction)
    throw common.not_supported(kPart, " differs between layer types",
                               "all layers must rotate the same number of columns");
  const bool alike = theta == config.rope_theta && config.rope_scaling.kind == Kind::kNone;
  config.attention.local_theta = alike ? 0 : theta;
}

// Returns the value of `key` in one object that describes a rotation. Some keys may have another name, stand
// next to the object, or be absent.
json rope_value(const json& root, const json& rope, const std::string& key) {
  const auto in = [](const json& object, const std::string& name) {
    const auto found = object.find(name);
    return found == object.end() ? json() : *found;
  };
  if (key == "rope_type") {
    const json type = in(rope, "rope_type").is_null() ? in(rope, "type") : in(rope, "rope_type");
    return type.is_null() ? json("default") : type;
  }
  const bool may_be_outside = key == kTheta || key == kPart || key == kOriginal;
  const json value = in(rope, key);
  return value.is_null() && may_be_outside ? in(root, key) : value;
}

json scaling_json(const ModelConfig& config) {
  const RopeScaling& s = config.rope_scaling;
  if (s.kind == Kind::kNone) return {{"rope_type", "default"}};
  json rope = {{"rope_type", name_of(s.kind)}, {"factor", s.factor}};
  if (s.kind != Kind::kLinear) rope[kOriginal] = s.original_max_positions;
  if (s.kind == Kind::kLlama3) {
    rope["low_freq_factor"] = s.low_freq_factor;
    rope["high_freq_factor"] = s.high_freq_factor;
  }
  if (s.kind == Kind::kYarn) {
    rope["beta_fast"] = s.beta_fast;
    rope["beta_slow"] = s.beta_slow;
    if (s.attention_factor) rope["attention_factor"] = *s.attention_factor;
    if (s.mscale) rope["mscale"] = *s.mscale;
    if (s.mscale_all_dim) rope["mscale_all_dim"] = *s.mscale_all_dim;
    if (!s.truncate) rope["truncate"] = false;
  }
  if (s.kind == Kind::kLongrope) {
    rope["short_factor"] = s.short_factor;
    rope["long_factor"] = s.long_factor;
    if (s.attention_factor) rope["attention_factor"] = *s.attention_factor;
  }
  return rope;
}

}  // namespace

void read_rope(const json& root, const std::string& where, const Family& family, ModelConfig& config) {
  const ConfigReader common(root, where);
  if (family.rope_by_layer_type) {
    read_by_layer_type(where, common, config);
    return;
  }
  const char* const key = rope_key(root);
  const json& object = key ? root.at(key) : root;
  if (!object.is_object()) throw common.bad(key, "must be an object");
  if (key && has_branches(object, family)) {
    read_branches(object, key, where, common, config);
    return;
  }
  if (key) refuse_nested(object, key, common);
  const ConfigReader rope(object, where);
  const double theta = common.positive_or(kTheta, 10000);
  // With rope_by_branch, this object describes only the rotation with stretched frequencies. The base in this
  // object therefore does not apply to the other rotation.
  config.rope_theta = family.rope_by_branch ? theta : rope.positive_or(kTheta, theta);
  const double flat = common.positive_or(kPart, 1);
  config.rotary_fraction = family.rope_by_branch ? fraction_of(common, 1) : fraction_of(rope, flat);
  if (!key) return;
  // As in transformers, the key outside the object takes precedence.
  std::optional<std::int64_t> original;
  if (common.find(kOriginal)) original = common.integer(kOriginal, 1, ConfigReader::kMaxWidth);
  read_scaling(object, rope, key, original, config);
}

void write_rope(const ModelConfig& config, const Family& family, json& root) {
  // Writes both spellings: transformers 4 reads the first two keys, transformers 5 reads the third.
  const json rope = scaling_json(config);
  root[kTheta] = config.rope_theta;
  root[kScaling] = config.rope_scaling.kind == Kind::kNone ? json() : rope;
  root[kParameters] = rope;
  root[kParameters][kTheta] = config.rope_theta;
  if (config.rotary_fraction != 1) root[kPart] = root[kParameters][kPart] = config.rotary_fraction;
  if (!family.rope_by_layer_type) return;
  const double local = config.attention.local_theta;
  root[kLocalTheta] = local > 0 ? local : config.rope_theta;
  json full = std::move(root[kParameters]);
  root[kParameters] = {{kFull, std::move(full)},
                       {kLocal, {{"rope_type", "default"}, {kTheta, root[kLocalTheta]}}}};
}

std::string note_on_two_rotations(const json& root, const Family& family) {
  const auto scaling = root.find(kScaling), parameters = root.find(kParameters);
  for (const auto& object : {scaling, parameters}) {
    if (object == root.end() || !object->is_object() || object->empty()) return {};
  }
  std::string place = kParameters;
  const json* replaced = &*parameters;
  if (family.rope_by_layer_type) {
    // rope_scaling may replace single values of one layer type.
    if (!parameters->contains(kFull) || !parameters->at(kFull).is_object()) return {};
    replaced = &parameters->at(kFull);
    place += fmt::format(".{}", kFull);
  }
  std::set<std::string> keys;
  const auto compare = [&](const std::string& key) {
    if (rope_value(root, *scaling, key) != rope_value(root, *replaced, key)) keys.insert(key);
  };
  for (const auto& [name, value] : replaced->items()) {
    if (!family.rope_by_layer_type || scaling->contains(name)) compare(name == "type" ? "rope_type" : name);
  }
  if (!family.rope_by_layer_type) compare("rope_type");  // an object without a type means "default"
  if (keys.empty()) return {};
  return fmt::format("{} of {} {} ignored: rope_scaling in the same file differs and takes precedence",
                     fmt::join(keys, ", "), place, keys.size() == 1 ? "is" : "are");
}

std::vector<std::string> unused_rope_keys(const json& root, const Family& family, const ModelConfig& config) {
  const char* const key = rope_key(root);
  if (!key) return {};
  const json& rope = root.at(key);
  std::vector<std::string> unused;
  const auto add = [&](const json& object, const std::string& prefix, Kind kind) {
    for (const std::string& name : unknown_rope_keys(object, kind)) {
      if (std::ranges::find(family.other_rope_keys, name) == family.other_rope_keys.end())
        unused.push_back(prefix + "." + name);
    }
  };
  if (family.rope_by_layer_type) {
    if (root.contains(kScaling) && root.at(kScaling).is_object())
      add(root.at(kScaling), kScaling, config.rope_scaling.kind);
    if (!root.contains(kParameters) || !root.at(kParameters).is_object()) return unused;
    for (const auto& [name, value] : root.at(kParameters).items()) {
      const std::string at = fmt::format("{}.{}", kParameters, name);
      if (name != kFull && name != kLocal) unused.push_back(at);
      if (value.is_object()) add(value, at, name == kFull ? config.rope_scaling.kind : Kind::kNone);
    }
    return unused;
  }
  if (!has_branches(rope, family)) {
    add(rope, key, config.rope_scaling.kind);
    return unused;
  }
  for (const auto& [name, value] : rope.items()) {
    if (name != kMain && name != kCompress && !value.is_null())
      unused.push_back(fmt::format("{}.{}", key, name));
  }
  add(rope.at(kMain), fmt::format("{}.{}", key, kMain), Kind::kNone);
  add(rope.at(kCompress), fmt::format("{}.{}", key, kCompress), config.rope_scaling.kind);
  return unused;
}

}  // namespace primus
