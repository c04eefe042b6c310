// A rank: one device, its place in the mesh, and everything that is its own. Several ranks may live as
// threads of one process; nothing in the engine is global.
//
// A rank begins in measure mode: arenas without memory, in which one step of the very same model, schedule
// and operators runs without kernels and leaves the exact sizes behind. reserve() then takes the memory and
// starts over.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/mesh.h"
#include "engine/stash.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

// Bytes per arena: what measuring a step finds, and what reserve() takes.
struct MemoryPlan {
  std::int64_t persistent = 0;  // weights, gradients, optimizer states, tables
  std::int64_t stash = 0;       // activations and their gradients
  std::int64_t scratch = 0;     // workspaces of single operators

  std::int64_t total() const { return persistent + stash + scratch; }
};

class Rank {
 public:
  // Takes the device, and its place among others; nothing is reserved yet (measure mode). `mesh` is used once
  // memory is reserved; until then one of its shape counts what would be sent.
  explicit Rank(std::unique_ptr<Device> device, Mesh mesh = {});
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Leaves measure mode: takes the planned memory, zeroed. Everything built on the measuring arenas must be
  // gone. Throws Error when the device does not have it.
  void reserve(const MemoryPlan& plan);
  // What has been needed so far.
  MemoryPlan high_water() const;

  Device& device() { return *device_; }
  Stream& compute() { return *compute_; }
  Stream& copies() { return *copies_; }                // for transfers that overlap with compute
  Stream& communication() { return *communication_; }  // for collectives; only in a mesh of several ranks
  // The host waits for kernels and collectives; throws what one of them threw.
  void synchronize();
  Mesh& mesh() { return measuring() ? measured_mesh_ : mesh_; }
  Arena& persistent() { return arenas_->persistent; }
  // A tensor of it, for as long as the rank has these arenas.
  Tensor persistent(DType dtype, const Shape& shape) {
    return {persistent().allocate(shape.elements() * size_of(dtype)).address, dtype, shape};
  }
  Stash& stash() { return arenas_->stash; }
  turbo::Context& context() { return arenas_->context; }
  turbo::Meter& meter() { return meter_; }
  bool measuring() const { return arenas_->persistent.measuring(); }

 private:
  struct Arenas {
    Arenas(Device& device, Stream& stream, turbo::Meter& meter, void* const (&bases)[3],
           const MemoryPlan& plan);
    Arena persistent, stash_arena, scratch;
    Stash stash;
    turbo::Context context;
  };

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> compute_, copies_, communication_;
  // Behind the streams: a communicator goes when they have finished its work.
  Mesh mesh_, measured_mesh_;
  turbo::Meter meter_;
  void* memory_[3] = {};
  std::unique_ptr<Arenas> arenas_;
};

}  // namespace primus::engine
