#include "turbo/gemm/blocked.h"

#include <algorithm>
#include <atomic>
#include <cstring>

// Blocking has three levels. A *super block* is a block [super_k, super_n] of B that fits into the shared
// cache when packed. All threads pack a super block together, if it is not already packed. A *task* computes
// a block of C from this super block in one thread. The task packs its own rows of A into a buffer that stays
// in the L2 cache of its core. Then the task multiplies these rows by the strips of B, one strip at a time. A
// *panel* is a range of k. While the task multiplies one panel, the strip of B stays in L1, and the strips of
// A are read from L2.
//
// Panels depend only on k. Therefore the order of every sum is the same for any number of threads, at any
// position in the matrix, and with B packed before or now.
namespace primus::turbo::gemm {
namespace {

constexpr std::int64_t kSuperK = 4096;
// Number of strips of B that a task packs. This number is larger for gathered rows, because fetch_rows()
// prefetches gathered rows in long segments.
constexpr std::int64_t kStripsPerPack = 4, kStripsOfPickedRows = 16, kPackK = 512;
constexpr double kSerialFlops = 1e6;  // below this, waking other threads costs more than it saves
constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kSumsBudget = std::int64_t{16} << 20;

// Returns the max. bytes of packed B that all threads share.
std::int64_t b_budget(int threads) { return (std::int64_t{8} + threads) << 20; }

struct Plan {
  std::int64_t panel = 0, super_k = 0, super_n = 0, super_m = 0;
  std::int64_t tasks_m = 0, tasks_n = 0;  // number of tasks per super block along m and along n
  std::int64_t block_m = 0;               // max. number of rows per task
  // true if C is bf16 and k is divided into super blocks, because partial sums need fp32.
  bool sums_in_workspace = false;
  std::int64_t a_bytes = 0, tiles_bytes = 0;  // bytes per thread
  std::int64_t b_bytes = 0, sums_bytes = 0;

