#include "lm/model/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "lm/checkpoint/elements.h"
#include "lm/model/config_keys.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "lm/model/family.h"
#include "lm/model/layer_kind.h"
#include "lm/model/rope_config.h"
#include "lm/model/score_config.h"
#include "lm/model/stored_lora.h"

namespace primus {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxWidth = ConfigReader::kMaxWidth;

// Quantised weights are stored under other tensor names. `primus model import` reads mxfp4, bitsandbytes' 4
// bits, and fp8 with a scale per block of 128 x 128. Other methods are refused here, with a clearer error
// than missing tensors.
void refuse_quantised(const ConfigReader& r) {
  constexpr const char* kKey = "quantization_config";
  const json* const config = r.find(kKey);
  if (!config || config->empty()) return;
  if (!config->is_object()) throw r.bad(kKey, "must be an object");
  const ConfigReader of(*config);
  std::string method = of.text_or("quant_method", "");
  if (method.empty()) method = config->contains("load_in_4bit") ? "bitsandbytes" : "an unknown method";
  const json* const blocks = of.find("weight_block_size");
  const bool four_bits = of.flag_or("load_in_4bit", false) || of.flag_or("_load_in_4bit", false);
  if (method == "bitsandbytes" && four_bits) return;
  if (method == "mxfp4" || (method == "fp8" && (!blocks || *blocks == json({128, 128})))) return;
  if (method == "fp8") method = "fp8 with blocks of " + blocks->dump();
  throw r.not_supported(kKey, ": weights quantised with " + method + " cannot be read",
                        "get the unquantised model, or convert it to bf16 with transformers: "
                        "from_pretrained(...), model.dequantize(), save_pretrained(...)");
}

constexpr const char *kBos = "bos_token_id", *kEos = "eos_token_id", *kPad = "pad_token_id";

void read_token_ids(const ConfigReader& r, const json& root, ModelConfig& c) {
  const auto first = [&](const char* key) {
    const std::vector<std::int64_t> ids = r.ids(key);
    return ids.empty() ? std::nullopt : std::optional(ids.front());
  };
  c.bos_id = first(kBos);
  c.pad_id = first(kPad);
  c.eos_ids = r.ids(kEos);
  for (const char* key : {kBos, kEos, kPad}) {
    if (!root.contains(key)) c.unsaid_ids.emplace_back(key);
  }
}

// Adds a note for special ids outside the vocabulary: no text can contain them.
void note_unreachable_ids(const ModelConfig& c, const std::string& where, std::vector<std::string>& notes) {
  const auto check = [&](const char* key, std::int64_t id) {
    if (id >= 0 && id < c.vocab) return;
    notes.push_back(fmt::format("{}: {} is {}, but the vocabulary has {} tokens, so no text contains it",
                                where, key, id, c.vocab));
  };
  if (c.bos_id) check(kBos, *c.bos_id);
  for (const std::int64_t id : c.eos_ids) check(kEos, id);
}

// Also writes null ids, because transformers replaces an absent key by the id of the family's class.
void write_token_ids(const ModelConfig& c, json& root) {
  const auto id = [](const std::optional<std::int64_t>& value) { return value ? json(*value) : json(); };
  root[kBos] = id(c.bos_id);
  root[kPad] = id(c.pad_id);
  root[kEos] = c.eos_ids.size() > 1 ? json(c.eos_ids) : c.eos_ids.empty() ? json() : json(c.eos_ids.front());
  for (const std::string& key : c.unsaid_ids) {
    if (root[key].is_null()) root.erase(key);
  }
}

using Renamed = std::vector<std::pair<std::string_view, std::string_view>>;

// Renames alias keys to the names that transformers maps them to. Returns the pairs of old and new names.
Renamed rename_aliases(const Family& family, json& root) {
  Renamed renamed;
  for (const auto& [alias, key] : family.aliases) {
    const auto it = root.find(alias);
    if (it == root.end() || it->is_null()) continue;
    root[std::string(key)] = *it;
    root.erase(it);
    renamed.emplace_back(alias, key);
  }
  return renamed;
}

// Lists some keys of a file on one line of a terminal. The keys are untrusted: there may be many keys, and a
// key may contain any bytes.
std::string listed(const std::vector<std::string>& keys) {
  constexpr std::size_t kMaxKeys = 8, kMaxBytes = 64;
  std::string text;
  for (const std::string& key : keys) {
    if (&key - keys.data() == kMaxKeys) return text + fmt::format(" and {} more", keys.size() - kMaxKeys);
    // The key is written as JSON in ASCII, so it has no control characters. Simple keys lose their quotes.
    std::string name = json(key).dump(-1, ' ', true);
    if (name.size() == key.size() + 2) name = key;
    if (name.size() > kMaxBytes) name = name.substr(0, kMaxBytes) + "...";
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

// Adds the defaults of transformers for absent keys. A default that is an object also replaces null.
void add_defaults(const Family& family, json& root) {
  if (family.defaults.empty()) return;
  const json defaults = json::parse(family.defaults);
  for (const auto& [key, value] : defaults.items()) {
    const auto it = root.find(key);
    if (it == root.end() || (value.is_object() && it->is_null())) root[key] = value;
  }
}

// Checks the total size. Each factor was checked against a limit when it was read. Integer products of sizes
// rely on the limits, and so does code that creates an object per tensor.
void check_size(const ModelConfig& c) {
  constexpr double kMaxParameters = 1e14, kWidest = 4 * static_cast<double>(kMaxWidth);
  constexpr double kMaxExperts = 1 << 17;
  const auto refuse = [&](const char* key, const std::string& what) {
    return ConfigKeyError(ErrorKind::kInvalid, key, what,
                          "this exceeds every known model; check the file for damage");
  };
  const LatentConfig& latent = c.attention.latent;
  const double width = static_cast<double>(c.heads) *
                       static_cast<double>(2 * std::max(c.head_dim, latent.nope_dim + latent.value_dim));
  const auto with_modules = [&](auto of_layer) {
    double sum = static_cast<double>(c.mtp.layers) * of_layer(c.layers);
    for (std::int64_t layer = 0; layer < c.layers; ++layer) sum += of_layer(layer);
    return sum;
  };
  const double h = static_cast<double>(c.hidden);
  const double parameters = with_modules([&](std::int64_t layer) {
                              double weights = 0;
                              for (const LayerProduct& p : layer_products(c, layer)) weights += p.held();
                              return weights;
                            }) +
                            2 * h * (static_cast<double>(c.vocab) + static_cast<double>(c.mtp.layers) * h);
  if (width > kWidest || parameters > kMaxParameters) {
    throw refuse("hidden_size",
                 fmt::format("these sizes give {:.3g} parameters, with an attention width of {:.3g}",
                             parameters, width));
  }
  const double experts = with_modules(
      [&](std::int64_t layer) { return c.routed(layer) ? static_cast<double>(c.moe.experts) : 0.0; });
  if (experts > kMaxExperts) {
    throw refuse("num_experts",
                 fmt::format("these layers have {:.0f} experts in total, more than the limit of {:.0f}",
                             experts, kMaxExperts));
  }
  if (static_cast<double>(c.moe.shared_ffn) > kWidest) {
    throw refuse("n_shared_experts", fmt::format("the shared experts are {} wide", c.moe.shared_ffn));
  }
}

// Checks that each branch has a layer kind for this branch, and that mixtures have experts.
void check_layers(const ModelConfig& c) {
  using Branch = LayerKind::Branch;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const LayerSpec& spec = c.spec(layer);
    PRIMUS_CHECK(c.family.c_str(), spec.attention->branch == Branch::kAttention);
    PRIMUS_CHECK(c.family.c_str(), spec.feed_forward->branch == Branch::kFeedForward);
    PRIMUS_CHECK(c.family.c_str(), !spec.feed_forward->routes || c.moe.experts > 0);
  }
}

void check(const ModelConfig& c) {
  check_layers(c);
  check_size(c);
  if (c.moe.experts > 0 && !c.moe.router.fits(c.moe.experts)) {
    throw ConfigKeyError(
        ErrorKind::kUnsupported, "num_experts_per_tok",
        fmt::format("routers cannot choose {} of {} experts from {} of {} groups", c.moe.router.top_k,
                    c.moe.experts, c.moe.router.top_groups, c.moe.router.groups),
        fmt::format("the limits are top-{} of {} experts, from {} groups", turbo::RouterRule::kMaxTopK,
                    turbo::RouterRule::kMaxExperts, turbo::RouterRule::kMaxTopK));
  }
  if (c.heads % c.kv_heads != 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "num_key_value_heads",
                         fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                                     c.heads, c.kv_heads));
  }
  if (c.head_dim % 2 != 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "head_dim",
                         fmt::format("head_dim {} is odd, and rotary positions need pairs", c.head_dim));
  }
  if (c.rotary_columns() == 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "partial_rotary_factor",
                         fmt::format("partial_rotary_factor {} rotates no column of a head_dim of {}",
                                     c.rotary_fraction, c.head_dim));
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kLongrope) {
    const std::int64_t frequencies = c.rotary_dim() / 2;
    for (const auto& [key, list] : {std::pair("short_factor", &c.rope_scaling.short_factor),
                                    {"long_factor", &c.rope_scaling.long_factor}}) {
      if (static_cast<std::int64_t>(list->size()) == frequencies) continue;
      throw ConfigKeyError(ErrorKind::kInvalid, key,
                           fmt::format("'{}' has {} numbers, but heads use {} rotary frequencies", key,
                                       list->size(), frequencies));
    }
  }
  // For an odd number of rotary columns, transformers builds a ramp with too few frequencies and fails.
  if (c.rotary_columns() % 2 != 0 && c.rope_scaling.kind == RopeScaling::Kind::kYarn) {
    throw ConfigKeyError(
        ErrorKind::kUnsupported, "partial_rotary_factor",
        fmt::format("yarn over {} rotary columns, an odd number, is not supported", c.rotary_columns()),
        "choose a partial_rotary_factor that makes an even number of them");
  }
}

