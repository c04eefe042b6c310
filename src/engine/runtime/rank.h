// A rank: one device, its place in the mesh, and all its state. Several ranks may run as threads of one
// process, because the engine has no global state.
//
// A rank begins in measure mode: its arenas only count bytes. One step of the real model, schedule and
// operators runs in this mode without kernels, and gives the exact sizes. reserve() then allocates memory of
// these sizes, and the rank starts again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/parallel/mesh.h"
#include "engine/runtime/stash.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include "turbo/context.h"

namespace primus::engine {

// Bytes per arena: measured by a step, and allocated by reserve().
struct MemoryPlan {
  std::int64_t persistent = 0;  // weights, gradients, optimizer states, tables
  std::int64_t stash = 0;       // activations and their gradients
  std::int64_t scratch = 0;     // workspaces of single operators

  std::int64_t total() const { return persistent + stash + scratch; }
};

class Rank {
 public:
  // Owns the device and starts in measure mode, without memory. `mesh` is used after memory is reserved.
  // Before that, a mesh of the same shape counts the bytes that would be sent.
  explicit Rank(std::unique_ptr<Device> device, Mesh mesh = {});
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Leaves measure mode: allocates the planned memory, zeroed. Objects that use the measuring arenas must be
  // destroyed before this call. Throws Error if the device has too little memory.
  void reserve(const MemoryPlan& plan);
  // In measure mode: discards all allocations, so that another session can be measured. Objects that use the
  // measuring arenas must be destroyed before this call.
  void forget_measurement();
  // Returns the maximum memory that was in use up to now.
  MemoryPlan high_water() const;

  Device& device() { return *device_; }
  Stream& compute() { return *compute_; }
  Stream& copies() { return *copies_; }                // for transfers that overlap with compute
  Stream& communication() { return *communication_; }  // for collectives; only in a mesh of several ranks
  // Blocks the host until kernels and collectives are done; rethrows their errors.
  void synchronize();
  Mesh& mesh() { return measuring() ? measured_mesh_ : mesh_; }
  Arena& persistent() { return arenas_->persistent; }
  // Allocates a tensor in persistent(). It is valid until reserve() replaces the arenas, or ~Rank().
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
  // Declared after the streams, so communicators are destroyed before the streams.
  Mesh mesh_, measured_mesh_;
  turbo::Meter meter_;
  void* memory_[3] = {};
  std::unique_ptr<Arenas> arenas_;
};

}  // namespace primus::engine
