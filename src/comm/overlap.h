// Collectives that overlap GEMMs. On a GPU, GEMMs and collectives need multiprocessors (SMs). A GEMM that
// occupies all SMs delays the start of a collective until the GEMM ends. A GEMM whose last blocks wait for
// SMs of a collective takes twice as long. So the collective uses only a few SMs, and the GEMM leaves these
// SMs free.
#pragma once

#include "comm/communicator.h"
#include "comm/rendezvous/environment.h"

namespace primus::comm {

// SMs of an overlapped collective. 16 SMs, an eighth of an H100's, reach most of the NVLink bandwidth.
inline constexpr int kOverlapProcessors = 16;

// SMs of an overlapped expert all-to-all. The library uses 32 SMs by default. An expert all-to-all usually
// takes longer than the GEMMs that it overlaps, so a lower limit would slow the step down.
inline constexpr int kExpertOverlapProcessors = 32;

// Returns whether a group communicates by copy engines. `usual`: the default of the group's devices for
// kAuto.
inline bool wants_copy_engines(CopyEngines wanted, Overlap overlap, bool usual) {
  if (wanted == CopyEngines::kAuto) wanted = usual ? CopyEngines::kAll : CopyEngines::kOff;
  return wanted == CopyEngines::kAll  ? overlap != Overlap::kNothing
         : wanted == CopyEngines::kOn ? overlap == Overlap::kProducts
                                      : false;
}

}  // namespace primus::comm
