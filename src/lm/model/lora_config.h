// Low-rank adapters (LoRA; Hu et al. 2021, arXiv:2106.09685): two small trained matrices next to the frozen
// weight of a linear layer:
//
//   y = W x + (alpha / dim) B (A x)
//   A: [dim, in], initialized randomly; B: [out, dim], initialized to zero
//
// Adapters are described in one of two ways:
//
//   by module   Modules have Megatron-LM's names. If a module consists of several published
//               matrices, all matrices share one A, and B has the rows of all matrices.
//   by matrix   Each published matrix has its own A and B, as in PEFT (lm/model/peft_config.h). Adapters may
//               then differ in rank, and may have biases and magnitudes (DoRA; Liu et al. 2024,
//               arXiv:2402.09353). Other parameters of the model may be trained, too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "turbo/four_bit/four_bit_format.h"

namespace primus {

// The adapters of single published matrices.
struct MatrixAdapters {
  struct Matrix {
    std::string name;              // the published name without ".weight": "model.layers.0.mlp.up_proj"
    std::int64_t dim = 0;          // the rank
    double scale = 1;              // the factor of B (A x)
    std::int64_t out = 0, in = 0;  // the matrix is [out, in]
    bool operator==(const Matrix&) const = default;
  };
  std::vector<Matrix> matrices;    // sorted by name
  std::vector<std::string> saved;  // names of modules that are trained without adapters, sorted
  bool magnitudes = false;         // DoRA: y = m * (W x + scale B A x) / |W + scale B A|, with the norm of
                                   // each row; m is trained
  bool biases = false;             // B has a bias

  explicit operator bool() const { return !matrices.empty() || !saved.empty(); }
  // Returns null if the matrix has no adapter.
  const Matrix* find(std::string_view name) const;
  bool saves(std::string_view name) const;
  bool operator==(const MatrixAdapters&) const = default;
};

struct LoraConfig {
  std::int64_t dim = 0;  // rank of the adapters; 0: the model has no adapters, and all weights are trained
  double alpha = 0;
  bool kaiming = false;              // true: A is initialized with Kaiming's standard deviation; false: with
                                     // Xavier's
  std::vector<std::string> modules;  // names of the modules that have adapters, a subset of
                                     // config::lora_modules(); empty for adapters by matrix
  MatrixAdapters by_matrix = {};     // `dim` and `alpha` are then the values of most matrices

  // How adapters are trained. These settings are not part of the architecture.
  struct Training {
    double dropout = 0;        // dropout rate on A's input
    bool drops_after = false;  // true: dropout is applied to B's output instead of A's input
    // How frozen matrices of linear layers are stored; without a type: in the compute type.
    turbo::FourBitFormat base = {};
    bool operator==(const Training&) const = default;
  } training = {};

  explicit operator bool() const { return dim > 0; }
  double scale() const { return alpha / static_cast<double>(dim); }
  bool has(std::string_view module) const;
  bool operator==(const LoraConfig&) const = default;
};

}  // namespace primus
