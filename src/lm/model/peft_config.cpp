#include "lm/model/peft_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text/excerpt.h"
#include "base/text/suggest.h"
#include "config/lora_settings.h"
#include "lm/model/config_reader.h"
#include "lm/model/language_model.h"
#include "lm/tokenizer/text/regex.h"

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::Parameter;
using nlohmann::json;

constexpr std::string_view kWeight = ".weight";

// Keys without an effect on a trained adapter. These keys describe how the adapter was initialised or saved.
constexpr std::array<std::string_view, 14> kIgnored = {
    "auto_mapping",   "corda_config",      "eva_config",   "inference_mode",   "loftq_config",
    "lora_ga_config", "megatron_core",     "peft_version", "revision",         "task_type",
    "runtime_config", "qalora_group_size", "kasa_config",  "monteclora_config"};
constexpr std::array<std::string_view, 22> kRead = {"peft_type",
                                                    "r",
                                                    "lora_alpha",
                                                    "lora_dropout",
                                                    "lora_bias",
                                                    "use_rslora",
                                                    "use_dora",
                                                    "target_modules",
                                                    "exclude_modules",
                                                    "rank_pattern",
                                                    "alpha_pattern",
                                                    "modules_to_save",
                                                    "layers_pattern",
                                                    "layers_to_transform",
                                                    "bias",
                                                    "fan_in_fan_out",
                                                    "init_lora_weights",
                                                    "base_model_name_or_path",
                                                    "ensure_weight_tying",
                                                    "trainable_token_indices",
                                                    "target_parameters",
                                                    "layer_replication"};

