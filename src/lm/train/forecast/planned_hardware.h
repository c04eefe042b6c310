// Plans runs for hardware that may not be in this machine (--hardware): finds the device to measure on, the
// memory that a run would have, and the time of a step according to the hardware's profile
// (config/hardware.h).
//
// Free functions without state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/experiment.h"
#include "engine/parallel/mesh.h"
#include "lm/train/forecast/memory_fit.h"
#include "lm/train/step/session.h"
#include "turbo/devices/devices.h"

namespace primus {

// Returns the device on which the kernels of `e` are measured: the device of the planned hardware, or else
// the device of the experiment. `ranks` ranks share the cores of this host. Appends
// to `notes` why a plug-in is ignored, and whether the ranks have more threads than this host has cores.
turbo::PlannedDevice planning_device(const config::Experiment& e, int ranks = 1,
                                     std::vector<std::string>* notes = nullptr);

// Memory that one rank would have on the planned hardware, in bytes.
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
// Returns the memory that a rank of `e` can use: of the planned hardware if there is any, otherwise of this
// machine's device. `on_host`: as `ranks` of planning_device().
MemorySupply planning_supply(const config::Experiment& e, int world, int on_host);

// Seconds per step, estimated from the hardware's published peaks and from the fraction of a peak that steps
// usually reach.
struct PlannedTime {
  double computing = 0;      // computing time of the stage with the most work, without the pipeline bubble
  double communication = 0;  // communication time of the stage that sends the most data, without overlap
  double quickest = 0;       // time of a step including the bubble, if all communication overlaps with
                             // computation
  double slowest = 0;        // time of a step including the bubble, if no communication overlaps with
                             // computation
};
// `stages`: for each pipeline stage, the measurement of its first rank. `compute`: the type of those matrix
// products that are not FP8. `bubble`: the fraction of time in which stages are idle.
PlannedTime planned_time(const config::Hardware& hardware, const std::vector<StepMeasurement>& stages,
                         const engine::MeshShape& mesh, int world, DType compute, double bubble);

// Returns sentences that say why the hardware may not suit the experiment, such as FP8 on hardware without
// FP8 products.
std::vector<std::string> doubts_about(const config::Hardware& hardware,
                                      const std::vector<StepMeasurement>& stages);

}  // namespace primus
