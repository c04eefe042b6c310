// Short convolutions (turbo/causal_conv) as an operator of the tape.
//
// With context parallelism a token's neighbours may be on another rank. Each rank sends the last width - 1
// inputs of its two slices of every sequence to all other ranks. From the received inputs, a rank uses the
// inputs that precede its slices. In the backward pass, gradients of these inputs are sent back. The number
// of exchanged rows does not depend on the sequence's length.
#pragma once

#include "engine/operators/operators.h"
#include "turbo/causal_conv/causal_conv.h"

namespace primus::engine {

struct ShortConvolutionShape {
  std::int64_t batch = 0, sequence = 0;  // tokens of this rank; with a cache, only their product matters
  std::int64_t channels = 0, width = 0;  // channels of this rank
  turbo::CausalConvShape::Form form = turbo::CausalConvShape::Form::kGated;
};

struct ShortConvolutionOptions {
  CachedSequences cache = {};          // its layer must have a ring of inputs
  ContextParallel* context = nullptr;  // requires `sequence` >= 2 (width - 1)
  Value first_key = {};                // as in AttentionOptions
  Parameter* bias = nullptr;           // [channels]
};

// Maps [T, 3 * channels] (B, C, x), or for kSilu [T, channels], to [T, channels]. `weight`: [channels,
// width].
Value short_convolution(const Value& bcx, Parameter& weight, const ShortConvolutionShape& shape,
                        const ShortConvolutionOptions& options = {});

}  // namespace primus::engine
