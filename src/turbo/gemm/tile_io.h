// Loads and stores accumulator tiles, for each vector width. See TileIo in kernel.h.
#pragma once

#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

struct TileIoFunctions {
  TileIoFunction load_f32, store_f32, load_bf16, store_bf16, stream_f32;
};

// Returns the fastest set for this CPU. bf16 is rounded to nearest even, including subnormals.
TileIoFunctions tile_io();
// Returns the set with vcvtneps2bf16, which flushes subnormals as the bf16 products do. Needs avx512_bf16.
TileIoFunctions tile_io_avx512_bf16();

}  // namespace primus::turbo::gemm
