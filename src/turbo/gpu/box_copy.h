// Copies with Hopper's tensor memory accelerator (TMA): between boxes of a tensor and panels (warpgroup.h),
// and from contiguous bytes to shared memory. In the emulator the calling thread copies. An mbarrier (class
// Gate) reports when data has arrived in shared memory.
#pragma once

#include "turbo/gpu/warpgroup.h"

#if defined(__CUDACC__) && !defined(__HIP__)
#include <cuda.h>
#endif

namespace primus::turbo::PRIMUS_GPU {

// A bf16 tensor [size[2], size[1], size[0]] from which boxes of 64 x `lines` elements are copied. `step` has
// the strides of dimensions 1 and 2, in elements. The strides are multiples of 8, and the address is a
// multiple of 16.
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

// Copies the box that begins at (first, line, matrix) into a panel; elements outside the tensor are zero. The
// mbarrier receives 128 bytes for each line of the box, including lines outside the tensor. One thread calls
// this function. The map must be a kernel argument.
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

// Prefetches a box into the L2 cache. One thread calls this function, and need not wait for the prefetch.
PRIMUS_DEVICE void prefetch_box([[maybe_unused]] const BoxMap& from, [[maybe_unused]] int first,
                                [[maybe_unused]] int line, [[maybe_unused]] int matrix) {
#if PRIMUS_WARPGROUPS && defined(PRIMUS_GPU_VENDOR)
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&from), "r"(first),
               "r"(line), "r"(matrix)
               : "memory");
#endif
}

// Writes a panel's box to the tensor, or adds the box to the tensor and rounds the sum again. Elements
// outside the tensor are skipped. One thread calls this function, after show_writes() and a barrier.
// end_group_of_boxes() and wait_for_boxes() (warpgroup_results.h) report when the panel may be overwritten.
// No other thread may add to the same box.
template <bool kAdd>
PRIMUS_DEVICE void copy_box_back([[maybe_unused]] BFloat16* panel, [[maybe_unused]] const BoxMap& to,
                                 [[maybe_unused]] int first, [[maybe_unused]] int line,
                                 [[maybe_unused]] int matrix) {
#if !defined(PRIMUS_GPU_VENDOR)
  for (int l = 0; l < to.lines; ++l) {
    for (int i = 0; i < kPanelLine; ++i) {
      if (first + i >= to.size[0] || line + l >= to.size[1] || matrix >= to.size[2]) continue;
      BFloat16& at =
          const_cast<BFloat16*>(to.data)[first + i + (line + l) * to.step[0] + matrix * to.step[1]];
      const float value = to_float(in_panel(panel, l, i / 8)[i % 8]);
      at = from_float<BFloat16>(kAdd ? to_float(at) + value : value);
    }
  }
#elif PRIMUS_WARPGROUPS
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(panel));
  if constexpr (kAdd) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::
            "l"(&to),
        "r"(from), "r"(first), "r"(line), "r"(matrix)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&to),
        "r"(from), "r"(first), "r"(line), "r"(matrix)
        : "memory");
  }
#endif
}

// Copies bytes to shared memory; the mbarrier receives the number of bytes. One thread calls this function.
// Addresses and size are multiples of 16.
PRIMUS_DEVICE void copy_run([[maybe_unused]] void* to, [[maybe_unused]] const void* from,
                            [[maybe_unused]] int bytes, [[maybe_unused]] Gate& gate) {
#if !defined(PRIMUS_GPU_VENDOR)
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
  gate.come(bytes);
#elif PRIMUS_WARPGROUPS
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(gate.address())
      : "memory");
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
