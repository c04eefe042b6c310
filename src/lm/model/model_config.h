// What a model is: the architecture, independent of how it is trained. Read from and written to Hugging
// Face's config.json, or taken from an experiment's settings.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lm/model/attention_config.h"
#include "lm/model/convolution_config.h"
#include "lm/model/hyper_config.h"
#include "lm/model/layer_spec.h"
#include "lm/model/linear_attention_config.h"
#include "lm/model/lora_config.h"
#include "lm/model/moe_config.h"
#include "lm/model/mtp_config.h"
#include "tensor/dtype.h"

namespace primus {

namespace config {
struct Experiment;
}
class FamilyRegistry;

// How rotary frequencies are stretched beyond the context the model was pre-trained with. The kinds and their
// parameters are Hugging Face's.
struct RopeScaling {
  enum class Kind : std::uint8_t { kNone, kLinear, kLlama3, kYarn, kLongrope } kind = Kind::kNone;
  double factor = 1;
  std::int64_t original_max_positions = 0;                         // llama3, yarn, longrope
  double low_freq_factor = 1, high_freq_factor = 4;                // llama3
  double beta_fast = 32, beta_slow = 1;                            // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn; longrope has the first
  bool truncate = true;  // yarn: whole dimensions as limits of the ramp
  // longrope: divisors of the frequencies, for tables of at most original_max_positions and for longer ones.
  std::vector<double> short_factor, long_factor;

  bool operator==(const RopeScaling&) const = default;
};

// As experiments write it: "none", "linear", "llama3", "yarn" or "longrope".
std::string_view name_of(RopeScaling::Kind kind);

// Factor of the embedding's rows. `rounded`: it is rounded to their type before.
struct EmbeddingScale {
  double factor = 1;
  bool rounded = false;
};

struct ModelConfig {
  std::string family = "llama";  // Hugging Face's model_type
  // layers, hidden, ffn, heads ...: what an experiment sets one for one.
#define MODEL_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  std::int64_t vocab = 0;  // rows of the embedding
  RopeScaling rope_scaling;
  AttentionConfig attention;
  ConvolutionConfig convolution;
  LinearAttentionConfig linear;
  MoeConfig moe;
  MtpConfig mtp;
  LoraConfig lora;
  HyperConfig hyper;
  LayerSpecs specs;            // read by spec(), changed by at() and set_layers()
  bool centred_norms = false;  // weights of norms are stored minus one (Qwen3-Next); a family says so
  // Rows of the embedding are multiplied by the root of their width, and feed-forwards are gated by GELU in
  // its tanh form, not by SiLU (Gemma); a family says so.
  bool scaled_by_width = false, gelu_gates = false;
  bool tied_embeddings = false;
  std::optional<std::int64_t> bos_id, pad_id;
  std::vector<std::int64_t> eos_ids;  // any of them ends a text
  // Keys of these ids that config.json leaves out, where the family's class in transformers has one.
  std::vector<std::string> unsaid_ids;

  // Columns that rotary frequencies are spaced over: rotary_fraction of each head, or the shared part of
  // latent attention's keys.
  std::int64_t rotary_columns() const {
    if (attention.latent.kv_rank > 0) return attention.latent.rope_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary_fraction);
  }
  // Columns that are rotated, two for each frequency: one more where the number above is odd, as in
  // transformers.
  std::int64_t rotary_dim() const { return (rotary_columns() + 1) / 2 * 2; }

