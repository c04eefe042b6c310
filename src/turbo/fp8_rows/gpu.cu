// A warp converts the 128 elements that share a factor.
#include "turbo/fp8_rows/fp8_rows.h"
#include "turbo/gpu/fp8_codes.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kEach = static_cast<int>(Fp8RowLayout::kGroup) / kWarp;  // elements per lane, consecutive

// Returns the larger of two magnitudes, given as bits.
struct Larger {
  PRIMUS_DEVICE std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

// The elements of a row that a lane converts. If `kWhole`, a lane has either all of its elements or none, and
// may load and store them at once.
struct Lane {
  std::int64_t row, first, group;
  std::int64_t cols;

  PRIMUS_DEVICE bool has(int k) const { return first + k < cols; }
};

// Calls body(lane) for each group of the rows whose entry in `list` is not below 0.
template <class Body>
struct ForEachGroup {
  static constexpr int kThreads = 256;
  Body body;
  const std::int32_t* list;
  std::int64_t rows;
  Fp8RowLayout layout;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = block() * (kThreads / kWarp) + warp(), groups = layout.groups();
    if (i >= rows * groups) return;
    const std::int64_t row = i / groups, group = i % groups;
    if (list[row] < 0) return;
    body(Lane{row, group * Fp8RowLayout::kGroup + lane() * kEach, group, layout.cols});
  }
};

template <class Body>
void for_each_group(Context& context, const std::int32_t* list, std::int64_t rows, Fp8RowLayout layout,
                    const Body& body) {
  using Kernel = ForEachGroup<Body>;
  launch(context, blocks_for(rows * layout.groups(), Kernel::kThreads / kWarp),
         Kernel{body, list, rows, layout});
}

template <class T, bool kWhole>
struct Encode {
  const T* x;
  const std::int32_t* rows;
  std::uint8_t* out;
  Fp8RowLayout layout;

  PRIMUS_DEVICE void operator()(const Lane& at) const {
    const T* const from = x + rows[at.row] * layout.cols + at.first;
    std::uint8_t* const to = out + at.row * layout.bytes();
    float values[kEach] = {};
    if constexpr (kWhole) {
      if (at.has(0)) load<kEach>(from, values);
    } else {
      for (int k = 0; k < kEach; ++k) {
        if (at.has(k)) values[k] = to_float(from[k]);
      }
    }
    std::uint32_t largest = 0;
    PRIMUS_UNROLL
    for (int k = 0; k < kEach; ++k)
      largest = Larger{}(largest, std::bit_cast<std::uint32_t>(values[k]) & 0x7FFFFFFFU);
    largest = warp_reduce(largest, Larger{});
    const Fp8Scales scales = fp8_scales(largest, Fp8E4M3::largest());
    Pack<std::uint8_t, kEach> codes;
    PRIMUS_UNROLL
    for (int k = 0; k < kEach; k += 2) {
      const std::uint32_t two = two_codes<Fp8E4M3>(values[k] * scales.scale, values[k + 1] * scales.scale);
      codes.at[k] = static_cast<std::uint8_t>(two & 0xFFU);
      codes.at[k + 1] = static_cast<std::uint8_t>(two >> 8U);
    }
    if constexpr (kWhole) {
      if (at.has(0)) *reinterpret_cast<Pack<std::uint8_t, kEach>*>(to + at.first) = codes;
    } else {
      for (int k = 0; k < kEach; ++k) {
        if (at.has(k)) to[at.first + k] = codes.at[k];
      }
    }
    if (lane() == 0) reinterpret_cast<float*>(to + layout.factors())[at.group] = scales.inverse;
  }
};

template <class T, bool kWhole>
struct Decode {
  const std::uint8_t* x;
  T* out;
  Fp8RowLayout layout;

  PRIMUS_DEVICE void operator()(const Lane& at) const {
    const std::uint8_t* const from = x + at.row * layout.bytes();
    T* const to = out + at.row * layout.cols + at.first;
    if (!at.has(0)) return;
    const float factor = reinterpret_cast<const float*>(from + layout.factors())[at.group];
    // The codes of a row are padded to a multiple of 16, so all codes of a lane are readable.
    const auto codes = *reinterpret_cast<const Pack<std::uint8_t, kEach>*>(from + at.first);
    float values[kEach];
    PRIMUS_UNROLL
    for (int k = 0; k < kEach; k += 2) {
      two_values(codes.at[k] | static_cast<std::uint32_t>(codes.at[k + 1]) << 8U, values[k], values[k + 1]);
      values[k] *= factor;
      values[k + 1] *= factor;
    }
    if constexpr (kWhole) {
      store<kEach>(to, values);
    } else {
      for (int k = 0; k < kEach; ++k) {
        if (at.has(k)) to[k] = from_float<T>(values[k]);
      }
    }
  }
};

// Calls body(constant): whether a lane has either all of its elements or none, and rows are aligned to them.
template <class Body>
void with_whole(const Tensor& numbers, Body&& body) {
  const bool whole = numbers.cols() % kEach == 0 &&
                     reinterpret_cast<std::uintptr_t>(numbers.data) % (kEach * size_of(numbers.dtype)) == 0;
  with_flag(whole, body);
}

void encode_rows(Context& context, const EncodeRows& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_whole(a.x, [&](auto whole) {
      const Fp8RowLayout layout{a.x.cols()};
      const auto* rows = context.data<std::int32_t>(a.rows);
      for_each_group(
          context, rows, a.out.rows(), layout,
          Encode<T, whole.value>{context.data<T>(a.x), rows, context.data<std::uint8_t>(a.out), layout});
    });
  });
}

void decode_rows(Context& context, const DecodeRows& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_whole(a.out, [&](auto whole) {
      const Fp8RowLayout layout{a.out.cols()};
      for_each_group(context, context.data<std::int32_t>(a.used), a.out.rows(), layout,
                     Decode<T, whole.value>{context.data<std::uint8_t>(a.x), context.data<T>(a.out), layout});
    });
  });
}

}  // namespace

void register_fp8_rows(KernelTable& table) {
  table.add<EncodeRows, Context, &encode_rows>();
  table.add<DecodeRows, Context, &decode_rows>();
}

}  // namespace primus::turbo::PRIMUS_GPU
