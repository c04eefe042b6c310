#include "turbo/gemm/blocked.h"

#include <algorithm>
#include <cstring>

// Three levels. A *super block* [super_m, super_n] over super_k is packed as a whole, by all threads, into a
// buffer that fits the shared cache; within it, *tasks* are blocks of C whose operands fit a core's L2;
// within a task, *panels* of k keep a strip of B in L1. Splits of k depend on k alone, so every element of C
// is summed in the same order for any number of threads and any place in the matrix.
namespace primus::turbo::gemm {
namespace {

constexpr std::int64_t kSuperK = 4096;
constexpr std::int64_t kStripsPerPack = 4, kPackK = 512;  // one packing chunk
constexpr double kSerialFlops = 1e6;  // below this, waking other threads costs more than it saves
constexpr std::size_t kAlignment = 64;

struct Plan {
  std::int64_t panel = 0, super_k = 0, super_m = 0, super_n = 0;
  std::int64_t block_m = 0, block_n = 0;
  bool sums_in_workspace = false;  // bf16 C cannot carry partial sums from one super block of k to the next
  std::int64_t a_bytes = 0, b_bytes = 0, sums_bytes = 0, tiles_bytes = 0;

  std::int64_t total(int threads) const { return a_bytes + b_bytes + sums_bytes + threads * tiles_bytes; }
};

// The extent of equal pieces (multiples of `unit`) that cover `extent`, none larger than `limit`.
std::int64_t even_piece(std::int64_t extent, std::int64_t limit, std::int64_t unit) {
  limit = std::max(unit, limit / unit * unit);
  return round_up(ceil_div(extent, ceil_div(extent, limit)), unit);
}

Plan make_plan(const Kernel& kernel, const GemmArgs& g, int threads) {
  Plan p;
  p.panel = even_piece(g.k, kernel.max_panel, kernel.kb);
  p.super_k = p.panel * std::max<std::int64_t>(1, kSuperK / p.panel);
  const std::int64_t k_extent = std::min(p.super_k, round_up(g.k, p.panel));
  p.sums_in_workspace = g.c_dtype == DType::kBF16 && g.k > p.super_k;

  const std::int64_t element = size_of(kernel.packed);
  const std::int64_t budget = (std::int64_t{8} + threads) << 20;
  const std::int64_t limit = budget / (k_extent * element);
  p.super_m = even_piece(g.m, limit, kernel.mr);
  p.super_n =
      g.packed_b && !p.sums_in_workspace ? round_up(g.n, kernel.nr) : even_piece(g.n, limit, kernel.nr);

  p.block_m = even_piece(p.super_m, kernel.block_m, kernel.mr);
  p.block_n = even_piece(p.super_n, kernel.block_n, kernel.nr);
  const auto tasks = [&] { return ceil_div(p.super_m, p.block_m) * ceil_div(p.super_n, p.block_n); };
  // Enough tasks that the last ones to finish do not leave the other threads idle for long.
  while (threads > 1 && tasks() < 4 * threads && (p.block_m > kernel.mr || p.block_n > kernel.nr)) {
    if (p.block_m / kernel.mr >= p.block_n / kernel.nr) {
      p.block_m = even_piece(p.block_m, p.block_m / 2, kernel.mr);
    } else {
      p.block_n = even_piece(p.block_n, p.block_n / 2, kernel.nr);
    }
  }

  p.a_bytes = p.super_m * k_extent * element;
  p.b_bytes = g.packed_b ? 0 : p.super_n * k_extent * element;
  p.sums_bytes = p.sums_in_workspace ? p.super_m * p.super_n * 4 : 0;
  p.tiles_bytes = (k_extent > p.panel ? p.block_m * p.block_n : kernel.mr * kernel.nr) * 4;
  return p;
}

void run_chunks(ThreadPool& pool, bool serial, std::int64_t chunks, ThreadPool::Body body) {
  if (!serial) return pool.parallel_for(chunks, 1, body);
  for (std::int64_t i = 0; i < chunks; ++i) body(i, i + 1, 0);
}

// One operand's part of a super block: `extent` rows of A (columns of B), k in [0, k) from `source` on.
struct PackWork {
  PackFunction function = nullptr;
  const char* source = nullptr;
  std::int64_t ld = 0, element = 0;  // source row stride and element size
  bool k_contiguous = false;
  std::int64_t extent = 0, k = 0, width = 0, packed_element = 0;
  char* packed = nullptr;
  std::int64_t strip_bytes = 0;

