// Short convolutions (turbo/causal_conv) as an operator of the tape.
//
// On context ranks a token's neighbours may be on another rank. Each rank gives the last width - 1 inputs of
// its two slices of every sequence to all others, and takes what is in front of its own; in the backward pass
// their gradients go the other way. That is all that travels: a few rows, whatever the sequence's length.
#pragma once

#include "engine/operators.h"
#include "turbo/causal_conv/causal_conv.h"

namespace primus::engine {

struct ShortConvolutionShape {
  std::int64_t batch = 0, sequence = 0;  // tokens of this rank; with a cache they only multiply to the rows
  std::int64_t channels = 0, width = 0;  // channels of this rank
  turbo::CausalConvShape::Form form = turbo::CausalConvShape::Form::kGated;
};

struct ShortConvolutionOptions {
  CachedSequences cache = {};          // its layer has a ring of inputs
  ContextParallel* context = nullptr;  // of `sequence` at least 2 (width - 1) tokens, in its order
  Value first_key = {};                // as AttentionOptions'
  Parameter* bias = nullptr;           // [channels]
};

// [T, 3 * channels]: B, C, x, or of kSilu [T, channels] -> [T, channels]. `weight`: [channels, width].
Value short_convolution(const Value& bcx, Parameter& weight, const ShortConvolutionShape& shape,
                        const ShortConvolutionOptions& options = {});

}  // namespace primus::engine
