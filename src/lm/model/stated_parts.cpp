#include "lm/model/stated_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/stages.h"
#include "config/trainer_config.h"
#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/family_switches.h"
#include "lm/model/layer_pattern.h"
#include "lm/model/model_fields.h"

namespace primus {
namespace {

using turbo::RouterRule;
using Layers = std::vector<std::int64_t>;

class PartsReader {
 public:
  explicit PartsReader(const StatedModel& stated)
      : stated_(stated), experiment_(stated.experiment), t_(stated.t), families_(stated.families) {}

  void read(ModelConfig& c) const {
    rope(c);
    if (t_.multi_latent_attention || always_latent(families_.find(c.family))) latent(c);
    convolutions(c);
    linear_attention(c);
    local_attention(c);
    experts(c);
    compressed(c);
  }

 private:
  void rope(ModelConfig& c) const {
    RopeScaling& s = c.rope_scaling;
    s.kind = t_.rope_scaling_type == "llama3"     ? RopeScaling::Kind::kLlama3
             : t_.rope_scaling_type == "linear"   ? RopeScaling::Kind::kLinear
             : t_.rope_scaling_type == "yarn"     ? RopeScaling::Kind::kYarn
             : t_.rope_scaling_type == "longrope" ? RopeScaling::Kind::kLongrope
                                                  : RopeScaling::Kind::kNone;
    if (s.kind == RopeScaling::Kind::kNone) {
      // A local base that equals the common base is stored as 0, which means that there is no separate base.
      if (c.attention.local_theta == c.rope_theta) c.attention.local_theta = 0;
      return;
    }
    const bool latents = t_.multi_latent_attention || !t_.compress_ratios.empty();
    s.factor = latents ? t_.rotary_scaling_factor : t_.rope_scaling_factor;
    stated_.take({ModelPart::kRope}, c);
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
    stated_.take({ModelPart::kLatent}, c);
    c.set_layers(&LayerSpec::attention, &kLatentAttention);
    c.kv_heads = c.heads;
    c.head_dim = t_.qk_head_dim + t_.qk_pos_emb_head_dim;
  }

  // Returns the layers that a pattern selects: the layers with a 1 in a list or, if the pattern is a number,
  // the layers that `every` accepts.
  template <class Every>
  Layers layers(std::string_view key, const std::vector<std::string>& words, Every every) const {
    const std::optional<LayerPattern> pattern = parse_layer_pattern(words, t_.num_layers);
    if (!pattern) {
      throw experiment_.error_for(key,
                                  fmt::format("{} is '{}', which is not a pattern of {} layers", key,
                                              fmt::join(words, " "), t_.num_layers),
                                  fmt::format("write a number, or {} zeros and ones such as ([0]*{}+[1]*{})",
                                              t_.num_layers, 1, t_.num_layers - 1));
    }
    if (pattern->every == 0 && static_cast<std::int64_t>(pattern->per_layer.size()) != t_.num_layers) {
      throw experiment_.error_for(key,
                                  fmt::format("{} has {} layers, but num_layers is {}", key,
                                              pattern->per_layer.size(), t_.num_layers),
                                  fmt::format("also set {} for {} layers", key, t_.num_layers));
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

  // Returns the first number of window_size: a list of two numbers, or a tuple in Python's notation.
  std::int64_t window() const {
    std::string text = fmt::format("{}", fmt::join(t_.window_size, ","));
    std::erase_if(text, [](char x) { return x == '(' || x == ')' || x == '[' || x == ']' || x == ' '; });
    std::int64_t left = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, left);
    if (error != std::errc() || left < 0 || left >= (std::int64_t{1} << 40) ||
        (std::string_view(stop, end) != ",0" && std::string_view(stop, end) != ",,0")) {
      throw experiment_.error_for(
          "window_size", fmt::format("window_size is '{}'", text),
          "write [left, 0], where left is the number of earlier tokens that a token attends to");
    }
    return left + 1;  // adds the token itself
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
          fmt::format("lfm_layer_types has {} layers, but num_layers is {}", types.size(), t_.num_layers));
    }
    for (std::size_t layer = 0; layer < types.size(); ++layer) {
      if (types[layer] == kConvolutionType) {
        c.at(static_cast<std::int64_t>(layer)).attention = &kShortConvolution;
      } else if (types[layer] != "full_attention") {
        throw refuse(fmt::format("lfm_layer_types has '{}', which is not a layer type", types[layer]));
      }
    }
    if (c.any_keeps(Keeps::kInputs)) refuse_modules("short convolutions");
  }

