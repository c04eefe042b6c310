// From an experiment's settings to a model. Settings that are a field of the model, one for one, come from
// the table in model_fields.def; what is here is the rest. What the family decides is read from its own
// config.json: the settings are written as one and read back, so that an experiment cannot describe a model
// that a checkpoint of the family could not hold.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "config/experiment.h"
#include "config/keys.h"
#include "config/lora_settings.h"
#include "config/stages.h"
#include "lm/model/config_reader.h"
#include "lm/model/family.h"
#include "lm/model/family_switches.h"
#include "lm/model/key_conditions.h"
#include "lm/model/layer_pattern.h"
#include "lm/model/model_config.h"
#include "lm/model/model_fields.h"
#include "lm/model/setting_names.h"

namespace primus {
namespace {

using turbo::RouterRule;
using Layers = std::vector<std::int64_t>;

// Megatron-LM's switches for what model_type says already, and what they are in most families.
constexpr std::array<FamilySwitch, 14> kSwitches = {{{"multi_latent_attention", "false"},
                                                     {"add_qkv_bias", "false"},
                                                     {"add_bias_linear", "false"},
                                                     {"qk_layernorm", "false"},
                                                     {"swiglu", "true"},
                                                     {"quick_geglu", "false"},
                                                     {"activation_func_clamp_value", ""},
                                                     {"glu_linear_offset", "0"},
                                                     {"softmax_type", "vanilla"},
                                                     {"rotary_interleaved", "false"},
                                                     {"apply_layernorm_1p", "false"},
                                                     {"attention_output_gate", "false"},
                                                     {"experimental_attention_variant", ""},
                                                     {"moe_shared_expert_gate", "false"}}};

constexpr const char* kOwnFamily = "primus_gpt";
constexpr std::string_view kConvolution = "conv";                         // in lfm_layer_types
constexpr const char *kGatedDelta = "gated_delta_net", *kSparse = "dsa";  // experimental_attention_variant

class Settings {
 public:
  Settings(const config::Experiment& experiment, const FamilyRegistry& families,
           std::vector<std::string>* warnings)
      : experiment_(experiment), t_(experiment.trainer), families_(families), warnings_(warnings) {}

  ModelConfig model(std::optional<std::int64_t> vocab) {
    const Family& family = this->family();
    switches(family);
    ModelConfig c = common(vocab);
    c.family = family.model_type;
    rope(c);
    if (t_.multi_latent_attention || always_latent(family)) latent(c);
    convolutions(c);
    linear_attention(c);
    local_attention(c);
    experts(c);
    compressed(c);
    ModelConfig read = as_the_family_has_it(c);
    agree(read, c);
    without_effect(read);
    read.moe.training = training(read);
    read.mtp = {.layers = t_.mtp_num_layers.value_or(0),
                .enabled = t_.mtp_num_layers.value_or(0) > 0,
                .training = {.loss_scale = t_.mtp_loss_scaling_factor}};
    return read;
  }

 private:
  const Family& family() const {
    try {
      return families_.find(family_name());
    } catch (const Error& error) {
      throw experiment_.error_for("model_type", error.what(), error.hint());
    }
  }