// Returns whether a value turns a feature off.
bool is_off(const json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

std::vector<std::string> texts(const ConfigReader& r, const char* key) {
  const json* const value = r.find(key);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  std::vector<std::string> result;
  for (const json& item : value->is_array() ? *value : json::array({nullptr})) {
    if (!item.is_string()) throw r.bad(key, "must be a list of names");
    result.push_back(item.get<std::string>());
  }
  return result;
}

ModuleNames module_names(const ConfigReader& r, const char* key) {
  const json* const value = r.find(key);
  if (value && value->is_string()) return {{}, value->get<std::string>()};
  return {texts(r, key), {}};
}

template <class Number>
std::vector<std::pair<std::string, Number>> pattern(const ConfigReader& r, const nlohmann::ordered_json& root,
                                                    const char* key, double low, double high) {
  std::vector<std::pair<std::string, Number>> result;
  if (!r.find(key)) return result;
  if (!r.find(key)->is_object()) throw r.bad(key, "must be an object");
  // Keeps the order of the object, because the first pattern that matches is used.
  for (const auto& [name, value] : root.at(key).items()) {
    if (!value.is_number() || value.template get<double>() < low || value.template get<double>() > high)
      throw r.bad(key, fmt::format("must have numbers from {} to {}", low, high));
    result.emplace_back(name, value.template get<Number>());
  }
  return result;
}

void refuse_unsupported(const ConfigReader& r, const json& root) {
  if (const std::string type = r.text_or("peft_type", ""); type != "LORA")
    throw r.not_supported("peft_type", fmt::format(": '{}' is not supported", excerpt(type)), "only LORA is");
  if (r.flag_or("fan_in_fan_out", false))
    throw r.not_supported("fan_in_fan_out", ": true is not supported",
                          "Primus has no model whose matrices are stored as [in, out]");
  if (const json* const init = r.find("init_lora_weights"); init && init->is_string()) {
    const auto name = init->get<std::string>();
    constexpr std::array<std::string_view, 3> kKeepsBase = {"gaussian", "orthogonal", "eva"};
    if (std::ranges::find(kKeepsBase, name) == kKeepsBase.end()) {
      throw r.not_supported(
          "init_lora_weights",
          fmt::format(": '{}' is not supported, because it changes the base weights", excerpt(name)),
          "in PEFT, save_pretrained(..., path_initial_model_for_weight_conversion=...) converts the "
          "adapters");
    }
  }
  for (const char* key :
       {"trainable_token_indices", "target_parameters", "layer_replication", "ensure_weight_tying"}) {
    if (const json* const value = r.find(key); value && !is_off(*value))
      throw r.not_supported(key, " is not supported", "remove the key if the adapters do not need it");
  }
  for (const auto& [key, value] : root.items()) {
    if (std::ranges::find(kIgnored, key) != kIgnored.end() || std::ranges::find(kRead, key) != kRead.end() ||
        is_off(value))
      continue;
    throw r.not_supported(key.c_str(), " is not supported", "remove the key if the adapters do not need it");
  }
}

// A regular expression that must match a complete name.
class NamePattern {
 public:
  explicit NamePattern(const std::string& expression) : regex_("^(?:" + expression + ")$") {}
  // Returns a pattern for names whose end matches. The end begins after a dot, or is the complete name.
  static NamePattern of_end(const std::string& expression) {
    return NamePattern("(?:.*\\.)?(?:" + expression + ")");
  }
  bool matches(std::string_view name) const {
    TextBudget budget(name.size());
    bool found = false;
    regex_.for_each_match(name, budget, [&](std::size_t, std::size_t) { found = true; });
    return found;
  }

 private:
  Regex regex_;
};

bool ends_with_name(std::string_view name, std::string_view end) {
  return name == end || (name.ends_with(end) && name[name.size() - end.size() - 1] == '.');
}

bool is_index(std::string_view part) {
  return !part.empty() && part.size() < 10 &&
         std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
}

// Returns the number after `before`, which ends with a dot: 3 for "model.layers." and
// "model.layers.3.mlp.up_proj".
std::optional<std::int64_t> index_after(std::string_view name, std::size_t before) {
  const std::string_view rest = name.substr(before);
  const std::size_t dot = rest.find('.');
  if (dot == std::string_view::npos || !is_index(rest.substr(0, dot))) return std::nullopt;
  return std::stoll(std::string(rest.substr(0, dot)));
}

class Matcher {
 public:
  explicit Matcher(const PeftConfig& settings) : settings_(settings) {
    if (settings.targets.expression) targets_.emplace(*settings.targets.expression);
    if (settings.excluded.expression) excluded_.emplace(*settings.excluded.expression);
    for (const auto& [expression, rank] : settings.rank_pattern)
      ranks_.push_back(NamePattern::of_end(expression));
    for (const auto& [expression, alpha] : settings.alpha_pattern)
      alphas_.push_back(NamePattern::of_end(expression));
    for (const std::string& name : settings.modules_to_save)
      saved_.emplace_back("(?:|.*\\.)" + name + "(?:$|\\..*)");
    for (const std::string& name : settings.layers_pattern) layers_.push_back(NamePattern::of_end(name));
  }

  bool targets(const std::string& name, bool linear) const {
    const auto listed = [&](const ModuleNames& names, const std::optional<NamePattern>& expression) {
      return expression ? expression->matches(name)
                        : std::ranges::any_of(
                              names.names, [&](const std::string& end) { return ends_with_name(name, end); });
    };
    if (listed(settings_.excluded, excluded_)) return false;
    if (std::ranges::any_of(saved_, [&](const NamePattern& p) { return p.matches(name); })) return false;
    if (settings_.all_linear) return linear;
    if (!listed(settings_.targets, targets_)) return false;
    const std::vector<std::string>& names = settings_.targets.names;
    if (targets_ || !settings_.layers || std::ranges::find(names, name) != names.end()) return true;
    const std::optional<std::int64_t> layer = layer_of(name);
    return layer && std::ranges::find(*settings_.layers, *layer) != settings_.layers->end();
  }

  std::int64_t rank(const std::string& name) const {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].matches(name)) return settings_.rank_pattern[i].second;
    }
    return settings_.r;
  }
  double alpha(const std::string& name) const {
    for (std::size_t i = 0; i < alphas_.size(); ++i) {
      if (alphas_[i].matches(name)) return settings_.alpha_pattern[i].second;
    }
    return settings_.alpha;
  }

  // Returns the first number in a name that follows at least two parts of the name or, if layers_pattern is
  // set, one of its patterns.
  std::optional<std::int64_t> layer_of(const std::string& name) const {
    std::size_t parts = 0;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string before = name.substr(0, dot);
      const auto index = index_after(name, dot + 1);
      const bool follows =
          layers_.empty()
              ? parts > 0
              : std::ranges::any_of(layers_, [&](const NamePattern& p) { return p.matches(before); });
      if (index && follows) return index;
      ++parts;
    }
    return std::nullopt;
  }

 private:
  const PeftConfig& settings_;
  std::optional<NamePattern> targets_, excluded_;
  std::vector<NamePattern> ranks_, alphas_, saved_, layers_;
};

