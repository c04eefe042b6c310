// One token of each sequence through a gated delta network, between its two projections (AroundDeltaRule). A
// block computes one value head of one sequence, so that the block has all columns that the norm needs.
//
// Most of the work does not depend on the new token: the block loads the state and replays the tokens after
// `committed` while the previous kernel still computes the projection.
#include "turbo/delta_gates/formula.h"
#include "turbo/delta_rule/formula.h"
#include "turbo/delta_rule/gpu_cached.h"
#include "turbo/delta_rule/gpu_recent.h"
#include "turbo/gate/formula.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

struct DeltaNetStep {
  using T = BFloat16;
  static constexpr int kWarps = 16, kThreads = kWarps * kWarp;
  // The distribution of the state over lanes, and so the order of sums, is that of CachedScan.
  static constexpr int kOwn = 8, kCount = 4, kLanesAcross = 2;
  static constexpr int kKeys = kWarp / kLanesAcross * kOwn;        // number of key channels of a warp
  static constexpr int kColumns = kWarps * kLanesAcross * kCount;  // max. number of value columns
  static constexpr int kMaxKeys = 128;
  static constexpr int kTokens = 2048 / kKeys;  // number of tokens that are loaded together
  static constexpr int kTaps = 4;               // max. number of tokens in the convolution
  static_assert(kMaxKeys <= kKeys && 2 * kMaxKeys + 2 * kColumns <= kThreads);
  using StartsEarly = void;

  CachedItems<T> in;
  const T *wide, *kernel, *norm;
  const float *a_log, *dt_bias;
  float* ring;
  std::int64_t columns, taps, ring_rows;
  float eps;

  struct alignas(16) Memory {
    float key[kTokens][kKeys], value[kTokens][kColumns], beta[kTokens], fade[kTokens];
    // The new token: the query and key before they are normalised, the value, the output gates, the output of
    // the delta rule, beta, and the logarithm of the decay.
    float new_query[kKeys], new_key[kKeys], new_value[kColumns], gate[kColumns], mixed[kColumns];
    float new_beta, new_decay;
  };
  using State = float[kOwn][kCount];

  // One channel of the convolution. A thread has at most one channel.
  struct Channel {
    bool there = false;
    float past[kTaps - 1] = {},
                       weights[kTaps] = {};  // by the distance from the token; past[0] has distance 1
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t b = block() / in.heads, head = block() % in.heads;
    if (b == in.pages.batch) {
      wait_for_previous();
      return clear_unused_rows(head);
    }
    const std::int64_t p = in.begin(b);  // position of the new token
    if (p == in.end(b)) {
      wait_for_previous();
      return;
    }
    Memory& m = shared<Memory>();
    const int own_column = (warp() * kLanesAcross + lane() % kLanesAcross) * kCount;
    const int first_key = lane() / kLanesAcross * kOwn;
    const bool there = own_column < in.value_dim;
    const std::int64_t from = in.from(b, head), next = in.next(b, head);
    float* const kept =
        in.state + ((b * in.heads + head) * in.key_dim + first_key) * in.value_dim + own_column;
    State state = {};
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      if (there && from > 0 && first_key + n < in.key_dim) load<kCount>(kept + n * in.value_dim, state[n]);
    }
    const auto keep_state = [&] {
      PRIMUS_UNROLL
      for (int n = 0; n < kOwn; ++n) {
        if (there && first_key + n < in.key_dim) store<kCount>(kept + n * in.value_dim, state[n]);
      }
    };
    const std::int64_t channel = channel_of(head);
    const Channel of_conv = load_channel(b, p, channel);
    for (std::int64_t start = from; start < p; start += kTokens) {
      const int count = static_cast<int>(smaller(p - start, kTokens));
      load_replayed(m, b, head, start, count);
      for (int t = 0; t < count; ++t) {
        float key[kOwn], u[kCount];
        read_lines(m.key[t] + first_key, key);
        take(key, m.value[t] + own_column, m.beta[t], m.fade[t], state, u);
        if (start + t + 1 == next) keep_state();
      }
    }
    wait_for_previous();