// Reads the keys that all families have.
void read_common(const ConfigReader& r, const json& root, ModelConfig& c) {
  refuse_unless(root, "attention_dropout", 0);
  refuse_unless(root, "router_jitter_noise", 0);
  refuse_unless(root, "is_causal", true);
  refuse_unless(root, "per_layer_config", nullptr);
  refuse_unless(root, "pruned_heads", json::object());
  refuse_unless(root, "transformers_weights", nullptr);
  c.layers = r.integer("num_hidden_layers", 1, 10000);
  c.hidden = r.integer("hidden_size", 1, kMaxWidth);
  c.ffn = r.integer("intermediate_size", 1, kMaxWidth);
  c.heads = r.integer("num_attention_heads", 1, kMaxWidth);
  c.kv_heads = r.integer_or("num_key_value_heads", c.heads, 1, kMaxWidth);
  if (!r.find("head_dim") && c.hidden % c.heads != 0) {
    throw r.bad("hidden_size", "is not a multiple of num_attention_heads, and head_dim is missing");
  }
  c.head_dim = r.integer_or("head_dim", c.hidden / c.heads, 1, kMaxWidth);
  c.vocab = r.integer("vocab_size", 1, std::int64_t{1} << 30);
  c.max_positions = r.integer_or("max_position_embeddings", 2048, 1, std::int64_t{1} << 40);
  c.norm_epsilon = r.positive_or("rms_norm_eps", 1e-6);
  if (c.norm_epsilon > 1) throw r.bad("rms_norm_eps", "must be at most 1");
  c.tied_embeddings = r.flag_or("tie_word_embeddings", false);
  c.scores = reads_scores(r, root);
  c.init_std = r.number_or("initializer_range", 0.02);
  if (c.init_std < 0) throw r.bad("initializer_range", "must be 0 or more");
  read_token_ids(r, root, c);
}

