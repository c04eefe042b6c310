// Products of warpgroups (four warps) whose operands lie in shared memory, and what feeds them: copies of
// whole boxes of a tensor by the copy engine, and gates that tell when data has come and when it was used. On
// NVIDIA GPUs of compute capability 9.0, compiled for sm_90a (wgmma, TMA, mbarrier, setmaxnreg), and in the
// emulator with warps of 32, from the same layout of shared memory. Host code asks has_warpgroups() first;
// kernels that use this are kAlone (device/gpu/launch.h), and empty where PRIMUS_WARPGROUPS is 0.
//
// Operands are made of panels: lines of 128 bytes (64 bf16), the first at a multiple of 1024 bytes. Piece p
// (16 bytes) of line l lies at place p ^ (l % 8), so that neither reading along a line nor across lines meets
// one bank twice. An operand is "by depth" when neighbours in a line differ in m (or n) and not in k:
//
//   by row    one panel; a line for each row, with 64 of depth
//   by depth  a panel for each 64 rows, one after the other; a line for each of 64 of depth
#pragma once

#include "turbo/gpu/values.h"

#if defined(__CUDACC__) && !defined(__HIP__)
#include <cuda.h>
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "compile for 90a: plain sm_90 lacks the products of warpgroups"
#endif

#if !defined(PRIMUS_GPU_VENDOR) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PRIMUS_WARPGROUPS 1
#else
#define PRIMUS_WARPGROUPS 0
#endif

namespace primus::turbo::PRIMUS_GPU {

inline constexpr int kWarpgroup = 4 * kWarp;
inline constexpr int kPanelLine = 64;  // elements
inline constexpr int kPanelAlignment = 1024;

// Whether kernels of this context may use what is declared here.
inline bool has_warpgroups([[maybe_unused]] const Context& context) {
#if !defined(PRIMUS_GPU_VENDOR)
  return kWarp == 32;
#elif defined(__HIP__)
  return false;
#else
  return context.capability() == 90;
#endif
}

// Where piece `piece` (eight elements) of a panel's line lies.
PRIMUS_DEVICE BFloat16* in_panel(BFloat16* panel, int line, int piece) {
  return panel + line * kPanelLine + (piece ^ (line % 8)) * 8;
}

// ---- Gates --------------------------------------------------------------------------------------

// Counts arrivals, and bytes of copies on the way, in phases: a phase is over when all arrivals of it have
// happened and all bytes that were expected have come; then the next begins. Lies in shared memory.
class Gate {
 public:
  // By one thread; show_gates() and a barrier follow.
  PRIMUS_DEVICE void init(int arrivals);
  // What this thread did before is seen by who waits.
  PRIMUS_DEVICE void arrive();
  // The phase waits for this many bytes more.
  PRIMUS_DEVICE void expect(int bytes);
  PRIMUS_DEVICE void arrive_and_expect(int bytes);
  // Waits until the phase of this parity (the first is 0) is over; the one before the first counts as over.
  // A wait of more than 20 s can only be a mistake in a kernel: it ends the kernel with an error.
  PRIMUS_DEVICE void wait(std::uint32_t parity);

#ifdef PRIMUS_GPU_VENDOR
  PRIMUS_DEVICE std::uint32_t address() {
#if PRIMUS_WARPGROUPS
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(&state_));
#else
    return 0;
#endif
  }

 private:
  std::uint64_t state_;
#else
  void come(int bytes) {
    bytes_ -= bytes;
    turn();
  }

 private:
  void turn() {
    if (pending_ < 0) throw std::logic_error("emulated GPU: more arrivals at a gate than it was made for");
    if (pending_ > 0 || bytes_ != 0) return;
    pending_ = arrivals_;
    ++complete_;
    gpu::emulator::made_progress();
  }

  int arrivals_, pending_, bytes_;
  std::uint32_t complete_;  // phases
#endif
};

#ifdef PRIMUS_GPU_VENDOR

PRIMUS_DEVICE void Gate::init([[maybe_unused]] int arrivals) {
#if PRIMUS_WARPGROUPS
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
#endif
}
PRIMUS_DEVICE void Gate::arrive() {
#if PRIMUS_WARPGROUPS
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
#endif
}
PRIMUS_DEVICE void Gate::expect([[maybe_unused]] int bytes) {
#if PRIMUS_WARPGROUPS
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(bytes)
               : "memory");
