// Collectives that overlap GEMMs. On a GPU, GEMMs and collectives need multiprocessors (SMs). A GEMM that
// occupies all SMs delays the start of a collective until the GEMM ends. A GEMM whose last blocks wait for
// SMs of a collective takes twice as long. So the collective uses only a few SMs, and the GEMM leaves these
// SMs free.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "comm/rendezvous/environment.h"
#include "device/collectives.h"

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

// Returns whether the ranks of a group try whether their kernels can write the rows of all_to_all_rows() into
// each other's memory. `peers`: null if devices of this kind cannot access each other's memory.
inline bool wants_direct_rows(CountedRows wanted, const DevicePeers* peers) {
  return wanted == CountedRows::kDirect ||
         (wanted == CountedRows::kAuto && peers && peers->usual && peers->copy_rows);
}

// Returns how all_to_all_rows() will probably send rows between devices of this kind, as a sentence without
// its full stop. A trial at the start of a run decides.
inline std::string planned_rows(CountedRows wanted, const DevicePeers* peers) {
  if (wanted == CountedRows::kOff) return "complete parts are sent (PRIMUS_COUNTED_ROWS=off)";
  const std::string counted = "the counted rows are sent, and the host waits for the counts";
  if (!wants_direct_rows(wanted, peers)) return counted;
  const std::string direct = "kernels write the rows into the memory of the host's other GPUs";
  return wanted == CountedRows::kDirect ? direct : direct + "; where they cannot, " + counted;
}

}  // namespace primus::comm
