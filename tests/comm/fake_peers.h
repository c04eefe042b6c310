// The device functions with which GPUs of one host access each other's memory (DevicePeers), for guard
// devices. All these devices translate addresses by the same offset.
#pragma once

#define PRIMUS_EMULATED_WARP 32

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>

#include "comm/nccl_job.h"
#include "device/cpu/cpu_device.h"
#include "device/gpu/copy_rows.h"

namespace primus::comm::test {

inline constexpr std::uintptr_t kPage = 4096;
inline constexpr std::ptrdiff_t kOpened = kPage;  // handles differ from addresses by this offset

inline std::atomic<int> opened{0}, mapped{0};
inline std::atomic<bool> refuses_to_open{false};  // on the rank "0000:01"
inline std::atomic<bool> garbles{false};          // opened addresses are wrong on two ranks

inline PeerHandle peer_share(int, const void* address, std::int64_t& offset) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t base = at / kPage * kPage;
  // Leads to the neighbouring page, which belongs to the same buffer if there are two ranks.
  const std::ptrdiff_t wrong = !garbles ? 0 : this_gpu == "0000:00" ? kOpened : -kOpened;
  const std::uintptr_t handle = base + kOpened + static_cast<std::uintptr_t>(wrong);
  offset = static_cast<std::int64_t>(at - base);
  PeerHandle result;
  std::memcpy(result.bytes.data(), &handle, sizeof(handle));
  return result;
}

inline void* peer_open(int, const PeerHandle& handle) {
  if (refuses_to_open && this_gpu == "0000:01") {
    throw Error(ErrorKind::kIo, "fake: cannot open the memory of another GPU");
  }
  std::uintptr_t value = 0;
  std::memcpy(&value, handle.bytes.data(), sizeof(value));
  ++opened;
  return reinterpret_cast<void*>(value - kOpened);
}

struct PeerFlag {
  std::atomic<std::uint32_t>* at;
  std::uint32_t value;
};

template <void (*kWork)(const PeerFlag&)>
void launch_flag(Stream& stream, void* flag, std::uint32_t value) {
  const PeerFlag arguments{static_cast<std::atomic<std::uint32_t>*>(flag), value};
  stream.launch(
      [](KernelContext&, const void* a) {
        PeerFlag here{};
        std::memcpy(&here, a, sizeof(here));
        kWork(here);
      },
      &arguments, sizeof(arguments));
}

inline void peer_set(const PeerFlag& flag) { *flag.at = flag.value; }
inline void peer_wait(const PeerFlag& flag) {
  while (static_cast<std::int32_t>(*flag.at - flag.value) < 0)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// Runs the kernel of the GPU plug-ins in the emulator. Every third launch is late.
inline std::atomic<int> row_launches{0};
inline void peer_copy_rows(Stream& stream, const RowCopies& copies) {
  gpu::PRIMUS_GPU::each_copy_rows(copies, [&](int, const gpu::PRIMUS_GPU::CopyRows& kernel) {
    stream.launch(
        [](KernelContext& context, const void* arguments) {
          if (++row_launches % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          auto& cpu = static_cast<cpu::CpuContext&>(context);
          auto here = *static_cast<const gpu::PRIMUS_GPU::CopyRows*>(arguments);
          const auto memory_of = [&](const void* address, std::int64_t bytes) {
            return cpu.data<std::byte>(Tensor(const_cast<void*>(address), DType::kU8, {bytes}));
          };
          for (int i = 0; i < here.count; ++i) {
            RowCopies::Part& part = here.parts[i];
            part.from = memory_of(part.from, here.maximum * here.row_bytes);
            part.to = memory_of(part.to, here.maximum * here.row_bytes);
            part.rows = reinterpret_cast<const std::int32_t*>(memory_of(part.rows, 4));
          }
          gpu::PRIMUS_GPU::launch(cpu, 2, here);
        },
        &kernel, sizeof(kernel));
  });
}

inline constexpr DevicePeers kPeers{.share = peer_share,
                                    .open = peer_open,
                                    .close = [](int, void*) noexcept { --opened; },
                                    .map_flags =
                                        [](int, void* host, std::int64_t) {
                                          ++mapped;
                                          return host;
                                        },
                                    .unmap_flags = [](int, void*) noexcept { --mapped; },
                                    .set_flag = launch_flag<peer_set>,
                                    .wait_flag = launch_flag<peer_wait>,
                                    .copy_rows = peer_copy_rows};

}  // namespace primus::comm::test
