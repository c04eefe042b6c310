// Processes new tokens one after another, for generation on GPUs. A block keeps some value columns of a
// head's state in registers.
#include "turbo/attention/gpu_paged.h"
#include "turbo/delta_rule/formula.h"
#include "turbo/delta_rule/gpu_cached.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// The inputs of the most recent tokens of each sequence, in a ring: beta, gates, key and value per token and
// head. The key is normalised.
struct RecentTokens {
  float* data;
  std::int32_t* committed;  // per sequence: number of tokens in its state
  std::int64_t tokens;      // rows of the ring
  std::int64_t width;       // floats of a token and head
  std::int64_t spare;       // as in CachedDeltaRule
};

template <class T>
struct CachedItems {
  Pages pages;
  const T* qkv;
  const float *g, *beta;
  float* state;
  RecentTokens recent;
  T* out;
  std::int64_t rows, heads, group, key_dim, value_dim, width, k_column, v_column, gates;
  bool normalise;
  float scale, epsilon;

  CachedItems(Context& context, const CachedDeltaRule& a)
      : pages(context, a.sequences),
        qkv(context.data<T>(a.qkv)),
        g(context.data<float>(a.g)),
        beta(context.data<float>(a.beta)),
        state(context.data<float>(a.state)),
        recent{context.data<float>(a.recent), context.data<std::int32_t>(a.committed), a.recent.shape[1],
               a.shape.recent_width(), a.spare},
        out(context.data<T>(a.out)),
        rows(a.shape.rows()),
        heads(a.shape.value_heads),
        group(a.shape.value_heads / a.shape.key_heads),
        key_dim(a.shape.key_dim),
        value_dim(a.shape.value_dim),
        width(a.shape.width()),
        k_column(a.shape.k_column()),
        v_column(a.shape.v_column()),
        gates(a.shape.channel_gates ? a.shape.key_dim : 1),
        normalise(a.shape.normalise),
        scale(a.shape.scale),
        epsilon(a.shape.epsilon) {}

  PRIMUS_DEVICE std::int64_t end(std::int64_t b) const { return pages.lengths[b]; }
  PRIMUS_DEVICE std::int64_t begin(std::int64_t b) const {
    return pages.lengths[b] - (pages.starts[b + 1] - pages.starts[b]);
  }
  // Returns the row of a new token.
  PRIMUS_DEVICE std::int64_t row(std::int64_t b, std::int64_t position) const {
    return pages.starts[b + 1] - (end(b) - position);
  }
  PRIMUS_DEVICE std::int64_t from(std::int64_t b) const { return begin(b) == 0 ? 0 : recent.committed[b]; }
  PRIMUS_DEVICE std::int64_t next(std::int64_t b) const {
    return end(b) - from(b) > recent.tokens ? end(b) - recent.spare : from(b);
  }
  // Returns the address in `recent` of a token's inputs.
  PRIMUS_DEVICE float* place(std::int64_t b, std::int64_t position, std::int64_t head) const {
    return recent.data + ((b * recent.tokens + position % recent.tokens) * heads + head) * recent.width;
  }
  PRIMUS_DEVICE const T* query(std::int64_t of_row, std::int64_t head) const {
    return qkv + of_row * width + head / group * key_dim;
  }
  PRIMUS_DEVICE const T* value(std::int64_t of_row, std::int64_t head) const {
    return qkv + of_row * width + v_column + head * value_dim;
  }
};

template <class T>
struct CachedScan {
  static constexpr int kColumns = 16, kGroups = 8, kThreads = kColumns * kGroups;
  static constexpr int kOwn = DeltaRuleShape::kMaxDim / kGroups;  // channels per thread
  CachedItems<T> in;

