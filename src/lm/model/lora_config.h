// Low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685): two small trained matrices next to the frozen
// weight of a linear layer:
//
//   y = W x + (alpha / dim) B (A x)
//   A: [dim, in], initialized randomly; B: [out, dim], initialized to zero
//
// The names of modules are those of Megatron-LM. If a module consists of several published matrices, all
// matrices share one A, and B has the rows of all matrices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

struct LoraConfig {
  std::int64_t dim = 0;  // rank of the adapters; 0: the model has no adapters, and all weights are trained
  double alpha = 0;
  bool kaiming = false;              // true: A is initialized with Kaiming's standard deviation; false: with
                                     // Xavier's
  std::vector<std::string> modules;  // names of the modules that have adapters, a subset of
                                     // config::lora_modules()

  // How adapters are trained. These settings are not part of the architecture.
  struct Training {
    double dropout = 0;        // dropout rate on A's input
    bool drops_after = false;  // true: dropout is applied to B's output instead of A's input
    bool operator==(const Training&) const = default;
  } training = {};

  explicit operator bool() const { return dim > 0; }
  double scale() const { return alpha / static_cast<double>(dim); }
  bool has(std::string_view module) const;
  bool operator==(const LoraConfig&) const = default;
};

}  // namespace primus
