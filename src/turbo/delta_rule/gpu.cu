// The delta rule on GPUs. docs/performance.md has its expected cost.
#include "turbo/delta_rule/gpu_cached.h"
#include "turbo/delta_rule/gpu_chunk_keys.h"
#include "turbo/delta_rule/gpu_finish_channels.h"
#include "turbo/delta_rule/gpu_finish_heads.h"
#include "turbo/delta_rule/gpu_gradients.h"
#include "turbo/delta_rule/gpu_input_gradients.h"
#include "turbo/delta_rule/gpu_output.h"
#include "turbo/delta_rule/gpu_prepare.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Divides a workspace into aligned buffers. With a null workspace, only adds up the sizes.
class Pieces {
 public:
  explicit Pieces(std::byte* base) : base_(base) {}
  template <class X>
  X* take(std::int64_t count) {
    X* const piece = base_ ? reinterpret_cast<X*>(base_ + used_) : nullptr;
    used_ += (count * static_cast<std::int64_t>(sizeof(X)) + 255) / 256 * 256;
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// The maximum of (number of tokens) * (number of value heads) that are processed at a time. It limits the
// workspace. All value heads of a key head are processed together, even if their number exceeds the limit.
constexpr std::int64_t kTokensOfHeads = std::int64_t{32} * 8192;

std::int64_t heads_at_a_time(const DeltaRuleShape& s) {
  const std::int64_t group = s.value_heads / s.key_heads;
  const std::int64_t tokens = s.batch * blocks_for(s.sequence, kRows) * kRows;
  return std::clamp<std::int64_t>(kTokensOfHeads / (tokens * group), 1, s.key_heads) * group;
}

// Calls body(first head, number of heads) for groups of value heads that are processed at a time.
template <class Body>
void for_each_heads(const DeltaRuleShape& s, Body body) {
  const std::int64_t maximum = heads_at_a_time(s);
  for (std::int64_t first = 0; first < s.value_heads; first += maximum)
    body(first, std::min(maximum, s.value_heads - first));
}

// Sizes of the matrices of all items that are processed at a time.
struct DeltaSizes {
  explicit DeltaSizes(const DeltaRuleShape& s)
      : items(s.batch * blocks_for(s.sequence, kRows) * heads_at_a_time(s)),
        gates(items * kRows * (s.channel_gates ? s.key_dim : 1)),
        keys(items * kRows * s.key_dim),
        values(items * kRows * s.value_dim),
        pairs(items * kRows * kRows),
        states(items * s.key_dim * s.value_dim),
        channels(items * s.key_dim) {}
  std::int64_t items, gates, keys, values, pairs, states, channels;
};

template <class T>
DeltaStates<T> take_states(Pieces& pieces, const DeltaSizes& n) {
  return {pieces.take<double>(n.gates), pieces.take<T>(n.keys),       pieces.take<T>(n.keys),
          pieces.take<T>(n.keys),       pieces.take<T>(n.keys),       pieces.take<T>(n.keys),
          pieces.take<T>(n.pairs),      pieces.take<float>(n.pairs),  pieces.take<float>(n.pairs),
          pieces.take<T>(n.keys),       pieces.take<float>(n.values), pieces.take<T>(n.values),
          pieces.take<T>(n.states)};
}

template <class T>
struct ForwardMemory {
  ForwardMemory(Pieces& pieces, const DeltaSizes& n)
      : states(take_states<T>(pieces, n)), out(pieces.take<float>(n.values)) {}
  DeltaStates<T> states;
  float* out;
};

template <class T>
struct BackwardMemory {
  BackwardMemory(Pieces& pieces, const DeltaSizes& n)
      : states(take_states<T>(pieces, n)),
        d{.out = nullptr,
          .scaled = pieces.take<T>(n.values),
          .u = pieces.take<float>(n.values),
          .error = pieces.take<T>(n.values),
          .states = pieces.take<T>(n.states),
          .of_read = pieces.take<float>(n.pairs),
          .of_write = pieces.take<float>(n.pairs),
          .read = pieces.take<T>(n.pairs),
          .write = pieces.take<T>(n.pairs),
          .q = pieces.take<float>(n.keys),
          .looking = pieces.take<float>(n.keys),
          .seen = pieces.take<float>(n.keys),
          .last = pieces.take<float>(n.channels),
          .qkv = nullptr,
          .g = nullptr,
          .beta = nullptr} {}
  DeltaStates<T> states;
  DeltaGradients<T> d;
};

template <class T>
struct StoreOut {
  DeltaItems<T> in;
  const float* from;  // [kRows, value_dim] per item
  T* out;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t item = i / (kRows * in.value_dim), token = i / in.value_dim % kRows;
    if (token >= in.tokens(item)) return;
    out[((in.row(item) + token) * in.all_heads + in.head(item)) * in.value_dim + i % in.value_dim] =
        from_float<T>(in.scale * from[i]);
  }
};

// ---- Chunks on matrix units --------------------------------------------------------------------

// Returns whether the kernels of gpu_chunks.h support this shape. If so, calls body(padded width of keys,
// whether gates are per channel) with compile-time constants.
template <class Body>
bool with_chunks([[maybe_unused]] const Context& context, const DeltaRuleShape& s, DType dtype, Body&& body) {
  if constexpr (kWarp == 32) {
    constexpr std::int64_t kWidest = 128;
    if (dtype != DType::kBF16 || s.key_dim > kWidest || s.key_dim % 8 != 0 || s.value_dim % 8 != 0)
      return false;
#ifdef PRIMUS_GPU_VENDOR
    using Largest = DeltaAdvance<BFloat16, kWidest, true>::Memory;
    if (max_shared(context) < static_cast<std::int64_t>(sizeof(Largest))) return false;
#endif
    with_flag(s.channel_gates, [&](auto by_channel) {
      if (s.key_dim > kWidest / 2) return body(std::integral_constant<int, kWidest>{}, by_channel);
      body(std::integral_constant<int, kWidest / 2>{}, by_channel);
    });
    return true;
  }
  return false;
}

template <int kKeys>
DeltaChunks<BFloat16> take_chunks(Pieces& pieces, const DeltaRuleShape& s, bool by_channel,
                                  bool backward = false) {
  const std::int64_t items = DeltaSizes(s).items, strips = blocks_for(s.value_dim, kStrip);
  const std::int64_t keys = by_channel ? items * kRows * kKeys : 0;
  return {pieces.take<BFloat16>(items * kKeys * kRows),
          pieces.take<BFloat16>(items * kRows * kRows),
          pieces.take<Bytes16>(items * strips * kBlocks * kWarp),
          pieces.take<Bytes16>(items * strips * (kKeys / kTile) * kWarp),
          pieces.take<float>(items * (by_channel ? kKeys : kRows + 4)),
          pieces.take<float>(by_channel ? 0 : items * kRows),
          pieces.take<BFloat16>(keys),
          pieces.take<BFloat16>(keys),
          backward ? pieces.take<BFloat16>(items * kRows * kRows) : nullptr,
          strips};
}

// Computes the states and U.
template <int kKeys, bool kByChannel>
void make_chunks(Context& context, const DeltaItems<BFloat16>& in, const DeltaChunks<BFloat16>& to) {
  using Prepare = DeltaPrepare<BFloat16, kKeys, kByChannel>;
  using Advance = DeltaAdvance<BFloat16, kKeys, kByChannel>;
  launch(context, in.count(), Prepare{{{in, to}}}, sizeof(typename Prepare::Memory));
  launch(context, in.batch * in.heads * blocks_for(to.strips, Advance::kStrips), Advance{{in, to}},
         sizeof(typename Advance::Memory));
}

bool forward_by_chunks(Context& context, const DeltaRuleForward& a) {
  return with_chunks(context, a.shape, a.qkv.dtype, [&](auto keys, auto by_channel) {
    using Output = DeltaOutput<BFloat16, keys(), by_channel()>;
    Pieces pieces(context.data<std::byte>(a.workspace));
    const DeltaChunks<BFloat16> to = take_chunks<keys()>(pieces, a.shape, by_channel());
    for_each_heads(a.shape, [&](std::int64_t first, std::int64_t heads) {
      const DeltaItems<BFloat16> in(context, a, first, heads);
      make_chunks<keys(), by_channel()>(context, in, to);
      launch(context, in.count() * Output::parts(to.strips), Output{{in, to}, context.data<BFloat16>(a.out)},
             sizeof(typename Output::Memory));
    });
  });
}

void forward(Context& context, const DeltaRuleForward& a) {
  if (forward_by_chunks(context, a)) return;
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    Pieces pieces(context.data<std::byte>(a.workspace));
    const ForwardMemory<T> memory(pieces, DeltaSizes(a.shape));
    const DeltaStates<T>& m = memory.states;
    for_each_heads(a.shape, [&](std::int64_t first, std::int64_t heads) {
      const DeltaItems<T> in(context, a, first, heads);
      const std::int64_t items = in.count(), keys = in.key_dim, values = in.value_dim;
      make_states(context, in, m);
      multiply_items(context, items, kRows, values, keys, matrix(m.q_since, kRows, keys),
                     matrix(m.states, keys, values), memory.out);
      multiply_items(context, items, kRows, values, kRows, matrix(m.read, kRows, kRows),
                     matrix(m.u, kRows, values), memory.out, true);
      for_each(context, items * kRows * values, StoreOut<T>{in, memory.out, context.data<T>(a.out)});
    });
  });
}