  // The family that the settings mean. Megatron-LM's own presets say gpt of everything; then the parts
  // decide.
  std::string family_name() const {
    const bool deepseek = t_.model_type == "deepseek_v2" || t_.model_type == "deepseek_v3";
    if (deepseek && !t_.multi_latent_attention && is_set("multi_latent_attention")) {
      warn_of_own_family(
          fmt::format("{} with multi_latent_attention: false has ordinary attention", t_.model_type),
          "multi_latent_attention");
      return kOwnFamily;
    }
    if (t_.model_type != "gpt") return t_.model_type;
    if (t_.experimental_attention_variant == kGatedDelta) return gated_delta_family();
    if (t_.experimental_attention_variant == kSparse) return "deepseek_v32";
    const bool sigmoid = t_.moe_router_score_function == "sigmoid";
    const bool head_norms = t_.qk_layernorm.value_or(false), biases = t_.add_qkv_bias.value_or(false);
    const bool sinks = has_sinks();
    const bool caps = t_.final_logit_softcapping.value_or(0) > 0 ||
                      (t_.num_experts && t_.router_logit_softcapping.value_or(0) > 0);
    if (t_.multi_latent_attention) return sigmoid ? "deepseek_v3" : "deepseek_v2";
    std::string name = kOwnFamily;
    const bool part = t_.rotary_percent != 1;
    const bool plain_experts =
        !t_.moe_shared_expert_intermediate_size && t_.moe_router_num_groups.value_or(1) == 1;
    if (std::ranges::find(t_.lfm_layer_types, kConvolution) != t_.lfm_layer_types.end()) {
      const bool alike = head_norms && !biases && !sinks && !caps && !part && t_.window_size.empty();
      if (alike && !t_.num_experts) name = "lfm2";
      if (alike && t_.num_experts && sigmoid && plain_experts) name = "lfm2_moe";
    } else if (!sinks && !caps && !part && !t_.num_experts && !(head_norms && biases)) {
      name = head_norms ? "qwen3" : biases ? "qwen2" : "llama";
      if (!t_.window_size.empty()) name = kOwnFamily;
    } else if (t_.num_experts && !sinks && !caps && !part && !biases && !sigmoid && t_.window_size.empty() &&
               !t_.moe_router_pre_softmax.value_or(false) && plain_experts &&
               !t_.moe_router_enable_expert_bias.value_or(false) &&
               t_.moe_router_topk_scaling_factor.value_or(1) == 1) {
      const bool alike = t_.moe_ffn_hidden_size.value_or(t_.ffn_hidden_size) == t_.ffn_hidden_size;
      if (head_norms) name = "qwen3_moe";
      if (!head_norms && alike && t_.moe_layer_freq.empty()) name = "mixtral";
    }
    if (name == kOwnFamily) warn_of_own_family("no published architecture has these parts", "model_type");
    return name;
  }

  // Qwen's are the only ones that are published, with all of these parts: what Megatron-LM would train
  // without one of them is none of them.
  std::string gated_delta_family() const {
    std::vector<std::pair<const char*, bool>> parts = {
        {"qk_layernorm", t_.qk_layernorm.value_or(false)},
        {"attention_output_gate", t_.attention_output_gate.value_or(false)},
        {"apply_layernorm_1p", t_.apply_layernorm_1p.value_or(false)}};
    if (t_.num_experts)
      parts.emplace_back("moe_shared_expert_gate", t_.moe_shared_expert_gate.value_or(false));
    for (const auto& [key, said] : parts) {
      if (said) continue;
      throw experiment_.error_for(is_set(key) ? key : "experimental_attention_variant",
                                  fmt::format("no model family has gated delta networks without {}", key),
                                  fmt::format("set {}: true", key));
    }
    if (!t_.num_experts) return "qwen3_5_text";
    const bool all_routed = t_.moe_layer_freq.empty() || t_.moe_layer_freq == std::vector<std::string>{"1"};
    return all_routed ? "qwen3_5_moe_text" : "qwen3_next";
  }

  bool has_sinks() const { return t_.use_sink_attention || t_.softmax_type == "learnable"; }

  void warn_of_own_family(const std::string& reason, std::string_view key) const {
    if (!warnings_) return;
    warnings_->push_back(fmt::format(
        "{}: {}: it is trained and saved as model_type {}, which Primus reads and transformers does not",
        experiment_.provenance_of(key).describe(), reason, kOwnFamily));
  }

  bool is_set(std::string_view key) const {
    return experiment_.provenance_of(key).layer > config::Layer::kDerived;
  }

  Error differs(std::string_view key, std::string_view has) const {
    return experiment_.error_for(is_set(key) ? key : "model_type",
                                 fmt::format("model_type {} has {}: {}", t_.model_type, key, has),
                                 is_set(key) ? fmt::format("leave {} out, or choose another model_type", key)
                                             : fmt::format("set {} so, or choose another model_type", key));
  }

  // The switches may say what the family says, no more.
  void switches(const Family& family) const {
    for (const auto& [name, has] : switches_of(family)) {
      const config::KeySpec* key = config::find_key(name);
      const config::Value said = config::current_value(*key, t_);
      if (said.is_null() || said.text == has || has == kEither) continue;
      throw differs(name, has.empty() ? "null" : has);
    }
    if (t_.softmax_type == "off-by-one") throw differs("softmax_type", "vanilla or learnable");
    const bool can_have_sinks = leaves_open(family, "softmax_type") ||
                                std::ranges::any_of(family.switches, [](const FamilySwitch& own) {
                                  return own.key == "softmax_type" && own.value == "learnable";
                                });
    if (t_.use_sink_attention && !can_have_sinks) throw differs("use_sink_attention", "no sinks");
  }

  // Whether the family has no one answer to a switch.
  static bool leaves_open(const Family& family, std::string_view key) {
    return std::ranges::any_of(
        family.switches, [&](const FamilySwitch& own) { return own.key == key && own.value == kEither; });
  }

