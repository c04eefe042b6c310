#include "cli/device.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/thread_pool.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::cli {

void DeviceOptions::declare(Arguments& arguments) {
  arguments.option("--dtype", "TYPE", &dtype_, "type to compute in").choices = {"fp32", "bf16"};
  arguments.option("--device", "NAME", &device_, "device to compute on").choices = {"cpu"};
  arguments.option("--threads", "N", &threads_, "CPU threads; 0 takes every core");
}

std::unique_ptr<Device> DeviceOptions::make() const {
  if (threads_ < 0 || threads_ > ThreadPool::kMaxThreads) {
    throw invalid(fmt::format("--threads must be from 0 to {}, not {}", ThreadPool::kMaxThreads, threads_));
  }
  return turbo::make_cpu_device(static_cast<int>(threads_));
}

}  // namespace primus::cli