template <int kKeys, bool kByChannel>
using DeltaFinishKernel =
    std::conditional_t<kByChannel, DeltaFinishChannels<BFloat16, kKeys>, DeltaFinishHeads<BFloat16, kKeys>>;

// Like with_chunks(), but for the backward pass, whose kernels need more shared memory.
template <class Body>
bool with_chunks_back([[maybe_unused]] const Context& context, const DeltaRuleShape& s, DType dtype,
                      Body&& body) {
  if constexpr (kWarp == 32) {
#ifdef PRIMUS_GPU_VENDOR
    std::size_t shared = 0;
    with_flag(s.channel_gates, [&](auto by_channel) {
      shared = std::max(sizeof(typename DeltaRetreat<BFloat16, 128, by_channel()>::Memory),
                        sizeof(typename DeltaFinishKernel<128, by_channel()>::Memory));
    });
    if (max_shared(context) < static_cast<std::int64_t>(shared)) return false;
#endif
    return with_chunks(context, s, dtype, body);
  }
  return false;
}

template <int kKeys>
struct ChunkedBackwardMemory {
  ChunkedBackwardMemory(Pieces& pieces, const DeltaRuleShape& s)
      : chunks(take_chunks<kKeys>(pieces, s, s.channel_gates, true)),
        d{.out = nullptr,
          .u = pieces.take<Bytes16>(DeltaSizes(s).items * chunks.strips * kBlocks * kWarp),
          .states = pieces.take<Bytes16>(DeltaSizes(s).items * chunks.strips * (kKeys / kTile) * kWarp),
          .q = pieces.take<float>(DeltaSizes(s).keys),
          .k = pieces.take<float>(DeltaSizes(s).keys),
          .qkv = nullptr,
          .g = nullptr,
          .beta = nullptr} {}
  DeltaChunks<BFloat16> chunks;
  DeltaChunkGradients<BFloat16> d;
};