  // Refuses multi-token prediction. `layers`: the kind of layers with which multi-token prediction is not
  // supported.
  void refuse_modules(std::string_view layers) const {
    if (t_.mtp_num_layers.value_or(0) == 0) return;
    throw experiment_.error_for("mtp_num_layers",
                                fmt::format("multi-token prediction does not support models with {}", layers),
                                "set mtp_num_layers to null");
  }

  void linear_attention(ModelConfig& c) const {
    stated_.take({ModelPart::kLinear}, c);
    std::vector<std::string> words = t_.linear_attention_freq;
    if (words == std::vector<std::string>{"1"}) {
      // "1" is either a number, which selects no layer, or a list for a model with one layer.
      if (t_.num_layers != 1) {
        throw experiment_.error_for(
            "linear_attention_freq", "linear_attention_freq is 1, which gives no layer linear attention",
            fmt::format("omit it for none, or write a list of {} zeros and ones", t_.num_layers));
      }
      words = {"[1]"};
    }
    if (!words.empty()) {
      // Sets one kind of linear attention for all families; the family replaces it by its own kind.
      c.set_layers(layers("linear_attention_freq", words,
                          [](std::int64_t layer, std::int64_t n) { return (layer + 1) % n != 0; }),
                   &LayerSpec::attention, &kGatedDeltaNet);
    } else if (t_.experimental_attention_variant == kGatedDeltaVariant) {
      throw experiment_.error_for(
          "experimental_attention_variant",
          "experimental_attention_variant gated_delta_net needs linear_attention_freq",
          "set linear_attention_freq: 4 for one attention layer after every three others");
    }
    // A module is built like the last layer, which has latent attention in Kimi models.
    if (c.any_keeps(Keeps::kState) && (c.has_state(c.layers - 1) || !always_latent(families_.find(c.family))))
      refuse_modules("linear attention");
  }

  // Reads which blocks each layer pools. The value is a list, which may be quoted. The entries of multi-token
  // prediction modules come last.
  void compressed(ModelConfig& c) const {
    std::string text = fmt::format("{}", fmt::join(t_.compress_ratios, ","));
    std::erase_if(text, [](char x) { return x == '(' || x == ')' || x == '[' || x == ']' || x == ' '; });
    if (t_.hc_mult.value_or(0) > 1) c.hyper.streams = *t_.hc_mult;
    if (text.empty()) {
      if (c.family != "deepseek_v4") {
        if (t_.attn_sliding_window.value_or(0) > 0) throw stated_.differs("attn_sliding_window", "null");
        if (t_.attn_sink) throw stated_.differs("attn_sink", "false");
        if (t_.swiglu_limit.value_or(0) > 0) throw stated_.differs("swiglu_limit", "null");
        return;
      }
      throw experiment_.error_for("compress_ratios",
                                  "compress_ratios is null, but model_type deepseek_v4 pools latents",
                                  "write 0, 4 or 128 for each layer, or choose another model_type");
    }
    if (stated_.is_set("attn_sink") && !t_.attn_sink) throw stated_.differs("attn_sink", "true");
    if (stated_.is_set("hybrid_attention_enabled") && !t_.hybrid_attention_enabled)
      throw stated_.differs("hybrid_attention_enabled", "true");
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
      using Pools = LayerSpec::Pools;
      LayerSpec& spec = c.at(layer);
      spec.attention = &kCompressedAttention;
      spec.local = true;
      spec.pools = word == "4" ? Pools::kSparse : word == "128" ? Pools::kHeavy : Pools::kNothing;
    }
    if (layer < c.layers)
      throw experiment_.error_for(
          "compress_ratios",
          fmt::format("compress_ratios has {} layers, but num_layers is {}", layer, c.layers));
    a.latent.q_rank = t_.q_lora_rank.value_or(0);
    a.window = t_.attn_sliding_window.value_or(0);
    c.rotary_fraction = static_cast<double>(t_.qk_pos_emb_head_dim) / static_cast<double>(c.head_dim);
    c.hyper = {.streams = t_.hc_mult.value_or(1), .iterations = t_.hc_sinkhorn_iters, .epsilon = t_.hc_eps};
    // YaRN's attention factor is 1, as in AMD Primus, which sets mscale = mscale_all_dim.
    if (c.rope_scaling.kind == RopeScaling::Kind::kYarn) c.rope_scaling.attention_factor = 1;
    c.rope_scaling.mscale = c.rope_scaling.mscale_all_dim = std::nullopt;
    c.ffn = c.moe.ffn;  // ffn has no effect, because no layer has a dense feed-forward
    c.moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(true);
    c.moe.swiglu_limit =
        t_.swiglu_limit.value_or(0) > 0 ? *t_.swiglu_limit : t_.activation_func_clamp_value.value_or(0);
    if (config::generates_answers(t_)) {
      throw experiment_.error_for("stage",
                                  fmt::format("models of type {} cannot generate answers: pooled latents "
                                              "(compress_ratios) are not cached between tokens",
                                              c.family),
                                  "choose a stage that learns the answers of the data, such as sft");
    }
    for (const auto& [key, packs] : {std::pair("reset_attention_mask", t_.reset_attention_mask),
                                     std::pair("enable_packed_sequences", config::separates_documents(t_))}) {
      if (!packs) continue;
      throw experiment_.error_for(
          key,
          "blocks of pooled tokens (compress_ratios) do not support document boundaries within a sequence",
          fmt::format("set {} to false", key));
    }
    if (t_.sample_interval) {
      throw experiment_.error_for("sample_interval",
                                  fmt::format("models of type {} cannot generate text: pooled latents "
                                              "(compress_ratios) are not cached between tokens",
                                              c.family),
                                  "set sample_interval to null");
    }
  }