#endif
}
PRIMUS_DEVICE void Gate::arrive_and_expect([[maybe_unused]] int bytes) {
#if PRIMUS_WARPGROUPS
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
               : "memory");
#endif
}
PRIMUS_DEVICE void Gate::wait([[maybe_unused]] std::uint32_t parity) {
#if PRIMUS_WARPGROUPS
  const auto over = [&] {
    std::uint32_t result;
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(result)
        : "r"(address()), "r"(parity)
        : "memory");
    return result != 0;
  };
  if (over()) return;
  const auto now = [] {
    std::uint64_t nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
  };
  constexpr std::uint64_t kLongest = 20'000'000'000;
  const std::uint64_t start = now();
  while (!over()) {
    // A fault ends the kernel. With a trap instead the compiler takes no more registers than a kernel begins
    // with, whatever take_registers() says.
    if (now() - start > kLongest) {
      asm volatile("st.global.u32 [%0], %1;" ::"l"(std::uint64_t{0}), "r"(0) : "memory");
    }
  }
#endif
}

#else

inline void Gate::init(int arrivals) {
  arrivals_ = pending_ = arrivals;
  bytes_ = 0;
  complete_ = 0;
}
inline void Gate::arrive() {
  --pending_;
  turn();
}
inline void Gate::expect(int bytes) { bytes_ += bytes; }
inline void Gate::arrive_and_expect(int bytes) {
  expect(bytes);
  arrive();
}
inline void Gate::wait(std::uint32_t parity) {
  struct Wait {
    const Gate* gate;
    std::uint32_t parity;
  } const state{this, parity};
  gpu::emulator::wait_until(
      [](const void* at) {
        const auto& wait = *static_cast<const Wait*>(at);
        return wait.gate->complete_ % 2 != wait.parity;
      },
      &state);
}

#endif

// Makes gates that this thread has initialised known to the copy engine.
PRIMUS_DEVICE void show_gates() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// Shows what this thread wrote to shared memory to products and to the copy engine: before the arrival or
// barrier that tells of it.
PRIMUS_DEVICE void show_writes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A barrier among `count` threads of whole warps; its number is 1 to 15.
PRIMUS_DEVICE void barrier_among([[maybe_unused]] int number, [[maybe_unused]] int count) {
#if !defined(PRIMUS_GPU_VENDOR)
  gpu::emulator::barrier(number, count);
#elif PRIMUS_WARPGROUPS
  asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
#endif
}

// A thread's registers from here on, by all threads of a warpgroup: multiples of 8.
template <int kCount>
PRIMUS_DEVICE void give_back_registers() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
PRIMUS_DEVICE void take_registers() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// ---- Copies -------------------------------------------------------------------------------------

// A tensor [size[2], size[1], size[0]] of bf16, from which boxes of 64 x `lines` elements are copied. `step`:
// elements from one index of dimensions 1 and 2 to the next; multiples of 8. The address is one of 16 bytes.
struct BoxSource {
  const BFloat16* data;
  std::int64_t size[3];
  std::int64_t step[2];
  int lines;  // at most 256
};

#if defined(__CUDACC__) && !defined(__HIP__)

using BoxMap = CUtensorMap;

inline BoxMap box_map(const BoxSource& source) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    gpu::PRIMUS_GPU::check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                            cudaEnableDefault, &found),
                           "find cuTensorMapEncodeTiled in the driver");
    if (!function || found != cudaDriverEntryPointSuccess) {
      throw Error(ErrorKind::kDependency, "cuda: the driver has no cuTensorMapEncodeTiled",
                  "install a driver for CUDA 12 or newer");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto unsigned_of = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const cuuint64_t size[] = {unsigned_of(source.size[0]), unsigned_of(source.size[1]),
                             unsigned_of(source.size[2])};
  const cuuint64_t step[] = {unsigned_of(2 * source.step[0]), unsigned_of(2 * source.step[1])};
  const cuuint32_t box[] = {kPanelLine, static_cast<cuuint32_t>(source.lines), 1}, every[] = {1, 1, 1};
  BoxMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<BFloat16*>(source.data), size, step, box,
             every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::logic_error("cuda: cuTensorMapEncodeTiled refuses a tensor: error " + std::to_string(result));
  }
  return map;
}

#else

using BoxMap = BoxSource;

inline BoxMap box_map(const BoxSource& source) { return source; }

#endif