// Returns the names of a module and of the modules that contain it.
std::vector<std::string_view> with_containers(std::string_view module) {
  std::vector<std::string_view> names{module};
  for (std::size_t dot = module.rfind('.'); dot != std::string_view::npos; dot = module.rfind('.'))
    names.push_back(module = module.substr(0, dot));
  return names;
}

std::string_view module_of(std::string_view tensor) { return tensor.substr(0, tensor.rfind('.')); }

// Finds the entries of settings that have no effect on the model's adapters.
class UnusedEntries {
 public:
  // `modules`: names of all modules with weights. `linear`: names of the modules that all-linear adapts.
  // `adapted`: names of the modules with adapters.
  UnusedEntries(const PeftConfig& settings, const std::vector<std::string>& modules,
                const std::vector<std::string>& linear, const std::vector<std::string>& adapted,
                const std::string& where)
      : settings_(settings), modules_(modules), adapted_(adapted), where_(where) {
    for (const std::string& module : linear) {
      const std::string last = module.substr(module.rfind('.') + 1);
      if (std::ranges::find(ends_, last) == ends_.end()) ends_.push_back(last);
    }
  }

  // Throws an error about the first entry that matches nothing.
  void refuse() const {
    for (const auto& [key, names] : {std::pair{"target_modules", &settings_.targets},
                                     std::pair{"exclude_modules", &settings_.excluded}}) {
      for (const std::string& name : names->names) {
        if (std::ranges::none_of(modules_, [&](const std::string& m) { return ends_with_name(m, name); }))
          throw unknown(key, name, "no module of the model");
      }
    }
    if (const auto& text = settings_.excluded.expression; text && !any_match(NamePattern(*text), modules_))
      throw unknown("exclude_modules", *text, "no module of the model");
    for (const auto& [name, rank] : settings_.rank_pattern) require_adapted("rank_pattern", name);
    for (const auto& [name, alpha] : settings_.alpha_pattern) require_adapted("alpha_pattern", name);
    if (!settings_.layers) {
      if (!settings_.layers_pattern.empty())
        throw invalid("layers_pattern has an effect only with layers_to_transform",
                      "omit layers_pattern, or set layers_to_transform")
            .at(where_);
      return;
    }
    if (settings_.all_linear || settings_.targets.expression) {
      throw invalid("layers_to_transform has an effect only with a list of names as target_modules",
                    "name the modules, for example lora.target_modules='[q_proj, v_proj]'")
          .at(where_);
    }
    const Matcher matcher(settings_);
    for (const std::int64_t layer : *settings_.layers) {
      if (std::ranges::none_of(adapted_, [&](const auto& name) { return matcher.layer_of(name) == layer; }))
        throw invalid(
            fmt::format("layers_to_transform names layer {}, in which target_modules matches nothing", layer),
            "layers count from 0; omit this layer")
            .at(where_);
    }
  }

