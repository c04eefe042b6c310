#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "base/random/random.h"
#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/elementwise/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Adds the partial tensors of all ranks pairwise, in rank order. Level l stores a sum of 2^l tensors. When
// the next sum of 2^l tensors is complete, the two sums are added into level l + 1.
void add_parts(CpuContext& context, const Add& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* own = context.data<T>(a.a);
    const T* others = context.data<T>(a.b);
    T* out = context.data<T>(a.out);
    const std::int64_t n = a.out.elements();
    constexpr std::int64_t kBlock = 512;
    parallel_ranges(context, n, (a.ranks + 1) * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      float waiting[Add::kLevels + 1][kBlock];
      for (std::int64_t first = begin; first < end; first += kBlock) {
        const std::int64_t count = std::min(kBlock, end - first);
        for (int r = 0; r < a.ranks; ++r) {
          const T* part = r == a.rank ? own : others + n * Add::place(a.ranks, a.rank, r, a.by_rank);
          float sum[kBlock];
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < count; ++i) sum[i] = to_float(part[first + i]);
          int level = 0;
          for (; r >> level & 1; ++level) {
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < count; ++i) sum[i] = waiting[level][i] + sum[i];
          }
          std::copy_n(sum, count, waiting[level]);
        }
        // Adds the sums that remain in the levels, from the lowest level to the highest.
        int level = std::countr_zero(static_cast<unsigned>(a.ranks));
        float* const sum = waiting[level];
        while (++level <= Add::kLevels) {
          if ((a.ranks >> level & 1) == 0) continue;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < count; ++i) sum[i] = waiting[level][i] + sum[i];
        }
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < count; ++i) out[first + i] = from_float<T>(sum[i]);
      }
    });
  });
}

void add(CpuContext& context, const Add& a) {
  if (!a.is_pair()) return add_parts(context, a);
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<T>(a.a);
    const T* y = context.data<T>(a.b);
    T* out = context.data<T>(a.out);
    parallel_ranges(context, a.out.elements(), 3 * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<T>(to_float(x[i]) + to_float(y[i]));
    });
  });
}

void cast(CpuContext& context, const Cast& a) {
  with_operand_type(a.x.dtype, [&](auto from_tag) {
    with_operand_type(a.out.dtype, [&](auto to_tag) {
      using From = decltype(from_tag);
      using To = decltype(to_tag);
      const From* x = context.data<From>(a.x);
      To* out = context.data<To>(a.out);
      parallel_ranges(context, a.x.elements(), sizeof(From) + sizeof(To),
                      [&](std::int64_t begin, std::int64_t end) {
                        if constexpr (std::is_same_v<From, To>) {
                          std::copy(x + begin, x + end, out + begin);
                        } else {
                          PRIMUS_SIMD()
                          for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<To>(to_float(x[i]));
                        }
                      });
    });
  });
}

void round_masters(CpuContext& context, const RoundMasters& a) {
  constexpr std::int64_t kBytesPerElement = 8;
  const float* masters = context.data<float>(a.masters);
  BFloat16* working = context.data<BFloat16>(a.working);
  std::int16_t* remainder = a.remainder.absent() ? nullptr : context.data<std::int16_t>(a.remainder);
  parallel_ranges(context, a.masters.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
    PRIMUS_SIMD()
    for (std::int64_t i = begin; i < end; ++i) working[i] = working_value(masters[i]);
    if (!remainder) return;
    PRIMUS_SIMD()
    for (std::int64_t i = begin; i < end; ++i) remainder[i] = param_remainder(masters[i]);
  });
}

void sum(CpuContext& context, const Sum& a) {
  const float* x = context.data<float>(a.x);
  const double total =
      ordered_sum<double>(context, a.x.elements(), [&](std::int64_t begin, std::int64_t end) {
        return sum_doubles(begin, end, [&](std::int64_t i) { return static_cast<double>(x[i]); });
      });
  float* out = context.data<float>(a.out);
  *out = static_cast<float>(a.accumulate ? *out + total : total);
}

// Returns 1 for infinities and NaN, else 0. The sign bit is cleared; adding 1 to the exponent field then
// carries into the sign bit only if all exponent bits are 1.
std::uint32_t non_finite(float x) {
  return ((std::bit_cast<std::uint32_t>(x) & 0x7fffffffU) + 0x00800000U) >> 31;
}
std::uint16_t non_finite(BFloat16 x) {
  return static_cast<std::uint16_t>(((x.bits & 0x7fffU) + 0x0080U) >> 15);
}

