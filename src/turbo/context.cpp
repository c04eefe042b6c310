#include "turbo/context.h"

#include <chrono>
#include <optional>

#include "base/error.h"
#include "turbo/check.h"

namespace primus::turbo {

std::string_view name_of(KernelId id) {
  static constexpr std::string_view kNames[] = {
#define PRIMUS_KERNEL(name) #name,
#include "turbo/kernels.def"  // generated: primus_kernel_list
#undef PRIMUS_KERNEL
  };
  return kNames[static_cast<std::size_t>(id)];
}

void check_failed(KernelId kernel, const char* condition) {
  primus::check_failed(std::string(name_of(kernel)).c_str(), condition);
}

double Meter::total_flops() const {
  double sum = 0;
  for (const auto& line : lines) sum += line.flops;
  return sum;
}

namespace {

// A kernel's workspace, released when the kernel is enqueued or the launch fails. The release is early but
// safe: the next kernel that uses this memory runs after this kernel in the stream.
struct Workspace {
  Workspace(Arena& scratch, std::int64_t bytes) : arena(scratch), block(scratch.allocate(bytes)) {}
  ~Workspace() { arena.release(block); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  Arena& arena;
  Arena::Block block;
};

}  // namespace

namespace internal {

void launch(Context& context, KernelId id, double flops, void* arguments, std::size_t bytes,
            Tensor* workspace) {
  const KernelTable::Entry& entry = context.device.kernels()[id];
  if (!entry.run) {
    throw unsupported("device '" + context.device.description() + "' has no kernel " +
                      std::string(name_of(id)));
  }
  Meter::Line& line = context.meter[id];
  ++line.calls;
  line.flops += flops;

  std::optional<Workspace> lent;
  if (workspace && entry.workspace_bytes) {
    const std::int64_t need = entry.workspace_bytes(context.device.kernel_context(), arguments);
    lent.emplace(context.scratch, need);
    *workspace = Tensor(lent->block.address, DType::kU8, {need});
  }
  if (!context.measuring()) {
    if (context.meter.timed && context.device.synchronous()) {
      const auto start = std::chrono::steady_clock::now();
      context.stream.launch(entry.run, arguments, bytes);
      line.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    } else {
      context.stream.launch(entry.run, arguments, bytes);
    }
  }
}

}  // namespace internal
}  // namespace primus::turbo
