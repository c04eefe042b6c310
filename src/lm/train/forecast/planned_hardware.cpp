#include "lm/train/forecast/planned_hardware.h"

#include <fmt/format.h>

#include <algorithm>

#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Fraction of the links' bandwidth that collectives usually reach.
constexpr double kLinkShare = 0.7;
// Fraction of the memory bandwidth that a step's operators reach on average.
constexpr double kMemoryShare = 0.7;

// Returns the distance between consecutive ranks of a group, in ranks of the job.
int stride_of(const std::string& group, int ranks, const engine::MeshShape& mesh, int world) {
  const int stage_ranks = mesh.stage_ranks(world);
  const std::string base = group.substr(0, group.find('.'));
  int stride = 1;
  int all = ranks;  // size of the group that is split into shards and replicas
  if (base == "context" || base == "data") stride = mesh.tensor;
  if (base == "expert_data") stride = mesh.expert * mesh.expert_tensor;
  if (base == "expert_places") stride = mesh.host;
  if (base == "pipeline") stride = stage_ranks;
  if (base == "ends") stride = stage_ranks * std::max(mesh.pipeline - 1, 1);
  if (group.ends_with(".replicas")) {
    if (base == "data") all = mesh.context * mesh.data(world);
    if (base == "tokens" || base == "expert_tokens") all = stage_ranks;
    if (base == "expert_data") all = stage_ranks / stride;
    stride *= std::max(all / mesh.copies, 1);
  }
  return stride;
}

// Returns the seconds of a rank's traffic in a group. Rings and trees use the network cards of all
// participating GPUs of a host; all-to-all sends each GPU's data through its own card.
double seconds_of(const config::Hardware& hardware, const GroupTraffic& group, const engine::MeshShape& mesh,
                  int world) {
  const int gpus = std::max(static_cast<int>(hardware.gpus_per_host), 1);
  const int stride = stride_of(group.group, group.ranks, mesh, world);
  const int on_host = std::clamp(gpus / stride, 1, group.ranks);
  const double link = 1e9 * kLinkShare * hardware.link;
  const double network = 1e9 * kLinkShare * (hardware.network > 0 ? hardware.network : hardware.link);
  if (link <= 0) return 0;
  double seconds = 0;
  for (std::size_t i = 0; i < group.traffic.lines.size(); ++i) {
    const double bytes = group.traffic.lines[i].bytes;
    const auto kind = static_cast<comm::Kind>(i);
    if (on_host == group.ranks) {
      seconds += bytes / link;
    } else if (kind == comm::Kind::kAllToAll || kind == comm::Kind::kExchange) {
      const double leaves =
          kind == comm::Kind::kAllToAll ? 1 - static_cast<double>(on_host) / group.ranks : 1;
      seconds += bytes * leaves / network + bytes * (1 - leaves) / link;
    } else {
      seconds += bytes / std::min(link, on_host * network);
    }
  }
  return seconds;
}

double computing_seconds(const config::Hardware& hardware, const StepMeasurement& stage, DType compute) {
  const double fp8 = stage.kernels.lines[static_cast<std::size_t>(turbo::KernelId::kFp8Gemm)].flops;
  const double others = stage.kernels.total_flops() - fp8;
  const double fp32 = hardware.peak_fp32_tflops > 0 ? hardware.peak_fp32_tflops : hardware.peak_tflops / 16;
  const double peak = 1e12 * (compute == DType::kF32 ? fp32 : hardware.peak_tflops);
  const double rate = peak * hardware.step_share;
  const double fp8_rate =
      hardware.peak_fp8_tflops > 0 ? 1e12 * hardware.peak_fp8_tflops * hardware.fp8_share_of_step() : rate;
  // Counts one write and one read of activations, weights and optimizer states.
  const auto bytes = static_cast<double>(2 * stage.memory.persistent + 2 * stage.memory.stash);
  return std::max(others / rate + fp8 / fp8_rate, bytes / (1e9 * kMemoryShare * hardware.peak_memory));
}

