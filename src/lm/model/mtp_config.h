// Multi-token prediction (lm/model/multi_token_prediction.h): how much of it a model has.
#pragma once

#include <cstdint>

namespace primus {

struct MtpConfig {
  static constexpr std::int64_t kMaxLayers = 64;

  std::int64_t layers = 0;  // depths whose modules belong to the model (num_nextn_predict_layers)
  // False: this use of the model does without them. They are neither built nor saved, and their tensors in
  // checkpoints are passed over: evaluation and generation.
  bool enabled = false;

  struct Training {
    double loss_scale = 0.1;  // of the mean over depths of their losses, in the sum that is trained

    bool operator==(const Training&) const = default;
  } training;

  std::int64_t modules() const { return enabled ? layers : 0; }

  bool operator==(const MtpConfig&) const = default;
};

}  // namespace primus
