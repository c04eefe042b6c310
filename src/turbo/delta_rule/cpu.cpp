// A work item is a key head of a sequence with its value heads. The chunks of a work item are processed in
// order, because each chunk needs the state after the preceding chunk. A chunk also ends at the end of a
// document: it has tokens of only one document.
#include "turbo/cpu/register.h"
#include "turbo/delta_rule/cpu_cached.h"
#include "turbo/delta_rule/cpu_chunk_gradients.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

struct Piece {
  std::int64_t begin, tokens;
  bool first, last;  // whether this is the first chunk, or the last chunk, of its document
};

// Returns the chunk of a sequence that begins at token `begin`.
Piece piece_at(const std::int32_t* first_key, std::int64_t sequence, std::int64_t begin) {
  const auto begins_document = [=](std::int64_t t) { return t == 0 || (first_key && first_key[t] == t); };
  std::int64_t end = begin + 1;
  while (end < sequence && end < begin + kDeltaChunk && !begins_document(end)) ++end;
  return {begin, end - begin, begins_document(begin), end == sequence || begins_document(end)};
}

// The tensor rows of one sequence.
template <class T>
struct Rows {
  template <class Arguments>
  Rows(const CpuContext& context, const Arguments& a, std::int64_t sequence)
      : qkv(context.data<const T>(a.qkv) + sequence * a.shape.sequence * a.shape.width()),
        g(context.data<const float>(a.g) + sequence * a.shape.sequence * a.shape.gates()),
        beta(context.data<const float>(a.beta) + sequence * a.shape.sequence * a.shape.value_heads),
        first_key(a.first_key.absent()
                      ? nullptr
                      : context.data<const std::int32_t>(a.first_key) + sequence * a.shape.sequence) {}

  template <class Chunk>
  void load(Chunk& chunk, const DeltaRuleShape& s, const ChunkKeys& keys, std::int64_t token,
            std::int64_t head) const {
    chunk.load(keys, qkv + token * s.width() + s.v_column(), g + token * s.gates(),
               beta + token * s.value_heads, head);
  }

  const T* qkv;
  const float *g, *beta;
  const std::int32_t* first_key;
};

template <class Gates>
struct ForwardWorker {
  ForwardWorker(Carver& carver, const DeltaSizes& sizes)
      : keys(carver, sizes), chunk(carver, sizes), states(carver.take<float>(sizes.group * sizes.state())) {}
  KeysOfChunk keys;
  DeltaChunk<Gates> chunk;
  float* states;
};

template <class Gates>
struct BackwardWorker {
  BackwardWorker(Carver& carver, const DeltaSizes& sizes)
      : keys(carver, sizes),
        chunk(carver, sizes),
        state(carver.take<float>(sizes.group * sizes.state())),
        states(carver.take<float>(sizes.inner_chunks() * sizes.group * sizes.state())),
        d_states(carver.take<float>(sizes.group * sizes.state())),
        d_q(carver.take<float>(kDeltaChunk * sizes.key_width)),
        d_k(carver.take<float>(kDeltaChunk * sizes.key_width)),
        begins(carver.take<std::int32_t>(sizes.s.sequence)) {}
  KeysOfChunk keys;
  DeltaChunkBackward<Gates> chunk;
  float* state;     // the running state of each value head
  float* states;    // for each value head, the states before all chunks that do not begin a document
  float* d_states;  // the gradient of the state after a chunk
  float *d_q, *d_k;
  std::int32_t* begins;  // first token of every chunk
};

template <class T, class Worker>
void forward_head(const DeltaSizes& sizes, const Rows<T>& rows, T* out, std::int64_t key_head, Worker& w) {
  const DeltaRuleShape& s = sizes.s;
  for (std::int64_t begin = 0; begin < s.sequence;) {
    const Piece piece = piece_at(rows.first_key, s.sequence, begin);
    w.keys.load(rows.qkv + begin * s.width() + key_head * s.key_dim, piece.tokens);
    for (std::int64_t i = 0; i < sizes.group; ++i) {
      const std::int64_t head = key_head * sizes.group + i;
      float* const state = w.states + i * sizes.state();
      const float* const before = piece.first ? nullptr : state;
      rows.load(w.chunk, s, w.keys.keys(), begin, head);
      w.chunk.solve(before);
      w.chunk.read(before, out + begin * s.out_width(), head);
      if (!piece.last) w.chunk.advance(state, piece.first);
    }
    begin += piece.tokens;
  }
}

template <class T>
struct GradientRows {
  T* qkv;
  float *g, *beta;
};

