// Attention over pages of a cache in bf16 by warpgroups (gpu_attending.h). Tiles of keys begin at the first
// token of each sequence, as in training on a batch-invariant device (gpu_document_tiles.h), so the results
// have the same bits.
#pragma once

#include "turbo/attention/gpu_attending.h"
#include "turbo/attention/gpu_paged.h"

namespace primus::turbo::PRIMUS_GPU {

// kDecoding: a tile has the query heads of one token that share keys, so that keys are read once for these
// heads. With `parts`, each run of keys (gpu_runs.h) has a block, and PagedMerge adds the runs. Otherwise a
// tile has up to 128 tokens of one sequence and one head.
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
  int runs;         // per query; 1 without parts
  bool in_runs;     // false: the keys of a query are added as one run, which needs no merging
  float* parts;     // [tokens, heads, runs, kPart], or null: a block computes all runs
  float scale;

  // Floats of a part: the maximum, the total and the sums over values.
  static constexpr int kPart = kValueDim + 2;

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    let_next_begin();
    // In decoding, the fetching thread waits for the previous kernel.
    if constexpr (!kDecoding) wait_for_previous();
    Tile tile;
    if (!open(tile)) return;
    Memory& memory = shared_panels<Memory>();
    this->start(
        memory,
        [&] {
          if constexpr (kDecoding) wait_for_previous();
          this->attend(
              memory, tile, scale,
              [&](int i) {
                const Query query = of.at(kDecoding ? tile.row : tile.row + i);
                return KeyRange{query.begin, query.end};
              },
              [&] { return results_of(tile); });
        },
        [&] { fetch(memory, tile); });
    if constexpr (kDecoding) wait_for_previous();  // every thread of the block
#else
    wait_for_previous();
#endif
  }

  // Sets the tile of this block. Returns false if there is none; then waits for the previous kernel, and
  // clears the results of tokens that belong to no sequence.
  PRIMUS_DEVICE bool open(Tile& tile) const {
    const int index = static_cast<int>(block()) / runs, batch = static_cast<int>(of.pages.batch);
    if constexpr (kDecoding) {
      const int kv_heads = heads / group;
      tile.row = index / kv_heads;
      tile.head = index % kv_heads * group;
      tile.rows = group;
      if (!of.has(tile.row)) {
        wait_for_previous();
        return parts ? false : clear(tile.row, tile.row + 1, tile.head, group);
      }
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
    int end = last.end;
    if (parts) {
      const int run = (first.begin / kRunKeys + static_cast<int>(block()) % runs) * kRunKeys;
      if (run > tile.begin) tile.begin = run;
      if (run + kRunKeys < end) end = run + kRunKeys;
      if (tile.begin >= end) {
        wait_for_previous();
        return false;
      }
    }
    tile.steps = (end - tile.begin + kKeys - 1) / kKeys;
    // Lines after the last token of the sequence may have any bits.
    const int rest = of.pages.lengths[tile.sequence] - (tile.begin + (tile.steps - 1) * kKeys);
    tile.rest = rest < kKeys ? rest : kKeys;
    return true;
  }

  PRIMUS_DEVICE Results results_of(const Tile& tile) const {
    const std::int64_t part = (static_cast<std::int64_t>(tile.row) * heads + tile.head) * runs;
    return {.part = parts ? parts + (part + block() % runs) * kPart : nullptr,
            .part_step = std::int64_t{runs} * kPart,
            .out = out + (static_cast<std::int64_t>(tile.row) * heads + tile.head) * kValueDim,
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
    // In decoding, the first tiles are fetched while the previous kernel still computes the queries and the
    // rows of this pass. Earlier passes wrote the other rows, and the copies before this pass waited for
    // these.
    int early = 0;
    if constexpr (kDecoding) {
      const int fresh = of.pages.starts[tile.sequence + 1] - of.pages.starts[tile.sequence];
      const int old = (of.pages.lengths[tile.sequence] - fresh - tile.begin) / kKeys;
      early = old < kStages ? (old > 0 ? old : 0) : kStages;
      if (early > tile.steps) early = tile.steps;
    }
    // Each function is called at one place, because long code takes time to load.
    for (int step = 0; step <= tile.steps; ++step) {
      if (step == early) fetch_queries(memory, tile);
      if (step < tile.steps) fetch_keys(memory, tile, step);
      if (step > 0) fetch_values(memory, tile, step - 1);
    }
  }
  PRIMUS_DEVICE void fetch_queries(Memory& memory, const Tile& tile) const {
    if constexpr (kDecoding) wait_for_previous();
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
  }
  PRIMUS_DEVICE void fetch_keys(Memory& memory, const Tile& tile, int step) const {
    const int slot = step % kStages, key = tile.begin + step * kKeys;
    memory.keys_empty[slot].wait(step / kStages % 2 ^ 1);
    memory.first_keys[slot] = key, memory.last_keys[slot] = key + kKeys;
    memory.begins_run[slot] = in_runs && step > 0 && key % kRunKeys == 0;
    fetch_rows<kHeadDim>(memory.keys[slot], kPageLines * kPanelLine, kKeys * kPanelLine, keys, tile, key,
                         memory.keys_full[slot]);
  }
  PRIMUS_DEVICE void fetch_values(Memory& memory, const Tile& tile, int step) const {
    const int slot = step % kStages;
    memory.values_empty[slot].wait(step / kStages % 2 ^ 1);
    fetch_rows<kValueDim>(memory.values[slot], kPageLines * kValueDim, kPageLines * kPanelLine, values, tile,
                          tile.begin + step * kKeys, memory.values_full[slot]);
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

// Adds the runs of each token and head in order. A thread computes columns.
template <int kValueDim>
struct PagedMerge {
  static constexpr int kThreads = kValueDim, kPart = kValueDim + 2;
  using StartsEarly = void;
  Queries of;
  const float* parts;
  const BFloat16* sinks;  // may be null
  BFloat16* out;
  int heads, runs;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const int item = static_cast<int>(block()), row = item / heads, head = item % heads;
    const bool there = of.has(row);
    const Query query = there ? of.at(row) : Query{};
    const int count = there ? (query.end - 1) / kRunKeys - query.begin / kRunKeys + 1 : 0;
    const float* const from = parts + static_cast<std::int64_t>(item) * runs * kPart;
    wait_for_previous();
    MergedRuns merged;
    float sum = 0;
    PRIMUS_UNROLL_BY(8)
    for (int run = 0; run < count; ++run) {
      const float* const part = from + run * kPart;
      sum = merged.add(part[0], part[1]).sum(sum, part[2 + thread()]);
    }
    const float sink = sinks && there ? to_float(sinks[head]) * kLog2E : -infinity();
    const JoinedSink joined(merged.maximum, merged.total, sink, sinks != nullptr);
    out[static_cast<std::int64_t>(item) * kValueDim + thread()] =
        there ? from_float<BFloat16>(sum * joined.share) : BFloat16{};
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