  // Kimi's have latent attention whatever the switch says, which Primus's presets set to false.
  static bool always_latent(const Family& family) { return leaves_open(family, "multi_latent_attention"); }

  // What the settings say of the fields of these parts.
  void take(std::initializer_list<ModelPart> parts, ModelConfig& c) const {
    for_each_model_field([&](const auto& field) {
      if (std::ranges::find(parts, field.part) != parts.end()) field.read(t_, c);
    });
  }

  ModelConfig common(std::optional<std::int64_t> vocab) const {
    const std::optional<std::int64_t> size = t_.vocab_size ? t_.vocab_size : vocab;
    if (!size) {
      throw invalid("the size of the vocabulary is not known",
                    "set vocab_size, or tokenizer_type and tokenizer_model");
    }
    ModelConfig c;
    take({ModelPart::kModel, ModelPart::kAttention, ModelPart::kIndexer}, c);
    c.vocab = t_.padded_vocab_size(*size);
    c.tied_embeddings = !t_.untie_embeddings_and_output_weights;
    return c;
  }

  void rope(ModelConfig& c) const {
    RopeScaling& s = c.rope_scaling;
    s.kind = t_.rope_scaling_type == "llama3"     ? RopeScaling::Kind::kLlama3
             : t_.rope_scaling_type == "linear"   ? RopeScaling::Kind::kLinear
             : t_.rope_scaling_type == "yarn"     ? RopeScaling::Kind::kYarn
             : t_.rope_scaling_type == "longrope" ? RopeScaling::Kind::kLongrope
                                                  : RopeScaling::Kind::kNone;
    if (s.kind == RopeScaling::Kind::kNone) return;
    const bool latents = t_.multi_latent_attention || !t_.compress_ratios.empty();
    s.factor = latents ? t_.rotary_scaling_factor : t_.rope_scaling_factor;
    take({ModelPart::kRope}, c);
    if (s.kind != RopeScaling::Kind::kLongrope) return;
    s.short_factor = divisors("rope_short_factor", t_.rope_short_factor);
    s.long_factor = divisors("rope_long_factor", t_.rope_long_factor);
  }

  std::vector<double> divisors(std::string_view key, const std::vector<std::string>& words) const {
    std::vector<double> numbers;
    for (const std::string& word : words) {
      double number = 0;
      const char* const end = word.data() + word.size();
      const auto [stop, error] = std::from_chars(word.data(), end, number);
      if (error != std::errc() || stop != end || !(number > 0)) {
        throw experiment_.error_for(key, fmt::format("{} has '{}'", key, word),
                                    "write a list of positive numbers, one for each rotary frequency");
      }
      numbers.push_back(number);
    }
    return numbers;
  }

  void latent(ModelConfig& c) const {
    take({ModelPart::kLatent}, c);
    c.kv_heads = c.heads;
    c.head_dim = t_.qk_head_dim + t_.qk_pos_emb_head_dim;
  }

  // The layers that a pattern holds for: those `every` says for a number, those with a 1 in a list.
  template <class Every>
  Layers layers(std::string_view key, const std::vector<std::string>& words, Every every) const {
    const std::optional<LayerPattern> pattern = parse_layer_pattern(words, t_.num_layers);
    if (!pattern) {
      throw experiment_.error_for(key,
                                  fmt::format("{} is '{}', which is no pattern of {} layers", key,
                                              fmt::join(words, " "), t_.num_layers),
                                  fmt::format("write a number, or {} zeros and ones such as ([0]*{}+[1]*{})",
                                              t_.num_layers, 1, t_.num_layers - 1));
    }
    if (pattern->every == 0 && static_cast<std::int64_t>(pattern->per_layer.size()) != t_.num_layers) {
      throw experiment_.error_for(key,
                                  fmt::format("{} has {} layers, and num_layers is {}", key,
                                              pattern->per_layer.size(), t_.num_layers),
                                  fmt::format("set {} for {} layers, too", key, t_.num_layers));
    }
    Layers chosen;
    for (std::int64_t layer = 0; layer < t_.num_layers; ++layer) {
      if (pattern->every > 0 ? every(layer, pattern->every)
                             : pattern->per_layer[static_cast<std::size_t>(layer)]) {
        chosen.push_back(layer);
      }
    }
    return chosen;
  }

