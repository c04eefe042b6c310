// The options that choose a device, shared by the commands that compute.
#pragma once

#include <memory>

#include "bench/benchmark_entry.h"
#include "cli/command.h"
#include "device/device.h"
#include "device/plugin.h"
#include "tensor/dtype.h"

namespace primus::cli {

// Before a job is started that is to run on `device`: its name, and that this program may have such devices
// (cuda and hip, whose plug-ins the nodes may have, or an installed kind). Throws Error(kInvalid).
void check_device_name(const std::string& device);

class DeviceOptions {
 public:
  // --device, --threads and --dtype, which is `dtype` where nobody says.
  void declare(Arguments& arguments, const char* dtype = "fp32", MeasuredTypes types = {});
  // The same of commands that compute nothing: without --dtype.
  void declare_without_type(Arguments& arguments);
  // Mistakes in the words, whatever devices there are. Throws Error(kInvalid).
  void check_words() const;
  // Threads that nobody chose are OMP_NUM_THREADS, as in training; what is wrong with that is said on the
  // console.
  std::unique_ptr<Device> make(const Console& console) const;
  // What make() opens; of a rank, the `rank`th of `ranks` on this machine: of GPUs the one of its number
  // where none is named, of the CPU its share of the cores where nobody chose threads.
  DeviceSpec spec(const Console& console, int rank = 0, int ranks = 1) const;
  // In fp8 and fp4 operands come in bf16.
  DType compute() const {
    return dtype_ == "fp32" ? DType::kF32 : dtype_ == "fp16" ? DType::kF16 : DType::kBF16;
  }
  bool fp8() const { return dtype_ == "fp8"; }
  bool fp4() const { return dtype_ == "fp4"; }

 private:
  std::string device_ = "auto", dtype_ = "fp32";
  std::int64_t threads_ = 0;
};

}  // namespace primus::cli