    const std::int64_t row = in.row(b, p);
    load_new(m, b, head, p, wide + row * columns, of_conv, channel);
    float key[kOwn], query[kOwn], u[kCount], sum[kCount] = {};
    const float of_key = factor_of(m.new_key), of_query = factor_of(m.new_query);
    keep_inputs(m, in.place(b, p, head), of_key);
    read_lines(m.new_key + first_key, key);
    read_lines(m.new_query + first_key, query);
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) key[n] *= of_key, query[n] *= of_query;
    take(key, m.new_value + own_column, m.new_beta, ::expf(m.new_decay), state, u);
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) add_scaled(query[n], state[n], sum);
    sum_over_parts<kLanesAcross>(sum);
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) sum[i] = rounded(sum[i] * in.scale);
    if (there && first_key == 0) store<kCount>(m.mixed + own_column, sum);
    if (p + 1 == next) keep_state();
    if (thread() == 0) in.recent.committed[b * in.heads + head] = static_cast<std::int32_t>(next);
    barrier();
    store_normed(m, in.out + (row * in.heads + head) * in.value_dim);
  }

 private:
  // Rounds to bf16, in which separate operators store their results.
  PRIMUS_DEVICE static float rounded(float x) { return to_float(from_float<T>(x)); }

  // Writes zeros to this head's columns of the rows that belong to no sequence.
  PRIMUS_DEVICE void clear_unused_rows(std::int64_t head) const {
    for (std::int64_t row = in.pages.starts[in.pages.batch]; row < in.rows; ++row) {
      if (thread() < in.value_dim)
        in.out[(row * in.heads + head) * in.value_dim + thread()] = from_float<T>(0.0F);
    }
  }

  // Returns the channel of this thread: a channel of the query, of the key or of the value; or -1.
  PRIMUS_DEVICE std::int64_t channel_of(std::int64_t head) const {
    const int t = thread();
    const std::int64_t of_key = head / in.group * in.key_dim;
    if (t < kMaxKeys) return t < in.key_dim ? of_key + t : -1;
    if (t < 2 * kMaxKeys) return t - kMaxKeys < in.key_dim ? in.k_column + of_key + t - kMaxKeys : -1;
    const int column = t - 2 * kMaxKeys;
    return column < in.value_dim ? in.v_column + head * in.value_dim + column : -1;
  }
  PRIMUS_DEVICE float* ring_place(std::int64_t b, std::int64_t position, std::int64_t channel) const {
    return ring + (b * ring_rows + position % ring_rows) * in.width + channel;
  }
  PRIMUS_DEVICE Channel load_channel(std::int64_t b, std::int64_t p, std::int64_t channel) const {
    Channel c;
    c.there = channel >= 0;
    if (!c.there) return c;
    PRIMUS_UNROLL
    for (int d = 0; d < kTaps; ++d) {
      if (d < taps) c.weights[d] = to_float(kernel[channel * taps + taps - 1 - d]);
      if (d > 0 && d < taps && d <= p) c.past[d - 1] = *ring_place(b, p - d, channel);
    }
    return c;
  }

  // Loads the inputs of `count` tokens from position `start` on, which were processed before. Begins and ends
  // with a barrier.
  PRIMUS_DEVICE void load_replayed(Memory& m, std::int64_t b, std::int64_t head, std::int64_t start,
                                   int count) const {
    constexpr int kKeyLoads = kTokens * kKeys / kThreads, kValueLoads = kTokens * kColumns / kThreads;
    float keys[kKeyLoads], values[kValueLoads];
    PRIMUS_UNROLL
    for (int j = 0; j < kKeyLoads; ++j) {
      const int t = (thread() + j * kThreads) / kKeys, c = (thread() + j * kThreads) % kKeys;
      keys[j] = t < count && c < in.key_dim ? in.place(b, start + t, head)[2 + c] : 0.0F;
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kValueLoads; ++j) {
      const int t = (thread() + j * kThreads) / kColumns, v = (thread() + j * kThreads) % kColumns;
      values[j] = t < count && v < in.value_dim ? in.place(b, start + t, head)[2 + in.key_dim + v] : 0.0F;
    }
    barrier();  // all threads have read the inputs of the previous tokens
    if (thread() < count) {
      const float* const place = in.place(b, start + thread(), head);
      m.beta[thread()] = place[0];
      m.fade[thread()] = ::expf(place[1]);
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kKeyLoads; ++j)
      m.key[(thread() + j * kThreads) / kKeys][(thread() + j * kThreads) % kKeys] = keys[j];
    PRIMUS_UNROLL
    for (int j = 0; j < kValueLoads; ++j)
      m.value[(thread() + j * kThreads) / kColumns][(thread() + j * kThreads) % kColumns] = values[j];
    barrier();
  }

  // Computes the convolution and the gates of the new token, and writes the convolution's input to the ring.
  // If several value heads share a query and a key, only the first head writes the inputs of these two. Ends
  // with a barrier.
  PRIMUS_DEVICE void load_new(Memory& m, std::int64_t b, std::int64_t head, std::int64_t p, const T* row,
                              const Channel& c, std::int64_t channel) const {
    const int t = thread();
    for (int i = t; i < kKeys; i += kThreads) {
      if (i >= in.key_dim) m.new_query[i] = m.new_key[i] = 0;
    }
    if (t < kColumns && t >= in.value_dim) m.new_value[t] = 0;
    if (c.there) {
      const float u = to_float(row[channel]);
      float sum = 0;
      PRIMUS_UNROLL
      for (int d = kTaps - 1; d > 0; --d) sum = multiply_add(c.weights[d], c.past[d - 1], sum);
      sum = rounded(silu(multiply_add(c.weights[0], u, sum)));
      if (t < kMaxKeys) {
        m.new_query[t] = sum;
      } else if (t < 2 * kMaxKeys) {
        m.new_key[t - kMaxKeys] = sum;
      } else {
        m.new_value[t - 2 * kMaxKeys] = sum;
      }
      if (t >= 2 * kMaxKeys || head % in.group == 0) *ring_place(b, p, channel) = u;
    }
    const int column = t - 2 * kMaxKeys - kColumns;
    if (column >= 0 && column < in.value_dim)
      m.gate[column] = to_float(row[in.width + head * in.value_dim + column]);
    if (t == 0) {
      const T* const ba = row + in.width + in.heads * in.value_dim;
      m.new_beta = sigmoid(to_float(ba[head]));
      m.new_decay = DeltaDecay{a_log[head]}.value(to_float(ba[in.heads + head]) + dt_bias[head]);
    }
    barrier();
  }

  // Returns the factor that normalises a query or key.
  PRIMUS_DEVICE float factor_of(const float* x) const {
    float square = 0;
    PRIMUS_UNROLL
    for (int j = 0; j < kKeys / kWarp; ++j)
      square = multiply_add(x[lane() + j * kWarp], x[lane() + j * kWarp], square);
    return in.normalise ? unit_factor(warp_reduce(square), in.epsilon) : 1.0F;
  }

  // Writes the inputs of the new token to the ring of recent tokens.
  PRIMUS_DEVICE void keep_inputs(const Memory& m, float* place, float of_key) const {
    const int t = thread();
    if (t < in.key_dim) place[2 + t] = m.new_key[t] * of_key;
    const int column = t - kMaxKeys;
    if (column >= 0 && column < in.value_dim) place[2 + in.key_dim + column] = m.new_value[column];
    if (t == 0) place[0] = m.new_beta, place[1] = m.new_decay;
  }

  // Updates the state by one token.
  PRIMUS_DEVICE static void take(const float (&key)[kOwn], const float* value, float beta, float fade,
                                 State& state, float (&u)[kCount]) {
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) u[i] = 0;
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      PRIMUS_UNROLL
      for (int i = 0; i < kCount; ++i) state[n][i] *= fade;
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) add_scaled(key[n], state[n], u);
    sum_over_parts<kLanesAcross>(u);
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) u[i] = beta * (value[i] - u[i]);
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) add_scaled(key[n], u, state[n]);
  }

  // Computes the gated norm of the head. A lane adds the same squares as in the separate operator.
  PRIMUS_DEVICE void store_normed(const Memory& m, T* out) const {
    const int t = thread();
    if (warp() * kWarp >= in.value_dim) return;
    float squares = 0;
    for (std::int64_t i = lane(); i < in.value_dim; i += kWarp)
      squares = multiply_add(m.mixed[i], m.mixed[i], squares);
    const float scale = inverse_rms(warp_reduce(squares), in.value_dim, eps);
    if (t < in.value_dim)
      out[t] = from_float<T>(norm_output(m.mixed[t], scale, to_float(norm[t])) * silu(m.gate[t]));
  }
};

}  // namespace