bool backward_by_chunks(Context& context, const DeltaRuleBackward& a) {
  return with_chunks_back(context, a.shape, a.qkv.dtype, [&](auto keys, auto by_channel) {
    using Retreat = DeltaRetreat<BFloat16, keys(), by_channel()>;
    using Finish = DeltaFinishKernel<keys(), by_channel()>;
    Pieces pieces(context.data<std::byte>(a.workspace));
    const ChunkedBackwardMemory<keys()> memory(pieces, a.shape);
    const DeltaChunks<BFloat16>& to = memory.chunks;
    DeltaChunkGradients<BFloat16> d = memory.d;
    d.out = context.data<BFloat16>(a.d_out);
    d.qkv = context.data<BFloat16>(a.d_qkv);
    d.g = context.data<float>(a.d_g);
    d.beta = context.data<float>(a.d_beta);
    for_each_heads(a.shape, [&](std::int64_t first, std::int64_t heads) {
      const DeltaItems<BFloat16> in(context, a, first, heads);
      make_chunks<keys(), by_channel()>(context, in, to);
      launch(context, in.batch * in.heads * blocks_for(to.strips, Retreat::kStrips), Retreat{{in, to}, d},
             sizeof(typename Retreat::Memory));
      launch(context, in.count(), Finish{in, to, d}, sizeof(typename Finish::Memory));
      launch(context, in.count() / in.group, DeltaChunkKeys<BFloat16>{in, d});
    });
  });
}

