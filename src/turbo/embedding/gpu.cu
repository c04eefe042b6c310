#include "turbo/embedding/embedding.h"
#include "turbo/embedding/gpu_sort.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Token ids come from files, and an id outside the vocabulary must not become an address. The output row of
// such an id is NaN, and every check of the loss detects NaN. The device also reports the id (report_fault).
template <class T>
struct Forward {
  static constexpr int kThreads = 128;
  const std::int32_t* tokens;
  const T* table;
  T* out;
  TokenRows rows;
  std::int64_t hidden;
  Fault* fault;

  PRIMUS_DEVICE void operator()() const {
    const std::int32_t token = tokens[block()];
    const bool valid = token >= 0 && token < rows.vocabulary;
    if (!valid && thread() == 0)
      report_fault(fault, Fault::Kind::kTokenOutsideVocabulary, token, rows.vocabulary);
    const std::int64_t row = token - rows.first;
    const bool own = valid && row >= 0 && row < rows.rows;
    const T other = from_float<T>(valid ? 0.0F : infinity() - infinity());
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      out[block() * hidden + i] = own ? table[row * hidden + i] : other;
    }
  }
};

template <class Call>
TokenRows rows_of(const Call& a, const Tensor& table) {
  return {a.first, table.rows(), a.vocabulary > 0 ? a.vocabulary : table.rows()};
}

void forward(Context& context, const EmbeddingForward& a) {
  with_float_type(a.table.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.tokens.elements(),
           Forward<T>{context.data<std::int32_t>(a.tokens), context.data<T>(a.table), context.data<T>(a.out),
                      rows_of(a, a.table), a.table.cols(), faults(context)});
  });
}

template <class T>
struct ClearBody {
  T* out;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { out[i] = from_float<T>(0.0F); }
};

// There is one block per position of the sorted list and slice of columns. If the position is the first
// position of its id, the block adds the gradient rows of this id in token order. Otherwise the block returns
// at once.
template <class T, class Table, int kCount>
struct BackwardWeight {
  static constexpr int kThreads = 128;
  static constexpr int kAhead = 8;  // number of rows that are loaded while earlier rows are added
  const TokenPlace* places;
  const T* d_out;
  Table* d_table;
  std::int64_t count, table_rows, hidden, slices;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t first = block() / slices;
    const std::int32_t id = places[first].id;
    if (id >= table_rows || (first > 0 && places[first - 1].id == id)) return;
    const std::int64_t column = (block() % slices * kThreads + thread()) * kCount;
    if (column >= hidden) return;
    Table* const to = d_table + id * hidden + column;
    float sum[kCount];
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) sum[k] = to_float(to[k]);
    for (std::int64_t at = first; at < count && places[at].id == id; at += kAhead) {
      float rows[kAhead][kCount];
      PRIMUS_UNROLL
      for (int r = 0; r < kAhead; ++r) {
        if (at + r < count && places[at + r].id == id) {
          load(d_out + places[at + r].position * hidden + column, rows[r]);
        }
      }
      PRIMUS_UNROLL
      for (int r = 0; r < kAhead; ++r) {
        if (at + r >= count || places[at + r].id != id) break;
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) sum[k] += rows[r][k];
      }
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = from_float<Table>(sum[k]);
  }
};

std::int64_t backward_weight_workspace(Context&, const EmbeddingBackwardWeight& a) {
  return token_sort_workspace(a.tokens.elements());
}

void backward_weight(Context& context, const EmbeddingBackwardWeight& a) {
  const std::int64_t count = a.tokens.elements(), rows = a.d_table.rows(), hidden = a.d_table.cols();
  const TokenPlace* const places = sort_tokens(context, context.data<std::int32_t>(a.tokens), count,
                                               rows_of(a, a.d_table), context.data<std::byte>(a.workspace));
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* const d_out = context.data<T>(a.d_out);
    with_float_type(a.d_table.dtype, [&](auto to) {
      using Table = decltype(to);
      Table* const d_table = context.data<Table>(a.d_table);
      if (!a.accumulate) for_each(context, a.d_table.elements(), ClearBody<Table>{d_table});
      with_vector<T>(rows_of_vectors<T>(hidden, d_out), [&](auto vector) {
        using Kernel = BackwardWeight<T, Table, decltype(vector)::value>;
        const std::int64_t slices = blocks_for(hidden, Kernel::kThreads * decltype(vector)::value);
        launch(context, count * slices, Kernel{places, d_out, d_table, count, rows, hidden, slices});
      });
    });
  });
}

}  // namespace

void register_embedding(KernelTable& table) {
  table.add<EmbeddingForward, Context, &forward>();
  table.add<EmbeddingBackwardWeight, Context, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