constexpr const char *kBalance = "router_aux_loss_coef", *kDeepSeekBalance = "aux_loss_alpha";
constexpr const char *kSequences = "seq_aux", *kRouterZ = "router_z_loss_coef";

// Reads the losses that the routers were trained with. In transformers, output_router_logits enables the
// balance loss. Primus ignores that key, because it describes what a forward pass returns, not how the model
// was trained.
void read_router_losses(const ConfigReader& r, MoeConfig::Training& training) {
  constexpr double kMax = 1e3;  // largest value of moe_aux_loss_coeff
  const auto coefficient = [&](const char* key) {
    const double value = r.number_or(key, 0);
    if (!(value >= 0 && value <= kMax)) throw r.bad(key, fmt::format("must be from 0 to {}", kMax));
    return value;
  };
  training.balance_loss = coefficient(r.find(kBalance) ? kBalance : kDeepSeekBalance);
  training.balance_sequences = r.flag_or(kSequences, false);
  training.z_loss = coefficient(kRouterZ);
}

// Writes the losses of routers. A family whose published files have a key for the balance loss has already
// written this key. For the other families, keys are written only for the losses that are trained.
void write_router_losses(const ModelConfig& c, json& root) {
  const MoeConfig::Training& training = c.moe.training;
  if (c.moe.experts == 0) return;
  if (training.balance_loss != 0) {
    if (!root.contains(kDeepSeekBalance)) root[kBalance] = training.balance_loss;
    if (training.balance_sequences) root[kSequences] = true;
  }
  if (training.z_loss != 0) root[kRouterZ] = training.z_loss;
}