  void local_attention(ModelConfig& c) const {
    AttentionConfig& a = c.attention;
    if (!t_.no_rope_freq.empty()) {
      c.set_layers(layers("no_rope_freq", t_.no_rope_freq,
                          [](std::int64_t layer, std::int64_t n) { return layer % n == n - 1; }),
                   &LayerSpec::rope, false);
    }
    const Family& family = families_.find(c.family);
    a.qkv_bias = leaves_open(family, "add_qkv_bias") && t_.add_qkv_bias.value_or(false);
    a.qk_norm = leaves_open(family, "qk_layernorm") && t_.qk_layernorm.value_or(false);
    a.sinks = leaves_open(family, "softmax_type") && stated_.has_sinks();
    if (t_.attention_chunk_size && !t_.window_size.empty()) {
      throw experiment_.error_for("window_size", "window_size and attention_chunk_size exclude each other",
                                  "leave one out");
    }
    if (!t_.window_size.empty()) {
      a.window = window();
      const std::vector<std::string> all = {"1000000000"};
      c.set_layers(
          layers("window_attn_skip_freq", t_.window_attn_skip_freq.empty() ? all : t_.window_attn_skip_freq,
                 [](std::int64_t layer, std::int64_t n) { return (layer + 1) % n != 0; }),
          &LayerSpec::local, true);
    } else if (!t_.window_attn_skip_freq.empty()) {
      throw experiment_.error_for("window_attn_skip_freq", "window_attn_skip_freq needs window_size",
                                  "set window_size: [tokens, 0]");
    }
    if (t_.attention_chunk_size) {
      for (std::int64_t layer = 0; layer < c.layers; ++layer) c.at(layer).local = c.spec(layer).rope;
    }
  }

  void experts(ModelConfig& c) const {
    if (!t_.num_experts) return;  // other code warns of expert settings in a model without experts
    MoeConfig& moe = c.moe;
    RouterRule& router = moe.router;
    stated_.take({ModelPart::kMoe, ModelPart::kRouter}, c);
    c.set_layers(&LayerSpec::feed_forward, &kMixture);
    if (!t_.moe_ffn_hidden_size) moe.ffn = c.ffn;
    if (!t_.moe_router_group_topk) router.top_groups = router.groups;
    if (t_.moe_router_topk > moe.experts) {
      throw experiment_.error_for(
          "moe_router_topk",
          fmt::format("moe_router_topk is {}, but num_experts is {}", t_.moe_router_topk, moe.experts));
    }
    if (!t_.moe_layer_freq.empty()) {
      const Layers routed = layers("moe_layer_freq", t_.moe_layer_freq,
                                   [](std::int64_t layer, std::int64_t n) { return layer % n == 0; });
      for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        if (!std::binary_search(routed.begin(), routed.end(), layer))
          c.at(layer).feed_forward = &kDenseFeedForward;
      }
    }
    router.normalise = !t_.moe_router_pre_softmax.value_or(false);
    if (c.family == "lfm2_moe") moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(true);
    if (c.family != kOwnFamily) return;  // other families have one scoring function
    const bool v3 = t_.model_type == "deepseek_v3";
    moe.choice_bias = t_.moe_router_enable_expert_bias.value_or(v3);
    if (t_.moe_router_score_function.value_or(v3 ? "sigmoid" : "softmax") != "sigmoid") return;
    router.scoring = RouterRule::Scoring::kSigmoid;
    router.normalise = router.top_k > 1;  // Megatron-LM divides by the sum if top_k > 1
  }

  const StatedModel& stated_;
  const config::Experiment& experiment_;
  const config::TrainerConfig& t_;
  const FamilyRegistry& families_;
};

}  // namespace

void read_stated_parts(const StatedModel& stated, ModelConfig& c) { PartsReader(stated).read(c); }

}  // namespace primus
