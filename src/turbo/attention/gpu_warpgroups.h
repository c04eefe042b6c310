// The forward pass of attention in bf16 by warpgroups (gpu_attending.h), on tiles of 128 queries.
#pragma once

#include "turbo/attention/gpu_attending.h"
#include "turbo/attention/gpu_document_tiles.h"

namespace primus::turbo::PRIMUS_GPU {

// kByDocument: whether tiles of keys begin at the first key of each query's document. Otherwise they begin at
// the first key of the sequence.
template <int kHeadDim, int kValueDim, bool kByDocument>
struct ForwardWarpgroups : AttendingWarpgroups<kHeadDim, kValueDim, 2, kByDocument> {
  using Base = AttendingWarpgroups<kHeadDim, kValueDim, 2, kByDocument>;
  using typename Base::Memory, typename Base::Tile, typename Base::Results;
  static constexpr int kRows = Base::kRows, kKeys = Base::kKeys, kStages = Base::kStages;
  using Tiles = DocumentTiles<kKeys>;

  Visibility visibility;
  BoxMap queries, keys, values;
  const BFloat16* sinks;  // may be null
  BFloat16* out;
  float* lse;  // may be null
  int batch, heads, group, tiles;
  float scale;
  const std::int32_t* unless_zero;  // if not null and the value is 0, the kernel does nothing

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    if (unless_zero && *unless_zero == 0) return;
    Memory& memory = shared_panels<Memory>();
    const Tile tile = of_block();
    this->start(
        memory,
        [&] {
          this->attend(
              memory, tile, scale, [&](int i) { return visibility.keys(tile.sequence, tile.row + i); },
              [&] { return results_of(tile); });
        },
        [&] { fetch(memory, tile); });
#endif
  }

  // Returns the tile of this block. The blocks of the last queries of a sequence start first, because these
  // queries see the most keys.
  PRIMUS_DEVICE Tile of_block() const {
    Tile tile;
    const int index = static_cast<int>(block()), after_heads = index / heads;
    tile.head = index % heads;
    tile.sequence = after_heads % batch;
    tile.row = (tiles - 1 - after_heads / batch) * kRows;
    tile.rows = static_cast<int>(smaller(visibility.seq_q - tile.row, kRows));
    tile.rest = kKeys;
    if constexpr (kByDocument) {
      tile.begin = 0;
      tile.steps = Tiles(visibility, tile.sequence, tile.row, tile.rows).count();
    } else {
      const std::int64_t begin = visibility.keys(tile.sequence, tile.row).begin / kKeys * kKeys;
      const std::int64_t end = visibility.keys(tile.sequence, tile.row + tile.rows - 1).end;
      tile.begin = static_cast<int>(begin);
      tile.steps = end > begin ? static_cast<int>((end - begin + kKeys - 1) / kKeys) : 0;
    }
    return tile;
  }

  PRIMUS_DEVICE Results results_of(const Tile& tile) const {
    const std::int64_t stride = std::int64_t{heads} * kValueDim, tokens = batch * visibility.seq_q;
    const std::int64_t token = tile.sequence * visibility.seq_q + tile.row;
    return {.out = out + token * stride + tile.head * kValueDim,
            .out_step = stride,
            .lse = lse ? lse + tile.head * tokens + token : nullptr,
            .sinks = sinks ? sinks + tile.head : nullptr,
            .sink_step = 0};
  }

  // Copies operands in the order of their use. The first two warpgroups wait for every copy.
  PRIMUS_DEVICE void fetch(Memory& memory, const Tile& tile) const {
    if (tile.steps == 0) return;
    memory.queries_full.arrive_and_expect(sizeof(memory.queries));
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine) {
      copy_box(memory.queries + i * kRows, queries, tile.head * kHeadDim + i, tile.row, tile.sequence,
               memory.queries_full);
    }
    if constexpr (kByDocument) {
      Tiles of(visibility, tile.sequence, tile.row, tile.rows);
      int before = 0;
      for (int step = 0; step <= tile.steps; ++step) {
        const int key = of.key;
        if (step < tile.steps) {
          const int slot = step % kStages;
          memory.keys_empty[slot].wait(step / kStages % 2 ^ 1);
          memory.first_keys[slot] = key, memory.last_keys[slot] = of.end;
          memory.begins_run[slot] = step > 0 && of.begins_run();
          fetch_keys(memory, tile, step, key);
          of.next();
        }
        if (step > 0) fetch_values(memory, tile, step - 1, before);
        before = key;
      }
    } else {
      for (int step = 0; step <= tile.steps; ++step) {
        const int key = tile.begin + step * kKeys;
        if (step < tile.steps) {
          memory.keys_empty[step % kStages].wait(step / kStages % 2 ^ 1);
          fetch_keys(memory, tile, step, key);
        }
        if (step > 0) fetch_values(memory, tile, step - 1, key - kKeys);
      }
    }
  }
  PRIMUS_DEVICE void fetch_keys(Memory& memory, const Tile& tile, int step, int key) const {
    const int slot = step % kStages, kv_head = tile.head / group;
    Gate& full = memory.keys_full[slot];
    full.arrive_and_expect(sizeof(memory.keys[slot]));
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine)
      copy_box(memory.keys[slot] + i * kKeys, keys, kv_head * kHeadDim + i, key, tile.sequence, full);
  }
  PRIMUS_DEVICE void fetch_values(Memory& memory, const Tile& tile, int step, int key) const {
    const int slot = step % kStages, kv_head = tile.head / group;
    Gate& full = memory.values_full[slot];
    memory.values_empty[slot].wait(step / kStages % 2 ^ 1);
    full.arrive_and_expect(sizeof(memory.values[slot]));
    PRIMUS_UNROLL
    for (int line = 0; line < kKeys; line += kPanelLine) {
      PRIMUS_UNROLL
      for (int i = 0; i < kValueDim; i += kPanelLine) {
        copy_box(memory.values[slot] + line * kValueDim + i * kPanelLine, values, kv_head * kValueDim + i,
                 key + line, tile.sequence, full);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
