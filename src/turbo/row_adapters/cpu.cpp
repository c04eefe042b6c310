#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/row_adapters/formula.h"
#include "turbo/row_adapters/row_adapters.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Returns the sum of a[i] * b[i]. The order depends only on n.
template <class A, class B>
PRIMUS_INLINE float dot_of(const A* a, const B* b, std::int64_t n) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += to_float(a[i + lane]) * to_float(b[i + lane]);
  }
  for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += to_float(a[i]) * to_float(b[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

RowAdapterTable table_of(const CpuContext& context, const AddRowAdapters& a) {
  return {context.data<const RowAdapter>(a.table), context.data<const std::int32_t>(a.models),
          a.table.shape[1]};
}

template <class T>
void multiply_down(const CpuContext& context, const AddRowAdapters& a, float* low) {
  const RowAdapterTable table = table_of(context, a);
  const std::int64_t in = a.x.cols();
  parallel_ranges(context, a.x.rows() * a.low_columns, in * sizeof(T),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t row = i / a.low_columns, column = i % a.low_columns;
                      const RowAdapter* const own = table.of_low(row, column);
                      if (!own) continue;
                      const T* const down = table.matrix<T>(own->down) + (column - own->low) * in;
                      low[i] = own->scale * dot_of(context.data<const T>(a.x) + row * in, down, in);
                    }
                  });
}

template <class T>
void add_up(const CpuContext& context, const AddRowAdapters& a, const float* low) {
  const RowAdapterTable table = table_of(context, a);
  const std::int64_t out = a.y.cols();
  // An item is a piece of a row.
  constexpr std::int64_t kPiece = 1024;
  const std::int64_t pieces = (out + kPiece - 1) / kPiece;
  const auto add = [&](std::int64_t row, const RowAdapter& own, std::int64_t begin, std::int64_t end) {
    const T *const up = table.matrix<T>(own.up), *const bias = table.matrix<T>(own.bias);
    T* const y = context.data<T>(a.y) + row * out + own.first;
    for (std::int64_t c = begin; c < end; ++c) {
      float sum = dot_of(low + row * a.low_columns + own.low, up + c * own.rank, own.rank);
      if (bias) sum += own.scale * to_float(bias[c]);
      y[c] = from_float<T>(to_float(y[c]) + sum);
    }
  };
  parallel_ranges(context, a.y.rows() * pieces, kPiece * a.low_columns * sizeof(T),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const std::int64_t row = i / pieces, begin = i % pieces * kPiece;
                      const std::int64_t end = std::min(begin + kPiece, out), model = table.models[row];
                      for (std::int64_t k = 0; model >= 0 && k < table.adapters; ++k) {
                        const RowAdapter& own = table.entries[model * table.adapters + k];
                        if (own.rank > 0)
                          add(row, own, std::max<std::int64_t>(begin - own.first, 0),
                              std::min(end - own.first, own.columns));
                      }
                    }
                  });
}

std::int64_t workspace(CpuContext& context, const AddRowAdapters& a) {
  return context.batch_invariant() ? AddRowAdapters::kNotTaken : a.workspace_bytes();
}

void add_row_adapters(CpuContext& context, const AddRowAdapters& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    auto* const low = context.data<float>(a.workspace);
    multiply_down<T>(context, a, low);
    add_up<T>(context, a, low);
  });
}

}  // namespace

void register_row_adapters(KernelTable& table) {
  table.add<AddRowAdapters, CpuContext, &add_row_adapters, &workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