  struct Memory {
    float query[DeltaRuleShape::kMaxDim], key[DeltaRuleShape::kMaxDim], fade[DeltaRuleShape::kMaxDim];
    float parts[2][kGroups][kColumns];
  };

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t slices = (in.value_dim + kColumns - 1) / kColumns;
    const std::int64_t b = block() / slices / in.heads, head = block() / slices % in.heads;
    const std::int64_t v = block() % slices * kColumns + thread() % kColumns;
    const int group = thread() / kColumns;
    const bool there = v < in.value_dim;
    T* const out = in.out + head * in.value_dim + v;
    if (b == in.pages.batch) {  // rows that belong to no sequence
      for (std::int64_t row = in.pages.starts[b] + group; there && row < in.rows; row += kGroups)
        out[row * in.heads * in.value_dim] = from_float<T>(0.0F);
      return;
    }
    const std::int64_t begin = in.begin(b), end = in.end(b), from = in.from(b), next = in.next(b);
    if (begin == end) return;
    Memory& memory = shared<Memory>();
    float* const kept = in.state + (b * in.heads + head) * in.key_dim * in.value_dim + v;
    float state[kOwn];
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      const std::int64_t c = n * kGroups + group;
      state[n] = there && from > 0 && c < in.key_dim ? kept[c * in.value_dim] : 0.0F;
    }
    for (std::int64_t p = from; p < end; ++p) {
      const bool is_new = p >= begin;
      const std::int64_t row = is_new ? in.row(b, p) : 0;
      const float* const place = in.place(b, p, head);
      barrier();
      if (is_new) {
        load_vector(in.query(row, head), memory.query);
        load_vector(in.query(row, head) + in.k_column, memory.key);
      }
      const float* const g = is_new ? in.g + (row * in.heads + head) * in.gates : place + 1;
      for (std::int64_t c = thread(); c < in.key_dim; c += kThreads) {
        memory.fade[c] = ::expf(g[in.gates == 1 ? 0 : c]);
        if (!is_new) memory.key[c] = place[1 + in.gates + c];
      }
      barrier();
      float sum = 0;
      PRIMUS_UNROLL
      for (int n = 0; n < kOwn; ++n) {
        const std::int64_t c = n * kGroups + group;
        if (c >= in.key_dim) continue;
        state[n] *= memory.fade[c];
        sum = multiply_add(memory.key[c], state[n], sum);
      }
      const float said = over_groups(memory.parts[0], sum);
      float u = 0;
      if (there)
        u = is_new ? in.beta[row * in.heads + head] * (to_float(in.value(row, head)[v]) - said)
                   : place[0] * (place[1 + in.gates + in.key_dim + v] - said);
      sum = 0;
      PRIMUS_UNROLL
      for (int n = 0; n < kOwn; ++n) {
        const std::int64_t c = n * kGroups + group;
        if (c >= in.key_dim) continue;
        state[n] = multiply_add(memory.key[c], u, state[n]);
        if (is_new) sum = multiply_add(memory.query[c], state[n], sum);
      }
      if (is_new) {
        const float result = over_groups(memory.parts[1], sum);
        if (group == 0 && there) out[row * in.heads * in.value_dim] = from_float<T>(in.scale * result);
      }
      if (p + 1 != next || !there) continue;
      PRIMUS_UNROLL
      for (int n = 0; n < kOwn; ++n) {
        const std::int64_t c = n * kGroups + group;
        if (c < in.key_dim) kept[c * in.value_dim] = state[n];
      }
    }
  }

 private:
  PRIMUS_DEVICE static float over_groups(float (&parts)[kGroups][kColumns], float value) {
    const int column = thread() % kColumns;
    parts[thread() / kColumns][column] = value;
    barrier();
    float sum = 0;
    PRIMUS_UNROLL
    for (int i = 0; i < kGroups; ++i) sum += parts[i][column];
    return sum;
  }
  PRIMUS_DEVICE void load_vector(const T* from, float* to) const {
    float square = 0;
    for (std::int64_t c = thread(); c < in.key_dim; c += kThreads) {
      to[c] = to_float(from[c]);
      square = multiply_add(to[c], to[c], square);
    }
    if (!in.normalise) return;
    const float factor = unit_factor(block_reduce<kThreads>(square), in.epsilon);
    for (std::int64_t c = thread(); c < in.key_dim; c += kThreads) to[c] *= factor;
  }
};

// The second kernel: writes the inputs of the last new tokens to the ring, and updates `committed`. There is
// one block per row of the ring.
template <class T>
struct CachedKeep {
  static constexpr int kThreads = 256;
  CachedItems<T> in;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t b = block() / in.recent.tokens;
    const std::int64_t back = block() % in.recent.tokens;  // 0 is the last token
    const std::int64_t begin = in.begin(b), position = in.end(b) - 1 - back;
    if (position < begin || begin == in.end(b)) return;
    const std::int64_t row = in.row(b, position);
    for (std::int64_t head = warp(); head < in.heads; head += kThreads / kWarp) {
      float* const place = in.place(b, position, head);
      const T* const key = in.query(row, head) + in.k_column;
      float square = 0;
      for (std::int64_t c = lane(); c < in.key_dim; c += kWarp)
        square = multiply_add(to_float(key[c]), to_float(key[c]), square);
      const float factor = in.normalise ? unit_factor(warp_reduce(square), in.epsilon) : 1.0F;
      if (lane() == 0) place[0] = in.beta[row * in.heads + head];
      for (std::int64_t c = lane(); c < in.gates; c += kWarp)
        place[1 + c] = in.g[(row * in.heads + head) * in.gates + c];
      for (std::int64_t c = lane(); c < in.key_dim; c += kWarp)
        place[1 + in.gates + c] = to_float(key[c]) * factor;
      for (std::int64_t v = lane(); v < in.value_dim; v += kWarp)
        place[1 + in.gates + in.key_dim + v] = to_float(in.value(row, head)[v]);
    }
    if (back == 0 && thread() == 0) in.recent.committed[b] = static_cast<std::int32_t>(in.next(b));
  }
};

}  // namespace

void cached_delta_rule(Context& context, const CachedDeltaRule& a) {
  with_float_type(a.qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Scan = CachedScan<T>;
    const CachedItems<T> in(context, a);
    launch(context, (in.pages.batch + 1) * in.heads * blocks_for(in.value_dim, Scan::kColumns), Scan{in});
    launch(context, in.pages.batch * in.recent.tokens, CachedKeep<T>{in});
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
