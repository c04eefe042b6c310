#include "lm/model/model_config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "lm/model/config_reader.h"
#include "lm/model/family.h"

namespace primus {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxWidth = ConfigReader::kMaxWidth;

// transformers 5 writes rope_parameters; 4 writes rope_theta and rope_scaling.
void read_rope(const json& root, const std::string& where, ModelConfig& config) {
  const json* object = &root;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto it = root.find(key);
    if (it == root.end() || it->is_null()) continue;
    if (!it->is_object()) throw ConfigReader(root, where).bad(key, "must be an object");
    object = &*it;
    break;
  }
  const ConfigReader common(root, where), rope(*object, where);
  config.rope_theta = rope.positive_or("rope_theta", common.positive_or("rope_theta", 10000));
  const double fraction =
      rope.positive_or("partial_rotary_factor", common.positive_or("partial_rotary_factor", 1));
  if (fraction > 1) throw rope.bad("partial_rotary_factor", "must be at most 1");
  config.rotary_fraction = fraction;
  if (object == &root) return;

  RopeScaling& s = config.rope_scaling;
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return;
  if (type == "linear") {
    s.kind = RopeScaling::Kind::kLinear;
  } else if (type == "llama3") {
    s.kind = RopeScaling::Kind::kLlama3;
  } else if (type == "yarn") {
    s.kind = RopeScaling::Kind::kYarn;
  } else {
    throw unsupported("rope_type '" + type + "' is not supported", "default, linear, llama3 and yarn are")
        .at(where);
  }
  s.factor = rope.positive_or("factor", 1);
  s.original_max_positions = rope.integer_or(
      "original_max_position_embeddings",
      common.integer_or("original_max_position_embeddings", config.max_positions, 1, kMaxWidth), 1,
      kMaxWidth);
  s.low_freq_factor = rope.positive_or("low_freq_factor", 1);
  s.high_freq_factor = rope.positive_or("high_freq_factor", 4);
  if (s.kind == RopeScaling::Kind::kLlama3 && s.high_freq_factor < s.low_freq_factor) {
    throw rope.bad("high_freq_factor", "must not be below low_freq_factor");
  }
  s.beta_fast = rope.positive_or("beta_fast", 32);
  s.beta_slow = rope.positive_or("beta_slow", 1);
  s.attention_factor = rope.optional_number("attention_factor");
  s.mscale = rope.optional_number("mscale");
  s.mscale_all_dim = rope.optional_number("mscale_all_dim");
  s.truncate = rope.flag_or("truncate", true);
}

json rope_json(const ModelConfig& config) {
  const RopeScaling& s = config.rope_scaling;
  json rope = json::object();
  switch (s.kind) {
    case RopeScaling::Kind::kNone:
      rope["rope_type"] = "default";
      break;
    case RopeScaling::Kind::kLinear:
      rope["rope_type"] = "linear";
      rope["factor"] = s.factor;
      break;
    case RopeScaling::Kind::kLlama3:
      rope["rope_type"] = "llama3";
      rope["factor"] = s.factor;
      rope["low_freq_factor"] = s.low_freq_factor;
      rope["high_freq_factor"] = s.high_freq_factor;
      rope["original_max_position_embeddings"] = s.original_max_positions;
      break;
    case RopeScaling::Kind::kYarn:
      rope["rope_type"] = "yarn";
      rope["factor"] = s.factor;
      rope["original_max_position_embeddings"] = s.original_max_positions;
      rope["beta_fast"] = s.beta_fast;
      rope["beta_slow"] = s.beta_slow;
      if (s.attention_factor) rope["attention_factor"] = *s.attention_factor;
      if (s.mscale) rope["mscale"] = *s.mscale;
      if (s.mscale_all_dim) rope["mscale_all_dim"] = *s.mscale_all_dim;
      if (!s.truncate) rope["truncate"] = false;
      break;
  }
  return rope;
}

void check(const ModelConfig& c, const std::string& where) {
  // Each factor was bounded when it was read; sizes further down multiply them.
  constexpr double kMostParameters = 1e14;
  const double h = static_cast<double>(c.hidden),
               projections = static_cast<double>(c.heads + c.kv_heads) * static_cast<double>(c.head_dim) * 2;
  const double parameters =
      static_cast<double>(c.layers + c.mtp.layers) * h * (projections + 3 * static_cast<double>(c.ffn)) +
      2 * h * static_cast<double>(c.vocab);
  if (projections > 4 * static_cast<double>(kMaxWidth) || parameters > kMostParameters) {
    throw invalid(fmt::format("these sizes make {:.3g} parameters, of which attention is {:.3g} wide",
                              parameters, projections),
                  "no model is that large: is the file damaged?")
        .at(where);
  }
  if (c.heads % c.kv_heads != 0) {
    throw invalid("num_attention_heads " + std::to_string(c.heads) +
                  " is not a multiple of num_key_value_heads " + std::to_string(c.kv_heads))
        .at(where);
  }
  if (c.head_dim % 2 != 0) {
    throw invalid("head_dim " + std::to_string(c.head_dim) + " is odd, and rotary positions need pairs")
        .at(where);
  }
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
  }
  return "";
}

