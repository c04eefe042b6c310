// The interface between a provider and the blocked driver (blocked.cpp): the shape of the provider's register
// tile, the layout of packed operands, and the functions that pack, multiply and store.
//
//   Packed A has strips of `mr` rows:    [k / kb][mr][kb], zero-padded.
//   Packed B has strips of `nr` columns: [k / pairs][nr][pairs], zero-padded;
//   `pairs` is 2 for bf16 (VNNI), 1 for fp32.
// Every strip has the complete range of k. A panel is a part of this range, and is contiguous in each strip.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "turbo/gemm/gemm.h"

namespace primus::turbo::gemm {

// One call of a packing function: `strips` consecutive strips over one range of k.
struct PackCall {
  // The address of element (first row or column of the strips, first k). With `rows`, the address of element
  // (row 0, first k).
  const void* source;
  std::int64_t ld;           // leading dimension of the source, in elements
  const std::int32_t* rows;  // for gathered rows: the source index of each row; else null
  std::int64_t extent;  // rows of A (columns of B) from the first strip to the end; later rows become zero
  std::int64_t k;       // length of the k range; the remainder of its last block is zero-filled
  int strips;
  void* packed;              // points to the first k (a multiple of kb) of the first strip
  std::int64_t strip_bytes;  // stride between strips
};
using PackFunction = void (*)(const PackCall&);

// c_out[mr, nr] = c_in + a · b over `blocks` blocks of kb. Null c_in means zero. If the kernel's `any_c` is
// false, C is a contiguous tile, and c_in is null or c_out.
struct TileCall {
  const void* a;
  const void* b;
  const float* c_in;
  std::int64_t ld_in;
  float* c_out;
  std::int64_t ld_out;
  std::int64_t blocks;
  int rows;  // number of valid rows, in [1, mr]; the kernel may write anything to the other rows
  // Prefetch hints, which kernels may ignore. Any address is allowed, because hints are neither read nor
  // written.
  const char* ahead;           // prefetched to L2: the next strip of B, or memory that the caller reads next
  const char* next_c;          // the block of C that the next call reads or writes
  std::int64_t next_c_stride;  // stride between rows, in bytes
  std::int64_t next_c_second;  // offset of the second cache line to prefetch per row, in bytes
};

// One function per direction of k in the source: along a row (k_contiguous), or across rows.
struct Packers {
  PackFunction k_contiguous, k_strided;
};
struct OperandPackers {
  Packers a, b;
};

// Moves a tile [mr, nr] between the accumulators' scratch and rows of C of type fp32 or bf16.
struct TileIo {
  float* tile;
  int tile_ld;
  void* c;
  std::int64_t ldc;
  int rows, cols;
};
using TileIoFunction = void (*)(const TileIo&);

struct TileIoFunctions {
  TileIoFunction load_f32, store_f32, load_bf16, store_bf16;
  // The variant of store_f32 with non-temporal stores, for rows of complete cache lines. Null if the CPU has
  // no such stores or nr is too small. Other threads may read only after a fence.
  TileIoFunction stream_f32;
};

struct Kernel {
  int mr, nr, kb;
  std::int64_t max_panel;  // max. size of k per panel, so that a strip's panel stays in its cache level
  // Bytes of packed operands per task (see choose_tasks()). If at least `min_columns` columns of B (or all
  // columns) fit into resident_b bytes, these columns stay in L2, and passing_a limits the rows of A per
  // task. Otherwise resident_a limits the rows of A that stay in L2.
  struct Cache {
    std::int64_t resident_b, min_columns, passing_a, resident_a;
  } cache;
  std::int64_t ahead_bytes = 0;  // bytes of `ahead` that run() prefetches per block of k
  DType packed;                  // element type of packed operands
  bool any_c = false;
  void (*run)(const TileCall&);
  void (*begin)() = nullptr;  // set and clear per-thread state around calls of run
  void (*end)() = nullptr;
  OperandPackers pack;
  TileIoFunctions io;
};

// Returns the kernel of a provider for operands of a type, or null if this machine cannot run it. kAuto is
// not a provider.
const Kernel* find_kernel(GemmProvider provider, DType ab_dtype);

// Each function returns the kernel of one provider, or null if this CPU does not support it. `ab_dtype` is
// the type that the packers read.
const Kernel* portable_kernel(DType ab_dtype);
const Kernel* xsmm_kernel(DType ab_dtype);
const Kernel* xsmm_bf16_kernel();
const Kernel* amx_kernel();
// begin_amx() sets all eight tiles of this thread to 16 rows x 64 bytes, and end_amx() releases the tiles.
// After end_amx(), the operating system has no tile state to save in a context switch. These functions
// require that amx_kernel() is not null.
void begin_amx();
void end_amx();
// Runs 4 tile products per iteration on registers only, to measure the units' peak. Requires that
// amx_kernel() is not null.
void amx_product_loop(std::int64_t iterations);

inline std::int64_t round_up(std::int64_t value, std::int64_t to) { return (value + to - 1) / to * to; }
inline std::int64_t ceil_div(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace primus::turbo::gemm
