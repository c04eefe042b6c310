#include "cli/options/device.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/openmp_threads.h"
#include "base/thread_pool.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::cli {

void DeviceOptions::declare(Arguments& arguments) {
  arguments.option("--dtype", "TYPE", &dtype_, "type to compute in").choices = {"fp32", "bf16"};
  arguments.option("--device", "NAME", &device_, "device to compute on").choices = {"cpu"};
  arguments.option("--threads", "N", &threads_, "CPU threads; 0 takes OMP_NUM_THREADS, or every core");
}

std::unique_ptr<Device> DeviceOptions::make(const Console& console) const {
  if (threads_ < 0 || threads_ > ThreadPool::kMaxThreads) {
    throw invalid(fmt::format("--threads must be from 0 to {}, not {}", ThreadPool::kMaxThreads, threads_));
  }
  std::int64_t threads = threads_;
  const char* const variable = threads == 0 ? std::getenv("OMP_NUM_THREADS") : nullptr;
  if (variable) {
    const OpenMpThreads said = parse_openmp_threads(variable, "environment");
    if (!said.warning.empty()) console.note("warning: " + said.warning);
    threads = said.count.value_or(0);
  }
  return turbo::make_cpu_device(static_cast<int>(threads));
}

}  // namespace primus::cli
