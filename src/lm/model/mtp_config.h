// Multi-token prediction (lm/model/multi_token_prediction.h): the number of modules, and whether a run uses
// them.
#pragma once

#include <cstdint>

namespace primus {

struct MtpConfig {
  static constexpr std::int64_t kMaxLayers = 64;

  std::int64_t layers = 0;  // number of modules, one for each depth (num_nextn_predict_layers)
  // Whether modules are built and saved. False in evaluation and generation, which ignore the tensors of
  // modules in checkpoints.
  bool enabled = false;

  struct Training {
    double loss_scale = 0.1;  // factor of the mean of the losses of all depths in the training loss

    bool operator==(const Training&) const = default;
  } training;

  std::int64_t modules() const { return enabled ? layers : 0; }

  bool operator==(const MtpConfig&) const = default;
};

}  // namespace primus