  // window_size's first number: a list of two, or a tuple as Python writes it.
  std::int64_t window() const {
    std::string text = fmt::format("{}", fmt::join(t_.window_size, ","));
    std::erase_if(text, [](char x) { return x == '(' || x == ')' || x == '[' || x == ']' || x == ' '; });
    std::int64_t left = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, left);
    if (error != std::errc() || left < 0 || left >= (std::int64_t{1} << 40) ||
        (std::string_view(stop, end) != ",0" && std::string_view(stop, end) != ",,0")) {
      throw experiment_.error_for("window_size", fmt::format("window_size is '{}'", text),
                                  "write [left, 0]: tokens before a token that it sees");
    }
    return left + 1;  // and itself
  }

  void convolutions(ModelConfig& c) const {
    const auto refuse = [&](const std::string& what) {
      return experiment_.error_for(
          "lfm_layer_types", what,
          fmt::format("write conv or full_attention for each of {} layers", t_.num_layers));
    };
    const std::vector<std::string>& types = t_.lfm_layer_types;
    if (types.empty()) return;
    if (static_cast<std::int64_t>(types.size()) != t_.num_layers) {
      throw refuse(
          fmt::format("lfm_layer_types has {} layers, and num_layers is {}", types.size(), t_.num_layers));
    }
    for (std::size_t layer = 0; layer < types.size(); ++layer) {
      if (types[layer] == kConvolution) {
        c.conv_layers.push_back(static_cast<std::int64_t>(layer));
      } else if (types[layer] != "full_attention") {
        throw refuse(fmt::format("lfm_layer_types has '{}', which is no kind of layer", types[layer]));
      }
    }
    if (!c.conv_layers.empty()) refuse_modules("short convolutions");
  }

  // Modules of multi-token prediction, in models with such layers.
  void refuse_modules(std::string_view layers) const {
    if (t_.mtp_num_layers.value_or(0) == 0) return;
    throw experiment_.error_for("mtp_num_layers",
                                fmt::format("multi-token prediction is not there for models with {}", layers),
                                "set mtp_num_layers to null");
  }

  void linear_attention(ModelConfig& c) const {
    take({ModelPart::kLinear}, c);
    if (!t_.linear_attention_freq.empty()) {
      c.linear.layers = layers("linear_attention_freq", t_.linear_attention_freq,
                               [](std::int64_t layer, std::int64_t n) { return (layer + 1) % n != 0; });
    } else if (t_.experimental_attention_variant == kGatedDelta) {
      throw experiment_.error_for(
          "experimental_attention_variant",
          "experimental_attention_variant gated_delta_net needs linear_attention_freq",
          "set linear_attention_freq: 4 for one layer of attention behind each three");
    }
    // A module is like the last layer, which in Kimi's is latent attention.
    if (!c.linear.layers.empty() && (c.linear.has(c.layers - 1) || !always_latent(families_.find(c.family))))
      refuse_modules("linear attention");
  }

