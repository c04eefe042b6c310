// DeepSeek-V4 (2026): hyper-connections mix parallel residual streams. Attention is over a window and pooled
// latents. Experts are scored by the square root of a softplus. The first layers choose experts by the token
// id instead. Computes the same results as transformers. transformers has no multi-token prediction, so
// Primus follows AMD Primus here. A multi-token prediction module projects the concatenation of the embedding
// and the last hidden state. The module attends only to a window, and has its own weights for the sum of the
// streams after the block.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/operators/hyper_connection.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"
#include "lm/model/layer_kind.h"
#include "turbo/latent_pooling/latent_pooling.h"

namespace primus {
namespace {

using engine::HyperParameters;
using engine::Initializer;
using engine::Parameter;
using engine::Value;
using Pools = LayerSpec::Pools;

constexpr const char* kDefaults =
    R"({"intermediate_size": 2048, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
  "num_experts_per_tok": 6, "n_routed_experts": 256, "n_shared_experts": 1, "routed_scaling_factor": 1.5,
  "max_position_embeddings": 1048576, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "swiglu_limit": 10.0,
  "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64, "index_head_dim": 128,
  "index_topk": 512, "compress_rope_theta": 160000.0, "num_nextn_predict_layers": 1})";
constexpr const char *kWindow = "sliding_attention", *kSparse = "compressed_sparse_attention",
                     *kHeavy = "heavily_compressed_attention";
constexpr double kMaxScale = 1e6;

// --- config.json

// Reads the kind of each layer: from `layer_types`, or from compress_ratios in the released files. Entries
// beyond the last layer belong to multi-token prediction.
void read_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  AttentionConfig& a = c.attention;
  const nlohmann::json* const rates = r.find("compress_rates");
  if (rates) {
    if (!rates->is_object()) throw r.bad("compress_rates", "must be an object");
    const ConfigReader of(*rates);
    a.pooled.sparse_ratio = of.integer_or(kSparse, a.pooled.sparse_ratio, 1, turbo::PoolingShape::kMaxRatio);
    a.pooled.heavy_ratio = of.integer_or(kHeavy, a.pooled.heavy_ratio, 1, turbo::PoolingShape::kMaxRatio);
  }
  // Reads the same ratios under the keys' older names.
  a.pooled.sparse_ratio =
      r.integer_or("compress_rate_csa", a.pooled.sparse_ratio, 1, turbo::PoolingShape::kMaxRatio);
  a.pooled.heavy_ratio =
      r.integer_or("compress_rate_hca", a.pooled.heavy_ratio, 1, turbo::PoolingShape::kMaxRatio);
  const bool by_type = r.find("layer_types") != nullptr;
  const nlohmann::json* const list = r.find(by_type ? "layer_types" : "compress_ratios");
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    // transformers' default: two heavy layers, then sparse and heavy layers alternate.
    bool sparse = layer >= 2 && layer % 2 == 1, heavy = !sparse;
    if (list) {
      const char* const key = by_type ? "layer_types" : "compress_ratios";
      // Released files also list the layers of multi-token prediction modules.
      const auto entries = list->is_array() ? static_cast<std::int64_t>(list->size()) : 0;
      if (entries != c.layers && (by_type || entries != c.layers + c.mtp.layers))
        throw r.bad(key, fmt::format("must be a list with an entry for each of {} layers", c.layers));
      const nlohmann::json& kind = (*list)[static_cast<std::size_t>(layer)];
      sparse = by_type ? kind == kSparse : kind == 4;
      heavy = by_type ? kind == kHeavy : kind == 128;
      if (!sparse && !heavy && !(by_type ? kind == kWindow : kind == 0))
        throw r.bad(key, "has " + kind.dump() + ", which is not a layer type");
    }
    LayerSpec& spec = c.at(layer);
    spec.attention = &kCompressedAttention;
    spec.local = true;
    spec.pools = sparse ? Pools::kSparse : heavy ? Pools::kHeavy : Pools::kNothing;
  }
}

// Reads the number of layers that choose experts by a table. These layers must be the first ones.
void read_hash_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  const nlohmann::json* const types = r.find("mlp_layer_types");
  if (!types) {
    c.moe.hash_layers = std::min(c.layers, r.integer_or("num_hash_layers", 3, 0, ConfigReader::kMaxWidth));
    return;
  }
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != c.layers)
    throw r.bad("mlp_layer_types",
                fmt::format("must be a list with an entry for each of {} layers", c.layers));
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const nlohmann::json& type = (*types)[static_cast<std::size_t>(layer)];
    const bool hash = type == "hash_moe";
    if (!hash && type != "moe")
      throw r.bad("mlp_layer_types", "has " + type.dump() + ", which is not a layer type");
    if (hash && c.moe.hash_layers < layer)
      throw r.not_supported("mlp_layer_types", " has hash_moe after moe, which is not supported",
                            "put layers with table routing first");
    if (hash) ++c.moe.hash_layers;
  }
}

