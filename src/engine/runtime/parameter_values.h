// A small parameter as a value of the tape, for operators that read several parameters, or read a parameter
// in fp32.
#pragma once

#include "engine/runtime/tape.h"

namespace primus::engine {

// Returns the parameter's values in fp32 and in its shape. The gradient of the returned Value becomes the
// gradient of the parameter.
Value parameter_values(Tape& tape, Parameter& parameter);

}  // namespace primus::engine