// Propagates the gradients of the token-by-token matrices to the inputs of these matrices.
template <class T>
void pairs_backward(Context& context, const DeltaItems<T>& in, const DeltaStates<T>& m,
                    const DeltaGradients<T>& d) {
  const std::int64_t items = in.count(), keys = in.key_dim;
  if (in.channel_gates) {
    using Pairs = DeltaPairsBackward<T>;
    return launch(context, items * blocks_for(keys, Pairs::kThreads), Pairs{in, m, d});
  }
  using Weigh = DeltaWeigh<T, T>;
  launch(context, blocks_for(items * kRows * kRows, Weigh::kThreads),
         Weigh{in, m.sums, d.of_read, d.of_write, d.read, d.write});
  const auto read = matrix(d.read, kRows, kRows), write = matrix(d.write, kRows, kRows);
  const auto q = matrix(m.q, kRows, keys), k = matrix(m.k, kRows, keys);
  const auto add = [&](const ItemMatrix<T>& a, const ItemMatrix<T>& b, float* to) {
    multiply_items(context, items, kRows, keys, kRows, a, b, to, true);
  };
  add(read, k, d.q);
  add(write, k, d.looking);
  add(read.transposed(), q, d.seen);
  add(write.transposed(), k, d.seen);
}

void backward(Context& context, const DeltaRuleBackward& a) {
  if (backward_by_chunks(context, a)) return;
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    Pieces pieces(context.data<std::byte>(a.workspace));
    const BackwardMemory<T> memory(pieces, DeltaSizes(a.shape));
    const DeltaStates<T>& m = memory.states;
    DeltaGradients<T> d = memory.d;
    d.out = context.data<T>(a.d_out);
    d.qkv = context.data<T>(a.d_qkv);
    d.g = context.data<float>(a.d_g);
    d.beta = context.data<float>(a.d_beta);
    for_each_heads(a.shape, [&](std::int64_t first, std::int64_t heads) {
      const DeltaItems<T> in(context, a, first, heads);
      const std::int64_t items = in.count(), keys = in.key_dim, values = in.value_dim;
      const auto of_values = [&](T* data) { return matrix(data, kRows, values); };
      const auto of_states = [&](T* data) { return matrix(data, keys, values).transposed(); };
      make_states(context, in, m);
      launch(context, items, DeltaScaled<T>{in, d});
      multiply_items(context, items, kRows, values, kRows, matrix(m.read, kRows, kRows).transposed(),
                     of_values(d.scaled), d.u);
      launch_scan(context, in, DeltaScanBackward<T>{in, m, d});
      launch(context, items, DeltaSolveBackward<T>{in, m, d});
      const auto u = of_values(m.u);
      multiply_items(context, items, kRows, kRows, values, of_values(d.scaled), u.transposed(), d.of_read);
      multiply_items(context, items, kRows, kRows, values, of_values(d.error), u.transposed(), d.of_write);
      multiply_items(context, items, kRows, keys, values, of_values(d.scaled), of_states(m.states), d.q);
      multiply_items(context, items, kRows, keys, values, of_values(d.error), of_states(m.states), d.looking);
      multiply_items(context, items, kRows, keys, values, u, of_states(d.states), d.seen);
      launch(context, items, DeltaUndecay<T>{in, m, d});
      pairs_backward(context, in, m, d);
      launch(context, items, DeltaGates<T>{in, m, d});
      using Keys = DeltaKeys<T>;
      const std::int64_t warps = 2 * in.batch * in.sequence * (heads / in.group);
      launch(context, blocks_for(warps, Keys::kThreads / kWarp), Keys{in, d});
    });
  });
}

template <template <class> class Memory>
std::int64_t workspace(const DeltaRuleShape& shape, DType dtype) {
  Pieces pieces(nullptr);
  with_float_type(dtype, [&](auto tag) { Memory<decltype(tag)>(pieces, DeltaSizes(shape)); });
  return pieces.used();
}

std::int64_t forward_workspace(Context& context, const DeltaRuleForward& a) {
  Pieces pieces(nullptr);
  const bool by_chunks = with_chunks(context, a.shape, a.qkv.dtype, [&](auto keys, auto by_channel) {
    take_chunks<keys()>(pieces, a.shape, by_channel());
  });
  if (by_chunks) return pieces.used();
  return workspace<ForwardMemory>(a.shape, a.qkv.dtype);
}
std::int64_t backward_workspace(Context& context, const DeltaRuleBackward& a) {
  Pieces pieces(nullptr);
  const bool by_chunks = with_chunks_back(context, a.shape, a.qkv.dtype, [&](auto keys, auto) {
    ChunkedBackwardMemory<keys()>(pieces, a.shape);
  });
  if (by_chunks) return pieces.used();
  return workspace<BackwardMemory>(a.shape, a.qkv.dtype);
}

}  // namespace

void register_delta_rule(KernelTable& table) {
  table.add<DeltaRuleForward, Context, &forward, &forward_workspace>();
  table.add<DeltaRuleBackward, Context, &backward, &backward_workspace>();
  table.add<CachedDeltaRule, Context, &cached_delta_rule, &cached_delta_rule_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
