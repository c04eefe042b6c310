// Processes new tokens one after another, for generation on GPUs. A block keeps some value columns of a
// head's state in registers.
#include "turbo/delta_rule/formula.h"
#include "turbo/delta_rule/gpu_cached.h"
#include "turbo/delta_rule/gpu_recent.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A block computes some value columns of one head of one sequence. A lane keeps kCount columns of kOwn key
// channels of the state in registers, so a warp adds up products without a barrier. The block loads the
// inputs of up to kTokens tokens together before it processes these tokens in order: a load for each token
// would take longer than the computation.
template <class T, int kOwn, int kCount>
struct CachedScan {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  static constexpr int kLanesAcross = 2, kParts = kWarp / kLanesAcross;
  static constexpr int kKeys = kParts * kOwn;  // max. number of key channels; missing channels are 0
  static constexpr int kColumns = kWarps * kLanesAcross * kCount;
  static constexpr int kTokens = 2048 / kKeys;
  using StartsEarly = void;
  CachedItems<T> in;

  struct alignas(16) Memory {
    float query[kTokens][kKeys], key[kTokens][kKeys], fade[kTokens][kKeys];
    float value[kTokens][kColumns], beta[kTokens];
    const float* place[kTokens];  // where the inputs are in the ring
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t slices = (in.value_dim + kColumns - 1) / kColumns;
    const std::int64_t b = block() / slices / in.heads, head = block() / slices % in.heads;
    const std::int64_t first_column = block() % slices * kColumns;
    if (b == in.pages.batch) {
      wait_for_previous();
      return clear_unused_rows(head, first_column);
    }
    const std::int64_t begin = in.begin(b), end = in.end(b);
    float* const state_of_head = in.state + (b * in.heads + head) * in.key_dim * in.value_dim;
    if (begin != end) prefetch_inputs(b, head, begin, state_of_head + first_column);
    wait_for_previous();
    if (begin == end) return;

