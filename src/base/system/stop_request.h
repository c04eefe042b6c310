// Asking work to stop before it is done: somebody sets a flag, and who works looks at it often.
#pragma once

namespace primus {

// Thrown where work is left half-way because a flag asked for it. What the work was to write is worth
// nothing.
struct StopRequest {};

}  // namespace primus
