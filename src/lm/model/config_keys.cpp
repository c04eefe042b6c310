#include "lm/model/config_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

namespace primus {
namespace {

using Names = std::span<const std::string_view>;

bool contains(Names names, std::string_view name) { return std::ranges::find(names, name) != names.end(); }

// Keys that every family reads or refuses, but that Primus does not always write.
constexpr std::string_view kRead[] = {"attention_dropout",
                                      "aux_loss_alpha",
                                      "bos_token_id",
                                      "dtype",
                                      "eos_token_id",
                                      "is_causal",
                                      "num_nextn_predict_layers",
                                      "original_max_position_embeddings",
                                      "pad_token_id",
                                      "partial_rotary_factor",
                                      "per_layer_config",
                                      "pruned_heads",
                                      "router_aux_loss_coef",
                                      "router_jitter_noise",
                                      "router_z_loss_coef",
                                      "seq_aux",
                                      "transformers_weights"};

// Keys of transformers' configuration classes that do not describe the architecture. Some keys describe how a
// model is run or where the model comes from. Element types, including quantized ones, are read from the
// tensors.
constexpr std::string_view kWithoutSay[] = {"add_cross_attention",
                                            "attn_implementation",
                                            "auto_map",
                                            "chunk_size_feed_forward",
                                            "classifier_dropout",
                                            "cross_attention_hidden_size",
                                            "decoder_start_token_id",
                                            "experts_implementation",
                                            "finetuning_task",
                                            "gradient_checkpointing",
                                            "id2label",
                                            "is_decoder",
                                            "is_encoder_decoder",
                                            "label2id",
                                            "name_or_path",
                                            "num_labels",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "output_router_logits",
                                            "prefix",
                                            "pretraining_tp",
                                            "problem_type",
                                            "quantization_config",
                                            "return_dict",
                                            "sep_token_id",
                                            "task_specific_params",
                                            "tf_legacy_loss",
                                            "tie_encoder_decoder",
                                            "tokenizer_class",
                                            "torchscript",
                                            "transformers_version",
                                            "use_bfloat16",
                                            "use_cache"};

// Sampling options. Older versions of transformers write these options to config.json. Newer versions write
// these options to generation_config.json.
constexpr std::string_view kSampling[] = {"assistant_confidence_threshold",
                                          "assistant_lookbehind",
                                          "bad_words_ids",
                                          "begin_suppress_tokens",
                                          "cache_implementation",
                                          "diversity_penalty",
                                          "do_sample",
                                          "early_stopping",
                                          "encoder_no_repeat_ngram_size",
                                          "encoder_repetition_penalty",
                                          "epsilon_cutoff",
                                          "eta_cutoff",
                                          "exponential_decay_length_penalty",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "length_penalty",
                                          "max_length",
                                          "min_length",
                                          "no_repeat_ngram_size",
                                          "num_assistant_tokens",
                                          "num_assistant_tokens_schedule",
                                          "num_beam_groups",
                                          "num_beams",
                                          "num_return_sequences",
                                          "output_scores",
                                          "remove_invalid_values",
                                          "repetition_penalty",
                                          "return_dict_in_generate",
                                          "suppress_tokens",
                                          "target_lookbehind",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p"};

// Rotary keys. Some of these keys are for the image positions of multimodal models and do not affect text
// positions.
constexpr std::string_view kRope[] = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved"};
constexpr std::string_view kLinear[] = {"factor"};
constexpr std::string_view kLlama3[] = {"factor", "original_max_position_embeddings", "low_freq_factor",
                                        "high_freq_factor"};
constexpr std::string_view kYarn[] = {"factor",           "original_max_position_embeddings",
                                      "beta_fast",        "beta_slow",
                                      "attention_factor", "mscale",
                                      "mscale_all_dim",   "truncate"};

constexpr std::string_view kLongrope[] = {"factor", "original_max_position_embeddings", "attention_factor",
                                          "short_factor", "long_factor"};

Names keys_of(RopeScaling::Kind kind) {
  switch (kind) {
    case RopeScaling::Kind::kNone:
      return {};
    case RopeScaling::Kind::kLinear:
      return kLinear;
    case RopeScaling::Kind::kLlama3:
      return kLlama3;
    case RopeScaling::Kind::kYarn:
      return kYarn;
    case RopeScaling::Kind::kLongrope:
      return kLongrope;
  }
  return {};
}

}  // namespace

std::vector<std::string> unknown_keys(const nlohmann::json& config, const nlohmann::json& written,
                                      const Family& family) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.items()) {
    const bool bookkeeping = key.starts_with('_');
    const bool known = bookkeeping || written.contains(key) || contains(family.other_keys, key) ||
                       contains(kRead, key) || contains(kWithoutSay, key) || contains(kSampling, key);
    if (!known && !value.is_null()) unknown.push_back(key);
  }
  return unknown;
}

std::vector<std::string> unknown_rope_keys(const nlohmann::json& rope, RopeScaling::Kind kind) {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : rope.items()) {
    if (!value.is_null() && !contains(kRope, key) && !contains(keys_of(kind), key)) unknown.push_back(key);
  }
  return unknown;
}

}  // namespace primus
