// An experiment's `lora:` map: low-rank adapters, with the names of AMD Primus's fine-tuning trainer.
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
  std::vector<std::string> target_modules{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
};

// Throws an Error at the position of an unknown or misspelt key, or of an invalid value. Null or a missing
// key means the default.
LoraSettings read_lora(const Value& lora);

}  // namespace primus::config
