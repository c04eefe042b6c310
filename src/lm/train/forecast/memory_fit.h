// Checks whether a run fits into the available memory, and finds changes that make it fit.
//
// The needed memory is measured, not estimated (session.h). The check is the same for every kind of device: a
// CPU uses the host's memory, and a GPU has its own memory. The check changes nothing. The check throws the
// errors of the experiment's settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/system/thread_pool.h"
#include "config/experiment.h"
#include "engine/runtime/rank.h"
#include "lm/train/step/session.h"

namespace primus {

// Memory that a run needs, in bytes.
struct MemoryNeed {
  engine::MemoryPlan device;  // memory for weights, gradients, optimizer states, activations and workspaces
  std::int64_t snapshot = 0;  // host memory for the copy of a checkpoint while it is written (async_save)
  // Host memory for snapshots (snapshot_interval): two of this rank, and the copy from which one is written.
  // With several hosts, this host also holds two of as many ranks of another host, which are not counted
  // here; a run whose memory file system has no space for them is refused (MemorySnapshots::open).
  std::int64_t memory_snapshots = 0;
  // Host memory for the batches that are read ahead, and for the batches of the current step.
  std::int64_t host_buffers = 0;
  std::int64_t host() const { return snapshot + memory_snapshots + host_buffers; }
  std::int64_t total() const { return device.total() + host(); }
};

struct MemorySupply {
  std::int64_t device = 0, host = 0;  // available bytes; 0: unknown, so that every run fits
  bool shared = true;                 // whether the device uses host memory, so that the limit `device`
                                      // applies to both together
  std::int64_t total = 0;             // number of bytes that are installed or allowed, for messages
  std::string limited_by;             // folder of the control group that limits memory; empty if there is no
                                      // limit
  // true: `device` is a limit that the user set (--fit-memory); false: `device` is the free memory
  bool chosen = false;
  // name of the planned hardware, whose memory for a run is `device`; empty if no hardware is planned
  std::string hardware = {};
};

// A change of settings, and the memory that the run needs after the change.
struct MemoryChange {
  std::vector<std::string> settings;  // settings in command-line form: "micro_batch_size=1"
  std::string price;                  // cost of the change: "about a third more time"
  MemoryNeed need;
};

struct MemoryFit {
  MemoryNeed need;
  MemorySupply supply;
  bool fits = true;
  // At most three changes that make the run fit, the cheapest first. A change combines several settings if no
  // single setting is enough, except a shorter sequence. Empty if the run fits, or if no known change is
  // enough.
  std::vector<MemoryChange> changes;
};

// Returns the host memory that a rank uses in addition to its MemoryNeed. One part is the memory of the
// program and its libraries, as measured in this process. The other part is shared memory for exchanges among
// the `on_host` ranks of this host.
std::int64_t program_bytes(const engine::MeshShape& mesh, int world, int on_host);

// Return the approximate device memory that a run uses in addition to its MemoryNeed. context_bytes(): the
// driver's context with the program's kernels. group_bytes(): the collectives library's buffers for all
// groups of the mesh. Both functions return 0 for devices that use host memory. The sizes were measured on
// H200s with NCCL 2 (docs/performance.md), not on other devices.
std::int64_t context_bytes(const Device& device);
std::int64_t group_bytes(const Device& device, const engine::Mesh& mesh);

// Returns the memory of the host, which is also the memory of the CPU device.
MemorySupply host_supply();
// Returns the memory of `device` and of the host.
MemorySupply supply_of(const Device& device);

MemoryNeed memory_need(const config::Experiment& experiment, const SessionSettings& settings,
                       const StepMeasurement& measured);
// Returns the number of bytes to compare with supply.device: the complete need if host and device share
// memory, else only the need for device memory.
std::int64_t claimed(const MemoryNeed& need, const MemorySupply& supply);
// Returns whether the need fits. Keeps a twentieth of the memory, at most 256 MiB, as a reserve for other
// programs.
bool fits(const MemoryNeed& need, const MemorySupply& supply);

// Returns whether ranks share experts and the experiment does not set moe_expert_capacity_margin, the number
// of rows that a rank keeps. If such a run does not fit, the run keeps fewer rows.
bool may_keep_fewer_rows(const config::TrainerConfig& config, const ModelConfig& model);
// Returns a sentence for the log of a run that keeps fewer rows.
std::string describe_fewer_rows();

// Returns whether ranks share experts.
bool shares_experts(const config::TrainerConfig& config, const ModelConfig& model);
// Returns the largest number of rounds (moe_expert_rounds) that Primus chooses itself in order to save
// memory; 1 if the experiment sets the key or a capacity of experts, or if ranks do not share experts.
std::int64_t most_expert_rounds(const config::TrainerConfig& config, const ModelConfig& model);
// Returns the smallest power of two above `known` with which `lacks` returns false, up to `most`, which is
// most_expert_rounds(); `known`, which lacks memory, if there is none. `lacks(rounds)`: measures the run, and
// returns whether memory is too small.
std::int64_t expert_rounds_that_fit(std::int64_t known, std::int64_t most,
                                    FunctionRef<bool(std::int64_t rounds)> lacks);
// Measures rank `rank` of the `world` ranks of a planned experiment, and returns the number of rounds as
// above.
std::int64_t expert_rounds_that_fit(std::int64_t known, std::int64_t most,
                                    const config::Experiment& experiment, const ModelConfig& model,
                                    const FamilyRegistry& families, const MemorySupply& supply, int world,
                                    int rank);
// Returns a sentence for the log of a run that sends tokens in several rounds.
std::string describe_expert_rounds(std::int64_t rounds);

// Compares need and supply, and searches for changes. `measured` is the result of measure_session() for
// `experiment` and its `model`, on rank `rank` of `world` ranks.
MemoryFit fit_memory(const config::Experiment& experiment, const ModelConfig& model,
                     const FamilyRegistry& families, const StepMeasurement& measured,
                     const MemorySupply& supply, int world = 1, int rank = 0);

// Returns a sentence for the user: "the run needs 309 GiB of memory, and 21.2 GiB of 23.5 GiB are free".
std::string describe_lack(const MemoryFit& fit);
// Lists the changes with their memory need and cost.
std::string describe_changes(const MemoryFit& fit);

}  // namespace primus