    Memory& memory = shared<Memory>();
    const int own_column = (warp() * kLanesAcross + lane() % kLanesAcross) * kCount;
    const int first_key = lane() / kLanesAcross * kOwn;
    const std::int64_t v = first_column + own_column;
    const bool there = v < in.value_dim;
    const std::int64_t from = in.from(b, head), next = in.next(b, head);
    float state[kOwn][kCount] = {};
    float* const kept = state_of_head + first_key * in.value_dim + v;
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      if (there && from > 0 && first_key + n < in.key_dim) load<kCount>(kept + n * in.value_dim, state[n]);
    }
    for (std::int64_t start = from; start < end; start += kTokens) {
      const int count = static_cast<int>(smaller(end - start, kTokens));
      load_inputs(memory, b, head, first_column, start, count);
      for (int t = 0; t < count; ++t) {
        const std::int64_t p = start + t;
        float key[kOwn], u[kCount] = {};
        read_lines(memory.key[t] + first_key, key);
        fade(memory.fade[t], first_key, state);
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) add_scaled(key[n], state[n], u);
        sum_over_parts<kLanesAcross>(u);
        PRIMUS_UNROLL
        for (int i = 0; i < kCount; ++i) u[i] = memory.beta[t] * (memory.value[t][own_column + i] - u[i]);
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) add_scaled(key[n], u, state[n]);
        if (p >= begin) {
          float query[kOwn], sum[kCount] = {};
          read_lines(memory.query[t] + first_key, query);
          PRIMUS_UNROLL
          for (int n = 0; n < kOwn; ++n) add_scaled(query[n], state[n], sum);
          sum_over_parts<kLanesAcross>(sum);
          PRIMUS_UNROLL
          for (int i = 0; i < kCount; ++i) sum[i] *= in.scale;
          if (there && first_key == 0)
            store<kCount>(in.out + (in.row(b, p) * in.heads + head) * in.value_dim + v, sum);
        }
        if (p + 1 != next || !there) continue;
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) {
          if (first_key + n < in.key_dim) store<kCount>(kept + n * in.value_dim, state[n]);
        }
      }
    }
  }

 private:
  // Writes zeros to this block's columns of the rows that belong to no sequence.
  PRIMUS_DEVICE void clear_unused_rows(std::int64_t head, std::int64_t first_column) const {
    const std::int64_t v = first_column + thread() % kColumns;
    if (v >= in.value_dim) return;
    for (std::int64_t row = in.pages.starts[in.pages.batch] + thread() / kColumns; row < in.rows;
         row += kThreads / kColumns)
      in.out[(row * in.heads + head) * in.value_dim + v] = from_float<T>(0.0F);
  }

  // Fetches this block's columns of the state and the inputs of earlier tokens into L2, while the previous
  // kernel still computes the new inputs.
  PRIMUS_DEVICE void prefetch_inputs(std::int64_t b, std::int64_t head, std::int64_t begin,
                                     const float* state) const {
    constexpr std::int64_t kCacheLine = 32;
    for (std::int64_t c = thread(); c < in.key_dim; c += kThreads) prefetch(state + c * in.value_dim);
    const std::int64_t lines = (in.recent.width + kCacheLine - 1) / kCacheLine;
    const std::int64_t tokens = smaller(begin, in.recent.tokens);
    for (std::int64_t at = thread(); at < tokens * lines; at += kThreads)
      prefetch(in.place(b, begin - 1 - at / lines, head) + at % lines * kCacheLine);
  }

  // Loads the inputs of `count` tokens from position `start` on. Keys and queries of new tokens are
  // normalised. Begins and ends with a barrier.
  PRIMUS_DEVICE void load_inputs(Memory& memory, std::int64_t b, std::int64_t head, std::int64_t first_column,
                                 std::int64_t start, int count) const {
    constexpr int kKeyLoads = kTokens * kKeys / kThreads;
    constexpr int kValueLoads = (kTokens * kColumns + kThreads - 1) / kThreads;
    const int replayed = static_cast<int>(smaller(larger(in.begin(b) - start, 0), count));
    barrier();  // all threads have read the inputs of the previous tokens
    if (thread() < count) {
      const int t = thread();
      const float* const place = in.place(b, start + t, head);
      const std::int64_t gate = in.row(b, start + t) * in.heads + head;
      memory.place[t] = place;
      memory.beta[t] = t < replayed ? place[0] : in.beta[gate];
      if (in.gates == 1) memory.fade[t][0] = ::expf(t < replayed ? place[1] : in.g[gate]);
    }
    barrier();
    // Loads into these two arrays first, so that all loads of a thread run concurrently.
    float keys[kKeyLoads], values[kValueLoads];
    PRIMUS_UNROLL
    for (int j = 0; j < kKeyLoads; ++j) {
      const int t = (thread() + j * kThreads) / kKeys, c = (thread() + j * kThreads) % kKeys;
      keys[j] = t < replayed && c < in.key_dim ? memory.place[t][1 + in.gates + c] : 0.0F;
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kValueLoads; ++j) {
      const int t = (thread() + j * kThreads) / kColumns, column = (thread() + j * kThreads) % kColumns;
      const std::int64_t v = first_column + column;
      values[j] = 0;
      if (t >= count || v >= in.value_dim) continue;
      values[j] = t < replayed ? memory.place[t][1 + in.gates + in.key_dim + v]
                               : to_float(in.value(in.row(b, start + t), head)[v]);
    }
    for (int i = 2 * replayed + warp(); i < 2 * count; i += kWarps) {
      const T* const from = in.query(in.row(b, start + i / 2), head) + (i % 2 == 0 ? 0 : in.k_column);
      load_vector(from, i % 2 == 0 ? memory.query[i / 2] : memory.key[i / 2]);
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kKeyLoads; ++j) {
      const int at = thread() + j * kThreads;
      if (at / kKeys < replayed) memory.key[at / kKeys][at % kKeys] = keys[j];
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kValueLoads; ++j) {
      const int at = thread() + j * kThreads;
      if (at / kColumns < count) memory.value[at / kColumns][at % kColumns] = values[j];
    }
    PRIMUS_UNROLL_BY(4)
    for (int at = thread(); in.gates > 1 && at < count * kKeys; at += kThreads) {
      // Also sets the factors of missing channels, because uninitialised memory times 0 may be NaN.
      const int t = at / kKeys, c = at % kKeys;
      float gate = 0;
      if (c < in.gates)
        gate = t < replayed ? memory.place[t][1 + c]
                            : in.g[(in.row(b, start + t) * in.heads + head) * in.gates + c];
      memory.fade[t][c] = ::expf(gate);
    }
    barrier();
  }

  // A warp loads a key or query of a new token and normalises it. Missing channels are 0.
  PRIMUS_DEVICE void load_vector(const T* from, float* to) const {
    constexpr int kLoads = kKeys / kWarp;
    float x[kLoads], square = 0;
    PRIMUS_UNROLL
    for (int j = 0; j < kLoads; ++j)
      x[j] = lane() + j * kWarp < in.key_dim ? to_float(from[lane() + j * kWarp]) : 0.0F;
    PRIMUS_UNROLL
    for (int j = 0; j < kLoads; ++j) square = multiply_add(x[j], x[j], square);
    const float factor = in.normalise ? unit_factor(warp_reduce(square), in.epsilon) : 1.0F;
    PRIMUS_UNROLL
    for (int j = 0; j < kLoads; ++j) to[lane() + j * kWarp] = x[j] * factor;
  }

  PRIMUS_DEVICE void fade(const float* factors, int first_key, float (&state)[kOwn][kCount]) const {
    float own[kOwn];
    if (in.gates == 1) {
      PRIMUS_UNROLL
      for (int n = 0; n < kOwn; ++n) own[n] = factors[0];
    } else {
      read_lines(factors + first_key, own);
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      PRIMUS_UNROLL
      for (int i = 0; i < kCount; ++i) state[n][i] *= own[n];
    }
  }
};