// Returns whether the rotation settings contain an attention_factor, which may be null.
bool names_attention_factor(const nlohmann::json& json) {
  return std::ranges::any_of(std::array{"rope_scaling", "rope_parameters"}, [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_object() && found->contains("attention_factor");
  });
}

// If rope_parameters has one object per kind of layer, these objects describe the rotation completely
// (read_rope). In other files, pooling layers use compress_rope_theta. YaRN then scales rotations only if the
// file has an attention_factor. As in transformers, null means the factor that YaRN computes from the scaling
// factor.
void read_rotation(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  AttentionConfig& a = c.attention;
  RopeScaling& scaling = c.rope_scaling;
  const bool branches = a.pooled.theta > 0;
  const char* const columns = "qk_rope_head_dim";
  if (!branches) {
    a.pooled.theta = r.positive_or("compress_rope_theta", 160000);
    const bool is_yarn = scaling.kind == RopeScaling::Kind::kYarn;
    if (!is_yarn || scaling.attention_factor || !names_attention_factor(json)) {
      if (is_yarn && !scaling.attention_factor) scaling.attention_factor = 1;
      scaling.mscale = scaling.mscale_all_dim = std::nullopt;
    }
    // Older files give the number of columns instead of partial_rotary_factor.
    if (!r.find("partial_rotary_factor")) {
      const double said = static_cast<double>(r.integer_or(columns, 0, 1, c.head_dim));
      c.rotary_fraction = said > 0 ? said / static_cast<double>(c.head_dim) : 1.0 / 8;
    }
  }
  const std::int64_t rotated = c.rotary_columns();
  if (rotated % 2 != 0 || rotated > a.pooled.index_dim)
    throw r.bad(columns,
                fmt::format("is {}; it must be even, and at most head_dim and index_head_dim", rotated));
  if (r.integer_or(columns, rotated, 1, ConfigReader::kMaxWidth) != rotated)
    throw r.bad(columns,
                fmt::format("differs from the {} columns that partial_rotary_factor selects", rotated));
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "mlp_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "num_key_value_heads", 1);
  refuse_unless(json, "scoring_func", "sqrtsoftplus");
  refuse_unless(json, "topk_method", "noaux_tc");
  refuse_unless(json, "norm_topk_prob", true);
  const ConfigReader r(json);
  const std::int64_t maximum = ConfigReader::kMaxWidth;
  read_layers(json, c);
  AttentionConfig& a = c.attention;
  a.latent.q_rank = r.integer("q_lora_rank", 1, maximum);
  a.window = r.integer("sliding_window", 1, maximum);
  a.pooled.index_heads = r.integer("index_n_heads", 1, maximum);
  a.pooled.index_dim = r.integer("index_head_dim", 1, maximum);
  a.pooled.index_top_k = r.integer("index_topk", 1, maximum);
  a.pooled.out_groups = r.integer("o_groups", 1, maximum);
  a.pooled.out_rank = r.integer("o_lora_rank", 1, maximum);
  if (c.heads % a.pooled.out_groups != 0) throw r.bad("o_groups", "does not divide num_attention_heads");
  read_rotation(json, c);
  c.hyper.streams = r.integer("hc_mult", 2, turbo::HyperShape::kMaxStreams);
  c.hyper.iterations = r.integer("hc_sinkhorn_iters", 1, turbo::HyperShape::kMaxIterations);
  c.hyper.epsilon = r.positive_or("hc_eps", 1e-6);
  read_expert_counts(r, "n_routed_experts", c);
  c.moe.ffn = c.ffn;
  c.moe.shared_ffn = r.integer_or("n_shared_experts", 1, 0, 1024) * c.moe.ffn;
  read_hash_layers(json, c);
  c.moe.choice_bias = true;
  c.moe.router.scoring = turbo::RouterRule::Scoring::kSqrtSoftplus;
  const double scale = r.positive_or("routed_scaling_factor", 1);
  if (scale > kMaxScale) throw r.bad("routed_scaling_factor", "is above 1000000");
  c.moe.router.scale = static_cast<float>(scale);
  c.moe.swiglu_limit = r.positive_or("swiglu_limit", 10);
  c.moe.swiglu_alpha = 1;
  c.moe.swiglu_shift = 0;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  const AttentionConfig& a = c.attention;
  if (c.moe.ffn == 0 || c.moe.shared_ffn % c.moe.ffn != 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "n_shared_experts",
                         fmt::format("'n_shared_experts' would not be an integer, with width {} for one "
                                     "expert and {} for all shared experts",
                                     c.moe.ffn, c.moe.shared_ffn),
                         "set moe_shared_expert_intermediate_size to a multiple of moe_ffn_hidden_size");
  }
  // transformers interprets this key as another name of moe_intermediate_size.
  json.erase("intermediate_size");
  json["attention_bias"] = json["mlp_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["q_lora_rank"] = a.latent.q_rank;
  json["sliding_window"] = a.window;
  json["compress_rope_theta"] = a.pooled.theta;
  json["index_n_heads"] = a.pooled.index_heads;
  json["index_head_dim"] = a.pooled.index_dim;
  json["index_topk"] = a.pooled.index_top_k;
  json["o_groups"] = a.pooled.out_groups;
  json["o_lora_rank"] = a.pooled.out_rank;
  json["compress_rates"] = {{kSparse, a.pooled.sparse_ratio}, {kHeavy, a.pooled.heavy_ratio}};
  json["qk_rope_head_dim"] = c.rotary_dim();
  json["partial_rotary_factor"] = c.rotary_fraction;
  nlohmann::json types = nlohmann::json::array(), mixtures = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const Pools what = c.pools(layer);
    types.push_back(what == Pools::kSparse ? kSparse : what == Pools::kHeavy ? kHeavy : kWindow);
    mixtures.push_back(c.moe.hashed(layer) ? "hash_moe" : "moe");
  }
  json["layer_types"] = types;
  json["mlp_layer_types"] = mixtures;
  json["hc_mult"] = c.hyper.streams;
  json["hc_sinkhorn_iters"] = c.hyper.iterations;
  json["hc_eps"] = c.hyper.epsilon;
  json["n_routed_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["moe_intermediate_size"] = c.moe.ffn;
  json["n_shared_experts"] = c.moe.shared_ffn / c.moe.ffn;
  json["scoring_func"] = "sqrtsoftplus";
  json["norm_topk_prob"] = true;
  json["routed_scaling_factor"] = shortest(c.moe.router.scale);
  json["swiglu_limit"] = c.moe.swiglu_limit;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
  json["num_nextn_predict_layers"] = c.mtp.modules();
  if (a.pooled.theta <= 0) {
    throw ConfigKeyError(ErrorKind::kInvalid, "compress_rope_theta", "compress_rope_theta is not set",
                         "set compress_rope_theta, the RoPE base of layers with pooled latents");
  }
  // Rotation is written separately for each kind of layer. Frequencies are stretched only in pooling layers.
  nlohmann::json pooled = json["rope_parameters"], plain = {{"rope_type", "default"}};
  pooled["rope_theta"] = a.pooled.theta;
  plain["rope_theta"] = c.rope_theta;
  pooled["partial_rotary_factor"] = plain["partial_rotary_factor"] = c.rotary_fraction;
  json["rope_parameters"] = {{"main", plain}, {"compress", pooled}};
  json.erase("rope_scaling");
}