// Returns a note if rope_theta outside rope_parameters (or rope_scaling) differs from rope_theta inside. As
// in transformers, the inner value takes precedence. Empty if the two values are equal.
std::string note_on_theta(const json& root, const Family& family) {
  constexpr const char* kTheta = "rope_theta";
  const auto outside = root.find(kTheta);
  if (family.rope_by_branch || outside == root.end() || !outside->is_number()) return {};
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = root.find(key);
    if (rope == root.end() || !rope->is_object() || rope->empty()) continue;
    const auto inside = rope->find(kTheta);
    if (inside == rope->end() || inside->is_null() || *inside == *outside) return {};
    return fmt::format("rope_theta {} is ignored: {} in the same file has {}", outside->dump(), key,
                       inside->dump());
  }
  return {};
}

// Returns "where:line:column" of the key, or `where` if the file does not have the key exactly once. In the
// file of a multimodal model, only the part about its language model is searched.
std::string place_of_key(std::string_view text, const std::string& where, std::string_view key) {
  const auto next = [text](std::string_view name, std::size_t from) {
    const std::string quoted = fmt::format("\"{}\"", name);
    std::size_t at = text.find(quoted, from);
    for (; at != std::string_view::npos; at = text.find(quoted, at + 1)) {
      const std::size_t after = text.find_first_not_of(" \t\r\n", at + quoted.size());
      if (after != std::string_view::npos && text[after] == ':') break;
    }
    return at;
  };
  const std::size_t part = next("text_config", 0);
  const std::size_t at = next(key, part == std::string_view::npos ? 0 : part);
  if (where.empty() || at == std::string_view::npos || next(key, at + 1) != std::string_view::npos)
    return where;
  const std::string_view before = text.substr(0, at);
  return fmt::format("{}:{}:{}", where, std::ranges::count(before, '\n') + 1,
                     before.size() - (before.rfind('\n') + 1) + 1);
}

std::vector<std::string> keys_that_nobody_knows(const ModelConfig& c, const json& root,
                                                const FamilyRegistry& families) {
  const json written = json::parse(write_model_config(c, DType::kF32, families));
  std::vector<std::string> unknown = unknown_keys(root, written, families.find(c.family));
  for (std::string& name : unused_rope_keys(root, families.find(c.family), c))
    unknown.push_back(std::move(name));
  return unknown;
}

}  // namespace

