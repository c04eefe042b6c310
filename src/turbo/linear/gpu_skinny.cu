#include "turbo/gpu/mma.h"
#include "turbo/linear/gpu_few_rows.h"
#include "turbo/linear/gpu_skinny.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr std::int64_t kMaxRows = 8, kMaxColumns = 1 << 30;

// A block processes 16 rows of W. In every step, its warps read adjacent stripes of these rows. Weights are
// loaded from global memory directly into the left operand of the matrix units. The rows of x are the right
// operand. With the matrix units, computing sums takes less time than reading. The sums of the warps are
// added in warp order.
template <class C>
struct SkinnyProduct {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kStep = kWarps * Stripe::kCols;  // columns
  static constexpr int kInFlight = 4;                   // number of steps that are read concurrently

  const BFloat16 *w, *x;
  C* y;
  std::int64_t rows, out, in;

  struct Sums {
    float of_warp[kWarps][kTile][kMaxRows + 1];  // the padding of 1 avoids bank conflicts
  };
  // A lane's operands of a step, from W and from x (x has at most kMaxRows rows).
  struct Operands {
    Stripe weights;
    Bytes16 input;
  };

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t first = block() * kTile;
    // The rows of W of this lane, and its row of x. After the end of W, a lane reads the last row of W again.
    const BFloat16* from[Stripe::kRows];
    PRIMUS_UNROLL
    for (int i = 0; i < Stripe::kRows; ++i) from[i] = w + smaller(first + Stripe::row(i), out - 1) * in;
    const bool there = Stripe::row(0) < rows;
    const BFloat16* given = x + (there ? Stripe::row(0) : 0) * in;
    const int begin = warp() * Stripe::kCols + Stripe::col(), end = static_cast<int>(in);
    const auto fetch = [&](Operands& to, int at) {
      const bool inside = at < end;
      PRIMUS_UNROLL
      for (int i = 0; i < Stripe::kRows; ++i)
        to.weights.of_row[i] = inside ? load_line_once(from[i] + at) : Bytes16{};
      to.input = inside && there ? load_line(given + at) : Bytes16{};
    };

    // Reads the first weights while the previous kernel still computes x.
    let_next_begin();
    PRIMUS_UNROLL
    for (int j = 0; j < kInFlight; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < Stripe::kRows; ++i) {
        if (begin + j * kStep < end) prefetch(from[i] + begin + j * kStep);
      }
    }
    wait_for_previous();
    Accumulator sum;
    sum.clear();
    Operands operands[kInFlight];
    PRIMUS_UNROLL
    for (int j = 0; j < kInFlight; ++j) fetch(operands[j], begin + j * kStep);
    for (int step = begin; step < begin + end; step += kInFlight * kStep) {
      PRIMUS_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        const Stripe inputs{{operands[j].input}};
        PRIMUS_UNROLL
        for (int product = 0; product < Stripe::kProducts; ++product) {
          multiply<1>(sum, operands[j].weights.left(product), inputs.right(product));
        }
        fetch(operands[j], step + (kInFlight + j) * kStep);
      }
    }
    Sums& sums = shared<Sums>();
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (Accumulator::col(i) < kMaxRows)
        sums.of_warp[warp()][Accumulator::row(i)][Accumulator::col(i)] = sum.at[i];
    }
    barrier();
    for (int i = thread(); i < kTile * kMaxRows; i += kThreads) {
      const int n = i % kTile, row = i / kTile;
      if (first + n >= out || row >= rows) continue;
      float total = 0;
      PRIMUS_UNROLL
      for (int j = 0; j < kWarps; ++j) total += sums.of_warp[j][n][row];
      y[row * out + first + n] = from_float<C>(total);
    }
  }
};

}  // namespace

bool multiply_skinny(Context& context, const Gemm& call) {
  const std::int64_t rows = call.a.rows(), in = call.a.cols(), out = call.b.rows();
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  if (call.role != GemmRole::kForward || call.accumulate || rows > kMaxRows || rows == 0 || in == 0 ||
      in > kMaxColumns)
    return false;
  if (call.a.dtype != DType::kBF16 || call.b.dtype != DType::kBF16 || in % 8 != 0) return false;
  if (!aligned(call.a) || !aligned(call.b)) return false;
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows: own kernel");
#endif
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    if (takes_few_rows(context, rows, in, out)) {
      return launch_few_rows(
          context, StagedRows{context.data<BFloat16>(call.a), static_cast<int>(rows), static_cast<int>(in)},
          PlainResults<C>{context.data<C>(call.c), nullptr, static_cast<int>(out)}, out,
          context.data<BFloat16>(call.b), rows, in);
    }
    launch(context, blocks_for(out, kTile),
           SkinnyProduct<C>{context.data<BFloat16>(call.b), context.data<BFloat16>(call.a),
                            context.data<C>(call.c), rows, out, in});
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
