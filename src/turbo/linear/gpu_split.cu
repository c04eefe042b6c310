#include <algorithm>

#include "turbo/gpu/few_dots.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/mma.h"
#include "turbo/linear/gpu_split.h"
#include "turbo/linear/gpu_split_plan.h"
#include "turbo/linear/gpu_split_rows.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// C[m, n] (+)= sum over k of A(m, k) · B(n, k). An operand is "by depth" if each index
// of depth (k) has a contiguous line in memory, whose elements differ in m (or n). A block computes a tile of
// C, or one piece of its sums. While the block multiplies the operands of one step, it loads the operands of
// the next step into registers.
template <class A, class B, class C, bool kLeftByDepth, bool kRightByDepth>
struct SplitTiles {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  static constexpr int kRows = SplitPlan::kRows, kCols = SplitPlan::kCols, kDepth = SplitPlan::kDepth;
  static constexpr int kWarpsDown = 2, kWarpsAcross = kThreads / kWarp / kWarpsDown;
  static constexpr int kDown = kRows / kWarpsDown / kTile, kAcross = kCols / kWarpsAcross / kTile;
  static constexpr int kLine = 8;  // number of elements per load of a thread
  static constexpr bool kBothSplit = std::is_same_v<A, float> && std::is_same_v<B, float>;
  template <class X>
  static constexpr int kPartsOf = std::is_same_v<X, BFloat16> ? 1
                                  : kBothSplit                ? 2
                                                              : 3;
  static constexpr int kLeftParts = kPartsOf<A>, kRightParts = kPartsOf<B>;
  static constexpr int kMaxParts = kLeftParts > kRightParts ? kLeftParts : kRightParts;
  static constexpr int kStepsTogether = SplitPlan::kStepsTogether;

  const A* a;
  const B* b;
  C* c;
  float* pieces;  // [pieces, m, n] if sums are divided into pieces; else null
  SplitPlan plan;
  std::int64_t left_step, right_step;  // elements between the starts of consecutive rows in memory
  bool accumulate;

  template <int kSide, bool kByDepth, int kParts>
  struct Operands {
    // Padding of 8 elements puts eight adjacent rows into different banks.
    static constexpr int kStep = (kByDepth ? kSide : kDepth) + 8;
    BFloat16 at[kParts][(kByDepth ? kDepth : kSide) * kStep];
  };
  using Left = Operands<kRows, kLeftByDepth, kLeftParts>;
  using Right = Operands<kCols, kRightByDepth, kRightParts>;
  struct Memory {
    Left left;
    Right right;
  };

  // A thread's part of a step's operand: lines of 8 elements.
  template <class X, int kSide, bool kByDepth>
  struct Lines {
    static constexpr int kCount = kSide * kDepth / kLine / kThreads;
    static constexpr int kLinesAcross = (kByDepth ? kSide : kDepth) / kLine;
    static constexpr int kWords = kLine * static_cast<int>(sizeof(X)) / 16;
    Bytes16 words[kCount][kWords];

