// The time of a pass that consists only of a model's matrix products, attention and delta rules. Each of them
// is timed separately on the device, with random operands. Omits routers, like the FLOP count, the gradient
// of sinks, norms, convolutions, and everything else that only moves data. Single-threaded.
#pragma once

#include <cstdint>

#include "bench/device_timer.h"
#include "device/device.h"
#include "lm/model/model_config.h"
#include "tensor/dtype.h"

namespace primus {

struct ComposedTime {
  double product_seconds = 0;
  double attention_seconds = 0;  // attention with its windows; sinks only in the forward pass
  double delta_rule_seconds = 0;
  double all() const { return product_seconds + attention_seconds + delta_rule_seconds; }
};

struct ComposedOptions {
  DType dtype = DType::kBF16;
  DType weight_gradient = DType::kF32;
  double seconds = 0.3;                                     // duration of each measurement
  std::int64_t rotated_bytes = DeviceTimer::kRotatedBytes;  // operands of consecutive calls
};

// Returns the time of forward and backward passes of `batch` sequences of `length` tokens.
ComposedTime time_training_alone(Device& device, const ModelConfig& config, std::int64_t batch,
                                 std::int64_t length, const ComposedOptions& options);

// Returns the time to read `batch` prompts of `length` tokens at once. Only the last token of each prompt has
// logits.
ComposedTime time_reading_alone(Device& device, const ModelConfig& config, std::int64_t batch,
                                std::int64_t length, const ComposedOptions& options);

}  // namespace primus