  // What each layer pools, of a list that stands in quotes or not; then that of multi-token prediction's.
  void compressed(ModelConfig& c) const {
    std::string text = fmt::format("{}", fmt::join(t_.compress_ratios, ","));
    std::erase_if(text, [](char x) { return x == '(' || x == ')' || x == '[' || x == ']' || x == ' '; });
    if (t_.hc_mult.value_or(0) > 1) c.hyper.streams = *t_.hc_mult;
    if (text.empty()) {
      if (c.family != "deepseek_v4") {
        if (t_.attn_sliding_window.value_or(0) > 0) throw differs("attn_sliding_window", "null");
        if (t_.attn_sink) throw differs("attn_sink", "false");
        if (t_.swiglu_limit.value_or(0) > 0) throw differs("swiglu_limit", "null");
        return;
      }
      throw experiment_.error_for("compress_ratios",
                                  "compress_ratios is null, and model_type deepseek_v4 pools latents",
                                  "write 0, 4 or 128 for each layer, or choose another model_type");
    }
    if (is_set("attn_sink") && !t_.attn_sink) throw differs("attn_sink", "true");
    if (is_set("hybrid_attention_enabled") && !t_.hybrid_attention_enabled)
      throw differs("hybrid_attention_enabled", "true");
    AttentionConfig& a = c.attention;
    std::int64_t layer = 0;
    for (std::size_t at = 0; at <= text.size(); ++layer) {
      const std::size_t end = std::min(text.find(',', at), text.size());
      const std::string word = text.substr(at, end - at);
      at = end + 1;
      if (word.empty() && at > text.size()) break;
      const bool known = word == "0" || word == "4" || word == "128";
      if (!known || (layer >= c.layers && word != "0")) {
        throw experiment_.error_for(
            "compress_ratios",
            fmt::format("compress_ratios has '{}' {} {} layers", word,
                        known ? "behind the" : "among those of", c.layers),
            "write 0, 4 or 128 for each layer, and 0 for those of multi-token prediction");
      }
      if (layer >= c.layers) continue;
      a.local_layers.push_back(layer);
      if (word == "4") a.sparse_layers.push_back(layer);
      if (word == "128") a.heavy_layers.push_back(layer);
    }
    if (layer < c.layers)
      throw experiment_.error_for(
          "compress_ratios",
          fmt::format("compress_ratios has {} layers, and num_layers is {}", layer, c.layers));
    a.latent.q_rank = t_.q_lora_rank.value_or(0);
    a.window = t_.attn_sliding_window.value_or(0);
    c.rotary_fraction = static_cast<double>(t_.qk_pos_emb_head_dim) / static_cast<double>(c.head_dim);
    c.hyper = {.streams = t_.hc_mult.value_or(1), .iterations = t_.hc_sinkhorn_iters, .epsilon = t_.hc_eps};
    // YaRN scales no rotation here, as in AMD Primus (mscale = mscale_all_dim).
    if (c.rope_scaling.kind == RopeScaling::Kind::kYarn) c.rope_scaling.attention_factor = 1;
    c.rope_scaling.mscale = c.rope_scaling.mscale_all_dim = std::nullopt;
    c.ffn = c.moe.ffn;  // no layer has an ordinary feed-forward
    c.moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(true);
    c.moe.swiglu_limit =
        t_.swiglu_limit.value_or(0) > 0 ? *t_.swiglu_limit : t_.activation_func_clamp_value.value_or(0);
    for (const auto& [key, packs] : {std::pair("reset_attention_mask", t_.reset_attention_mask),
                                     std::pair("enable_packed_sequences", config::separates_documents(t_))}) {
      if (!packs) continue;
      throw experiment_.error_for(
          key, "blocks of pooled tokens (compress_ratios) know no documents within a sequence",
          fmt::format("set {} to false", key));
    }
    if (t_.sample_interval) {
      throw experiment_.error_for("sample_interval",
                                  fmt::format("models of type {} do not write texts: pooled latents "
                                              "(compress_ratios) are not kept from token to token",
                                              c.family),
                                  "set sample_interval to null");
    }
  }

  void local_attention(ModelConfig& c) const {
    AttentionConfig& a = c.attention;
    if (!t_.no_rope_freq.empty()) {
      a.no_rope_layers = layers("no_rope_freq", t_.no_rope_freq,
                                [](std::int64_t layer, std::int64_t n) { return layer % n == n - 1; });
    }
    const Family& family = families_.find(c.family);
    a.qkv_bias = leaves_open(family, "add_qkv_bias") && t_.add_qkv_bias.value_or(false);
    a.qk_norm = leaves_open(family, "qk_layernorm") && t_.qk_layernorm.value_or(false);
    a.sinks = leaves_open(family, "softmax_type") && has_sinks();
    if (t_.attention_chunk_size && !t_.window_size.empty()) {
      throw experiment_.error_for("window_size", "window_size and attention_chunk_size exclude each other",
                                  "leave one out");
    }
    if (!t_.window_size.empty()) {
      a.window = window();
      const std::vector<std::string> all = {"1000000000"};
      a.local_layers =
          layers("window_attn_skip_freq", t_.window_attn_skip_freq.empty() ? all : t_.window_attn_skip_freq,
                 [](std::int64_t layer, std::int64_t n) { return (layer + 1) % n != 0; });
    } else if (!t_.window_attn_skip_freq.empty()) {
      throw experiment_.error_for("window_attn_skip_freq", "window_attn_skip_freq needs window_size",
                                  "set window_size: [tokens, 0]");
    }
    if (t_.attention_chunk_size) {
      for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        if (a.rope(layer)) a.local_layers.push_back(layer);
      }
    }
  }

