#include "turbo/column_runs/column_runs.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A thread copies kCount consecutive columns of one row. The columns of all runs have consecutive numbers.
template <class T, int kCount>
struct CopyBody {
  const T* from;
  T* to;
  std::int64_t m, n;
  ColumnRun runs[CopyColumns::kMaxRuns];
  int run_count;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    int r = 0;
    while (r + 1 < run_count && column >= size(r)) column -= size(r++);
    const ColumnRun& run = runs[r];
    const std::int64_t group = column / run.columns, i = column % run.columns;
    float v[kCount];
    load<kCount>(from + row * m + run.from + group * run.from_stride + i, v);
    store<kCount>(to + row * n + run.to + group * run.to_stride + i, v);
  }
  PRIMUS_DEVICE std::int64_t size(int r) const { return std::int64_t{runs[r].groups} * runs[r].columns; }
};

// Returns whether every group begins at a multiple of `count` columns, in both source and destination.
bool aligned(const CopyColumns& a, std::int64_t count) {
  for (int r = 0; r < a.run_count; ++r) {
    const ColumnRun& run = a.runs[static_cast<std::size_t>(r)];
    for (const std::int64_t at : {run.from, run.to, run.columns, run.from_stride, run.to_stride}) {
      if (at % count != 0) return false;
    }
  }
  return true;
}

void copy_columns(Context& context, const CopyColumns& a) {
  with_float_type(a.from.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<T>(a.from);
    T* to = context.data<T>(a.to);
    const std::int64_t m = a.from.cols(), n = a.to.cols();
    std::int64_t columns = 0;
    for (int r = 0; r < a.run_count; ++r) columns += a.runs[static_cast<std::size_t>(r)].size();
    const bool vectors = aligned(a, kVector<T>) && rows_of_vectors<T>(m, from) && rows_of_vectors<T>(n, to);
    with_vector<T>(vectors, [&](auto count) {
      CopyBody<T, count> body{from, to, m, n, {}, a.run_count};
      for (int r = 0; r < a.run_count; ++r) body.runs[r] = a.runs[static_cast<std::size_t>(r)];
      for_each_of_rows<count>(context, a.from.rows(), columns, body);
    });
  });
}

}  // namespace

void register_column_runs(KernelTable& table) { table.add<CopyColumns, Context, &copy_columns>(); }

}  // namespace primus::turbo::PRIMUS_GPU