ModelConfig read_model_config(std::string_view contents, const std::string& where,
                              const FamilyRegistry& families) {
  json root = json::parse(contents, nullptr, false);
  if (!root.is_object()) {
    throw invalid("this is not a JSON object", "a model folder's config.json describes its architecture")
        .at(where);
  }
  // Models that see images, too, describe their language model in a part of its own.
  if (const auto text = root.find("text_config"); text != root.end() && text->is_object()) {
    root = json(*text);
  }
  const ConfigReader r(root, where);
  ModelConfig c;
  c.family = r.text_or("model_type", "");
  if (c.family.empty()) throw r.bad("model_type", "is missing");
  try {
    const Family& family = families.find(c.family);
    c.layers = r.integer("num_hidden_layers", 1, 100000);
    c.hidden = r.integer("hidden_size", 1, kMaxWidth);
    c.ffn = r.integer("intermediate_size", 1, kMaxWidth);
    c.heads = r.integer("num_attention_heads", 1, kMaxWidth);
    c.kv_heads = r.integer_or("num_key_value_heads", c.heads, 1, kMaxWidth);
    if (!r.find("head_dim") && c.hidden % c.heads != 0) {
      throw r.bad("hidden_size", "is not a multiple of num_attention_heads, and there is no head_dim");
    }
    c.head_dim = r.integer_or("head_dim", c.hidden / c.heads, 1, kMaxWidth);
    c.vocab = r.integer("vocab_size", 1, std::int64_t{1} << 30);
    c.max_positions = r.integer_or("max_position_embeddings", 2048, 1, std::int64_t{1} << 40);
    c.norm_epsilon = r.positive_or("rms_norm_eps", 1e-6);
    c.tied_embeddings = r.flag_or("tie_word_embeddings", false);
    c.init_std = r.number_or("initializer_range", 0.02);
    if (const auto bos = r.ids("bos_token_id"); !bos.empty()) c.bos_id = bos.front();
    c.eos_ids = r.ids("eos_token_id");
    c.mtp.layers = r.integer_or("num_nextn_predict_layers", 0, 0, MtpConfig::kMaxLayers);
    read_rope(root, where, c);
    family.read(root, c);
  } catch (Error& error) {
    if (error.location().empty()) error.at(where);
    throw;
  }
  check(c, where);
  return c;
}

std::string write_model_config(const ModelConfig& c, DType dtype, const FamilyRegistry& families) {
  const Family& family = families.find(c.family);
  json root;
  root["architectures"] = {family.architecture};
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
  if (c.bos_id) root["bos_token_id"] = *c.bos_id;
  if (c.eos_ids.size() == 1) root["eos_token_id"] = c.eos_ids.front();
  if (c.eos_ids.size() > 1) root["eos_token_id"] = c.eos_ids;
  if (c.mtp.modules() > 0) root["num_nextn_predict_layers"] = c.mtp.modules();
  root["use_cache"] = true;
  root["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
  // Both spellings: transformers 4 reads the first two, transformers 5 the third.
  const json rope = rope_json(c);
  root["rope_theta"] = c.rope_theta;
  root["rope_scaling"] = c.rope_scaling.kind == RopeScaling::Kind::kNone ? json() : rope;
  root["rope_parameters"] = rope;
  root["rope_parameters"]["rope_theta"] = c.rope_theta;
  if (c.rotary_fraction != 1) {
    root["partial_rotary_factor"] = root["rope_parameters"]["partial_rotary_factor"] = c.rotary_fraction;
  }
  family.write(c, root);
  return root.dump(2) + "\n";
}

namespace {

// Keys that a query of this layer sees, on average over a sequence: half of it, or its window or chunk.
double keys_per_query(const ModelConfig& c, std::int64_t layer, double s) {
  const AttentionConfig& a = c.attention;
  const double window = static_cast<double>(a.window), chunk = static_cast<double>(a.chunk);
  if (a.local(layer) && a.window > 0 && window < s) return window - window * window / (2 * s);
  if (a.local(layer) && a.chunk > 0 && chunk < s) {
    const double whole = std::floor(s / chunk), rest = s - whole * chunk;
    return (whole * chunk * chunk + rest * rest) / (2 * s);
  }
  return s / 2;
}

}  // namespace

double training_flops(const ModelConfig& c, std::int64_t sequences, std::int64_t length) {
  const double h = static_cast<double>(c.hidden), q = static_cast<double>(c.heads * c.head_dim),
               kv = static_cast<double>(c.kv_heads * c.head_dim), s = static_cast<double>(length);
  double projections = h * (q + 2 * kv) + q * h;
  double width = 2 * q;  // of attention's two products, together, for each key
  if (const LatentConfig& latent = c.attention.latent; latent.kv_rank > 0) {
    const double values = static_cast<double>(c.heads * latent.value_dim),
                 rank = static_cast<double>(latent.kv_rank), q_rank = static_cast<double>(latent.q_rank),
                 up = static_cast<double>(c.heads * latent.nope_dim) + values;
    projections = (latent.q_rank > 0 ? (h + q) * q_rank : h * q) +
                  h * (rank + static_cast<double>(latent.rope_dim)) + rank * up + values * h;
    width = q + values;
  }
  const double dense = 3 * h * static_cast<double>(c.ffn);
  const double routed = 3 * h * static_cast<double>(c.moe.router.top_k * c.moe.ffn + c.moe.shared_ffn);
  const auto ffn = [&](std::int64_t layer) { return c.moe.routed(layer) ? routed : dense; };
  const double head = h * static_cast<double>(c.vocab);
  const auto block = [&](std::int64_t layer) {
    return projections + width * keys_per_query(c, layer, s) + ffn(layer);
  };
  double per_token = head;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) per_token += block(layer);
  // Each module: the joined input's projection, a block like the last one, the head again.
  per_token += static_cast<double>(c.mtp.modules()) * (2 * h * h + block(c.layers - 1) + head);
  return 6 * per_token * static_cast<double>(sequences) * s;
}

}  // namespace primus
