#include "base/random/random.h"
#include "base/random/random_normal.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/elementwise/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- Element by element -------------------------------------------------------------------------

template <class T, int kCount>
struct AddBody {
  const T *a, *b;
  T* out;
  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    float x[kCount], y[kCount];
    load<kCount>(a + i, x);
    load<kCount>(b + i, y);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) x[k] += y[k];
    store<kCount>(out + i, x);
  }
};

// Adds the partial tensors of all ranks pairwise, in rank order. Level l stores a sum of 2^l tensors. When
// the next sum of 2^l tensors is complete, the two sums are added into level l + 1.
template <class T, int kCount>
struct AddPartsBody {
  const T *own, *others;
  T* out;
  std::int64_t n;
  int ranks, rank;
  bool by_rank;
  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    constexpr int kLevels = Add::kLevels;
    const std::int64_t i = pack * kCount;
    float waiting[kLevels + 1][kCount] = {};
    for (int r = 0; r < ranks; ++r) {
      float sum[kCount];
      load<kCount>((r == rank ? own : others + n * Add::place(ranks, rank, r, by_rank)) + i, sum);
      // Levels are compile-time constants after unrolling, so sums stay in registers.
      bool placed = false;
      PRIMUS_UNROLL
      for (int level = 0; level <= kLevels; ++level) {
        if (placed) continue;
        placed = (r >> level & 1) == 0;
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) {
          if (placed) {
            waiting[level][k] = sum[k];
          } else {
            sum[k] = waiting[level][k] + sum[k];
          }
        }
      }
    }
    // Adds the sums that remain in the levels, from the lowest level to the highest.
    float sum[kCount] = {};
    bool begun = false;
    PRIMUS_UNROLL
    for (int level = 0; level <= kLevels; ++level) {
      if ((ranks >> level & 1) == 0) continue;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) sum[k] = begun ? waiting[level][k] + sum[k] : waiting[level][k];
      begun = true;
    }
    store<kCount>(out + i, sum);
  }
};

void add_parts(Context& context, const Add& call) {
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *own = context.data<T>(call.a), *others = context.data<T>(call.b);
    T* out = context.data<T>(call.out);
    const std::int64_t n = call.out.elements();
    with_vector<T>(rows_of_vectors<T>(n, own, others, out), [&](auto count) {
      for_each(context, n / count,
               AddPartsBody<T, count>{own, others, out, n, call.ranks, call.rank, call.by_rank});
    });
  });
}

void add(Context& context, const Add& call) {
  if (!call.is_pair()) return add_parts(context, call);
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *a = context.data<T>(call.a), *b = context.data<T>(call.b);
    T* out = context.data<T>(call.out);
    with_vector<T>(rows_of_vectors<T>(call.out.elements(), a, b, out), [&](auto count) {
      for_each(context, call.out.elements() / count, AddBody<T, count>{a, b, out});
    });
  });
}

template <class From, class To, int kCount>
struct CastBody {
  const From* x;
  To* out;
  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    float values[kCount];
    load<kCount>(x + pack * kCount, values);
    store<kCount>(out + pack * kCount, values);
  }
};

void cast(Context& context, const Cast& call) {
  with_operand_type(call.x.dtype, [&](auto from_tag) {
    with_operand_type(call.out.dtype, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const From* x = context.data<From>(call.x);
      To* out = context.data<To>(call.out);
      const std::int64_t n = call.x.elements();
      // A thread converts as many elements as the wider type has in 16 bytes.
      with_vector<float>(rows_of_vectors<float>(n, x, out), [&](auto count) {
        for_each(context, n / count, CastBody<From, To, count>{x, out});
      });
    });
  });
}

struct RoundMastersBody {
  const float* masters;
  BFloat16* working;
  std::int16_t* remainder;  // may be null
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    working[i] = working_value(masters[i]);
    if (remainder) remainder[i] = param_remainder(masters[i]);
  }
};

void round_masters(Context& context, const RoundMasters& call) {
  for_each(context, call.masters.elements(),
           RoundMastersBody{context.data<float>(call.masters), context.data<BFloat16>(call.working),
                            optional<std::int16_t>(context, call.remainder)});
}

template <class T>
struct ScaleBody {
  const T* x;
  T* out;
  float factor;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { out[i] = from_float<T>(factor * to_float(x[i])); }
};

