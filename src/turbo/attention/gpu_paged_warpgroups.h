// Attention over pages of a cache in bf16 by warpgroups (gpu_attending.h). Tiles of keys begin at the first
// token of each sequence, as in training on a batch-invariant device (gpu_document_tiles.h), so the results
// have the same bits.
#pragma once

#include "turbo/attention/gpu_attending.h"
#include "turbo/attention/gpu_paged.h"

namespace primus::turbo::PRIMUS_GPU {

// kDecoding: a tile has the query heads of one token that share keys, so that keys are read once for these
// heads. Otherwise a tile has up to 128 tokens of one sequence and one head.
template <int kHeadDim, int kValueDim, bool kDecoding>
struct PagedWarpgroups : AttendingWarpgroups<kHeadDim, kValueDim, kDecoding ? 1 : 2, true> {
  using Base = AttendingWarpgroups<kHeadDim, kValueDim, kDecoding ? 1 : 2, true>;
  using StartsEarly = void;
  using typename Base::Memory, typename Base::Tile, typename Base::Results;
  static constexpr int kRows = Base::kRows, kKeys = Base::kKeys, kStages = Base::kStages;
  // Boxes of keys and values have this number of lines, so that a box is in one page.
  static constexpr int kPageLines = kPanelLine;
  static_assert(PagedSequences::kPageMultiple % kPageLines == 0);

  Queries of;
  BoxMap queries, keys, values;
  const BFloat16* sinks;  // may be null
  BFloat16* out;
  int tokens, heads, group;
  int query_lines;  // of a box of queries: a multiple of 8 in decoding
  float scale;

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    let_next_begin();
    wait_for_previous();
    Tile tile;
    if (!open(tile)) return;
    Memory& memory = shared_panels<Memory>();
    this->start(
        memory,
        [&] {
          this->attend(
              memory, tile, scale,
              [&](int i) {
                const Query query = of.at(kDecoding ? tile.row : tile.row + i);
                return KeyRange{query.begin, query.end};
              },
              [&] { return results_of(tile); });
        },
        [&] { fetch(memory, tile); });
#else
    wait_for_previous();
#endif
  }

  // Sets the tile of this block. Returns false if there is none; then clears the results of tokens that
  // belong to no sequence.
  PRIMUS_DEVICE bool open(Tile& tile) const {
    const int index = static_cast<int>(block()), batch = static_cast<int>(of.pages.batch);
    if constexpr (kDecoding) {
      const int kv_heads = heads / group;
      tile.row = index / kv_heads;
      tile.head = index % kv_heads * group;
      tile.rows = group;
      if (!of.has(tile.row)) return clear(tile.row, tile.row + 1, tile.head, group);
    } else {
      const int item = index / heads;
      tile.head = index % heads;
      tile.sequence = item % (batch + 1);
      tile.row = of.pages.starts[tile.sequence] + item / (batch + 1) * kRows;
      const int end = tile.sequence == batch ? tokens : of.pages.starts[tile.sequence + 1];
      if (tile.row >= end) return false;
      tile.rows = end - tile.row < kRows ? end - tile.row : kRows;
      if (tile.sequence == batch) return clear(tile.row, tile.row + tile.rows, tile.head, 1);
    }
    const Query first = of.at(tile.row), last = of.at(kDecoding ? tile.row : tile.row + tile.rows - 1);
    tile.sequence = first.sequence;
    tile.begin = first.begin / kKeys * kKeys;
    tile.steps = (last.end - tile.begin + kKeys - 1) / kKeys;
    // Lines after the last token of the sequence may have any bits.
    const int rest = of.pages.lengths[tile.sequence] - (tile.begin + (tile.steps - 1) * kKeys);
    tile.rest = rest < kKeys ? rest : kKeys;
    return true;
  }

  PRIMUS_DEVICE Results results_of(const Tile& tile) const {
    return {.out = out + (static_cast<std::int64_t>(tile.row) * heads + tile.head) * kValueDim,
            .out_step = (kDecoding ? 1 : heads) * std::int64_t{kValueDim},
            .lse = nullptr,
            .sinks = sinks ? sinks + tile.head : nullptr,
            .sink_step = kDecoding ? 1 : 0};
  }

  PRIMUS_DEVICE bool clear(int row, int end, int head, int count) const {
    const int width = count * kValueDim;
    for (int i = thread(); i < (end - row) * width; i += Base::kThreads) {
      const std::int64_t at = row + i / width;
      out[(at * heads + head) * kValueDim + i % width] = BFloat16{};
    }
    return false;
  }

  PRIMUS_DEVICE void fetch(Memory& memory, const Tile& tile) const {
    memory.queries_full.arrive_and_expect(kHeadDim * query_lines * static_cast<int>(sizeof(BFloat16)));
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine) {
      BFloat16* const to = memory.queries + i * kRows;
      if constexpr (kDecoding) {
        copy_box(to, queries, i, tile.head, tile.row, memory.queries_full);
      } else {
        copy_box(to, queries, tile.head * kHeadDim + i, tile.row, 0, memory.queries_full);
      }
    }
    for (int step = 0; step <= tile.steps; ++step) {
      const int key = tile.begin + step * kKeys;
      if (step < tile.steps) {
        const int slot = step % kStages;
        memory.keys_empty[slot].wait(step / kStages % 2 ^ 1);
        memory.first_keys[slot] = key, memory.last_keys[slot] = key + kKeys;
        fetch_rows<kHeadDim>(memory.keys[slot], kPageLines * kPanelLine, kKeys * kPanelLine, keys, tile, key,
                             memory.keys_full[slot]);
      }
      if (step > 0) {
        const int slot = (step - 1) % kStages;
        memory.values_empty[slot].wait((step - 1) / kStages % 2 ^ 1);
        fetch_rows<kValueDim>(memory.values[slot], kPageLines * kValueDim, kPageLines * kPanelLine, values,
                              tile, key - kKeys, memory.values_full[slot]);
      }
    }
  }

  // Fetches the rows of kKeys keys, as far as the sequence has them. `row_step` and `column_step`: elements
  // between boxes of consecutive rows and of consecutive columns.
  template <int kDim>
  PRIMUS_DEVICE void fetch_rows(BFloat16* to, int row_step, int column_step, const BoxMap& from,
                                const Tile& tile, int key, Gate& full) const {
    const Pages& pages = of.pages;
    const int length = pages.lengths[tile.sequence], kv_head = tile.head / group;
    const std::int32_t* const table = pages.table + tile.sequence * pages.blocks;
    const bool both = key + kPageLines < length;
    full.arrive_and_expect((both ? kKeys : kPageLines) * kDim * static_cast<int>(sizeof(BFloat16)));
    for (int half = 0; half < (both ? 2 : 1); ++half) {
      const int first = key + half * kPageLines;
      const int row =
          (table[first >> pages.page_bits] << pages.page_bits) + (first & ((1 << pages.page_bits) - 1));
      PRIMUS_UNROLL
      for (int i = 0; i < kDim / kPanelLine; ++i) {
        copy_box(to + half * row_step + i * column_step, from, kv_head * kDim + i * kPanelLine, row, 0, full);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
