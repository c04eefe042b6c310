// Tile products in fp32, for fp32 or bf16 operands.
//
// An engine of tile products (this one, and Bf16Tiles) packs operands into its own layout and multiplies
// them. In the formulas, `lanes` are queries:
//   score      [keys, lanes]  = Left(keys or values) · Right(queries or d_out)
//   transposed [dim, lanes]  += LeftTransposed(values or keys) · RightScores(probabilities or d_scores)
//   by_key     [keys, dim]   += LeftScores(probabilities or d_scores) · Columns(d_out or queries)
// Score tiles and [dim, lanes] sums have rows of kTile floats; [keys, dim] sums are in consecutive panels of
// panel_width(dim) columns.
#pragma once

#include <algorithm>

#include "turbo/attention/cpu_fp32_products.h"
#include "turbo/attention/cpu_geometry.h"
#include "turbo/attention/cpu_vectors.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// T: type of the operands in memory.
template <class T>
class Fp32Tiles {
 public:
  using Source = T;
  using Element = float;  // type of packed operands

  static constexpr std::int64_t kLaneBlock = 32, kKeyBlock = 2;  // granularity of strips
  // Returns the number of lanes per strip for this number of queries. The sums of a lane do not depend on it.
  static std::int64_t lane_block(std::int64_t queries) {
    return queries <= kGroup ? std::int64_t{kGroup} : kLaneBlock;
  }
  void begin() const {}  // call before and after the products of a work item
  void end() const {}

  // Return the number of elements of a packed tile of `dim` columns.
  static std::int64_t left_elements(std::int64_t dim) { return kTile * dim; }
  static std::int64_t right_elements(std::int64_t dim) { return kTile * dim; }
  static std::int64_t columns_elements(std::int64_t dim) { return kTile * panel_width(dim); }
  static std::int64_t transposed_rows(std::int64_t dim) { return dim; }
  static std::int64_t panel_width(std::int64_t dim) { return round_up(dim, kFp32Lanes); }

  static void pack_left(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, float* to) {
    load_rows(from, stride, rows, dim, to, dim, kTile);
  }
  // A left operand and its transpose are packed in the same way, because left operands may have any strides.
  static constexpr bool kLeftIsLeftTransposed = true;
  static void pack_left_transposed(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                                   float* to) {
    pack_left(from, stride, rows, dim, to);
  }
  static void pack_right(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, float* to) {
    constexpr std::int64_t kPanel = 64;  // number of columns that are buffered in L1 at a time
    float panel[kTile * kPanel];
    for (std::int64_t c = 0; c < dim; c += kPanel) {
      const std::int64_t cols = std::min(kPanel, dim - c);
      load_rows(from + c, stride, rows, cols, panel, kPanel, kTile);
      transpose(panel, kPanel, kTile, cols, to + c * kTile, kTile);
    }
  }
  static void pack_columns(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim,
                           float* to) {
    load_rows(from, stride, rows, dim, to, panel_width(dim), kTile);
  }

  static void score(const Strip& strip, std::int64_t dim, const float* left, const float* right,
                    float* scores) {
    multiply(strip.keys.size(), strip.lanes.size(), dim, {left + strip.keys.begin * dim, dim, 1},
             right + strip.lanes.begin, kTile, scores + strip.keys.begin * kTile + strip.lanes.begin, kTile);
  }
  static void add_transposed(const Strip& strip, std::int64_t dim, const float* left, const float* scores,
                             float* sum) {
    multiply_accumulate(dim, strip.lanes.size(), strip.keys.size(), {left + strip.keys.begin * dim, 1, dim},
                        scores + strip.keys.begin * kTile + strip.lanes.begin, kTile, sum + strip.lanes.begin,
                        kTile);
  }
  // `first_row` is the row of `sum` for the first key of the tile; `sum` may have any number of rows.
  static void add_by_key(const Strip& strip, std::int64_t dim, const float* scores, const float* columns,
                         float* sum, std::int64_t first_row, std::int64_t) {
    const std::int64_t width = panel_width(dim);
    multiply_accumulate(strip.keys.size(), width, strip.lanes.size(),
                        {scores + strip.keys.begin * kTile + strip.lanes.begin, kTile, 1},
                        columns + strip.lanes.begin * width, width,
                        sum + (first_row + strip.keys.begin) * width, width);
  }

  // Score tiles are packed without reordering, as left and as right operands: [key][lane]. put() packs kGroup
  // lanes of two adjacent keys.
  static constexpr bool kScoresAreLeftAndRight = true;
  PRIMUS_INLINE static void put_right(std::int64_t key, std::int64_t lane, const float* even,
                                      const float* odd, float* to) {
    copy_group(even, to + key * kTile + lane);
    copy_group(odd, to + (key + 1) * kTile + lane);
  }
  PRIMUS_INLINE static void put_left(std::int64_t key, std::int64_t lane, const float* even, const float* odd,
                                     float* to) {
    put_right(key, lane, even, odd, to);
  }

 private:
  PRIMUS_INLINE static void copy_group(const float* from, float* to) {
    PRIMUS_SIMD()
    for (int i = 0; i < kGroup; ++i) to[i] = from[i];
  }
};

}  // namespace primus::turbo::PRIMUS_CPU_ISA
