// Low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685): two small matrices beside a linear layer's
// weight, which are trained while the weight is not:
//
//   y = W x + (alpha / dim) B (A x)      A: [dim, in], drawn at random   B: [out, dim], zeros at first
//
// Modules are those of Megatron-LM's models: what several published matrices are fused into has one A, which
// their adapters share, and a B with the rows of all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct LoraConfig {
  std::int64_t dim = 0;  // 0: there are no adapters, and everything is trained
  double alpha = 0;
  bool kaiming = false;              // A's initial values: Kaiming's standard deviation, else Xavier's
  std::vector<std::string> modules;  // of config::lora_modules()

  // How they are trained, which is no part of what they are.
  struct Training {
    double dropout = 0;        // rate, of what A reads
    bool drops_after = false;  // of what B gives instead
    bool operator==(const Training&) const = default;
  } training = {};

  explicit operator bool() const { return dim > 0; }
  double scale() const { return alpha / static_cast<double>(dim); }
  bool has(std::string_view module) const;
  bool operator==(const LoraConfig&) const = default;
};

}  // namespace primus
