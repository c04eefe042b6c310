// Loads and stores accumulator tiles, for each vector width. See TileIo in kernel.h.
#pragma once

#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

// Returns the fastest set for this CPU. bf16 is rounded to nearest even, including subnormals.
TileIoFunctions tile_io();
// Returns functions that round with vcvtneps2bf16. This instruction sets subnormals to zero, as the bf16
// products do. The functions need avx512_bf16.
TileIoFunctions tile_io_avx512_bf16();

}  // namespace primus::turbo::gemm
