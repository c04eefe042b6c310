// Stopping work early: another thread sets a flag, which the worker polls often.
#pragma once

namespace primus {

// Thrown when a worker stops because of such a flag. The output of the stopped work is incomplete and must
// not be used.
struct StopRequest {};

}  // namespace primus
