// The kernels of a device. An operator call is a trivially copyable struct of tensors and attributes
// (RmsNormForward, Gemm, ...) that identifies its kernel by `static constexpr KernelId kId`; a backend
// registers one function per struct. If the table has no function for a call, the call throws
// Error(kUnsupported), which names kernel and device.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "device/device.h"

namespace primus::turbo {

// clang-format off
enum class KernelId : std::uint8_t {
#define PRIMUS_KERNEL(name) k##name,
#include "turbo/kernels.def"  // generated: primus_kernel_list
#undef PRIMUS_KERNEL
  kCount
};
// clang-format on

std::string_view name_of(KernelId id);

}  // namespace primus::turbo

namespace primus {

class KernelTable {
 public:
  struct Entry {
    KernelFunction run = nullptr;
    // Returns the bytes of workspace that the call needs; null for kernels without a workspace.
    std::int64_t (*workspace_bytes)(KernelContext& context, const void* arguments) = nullptr;
  };

  // Called as table.add<RmsNormForward, Context, &rms_norm_forward>() or, with a workspace, <...,
  // &workspace_function>.
  template <class Arguments, class Context, void (*kRun)(Context&, const Arguments&)>
  void add() {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= Stream::kMaxArgumentBytes);
    entries_[index(Arguments::kId)] = {&run_thunk<Arguments, Context, kRun>, nullptr};
  }
  template <class Arguments, class Context, void (*kRun)(Context&, const Arguments&),
            std::int64_t (*kWorkspace)(Context&, const Arguments&)>
  void add() {
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= Stream::kMaxArgumentBytes);
    entries_[index(Arguments::kId)] = {&run_thunk<Arguments, Context, kRun>,
                                       &workspace_thunk<Arguments, Context, kWorkspace>};
  }

  const Entry& operator[](turbo::KernelId id) const { return entries_[index(id)]; }

 private:
  static constexpr std::size_t index(turbo::KernelId id) { return static_cast<std::size_t>(id); }
  template <class Arguments, class Context, void (*kRun)(Context&, const Arguments&)>
  static void run_thunk(KernelContext& context, const void* arguments) {
    kRun(static_cast<Context&>(context), *static_cast<const Arguments*>(arguments));
  }
  template <class Arguments, class Context, std::int64_t (*kWorkspace)(Context&, const Arguments&)>
  static std::int64_t workspace_thunk(KernelContext& context, const void* arguments) {
    return kWorkspace(static_cast<Context&>(context), *static_cast<const Arguments*>(arguments));
  }

  std::array<Entry, static_cast<std::size_t>(turbo::KernelId::kCount)> entries_{};
};

}  // namespace primus
