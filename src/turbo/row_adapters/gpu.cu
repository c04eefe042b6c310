// A block of the first kernel computes some columns of A's products of one row. A thread of the second kernel
// computes a column of a few rows; consecutive rows with the same adapter load a row of B once.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/row_adapters/formula.h"
#include "turbo/row_adapters/row_adapters.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Loads kCount elements of a row of n elements, which begin at element i. Elements after the row are 0.
// `whole`: a load of all elements is aligned and inside the row.
template <class T, int kCount>
PRIMUS_DEVICE Pack<T, kCount> load_part(const T* row, std::int64_t i, std::int64_t n, bool whole) {
  if (whole) return *reinterpret_cast<const Pack<T, kCount>*>(row + i);
  Pack<T, kCount> part;
  PRIMUS_UNROLL
  for (int k = 0; k < kCount; ++k) part.at[k] = i + k < n ? row[i + k] : from_float<T>(0);
  return part;
}
template <int kCount>
PRIMUS_DEVICE bool is_aligned(const void* row, std::int64_t n) {
  return n % kCount == 0 && reinterpret_cast<std::uintptr_t>(row) % 16 == 0;
}

// low[row, column] = scale * (x[row] · down[column]). A thread adds every kThreads-th line of the row, and
// the sums of the threads are added in a fixed order.
template <class T, int kColumns>
struct DownProducts {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kLine = kVector<T>;
  using StartsEarly = void;
  using Line = Pack<T, kLine>;
  RowAdapterTable table;
  const T* x;
  float* low;
  std::int64_t in, low_columns;

  struct Parts {
    float of_warp[kColumns][kWarps];
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t tiles = low_columns / kColumns, row = block() / tiles;
    const std::int64_t column = block() % tiles * kColumns;
    const T* down[kColumns];
    float scale[kColumns];
    bool whole = true, used = false;
    PRIMUS_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const RowAdapter* const own = table.of_low(row, column + c);
      down[c] = own ? table.matrix<T>(own->down) + (column + c - own->low) * in : nullptr;
      scale[c] = own ? own->scale : 0.0F;
      whole = whole && is_aligned<kLine>(down[c], in);
      used = used || own;
    }
    float sums[kColumns] = {};
    std::int64_t at = thread() * kLine;
    Line next[kColumns];
    fetch(down, at, whole, next);  // A does not depend on the previous kernel
    wait_for_previous();
    const T* const own_x = x + row * in;
    const bool whole_x = is_aligned<kLine>(own_x, in);
    for (; used && at < in; at += kThreads * kLine) {
      const Line of_x = load_part<T, kLine>(own_x, at, in, whole_x);
      Line of_down[kColumns];
      PRIMUS_UNROLL
      for (int c = 0; c < kColumns; ++c) of_down[c] = next[c];
      fetch(down, at + kThreads * kLine, whole, next);
      PRIMUS_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        PRIMUS_UNROLL
        for (int k = 0; k < kLine; ++k)
          sums[c] = multiply_add(to_float(of_x.at[k]), to_float(of_down[c].at[k]), sums[c]);
      }
    }
    Parts& parts = shared<Parts>();
    PRIMUS_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const float sum = warp_reduce(sums[c]);
      if (lane() == 0) parts.of_warp[c][warp()] = sum;
    }
    barrier();
    PRIMUS_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      if (thread() != c) continue;
      float sum = parts.of_warp[c][0];
      for (int w = 1; w < kWarps; ++w) sum += parts.of_warp[c][w];
      low[row * low_columns + column + c] = down[c] ? scale[c] * sum : 0.0F;
    }
  }

  PRIMUS_DEVICE void fetch(const T* const (&down)[kColumns], std::int64_t at, bool whole,
                           Line (&to)[kColumns]) const {
    PRIMUS_UNROLL
    for (int c = 0; c < kColumns; ++c)
      to[c] = down[c] && at < in ? load_part<T, kLine>(down[c], at, in, whole) : Line{};
  }
};

// y[row, column] += low[row] · up[column] + scale * bias[column]. A sum adds its terms in the order of k.
template <class T, int kRows>
struct UpSums {
  static constexpr int kThreads = 128;
  using StartsEarly = void;
  static constexpr int kStep = RowAdapter::kLowMultiple, kLoad = kVector<T>, kLoads = kStep / kLoad;
  RowAdapterTable table;
  const float* low;
  T* y;
  std::int64_t rows, out, low_columns, tiles;

