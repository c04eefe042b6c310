#include "cli/options/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/system/openmp_threads.h"
#include "base/system/thread_pool.h"
#include "device/cpu/cpu_device.h"
#include "turbo/devices/devices.h"

namespace primus::cli {

void check_device_name(const std::string& device) { turbo::known_device(device); }

void DeviceOptions::declare(Arguments& arguments, const char* type, MeasuredTypes types) {
  dtype_ = type;
  Argument& dtype = arguments.option(
      "--dtype", "TYPE", &dtype_,
      types.fp4 ? "type to compute in (fp8: e4m3, with e5m2 for output gradients; fp4: MXFP4)"
                : "type to compute in");
  dtype.choices = {"fp32", "bf16"};
  if (types.fp16)
    dtype.choices.emplace_back("fp16");
  else
    dtype.refused.push_back({"fp16", "only benchmarks of products, attention and collectives support fp16",
                             "use --dtype bf16, which also has 16 bits"});
  if (types.fp8)
    dtype.choices.emplace_back("fp8");
  else
    dtype.refused.push_back({"fp8", "only the products of linear layers support fp8",
                             "use --dtype bf16; 'primus benchmark gemm --dtype fp8' times those products"});
  if (types.fp4)
    dtype.choices.emplace_back("fp4");
  else
    dtype.refused.push_back({"fp4", "only the products of linear layers and experts support fp4",
                             "use --dtype bf16; 'primus benchmark gemm --dtype fp4' times those products"});
  declare_without_type(arguments);
}

void DeviceOptions::declare_without_type(Arguments& arguments) {
  arguments.option("--device", "NAME", &device_,
                   "cpu, cuda, cuda:1, hip ...; auto chooses a GPU if the machine has one");
  arguments.option("--threads", "N", &threads_, "CPU threads; 0: OMP_NUM_THREADS, or every core")
      .between(0, ThreadPool::kMaxThreads);
}

void DeviceOptions::declare_batch_invariant(Arguments& arguments) {
  arguments.flag(
      "--batch-invariant", batch_invariant_,
      "give each token the same bits whatever is computed with it, as training with batch_invariant "
      "does (slower)");
}

std::unique_ptr<Device> DeviceOptions::make(const Console& console) const {
  return turbo::open_device(spec(console));
}

void DeviceOptions::check_words() const { turbo::parse_device(device_); }

DeviceSpec DeviceOptions::spec(const Console& console, int rank, int ranks) const {
  check_words();
  std::int64_t threads = threads_;
  const char* const variable = threads == 0 ? std::getenv("OMP_NUM_THREADS") : nullptr;
  if (variable) {
    const OpenMpThreads said = parse_openmp_threads(variable, "environment");
    if (!said.warning.empty()) console.note("warning: " + said.warning);
    threads = said.count.value_or(0);
  }
  std::vector<std::string> notes;
  DeviceSpec spec = turbo::choose_device(turbo::parse_device(device_, static_cast<int>(threads)), &notes);
  for (const std::string& note : notes) console.note("warning: " + note);
  spec.batch_invariant = batch_invariant_;
  const bool named = device_.find(':') != std::string::npos;
  if (spec.kind == "cpu" && spec.threads == 0 && ranks > 1)
    spec.threads = std::max(cpu::available_cores() / ranks, 1);
  if (spec.kind != "cpu" && !named) spec.ordinal = rank;
  return spec;
}

}  // namespace primus::cli