  std::int64_t total(int threads) const { return b_bytes + sums_bytes + threads * (a_bytes + tiles_bytes); }
};

// Divides `extent` into ranges of about equal size, and returns the size of a range: a multiple of `unit`
// that is at most `limit`.
std::int64_t even_piece(std::int64_t extent, std::int64_t limit, std::int64_t unit) {
  limit = std::max(unit, limit / unit * unit);
  return round_up(ceil_div(extent, ceil_div(extent, limit)), unit);
}

// Divides a super block into tasks. A strip of B is read again for every strip of A. If enough columns of B
// fit into L2, these columns stay in L2 for consecutive tasks, and a task has few rows of A. If k is too
// long, as many rows of A as possible stay in L2, and B is read from the shared cache.
void choose_tasks(const Kernel& kernel, int threads, Plan& p) {
  const std::int64_t row_bytes = p.super_k * size_of(kernel.packed);
  const std::int64_t strips_m = ceil_div(p.super_m, kernel.mr), strips_n = ceil_div(p.super_n, kernel.nr);
  const auto strips_in = [&](std::int64_t bytes, int width) {
    return std::max<std::int64_t>(1, bytes / (row_bytes * width));
  };
  const std::int64_t resident_n = strips_in(kernel.cache.resident_b, kernel.nr);
  const bool resident = resident_n * kernel.nr >= std::min(kernel.cache.min_columns, p.super_n);
  p.tasks_n = resident ? ceil_div(strips_n, resident_n) : 1;
  p.tasks_m =
      ceil_div(strips_m, strips_in(resident ? kernel.cache.passing_a : kernel.cache.resident_a, kernel.mr));

  // Uses enough tasks to keep all threads busy almost until the end. If possible, the second loop makes the
  // number of tasks a multiple of the number of threads.
  while (threads > 1 && p.tasks_m * p.tasks_n < 4 * threads &&
         (p.tasks_m < strips_m || p.tasks_n < strips_n)) {
    const bool split_m =
        p.tasks_m < strips_m && strips_m / p.tasks_m * kernel.mr >= strips_n / p.tasks_n * kernel.nr / 4;
    std::int64_t& tasks = split_m || p.tasks_n >= strips_n ? p.tasks_m : p.tasks_n;
    ++tasks;
  }
  while (p.tasks_m > 1 && p.tasks_m < strips_m && p.tasks_m * p.tasks_n % threads != 0) ++p.tasks_m;
  p.block_m = ceil_div(strips_m, p.tasks_m) * kernel.mr;
}

Plan make_plan(const Kernel& kernel, const GemmArgs& g, int threads) {
  Plan p;
  const std::int64_t element = size_of(kernel.packed);
  p.panel = even_piece(g.k, kernel.max_panel, kernel.kb);
  p.super_k = std::min(round_up(g.k, p.panel), p.panel * std::max<std::int64_t>(1, kSuperK / p.panel));
  p.super_n = even_piece(g.n, b_budget(threads) / (p.super_k * element), kernel.nr);
  p.b_bytes = p.super_n * p.super_k * element;
  p.sums_in_workspace = g.c_dtype == DType::kBF16 && g.k > p.super_k;
  p.super_m = round_up(g.m, kernel.mr);
  if (p.sums_in_workspace) {
    p.super_m = even_piece(g.m, kSumsBudget / (p.super_n * 4), kernel.mr);
    p.sums_bytes = p.super_m * p.super_n * 4;
  }
  choose_tasks(kernel, threads, p);
  p.a_bytes = p.block_m * p.super_k * element;
  p.tiles_bytes = (g.k <= p.panel ? kernel.mr : p.block_m) * kernel.nr * 4;
  return p;
}

void run_tasks(ThreadPool& pool, bool serial, std::int64_t tasks, ThreadPool::Body body) {
  if (!serial) return pool.parallel_for(tasks, 1, body);
  for (std::int64_t i = 0; i < tasks; ++i) body(i, i + 1, 0);
}

// The source of a packing function. A strip consists of `width` rows of A or columns of B.
struct Source {
  PackFunction pack = nullptr;
  const char* data = nullptr;
  const std::int32_t* rows = nullptr;  // indices of gathered rows; null: rows are consecutive
  std::int64_t ld = 0, element = 0;
  bool k_contiguous = false;
  std::int64_t extent = 0, k = 0;  // number of rows of A or columns of B, and the size of k
  std::int64_t width = 0, packed_element = 0;