  // Returns the hint for `entry` of `key`, which matches no module.
  std::string hint(std::string_view key, const std::string& entry, bool list) const {
    // A text with several names is meant as a list. A text is a regular expression for complete names.
    const bool plain = std::ranges::all_of(entry, [](unsigned char c) {
      return std::isalnum(c) || c == '_' || c == '.' || c == ',' || c == ' ';
    });
    if (!list && plain) {
      return fmt::format(
          "a text is a regular expression for complete names; write a list of names: lora.{}='[{}]'", key,
          entry);
    }
    const std::vector<std::string_view> candidates(ends_.begin(), ends_.end());
    const std::string near = did_you_mean(entry.substr(entry.rfind('.') + 1), candidates);
    return fmt::format("{}{}linear modules of the model are {}", near, near.empty() ? "" : " ",
                       fmt::join(ends_, ", "));
  }

 private:
  static bool any_match(const NamePattern& pattern, const std::vector<std::string>& names) {
    return std::ranges::any_of(names, [&](const std::string& name) { return pattern.matches(name); });
  }
  Error unknown(std::string_view key, const std::string& entry, std::string_view what) const {
    const bool list = key != "exclude_modules" || !settings_.excluded.expression;
    return invalid(fmt::format("{} names '{}', which matches {}", key, excerpt(entry), what),
                   hint(key, entry, list))
        .at(where_);
  }
  void require_adapted(std::string_view key, const std::string& name) const {
    if (!any_match(NamePattern::of_end(name), adapted_)) throw unknown(key, name, "no module with adapters");
  }

  const PeftConfig& settings_;
  const std::vector<std::string>&modules_, &adapted_;
  const std::string& where_;
  std::vector<std::string> ends_;  // last parts of the names of linear modules
};

// Adds the modules that are trained without adapters.
void add_saved(const PeftConfig& settings, const ModelConfig& model, const engine::ParameterStore& store,
               std::string_view embedding, std::string_view head, const std::string& where,
               MatrixAdapters& result) {
  std::set<std::string> saved;
  for (const std::string& end : settings.modules_to_save) {
    const std::size_t before = saved.size();
    for (const Parameter& p : store.parameters()) {
      for (const CheckpointPart& part : p.parts) {
        const std::string_view module = module_of(part.name);
        const auto names = with_containers(module);
        if (std::ranges::any_of(names, [&](std::string_view name) { return name.ends_with(end); }))
          saved.emplace(module);
      }
    }
    if (model.tied_embeddings &&
        (saved.contains(std::string(module_of(embedding))) || module_of(head).ends_with(end)))
      throw unsupported(
          fmt::format("modules_to_save names '{}', but the embedding and the head of this model are one "
                      "matrix, which Primus does not train separately",
                      excerpt(end)),
          "leave embeddings and head out, or use a model without tied embeddings")
          .at(where);
    if (saved.size() == before)
      throw invalid(fmt::format("modules_to_save names '{}', which the model does not have", excerpt(end)),
                    "name modules of this model, such as embed_tokens, norm and lm_head")
          .at(where);
  }
  result.saved.assign(saved.begin(), saved.end());
}

const char* reason_against(const Parameter& p, std::string_view module, std::string_view embedding,
                           std::string_view head, bool tied) {
  if (p.per_expert) return "Primus has no adapters of single experts' matrices in PEFT's form";
  if (module == embedding)
    return tied ? "the embedding is tied to the head, which would be adapted, too" : nullptr;
  if (module == head) return "Primus has no adapters of the head; modules_to_save can name it";
  if (!p.low_rank.possible) return "Primus has no adapters of this module";
  for (const CheckpointPart& part : p.parts) {
    if (!part.layout.dims.empty()) return "the matrix is stored in another order";
  }
  return nullptr;
}

}  // namespace