// --- blocks

// Declares the parameters that mix the streams: <published>{fn, base, scale}.
HyperParameters hyper_parameters(engine::ParameterStore& store, int chunk, const std::string& name,
                                 const std::string& published, const turbo::HyperShape& shape,
                                 std::int64_t hidden, double std) {
  const auto add = [&](const std::string& what, Shape of, Initializer start) {
    Parameter& p = declare(store, chunk, name + "." + what, of, start, {{published + what, 0, of[0]}});
    p.full_precision = true;
    return &p;
  };
  return {add("fn", {shape.products(), shape.streams * hidden}, Initializer::normal(std)),
          add("base", {shape.products()}, Initializer::constant(0)),
          add("scale", {shape.scales()}, Initializer::constant(1))};
}

turbo::HyperShape hyper_shape(const ModelConfig& c, std::int64_t iterations) {
  return {.streams = c.hyper.streams,
          .iterations = iterations,
          .eps = static_cast<float>(c.hyper.epsilon),
          .norm_eps = static_cast<float>(c.norm_epsilon)};
}

std::unique_ptr<Layer> experts(const ModelConfig& c, const BlockParameters& p) {
  ExpertParts parts = separate_experts(c, ".ffn.gate.weight", ".ffn.experts", "w1", "w3", "w2");
  parts.choice_bias = ".ffn.gate.bias";
  parts.table = ".ffn.gate.tid2eid";
  parts.shared = ".ffn.shared_experts";
  parts.shared_names = {.gate = "w1", .up = "w3", .down = "w2"};
  return mixture_of_experts(c, p, parts);
}