// Copies the box that begins at (first, line, matrix) into a panel; zeros where it leaves the tensor. The
// gate gets 128 bytes for each of its lines, whole ones where it leaves the tensor, too. By one thread; the
// map is an argument of the kernel.
PRIMUS_DEVICE void copy_box([[maybe_unused]] BFloat16* panel, [[maybe_unused]] const BoxMap& from,
                            [[maybe_unused]] int first, [[maybe_unused]] int line,
                            [[maybe_unused]] int matrix, [[maybe_unused]] Gate& gate) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int l = 0; l < from.lines; ++l) {
    for (int i = 0; i < kPanelLine; ++i) {
      const bool within = first + i < from.size[0] && line + l < from.size[1] && matrix < from.size[2];
      in_panel(panel, l, i / 8)[i % 8] =
          within ? from.data[first + i + (line + l) * from.step[0] + matrix * from.step[1]] : BFloat16{};
    }
  }
  gate.come(from.lines * kPanelLine * 2);
#elif PRIMUS_WARPGROUPS
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, "
      "%5}], [%2];" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(panel))),
      "l"(&from), "r"(gate.address()), "r"(first), "r"(line), "r"(matrix)
      : "memory");
#endif
}

// ---- Products -----------------------------------------------------------------------------------

// 64 x kCols sums of a warpgroup. A warp has 16 rows; its lanes hold pairs of neighbours in a row.
template <int kColumns>
struct WarpgroupSums {
  static constexpr int kCols = kColumns, kCount = kCols / 2, kRows = 64;
  float at[kCount];

  PRIMUS_DEVICE void clear() {
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) at[i] = 0;
  }
  PRIMUS_DEVICE static int row(int i) { return warp() % 4 * 16 + lane() / 4 + i / 2 % 2 * 8; }
  PRIMUS_DEVICE static int col(int i) { return i / 4 * 8 + lane() % 4 * 2 + i % 2; }
};
using WideSums = WarpgroupSums<256>;

// A left operand of 64 rows and 16 of depth in a warpgroup's registers: rounded sums as they lie.
struct LeftInRegisters {
  std::uint32_t pairs[4];
};

// The 16 columns of `sums` from 16 * d on.
template <int kCols>
PRIMUS_DEVICE LeftInRegisters to_left(const WarpgroupSums<kCols>& sums, int d) {
  LeftInRegisters result;
  PRIMUS_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Pack<BFloat16, 2> pair{from_float<BFloat16>(sums.at[8 * d + 2 * i]),
                                 from_float<BFloat16>(sums.at[8 * d + 2 * i + 1])};
    result.pairs[i] = std::bit_cast<std::uint32_t>(pair);
  }
  return result;
}

// What was computed for these registers is computed here, and not behind what follows: the compiler sees
// nothing of what products under way do to registers.
template <int kCols>
PRIMUS_DEVICE void settle([[maybe_unused]] WarpgroupSums<kCols>& sums) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  PRIMUS_UNROLL
  for (int i = 0; i < WarpgroupSums<kCols>::kCount; ++i) asm volatile("" : "+f"(sums.at[i])::"memory");
#endif
}
PRIMUS_DEVICE void settle([[maybe_unused]] LeftInRegisters& left) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  PRIMUS_UNROLL
  for (std::uint32_t& pair : left.pairs) asm volatile("" : "+r"(pair)::"memory");
#endif
}

// Keeps the waits for products that follow behind the arithmetic that gives `value`, which is not negative.
// The assembler would move these waits up, and nothing would be computed while products are under way. It
// does not move them over a store, so this is one to `unused`, in shared memory, under a condition that never
// holds.
PRIMUS_DEVICE void compute_before_waits([[maybe_unused]] float value, [[maybe_unused]] void* unused) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.lt.f32 never, %0, 0f00000000;\n"
      "@never st.volatile.shared.f32 [%1], %0;\n"
      "}" ::"f"(value),
      "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(unused)))
      : "memory");
#endif
}

// Before the first product of a group: registers that were written are sums from here on.
PRIMUS_DEVICE void begin_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
PRIMUS_DEVICE void end_group_of_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Waits until no more than kLater groups are under way: operands of the others may be overwritten, and their
// sums read after settle().
template <int kLater>
PRIMUS_DEVICE void wait_for_products() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
#endif
}
// The same, for sums of the last group that must be complete then.
template <int kLater = 0, int kCols>
PRIMUS_DEVICE void wait_for_sums(WarpgroupSums<kCols>& sums) {
  wait_for_products<kLater>();
  settle(sums);
}