  std::int64_t groups() const { return ceil_div(ceil_div(extent, width), kStripsPerPack); }
  std::int64_t chunks() const { return function ? groups() * ceil_div(k, kPackK) : 0; }

  void run(std::int64_t chunk) const {
    const std::int64_t strip = chunk % groups() * kStripsPerPack, k0 = chunk / groups() * kPackK;
    const std::int64_t first = strip * width;
    const std::int64_t strips = std::min(kStripsPerPack, ceil_div(extent, width) - strip);
    function({.source = source + (k_contiguous ? first * ld + k0 : k0 * ld + first) * element,
              .ld = ld,
              .extent = extent - first,
              .k = std::min(kPackK, k - k0),
              .strips = static_cast<int>(strips),
              .packed = packed + strip * strip_bytes + k0 * width * packed_element,
              .strip_bytes = strip_bytes});
  }
};

PackWork pack_a_work(const Kernel& kernel, const GemmArgs& g, std::int64_t m0, std::int64_t k0) {
  PackWork w;
  w.k_contiguous = g.layout != GemmLayout::kTN;
  w.function = w.k_contiguous ? kernel.pack_a.k_contiguous : kernel.pack_a.k_strided;
  w.ld = g.lda;
  w.element = size_of(g.ab_dtype);
  w.source = static_cast<const char*>(g.a) + (w.k_contiguous ? m0 * g.lda + k0 : k0 * g.lda + m0) * w.element;
  w.width = kernel.mr;
  w.packed_element = size_of(kernel.packed);
  return w;
}

PackWork pack_b_work(const Kernel& kernel, const GemmArgs& g, std::int64_t n0, std::int64_t k0) {
  PackWork w;
  w.k_contiguous = g.layout == GemmLayout::kNT;
  w.function = w.k_contiguous ? kernel.pack_b.k_contiguous : kernel.pack_b.k_strided;
  w.ld = g.ldb;
  w.element = size_of(g.ab_dtype);
  w.source = static_cast<const char*>(g.b) + (w.k_contiguous ? n0 * g.ldb + k0 : k0 * g.ldb + n0) * w.element;
  w.width = kernel.nr;
  w.packed_element = size_of(kernel.packed);
  return w;
}

// The product over one super block, from packed operands.
struct SuperBlock {
  const Kernel& kernel;
  std::int64_t panel;
  std::int64_t rows, cols, k;  // extents that exist; k is padded to the kernel's block
  std::int64_t block_m, block_n;
  const char *a, *b;
  std::int64_t a_strip_bytes, b_strip_bytes;
  char* c;
  std::int64_t ldc;
  DType c_dtype;
  bool accumulate;
  char* tiles;  // per thread
  std::int64_t tiles_bytes;

  std::int64_t tasks_m() const { return ceil_div(rows, block_m); }
  std::int64_t tasks() const { return tasks_m() * ceil_div(cols, block_n); }
  // Tasks that follow each other share their block of B.
  void run(std::int64_t task, int thread) const;

