// Plans runs for hardware that may be absent (--hardware). Finds the device to measure on, the memory
// available to a run, and the time of a step according to the hardware's profile (config/hardware.h).
//
// Free functions without state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "engine/mesh.h"
#include "lm/train/memory_fit.h"
#include "lm/train/session.h"
#include "turbo/devices/devices.h"

namespace primus {

// Returns the device that the kernels of `e` are measured on: the device of the planned hardware, else the
// experiment's own device. `ranks` share this host's cores. Appends to `notes` why a plug-in is ignored.
turbo::PlannedDevice planning_device(const config::Experiment& e, int ranks = 1,
                                     std::vector<std::string>* notes = nullptr);

// Memory of the planned hardware for one rank, in bytes.
struct PlannedMemory {
  std::int64_t installed = 0;
  std::int64_t context = 0, collectives = 0;  // results of context_bytes() and group_bytes()
  std::int64_t libraries = 0;  // workspaces of the vendor's libraries, if no plug-in reports them
  std::int64_t reserved() const { return context + collectives + libraries; }
};
// `by_cpu_kernels`: see turbo::PlannedDevice.
PlannedMemory planned_memory(const config::Hardware& hardware, const Device& device, const engine::Mesh& mesh,
                             bool by_cpu_kernels);
MemorySupply supply_of(const config::Hardware& hardware, const PlannedMemory& memory);

// Seconds per step, estimated from published peaks and from the fraction of a peak that steps usually reach.
struct PlannedTime {
  double computing = 0;      // seconds of the stage with the most work, without the pipeline bubble
  double communication = 0;  // seconds of the stage that sends the most data, without overlap
  double quickest = 0;       // seconds including the bubble, if all communication overlaps
  double slowest = 0;        // seconds including the bubble, if no communication overlaps
};
// `stages`: measurements of the first rank of each pipeline stage. `compute`: the type of matrix products
// that are not FP8. `bubble`: the fraction of time in which stages are idle.
PlannedTime planned_time(const config::Hardware& hardware, const std::vector<StepMeasurement>& stages,
                         const engine::MeshShape& mesh, int world, DType compute, double bubble);

// Returns sentences that say why the hardware may not suit the plan, such as FP8 on hardware without FP8
// products.
std::vector<std::string> doubts_about(const config::Hardware& hardware,
                                      const std::vector<StepMeasurement>& stages);

}  // namespace primus