  // A row of B, and its row of A's products.
  struct Term {
    const T* up;
    const float* low;
    std::int64_t rank;
    float bias;
  };

  PRIMUS_DEVICE Term term_of(std::int64_t row, std::int64_t column) const {
    const RowAdapter* const own = row < rows && column < out ? table.of_column(row, column) : nullptr;
    if (!own) return {nullptr, nullptr, 0, 0.0F};
    const std::int64_t c = column - own->first;
    const T* const bias = table.matrix<T>(own->bias);
    return {table.matrix<T>(own->up) + c * own->rank, low + row * low_columns + own->low, own->rank,
            bias ? own->scale * to_float(bias[c]) : 0.0F};
  }

  // Elements [k, k + kStep) of a row of B; 0 after its end.
  struct Step {
    float at[kStep];
    PRIMUS_DEVICE void load(const T* up, std::int64_t k, std::int64_t rank) {
      const bool whole = is_aligned<kLoad>(up, rank);
      PRIMUS_UNROLL
      for (int l = 0; l < kLoads; ++l) {
        const std::int64_t first = k + l * kLoad;
        const auto part = first < rank ? load_part<T, kLoad>(up, first, rank, whole) : Pack<T, kLoad>{};
        PRIMUS_UNROLL
        for (int i = 0; i < kLoad; ++i) at[l * kLoad + i] = to_float(part.at[i]);
      }
    }
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t row = block() / tiles * kRows, column = block() % tiles * kThreads + thread();
    Term terms[kRows];
    std::int64_t longest = 0;
    PRIMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      terms[r] = term_of(row + r, column);
      longest = larger(longest, terms[r].rank);
    }
    Step up;
    if (terms[0].up) up.load(terms[0].up, 0, terms[0].rank);  // B does not depend on the previous kernel
    wait_for_previous();
    float sums[kRows] = {};
    for (std::int64_t k = 0; k < longest; k += kStep) {
      const T* loaded = k == 0 ? terms[0].up : nullptr;
      PRIMUS_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (k >= terms[r].rank) continue;
        if (terms[r].up != loaded) up.load(terms[r].up, k, terms[r].rank);
        loaded = terms[r].up;
        PRIMUS_UNROLL
        for (int i = 0; i < kStep; i += 4) {
          float of_low[4];
          turbo::PRIMUS_GPU::load<4>(terms[r].low + k + i, of_low);
          PRIMUS_UNROLL
          for (int j = 0; j < 4; ++j) sums[r] = multiply_add(of_low[j], up.at[i + j], sums[r]);
        }
      }
    }
    PRIMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (terms[r].rank == 0) continue;
      T& to = y[(row + r) * out + column];
      to = from_float<T>(to_float(to) + (sums[r] + terms[r].bias));
    }
  }
};

std::int64_t workspace(Context& context, const AddRowAdapters& a) {
  return context.batch_invariant() ? AddRowAdapters::kNotTaken : a.workspace_bytes();
}

void add_row_adapters(Context& context, const AddRowAdapters& a) {
  // With few rows, more blocks occupy the GPU. With many rows, a block reads its operands for more sums. The
  // order of the sums does not depend on this.
  constexpr std::int64_t kFewRows = 16;
  const std::int64_t rows = a.x.rows(), in = a.x.cols(), out = a.y.cols();
  const RowAdapterTable table{context.data<const RowAdapter>(a.table),
                              context.data<const std::int32_t>(a.models), a.table.shape[1]};
  auto* const low = context.data<float>(a.workspace);
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto enqueue = [&](auto columns, auto rows_of_block) {
      using Down = DownProducts<T, columns>;
      using Up = UpSums<T, rows_of_block>;
      launch(context, rows * (a.low_columns / columns),
             Down{table, context.data<const T>(a.x), low, in, a.low_columns});
      const std::int64_t tiles = blocks_for(out, Up::kThreads);
      launch(context, tiles * blocks_for(rows, rows_of_block),
             Up{table, low, context.data<T>(a.y), rows, out, a.low_columns, tiles});
    };
    if (rows <= kFewRows) {
      enqueue(std::integral_constant<int, 1>(), std::integral_constant<int, 1>());
    } else {
      enqueue(std::integral_constant<int, 4>(), std::integral_constant<int, 4>());
    }
  });
}

}  // namespace

void register_row_adapters(KernelTable& table) {
  table.add<AddRowAdapters, Context, &add_row_adapters, &workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
