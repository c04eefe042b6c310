#include <algorithm>

#include "turbo/column_runs/column_runs.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void copy_columns(CpuContext& context, const CopyColumns& a) {
  with_float_type(a.from.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* const from = context.data<const T>(a.from);
    T* const to = context.data<T>(a.to);
    const std::int64_t m = a.from.cols(), n = a.to.cols();
    parallel_ranges(context, a.from.rows(), 2 * std::max(m, n) * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        for (int r = 0; r < a.run_count; ++r) {
                          const ColumnRun& run = a.runs[static_cast<std::size_t>(r)];
                          for (std::int64_t g = 0; g < run.groups; ++g) {
                            std::copy_n(from + row * m + run.from + g * run.from_stride, run.columns,
                                        to + row * n + run.to + g * run.to_stride);
                          }
                        }
                      }
                    });
  });
}

}  // namespace

void register_column_runs(KernelTable& table) { table.add<CopyColumns, CpuContext, &copy_columns>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