// Where depth 16 · d of an operand begins, whose first row is the panel's.
template <bool kByDepth>
PRIMUS_DEVICE const BFloat16* at_depth(const BFloat16* panel, int d) {
  return panel + (kByDepth ? 16 * d * kPanelLine : 16 * d);
}

#if !defined(PRIMUS_GPU_VENDOR)

// Element (row, k) of an operand that begins where at_depth says.
template <bool kByDepth>
float operand_element(const BFloat16* from, int row, int k) {
  const int line = kByDepth ? row / kPanelLine * kPanelLine + k : row;
  const int in_line = kByDepth ? row % kPanelLine : k;
  std::uintptr_t address = reinterpret_cast<std::uintptr_t>(from + line * kPanelLine + in_line);
  address ^= address / 128 % 8 * 16;
  return to_float(*reinterpret_cast<const BFloat16*>(address));
}

// `rows`: the left operand's rows of which this lane has sums.
template <bool kRightByDepth, int kCols>
void multiply_rows(WarpgroupSums<kCols>& sums, const float (&rows)[2][16], const BFloat16* right, bool add) {
  using Sums = WarpgroupSums<kCols>;
  for (int i = 0; i < Sums::kCount; i += 4) {
    for (int j = 0; j < 2; ++j) {
      float col[16];
      for (int k = 0; k < 16; ++k) col[k] = operand_element<kRightByDepth>(right, Sums::col(i + j), k);
      for (int half = 0; half < 2; ++half) {
        float& sum = sums.at[i + 2 * half + j];
        if (!add) sum = 0;
        for (int k = 0; k < 16; ++k) sum += rows[half][k] * col[k];
      }
    }
  }
}

// sums (+)= A[64, 16] · B[kCols, 16]ᵀ, by a whole warpgroup. Operands begin where at_depth says.
template <bool kLeftByDepth, bool kRightByDepth, int kCols>
void multiply(WarpgroupSums<kCols>& sums, const BFloat16* left, const BFloat16* right, bool add) {
  float rows[2][16];
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 16; ++k) {
      rows[half][k] = operand_element<kLeftByDepth>(left, WarpgroupSums<kCols>::row(2 * half), k);
    }
  }
  multiply_rows<kRightByDepth>(sums, rows, right, add);
}

// sums += A · Bᵀ with A in registers.
template <bool kRightByDepth, int kCols>
void multiply(WarpgroupSums<kCols>& sums, const LeftInRegisters& left, const BFloat16* right) {
  float rows[2][16];
  const std::byte* const all = gpu::emulator::exchange(&left, sizeof(left));
  for (int place = 0; place < 4; ++place) {
    LeftInRegisters of;
    std::memcpy(&of, all + static_cast<std::size_t>(lane() / 4 * 4 + place) * gpu::emulator::kExchangeBytes,
                sizeof(of));
    for (int i = 0; i < 4; ++i) {
      const auto pair = std::bit_cast<Pack<BFloat16, 2>>(of.pairs[i]);
      for (int j = 0; j < 2; ++j) rows[i % 2][i / 2 * 8 + place * 2 + j] = to_float(pair.at[j]);
    }
  }
  multiply_rows<kRightByDepth>(sums, rows, right, true);
}

#else

// What an operand's layout is, to the matrix units: where it begins, the distance of panels and of eight
// lines, all in units of 16 bytes, and the way that pieces are swapped (1: within 128 bytes).
template <bool kByDepth>
PRIMUS_DEVICE std::uint64_t describe(const BFloat16* operand) {
#if PRIMUS_WARPGROUPS
  constexpr std::uint64_t kPanels = kByDepth ? kPanelLine * 128 / 16 : 1, kEightLines = 8 * 128 / 16;
  const auto begin = static_cast<std::uint32_t>(__cvta_generic_to_shared(operand));
  return (begin & 0x3FFFF) >> 4 | kPanels << 16 | kEightLines << 32 | std::uint64_t{1} << 62;
#else
  return 0;
#endif
}

#define PRIMUS_FOUR_SUMS(i) "+f"(s[i]), "+f"(s[(i) + 1]), "+f"(s[(i) + 2]), "+f"(s[(i) + 3])
#define PRIMUS_SIXTEEN_SUMS(i) \
  PRIMUS_FOUR_SUMS(i), PRIMUS_FOUR_SUMS((i) + 4), PRIMUS_FOUR_SUMS((i) + 8), PRIMUS_FOUR_SUMS((i) + 12)
// clang-format off

