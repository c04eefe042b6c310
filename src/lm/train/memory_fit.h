// Whether a run fits the memory that is there, and what would make it fit.
//
// What a run needs is measured, not guessed (session.h). The same question is asked of every kind of device:
// on a CPU the device's memory is the host's, on a GPU the two are apart. Pure but for measuring; errors are
// those of the experiment's settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "engine/rank.h"
#include "lm/train/session.h"

namespace primus {

// Bytes.
struct MemoryNeed {
  engine::MemoryPlan device;      // weights, gradients, optimizer states, activations, workspaces
  std::int64_t snapshot = 0;      // host: the copy of a checkpoint while it is written (async_save)
  std::int64_t host_buffers = 0;  // host: batches read ahead, and those of the step that is running
  std::int64_t host() const { return snapshot + host_buffers; }
  std::int64_t total() const { return device.total() + host(); }
};

struct MemorySupply {
  std::int64_t device = 0, host = 0;  // bytes that can be taken now; 0: not known, then everything fits
  bool shared = true;                 // the device's memory is the host's: `device` counts for both
  std::int64_t total = 0;             // installed or allowed, for messages
  std::string limited_by;             // a control group's folder; empty: the machine
  bool chosen = false;                // `device` is what somebody allows (--fit-memory), not what is free
  std::string hardware = {};          // of a plan for this hardware, `device` is what a run gets; else empty
};

// A change of settings, and what the run would need with it.
struct MemoryChange {
  std::vector<std::string> settings;  // "micro_batch_size=1", as on the command line
  std::string price;                  // what it costs: "about a third more time"
  MemoryNeed need;
};

struct MemoryFit {
  MemoryNeed need;
  MemorySupply supply;
  bool fits = true;
  // At most three ways to make it fit, the cheapest first; several settings in one where no single one is
  // enough. Empty: it fits, or nothing here is enough.
  std::vector<MemoryChange> changes;
};

// Host memory that a rank takes besides its need: the program and its libraries, as this process holds them
// now, and the shared memory through which it exchanges with the `on_host` ranks of its host.
std::int64_t program_bytes(const engine::MeshShape& mesh, int world, int on_host);

// What a device with memory of its own holds besides a run's need, about: its driver's context and the
// program's kernels; and what the library of collectives keeps for each group of the mesh. 0: its memory is
// the host's. As seen on H200s with NCCL 2 (docs/performance.md); other devices were not measured.
std::int64_t context_bytes(const Device& device);
std::int64_t group_bytes(const Device& device, const engine::Mesh& mesh);

// The memory of the host, of which a CPU is a part.
MemorySupply host_supply();
// Of `device`, with the host's beside it.
MemorySupply supply_of(const Device& device);

MemoryNeed memory_need(const config::Experiment& experiment, const SessionSettings& settings,
                       const StepMeasurement& measured);
// The bytes that are held against supply.device: all of the need where the memory is shared, else what the
// device holds.
std::int64_t claimed(const MemoryNeed& need, const MemorySupply& supply);
// A little is left for everybody else: a twentieth, at most 256 MiB.
bool fits(const MemoryNeed& need, const MemorySupply& supply);

// `measured` is what measure_session() found for `experiment`, whose model is `model`, on rank `rank` of
// `world`.
MemoryFit fit_memory(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const StepMeasurement& measured,
                     const MemorySupply& supply, int world = 1, int rank = 0);

// For people: "the run needs 309 GiB of memory, and 21.2 GiB of 23.5 GiB are free".
std::string describe_lack(const MemoryFit& fit);
// What to do: the changes with what they need and cost.
std::string describe_changes(const MemoryFit& fit);

}  // namespace primus
