#include "turbo/cpu/cpu_kernels.h"

#include "device/cpu/cpu_device.h"
#include "device/measuring_device.h"
#include "turbo/cpu/register.h"

namespace primus::turbo {
namespace {

#define PRIMUS_CPU_OPERATOR(operator_name) register_##operator_name(table);
// clang-format off
KernelTable table_v2() {
  using namespace isa_v2;
  KernelTable table;
#include "turbo/cpu/operators.def"
  return table;
}
KernelTable table_v3() {
  using namespace isa_v3;
  KernelTable table;
#include "turbo/cpu/operators.def"
  return table;
}
KernelTable table_v4() {
  using namespace isa_v4;
  KernelTable table;
#include "turbo/cpu/operators.def"
  return table;
}
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

// These builtins also ask whether the operating system saves the wide registers.
IsaLevel best_isa_level() {
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? IsaLevel::kV4 : v3 ? IsaLevel::kV3 : IsaLevel::kV2;
}

std::vector<IsaLevel> supported_isa_levels() {
  std::vector<IsaLevel> levels{IsaLevel::kV2};
  if (best_isa_level() >= IsaLevel::kV3) levels.push_back(IsaLevel::kV3);
  if (best_isa_level() >= IsaLevel::kV4) levels.push_back(IsaLevel::kV4);
  return levels;
}

const KernelTable& cpu_kernel_table(IsaLevel level) {
  // A table is made only when asked for: registering is code of its instruction set already.
  switch (level) {
    case IsaLevel::kV4: {
      static const KernelTable v4 = table_v4();
      return v4;
    }
    case IsaLevel::kV3: {
      static const KernelTable v3 = table_v3();
      return v3;
    }
    case IsaLevel::kV2:
      break;
  }
  static const KernelTable v2 = table_v2();
  return v2;
}

const DevicePlugin& cpu_plugin() {
  static const DevicePlugin plugin{
      .abi = 0,  // part of the program
      .kind = "cpu",
      .count = [](std::string&) { return 1; },
      .properties = [](int) { return cpu::cpu_properties(); },
      .open = [](const DeviceSpec& spec) { return make_cpu_device(spec.threads); },
      .measuring = [](const DeviceSpec& spec) -> std::unique_ptr<Device> {
        const int threads = spec.threads == 0 ? cpu::available_cores() : spec.threads;
        return std::make_unique<MeasuringDevice>(cpu::cpu_properties(), cpu::describe_cpu(threads),
                                                 cpu_kernel_table(),
                                                 std::make_unique<cpu::CpuContext>(threads));
      }};
  return plugin;
}

std::unique_ptr<Device> make_cpu_device(int threads) {
  return std::make_unique<cpu::CpuDevice>(threads, cpu_kernel_table());
}

}  // namespace primus::turbo
