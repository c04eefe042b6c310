// The architecture of a model, independent of how it is trained. The architecture is read from Hugging Face's
// config.json, or made from an experiment's settings, and is written to config.json.
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

// How rotary frequencies are stretched for texts longer than in pre-training. Kinds and parameters have the
// names and meanings of Hugging Face.
struct RopeScaling {
  enum class Kind : std::uint8_t { kNone, kLinear, kLlama3, kYarn, kLongrope } kind = Kind::kNone;
  double factor = 1;
  std::int64_t original_max_positions = 0;           // used by llama3, yarn and longrope
  double low_freq_factor = 1, high_freq_factor = 4;  // used by llama3
  double beta_fast = 32, beta_slow = 1;              // used by yarn
  // used by yarn; longrope uses only attention_factor
  std::optional<double> attention_factor, mscale, mscale_all_dim;
  bool truncate = true;  // used by yarn: whether the limits of the ramp are rounded to whole dimensions
  // Used by longrope: divisors of the frequencies. short_factor is for tables of up to original_max_positions
  // positions, long_factor for longer tables.
  std::vector<double> short_factor, long_factor;

  bool operator==(const RopeScaling&) const = default;
};

// Returns the name in experiments: "none", "linear", "llama3", "yarn" or "longrope".
std::string_view name_of(RopeScaling::Kind kind);

// A factor by which the rows of the embedding are multiplied. `rounded`: whether the factor is first rounded
// to the type of the rows.
struct EmbeddingScale {
  double factor = 1;
  bool rounded = false;
};

struct ModelConfig {
  std::string family = "llama";  // the family's model_type in Hugging Face
  // Members that correspond to exactly one setting, such as layers, hidden, ffn and heads (model_fields.def).
#define MODEL_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"
  std::int64_t vocab = 0;  // number of rows of the embedding
  RopeScaling rope_scaling;
  AttentionConfig attention;
  ConvolutionConfig convolution;
  LinearAttentionConfig linear;
  MoeConfig moe;
  MtpConfig mtp;
  LoraConfig lora;
  HyperConfig hyper;
  LayerSpecs specs;            // properties of each layer; read them with spec(), change them with at() or
                               // set_layers()
  bool centred_norms = false;  // whether checkpoints store norm weights minus one (Qwen3-Next); set by the
                               // family
  // Whether embedding rows are multiplied by the square root of their width, and whether feed-forwards use
  // tanh-GELU gates in place of SiLU (Gemma). Set by the family.
  bool scaled_by_width = false, gelu_gates = false;
  bool tied_embeddings = false;
  // The head computes one score per token instead of logits: a reward or value model
  // (...ForSequenceClassification with one label in transformers). The embedding is then not tied to the
  // head.
  bool scores = false;
  std::optional<std::int64_t> bos_id, pad_id;
  std::vector<std::int64_t> eos_ids;  // each of these ids ends a sequence
  // Keys of special token ids that config.json omits. For these keys, transformers uses the defaults of the
  // family's class.
  std::vector<std::string> unsaid_ids;

  // Returns the number of columns over which rotary frequencies are spaced: rotary_fraction of the columns of
  // a head, or, for latent attention, the rotated columns of the keys.
  std::int64_t rotary_columns() const {
    if (attention.latent.kv_rank > 0) return attention.latent.rope_dim;
    return static_cast<std::int64_t>(static_cast<double>(head_dim) * rotary_fraction);
  }
  // Returns the number of columns that are rotated, two per frequency: rotary_columns() rounded up to an even
  // number, as in transformers.
  std::int64_t rotary_dim() const { return (rotary_columns() + 1) / 2 * 2; }