void scale(Context& context, const Scale& call) {
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, call.out.elements(),
             ScaleBody<T>{context.data<T>(call.x), context.data<T>(call.out), call.factor});
  });
}

struct LogUniformBody {
  float* x;
  double low, range;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { x[i] = log_uniform_of(x[i], low, range); }
};

void log_uniform(Context& context, const LogUniform& call) {
  const double low = call.low;
  for_each(context, call.x.elements(),
           LogUniformBody{context.data<float>(call.x), low, static_cast<double>(call.high) - low});
}

template <class T>
struct FillBody {
  T* out;
  float value;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { out[i] = from_float<T>(value); }
};

void fill(Context& context, const Fill& call) {
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, call.out.elements(), FillBody<T>{context.data<T>(call.out), call.value});
  });
}

struct RandomNormalBody {
  RandomStream stream;
  float* out;
  std::int64_t offset, n;
  float mean, stddev;

  // A thread computes two elements, 2j and 2j + 1 of the complete tensor.
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t pair = offset / 2 + i;
    const auto words = stream.quad(static_cast<std::uint64_t>(pair / 2));
    const int half = static_cast<int>(pair % 2) * 2;
    const double radius = ::sqrt(-2.0 * log_unit(words[half]));
    const CirclePoint point = on_circle(words[half + 1]);
    const std::int64_t at = pair * 2 - offset;
    if (at >= 0 && at < n) out[at] = static_cast<float>(mean + stddev * (radius * point.x));
    if (at + 1 < n) out[at + 1] = static_cast<float>(mean + stddev * (radius * point.y));
  }
};

// Computes RandomNormal for a column shard. The elements of a column shard are not consecutive in the
// complete tensor. A thread computes one element.
struct StridedRandomNormalBody {
  RandomStream stream;
  float* out;
  std::int64_t offset, length, stride;
  float mean, stddev;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t element = offset + i / length * stride + i % length;
    const auto words = stream.quad(static_cast<std::uint64_t>(element / 4));
    const int half = static_cast<int>(element / 2 % 2) * 2;
    const double radius = ::sqrt(-2.0 * log_unit(words[half]));
    const CirclePoint point = on_circle(words[half + 1]);
    out[i] = static_cast<float>(mean + stddev * (radius * (element % 2 == 0 ? point.x : point.y)));
  }
};

void random_normal(Context& context, const RandomNormal& call) {
  const RandomStream stream(call.seed, RandomPurpose::kInit, 0, static_cast<std::uint32_t>(call.stream >> 32),
                            static_cast<std::uint32_t>(call.stream));
  const std::int64_t n = call.out.elements();
  if (call.length != 0 && call.length != n) {
    for_each(context, n,
             StridedRandomNormalBody{stream, context.data<float>(call.out), call.offset, call.length,
                                     call.stride, call.mean, call.std});
    return;
  }
  for_each(context, n == 0 ? 0 : (call.offset + n + 1) / 2 - call.offset / 2,
           RandomNormalBody{stream, context.data<float>(call.out), call.offset, n, call.mean, call.std});
}

// Computes the source and the destination of rows. Calls with a single group skip the 64-bit divisions, which
// take as long as the copy. Such calls are the most frequent.
template <class Word>
struct Rows {
  const Word* from;
  Word* to;
  std::int64_t from_stride, to_stride, group_rows, to_group_stride;
  bool groups;

  Rows(Context& context, const CopyRows& a, std::int64_t words)
      : from(context.data<Word>(a.from)),
        to(context.data<Word>(a.to)),
        from_stride(a.from_stride / words),
        to_stride(a.to_stride / words),
        group_rows(a.group_rows),
        to_group_stride(a.to_group_stride / words),
        groups(a.rows > a.group_rows) {}

  PRIMUS_DEVICE const Word* source(std::int64_t row) const { return from + row * from_stride; }
  PRIMUS_DEVICE Word* target(std::int64_t row) const {
    if (!groups) return to + row * to_stride;
    return to + row / group_rows * to_group_stride + row % group_rows * to_stride;
  }
};

template <class Word>
struct CopyRowsBody {
  Rows<Word> rows;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    rows.target(row)[column] = rows.source(row)[column];
  }
};

