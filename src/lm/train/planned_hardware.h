// A plan for hardware that need not be here (--hardware): the device that is measured on, the memory that a
// run gets of it, and how long a step takes there by its profile (config/hardware.h).
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

// The device that the kernels of `e` are measured on: of the hardware that the plan is for, else the
// experiment's own. `ranks` share this host's cores. Appends to `notes` why a plug-in is passed over.
turbo::PlannedDevice planning_device(const config::Experiment& e, int ranks = 1,
                                     std::vector<std::string>* notes = nullptr);

// Memory of the planned hardware for one rank, in bytes.
struct PlannedMemory {
  std::int64_t installed = 0;
  std::int64_t context = 0, collectives = 0;  // context_bytes() and group_bytes()
  std::int64_t libraries = 0;  // workspaces of the vendor's libraries, where no plug-in can tell them
  std::int64_t reserved() const { return context + collectives + libraries; }
};
// `by_cpu_kernels`: as of the planned device.
PlannedMemory planned_memory(const config::Hardware& hardware, const Device& device, const engine::Mesh& mesh,
                             bool by_cpu_kernels);
MemorySupply supply_of(const config::Hardware& hardware, const PlannedMemory& memory);

// Seconds of a step, estimated from published peaks and the share of them that steps usually reach.
struct PlannedTime {
  double computing = 0;      // of the stage with the most work, without the pipeline's bubble
  double communication = 0;  // of the stage that sends most, if nothing of it is hidden
  double quickest = 0;       // with the bubble; all communication is hidden behind computing
  double slowest = 0;        // none of it is
};
// `stages`: what the first rank of each pipeline stage does in a step. `compute`: the type of products that
// are not in fp8. `bubble`: the share of time in which stages are idle.
PlannedTime planned_time(const config::Hardware& hardware, const std::vector<StepMeasurement>& stages,
                         const engine::MeshShape& mesh, int world, DType compute, double bubble);

// Objections of the profile to the plan, as sentences: fp8 without fp8 products, and the like.
std::vector<std::string> doubts_about(const config::Hardware& hardware,
                                      const std::vector<StepMeasurement>& stages);

}  // namespace primus
