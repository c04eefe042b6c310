// What an experiment says of its optimizer. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "config/trainer_config.h"
#include "tensor/dtype.h"

namespace primus {

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  DType first_moment = DType::kF32, second_moment = DType::kF32;  // or kBF16
};

struct LionSettings {
  double beta1 = 0.95, beta2 = 0.98;
};

struct MuonSettings {
  // What the orthogonal update of a matrix [out, in] is multiplied by.
  enum class Scale : std::uint8_t {
    kSpectral,      // sqrt(max(out, in)): with a further factor of 0.2, as large as AdamW's updates
    kUnitRmsNorm,   // sqrt(out / in)
    kShapeScaling,  // sqrt(max(1, out / in))
  };
  // The polynomials of the Newton-Schulz iteration.
  enum class Coefficients : std::uint8_t {
    kSimple,   // one for all steps
    kQuintic,  // five, in turn, closer to 1 after five steps
  };

  double momentum = 0.95;
  bool nesterov = false;
  Scale scale = Scale::kSpectral;
  double extra_scale = 1;
  std::int64_t steps = 5;  // of the iteration
  Coefficients coefficients = Coefficients::kQuintic;
  bool fp32_products = false;  // false: the operands of the iteration's products are bf16
  bool split_qkv = true;       // the projections of queries, keys and values are matrices of their own
  bool lion_for_rest = false;  // what is no hidden matrix is updated by Lion instead of AdamW
};

struct OptimizerSettings {
  enum class Kind : std::uint8_t { kAdamW, kSgd, kLion, kMuon } kind = Kind::kAdamW;
  AdamSettings adam;
  double sgd_momentum = 0.9;
  LionSettings lion;
  MuonSettings muon;
  double clip_norm = 1.0;  // of the whole gradient; 0: no clipping
  // Of bf16 parameters: the masters are the values and 16 bits beside them (turbo/master_weights.h). The same
  // numbers either way.
  bool split_masters = false;
  bool decay_all_parameters = false;  // false, as Megatron: norms and biases are not decayed

  static OptimizerSettings from(const config::TrainerConfig& config);
};

}  // namespace primus