template <class T, int kCount>
struct AddRowsBody {
  Rows<T> rows;
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    T* const to = rows.target(row) + column;
    float x[kCount], y[kCount];
    load<kCount>(rows.source(row) + column, x);
    load<kCount>(to, y);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) y[k] += x[k];
    store<kCount>(to, y);
  }
};

struct alignas(16) Line {
  std::uint64_t half[2];
};

template <class Word>
void copy_rows_by(Context& context, const CopyRows& a) {
  const auto words = static_cast<std::int64_t>(sizeof(Word)) / size_of(a.from.dtype);
  for_each_of_rows<1>(context, a.rows, a.cols / words, CopyRowsBody<Word>{Rows<Word>(context, a, words)});
}

void copy_rows(Context& context, const CopyRows& a) {
  const std::int64_t bytes = size_of(a.from.dtype);
  const bool lines = reinterpret_cast<std::uintptr_t>(context.data<char>(a.from)) % 16 == 0 &&
                     reinterpret_cast<std::uintptr_t>(context.data<char>(a.to)) % 16 == 0 &&
                     a.cols * bytes % 16 == 0 && a.from_stride * bytes % 16 == 0 &&
                     a.to_stride * bytes % 16 == 0 && a.to_group_stride * bytes % 16 == 0;
  if (a.add) {
    return with_float_type(a.to.dtype, [&](auto tag) {
      using T = decltype(tag);
      with_vector<T>(lines, [&](auto count) {
        for_each_of_rows<count>(context, a.rows, a.cols, AddRowsBody<T, count>{Rows<T>(context, a, 1)});
      });
    });
  }
  if (lines) return copy_rows_by<Line>(context, a);
  switch (bytes) {
    case 8:
      return copy_rows_by<std::uint64_t>(context, a);
    case 4:
      return copy_rows_by<std::uint32_t>(context, a);
    case 2:
      return copy_rows_by<std::uint16_t>(context, a);
    default:
      return copy_rows_by<std::uint8_t>(context, a);
  }
}

// ---- Sums ---------------------------------------------------------------------------------------

struct Widened {
  const float* x;
  PRIMUS_DEVICE double operator()(std::int64_t i) const { return static_cast<double>(x[i]); }
};
struct StoreSum {
  float* out;
  bool accumulate;
  PRIMUS_DEVICE void operator()(double sum) const {
    *out = static_cast<float>(accumulate ? static_cast<double>(*out) + sum : sum);
  }
};

void sum(Context& context, const Sum& call) {
  ordered_sum<double>(context, call.x.elements(), Widened{context.data<float>(call.x)},
                      StoreSum{context.data<float>(call.out), call.accumulate});
}

template <class T>
struct NonFinite {
  const T* x;
  PRIMUS_DEVICE std::int64_t operator()(std::int64_t i) const {
    return (std::bit_cast<std::uint32_t>(to_float(x[i])) & 0x7f800000U) == 0x7f800000U ? 1 : 0;
  }
};
struct StoreCount {
  std::int32_t* out;
  bool accumulate;
  PRIMUS_DEVICE void operator()(std::int64_t count) const {
    const std::int64_t total = accumulate ? *out + count : count;
    *out = static_cast<std::int32_t>(smaller(total, std::numeric_limits<std::int32_t>::max()));
  }
};

void count_non_finite(Context& context, const CountNonFinite& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    ordered_sum<std::int64_t>(context, call.x.elements(), NonFinite<T>{context.data<T>(call.x)},
                              StoreCount{context.data<std::int32_t>(call.out), call.accumulate});
  });
}

}  // namespace

void register_elementwise(KernelTable& table) {
  table.add<Add, Context, &add>();
  table.add<Cast, Context, &cast>();
  table.add<RoundMasters, Context, &round_masters>();
  table.add<Sum, Context, &sum>();
  table.add<CountNonFinite, Context, &count_non_finite>();
  table.add<RandomNormal, Context, &random_normal>();
  table.add<Fill, Context, &fill>();
  table.add<Scale, Context, &scale>();
  table.add<LogUniform, Context, &log_uniform>();
  table.add<CopyRows, Context, &copy_rows>();
}

}  // namespace primus::turbo::PRIMUS_GPU