template <class T, class Worker>
void backward_head(const DeltaSizes& sizes, const Rows<T>& rows, const T* d_out, const GradientRows<T>& d,
                   std::int64_t key_head, Worker& w) {
  const DeltaRuleShape& s = sizes.s;
  const std::int64_t all_states = sizes.group * sizes.state();
  const auto load_keys = [&](const Piece& piece) {
    w.keys.load(rows.qkv + piece.begin * s.width() + key_head * s.key_dim, piece.tokens);
  };
  // Computes the states before all chunks.
  std::int64_t pieces = 0, inner = 0;
  for (std::int64_t begin = 0; begin < s.sequence;) {
    const Piece piece = piece_at(rows.first_key, s.sequence, begin);
    w.begins[pieces++] = static_cast<std::int32_t>(begin);
    if (!piece.first) std::copy_n(w.state, all_states, w.states + inner++ * all_states);
    if (!piece.last) load_keys(piece);
    for (std::int64_t i = 0; !piece.last && i < sizes.group; ++i) {
      float* const state = w.state + i * sizes.state();
      rows.load(w.chunk, s, w.keys.keys(), begin, key_head * sizes.group + i);
      w.chunk.solve(piece.first ? nullptr : state);
      w.chunk.advance(state, piece.first);
    }
    begin += piece.tokens;
  }
  while (pieces-- > 0) {
    const Piece piece = piece_at(rows.first_key, s.sequence, w.begins[pieces]);
    if (!piece.first) --inner;
    load_keys(piece);
    std::fill_n(w.d_q, piece.tokens * sizes.key_width, 0.0F);
    std::fill_n(w.d_k, piece.tokens * sizes.key_width, 0.0F);
    T* const d_row = d.qkv + piece.begin * s.width();
    for (std::int64_t i = 0; i < sizes.group; ++i) {
      const std::int64_t head = key_head * sizes.group + i;
      const float* const state = piece.first ? nullptr : w.states + inner * all_states + i * sizes.state();
      rows.load(w.chunk, s, w.keys.keys(), piece.begin, head);
      w.chunk.solve(state);
      w.chunk.backward(state, w.d_states + i * sizes.state(), !piece.last,
                       d_out + piece.begin * s.out_width(), w.d_q, w.d_k, d_row + s.v_column(),
                       d.g + piece.begin * s.gates(), d.beta + piece.begin * s.value_heads, head);
    }
    w.keys.store_gradients(w.d_q, w.d_k, d_row + key_head * s.key_dim);
  }
}

template <template <class> class Worker, class Body>
void with_worker(bool channel_gates, Body body) {
  if (channel_gates) {
    body.template operator()<Worker<ChannelGates>>();
  } else {
    body.template operator()<Worker<HeadGates>>();
  }
}

template <template <class> class Worker>
std::int64_t worker_bytes(const DeltaSizes& sizes) {
  Carver carver(nullptr);
  with_worker<Worker>(sizes.s.channel_gates, [&]<class W>() { W(carver, sizes); });
  return carver.used();
}

// Calls body(worker, rows, sequence, key head) for every key head of every sequence.
template <template <class> class Worker, class T, class Arguments, class Body>
void for_each_head(CpuContext& context, const Arguments& a, Body body) {
  const DeltaSizes sizes(a.shape);
  const std::int64_t bytes = worker_bytes<Worker>(sizes), heads = a.shape.key_heads;
  std::byte* const workspace = context.data<std::byte>(a.workspace);
  with_worker<Worker>(a.shape.channel_gates, [&]<class W>() {
    context.pool().parallel_for(a.shape.batch * heads, 1, [&](std::int64_t item, std::int64_t, int thread) {
      Carver carver(workspace + thread * bytes);
      W worker(carver, sizes);
      const std::int64_t sequence = item / heads;
      body(sizes, worker, Rows<T>(context, a, sequence), sequence, item % heads);
    });
  });
}

void forward(CpuContext& context, const DeltaRuleForward& a) {
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const out = context.data<T>(a.out);
    for_each_head<ForwardWorker, T>(
        context, a,
        [&](const DeltaSizes& sizes, auto& worker, const Rows<T>& rows, std::int64_t sequence,
            std::int64_t head) {
          forward_head(sizes, rows, out + sequence * a.shape.sequence * a.shape.out_width(), head, worker);
        });
  });
}

void backward(CpuContext& context, const DeltaRuleBackward& a) {
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const DeltaRuleShape& s = a.shape;
    const T* const d_out = context.data<const T>(a.d_out);
    const GradientRows<T> d{context.data<T>(a.d_qkv), context.data<float>(a.d_g),
                            context.data<float>(a.d_beta)};
    for_each_head<BackwardWorker, T>(
        context, a,
        [&](const DeltaSizes& sizes, auto& worker, const Rows<T>& rows, std::int64_t sequence,
            std::int64_t head) {
          const std::int64_t row = sequence * s.sequence;
          backward_head(sizes, rows, d_out + row * s.out_width(),
                        {d.qkv + row * s.width(), d.g + row * s.gates(), d.beta + row * s.value_heads}, head,
                        worker);
        });
  });
}

std::int64_t forward_workspace(CpuContext& context, const DeltaRuleForward& a) {
  return context.threads() * worker_bytes<ForwardWorker>(DeltaSizes(a.shape));
}

std::int64_t backward_workspace(CpuContext& context, const DeltaRuleBackward& a) {
  return context.threads() * worker_bytes<BackwardWorker>(DeltaSizes(a.shape));
}

}  // namespace

void register_delta_rule(KernelTable& table) {
  table.add<DeltaRuleForward, CpuContext, &forward, &forward_workspace>();
  table.add<DeltaRuleBackward, CpuContext, &backward, &backward_workspace>();
  table.add<CachedDeltaRule, CpuContext, &cached_delta_rule, &cached_delta_rule_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