  // What a layer is. Modules of multi-token prediction, beyond the last, are like it.
  const LayerSpec& spec(std::int64_t layer) const { return specs[std::min(layer, layers - 1)]; }
  // ... to be changed, once `layers` is known.
  LayerSpec& at(std::int64_t layer) {
    specs.name(std::max(layers, layer + 1));
    return specs[layer];
  }
  // Changes one member of all specs, or of those of some layers:
  // set_layers(&LayerSpec::feed_forward, &kMixture).
  template <class T>
  void set_layers(T LayerSpec::*member, std::type_identity_t<T> value) {
    for (std::int64_t layer = 0; layer < std::max({layers, specs.size(), std::int64_t{1}}); ++layer)
      at(layer).*member = value;
  }
  template <class T>
  void set_layers(const std::vector<std::int64_t>& chosen, T LayerSpec::*member,
                  std::type_identity_t<T> value) {
    for (const std::int64_t layer : chosen) at(layer).*member = value;
  }
  // The layers whose spec fulfils a condition, in order.
  template <class Condition>
  std::vector<std::int64_t> layers_where(Condition condition) const {
    std::vector<std::int64_t> found;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (condition(spec(layer))) found.push_back(layer);
    }
    return found;
  }
  // What the kinds of a layer say of it (lm/model/layer_kind.h).
  Keeps keeps(std::int64_t layer) const;
  bool attends(std::int64_t layer) const;  // has queries that meet the keys before them
  bool routed(std::int64_t layer) const;   // has a mixture of experts
  bool convolves(std::int64_t layer) const { return keeps(layer) == Keeps::kInputs; }
  bool has_state(std::int64_t layer) const { return keeps(layer) == Keeps::kState; }
  // Which layers keep this, and whether there are any.
  std::vector<std::int64_t> layers_keeping(Keeps what) const;
  bool any_keeps(Keeps what) const;
  // Which layers have no mixture, in models that have mixtures.
  std::vector<std::int64_t> dense_layers() const;
  std::vector<std::int64_t> local_layers() const {
    return layers_where([](const LayerSpec& spec) { return spec.local; });
  }
  std::vector<std::int64_t> layers_without_rope() const {
    return layers_where([](const LayerSpec& spec) { return !spec.rope; });
  }
  std::vector<std::int64_t> layers_pooling(LayerSpec::Pools what) const {
    return layers_where([what](const LayerSpec& spec) { return spec.pools == what; });
  }
  // What a layer pools; modules of multi-token prediction have their window alone.
  LayerSpec::Pools pools(std::int64_t layer) const {
    return layer < layers ? spec(layer).pools : LayerSpec::Pools::kNothing;
  }
  // Tokens of a block that is pooled; 0: none is.
  std::int64_t pooled_ratio(std::int64_t layer) const {
    using Pools = LayerSpec::Pools;
    const Pools what = pools(layer);
    return what == Pools::kSparse  ? attention.pooled.sparse_ratio
           : what == Pools::kHeavy ? attention.pooled.heavy_ratio
                                   : 0;
  }

  // Added to the weights of norms, those of heads among them.
  float norm_offset() const { return centred_norms ? 1.0F : 0.0F; }

  EmbeddingScale embedding_factor() const {
    if (scaled_by_width) return {std::sqrt(static_cast<double>(hidden)), true};
    return {embedding_scale, false};
  }

  // Residual streams side by side, or one and its checkpoints: blocks and pipeline stages hand on [T,
  // streams() * hidden]. A family of more than one has Family::make_stream_ends.
  std::int64_t streams() const {
    return residual_block > 0 ? 1 + (layers + residual_block - 1) / residual_block : hyper.streams;
  }

  bool operator==(const ModelConfig&) const = default;
};

// Reads config.json; of a model with a text_config that part. `where` is used in errors. Unknown model_type,
// an option that Primus does not have set to anything but its neutral value, and sizes that contradict each
// other are refused, each by name. Keys that nobody here knows go to `notes`, as a sentence.
ModelConfig read_model_config(std::string_view json, const std::string& where, const FamilyRegistry& families,
                              std::vector<std::string>* notes = nullptr);
// The config.json that transformers (4.x and 5.x) reads back to the same model.
std::string write_model_config(const ModelConfig& config, DType dtype, const FamilyRegistry& families);
// From an experiment. `vocab` is the tokenizer's size where the experiment names none. Settings that the
// family does not have are refused at their place; those that decide nothing of this model go to `warnings`,
// as experiment.warnings has them.
ModelConfig model_config_of(const config::Experiment& experiment, std::optional<std::int64_t> vocab,
                            const FamilyRegistry& families, std::vector<std::string>* warnings = nullptr);
// Gives every setting of the architecture that nobody chose (layer kDerived or below) the value of `model`,
// which is loaded. What is derived from settings is derived anew. How to train is left alone.
void fill_model_settings(config::Experiment& experiment, const ModelConfig& model);

// Floating-point operations of one training step over `sequences` of `length` tokens: 6 per multiplied weight
// and token, causal attention counted at half (of a window or chunk where a layer has one), of experts the
// chosen ones, recomputation and routers not counted (Megatron-LM's convention). Of frozen weights (lora) it
// is 4. Modules of multi-token prediction count where they are trained.
double training_flops(const ModelConfig& config, std::int64_t sequences, std::int64_t length);

}  // namespace primus