  void experts(ModelConfig& c) const {
    if (!t_.num_experts) return;  // what else is said of them has no effect, and a warning says so
    MoeConfig& moe = c.moe;
    RouterRule& router = moe.router;
    take({ModelPart::kMoe, ModelPart::kRouter}, c);
    if (!t_.moe_ffn_hidden_size) moe.ffn = c.ffn;
    if (!t_.moe_router_group_topk) router.top_groups = router.groups;
    if (t_.moe_router_topk > moe.experts) {
      throw experiment_.error_for("moe_router_topk", fmt::format("moe_router_topk is {}, and num_experts {}",
                                                                 t_.moe_router_topk, moe.experts));
    }
    if (!t_.moe_layer_freq.empty()) {
      const Layers routed = layers("moe_layer_freq", t_.moe_layer_freq,
                                   [](std::int64_t layer, std::int64_t n) { return layer % n == 0; });
      for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        if (!std::binary_search(routed.begin(), routed.end(), layer)) moe.dense_layers.push_back(layer);
      }
    }
    router.normalise = !t_.moe_router_pre_softmax.value_or(false);
    if (c.family == "lfm2_moe") moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(true);
    if (c.family != kOwnFamily) return;  // the others have one way of scoring
    const bool v3 = t_.model_type == "deepseek_v3";
    moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(v3);
    if (t_.moe_router_score_function.value_or(v3 ? "sigmoid" : "softmax") != "sigmoid") return;
    router.scoring = RouterRule::Scoring::kSigmoid;
    router.normalise = router.top_k > 1;  // Megatron-LM divides by the sum of several
  }

  ModelConfig as_the_family_has_it(const ModelConfig& c) const {
    try {
      return read_model_config(write_model_config(c, DType::kF32, families_), "", families_);
    } catch (const Error& error) {
      const std::string_view key = setting_of(error);
      // Without experts they have no width, either, which some families miss first.
      if (!t_.num_experts && (key == "num_experts" || key == "ffn_hidden_size")) {
        throw experiment_.error_for(
            is_set("num_experts") ? "num_experts" : "model_type",
            fmt::format("num_experts is null, and model_type {} is a mixture of experts", t_.model_type),
            "set num_experts, or choose another model_type");
      }
      if (key.empty()) {
        throw experiment_.error_for("model_type",
                                    fmt::format("as a model of type {}: {}", t_.model_type, error.what()),
                                    error.hint());
      }
      throw experiment_.error_for(
          is_set(key) ? key : "model_type",
          fmt::format("{}: in the config.json of a {}, {}", key, t_.model_type, error.what()), error.hint());
    }
  }

  // The setting that an error about a config.json points to; empty: none.
  static std::string_view setting_of(const Error& error) {
    const auto* about = dynamic_cast<const ConfigKeyError*>(&error);
    const auto settings = settings_behind(about ? about->key() : std::string_view());
    return settings.empty() ? std::string_view() : settings.front();
  }

  template <class T>
  void same(std::string_view key, const T& said, const T& has) const {
    if (said != has) throw differs(key, fmt::format("{}", has));
  }
  void same_fields(std::initializer_list<ModelPart> parts, const ModelConfig& said,
                   const ModelConfig& has) const {
    for_each_model_field([&](const auto& field) {
      // Not of rope, which has optional numbers: a config.json leaves out what its kind does not have.
      if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(field.of(has))>>) {
        if (std::ranges::find(parts, field.part) != parts.end())
          same(field.name, field.of(said), field.of(has));
      }
    });
  }
  void same_layers(std::string_view key, const Layers& said, const Layers& has) const {
    if (said == has) return;
    throw differs(key, has.empty() ? "no layers" : fmt::format("layers {}", fmt::join(has, ", ")));
  }
  template <class T>
  void if_said(std::string_view key, const std::optional<T>& said, const T& has) const {
    if (said) same(key, *said, has);
  }

  // Two keys of what the family has one number for: whoever sets one must set the other, too.
  void one_width(std::string_view a, std::int64_t said_a, std::string_view b, std::int64_t said_b) const {
    if (said_a == said_b) return;
    if (experiment_.provenance_of(b).layer >= experiment_.provenance_of(a).layer) {
      std::swap(a, b);
      std::swap(said_a, said_b);
    }
    throw experiment_.error_for(a,
                                fmt::format("{} is {}, and {} {}: model_type {} has one width for both", a,
                                            said_a, b, said_b, t_.model_type),
                                fmt::format("set {} to {}, too", b, said_a));
  }

  // Refuses what was said and is not in `has`, the model as its family reads it.
  void agree(const ModelConfig& has, const ModelConfig& said) const {
    same("untie_embeddings_and_output_weights", !said.tied_embeddings, !has.tied_embeddings);
    if (!always_latent(families_.find(has.family)))
      same("multi_latent_attention", t_.multi_latent_attention, has.attention.latent.kv_rank > 0);
    same_fields({ModelPart::kModel, ModelPart::kLatent, ModelPart::kAttention, ModelPart::kIndexer,
                 ModelPart::kLinear},
                said, has);
    same("window_size", said.attention.window, has.attention.window);
    same_layers(said.attention.chunk > 0 ? "attention_chunk_size" : "window_attn_skip_freq",
                said.attention.local_layers, has.attention.local_layers);
    same_layers("lfm_layer_types", said.conv_layers, has.conv_layers);
    same_layers("compress_ratios", said.attention.sparse_layers, has.attention.sparse_layers);
    same_layers("compress_ratios", said.attention.heavy_layers, has.attention.heavy_layers);
    same("hc_mult", said.hyper.streams, has.hyper.streams);
    same_layers("linear_attention_freq", said.linear.layers, has.linear.layers);
    same_layers("no_rope_freq", said.attention.no_rope_layers, has.attention.no_rope_layers);
    same("num_experts", said.moe.experts, has.moe.experts);
    if (has.moe.experts == 0) return;
    if (has.ffn == has.moe.ffn) one_width("ffn_hidden_size", said.ffn, "moe_ffn_hidden_size", said.moe.ffn);
    if (has.moe.shared_ffn != said.moe.shared_ffn && has.moe.shared_ffn == has.moe.ffn) {
      one_width("moe_ffn_hidden_size", said.moe.ffn, "moe_shared_expert_intermediate_size",
                said.moe.shared_ffn);
    }
    same_fields({ModelPart::kMoe, ModelPart::kRouter}, said, has);
    Layers mixtures, mixtures_said;
    for (std::int64_t layer = 0; layer < has.layers; ++layer) {
      if (has.moe.routed(layer)) mixtures.push_back(layer);
      if (said.moe.routed(layer)) mixtures_said.push_back(layer);
    }
    same_layers("moe_layer_freq", mixtures_said, mixtures);
    const RouterRule& router = has.moe.router;
    const bool softmax = router.scoring == RouterRule::Scoring::kSoftmax;
    if_said<std::string>("moe_router_score_function", t_.moe_router_score_function,
                         softmax                                                ? "softmax"
                         : router.scoring == RouterRule::Scoring::kSqrtSoftplus ? "sqrtsoftplus"
                                                                                : "sigmoid");
    if_said("moe_router_pre_softmax", t_.moe_router_pre_softmax, softmax && !router.normalise);
    if_said("moe_router_enable_expert_bias", t_.moe_router_enable_expert_bias, has.moe.choice_bias);
    if_said("moe_apply_probs_on_input", t_.moe_apply_probs_on_input, has.moe.weigh_input);
  }

  // What was said and is taken, and decides nothing of this model.
  void without_effect(const ModelConfig& has) const {
    if (!warnings_) return;
    warn_of_unread_keys(experiment_, has, *warnings_);
    if (has.moe.experts == 0 || !has.moe.dense_layers.empty() || has.ffn == has.moe.ffn) return;
    const config::Provenance said = experiment_.provenance_of("ffn_hidden_size");
    if (said.layer < config::Layer::kOverrides) return;
    warnings_->push_back(fmt::format(
        "{}: ffn_hidden_size has an effect only on blocks without experts, and every block has some: their "
        "width is moe_ffn_hidden_size",
        said.describe()));
  }

  MoeConfig::Training training(const ModelConfig& c) const {
    const double rate = t_.moe_router_bias_update_rate;
    if (c.moe.experts > 0 && !c.moe.choice_bias && rate != 0 &&
        rate != config::TrainerConfig().moe_router_bias_update_rate) {
      throw differs("moe_router_bias_update_rate", "no bias of experts");
    }
    const bool quantiles = t_.moe_router_bias_update_rule == "quantile";
    if (quantiles && c.moe.experts > 0 && !c.moe.choice_bias)
      throw differs("moe_router_bias_update_rule", "no bias of experts");
    if (quantiles && t_.quantile_balancing_margin_min >= t_.quantile_balancing_margin_max) {
      throw experiment_.error_for(
          is_set("quantile_balancing_margin_max") ? "quantile_balancing_margin_max"
                                                  : "quantile_balancing_margin_min",
          fmt::format("quantile_balancing_margin_max is {}, and quantile_balancing_margin_min {}",
                      t_.quantile_balancing_margin_max, t_.quantile_balancing_margin_min),
          "set quantile_balancing_margin_max to more");
    }
    const bool balanced = t_.moe_router_load_balancing_type != "none";
    return {.balance_loss = balanced ? t_.moe_aux_loss_coeff : 0,
            .balance_sequences = t_.moe_router_load_balancing_type == "seq_aux_loss",
            .balance_step = t_.moe_router_load_balancing_type == "global_aux_loss",
            .z_loss = t_.moe_z_loss_coeff.value_or(0),
            .bias_update_rate = c.moe.choice_bias ? t_.moe_router_bias_update_rate : 0,
            .quantile_bins = quantiles && c.moe.choice_bias ? t_.quantile_balancing_num_bins : 0,
            .margin_low = t_.quantile_balancing_margin_min,
            .margin_high = t_.quantile_balancing_margin_max,
            .centred_bias = t_.quantile_balancing_center_bias,
            .kept_bias = t_.quantile_balancing_ema_decay.value_or(0),
            .capacity_factor = t_.moe_expert_capacity_factor.value_or(0),
            .drop_lightest = t_.moe_token_drop_policy == "probs",
            .jitter = t_.moe_input_jitter_eps.value_or(0),
            .forced = !t_.moe_router_force_load_balancing                    ? RouterRule::Forced::kNo
                      : t_.moe_router_force_load_balancing_type == "uniform" ? RouterRule::Forced::kUniform
                                                                             : RouterRule::Forced::kEven,
            .all_to_all = t_.moe_token_dispatcher_type != "allgather"};
  }

  const config::Experiment& experiment_;
  const config::TrainerConfig& t_;
  const FamilyRegistry& families_;
  std::vector<std::string>* const warnings_;
};

