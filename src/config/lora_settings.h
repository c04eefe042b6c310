// An experiment's `lora:` map: low-rank adapters, by the names that Primus's trainer for fine-tuning gives
// them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace primus::config {

inline constexpr std::int64_t kMostLoraDim = 4096;

// What adapters may lie beside: linear_qkv (attention's queries, keys and values), linear_proj (its output),
// linear_fc1 (a feed-forward's gate and up), linear_fc2 (its down).
std::span<const std::string_view> lora_modules();

struct LoraSettings {
  bool enabled = false;
  std::int64_t dim = 32;
  double alpha = 32;
  double dropout = 0;
  std::string dropout_position = "pre";
  std::string a_init = "xavier", b_init = "zero";  // lora_A_init_method, lora_B_init_method
  std::vector<std::string> target_modules{"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"};
};

// Throws an Error at the place of a key that is unknown or misspelt, or of a value that is wrong. Null, and
// an absent key, is the default.
LoraSettings read_lora(const Value& lora);

}  // namespace primus::config
