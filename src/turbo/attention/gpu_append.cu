// Appends new keys and values to the pages of a cache in one launch.
#include "turbo/attention/gpu_paged.h"
#include "turbo/gpu/reduce.h"
#include "turbo/rms_norm/formula.h"
#include "turbo/rope/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Returns the row of the pages to which a new row is copied. Tables are valid before wait_for_previous() (see
// Pages).
PRIMUS_DEVICE std::int64_t slot_of(const Pages& pages, std::int64_t row) {
  const std::int64_t b = pages.sequence_of(row);
  const std::int64_t position = pages.lengths[b] - pages.starts[b + 1] + row;
  const std::int64_t page = pages.table[b * pages.blocks + (position >> pages.page_bits)];
  return (page << pages.page_bits) + (position & ((std::int64_t{1} << pages.page_bits) - 1));
}

// Some columns of the new rows, and the columns of the cache to copy them to. Sizes are in bytes.
struct AppendedColumns {
  const std::byte* rows;
  std::byte* to;
  std::int64_t bytes, stride, to_stride;

  // A thread copies one element of type `Unit` at a time.
  template <class Unit>
  bool of_units() const {
    const auto address = reinterpret_cast<std::uintptr_t>(rows) | reinterpret_cast<std::uintptr_t>(to);
    return (address | static_cast<std::uintptr_t>(bytes | stride | to_stride)) % sizeof(Unit) == 0;
  }
  template <class Unit>
  PRIMUS_DEVICE void copy(std::int64_t row, std::int64_t slot, int threads) const {
    const auto* from = reinterpret_cast<const Unit*>(rows + row * stride);
    auto* target = reinterpret_cast<Unit*>(to + slot * to_stride);
    const std::int64_t units = bytes / static_cast<std::int64_t>(sizeof(Unit));
    for (std::int64_t i = thread(); i < units; i += threads) target[i] = from[i];
  }
};

template <class Unit>
struct AppendRows {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  Pages pages;
  AppendedColumns first, more;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    // Looks up destinations while the previous kernel still computes the rows.
    const std::int64_t row = block();
    if (row >= pages.starts[pages.batch]) return wait_for_previous();
    const std::int64_t slot = slot_of(pages, row);
    wait_for_previous();
    first.copy<Unit>(row, slot, kThreads);
    more.copy<Unit>(row, slot, kThreads);
  }
};

// Norms and rotates one row of latents, and appends the row. The first warp norms, with the order of sums of
// rms_norm/gpu.cu for short rows. The second warp rotates.
struct AppendLatents {
  using T = BFloat16;
  static constexpr int kThreads = 2 * kWarp, kCount = kVector<T>, kPieces = 4;
  static constexpr std::int64_t kMaxRank = std::int64_t{kPieces} * kWarp * kCount;
  using StartsEarly = void;
  Pages pages;
  const T *rows, *norm;
  T* to;
  const std::int32_t* positions;  // null: nothing is rotated
  const float* table;
  std::int64_t stride, to_stride, rank, shared_columns;
  float eps;
  bool interleaved;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t row = block();
    if (row >= pages.starts[pages.batch]) return wait_for_previous();
    const T* const from = rows + row * stride;
    T* const target = to + slot_of(pages, row) * to_stride;
    if (warp() == 0) {
      append_normed(from, target);
    } else {
      append_rotated(from + rank, target + rank, row);
    }
  }

 private:
  PRIMUS_DEVICE static std::int64_t column(int piece) {
    return (std::int64_t{piece} * kWarp + lane()) * kCount;
  }
  PRIMUS_DEVICE void append_normed(const T* from, T* target) const {
    float weights[kPieces][kCount] = {}, v[kPieces][kCount] = {}, squares = 0;
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      if (column(p) < rank) load<kCount>(norm + column(p), weights[p]);
    }
    wait_for_previous();
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      if (column(p) < rank) load<kCount>(from + column(p), v[p]);
    }
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) squares = multiply_add(v[p][k], v[p][k], squares);
    }
    const float scale = inverse_rms(warp_reduce(squares), rank, eps);
    PRIMUS_UNROLL
    for (int p = 0; p < kPieces; ++p) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) v[p][k] = norm_output(v[p][k], scale, weights[p][k]);
      if (column(p) < rank) store<kCount>(target + column(p), v[p]);
    }
  }
  PRIMUS_DEVICE void append_rotated(const T* from, T* target, std::int64_t row) const {
    const std::int64_t half = shared_columns / 2, step = interleaved ? 2 : 1, apart = interleaved ? 1 : half;
    const float* const cosines = positions ? table + positions[row] * 2 * half : nullptr;
    wait_for_previous();
    if (!positions) {
      for (std::int64_t i = lane(); i < shared_columns; i += kWarp) target[i] = from[i];
      return;
    }
    for (std::int64_t pair = lane(); pair < half; pair += kWarp) {
      const std::int64_t at = pair * step;
      const RotatedPair turned(to_float(from[at]), to_float(from[at + apart]), cosines[pair],
                               cosines[half + pair]);
      target[at] = from_float<T>(turned.first);
      target[at + apart] = from_float<T>(turned.second);
    }
  }
};

bool takes_around(const PagedAppend& a) {
  constexpr std::int64_t kMaxTokens = 64;
  const std::int64_t rank = a.around.norm.elements();
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  return a.tokens <= kMaxTokens && a.rows.dtype == DType::kBF16 && rank <= AppendLatents::kMaxRank &&
         (rank | a.stride | a.to_stride) % AppendLatents::kCount == 0 && aligned(a.rows) &&
         aligned(a.pages) && aligned(a.around.norm);
}

void append_latents(Context& context, const PagedAppend& a) {
  if (!takes_around(a)) throw std::logic_error("gpu: latents that is_taken() says no to");
  const AroundAppend& p = a.around;
  using T = AppendLatents::T;
  launch(context, a.tokens,
         AppendLatents{Pages(context, a.sequences), context.data<T>(a.rows), context.data<T>(p.norm),
                       context.data<T>(a.pages), optional<std::int32_t>(context, p.positions),
                       optional<float>(context, p.table), a.stride, a.to_stride, p.norm.elements(),
                       a.cols - p.norm.elements(), p.eps, p.interleaved});
}

}  // namespace

std::int64_t paged_append_workspace(Context&, const PagedAppend& a) {
  return a.around.absent() || takes_around(a) ? 0 : PagedAppend::kNotTaken;
}

void paged_append(Context& context, const PagedAppend& a) {
  if (!a.around.absent()) return append_latents(context, a);
  const std::int64_t size = size_of(a.rows.dtype);
  const AppendedColumns first{context.data<std::byte>(a.rows), context.data<std::byte>(a.pages),
                              a.cols * size, a.stride * size, a.to_stride * size};
  const AppendedColumns more{optional<std::byte>(context, a.more_rows),
                             optional<std::byte>(context, a.more_pages), a.more_cols * size, a.stride * size,
                             a.more_to_stride * size};
  const Pages pages(context, a.sequences);
  if (first.of_units<Bytes16>() && more.of_units<Bytes16>()) {
    launch(context, a.tokens, AppendRows<Bytes16>{pages, first, more});
  } else {
    launch(context, a.tokens, AppendRows<std::uint16_t>{pages, first, more});
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