  // Returns the spec of a layer. A multi-token prediction module, which has a number beyond the last layer,
  // has the spec of the last layer.
  const LayerSpec& spec(std::int64_t layer) const { return specs[std::min(layer, layers - 1)]; }
  // Returns the spec of a layer for changing it; `layers` must be set before.
  LayerSpec& at(std::int64_t layer) {
    specs.name(std::max(layers, layer + 1));
    return specs[layer];
  }
  // Changes one member of the spec of all layers, or of the given layers:
  //   set_layers(&LayerSpec::feed_forward, &kMixture)
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
  // Returns the numbers of the layers whose spec meets the condition, in order.
  template <class Condition>
  std::vector<std::int64_t> layers_where(Condition condition) const {
    std::vector<std::int64_t> found;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (condition(spec(layer))) found.push_back(layer);
    }
    return found;
  }
  // The following functions return properties of the kinds of a layer (lm/model/layer_kind.h).
  Keeps keeps(std::int64_t layer) const;
  bool attends(std::int64_t layer) const;  // Returns whether queries of the layer are compared with earlier
                                           // keys.
  bool routed(std::int64_t layer) const;   // Returns whether the layer has a mixture of experts.
  bool convolves(std::int64_t layer) const { return keeps(layer) == Keeps::kInputs; }
  bool has_state(std::int64_t layer) const { return keeps(layer) == Keeps::kState; }
  // Return which layers cache `what`, and whether any layer does.
  std::vector<std::int64_t> layers_keeping(Keeps what) const;
  bool any_keeps(Keeps what) const;
  // Returns the layers without a mixture of experts. Empty if no layer has a mixture.
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
  // Returns which blocks of tokens a layer pools. Multi-token prediction modules have a window but do not
  // pool.
  LayerSpec::Pools pools(std::int64_t layer) const {
    return layer < layers ? spec(layer).pools : LayerSpec::Pools::kNothing;
  }
  // Returns the number of tokens per pooled block; 0 if the layer does not pool.
  std::int64_t pooled_ratio(std::int64_t layer) const {
    using Pools = LayerSpec::Pools;
    const Pools what = pools(layer);
    return what == Pools::kSparse  ? attention.pooled.sparse_ratio
           : what == Pools::kHeavy ? attention.pooled.heavy_ratio
                                   : 0;
  }

  // Returns whether the head is the embedding.
  bool ties_head() const { return tied_embeddings && !scores; }
  // Returns the value to add to stored norm weights, including the weights of QK norms.
  float norm_offset() const { return centred_norms ? 1.0F : 0.0F; }

  EmbeddingScale embedding_factor() const {
    if (scaled_by_width) return {std::sqrt(static_cast<double>(hidden)), true};
    return {embedding_scale, false};
  }

  // Returns the number of parallel residual streams, or for one stream with checkpoints, 1 + the number of
  // checkpoints. Blocks and pipeline stages exchange [T, streams() * hidden]. A family with several streams
  // sets Family::make_stream_ends.
  std::int64_t streams() const {
    return residual_block > 0 ? 1 + (layers + residual_block - 1) / residual_block : hyper.streams;
  }

  bool operator==(const ModelConfig&) const = default;
};

// Reads config.json, or its object text_config if present. `where` names the file in errors. Refuses an
// unknown model_type, contradictory sizes, and unsupported options whose value is not neutral. The error
// names the key. `notes` receives one sentence about unknown keys.
ModelConfig read_model_config(std::string_view json, const std::string& where, const FamilyRegistry& families,
                              std::vector<std::string>* notes = nullptr);
// Returns a config.json that transformers (4.x and 5.x) reads as the same model.
std::string write_model_config(const ModelConfig& config, DType dtype, const FamilyRegistry& families);
// Returns the model that an experiment describes. `vocab`, the size of the tokenizer, is used if the
// experiment sets no vocabulary size. A setting that the family does not support is an error at the setting's
// location. Settings without effect on this model are appended to `warnings`, in the style of
// experiment.warnings.
ModelConfig model_config_of(const config::Experiment& experiment, std::optional<std::int64_t> vocab,
                            const FamilyRegistry& families, std::vector<std::string>* warnings = nullptr);
// For each architecture setting that was not set explicitly (layer kDerived or below), sets the value that
// the loaded model has. Then recomputes derived settings. Training settings do not change.
void fill_model_settings(config::Experiment& experiment, const ModelConfig& model);

// Returns the floating-point operations of one training step over `sequences` sequences of `length` tokens,
// by Megatron-LM's convention: 6 operations per weight and token (4 for weights that LoRA freezes). Causal
// attention counts half of full attention, or the window or chunk. Only chosen experts count. Recomputation
// and routers are not counted. Multi-token prediction counts if it is trained.
double training_flops(const ModelConfig& config, std::int64_t sequences, std::int64_t length);

// Maps the part names of PRIMUS_MODEL_FIELD to structs.
namespace model_part {
using MODEL = ModelConfig;
using LATENT = LatentConfig;
using ATTENTION = AttentionConfig;
using INDEXER = IndexerConfig;
using POOLED = PooledConfig;
using CONVOLUTION = ConvolutionConfig;
using LINEAR = LinearAttentionConfig;
using MOE = MoeConfig;
using ROUTER = turbo::RouterRule;
using ROPE = RopeScaling;
}  // namespace model_part

// Declares a field of a model in the file of blocks/ or families/ that needs the field
// (lm/model/model_fields.def). The build collects the declarations of these two folders. In any other file,
// the line does not compile, because the struct does not get the member.
#define PRIMUS_MODEL_FIELD(part, type, member, initial, setting, when_loaded, keys) \
  static_assert(std::is_same_v<decltype(model_part::part::member), type>)

}  // namespace primus