std::string_view name_of(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::kNone:
      return "none";
    case RopeScaling::Kind::kLinear:
      return "linear";
    case RopeScaling::Kind::kLlama3:
      return "llama3";
    case RopeScaling::Kind::kYarn:
      return "yarn";
    case RopeScaling::Kind::kLongrope:
      return "longrope";
  }
  return "";
}

ModelConfig read_model_config(std::string_view contents, const std::string& where,
                              const FamilyRegistry& families, std::vector<std::string>* notes) {
  json root;
  try {
    root = parse_json_object(contents, where);
  } catch (Error& error) {
    if (error.hint().empty()) error.add_hint("the file is damaged or cut off: copy or download it again");
    throw;
  }
  refuse_quantised(ConfigReader(root, where));
  // Multimodal models describe their language model in text_config.
  if (const auto text = root.find("text_config"); text != root.end() && text->is_object()) {
    json part = *text;
    // A multimodal model may have tie_word_embeddings only in its outer object.
    if (const auto tied = root.find("tie_word_embeddings"); tied != root.end() && !part.contains(tied.key()))
      part[tied.key()] = *tied;
    root = std::move(part);
  }
  const ConfigReader r(root, where);
  ModelConfig c;
  Renamed renamed;
  std::string theta_note, rotation_note;
  c.family = r.text_or("model_type", "");
  if (const json* const lora = r.find(kLoraKey); lora && c.family == kLoraKey && lora->is_object())
    c.family = ConfigReader(*lora, where).text_or("model_type", "");
  if (c.family.empty()) throw r.bad("model_type", "is missing");
  try {
    const Family& family = families.find(c.family);
    c.family = family.model_type;
    renamed = rename_aliases(family, root);
    theta_note = note_on_theta(root, family);  // precedes add_defaults(), because the user did not write the
                                               // defaults
    rotation_note = note_on_two_rotations(root, family);
    if (family.prepare) family.prepare(root);
    add_defaults(family, root);
    read_common(r, root, c);
    c.mtp.layers = r.integer_or("num_nextn_predict_layers", 0, 0, MtpConfig::kMaxLayers);
    read_rope(root, where, family, c);
    c.lora = read_stored_lora(root, where);
    if (c.rotary_fraction != 1 && !family.partial_rotary) {
      throw r.not_supported("partial_rotary_factor",
                            fmt::format(": {} is not supported for this model family", c.rotary_fraction),
                            "only 1 is");
    }
    family.read(root, c);
    if (c.moe.experts > 0) read_router_losses(r, c.moe.training);
    check(c);
  } catch (Error& error) {
    const bool has_place = !error.location().empty() && error.location() != where;
    if (!has_place) error.at(where);
    if (const auto* about = dynamic_cast<const ConfigKeyError*>(&error)) {
      std::string_view name = about->key();
      for (const auto& [alias, key] : renamed) {
        if (about->key() != key) continue;
        error.add_hint(fmt::format("'{}' is '{}' in this file", key, alias));
        name = alias;
      }
      if (!has_place) error.at(place_of_key(contents, where, name));
    }
    throw;
  } catch (const json::exception& error) {  // thrown by an external family that does not check types
    throw invalid(fmt::format("a key of a {} has an unsupported value: {}", c.family, error.what()))
        .at(where);
  }
  if (notes) {
    note_unreachable_ids(c, where, *notes);
    for (const std::string& note : {theta_note, rotation_note}) {
      if (!note.empty()) notes->push_back(fmt::format("{}: {}", where, note));
    }
    const std::vector<std::string> unknown = keys_that_nobody_knows(c, root, families);
    if (!unknown.empty()) {
      const bool one = unknown.size() == 1;
      notes->push_back(fmt::format("{}: {} {} {} unknown to Primus and {} ignored", where,
                                   one ? "key" : "keys", listed(unknown), one ? "is" : "are",
                                   one ? "was" : "were"));
    }
  }
  return c;
}