    PRIMUS_DEVICE void fetch(const X* x, std::int64_t step, std::int64_t row, std::int64_t rows,
                             std::int64_t depth, std::int64_t depths) {
      PRIMUS_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int line = thread() + i * kThreads;
        const int down = line / kLinesAcross, across = line % kLinesAcross * kLine;
        const std::int64_t r = row + (kByDepth ? across : down), d = depth + (kByDepth ? down : across);
        const bool there = r < rows && d < depths;
        const X* const from = x + (kByDepth ? d * step + r : r * step + d);
        PRIMUS_UNROLL
        for (int j = 0; j < kWords; ++j) {
          words[i][j] = there ? load_line(from + j * kLine / kWords) : Bytes16{};
        }
      }
    }
    template <class To>
    PRIMUS_DEVICE void put(To& to) const {
      PRIMUS_UNROLL
      for (int i = 0; i < kCount; ++i) {
        const int line = thread() + i * kThreads;
        const int at = line / kLinesAcross * To::kStep + line % kLinesAcross * kLine;
        constexpr int kParts = sizeof(to.at) / sizeof(to.at[0]);
        Pack<BFloat16, kLine> lines[kParts];
        if constexpr (kParts == 1) {
          lines[0] = std::bit_cast<Pack<BFloat16, kLine>>(words[i][0]);
        } else {
          PRIMUS_UNROLL
          for (int j = 0; j < kLine; ++j) {
            BFloat16 parts[kParts];
            split(std::bit_cast<float>(words[i][j / 4].word[j % 4]), parts);
            PRIMUS_UNROLL
            for (int part = 0; part < kParts; ++part) lines[part].at[j] = parts[part];
          }
        }
        PRIMUS_UNROLL
        for (int part = 0; part < kParts; ++part) {
          *reinterpret_cast<Pack<BFloat16, kLine>*>(&to.at[part][at]) = lines[part];
        }
      }
    }
  };

  template <bool kLeft, bool kByDepth, class From>
  PRIMUS_DEVICE static Operand<BFloat16> operand(const From& from, int part, int row, int depth) {
    const BFloat16* const tile =
        from.at[part] + (kByDepth ? depth * From::kStep + row : row * From::kStep + depth);
    if constexpr (kLeft) {
      return load_left<kByDepth>(tile, From::kStep);
    } else {
      return load_right<kByDepth>(tile, From::kStep);
    }
  }

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t tile = block() % plan.tiles, piece = block() / plan.tiles;
    const std::int64_t col_tiles = (plan.n + kCols - 1) / kCols;
    const std::int64_t row = tile / col_tiles * kRows, col = tile % col_tiles * kCols;
    const std::int64_t begin = piece * plan.steps_of_piece * kDepth;
    const std::int64_t end = smaller(begin + plan.steps_of_piece * kDepth, plan.k);
    Memory& memory = shared<Memory>();
    Lines<A, kRows, kLeftByDepth> left;
    Lines<B, kCols, kRightByDepth> right;
    const auto fetch = [&](std::int64_t depth) {
      left.fetch(a, left_step, row, plan.m, depth, end);
      right.fetch(b, right_step, col, plan.n, depth, end);
    };
    wait_for_previous();
    fetch(begin);
    const int down = warp() % kWarpsDown * kDown * kTile, across = warp() / kWarpsDown * kAcross * kTile;
    Accumulator total[kDown][kAcross], sums[kDown][kAcross];
    const auto clear = [](Accumulator(&all)[kDown][kAcross]) {
      PRIMUS_UNROLL
      for (int i = 0; i < kDown; ++i) {
        PRIMUS_UNROLL
        for (int j = 0; j < kAcross; ++j) all[i][j].clear();
      }
    };
    clear(total);
    clear(sums);
    int together = 0;
    for (std::int64_t depth = begin; depth < end; depth += kDepth) {
      barrier();  // all threads have read the operands of the previous step
      left.put(memory.left);
      right.put(memory.right);
      barrier();
      fetch(depth + kDepth);
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth; d += kTile) multiply_step(memory, sums, down, across, d);
      if (++together == kStepsTogether || depth + kDepth >= end) {
        together = 0;
        PRIMUS_UNROLL
        for (int i = 0; i < kDown; ++i) {
          PRIMUS_UNROLL
          for (int j = 0; j < kAcross; ++j) {
            PRIMUS_UNROLL
            for (int l = 0; l < kPerLane; ++l) total[i][j].at[l] += sums[i][j].at[l];
          }
        }
        clear(sums);
      }
    }
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        const std::int64_t r = row + down + i * kTile, s = col + across + j * kTile;
        if (pieces) {
          write(pieces + piece * plan.m * plan.n, total[i][j], r, s, false);
        } else {
          write(c, total[i][j], r, s, accumulate);
        }
      }
    }
  }

  // Adds the products of all pairs of parts, except products of two low parts, which are negligible.
  PRIMUS_DEVICE static void multiply_step(const Memory& memory, Accumulator (&sums)[kDown][kAcross], int down,
                                          int across, int depth) {
    Operand<BFloat16> x[kDown][kLeftParts];
    PRIMUS_UNROLL
    for (int i = 0; i < kDown; ++i) {
      PRIMUS_UNROLL
      for (int part = 0; part < kLeftParts; ++part) {
        x[i][part] = operand<true, kLeftByDepth>(memory.left, part, down + i * kTile, depth);
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kAcross; ++j) {
      PRIMUS_UNROLL
      for (int part = 0; part < kRightParts; ++part) {
        const auto y = operand<false, kRightByDepth>(memory.right, part, across + j * kTile, depth);
        PRIMUS_UNROLL
        for (int i = 0; i < kDown; ++i) {
          PRIMUS_UNROLL
          for (int other = 0; other < kLeftParts; ++other) {
            if (other + part < kMaxParts) multiply(sums[i][j], x[i][other], y);
          }
        }
      }
    }
  }

  template <class To>
  PRIMUS_DEVICE void write(To* to, const Accumulator& sums, std::int64_t row, std::int64_t col,
                           bool add) const {
    // With warps of 32, a lane holds pairs of adjacent sums, and stores a pair at once.
    constexpr int kPair = kWarp == 32 ? 2 : 1;
    PRIMUS_UNROLL
    for (int i = 0; i < kPerLane; i += kPair) {
      const std::int64_t r = row + Accumulator::row(i), s = col + Accumulator::col(i);
      if (r >= plan.m || s >= plan.n) continue;
      To* const out = to + r * plan.n + s;
      float values[kPair];
      PRIMUS_UNROLL
      for (int j = 0; j < kPair; ++j) values[j] = (add ? to_float(out[j]) : 0.0F) + sums.at[i + j];
      store(out, values);
    }
  }
};

