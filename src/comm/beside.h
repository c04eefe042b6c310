// Collectives that run beside products of matrices. On a GPU both want multiprocessors: a product that has
// all of them lets no collective begin before it ends, and one whose last blocks wait for those of a
// collective takes twice as long. So the collective takes few, and the product leaves as many.
#pragma once

#include <string_view>

#include "comm/rendezvous/environment.h"

namespace primus::comm {

// Enough for most of what NVLink carries, and an eighth of an H100.
inline constexpr int kProcessorsBeside = 16;

// For tokens on their way to experts and back: all that the library takes by itself. These collectives mostly
// take longer than the products beside them, so they are not slowed down.
inline constexpr int kProcessorsBesideExperts = 32;

// Whether a group's collectives are to take no more than kProcessorsBeside: those of the mesh's tensor ranks
// (engine/tensor_parallel.h).
inline bool beside_products(std::string_view group) { return group.starts_with("tensor."); }

// Whether a group of this name is to exchange by copy engines. `usual`: its devices were seen to do it.
inline bool wants_copy_engines(CopyEngines wanted, std::string_view group, bool usual) {
  if (wanted == CopyEngines::kAuto) wanted = usual ? CopyEngines::kAll : CopyEngines::kOff;
  if (wanted == CopyEngines::kOff || beside_products(group)) return wanted != CopyEngines::kOff;
  return wanted == CopyEngines::kAll && (group.starts_with("context.") || group.starts_with("data.") ||
                                         group.starts_with("tokens.") || group.starts_with("expert_data."));
}

}  // namespace primus::comm
