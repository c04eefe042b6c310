// Attention over pages with any number of queries per sequence. Decoding is in gpu_decode.cu.
#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles_forward.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Launches blocks for the max. number of query tiles. A block whose tile does not exist in this step returns
// at once.
template <class T>
struct PagedForward {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads;
  ForwardTiles<T> forward;
  Pages pages;
  std::int64_t tokens;

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const ForwardTiles<T>& f = forward;
    const std::int64_t panel = block() % f.panels, head = block() / f.panels % f.heads;
    const std::int64_t sequence = block() / f.panels / f.heads % (pages.batch + 1);
    const std::int64_t row = block() / f.panels / f.heads / (pages.batch + 1) * Tiles::kRows;
    const std::int64_t first = pages.starts[sequence];
    if (sequence == pages.batch) return clear(first + row, head, panel);
    Visibility visibility = f.visibility;
    visibility.seq_q = pages.starts[sequence + 1] - first;
    if (row >= visibility.seq_q) return;
    visibility.seq_k = pages.lengths[sequence];
    visibility.q_first = visibility.seq_k - visibility.seq_q;
    const std::int32_t* table = pages.table + sequence * pages.blocks;
    f.run(m, visibility,
          {f.q + first * f.q_stride + head * f.head_dim, f.q_stride, visibility.seq_q, f.head_dim},
          PagedRows<T>{f.k + head / f.group * f.head_dim, f.k_stride, visibility.seq_k, f.head_dim, table,
                       pages.page_bits},
          PagedRows<T>{f.v + head / f.group * f.value_dim, f.v_stride, visibility.seq_k, f.value_dim, table,
                       pages.page_bits},
          sequence, head, row, panel, f.out + first * f.heads * f.value_dim, nullptr);
  }

  // Clears rows that belong to no sequence.
  PRIMUS_DEVICE void clear(std::int64_t first, std::int64_t head, std::int64_t panel) const {
    const std::int64_t begin = panel * Tiles::kWide, width = smaller(forward.value_dim - begin, Tiles::kWide);
    for (std::int64_t i = thread(); i < Tiles::kRows * width; i += kThreads) {
      const std::int64_t row = first + i / width;
      if (row >= tokens) return;
      forward.out[(row * forward.heads + head) * forward.value_dim + begin + i % width] = T{};
    }
  }
};

}  // namespace

std::int64_t paged_workspace(Context& context, const PagedAttention& a) {
  if (context.batch_invariant()) return paged_order_workspace(context, a);
  return paged_decode_workspace(context, a);
}

void paged_attention(Context& context, const PagedAttention& a) {
  if (context.batch_invariant()) return paged_in_order(context, a);
  if (paged_decode(context, a) || paged_by_warpgroups(context, a)) return;
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const AttentionShape s{.batch = a.sequences.batch(),
                           .seq_q = 0,  // set later for each sequence, from the tables
                           .seq_k = 0,
                           .capacity_k = 0,
                           .heads = a.heads,
                           .kv_heads = a.kv_heads,
                           .head_dim = a.head_dim,
                           .value_dim = a.value_dim,
                           .scale = a.scale,
                           .causal = true,
                           .window = a.window,
                           .chunk = a.chunk,
                           .score_cap = a.score_cap};
    auto forward = on_tiles<ForwardTiles, T>(context, a, s, nullptr, nullptr);
    forward.sinks = optional<T>(context, a.sinks);
    forward.out = context.data<T>(a.out);
    forward.tiles = blocks_for(a.tokens, Tiles::kRows);
    forward.panels = blocks_for(s.value_dim, Tiles::kWide);
    launch(context, forward.tiles * (s.batch + 1) * s.heads * forward.panels,
           PagedForward<T>{forward, Pages(context, a.sequences), a.tokens}, sizeof(typename Tiles::Memory));
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