  // Packs `strips` strips that begin at row or column `first`, for k in [k0, k1).
  void run(std::int64_t first, std::int64_t strips, std::int64_t k0, std::int64_t k1, char* packed,
           std::int64_t strip_bytes) const {
    const std::int64_t row = k_contiguous ? first : k0, column = k_contiguous ? k0 : first;
    pack({.source = data + ((rows ? 0 : row * ld) + column) * element,
          .ld = ld,
          .rows = rows ? rows + row : nullptr,
          .extent = extent - first,
          .k = std::min(k, k1) - k0,
          .strips = static_cast<int>(strips),
          .packed = packed,
          .strip_bytes = strip_bytes});
  }
};

Source source_a(const Kernel& kernel, const GemmArgs& g) {
  const bool contiguous = g.layout != GemmLayout::kTN;
  return {.pack = contiguous ? kernel.pack.a.k_contiguous : kernel.pack.a.k_strided,
          .data = static_cast<const char*>(g.a),
          .rows = g.rows.a,
          .ld = g.lda,
          .element = size_of(g.ab_dtype),
          .k_contiguous = contiguous,
          .extent = g.m,
          .k = g.k,
          .width = kernel.mr,
          .packed_element = size_of(kernel.packed)};
}

Source source_b(const Kernel& kernel, const GemmArgs& g) {
  const bool contiguous = g.layout == GemmLayout::kNT;
  return {.pack = contiguous ? kernel.pack.b.k_contiguous : kernel.pack.b.k_strided,
          .data = static_cast<const char*>(g.b),
          .rows = g.rows.b,
          .ld = g.ldb,
          .element = size_of(g.ab_dtype),
          .k_contiguous = contiguous,
          .extent = g.n,
          .k = g.k,
          .width = kernel.nr,
          .packed_element = size_of(kernel.packed)};
}

// Packs columns [n0, n1) of B, for k in [k0, k1), with all threads. `strip_bytes` is the stride between
// packed strips.
void pack_b(ThreadPool& pool, bool serial, const Source& b, std::int64_t n0, std::int64_t n1, std::int64_t k0,
            std::int64_t k1, char* packed, std::int64_t strip_bytes) {
  const std::int64_t per_task = b.rows ? kStripsOfPickedRows : kStripsPerPack;
  const std::int64_t strips = ceil_div(n1 - n0, b.width), groups = ceil_div(strips, per_task);
  run_tasks(pool, serial, groups * ceil_div(k1 - k0, kPackK), [&](std::int64_t task, std::int64_t, int) {
    const std::int64_t strip = task % groups * per_task, k = task / groups * kPackK;
    b.run(n0 + strip * b.width, std::min(per_task, strips - strip), k0 + k, std::min(k1, k0 + k + kPackK),
          packed + strip * strip_bytes + k * b.width * b.packed_element, strip_bytes);
  });
}

// Divides among tasks what the caller reads next. A task prefetches its part in several steps.
class ReadAhead {
 public:
  ReadAhead(const std::array<GemmReadAhead, 2>& ranges, std::int64_t part, std::int64_t parts)
      : ranges_(ranges) {
    const std::int64_t all = ranges[0].bytes + ranges[1].bytes;
    at_ = all * part / parts;
    end_ = all * (part + 1) / parts;
  }

  // Returns the address of the next `bytes` bytes, or null at the end.
  const char* take(std::int64_t bytes) {
    if (at_ >= end_) return nullptr;
    const bool second = at_ >= ranges_[0].bytes;
    const auto* piece =
        static_cast<const char*>(ranges_[second].data) + at_ - (second ? ranges_[0].bytes : 0);
    at_ += bytes;
    return piece;
  }

 private:
  const std::array<GemmReadAhead, 2>& ranges_;
  std::int64_t at_, end_;
};

// The product over one super block.
struct SuperBlock {
  const Kernel& kernel;
  Source a;
  std::int64_t panel;
  // First row of A, and numbers of rows of A and columns of B in this super block.
  std::int64_t m0, rows, cols;
  std::int64_t k0, k1;
  std::int64_t tasks_m, tasks_n;
  const char* b;  // packed B; points to k0 of the first strip
  std::int64_t b_strip_bytes;
  char* c;
  std::int64_t ldc;
  DType c_dtype;
  bool accumulate;
  bool past_caches;  // GemmArgs::c_past_caches
  std::array<GemmReadAhead, 2> ahead;
  char* scratch;  // per thread: packed rows of A, then the sums for one strip of B
  std::int64_t a_bytes, tiles_bytes;

  std::int64_t tasks() const { return tasks_m * tasks_n; }
  // Runs one task. Consecutive tasks use the same block of B.
  void run(std::int64_t task, int thread) const;

