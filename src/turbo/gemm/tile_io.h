// Loading and storing accumulator tiles, for each vector width. See TileIo in kernel.h.
#pragma once

#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

struct TileIoFunctions {
  TileIoFunction load_f32, store_f32, load_bf16, store_bf16, stream_f32;
};

// The fastest set for this CPU. bf16 is rounded to nearest even, subnormals included.
TileIoFunctions tile_io();
// With vcvtneps2bf16, which flushes subnormals as the bf16 products do. Needs avx512_bf16.
TileIoFunctions tile_io_avx512_bf16();

}  // namespace primus::turbo::gemm
