// A small parameter as a value of the tape, for operators that read several, or read one in fp32.
#pragma once

#include "engine/tape.h"

namespace primus::engine {

// The values that operators read of `parameter`, in fp32 and of its shape. Its gradient is that of the value.
Value parameter_values(Tape& tape, Parameter& parameter);

}  // namespace primus::engine