std::string write_model_config(const ModelConfig& c, DType dtype, const FamilyRegistry& families) {
  const Family& family = families.find(c.family);
  json root;
  if (c.scores) {
    write_scores(family.architecture, root);
  } else {
    root["architectures"] = {family.architecture};
  }
  root["model_type"] = family.model_type;
  root["num_hidden_layers"] = c.layers;
  root["hidden_size"] = c.hidden;
  root["intermediate_size"] = c.ffn;
  root["num_attention_heads"] = c.heads;
  root["num_key_value_heads"] = c.kv_heads;
  root["head_dim"] = c.head_dim;
  root["vocab_size"] = c.vocab;
  root["max_position_embeddings"] = c.max_positions;
  root["rms_norm_eps"] = c.norm_epsilon;
  root["tie_word_embeddings"] = c.tied_embeddings;
  root["initializer_range"] = c.init_std;
  write_token_ids(c, root);
  if (c.mtp.modules() > 0) root["num_nextn_predict_layers"] = c.mtp.modules();
  root["use_cache"] = true;
  root["torch_dtype"] = torch_name(dtype);
  write_rope(c, family, root);
  if (c.lora) write_stored_lora(c.lora, family.model_type, root);
  family.write(c, root);
  write_router_losses(c, root);
  return root.dump(2) + "\n";
}

namespace {

// Returns the number of weights of one layer, either trained or frozen, that each token is multiplied with.
double weights_met(const ModelConfig& c, std::int64_t layer, bool trained = true) {
  double weights = 0;
  for (const LayerProduct& p : layer_products(c, layer)) {
    if (p.trained == trained) weights += p.met();
  }
  return weights;
}

// Returns the average number of multiplications per token that mix the tokens of a sequence of length `s` in
// one layer.
double mixing_products(const ModelConfig& c, std::int64_t layer, double s) {
  const LayerKind& kind = *c.spec(layer).attention;
  return kind.mixing ? kind.mixing(c, layer, s) : 0;
}

// Returns the average number of multiplications per token that select the tokens to attend to, in a sequence
// of length `s`. Selection is not trained.
double selection_products(const ModelConfig& c, std::int64_t layer, double s) {
  const LayerKind& kind = *c.spec(layer).attention;
  return weights_met(c, layer, false) + (kind.selection ? kind.selection(c, s) : 0);
}

// Returns the number of adapter weights of one layer that each token is multiplied with.
double adapter_weights(const ModelConfig& c, std::int64_t layer) {
  double sum = 0;
  for (const LayerProduct& p : layer_products(c, layer)) {
    if (c.lora.has(p.module)) sum += static_cast<double>(p.per_token * (p.out + p.in));
  }
  return static_cast<double>(c.lora.dim) * sum;
}

}  // namespace

double training_flops(const ModelConfig& c, std::int64_t sequences, std::int64_t length) {
  const double h = static_cast<double>(c.hidden), s = static_cast<double>(length);
  const double head = h * static_cast<double>(c.scores ? 1 : c.vocab);
  const auto block = [&](std::int64_t layer) { return weights_met(c, layer) + mixing_products(c, layer, s); };
  double per_token = head, adapters = 0, selection = 0;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    per_token += block(layer);
    adapters += adapter_weights(c, layer);
    selection += selection_products(c, layer, s);
  }
  // Each module of multi-token prediction has the projection of the joined input, a block, and another
  // product with the head.
  const double modules = static_cast<double>(c.mtp.modules());
  per_token += modules * (2 * h * h + block(c.layers) + head);
  selection += modules * selection_products(c, c.layers, s);
  const double tokens = static_cast<double>(sequences) * s;
  if (!c.lora) return (6 * per_token + 2 * selection) * tokens;
  // Frozen weights have no weight gradient, so two thirds of their products remain. All products of attention
  // remain.
  double scores = modules * mixing_products(c, c.layers, s);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) scores += mixing_products(c, layer, s);
  adapters += modules * adapter_weights(c, c.layers);
  for (const MatrixAdapters::Matrix& m : c.lora.by_matrix.matrices)
    adapters += static_cast<double>(m.dim) * static_cast<double>(m.in + m.out);
  return (4 * per_token + 2 * scores + 6 * adapters + 2 * selection) * tokens;
}

}  // namespace primus
