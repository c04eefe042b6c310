// A thread makes four neighbouring columns of a row: one draw of the generator, where they begin at a
// multiple of four within the whole matrix.
#include "base/random/random.h"
#include "turbo/dropout/dropout.h"
#include "turbo/gpu/reduce.h"
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
  std::int64_t cols, packs;  // of a row
  float rate, factor;
  int run_count;
  Dropout::Columns runs[Dropout::kMostRuns];

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = i / packs, first = i % packs * kColumns;
    const double step = scalars[static_cast<std::size_t>(StepScalar::kStep)];
    const RandomStream stream(key, RandomPurpose::kDropout,
                              static_cast<std::uint32_t>(static_cast<std::int64_t>(step)),
                              static_cast<std::uint32_t>(tokens[row]));
    Philox::Counter words{};
    std::int64_t drawn = -1;
    PRIMUS_UNROLL
    for (int k = 0; k < kColumns; ++k) {
      const std::int64_t column = first + k;
      if (column >= cols) return;
      const std::int64_t element = whole(column);
      if (element / 4 != drawn) {
        drawn = element / 4;
        words = stream.quad(static_cast<std::uint64_t>(drawn));
      }
      const float u = RandomStream::to_uniform(words[static_cast<std::size_t>(element % 4)]);
      const std::int64_t at = row * cols + column;
      out[at] = from_float<T>(u >= rate ? to_float(x[at]) * factor : 0.0F);
    }
  }

  // The column within the whole matrix.
  PRIMUS_DEVICE std::int64_t whole(std::int64_t column) const {
    std::int64_t element = column + runs[0].whole;
    PRIMUS_UNROLL
    for (int run = 1; run < Dropout::kMostRuns; ++run) {
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
