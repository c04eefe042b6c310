// A thread computes four consecutive columns of a row. The generator draws four numbers at a time. One draw
// is enough if the columns begin at a multiple of four in the complete matrix.
#include "base/random/random.h"
#include "turbo/dropout/dropout.h"
#include "turbo/dropout/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kColumns = 4;

template <class T>
struct DropoutBody {
  const T* x;
  T* out;
  const std::int32_t* tokens;
  const double* scalars;
  std::uint64_t key;
  std::int64_t cols, packs;  // number of columns, and of packs of four columns, per row
  float rate, factor;
  int run_count;
  Dropout::Columns runs[Dropout::kMaxRuns];

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = i / packs, first = i % packs * kColumns;
    const double step = scalars[static_cast<std::size_t>(StepScalar::kStep)];
    const RandomStream stream(key, RandomPurpose::kDropout,
                              static_cast<std::uint32_t>(static_cast<std::int64_t>(step)),
                              static_cast<std::uint32_t>(tokens[row]));
    const std::int64_t at = row * cols + first, element = whole(first), last = first + kColumns - 1;
    if (element % kColumns == 0 && last < cols && whole(last) == element + kColumns - 1) {
      const Philox::Counter words = stream.quad(static_cast<std::uint64_t>(element / kColumns));
      PRIMUS_UNROLL
      for (std::size_t k = 0; k < kColumns; ++k) put(at + static_cast<std::int64_t>(k), words[k]);
      return;
    }
    for (std::int64_t k = 0; k < kColumns && first + k < cols; ++k)
      put(at + k, stream.bits(static_cast<std::uint64_t>(whole(first + k))));
  }

  PRIMUS_DEVICE void put(std::int64_t at, std::uint32_t word) const {
    out[at] = from_float<T>(dropped_out(to_float(x[at]), RandomStream::to_uniform(word), rate, factor));
  }

  // Returns the index of a column in the complete matrix.
  PRIMUS_DEVICE std::int64_t whole(std::int64_t column) const {
    std::int64_t element = column + runs[0].whole;
    PRIMUS_UNROLL
    for (int run = 1; run < Dropout::kMaxRuns; ++run) {
      if (run < run_count && runs[run].begin <= column) element = column - runs[run].begin + runs[run].whole;
    }
    return element;
  }
};

void dropout(Context& context, const Dropout& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t packs = (a.x.cols() + kColumns - 1) / kColumns;
    DropoutBody<T> body{context.data<T>(a.x),
                        context.data<T>(a.out),
                        context.data<std::int32_t>(a.tokens),
                        context.data<double>(a.scalars),
                        a.seed ^ a.stream,
                        a.x.cols(),
                        packs,
                        a.rate,
                        a.factor(),
                        a.run_count,
                        {}};
    for (int run = 0; run < a.run_count; ++run) body.runs[run] = a.runs[run];
    for_each(context, a.x.rows() * packs, body);
  });
}

}  // namespace

void register_dropout(KernelTable& table) { table.add<Dropout, Context, &dropout>(); }

}  // namespace primus::turbo::PRIMUS_GPU
