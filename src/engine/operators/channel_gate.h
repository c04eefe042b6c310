// The gates of the delta rule (turbo/channel_gate) as an operator of the tape.
#pragma once

#include "engine/operators/operators.h"

namespace primus::engine {

struct ChannelGateValues {
  Value g;     // [T, heads * channels] fp32
  Value beta;  // [T, heads] fp32
};

// Computes the decay and the write strength from z [T, heads * channels] and b [T, heads]. `a_log`: [heads];
// `bias`: [heads * channels]. lower_bound 0 means no bound.
ChannelGateValues channel_gates(const Value& z, const Value& b, Parameter& a_log, Parameter& bias,
                                double lower_bound);

}  // namespace primus::engine
