// Layouts, addressing and copies of the delta rule's forward pass on matrix units, for bf16 and warps of 32.
// The forward pass has three kernels:
//
// - DeltaPrepare, for all chunks at once, computes P (products of queries and keys) and the solutions of the
//   chunk's triangular system: U0 for values, and W (negated) for keys.
// - DeltaAdvance, chunk by chunk, computes U = U0 + W S and the next state S. Two warps keep 16 value columns
//   of a state in registers.
// - DeltaOutput, for all chunks at once, computes the output: the product of queries with S, plus P U.
//
// The system is (I + L) X = B with L strictly lower triangular, in blocks of 16 tokens. T[i] is the inverse
// of I + L[i][i], by substitution in fp32; then X[i] = T[i] B[i] - sum over j < i of (T[i] L[i][j]) X[j].
// The transposed result X[j] of one product has the layout of an operand of the next product. Therefore X[j]
// stays in registers.
//
// With gates per channel, the decay between tokens of two blocks is a product of two factors <= 1. The first
// factor is the decay from the earlier token to the start of the later token's block. The second factor is
// the decay from this start to the later token. Pairs of tokens of one block are summed one by one.
#pragma once

#include "turbo/delta_rule/gpu_delta_rule.h"
#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kStrip = kTile;           // value columns per warp
constexpr int kBlocks = kRows / kTile;  // token blocks per chunk
constexpr int kPart = 128;              // value columns per block of DeltaPrepare and DeltaOutput
constexpr int kPartStrips = kPart / kStrip;
constexpr int kPad = 8;  // padding of rows in shared memory, against bank conflicts when a column is read

// Intermediate results of the kernels, per item. `strips`: ceil(value_dim / kStrip).
template <class T>
struct DeltaChunks {
  T* w;             // [kRows, keys]: -W
  T* p;             // [kRows, kRows]
  Bytes16* u;       // [strips, kBlocks, kWarp] left operands [columns, tokens]; first U0, later U
  Bytes16* states;  // [strips, keys / kTile, kWarp] left operands [columns, keys]: S before the chunk
  float* write;     // with one gate per head: [kRows + 4], the decay of each key to the chunk's end, and the
                    // decay of S; with gates per channel: [keys], the decay of S
  float* read;      // used with one gate per head: [kRows], the factors of queries
  T *q, *k;  // used with gates per channel: [kRows, keys], q · decay since the chunk's start, and k · decay
             // to its end
  T* back;   // [kRows, kRows], optional: the diagonal blocks of the inverse, and - L[i][j] T[j] below the
             // diagonal
  std::int64_t strips;
};

// Functions for addressing and copying that the kernels share.
template <class T, int kKeys, bool kByChannel>
struct DeltaChunkKernel {
  DeltaItems<T> in;
  DeltaChunks<T> to;

  static constexpr int kFactors = kByChannel ? kKeys : kRows + 4;
  static constexpr int kKeyTiles = kKeys / kTile;
  // Copies rows in 16-byte pieces from global memory, with zeros outside [rows, cols). A thread copies pieces
  // of one column, so that the addresses of its pieces differ by constants. If kCompact is set, the loop is
  // not unrolled. In long kernels, fetching the instructions of unrolled loops would be the bottleneck.
  template <int kThreads, int kCols, bool kCompact = false, int kStep>
  PRIMUS_DEVICE static void copy_rows(const T* from, std::int64_t stride, int rows, std::int64_t cols,
                                      T (*to)[kStep]) {
    constexpr int kPieces = kCols / 8, kTogether = kThreads / kPieces;
    constexpr int kTimes = kTogether < kRows ? kRows / kTogether : 1;
    static_assert(kThreads % kPieces == 0 && (kTogether >= kRows || kRows % kTogether == 0));
    [[maybe_unused]] constexpr int kUnrolled = kCompact ? 1 : kTimes;
    const int first = thread() / kPieces, c = thread() % kPieces * 8;
    if (kTogether > kRows && first >= kRows) return;
    const bool wide = c < cols;
    const T* piece = from + first * stride + c;
    SharedAddress at = shared_address(&to[0][0]) + (first * kStep + c) * static_cast<int>(sizeof(T));
    PRIMUS_UNROLL_BY(kUnrolled)
    for (int n = 0; n < kTimes; ++n) {
      const bool there = wide && first + n * kTogether < rows;
      copy_async(at, there ? piece : from, there);
      piece += kTogether * stride;
      at += kTogether * kStep * static_cast<int>(sizeof(T));
    }
  }
  // Computes sums [kRows] of a head's gates. Runs in the block's first warp; a lane processes two tokens.
  PRIMUS_DEVICE static void sum_gates_of_head(const DeltaItems<T>& in, const DeltaPlace& place,
                                              double* sums) {
    const std::int64_t stride = in.all_heads;
    const float* const g = in.g + place.row * in.all_heads + place.head;
    if (warp() != 0) return;
    const int i = 2 * lane();
    const double first = i < place.tokens ? static_cast<double>(g[i * stride]) : 0.0;
    const double second = i + 1 < place.tokens ? static_cast<double>(g[(i + 1) * stride]) : 0.0;
    double sum = first + second;
    PRIMUS_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = from_lane_before(sum, distance);
      if (lane() >= distance) sum += before;
    }
    const double before = from_lane_before(sum, 1), start = lane() > 0 ? before : 0.0;
    sums[i] = start + first;
    sums[i + 1] = start + first + second;
  }
  PRIMUS_DEVICE const T* queries(const DeltaPlace& place) const {
    return in.qkv + place.row * in.width + place.key_head * in.key_dim;
  }
  PRIMUS_DEVICE Bytes16* u_of(std::int64_t item, std::int64_t strip) const {
    return to.u + (item * to.strips + strip) * kBlocks * kWarp + lane();
  }
  PRIMUS_DEVICE Bytes16* state_of(std::int64_t item, std::int64_t strip) const {
    return to.states + (item * to.strips + strip) * kKeyTiles * kWarp + lane();
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