 private:
  void run_tile(TileCall& call, const TileIo& io, bool first, bool last) const;
};

void SuperBlock::run(std::int64_t task, int thread) const {
  const std::int64_t m0 = task % tasks_m() * block_m, n0 = task / tasks_m() * block_n;
  const std::int64_t m1 = std::min(rows, m0 + block_m), n1 = std::min(cols, n0 + block_n);
  const std::int64_t element = size_of(kernel.packed);
  const std::int64_t tile_floats = std::int64_t{kernel.mr} * kernel.nr;
  float* const scratch = reinterpret_cast<float*>(tiles + thread * tiles_bytes);
  const bool keep_tiles = k > panel;

  if (kernel.begin) kernel.begin();
  for (std::int64_t k0 = 0; k0 < k; k0 += panel) {
    const bool first = k0 == 0, last = k0 + panel >= k;
    TileCall call{};
    call.blocks = std::min(panel, k - k0) / kernel.kb;
    std::int64_t tile = 0;
    for (std::int64_t j = n0; j < n1; j += kernel.nr) {
      const char* b_strip = b + j / kernel.nr * b_strip_bytes + k0 * kernel.nr * element;
      call.b = b_strip;
      // While this strip of B is multiplied, bring in the next one.
      const char* wanted = b_strip + b_strip_bytes;
      for (std::int64_t i = m0; i < m1; i += kernel.mr, ++tile) {
        call.a = a + i / kernel.mr * a_strip_bytes + k0 * kernel.mr * element;
        call.rows = static_cast<int>(std::min<std::int64_t>(kernel.mr, m1 - i));
        call.prefetch = wanted;
        wanted += call.blocks * 128;
        run_tile(call,
                 {.tile = scratch + (keep_tiles ? tile * tile_floats : 0),
                  .tile_ld = kernel.nr,
                  .c = c + (i * ldc + j) * size_of(c_dtype),
                  .ldc = ldc,
                  .rows = call.rows,
                  .cols = static_cast<int>(std::min<std::int64_t>(kernel.nr, n1 - j))},
                 first, last);
      }
    }
  }
  if (kernel.end) kernel.end();
}

// The sum starts from what C holds, or zero, in every case, so that a tile at the edge rounds as one inside
// does.
void SuperBlock::run_tile(TileCall& call, const TileIo& io, bool first, bool last) const {
  const bool in_place =
      kernel.any_c && c_dtype == DType::kF32 && io.rows == kernel.mr && io.cols == kernel.nr;
  call.c_out = io.tile;
  call.ld_out = io.tile_ld;
  call.c_in = first && !accumulate ? nullptr : io.tile;
  call.ld_in = io.tile_ld;
  if (first && accumulate) {
    if (in_place) {
      call.c_in = static_cast<const float*>(io.c);
      call.ld_in = io.ldc;
    } else {
      (c_dtype == DType::kF32 ? kernel.load_f32 : kernel.load_bf16)(io);
    }
  }
  if (last && in_place) {
    call.c_out = static_cast<float*>(io.c);
    call.ld_out = io.ldc;
  }
  kernel.run(call);
  if (last && !in_place) (c_dtype == DType::kF32 ? kernel.store_f32 : kernel.store_bf16)(io);
}

// Moves a super block of bf16 C to its fp32 sums or back.
void move_sums(ThreadPool& pool, bool serial, TileIoFunction move, const TileIo& whole) {
  constexpr std::int64_t kRows = 16;
  run_chunks(pool, serial, ceil_div(whole.rows, kRows), [&](std::int64_t chunk, std::int64_t, int) {
    const std::int64_t row = chunk * kRows;
    TileIo io = whole;
    io.tile += row * io.tile_ld;
    io.c = static_cast<char*>(io.c) + row * io.ldc * size_of(DType::kBF16);
    io.rows = static_cast<int>(std::min(kRows, whole.rows - row));
    move(io);
  });
}

char* align_up(void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  return reinterpret_cast<char*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

std::size_t blocked_workspace_bytes(const Kernel& kernel, const GemmArgs& args, int threads) {
  return static_cast<std::size_t>(make_plan(kernel, args, threads).total(threads)) + kAlignment;
}

void multiply_blocked(ThreadPool& pool, const Kernel& kernel, const GemmArgs& g) {
  const Plan plan = make_plan(kernel, g, pool.size());
  char* const a_packed = align_up(g.workspace);
  char* const b_packed = a_packed + plan.a_bytes;
  char* const sums = b_packed + plan.b_bytes;
  char* const tiles = sums + plan.sums_bytes;
  const std::int64_t element = size_of(kernel.packed), c_element = size_of(g.c_dtype);
  const bool serial = gemm_flops(g) < kSerialFlops;
  const bool a_stays = g.m <= plan.super_m && g.k <= plan.super_k;
  const bool b_stays = g.n <= plan.super_n && g.k <= plan.super_k;

  for (std::int64_t n0 = 0; n0 < g.n; n0 += plan.super_n) {
    for (std::int64_t m0 = 0; m0 < g.m; m0 += plan.super_m) {
      const std::int64_t rows = std::min(plan.super_m, g.m - m0), cols = std::min(plan.super_n, g.n - n0);
      char* const c_block = static_cast<char*>(g.c) + (m0 * g.ldc + n0) * c_element;
      const TileIo sums_io{.tile = reinterpret_cast<float*>(sums),
                           .tile_ld = static_cast<int>(plan.super_n),
                           .c = c_block,
                           .ldc = g.ldc,
                           .rows = static_cast<int>(rows),
                           .cols = static_cast<int>(cols)};
      if (plan.sums_in_workspace && g.accumulate) move_sums(pool, serial, kernel.load_bf16, sums_io);
      for (std::int64_t k0 = 0; k0 < g.k; k0 += plan.super_k) {
        const std::int64_t k = std::min(plan.super_k, g.k - k0), k_padded = round_up(k, kernel.kb);
        PackWork pack_a, pack_b;
        if (!a_stays || n0 == 0) {
          pack_a = pack_a_work(kernel, g, m0, k0);
          pack_a.extent = rows;
          pack_a.k = k;
          pack_a.packed = a_packed;
          pack_a.strip_bytes = k_padded * kernel.mr * element;
        }
        if (!g.packed_b && (!b_stays || m0 == 0)) {
          pack_b = pack_b_work(kernel, g, n0, k0);
          pack_b.extent = cols;
          pack_b.k = k;
          pack_b.packed = b_packed;
          pack_b.strip_bytes = k_padded * kernel.nr * element;
        }
        const std::int64_t a_chunks = pack_a.chunks(), chunks = a_chunks + pack_b.chunks();
        run_chunks(pool, serial, chunks, [&](std::int64_t i, std::int64_t, int) {
          i < a_chunks ? pack_a.run(i) : pack_b.run(i - a_chunks);
        });

        const std::int64_t whole_b_strip = round_up(g.k, kernel.kb) * kernel.nr * element;
        const SuperBlock block{.kernel = kernel,
                               .panel = plan.panel,
                               .rows = rows,
                               .cols = cols,
                               .k = k_padded,
                               .block_m = plan.block_m,
                               .block_n = plan.block_n,
                               .a = a_packed,
                               .b = g.packed_b ? static_cast<const char*>(g.packed_b) +
                                                     n0 / kernel.nr * whole_b_strip + k0 * kernel.nr * element
                                               : b_packed,
                               .a_strip_bytes = k_padded * kernel.mr * element,
                               .b_strip_bytes = g.packed_b ? whole_b_strip : k_padded * kernel.nr * element,
                               .c = plan.sums_in_workspace ? sums : c_block,
                               .ldc = plan.sums_in_workspace ? plan.super_n : g.ldc,
                               .c_dtype = plan.sums_in_workspace ? DType::kF32 : g.c_dtype,
                               .accumulate = k0 > 0 || g.accumulate,
                               .tiles = tiles,
                               .tiles_bytes = plan.tiles_bytes};
        run_chunks(pool, serial, block.tasks(),
                   [&](std::int64_t task, std::int64_t, int thread) { block.run(task, thread); });
      }
      if (plan.sums_in_workspace) move_sums(pool, serial, kernel.store_bf16, sums_io);
    }
  }
}

std::size_t packed_b_bytes(const Kernel& kernel, const GemmArgs& g) {
  return static_cast<std::size_t>(round_up(g.n, kernel.nr) * round_up(g.k, kernel.kb) *
                                  size_of(kernel.packed));
}

void pack_whole_b(ThreadPool& pool, const Kernel& kernel, const GemmArgs& g, void* packed) {
  PackWork work = pack_b_work(kernel, g, 0, 0);
  work.extent = g.n;
  work.k = g.k;
  work.packed = static_cast<char*>(packed);
  work.strip_bytes = round_up(g.k, kernel.kb) * kernel.nr * size_of(kernel.packed);
  pool.parallel_for(work.chunks(), 1, [&](std::int64_t chunk, std::int64_t, int) { work.run(chunk); });
}

}  // namespace primus::turbo::gemm
