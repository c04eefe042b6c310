#include <algorithm>
#include <span>

#include "base/random/random.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/dropout/dropout.h"
#include "turbo/dropout/formula.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void dropout(CpuContext& context, const Dropout& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<const T>(a.x);
    T* out = context.data<T>(a.out);
    const auto* tokens = context.data<const std::int32_t>(a.tokens);
    const double step = context.data<const double>(a.scalars)[index(StepScalar::kStep)];
    const auto step_id = static_cast<std::uint32_t>(static_cast<std::int64_t>(step));
    const std::int64_t cols = a.x.cols();
    const float rate = a.rate, factor = a.factor();
    parallel_ranges(context, a.x.elements(), 2 * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      constexpr std::int64_t kMax = 256;
      float u[kMax];
      std::int64_t n = 0;
      for (std::int64_t at = begin; at < end; at += n) {
        const std::int64_t row = at / cols, column = at % cols;
        int run = 0;
        while (run + 1 < a.run_count && a.runs[run + 1].begin <= column) ++run;
        const std::int64_t run_end = run + 1 < a.run_count ? a.runs[run + 1].begin : cols;
        n = std::min({kMax, end - at, run_end - column});
        const RandomStream stream(a.seed ^ a.stream, RandomPurpose::kDropout, step_id,
                                  static_cast<std::uint32_t>(tokens[row]));
        const std::int64_t first = a.runs[run].whole + column - a.runs[run].begin;
        fill_uniform(stream, static_cast<std::uint64_t>(first), std::span(u, static_cast<std::size_t>(n)));
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < n; ++i)
          out[at + i] = from_float<T>(dropped_out(to_float(x[at + i]), u[i], rate, factor));
      }
    });
  });
}

}  // namespace

void register_dropout(KernelTable& table) { table.add<Dropout, CpuContext, &dropout>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