// The second kernel writes the inputs of the last new tokens to the ring, and updates `committed`. A warp
// writes one head of one row of the ring.
template <class T>
struct CachedKeep {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  using StartsEarly = void;
  CachedItems<T> in;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t pieces = (in.heads + kWarps - 1) / kWarps, item = block() / pieces;
    const std::int64_t b = item / in.recent.tokens;
    const std::int64_t back = item % in.recent.tokens;  // 0 is the last token
    const std::int64_t begin = in.begin(b), position = in.end(b) - 1 - back;
    wait_for_previous();
    if (position < begin || begin == in.end(b)) return;
    const std::int64_t head = block() % pieces * kWarps + warp();
    if (head >= in.heads) return;
    keep(b, position, head);
    if (back == 0 && lane() == 0)
      in.recent.committed[b * in.heads + head] = static_cast<std::int32_t>(in.next(b, head));
  }

  PRIMUS_DEVICE void keep(std::int64_t b, std::int64_t position, std::int64_t head) const {
    const std::int64_t row = in.row(b, position);
    float* const place = in.place(b, position, head);
    const T* const key = in.query(row, head) + in.k_column;
    for (std::int64_t v = lane(); v < in.value_dim; v += kWarp)
      place[1 + in.gates + in.key_dim + v] = to_float(in.value(row, head)[v]);
    for (std::int64_t c = lane(); c < in.gates; c += kWarp)
      place[1 + c] = in.g[(row * in.heads + head) * in.gates + c];
    if (lane() == 0) place[0] = in.beta[row * in.heads + head];
    float square = 0;
    for (std::int64_t c = lane(); c < in.key_dim; c += kWarp)
      square = multiply_add(to_float(key[c]), to_float(key[c]), square);
    const float factor = in.normalise ? unit_factor(warp_reduce(square), in.epsilon) : 1.0F;
    for (std::int64_t c = lane(); c < in.key_dim; c += kWarp)
      place[1 + in.gates + c] = to_float(key[c]) * factor;
  }
};

template <class T, int kOwn, int kCount>
void scan(Context& context, const CachedItems<T>& in) {
  using Scan = CachedScan<T, kOwn, kCount>;
  using Keep = CachedKeep<T>;
  launch(context, (in.pages.batch + 1) * in.heads * blocks_for(in.value_dim, Scan::kColumns), Scan{in});
  launch(context, in.pages.batch * in.recent.tokens * blocks_for(in.heads, Keep::kWarps), Keep{in});
}

}  // namespace

std::int64_t cached_delta_rule_workspace(Context& context, const CachedDeltaRule& a) {
  return a.around.absent() || takes_delta_net_step(context, a) ? 0 : CachedDeltaRule::kNotTaken;
}

void cached_delta_rule(Context& context, const CachedDeltaRule& a) {
  if (!a.around.absent()) return delta_net_step(context, a);
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const CachedItems<T> in(context, a);
    with_vector<float>(rows_of_vectors<float>(in.value_dim, in.state, in.out), [&](auto count) {
      constexpr int kFew = 8, kMany = 16;  // key channels of a lane
      if (in.key_dim <= CachedScan<T, kFew, count>::kKeys) return scan<T, kFew, count>(context, in);
      if constexpr (CachedScan<T, kFew, count>::kKeys < DeltaRuleShape::kMaxDim)
        scan<T, kMany, count>(context, in);
    });
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
