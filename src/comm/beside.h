// Collectives that run beside products of matrices. On a GPU both want multiprocessors: a product that has
// all of them lets no collective begin before it ends, and one whose last blocks wait for those of a
// collective takes twice as long. So the collective takes few, and the product leaves as many.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous/environment.h"

namespace primus::comm {

// Enough for most of what NVLink carries, and an eighth of an H100.
inline constexpr int kProcessorsBeside = 16;

// For tokens on their way to experts and back: all that the library takes by itself. These collectives mostly
// take longer than the products beside them, so they are not slowed down.
inline constexpr int kProcessorsBesideExperts = 32;

// Whether a group is to exchange by copy engines. `usual`: its devices were seen to do it.
inline bool wants_copy_engines(CopyEngines wanted, Beside beside, bool usual) {
  if (wanted == CopyEngines::kAuto) wanted = usual ? CopyEngines::kAll : CopyEngines::kOff;
  return wanted == CopyEngines::kAll  ? beside != Beside::kNothing
         : wanted == CopyEngines::kOn ? beside == Beside::kProducts
                                      : false;
}

}  // namespace primus::comm