bool has_fp8(const StepMeasurement& stage) {
  return stage.kernels.lines[static_cast<std::size_t>(turbo::KernelId::kFp8Gemm)].flops > 0;
}

}  // namespace

turbo::PlannedDevice planning_device(const config::Experiment& e, int ranks,
                                     std::vector<std::string>* notes) {
  DeviceSpec spec = device_spec_of(e, ranks);
  if (!e.hardware) {
    spec = turbo::choose_device(spec, notes);
    if (std::string excess = excess_of_threads(e, spec, ranks); notes && !excess.empty())
      notes->push_back(std::move(excess));
    at_key(e, "batch_invariant", [&] { turbo::check_batch_invariant(spec); });
    return {.device = turbo::measuring_device(spec)};
  }
  const DeviceProperties properties{.kind = e.hardware->device,
                                    .ordinal = 0,
                                    .name = e.hardware->name,
                                    .memory = e.hardware->memory_bytes(),
                                    .host_memory = false,
                                    .graphs = e.hardware->device != "cpu"};
  spec.kind = properties.kind;
  at_key(e, "batch_invariant", [&] { turbo::check_batch_invariant(spec); });
  return turbo::planned_device(properties, spec);
}

PlannedMemory planned_memory(const config::Hardware& hardware, const Device& device, const engine::Mesh& mesh,
                             bool by_cpu_kernels) {
  // Workspaces of cuDNN's attention stay within this limit if possible. AMD GPUs use this program's own
  // attention, whose workspaces are measured (docs/parallelism.md).
  constexpr std::int64_t kCudnn = std::int64_t{2} << 30, kOthers = std::int64_t{256} << 20;
  return {.installed = hardware.memory_bytes(),
          .context = context_bytes(device),
          .collectives = group_bytes(device, mesh),
          .libraries = !by_cpu_kernels             ? 0
                       : hardware.device == "cuda" ? kCudnn
                                                   : kOthers};
}

MemorySupply supply_of(const config::Hardware& hardware, const PlannedMemory& memory) {
  return {.device = std::max<std::int64_t>(memory.installed - memory.reserved(), 1),
          .host = 0,
          .shared = false,
          .total = memory.installed,
          .hardware = hardware.name};
}

MemorySupply planning_supply(const config::Experiment& e, int world, int on_host) {
  const turbo::PlannedDevice planned = planning_device(e, on_host);
  if (!e.hardware) return supply_of(*planned.device);
  return supply_of(*e.hardware, planned_memory(*e.hardware, *planned.device, measuring_mesh(e, world, 0),
                                               planned.by_cpu_kernels));
}

PlannedTime planned_time(const config::Hardware& hardware, const std::vector<StepMeasurement>& stages,
                         const engine::MeshShape& mesh, int world, DType compute, double bubble) {
  PlannedTime time;
  for (const StepMeasurement& stage : stages) {
    time.computing = std::max(time.computing, computing_seconds(hardware, stage, compute));
    double sending = 0;
    for (const GroupTraffic& group : stage.communication) sending += seconds_of(hardware, group, mesh, world);
    time.communication = std::max(time.communication, sending);
  }
  time.quickest = std::max(time.computing / (1 - bubble), time.communication);
  time.slowest = time.computing / (1 - bubble) + time.communication;
  return time;
}

std::vector<std::string> doubts_about(const config::Hardware& hardware,
                                      const std::vector<StepMeasurement>& stages) {
  std::vector<std::string> doubts;
  const bool fp8 = std::ranges::any_of(stages, has_fp8);
  if (fp8 && hardware.peak_fp8_tflops <= 0) {
    doubts.push_back(fmt::format(
        "the {} has no fp8 products: the run would be refused, and its time is estimated for bf16",
        hardware.name));
  } else if (fp8 && hardware.device == "hip") {
    doubts.emplace_back(
        "fp8 products were compiled for AMD GPUs, but never executed: hipBLASLt computes them on gfx942 and "
        "gfx950, and a run is "
        "refused on other AMD GPUs");
  }
  return doubts;
}

}  // namespace primus
