// LayerNorm of rows: y = (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016). Only the keys of
// DeepSeek's indexer use LayerNorm; the models otherwise use RMSNorm. There is no backward pass, because the
// indexer is not trained. Statistics are in fp32; results are rounded once.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct LayerNorm {
  static constexpr KernelId kId = KernelId::kLayerNorm;
  Tensor x;       // [rows, n]
  Tensor weight;  // [n] in x's type
  Tensor bias;    // [n] fp32
  Tensor y;       // output: [rows, n]; may be x
  float eps;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