PeftConfig read_peft_config(std::string_view text, const std::string& where) {
  const json root = json::parse(text, nullptr, false);
  if (!root.is_object()) throw invalid("the file is not a JSON object").at(where);
  const auto ordered = nlohmann::ordered_json::parse(text, nullptr, false);
  const ConfigReader r(root, where);
  refuse_unsupported(r, root);
  PeftConfig c{.r = r.integer_or("r", 8, 1, config::kMaxLoraDim),
               .alpha = r.positive_or("lora_alpha", 8),
               .dropout = r.number_or("lora_dropout", 0),
               .use_rslora = r.flag_or("use_rslora", false),
               .use_dora = r.flag_or("use_dora", false),
               .lora_bias = r.flag_or("lora_bias", false),
               .base_biases = r.text_or("bias", "none") != "none",
               .targets = module_names(r, "target_modules"),
               .excluded = module_names(r, "exclude_modules"),
               .rank_pattern = pattern<std::int64_t>(r, ordered, "rank_pattern", 1, config::kMaxLoraDim),
               .alpha_pattern = pattern<double>(r, ordered, "alpha_pattern", 1e-6, 1e6),
               .modules_to_save = texts(r, "modules_to_save"),
               .layers_pattern = texts(r, "layers_pattern"),
               .base = r.text_or("base_model_name_or_path", "")};
  if (c.dropout < 0 || static_cast<float>(c.dropout) >= 1)
    throw r.bad("lora_dropout", "must be at least 0 and below 1");
  if (r.find("layers_to_transform")) {
    const json* const layers = r.find("layers_to_transform");
    c.layers = layers->is_array() ? r.integers("layers_to_transform", 0, ConfigReader::kMaxWidth)
                                  : std::vector{r.integer("layers_to_transform", 0, ConfigReader::kMaxWidth)};
    if (c.layers->empty()) c.layers.reset();
  }
  if (std::string name = c.targets.expression.value_or(""); !name.empty()) {
    std::ranges::transform(name, name.begin(),
                           [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
    c.all_linear = name == "all-linear";
  }
  if (c.targets.empty()) throw r.bad("target_modules", "is missing");
  return c;
}

LoraConfig adapters_of(const PeftConfig& settings, const ModelConfig& model, const FamilyRegistry& families,
                       const std::string& where, Entries entries) {
  ModelConfig base = model;
  base.lora = {};
  engine::ParameterStore store;  // only declared, never allocated
  const LanguageModel declared(base, families, store);
  const Family& family = families.find(model.family);
  const std::string_view embedding = module_of(family.embedding), head = module_of(family.head);
  const Matcher matcher(settings);
  LoraConfig lora{
      .dim = settings.r, .alpha = settings.alpha, .kaiming = true, .training = {.dropout = settings.dropout}};
  MatrixAdapters& result = lora.by_matrix;
  result.magnitudes = settings.use_dora;
  result.biases = settings.lora_bias;
  std::vector<std::string> tensors, modules, linears, adapted;
  for (const Parameter& p : store.parameters()) {
    for (const CheckpointPart& part : p.parts) {
      tensors.push_back(part.name);
      if (!part.name.ends_with(kWeight)) continue;
      const std::string module(module_of(part.name));
      modules.push_back(module);
      const bool linear = (p.linear_of >= 0 || p.low_rank.possible) && !p.vocabulary;
      if (linear) linears.push_back(module);
      if (!matcher.targets(module, linear)) continue;
      const char* reason = reason_against(p, module, embedding, head, model.tied_embeddings);
      if (module == embedding && !reason && (settings.use_dora || settings.lora_bias))
        reason = "adapters of embeddings with use_dora or lora_bias are not supported";
      if (reason) {
        throw unsupported(fmt::format("target_modules matches '{}': {}", excerpt(module), reason),
                          "leave the module out of target_modules, or name it in exclude_modules")
            .at(where);
      }
      adapted.push_back(module);
      const std::int64_t rank = matcher.rank(module);
      const double divisor =
          settings.use_rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank);
      const bool table = module == embedding;
      result.matrices.push_back({.name = module,
                                 .dim = rank,
                                 .scale = matcher.alpha(module) / divisor,
                                 .out = table ? model.hidden : part.rows,
                                 .in = table ? model.vocab : p.whole_shape()[1]});
    }
  }
  std::ranges::sort(result.matrices, {}, &MatrixAdapters::Matrix::name);
  const UnusedEntries unused(settings, modules, linears, adapted, where);
  if (entries == Entries::kAllMatch) unused.refuse();
  if (result.matrices.empty()) {
    const std::optional<std::string>& text = settings.targets.expression;
    throw invalid(
        "target_modules matches no module of the model",
        unused.hint("target_modules",
                    text.value_or(settings.targets.names.empty() ? "" : settings.targets.names.front()),
                    !text) +
            "; or set all-linear")
        .at(where);
  }
  const auto has_bias = [&](const std::string& name) { return name.ends_with(".bias"); };
  if (settings.base_biases && std::ranges::any_of(tensors, has_bias)) {
    throw unsupported("bias is not 'none', and the model has biases: training them is not supported",
                      "set bias to none, or name the modules in modules_to_save")
        .at(where);
  }
  add_saved(settings, model, store, family.embedding, family.head, where, result);
  return lora;
}

std::string write_peft_config(const ModelConfig& model, const FamilyRegistry& families,
                              const std::string& base) {
  const LoraConfig& lora = model.lora;
  engine::ParameterStore store;  // only declared, never allocated
  const LanguageModel declared(model, families, store);
  std::vector<MatrixAdapters::Matrix> matrices = lora.by_matrix.matrices;
  for (const Parameter& p : store.parameters()) {
    if (!p.low_rank) continue;
    if (p.per_expert) {
      throw unsupported(
          "the adapters of experts (linear_fc1, linear_fc2) cannot be loaded by PEFT",
          "export the merged model, or train with lora.target_modules=[linear_qkv, linear_proj]");
    }
    for (const CheckpointPart& part : p.parts) {
      if (part.name.ends_with(kWeight))
        matrices.push_back(
            {.name = std::string(module_of(part.name)), .dim = lora.dim, .scale = lora.scale()});
    }
  }
  std::ranges::sort(matrices, {}, &MatrixAdapters::Matrix::name);
  // Lists the complete names, and the ranks and factors that differ from the usual ones.
  nlohmann::ordered_json root{{"peft_type", "LORA"},
                              {"task_type", "CAUSAL_LM"},
                              {"base_model_name_or_path", base.empty() ? json(nullptr) : json(base)},
                              {"bias", "none"},
                              {"inference_mode", true},
                              {"r", lora.dim},
                              {"lora_alpha", lora.alpha},
                              {"lora_dropout", lora.training.dropout},
                              {"use_rslora", false},
                              {"use_dora", lora.by_matrix.magnitudes},
                              {"lora_bias", lora.by_matrix.biases},
                              {"fan_in_fan_out", false},
                              {"init_lora_weights", true}};
  json targets = json::array(), ranks = json::object(), alphas = json::object();
  for (const MatrixAdapters::Matrix& m : matrices) {
    targets.push_back(m.name);
    std::string escaped;
    for (const char c : m.name) escaped += c == '.' ? std::string("\\.") : std::string(1, c);
    if (m.dim != lora.dim) ranks[escaped] = m.dim;
    const double alpha = m.scale * static_cast<double>(m.dim);
    if (alpha != lora.alpha) alphas[escaped] = alpha;
  }
  root["target_modules"] = targets;
  root["rank_pattern"] = ranks;
  root["alpha_pattern"] = alphas;
  root["modules_to_save"] = lora.by_matrix.saved.empty() ? json(nullptr) : json(lora.by_matrix.saved);
  return root.dump(2) + "\n";
}

}  // namespace primus
