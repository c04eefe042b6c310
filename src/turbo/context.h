// Defines how an operator is called: launch(context, Arguments{...}). launch() does the common work of all
// calls: it checks shapes, counts FLOPs, takes the workspace from the scratch arena and measures time. A
// measuring context (see Context::scratch) runs no kernel.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "device/device.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Counts the work of each kernel since the last reset. `seconds` is counted only on synchronous devices, and
// only if `timed` is set.
struct Meter {
  struct Line {
    std::int64_t calls = 0;
    double flops = 0;
    double seconds = 0;
  };
  std::array<Line, static_cast<std::size_t>(KernelId::kCount)> lines{};
  bool timed = false;

  Line& operator[](KernelId id) { return lines[static_cast<std::size_t>(id)]; }
  double total_flops() const;
  void reset() { lines = {}; }
};

// The environment of an operator call. A rank has one Context for its compute stream. Not thread-safe.
struct Context {
  Device& device;
  Stream& stream;
  Arena& scratch;  // memory for workspaces; with a measuring arena no kernel runs
  Meter& meter;
  // Number of multiprocessors that matrix products do not use, so that a concurrent collective can run on
  // them (turbo::Gemm).
  int spared = 0;

  bool measuring() const { return scratch.measuring(); }
};

namespace internal {
void launch(Context& context, KernelId id, double flops, void* arguments, std::size_t bytes,
            Tensor* workspace);
}

// Enqueues the kernel of `arguments` on the context's stream. Arguments must have:
//   static constexpr KernelId kId;          identifies the kernel
//   void check() const;                     PRIMUS_CHECKs shapes and types (turbo/check.h), in every build
//   double flops() const;                   2 per multiply-add, matrix work only; 0 for memory-bound kernels
// and may have `Tensor workspace`, which launch() provides.
template <class Arguments>
void launch(Context& context, Arguments arguments) {
  static_assert(std::is_trivially_copyable_v<Arguments>);
  arguments.check();
  Tensor* workspace = nullptr;
  if constexpr (requires { arguments.workspace; }) workspace = &arguments.workspace;
  internal::launch(context, Arguments::kId, arguments.flops(), &arguments, sizeof(Arguments), workspace);
}

}  // namespace primus::turbo