void set_adapters(const config::Experiment& experiment, ModelConfig& model,
                  std::vector<std::string>* warnings) {
  const config::Value* const map = experiment.settings.find("lora");
  if (!map || !map->is_map()) return;
  const config::LoraSettings lora = config::read_lora(*map);
  if (!lora.enabled) return;
  model.lora = {.dim = lora.dim,
                .alpha = lora.alpha,
                .kaiming = lora.a_init == "kaiming",
                .modules = lora.target_modules,
                .training = {.dropout = lora.dropout, .drops_after = lora.dropout_position == "post"}};
  const bool feed_forwards = model.lora.has("linear_fc1") || model.lora.has("linear_fc2");
  if (model.moe.experts > 0 && feed_forwards && lora.dropout > 0) {
    throw experiment.error_for(
        "lora", "lora.dropout does not support adapters of experts (linear_fc1, linear_fc2)",
        "set dropout of lora to 0.0, or its target_modules to [linear_qkv, linear_proj]");
  }
  if ((model.attention.latent.kv_rank > 0 || model.attention.compressed()) && model.lora.has("linear_qkv")) {
    if (model.lora.modules.size() == 1)
      throw experiment.error_for("lora",
                                 "lora names linear_qkv alone, and latent attention has no such module",
                                 "name linear_proj in target_modules");
    if (warnings)
      warnings->push_back(
          fmt::format("{}: latent attention has no linear_qkv, so its queries, keys and values have no "
                      "adapters, as in Primus",
                      experiment.provenance_of("lora").describe()));
  }
  // Nothing would be trained, and a step without a backward pass has no loss.
  bool attends = false;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) attends = attends || model.attends(layer);
  if (!feed_forwards && !attends) {
    throw experiment.error_for(
        "lora",
        model.linear.layers.empty()
            ? "lora names modules of attention alone, and every layer of this model is a "
              "short convolution instead (lfm_layer_types)"
            : "lora names modules of attention alone, and every layer of this model has "
              "linear attention instead (linear_attention_freq)",
        "name linear_fc1 and linear_fc2 in target_modules");
  }
  // What balances experts is as frozen as they are.
  model.moe.training.bias_update_rate = 0;
  model.moe.training.quantile_bins = 0;
  if (warnings && !experiment.trainer.load)
    warnings->push_back(fmt::format("{}: lora without load trains adapters of a model that knows nothing",
                                    experiment.provenance_of("lora").describe()));
}

}  // namespace

std::vector<FamilySwitch> switches_of(const Family& family) {
  std::vector<FamilySwitch> all(kSwitches.begin(), kSwitches.end());
  for (FamilySwitch& common : all) {
    for (const FamilySwitch& own : family.switches) {
      if (own.key == common.key) common.value = own.value;
    }
  }
  return all;
}

ModelConfig model_config_of(const config::Experiment& experiment, std::optional<std::int64_t> vocab,
                            const FamilyRegistry& families, std::vector<std::string>* warnings) {
  ModelConfig model = Settings(experiment, families, warnings).model(vocab);
  set_adapters(experiment, model, warnings);
  return model;
}

}  // namespace primus
