#include "turbo/embedding/embedding.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Token ids come from files: an id beyond the table must not become an address. Its row is NaN, which every
// check of the loss finds, and the device reports the id (report_fault).
template <class T>
struct Forward {
  static constexpr int kThreads = 128;
  const std::int32_t* tokens;
  const T* table;
  T* out;
  std::int64_t vocab, hidden;
  Fault* fault;

  PRIMUS_DEVICE void operator()() const {
    const std::int32_t token = tokens[block()];
    const bool valid = token >= 0 && token < vocab;
    if (!valid && thread() == 0) report_fault(fault, Fault::Kind::kTokenOutsideVocabulary, token, vocab);
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      out[block() * hidden + i] = valid ? table[token * hidden + i] : from_float<T>(infinity() - infinity());
    }
  }
};

void forward(Context& context, const EmbeddingForward& a) {
  with_float_type(a.table.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.tokens.elements(),
           Forward<T>{context.data<std::int32_t>(a.tokens), context.data<T>(a.table), context.data<T>(a.out),
                      a.table.rows(), a.table.cols(), faults(context)});
  });
}

struct ClearBody {
  float* out;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { out[i] = 0.0F; }
};

// A block for every token. The block of an id's first occurrence adds the rows of all occurrences, in token
// order, without sorting and without memory: it compares as many ids as there are tokens.
template <class T>
struct BackwardWeight {
  static constexpr int kThreads = 256;
  static constexpr int kColumns = 16;  // that a thread sums in one walk over the tokens
  const std::int32_t* tokens;
  const T* d_out;
  float* d_table;
  std::int64_t count, vocab, hidden;
  Fault* fault;

  struct Found {
    int matches[kThreads];
  };

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t first = block();
    const std::int32_t token = tokens[first];
    if (token < 0 || token >= vocab) {
      if (thread() == 0) report_fault(fault, Fault::Kind::kTokenOutsideVocabulary, token, vocab);
      return;
    }
    int seen = 0;
    for (std::int64_t t = thread(); t < first; t += kThreads) seen |= tokens[t] == token ? 1 : 0;
    if (block_reduce<kThreads>(seen) != 0) return;
    Found& found = shared<Found>();
    for (std::int64_t column = 0; column < hidden; column += kThreads * kColumns) {
      float sum[kColumns];
      PRIMUS_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        const std::int64_t i = column + k * kThreads + thread();
        sum[k] = i < hidden ? d_table[token * hidden + i] : 0.0F;
      }
      for (std::int64_t begin = first; begin < count; begin += kThreads) {
        const std::int64_t t = begin + thread();
        const int match = t < count && tokens[t] == token ? 1 : 0;
        found.matches[thread()] = match;
        if (block_reduce<kThreads>(match) == 0) continue;
        for (int other = 0; other < kThreads; ++other) {
          if (found.matches[other] == 0) continue;
          PRIMUS_UNROLL
          for (int k = 0; k < kColumns; ++k) {
            const std::int64_t i = column + k * kThreads + thread();
            if (i < hidden) sum[k] += to_float(d_out[(begin + other) * hidden + i]);
          }
        }
        barrier();  // before the next run overwrites the matches
      }
      PRIMUS_UNROLL
      for (int k = 0; k < kColumns; ++k) {
        const std::int64_t i = column + k * kThreads + thread();
        if (i < hidden) d_table[token * hidden + i] = sum[k];
      }
    }
  }
};

void backward_weight(Context& context, const EmbeddingBackwardWeight& a) {
  float* d_table = context.data<float>(a.d_table);
  if (!a.accumulate) for_each(context, a.d_table.elements(), ClearBody{d_table});
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.tokens.elements(),
           BackwardWeight<T>{context.data<std::int32_t>(a.tokens), context.data<T>(a.d_out), d_table,
                             a.tokens.elements(), a.d_table.rows(), a.d_table.cols(), faults(context)});
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.add<EmbeddingForward, Context, &forward>();
  table.add<EmbeddingBackwardWeight, Context, &backward_weight>();
}

}  // namespace primus::turbo::PRIMUS_GPU
