// Building blocks of warpgroup kernels (a warpgroup is four warps): panels in shared memory, mbarriers (class
// Gate), barriers for a subset of threads, and registers moved between warpgroups. An mbarrier reports when
// data has arrived or has been used. Copies into panels are in box_copy.h, products of panels in
// warpgroup_products.h, output of results in warpgroup_results.h. Available on NVIDIA GPUs of compute
// capability 9.0, compiled for sm_90a (wgmma, TMA, mbarrier, setmaxnreg). Also available in the emulator with
// warps of 32, with the same layout of shared memory. Host code checks has_warpgroups() first. Kernels that
// use this header are kAlone (device/gpu/launch.h), and have an empty body if PRIMUS_WARPGROUPS is 0.
//
// Operands consist of panels: lines of 128 bytes (64 bf16), the first at a multiple of 1024 bytes. A line has
// eight pieces of 16 bytes. Piece p of line l is stored at position p ^ (l % 8), so that reads along a line
// and across lines have no bank conflicts. The depth of a product is k. An operand is stored "by depth" if a
// line has one element of each row (consecutive m or n, one k). An operand is stored "by row" if a line has
// elements of one row (consecutive k):
//
//   by row    one panel; one line per row, with 64 elements of depth
//   by depth  one panel per 64 rows, consecutively; one line per element of depth, with 64 rows
#pragma once

#include "turbo/gpu/values.h"

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

// Returns whether kernels of this context may use the functions declared here.
inline bool has_warpgroups([[maybe_unused]] const Context& context) {
#if !defined(PRIMUS_GPU_VENDOR)
  return kWarp == 32;
#elif defined(__HIP__)
  return false;
#else
  return context.capability() == 90;
#endif
}

// Returns the address of piece `piece` (eight elements) of a panel's line.
PRIMUS_DEVICE BFloat16* in_panel(BFloat16* panel, int line, int piece) {
  return panel + line * kPanelLine + (piece ^ (line % 8)) * 8;
}

// Returns the block's dynamic shared memory as a Memory. A Memory begins with a panel. The launch must
// request kPanelAlignment bytes more than sizeof(Memory).
template <class Memory>
PRIMUS_DEVICE Memory& shared_panels() {
  const auto start = reinterpret_cast<std::uintptr_t>(dynamic_shared());
  return *reinterpret_cast<Memory*>((start + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment);
}

// ---- Gates --------------------------------------------------------------------------------------

// An mbarrier: counts arrivals and copied bytes, in phases. A phase is complete when the mbarrier has counted
// all arrivals and all expected bytes; then the next phase begins. mbarriers are in shared memory.
class Gate {
 public:
  // One thread calls this function; show_gates() and a barrier must follow.
  PRIMUS_DEVICE void init(int arrivals);
  // Counts an arrival. Earlier writes of this thread are visible to threads that wait for the phase.
  PRIMUS_DEVICE void arrive();
  // Adds `bytes` to the number of bytes that the current phase waits for.
  PRIMUS_DEVICE void expect(int bytes);
  PRIMUS_DEVICE void arrive_and_expect(int bytes);
  // Counts an arrival when all copies that this thread has started (async_copy.h) are complete. The thread
  // does not wait. A waiting thread calls show_writes() before products read the data.
  PRIMUS_DEVICE void arrive_after_copies();
  // Waits until the phase of this parity is complete. The first phase has parity 0, and the phase before the
  // first phase counts as complete. A wait of more than 20 s is a bug in the kernel, and ends the kernel with
  // an error.
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
  std::uint32_t complete_;  // number of completed phases
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
PRIMUS_DEVICE void Gate::arrive_after_copies() {
#if PRIMUS_WARPGROUPS
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
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
    // An invalid store ends the kernel. The code has no trap instruction: in a kernel with a trap, the
    // compiler ignores acquire_registers() and uses only the registers with which the kernel starts.
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
inline void Gate::arrive_after_copies() { arrive(); }
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

// Makes the mbarriers that this thread initialised visible to the TMA.
PRIMUS_DEVICE void show_gates() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// Makes this thread's writes to shared memory visible to products and to the TMA. Call this function before
// the arrival or barrier that announces the writes.
PRIMUS_DEVICE void show_writes() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// A barrier among `count` threads (complete warps). `number`, from 1 to 15, identifies the barrier.
PRIMUS_DEVICE void barrier_among([[maybe_unused]] int number, [[maybe_unused]] int count) {
#if !defined(PRIMUS_GPU_VENDOR)
  gpu::emulator::barrier(number, count);
#elif PRIMUS_WARPGROUPS
  asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
#endif
}

// These functions set the number of registers per thread for the code that follows: a multiple of 8. All
// threads of a warpgroup must call these functions.
template <int kCount>
PRIMUS_DEVICE void release_registers() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
PRIMUS_DEVICE void acquire_registers() {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