// c (+)= the sum of the pieces, in order.
template <class C, int kCount>
struct AddPiecesBody {
  const float* pieces;
  C* c;
  std::int64_t count, elements;
  bool accumulate;
  PRIMUS_DEVICE void operator()(std::int64_t, std::int64_t i) const {
    float sum[kCount] = {};
    if (accumulate) load<kCount>(c + i, sum);
    for (std::int64_t piece = 0; piece < count; ++piece) {
      float addend[kCount];
      load<kCount>(pieces + piece * elements + i, addend);
      PRIMUS_UNROLL
      for (int j = 0; j < kCount; ++j) sum[j] += addend[j];
    }
    store<kCount>(c + i, sum);
  }
};

bool is_ordered_split(const Context& context, const Gemm& call) {
  return context.batch_invariant() && call.role == GemmRole::kForward;
}

template <class A, class B, class C, bool kLeftByDepth, bool kRightByDepth>
void run(Context& context, const Gemm& call) {
  const SplitPlan plan(call, is_ordered_split(context, call));
  C* const c = context.data<C>(call.c);
  float* const pieces = plan.pieces > 1 ? context.data<float>(call.workspace) : nullptr;
  launch(context, plan.tiles * plan.pieces,
         SplitTiles<A, B, C, kLeftByDepth, kRightByDepth>{context.data<A>(call.a), context.data<B>(call.b), c,
                                                          pieces, plan, call.a.cols(), call.b.cols(),
                                                          call.accumulate});
  if (!pieces) return;
  const std::int64_t elements = plan.m * plan.n;
  with_vector<float>(rows_of_vectors<float>(elements, pieces, c), [&](auto count) {
    for_each_of_rows<count>(context, 1, elements,
                            AddPiecesBody<C, count>{pieces, c, plan.pieces, elements, call.accumulate});
  });
}

}  // namespace

namespace {

// Returns whether the result has one column, as the gate of a shared expert.
bool is_one_column(const Gemm& call) {
  return call.role == GemmRole::kForward && !call.accumulate && call.b.rows() == 1;
}

// Returns whether multiply-adds, which compute at the rate of the memory, compute the product: it has only a
// few rows, as in decoding, or one column. An order that does not depend on the number of rows has no special
// case for few rows.
bool is_of_few_rows(const Context& context, const Gemm& call) {
  constexpr std::int64_t kMaxRows = 8;
  if (is_one_column(call)) return true;
  return call.role == GemmRole::kForward && !call.accumulate && call.a.rows() <= kMaxRows &&
         !is_ordered_split(context, call);
}

// Returns whether OrderedSplitRows computes the product.
bool is_of_few_ordered_rows(const Context& context, const Gemm& call) {
  return kWarp == 32 && is_ordered_split(context, call) && !call.accumulate &&
         call.a.rows() <= OrderedSplitRows::kRows;
}

}  // namespace

bool is_split(const Context& context, const Gemm& call) {
  constexpr DType kWide = DType::kF32, kNarrow = DType::kBF16;
  const auto types = [&](DType a, DType b, DType c) {
    return call.a.dtype == a && call.b.dtype == b && call.c.dtype == c;
  };
  const bool known = call.role == GemmRole::kForward         ? types(kNarrow, kWide, kWide)
                     : call.role == GemmRole::kInputGradient ? types(kWide, kWide, kNarrow)
                                                             : types(kWide, kNarrow, kWide);
  const auto lines = [](const Tensor& t) {
    return t.elements() > 0 && t.cols() % 8 == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
  };
  return known && lines(call.a) && lines(call.b) && call.c.elements() > 0 &&
         (call.c.cols() % 2 == 0 || is_of_few_rows(context, call));
}

std::int64_t split_workspace(const Context& context, const Gemm& call) {
  if (is_of_few_rows(context, call) || is_of_few_ordered_rows(context, call)) return 0;
  const SplitPlan plan(call, is_ordered_split(context, call));
  return plan.pieces > 1 ? plan.pieces * plan.m * plan.n * size_of(DType::kF32) : 0;
}

void multiply_split(Context& context, const Gemm& call) {
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of bf16 with fp32: own kernel");
#endif
  if (is_of_few_rows(context, call)) {
    return few_dots<1>(context, context.data<BFloat16>(call.a), context.data<float>(call.b),
                       context.data<float>(call.c), call.a.rows(), call.b.rows(), call.a.cols(), OneMatrix{});
  }
  if (is_of_few_ordered_rows(context, call)) {
    return launch(context, blocks_for(call.b.rows(), OrderedSplitRows::kCols),
                  OrderedSplitRows{context.data<BFloat16>(call.a), context.data<float>(call.b),
                                   context.data<float>(call.c), SplitPlan(call, true)});
  }
  switch (call.role) {
    case GemmRole::kForward:
      return run<BFloat16, float, float, false, false>(context, call);
    case GemmRole::kInputGradient:
      return run<float, float, BFloat16, false, true>(context, call);
    case GemmRole::kWeightGradient:
      return run<float, BFloat16, float, true, true>(context, call);
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