template <class T>
std::int64_t non_finite_in(const T* x, std::int64_t n) {
  using Word = decltype(non_finite(T{}));
  // Counts in short ranges: counters with the width of the elements then cannot overflow.
  constexpr std::int64_t kRun = 4096;
  std::int64_t count = 0;
  for (std::int64_t begin = 0; begin < n; begin += kRun) {
    const T* run = x + begin;
    const int length = static_cast<int>(std::min(n - begin, kRun));
    Word in_run = 0;
    for (int i = 0; i < length; ++i) in_run = static_cast<Word>(in_run + non_finite(run[i]));
    count += in_run;
  }
  return count;
}

void count_non_finite(CpuContext& context, const CountNonFinite& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<T>(a.x);
    const auto count = ordered_sum<std::int64_t>(
        context, a.x.elements(),
        [&](std::int64_t begin, std::int64_t end) { return non_finite_in(x + begin, end - begin); });
    std::int32_t* out = context.data<std::int32_t>(a.out);
    const std::int64_t total = a.accumulate ? *out + count : count;
    *out = static_cast<std::int32_t>(std::min<std::int64_t>(total, std::numeric_limits<std::int32_t>::max()));
  });
}

void random_normal(CpuContext& context, const RandomNormal& a) {
  const RandomStream stream(a.seed, RandomPurpose::kInit, 0, static_cast<std::uint32_t>(a.stream >> 32),
                            static_cast<std::uint32_t>(a.stream));
  float* out = context.data<float>(a.out);
  const std::int64_t n = a.out.elements(), length = a.length == 0 ? std::max<std::int64_t>(n, 1) : a.length;
  parallel_ranges(context, n, sizeof(float), [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t run = begin / length, stop = std::min(end, (run + 1) * length);
      fill_normal(stream, static_cast<std::uint64_t>(a.offset + run * a.stride + begin % length),
                  std::span(out + begin, static_cast<std::size_t>(stop - begin)), a.mean, a.std);
      begin = stop;
    }
  });
}

void log_uniform(CpuContext& context, const LogUniform& a) {
  float* x = context.data<float>(a.x);
  const double low = a.low, range = static_cast<double>(a.high) - low;
  parallel_ranges(context, a.x.elements(), 64 * sizeof(float), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] = log_uniform_of(x[i], low, range);
  });
}

void scale(CpuContext& context, const Scale& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<const T>(a.x);
    T* out = context.data<T>(a.out);
    const float factor = a.factor;
    parallel_ranges(context, a.out.elements(), 2 * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<T>(factor * to_float(x[i]));
    });
  });
}

void fill(CpuContext& context, const Fill& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* out = context.data<T>(a.out);
    parallel_ranges(context, a.out.elements(), sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<T>(a.value);
    });
  });
}

void add_rows(CpuContext& context, const CopyRows& a) {
  with_float_type(a.to.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<T>(a.from);
    T* to = context.data<T>(a.to);
    parallel_ranges(context, a.rows, 3 * a.cols * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = from + row * a.from_stride;
        T* y = to + row / a.group_rows * a.to_group_stride + row % a.group_rows * a.to_stride;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < a.cols; ++i) y[i] = from_float<T>(to_float(y[i]) + to_float(x[i]));
      }
    });
  });
}

void copy_rows(CpuContext& context, const CopyRows& a) {
  if (a.add) return add_rows(context, a);
  const std::int64_t element = size_of(a.from.dtype);
  const std::int64_t bytes = a.cols * element;
  const char* from = context.data<char>(a.from);
  char* to = context.data<char>(a.to);
  parallel_ranges(context, a.rows, 2 * bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t group = row / a.group_rows, within = row % a.group_rows;
      std::memcpy(to + (group * a.to_group_stride + within * a.to_stride) * element,
                  from + row * a.from_stride * element, static_cast<std::size_t>(bytes));
    }
  });
}

}  // namespace

void register_elementwise(KernelTable& table) {
  table.add<Add, CpuContext, &add>();
  table.add<Cast, CpuContext, &cast>();
  table.add<RoundMasters, CpuContext, &round_masters>();
  table.add<Sum, CpuContext, &sum>();
  table.add<CountNonFinite, CpuContext, &count_non_finite>();
  table.add<RandomNormal, CpuContext, &random_normal>();
  table.add<Fill, CpuContext, &fill>();
  table.add<Scale, CpuContext, &scale>();
  table.add<LogUniform, CpuContext, &log_uniform>();
  table.add<CopyRows, CpuContext, &copy_rows>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