class HyperBlock final : public Block {
 public:
  HyperBlock(const ModelConfig& c, engine::ParameterStore& store, std::int64_t layer, int chunk)
      : HyperBlock(c, store, BlockParameters(c, store, layer, chunk), chunk) {}

  void forward(engine::Residual& x, const BlockInputs& in) const override {
    engine::BlockScope scope(x, layer_);
    flush(x);
    for (const Branch* branch : {&attention_, &feed_forward_}) {
      const auto [y, mixing] = hyper_read(x.sum, branch->hyper, shape_);
      const Value out = branch->layer->forward(norm(y, branch->norm, epsilon_), in);
      x.sum = hyper_write(x.sum, out, mixing, shape_);
    }
  }

  void end_step(turbo::Context& context, const RoutingStep& step) const override {
    feed_forward_.layer->end_step(context, step);
  }

 private:
  struct Branch {
    HyperParameters hyper;
    Parameter& norm;
    std::unique_ptr<Layer> layer;
  };

  HyperBlock(const ModelConfig& c, engine::ParameterStore& store, const BlockParameters& p, int chunk)
      : layer_(p.layer()),
        epsilon_(c.norm_epsilon),
        shape_(hyper_shape(c, c.hyper.iterations)),
        attention_{mixer(c, store, "attention", "attn", chunk),
                   p.norm(".attention_norm", ".attn_norm.weight"), kCompressedAttention.make(c, p)},
        feed_forward_{mixer(c, store, "ffn", "ffn", chunk), p.norm(".ffn_norm", ".ffn_norm.weight"),
                      experts(c, p)} {}

  HyperParameters mixer(const ModelConfig& c, engine::ParameterStore& store, const std::string& name,
                        const std::string& published, int chunk) const {
    const std::string at = "layers." + std::to_string(layer_);
    return hyper_parameters(store, chunk, at + ".hyper_" + name, "model." + at + ".hc_" + published + "_",
                            shape_, c.hidden, c.init_std);
  }

  std::int64_t layer_;
  double epsilon_;
  turbo::HyperShape shape_;
  Branch attention_, feed_forward_;
};

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  return std::make_unique<HyperBlock>(config, store, layer, chunk);
}

// At the start, each stream is the embedding; at the end, the output is their weighted sum.
class HyperEnds final : public StreamEnds {
 public:
  HyperEnds(const ModelConfig& c, engine::ParameterStore& store, int depth, int chunk)
      : shape_(hyper_shape(c, 0)),
        head_(hyper_parameters(
            store, chunk,
            depth == 0 ? "hyper_head" : "layers." + std::to_string(c.layers + depth - 1) + ".hyper_head",
            depth == 0 ? "model.hc_head.hc_"
                       : "model.layers." + std::to_string(c.layers + depth - 1) + ".hc_head.hc_",
            shape_, c.hidden, c.init_std)) {}

  Value widen(const Value& hidden) const override {
    Value wide = hidden;
    for (std::int64_t i = 1; i < shape_.streams; ++i) wide = concat(wide, hidden);
    return wide;
  }
  Value contract(engine::Residual& x) const override {
    flush(x);
    return hyper_read(x.sum, head_, shape_).y;
  }

 private:
  turbo::HyperShape shape_;
  HyperParameters head_;
};

std::unique_ptr<StreamEnds> make_stream_ends(const ModelConfig& config, engine::ParameterStore& store,
                                             int depth, int chunk) {
  return std::make_unique<HyperEnds>(config, store, depth, chunk);
}

}  // namespace

extern const FamilyEntry kDeepseekV4{[]() -> Family {
  Family family{
      "deepseek_v4",
      "DeepseekV4ForCausalLM",
      read,
      write,
      make_block,
      {{"swiglu", kEither}, {"activation_func_clamp_value", kEither}, {"rotary_interleaved", kEither}},
      kDefaults,
      true};
  family.aliases = {{"num_local_experts", "n_routed_experts"},
                    {"moe_intermediate_size", "intermediate_size"}};
  family.other_keys = {"compress_rate_csa", "compress_rate_hca", "compress_ratios", "expert_dtype",
                       "intermediate_size", "num_hash_layers",   "topk_method"};
  family.head = "head.weight";
  family.rope_by_branch = true;
  family.make_stream_ends = make_stream_ends;
  return family;
}};

}  // namespace primus
