// What kernels of warpgroups (four warps) stand on: panels in shared memory, gates that tell when data has
// come and when it was used, barriers among some threads, registers handed from one warpgroup to another.
// Copies into panels are in box_copy.h, products of what lies there in warpgroup_products.h, ways out in
// warpgroup_results.h. On NVIDIA GPUs of compute capability 9.0, compiled for sm_90a (wgmma, TMA, mbarrier,
// setmaxnreg), and in the emulator with warps of 32, from the same layout of shared memory. Host code asks
// has_warpgroups() first; kernels that use this are kAlone (device/gpu/launch.h), and empty where
// PRIMUS_WARPGROUPS is 0.
//
// Operands are made of panels: lines of 128 bytes (64 bf16), the first at a multiple of 1024 bytes. Piece p
// (16 bytes) of line l lies at place p ^ (l % 8), so that neither reading along a line nor across lines meets
// one bank twice. An operand is "by depth" when neighbours in a line differ in m (or n) and not in k:
//
//   by row    one panel; a line for each row, with 64 of depth
//   by depth  a panel for each 64 rows, one after the other; a line for each of 64 of depth
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

// The block's dynamic shared memory as a Memory that begins with a panel; the launch gives kPanelAlignment
// bytes more.
template <class Memory>
PRIMUS_DEVICE Memory& shared_panels() {
  const auto start = reinterpret_cast<std::uintptr_t>(dynamic_shared());
  return *reinterpret_cast<Memory*>((start + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment);
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
  // Arrives when the copies that this thread has begun (async_copy.h) have come. The thread goes on
  // meanwhile; who waits calls show_writes() before products read them.
  PRIMUS_DEVICE void arrive_after_copies();
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

}  // namespace primus::turbo::PRIMUS_GPU