template <bool kLeftByDepth, bool kRightByDepth, int kCols>
PRIMUS_DEVICE void multiply([[maybe_unused]] WarpgroupSums<kCols>& sums,
                            [[maybe_unused]] const BFloat16* left, [[maybe_unused]] const BFloat16* right,
                            [[maybe_unused]] bool add) {
#if PRIMUS_WARPGROUPS
  float(&s)[WarpgroupSums<kCols>::kCount] = sums.at;
  if constexpr (kCols == 256) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, add, 1, 1, %131, %132;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48), PRIMUS_SIXTEEN_SUMS(64), PRIMUS_SIXTEEN_SUMS(80), PRIMUS_SIXTEEN_SUMS(96), PRIMUS_SIXTEEN_SUMS(112)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 128) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1, %67, %68;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 64) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1, %35, %36;\n"
        "}"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16)
        : "l"(describe<kLeftByDepth>(left)), "l"(describe<kRightByDepth>(right)),
          "r"(static_cast<std::int32_t>(add)), "n"(kLeftByDepth ? 1 : 0), "n"(kRightByDepth ? 1 : 0));
  } else {
    static_assert(kCols == 256, "no such product is written down here");
  }
#endif
}

template <bool kRightByDepth, int kCols>
PRIMUS_DEVICE void multiply([[maybe_unused]] WarpgroupSums<kCols>& sums,
                            [[maybe_unused]] const LeftInRegisters& left,
                            [[maybe_unused]] const BFloat16* right) {
#if PRIMUS_WARPGROUPS
  float(&s)[WarpgroupSums<kCols>::kCount] = sums.at;
  if constexpr (kCols == 128) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, %69;"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16), PRIMUS_SIXTEEN_SUMS(32), PRIMUS_SIXTEEN_SUMS(48)
        : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
          "l"(describe<kRightByDepth>(right)), "n"(kRightByDepth ? 1 : 0));
  } else if constexpr (kCols == 64) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
        : PRIMUS_SIXTEEN_SUMS(0), PRIMUS_SIXTEEN_SUMS(16)
        : "r"(left.pairs[0]), "r"(left.pairs[1]), "r"(left.pairs[2]), "r"(left.pairs[3]),
          "l"(describe<kRightByDepth>(right)), "n"(kRightByDepth ? 1 : 0));
  } else {
    static_assert(kCols == 128, "no such product is written down here");
  }
#endif
}

// clang-format on
#undef PRIMUS_SIXTEEN_SUMS
#undef PRIMUS_FOUR_SUMS

#endif

// ---- Results ------------------------------------------------------------------------------------

// to[i] += values[i], by the memory itself: nobody waits for what was there. For elements that no other
// thread adds to, or the result would change from run to run. The address is one of 16 bytes.
PRIMUS_DEVICE void add_four([[maybe_unused]] float* to, [[maybe_unused]] const float (&values)[4]) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int i = 0; i < 4; ++i) to[i] += values[i];
#elif PRIMUS_WARPGROUPS
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
#endif
}

// The same for bf16, which has to wait: the sum is rounded once.
PRIMUS_DEVICE void add_four(BFloat16* to, const float (&values)[4]) {
  float sums[4];
  load(to, sums);
  PRIMUS_UNROLL
  for (int i = 0; i < 4; ++i) sums[i] += values[i];
  store(to, sums);
}

// Of two pairs in each of two neighbouring lanes, the even lane gets both first ones, the odd lane both
// second ones, the even lane's before the odd one's.
PRIMUS_DEVICE void join_pairs(float (&pairs)[4]) {
  const bool odd = lane() % 2 != 0;
  PRIMUS_UNROLL
  for (int i = 0; i < 2; ++i) {
    const float got = from_lane_xor(odd ? pairs[i] : pairs[2 + i], 1);
    if (odd) {
      pairs[i] = got;
    } else {
      pairs[2 + i] = got;
    }
  }
}

// Word j of the lane that is i-th in its group of four becomes word i of the j-th.
PRIMUS_DEVICE void transpose_among_four(std::uint32_t (&words)[4]) {
  const int place = lane() % 4;
  PRIMUS_UNROLL
  for (int mask = 1; mask < 4; mask *= 2) {
    const bool upper = (place & mask) != 0;
    PRIMUS_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int low = mask == 1 ? 2 * i : i, high = low + mask;
      const std::uint32_t got = from_lane_xor(upper ? words[low] : words[high], mask);
      if (upper) {
        words[low] = got;
      } else {
        words[high] = got;
      }
    }
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
