// An experiment's `lora:` map: low-rank adapters, with the names of AMD Primus's fine-tuning trainer. If
// target_modules has other names than lora_modules(), or one of PEFT's further keys is set, adapters are
// added to single matrices, as in PEFT.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace primus::config {

inline constexpr std::int64_t kMaxLoraDim = 4096;

// Modules that adapters may be added to: linear_qkv (attention's query, key and value projections),
// linear_proj (attention's output projection), linear_fc1 (the gate and up projections of a feed-forward
// layer), linear_fc2 (its down projection).
std::span<const std::string_view> lora_modules();

struct LoraSettings {
  bool enabled = false;
  std::int64_t dim = 32;
  double alpha = 32;
  double dropout = 0;
  std::string dropout_position = "pre";
  std::string a_init = "xavier", b_init = "zero";  // keys lora_A_init_method and lora_B_init_method
  // Names of modules; empty for adapters of single matrices.
  std::vector<std::string> target_modules{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
  // Keys that have the names and the meaning of adapter_config.json: target_modules, exclude_modules,
  // use_rslora, use_dora, lora_bias, rank_pattern, alpha_pattern, modules_to_save, layers_to_transform and
  // layers_pattern. Their values are not checked (lm/model/peft_config.h). Empty for adapters of modules.
  std::vector<Member> peft = {};
  // A PEFT folder with adapters of the model of `load`, which are trained further. The folder contains their
  // settings, so only `enabled`, `dropout` and the keys of base weights may be set, too. Empty: new adapters.
  std::string adapters;
  // How the frozen matrices are stored: "nf4" or "fp4" (QLoRA), or "none" for the compute type.
  std::string base_weights = "none";
  std::int64_t base_block = 64;   // number of weights that share a factor
  bool base_double_quant = true;  // whether factors are stored in 8 bits
};

// Throws an Error at the position of an unknown or misspelt key, or of an invalid value. Null or a missing
// key means the default.
LoraSettings read_lora(const Value& lora);

}  // namespace primus::config
