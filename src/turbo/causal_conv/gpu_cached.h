// Short causal convolution in generation, on GPUs: the inputs of earlier tokens are in a ring.
#pragma once

#include "turbo/attention/gpu_paged.h"
#include "turbo/causal_conv/gpu_runs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

template <class T, bool kSilu>
struct Cached {
  static constexpr int kParts = kSilu ? 1 : 3;
  Pages pages;
  const T *bcx, *weight;
  const float* bias;
  float* ring;
  T* y;
  std::int64_t rows, channels, width, ring_rows;

  // Loads u of a row of the projection.
  template <int kCount>
  PRIMUS_DEVICE void load_input(std::int64_t row, std::int64_t channel, float (&u)[kCount]) const {
    load<kCount>(bcx + row * kParts * channels + channel, u);
    if constexpr (!kSilu) {
      float x[kCount];
      load<kCount>(bcx + (row * 3 + 2) * channels + channel, x);
      multiply(x, u);
    }
  }
  PRIMUS_DEVICE float* place(std::int64_t sequence, std::int64_t position, std::int64_t channel) const {
    // A 64-bit division would take longer than the loads.
    const std::int64_t row = static_cast<std::uint32_t>(position) % static_cast<std::uint32_t>(ring_rows);
    return ring + (sequence * ring_rows + row) * channels + channel;
  }
  // Returns the position that row 0 would have if it belonged to this sequence.
  PRIMUS_DEVICE std::int64_t origin(std::int64_t sequence) const {
    return pages.lengths[sequence] - pages.starts[sequence + 1];
  }
  template <int kCount>
  PRIMUS_DEVICE void make(std::int64_t sequence, std::int64_t row, std::int64_t channel) const {
    const std::int64_t position = origin(sequence) + row;
    float sum[kCount];
    start_from(bias ? bias + channel : nullptr, sum);
    for (std::int64_t d = smaller(width - 1, position); d >= 0; --d) {
      float u[kCount], w[kCount];
      if (row - d >= pages.starts[sequence]) {
        load_input(row - d, channel, u);
      } else {
        load<kCount>(place(sequence, position - d, channel), u);
      }
      load_weight(weight, width, channel, d, w);
      add_product(w, u, sum);
    }
    if constexpr (kSilu) {
      activate(sum);
    } else {
      float c[kCount];
      load<kCount>(bcx + (row * 3 + 1) * channels + channel, c);
      multiply(c, sum);
    }
    store<kCount>(y + row * channels + channel, sum);
  }
  template <int kCount>
  PRIMUS_DEVICE void keep(std::int64_t sequence, std::int64_t row, std::int64_t channel) const {
    float u[kCount];
    load_input(row, channel, u);
    store<kCount>(place(sequence, origin(sequence) + row, channel), u);
  }
  template <int kCount>
  PRIMUS_DEVICE void clear(std::int64_t row, std::int64_t channel) const {
    const float zero[kCount] = {};
    store<kCount>(y + row * channels + channel, zero);
  }
};

// Computes all rows of a pass, from the ring's contents before the pass.
template <class T, bool kSilu, int kCount>
struct CachedRows {
  Cached<T, kSilu> all;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    if (row >= all.pages.starts[all.pages.batch]) return all.template clear<kCount>(row, channel);
    all.template make<kCount>(all.pages.sequence_of(row), row, channel);
  }
};

// Writes the last inputs of each sequence to the ring, in a second launch. Calls body(index from the end,
// channel) for each sequence.
template <class T, bool kSilu, int kCount>
struct KeptRows {
  Cached<T, kSilu> all;
  PRIMUS_DEVICE void operator()(std::int64_t item, std::int64_t channel) const {
    const std::int64_t sequence = item / all.ring_rows;
    const std::int64_t row = all.pages.starts[sequence + 1] - 1 - item % all.ring_rows;
    if (row >= all.pages.starts[sequence]) all.template keep<kCount>(sequence, row, channel);
  }
};

// Computes the outputs and updates the ring in one launch, for a small number of rows. A thread processes all
// rows of a sequence in order, for kCount channels. Blocks after those of the sequences clear the rows that
// belong to no sequence.
template <class T, bool kSilu, int kCount>
struct FewRows {
  static constexpr int kThreads = 128;
  using StartsEarly = void;
  Cached<T, kSilu> all;
  std::int64_t packs, tiles;  // packs: per row; tiles: blocks per sequence

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t sequence = block() / tiles, pack = block() % tiles * kThreads + thread();
    let_next_begin();
    if (pack < packs && sequence < all.pages.batch) fetch(sequence, pack * kCount);
    wait_for_previous();
    if (pack < packs) process(sequence, pack * kCount);
  }

 private:
  // Fetches weights and the ring into L2 while the previous kernel still computes the projection.
  PRIMUS_DEVICE void fetch(std::int64_t sequence, std::int64_t channel) const {
    prefetch(all.weight + channel * all.width);
    const std::int64_t position = all.origin(sequence) + all.pages.starts[sequence];
    for (std::int64_t d = smaller(all.width - 1, position); d > 0; --d)
      prefetch(all.place(sequence, position - d, channel));
  }
  PRIMUS_DEVICE void process(std::int64_t sequence, std::int64_t channel) const {
    const bool unused = sequence == all.pages.batch;
    const std::int64_t begin = all.pages.starts[sequence];
    const std::int64_t end = unused ? all.rows : all.pages.starts[sequence + 1];
    for (std::int64_t row = begin; row < end; ++row) {
      if (unused) {
        all.template clear<kCount>(row, channel);
      } else {
        all.template make<kCount>(sequence, row, channel);
      }
    }
    if (unused) return;
    for (std::int64_t row = larger(begin, end - all.ring_rows); row < end; ++row)
      all.template keep<kCount>(sequence, row, channel);
  }
};

// Launches FewRows. Few channels per thread make enough threads for a single row.
template <bool kVectors, class T, bool kSilu>
void for_few_rows(Context& context, const Cached<T, kSilu>& all) {
  constexpr int kCount = kVectors ? 2 : 1;
  using Kernel = FewRows<T, kSilu, kCount>;
  const std::int64_t packs = all.channels / kCount, tiles = blocks_for(packs, Kernel::kThreads);
  launch(context, (all.pages.batch + 1) * tiles, Kernel{all, packs, tiles});
}

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
