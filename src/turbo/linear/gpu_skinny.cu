#include "turbo/gpu/mma.h"
#include "turbo/linear/gpu_skinny.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr std::int64_t kMostRows = 8;

// A block has 16 rows of W, and its warps share the columns: in every step they read, together, neighbouring
// stripes of those rows. Weights go straight from global memory into operands, as the left side of a product
// whose right side are the rows of x; the matrix units make sums so cheap that reading is all there is to do.
// Warps add theirs up in their order.
template <class C>
struct SkinnyProduct {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kStep = kWarps * Stripe::kCols;  // columns
  static constexpr int kInFlight = 4;                   // steps whose reads are under way together

  const BFloat16 *w, *x;
  C* y;
  std::int64_t rows, out, in;

  struct Sums {
    float of_warp[kWarps][kTile][kMostRows + 1];  // one more: neighbouring rows begin in other banks
  };
  struct Operands {
    Stripe weights, inputs;
  };

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t first = block() * kTile;
    // Of a lane: its rows of W (the last one again where there are no more), and its rows of x.
    const BFloat16 *from[Stripe::kRows], *given[Stripe::kRows];
    bool there[Stripe::kRows];
    PRIMUS_UNROLL
    for (int i = 0; i < Stripe::kRows; ++i) {
      from[i] = w + smaller(first + Stripe::row(i), out - 1) * in;
      there[i] = Stripe::row(i) < rows;
      given[i] = x + (there[i] ? Stripe::row(i) : 0) * in;
    }
    Accumulator sum;
    sum.clear();
    const std::int64_t begin = warp() * Stripe::kCols + Stripe::col();
    for (std::int64_t step = 0; step < in; step += kInFlight * kStep) {
      Operands operands[kInFlight];
      PRIMUS_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        const std::int64_t at = step + j * kStep + begin;
        PRIMUS_UNROLL
        for (int i = 0; i < Stripe::kRows; ++i) {
          operands[j].weights.of_row[i] = at < in ? load_once(from[i] + at) : Pack<BFloat16, 8>{};
        }
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        const std::int64_t at = step + j * kStep + begin;
        PRIMUS_UNROLL
        for (int i = 0; i < Stripe::kRows; ++i) {
          operands[j].inputs.of_row[i] = at < in && there[i]
                                             ? *reinterpret_cast<const Pack<BFloat16, 8>*>(given[i] + at)
                                             : Pack<BFloat16, 8>{};
        }
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kInFlight; ++j) {
        PRIMUS_UNROLL
        for (int product = 0; product < Stripe::kProducts; ++product) {
          multiply<1>(sum, operands[j].weights.left(product), operands[j].inputs.right(product));
        }
      }
    }
    Sums& sums = shared<Sums>();
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (Accumulator::col(i) < kMostRows)
        sums.of_warp[warp()][Accumulator::row(i)][Accumulator::col(i)] = sum.at[i];
    }
    barrier();
    for (int i = thread(); i < kTile * kMostRows; i += kThreads) {
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
  if (call.role != GemmRole::kForward || call.accumulate || rows > kMostRows || rows == 0 || in == 0)
    return false;
  if (call.a.dtype != DType::kBF16 || call.b.dtype != DType::kBF16 || in % 8 != 0) return false;
  if (!aligned(call.a) || !aligned(call.b)) return false;
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows: own kernel");
#endif
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch(context, blocks_for(out, kTile),
           SkinnyProduct<C>{context.data<BFloat16>(call.b), context.data<BFloat16>(call.a),
                            context.data<C>(call.c), rows, out, in});
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
