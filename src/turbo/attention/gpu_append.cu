// Appends new keys and values to the pages of a cache in one launch.
#include "turbo/attention/gpu_paged.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

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
    // Looks up destinations while the previous kernel still computes the rows. The tables are already valid
    // (see Pages).
    const std::int64_t row = block();
    if (row >= pages.starts[pages.batch]) return wait_for_previous();
    const std::int64_t b = pages.sequence_of(row);
    const std::int64_t position = pages.lengths[b] - pages.starts[b + 1] + row;
    const std::int64_t page = pages.table[b * pages.blocks + (position >> pages.page_bits)];
    const std::int64_t slot =
        (page << pages.page_bits) + (position & ((std::int64_t{1} << pages.page_bits) - 1));
    wait_for_previous();
    first.copy<Unit>(row, slot, kThreads);
    more.copy<Unit>(row, slot, kThreads);
  }
};

}  // namespace

void paged_append(Context& context, const PagedAppend& a) {
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
