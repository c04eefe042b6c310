#include "turbo/cpu/cpu_kernels.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/measuring_device.h"
#include "turbo/cpu/register.h"

namespace primus::turbo {
namespace {

// A table is built on first use and not at program start, because registration already runs code of the
// table's instruction set.
#define PRIMUS_CPU_OPERATOR(operator_name) register_##operator_name(table);
// clang-format off
#ifdef PRIMUS_CPU_V2
const KernelTable& table_v2() {
  static const KernelTable kTable = [] {
    using namespace isa_v2;
    KernelTable table;
#include "turbo/cpu/operators.def"
    return table;
  }();
  return kTable;
}
#endif
#ifdef PRIMUS_CPU_V3
const KernelTable& table_v3() {
  static const KernelTable kTable = [] {
    using namespace isa_v3;
    KernelTable table;
#include "turbo/cpu/operators.def"
    return table;
  }();
  return kTable;
}
#endif
#ifdef PRIMUS_CPU_V4
const KernelTable& table_v4() {
  static const KernelTable kTable = [] {
    using namespace isa_v4;
    KernelTable table;
#include "turbo/cpu/operators.def"
    return table;
  }();
  return kTable;
}
#endif

struct BuiltLevel {
  IsaLevel level;
  const KernelTable& (*table)();
};
constexpr BuiltLevel kBuilt[] = {
#ifdef PRIMUS_CPU_V2
    {IsaLevel::kV2, table_v2},
#endif
#ifdef PRIMUS_CPU_V3
    {IsaLevel::kV3, table_v3},
#endif
#ifdef PRIMUS_CPU_V4
    {IsaLevel::kV4, table_v4},
#endif
};
// clang-format on
#undef PRIMUS_CPU_OPERATOR

}  // namespace

std::string_view name_of(IsaLevel level) {
  switch (level) {
    case IsaLevel::kV2:
      return "x86-64-v2";
    case IsaLevel::kV3:
      return "x86-64-v3";
    case IsaLevel::kV4:
      return "x86-64-v4";
  }
  return "?";
}

std::vector<IsaLevel> built_isa_levels() {
  std::vector<IsaLevel> levels;
  for (const BuiltLevel& built : kBuilt) levels.push_back(built.level);
  return levels;
}

std::vector<IsaLevel> supported_isa_levels() {
  std::vector<IsaLevel> levels = built_isa_levels();
  std::erase_if(levels, [](IsaLevel level) { return level > machine_isa_level(); });
  return levels;
}

IsaLevel best_isa_level(std::span<const IsaLevel> built, IsaLevel machine) {
  for (std::size_t i = built.size(); i > 0; --i) {
    if (built[i - 1] <= machine) return built[i - 1];
  }
  std::string held;
  for (const IsaLevel level : built) held += (held.empty() ? "" : ", ") + std::string(name_of(level));
  throw unsupported("this program has CPU kernels for " + held + " only, but this machine's CPU has level " +
                        std::string(name_of(machine)),
                    "build it on this machine, or for all CPUs with -DPRIMUS_CPU_KERNELS=all");
}

IsaLevel best_isa_level() { return best_isa_level(built_isa_levels(), machine_isa_level()); }

const KernelTable& cpu_kernel_table(IsaLevel level) {
  const auto* built = std::ranges::find(kBuilt, level, &BuiltLevel::level);
  PRIMUS_CHECK("CPU kernels", built != std::end(kBuilt));
  return built->table();
}

const DevicePlugin& cpu_plugin() {
  static const DevicePlugin plugin{
      .abi = 0,  // unused, because this plug-in is part of the program
      .kind = "cpu",
      .count = [](std::string&) { return 1; },
      .properties = [](int) { return cpu::cpu_properties(); },
      .open = [](const DeviceSpec& spec) { return make_cpu_device(spec.threads, spec.batch_invariant); },
      .measuring = [](const DeviceSpec& spec) -> std::unique_ptr<Device> {
        const int threads = spec.threads == 0 ? cpu::available_cores() : spec.threads;
        return std::make_unique<MeasuringDevice>(
            cpu::cpu_properties(), cpu::describe_cpu(threads), cpu_kernel_table(),
            std::make_unique<cpu::CpuContext>(threads, spec.batch_invariant));
      }};
  return plugin;
}

std::unique_ptr<Device> make_cpu_device(int threads, bool batch_invariant) {
  return std::make_unique<cpu::CpuDevice>(threads, cpu_kernel_table(), batch_invariant);
}

}  // namespace primus::turbo