bool takes_delta_net_step(const Context&, const CachedDeltaRule& a) {
  using Kernel = DeltaNetStep;
  const DeltaRuleShape& s = a.shape;
  const AroundDeltaRule& p = a.around;
  return a.sequences.single && !s.channel_gates && p.wide.dtype == DType::kBF16 &&
         p.kernel.dtype == DType::kBF16 && p.norm.dtype == DType::kBF16 && s.key_dim <= Kernel::kMaxKeys &&
         s.value_dim <= Kernel::kColumns && s.value_dim % Kernel::kCount == 0 &&
         p.kernel.cols() <= Kernel::kTaps && reinterpret_cast<std::uintptr_t>(a.state.data) % 16 == 0;
}

void delta_net_step(Context& context, const CachedDeltaRule& a) {
  if (!takes_delta_net_step(context, a))
    throw std::logic_error("gpu: a delta rule that is_taken() says no to");
  const AroundDeltaRule& p = a.around;
  const CachedItems<BFloat16> in(context, a);
  launch(context, (in.pages.batch + 1) * in.heads,
         DeltaNetStep{in, context.data<BFloat16>(p.wide), context.data<BFloat16>(p.kernel),
                      context.data<BFloat16>(p.norm), context.data<float>(p.a_log),
                      context.data<float>(p.dt_bias), context.data<float>(p.ring), p.wide.cols(),
                      p.kernel.cols(), p.ring.shape[1], p.eps});
}

}  // namespace primus::turbo::PRIMUS_GPU
