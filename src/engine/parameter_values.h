// A small parameter as a value of the tape, for operators that read several, or read one in fp32.
#pragma once

#include "engine/tape.h"

namespace primus::engine {

// Returns the values of `parameter` that operators read, in fp32 and in its shape. Its gradient is the
// gradient of that Value.
Value parameter_values(Tape& tape, Parameter& parameter);

}  // namespace primus::engine