 private:
  void run_tile(TileCall& call, const TileIo& io, bool first, bool last) const;
};

struct Range {
  std::int64_t begin, end;
};

// Divides `extent` into `count` ranges of about equal size at multiples of `unit`, and returns range `index`.
Range share(std::int64_t extent, std::int64_t unit, std::int64_t index, std::int64_t count) {
  const std::int64_t units = ceil_div(extent, unit);
  return {std::min(extent, units * index / count * unit),
          std::min(extent, units * (index + 1) / count * unit)};
}

void SuperBlock::run(std::int64_t task, int thread) const {
  const auto [i0, i1] = share(rows, kernel.mr, task % tasks_m, tasks_m);
  const auto [j0, j1] = share(cols, kernel.nr, task / tasks_m, tasks_n);
  if (i0 == i1 || j0 == j1) return;  // the last super block may have fewer strips than tasks
  const std::int64_t element = size_of(kernel.packed);
  const std::int64_t tile_floats = std::int64_t{kernel.mr} * kernel.nr;
  char* const a_packed = scratch + thread * (a_bytes + tiles_bytes);
  float* const tiles = reinterpret_cast<float*>(a_packed + a_bytes);
  const std::int64_t a_strip_bytes = round_up(k1 - k0, kernel.kb) * kernel.mr * element;

  a.run(m0 + i0, ceil_div(i1 - i0, kernel.mr), k0, k1, a_packed, a_strip_bytes);
  const std::int64_t c_element = size_of(c_dtype);
  const auto c_at = [&](std::int64_t i, std::int64_t j) { return c + (i * ldc + j) * c_element; };
  const bool one_panel = k1 - k0 <= panel;
  ReadAhead read_ahead(ahead, task, tasks());
  if (kernel.begin) kernel.begin();
  for (std::int64_t j = j0; j < j1; j += kernel.nr) {
    const char* const b_strip = b + j / kernel.nr * b_strip_bytes;
    for (std::int64_t k = 0; k < k1 - k0; k += panel) {
      const bool first = k == 0, last = k + panel >= k1 - k0;
      TileCall call{};
      call.blocks = ceil_div(std::min(panel, k1 - k0 - k), kernel.kb);
      call.b = b_strip + k * kernel.nr * element;
      // While this panel of B is multiplied, the kernel prefetches the next panel.
      const char* next_b = last ? b_strip + b_strip_bytes : b_strip + (k + panel) * kernel.nr * element;
      const std::int64_t ahead_bytes = call.blocks * kernel.ahead_bytes;
      call.next_c_stride = past_caches ? 0 : ldc * c_element;
      // A row of the block has two cache lines in fp32, and one line in bf16. In bf16, the second line to
      // prefetch belongs to the row 16 rows below.
      call.next_c_second = c_dtype == DType::kF32 ? 64 : 16 * call.next_c_stride;
      float* tile = tiles;
      for (std::int64_t i = i0; i < i1; i += kernel.mr) {
        call.a = a_packed + (i - i0) / kernel.mr * a_strip_bytes + k * kernel.mr * element;
        call.rows = static_cast<int>(std::min<std::int64_t>(kernel.mr, i1 - i));
        const bool end_of_strip = i + kernel.mr >= i1;
        // Does not prefetch C if C is written past the caches.
        call.next_c = past_caches    ? reinterpret_cast<const char*>(tile)
                      : end_of_strip ? c_at(i0, last ? j + kernel.nr : j)
                                     : c_at(i + kernel.mr, j);
        const char* const piece = read_ahead.take(ahead_bytes);
        call.ahead = piece ? piece : next_b;
        run_tile(call,
                 {.tile = tile,
                  .tile_ld = kernel.nr,
                  .c = c_at(i, j),
                  .ldc = ldc,
                  .rows = call.rows,
                  .cols = static_cast<int>(std::min<std::int64_t>(kernel.nr, j1 - j))},
                 first, last);
        next_b += ahead_bytes;
        if (!one_panel) tile += tile_floats;
      }
    }
  }
  if (kernel.end) kernel.end();
  if (past_caches) std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Every sum starts from the value in C, or from zero. Tiles at the edge of C are therefore rounded in the
// same way as inner tiles.
void SuperBlock::run_tile(TileCall& call, const TileIo& io, bool first, bool last) const {
  const bool in_place =
      kernel.any_c && c_dtype == DType::kF32 && io.rows == kernel.mr && io.cols == kernel.nr && !past_caches;
  call.c_out = io.tile;
  call.ld_out = io.tile_ld;
  call.c_in = first && !accumulate ? nullptr : io.tile;
  call.ld_in = io.tile_ld;
  if (first && accumulate) {
    if (in_place) {
      call.c_in = static_cast<const float*>(io.c);
      call.ld_in = io.ldc;
    } else {
      (c_dtype == DType::kF32 ? kernel.io.load_f32 : kernel.io.load_bf16)(io);
    }
  }
  if (last && in_place) {
    call.c_out = static_cast<float*>(io.c);
    call.ld_out = io.ldc;
  }
  if (!kernel.any_c) {
    for (int r = 0; r < kernel.mr; ++r) {
      const char* row = call.next_c + r * call.next_c_stride;
      for (std::int64_t x = 0; x < kernel.nr * size_of(c_dtype); x += 64) __builtin_prefetch(row + x, 1, 2);
    }
  }
  kernel.run(call);
  if (last && !in_place) {
    (c_dtype == DType::kBF16 ? kernel.io.store_bf16
     : past_caches           ? kernel.io.stream_f32
                             : kernel.io.store_f32)(io);
  }
}

// Copies a super block of a bf16 C to its fp32 sums, or from the sums to C.
void move_sums(ThreadPool& pool, bool serial, TileIoFunction move, const TileIo& whole) {
  constexpr std::int64_t kRows = 16;
  run_tasks(pool, serial, ceil_div(whole.rows, kRows), [&](std::int64_t task, std::int64_t, int) {
    const std::int64_t row = task * kRows;
    TileIo io = whole;
    io.tile += row * io.tile_ld;
    io.c = static_cast<char*>(io.c) + row * io.ldc * size_of(DType::kBF16);
    io.rows = static_cast<int>(std::min(kRows, whole.rows - row));
    move(io);
  });
}

bool can_stream(const Kernel& kernel, const GemmArgs& g) {
  constexpr std::int64_t kLine = kAlignment / 4;
  return kernel.io.stream_f32 && g.c_dtype == DType::kF32 && !g.accumulate && g.n % kLine == 0 &&
         g.ldc % kLine == 0 && reinterpret_cast<std::uintptr_t>(g.c) % kAlignment == 0;
}

char* align_up(void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return reinterpret_cast<char*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

std::size_t blocked_workspace_bytes(const Kernel& kernel, const GemmArgs& args, int threads) {
  return static_cast<std::size_t>(make_plan(kernel, args, threads).total(threads) + kAlignment);
}

// Blocks have about equal sizes, so a plan for smaller m or k may need more workspace. Therefore the bound of
// each term of the workspace is computed separately: a block size is at most its limit, and at most the
// complete extent.
std::size_t blocked_workspace_bound(const Kernel& kernel, const GemmArgs& g, int threads) {
  const std::int64_t element = size_of(kernel.packed);
  const std::int64_t longest_panel =
      std::max<std::int64_t>(kernel.kb, kernel.max_panel / kernel.kb * kernel.kb);
  const bool one_panel = g.k <= longest_panel;
  const std::int64_t super_k =
      one_panel ? round_up(g.k, kernel.kb) : std::min(g.k + longest_panel, std::max(longest_panel, kSuperK));
  const std::int64_t m = round_up(g.m, kernel.mr), n = round_up(g.n, kernel.nr);
  const std::int64_t b =
      std::min(n * super_k * element, std::max(kernel.nr * super_k * element, b_budget(threads)));
  const bool sums = g.c_dtype == DType::kBF16 && !one_panel;
  const std::int64_t sums_bytes = sums ? std::min(m * n * 4, std::max(kernel.mr * n * 4, kSumsBudget)) : 0;
  const std::int64_t cached = std::max(kernel.cache.passing_a, kernel.cache.resident_a);
  const std::int64_t a = std::min(m * super_k * element, std::max(kernel.mr * super_k * element, cached));
  // With several panels, each is larger than half of longest_panel. Hence the factor 2 in this bound.
  const std::int64_t block_m =
      one_panel ? kernel.mr
                : std::min(m, std::max<std::int64_t>(kernel.mr, 2 * cached / (longest_panel * element)));
  return static_cast<std::size_t>(b + sums_bytes + threads * (a + block_m * kernel.nr * 4) + kAlignment);
}

void multiply_blocked(ThreadPool& pool, const Kernel& kernel, const GemmArgs& g) {
  const Plan plan = make_plan(kernel, g, pool.size());
  char* const b_packed = align_up(g.workspace);
  char* const sums = b_packed + plan.b_bytes;
  char* const scratch = sums + plan.sums_bytes;
  const Source a = source_a(kernel, g), b = source_b(kernel, g);
  const std::int64_t strip_element = kernel.nr * size_of(kernel.packed);
  const bool serial = gemm_flops(g) < kSerialFlops;
  const bool b_stays = g.k <= plan.super_k;

  for (std::int64_t n0 = 0; n0 < g.n; n0 += plan.super_n) {
    const std::int64_t n1 = std::min(g.n, n0 + plan.super_n);
    for (std::int64_t m0 = 0; m0 < g.m; m0 += plan.super_m) {
      const std::int64_t rows = std::min(plan.super_m, g.m - m0);
      char* const c = static_cast<char*>(g.c) + (m0 * g.ldc + n0) * size_of(g.c_dtype);
      const TileIo sums_io{.tile = reinterpret_cast<float*>(sums),
                           .tile_ld = static_cast<int>(plan.super_n),
                           .c = c,
                           .ldc = g.ldc,
                           .rows = static_cast<int>(rows),
                           .cols = static_cast<int>(n1 - n0)};
      if (plan.sums_in_workspace && g.accumulate) move_sums(pool, serial, kernel.io.load_bf16, sums_io);
      for (std::int64_t k0 = 0; k0 < g.k; k0 += plan.super_k) {
        const std::int64_t k1 = std::min(g.k, k0 + plan.super_k);
        const std::int64_t b_strip_bytes = round_up(k1 - k0, kernel.kb) * strip_element;
        if (!b_stays || m0 == 0) pack_b(pool, serial, b, n0, n1, k0, k1, b_packed, b_strip_bytes);
        const bool last = n1 == g.n && m0 + rows == g.m && k1 == g.k;
        const bool past_caches = g.c_past_caches && can_stream(kernel, g) && k1 - k0 == g.k;
        const SuperBlock block{.kernel = kernel,
                               .a = a,
                               .panel = plan.panel,
                               .m0 = m0,
                               .rows = rows,
                               .cols = n1 - n0,
                               .k0 = k0,
                               .k1 = k1,
                               .tasks_m = plan.tasks_m,
                               .tasks_n = plan.tasks_n,
                               .b = b_packed,
                               .b_strip_bytes = b_strip_bytes,
                               .c = plan.sums_in_workspace ? sums : c,
                               .ldc = plan.sums_in_workspace ? plan.super_n : g.ldc,
                               .c_dtype = plan.sums_in_workspace ? DType::kF32 : g.c_dtype,
                               .accumulate = k0 > 0 || g.accumulate,
                               .past_caches = past_caches,
                               .ahead = last ? g.ahead : std::array<GemmReadAhead, 2>{},
                               .scratch = scratch,
                               .a_bytes = plan.a_bytes,
                               .tiles_bytes = plan.tiles_bytes};
        run_tasks(pool, serial, block.tasks(),
                  [&](std::int64_t task, std::int64_t, int thread) { block.run(task, thread); });
      }
      if (plan.sums_in_workspace) move_sums(pool, serial, kernel.io.store_bf16, sums_io);
    }
  }
}

}  // namespace primus::turbo::gemm
