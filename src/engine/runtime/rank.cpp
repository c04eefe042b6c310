#include "engine/runtime/rank.h"

#include <cassert>

#include "base/error.h"
#include "base/terminal/terminal.h"

namespace primus::engine {

Rank::Arenas::Arenas(Device& device, Stream& stream, turbo::Meter& meter, void* const (&bases)[3],
                     const MemoryPlan& plan)
    : persistent("persistent", bases[0], plan.persistent),
      stash_arena("stash", bases[1], plan.stash),
      scratch("scratch", bases[2], plan.scratch),
      stash(stash_arena),
      context{device, stream, scratch, meter} {}

Rank::Rank(std::unique_ptr<Device> device, Mesh mesh)
    : device_(std::move(device)),
      compute_(device_->create_stream(StreamKind::kCompute)),
      copies_(device_->create_stream(StreamKind::kCopy)),
      communication_(mesh.size() > 1 ? device_->create_stream(StreamKind::kCommunication) : nullptr),
      mesh_(std::move(mesh)),
      measured_mesh_(mesh_.measuring()),
      arenas_(std::make_unique<Arenas>(*device_, *compute_, meter_, memory_, MemoryPlan{})) {}

Rank::~Rank() {
  arenas_.reset();
  communication_.reset();
  copies_.reset();
  compute_.reset();
  // The mesh is destroyed first, because peers may have mapped the memory that is released next.
  mesh_ = Mesh();
  for (void* address : memory_) device_->release(address);
}

void Rank::forget_measurement() {
  assert(measuring());
  arenas_.reset();
  meter_.reset();
  arenas_ = std::make_unique<Arenas>(*device_, *compute_, meter_, memory_, MemoryPlan{});
}

void Rank::reserve(const MemoryPlan& plan) {
  assert(measuring());
  arenas_.reset();
  meter_.reset();
  const std::int64_t sizes[3] = {plan.persistent, plan.stash, plan.scratch};
  try {
    for (int i = 0; i < 3; ++i) memory_[i] = device_->allocate(sizes[i] > 0 ? sizes[i] : 1);
  } catch (const Error& error) {
    const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
    throw Error(error.kind(),
                "out of memory: the run needs " + bytes(plan.persistent + plan.stash + plan.scratch) + " (" +
                    bytes(plan.persistent) + " for weights, gradients and optimizer states, " +
                    bytes(plan.stash) + " for activations, " + bytes(plan.scratch) +
                    " of scratch): " + error.what(),
                error.hint());
  }
  arenas_ = std::make_unique<Arenas>(*device_, *compute_, meter_, memory_, plan);
}

void Rank::synchronize() {
  compute_->synchronize();
  if (communication_) communication_->synchronize();
}

MemoryPlan Rank::high_water() const {
  return {arenas_->persistent.high_water(), arenas_->stash_arena.high_water(), arenas_->scratch.high_water()};
}

}  // namespace primus::engine
