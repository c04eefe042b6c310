// Short convolutions of a model (LFM2). The members are declared in blocks/short_convolution.cpp
// (model_fields.def).
#pragma once

#include <cstdint>

namespace primus {

struct ConvolutionConfig {
#define CONVOLUTION_FIELD(type, member, initial, ...) type member = initial;
#include "lm/model/model_fields.def"

  bool operator==(const ConvolutionConfig&) const = default;
};

}  // namespace primus
