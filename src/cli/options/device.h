// The options that choose a device, shared by commands that compute.
#pragma once

#include <memory>

#include "bench/benchmark_entry.h"
#include "cli/command.h"
#include "device/device.h"
#include "device/plugin.h"
#include "tensor/dtype.h"

namespace primus::cli {

// Checks a device name before a job is started. Throws Error(kInvalid) for a kind of device that is not
// installed here. Always accepts cuda and hip, because the nodes may have these plug-ins.
void check_device_name(const std::string& device);

class DeviceOptions {
 public:
  // Declares --device, --threads and --dtype. `dtype`: default of --dtype.
  void declare(Arguments& arguments, const char* dtype = "fp32", MeasuredTypes types = {});
  // Declares these options without --dtype, for commands that do not compute.
  void declare_without_type(Arguments& arguments);
  // Declares --batch-invariant, for commands that compute a model.
  void declare_batch_invariant(Arguments& arguments);
  bool batch_invariant() const { return batch_invariant_; }
  // Checks the values without looking at devices. Throws Error(kInvalid).
  void check_words() const;
  // Opens the device. Without --threads, OMP_NUM_THREADS applies, as in training; an invalid value is
  // reported on the console.
  std::unique_ptr<Device> make(const Console& console) const;
  // Returns the device that make() opens, for rank `rank` of `ranks` on this machine. If --device has no
  // index, this is the GPU with the rank's number. Without --threads, the rank gets its share of the CPU
  // cores.
  DeviceSpec spec(const Console& console, int rank = 0, int ranks = 1) const;
  // With fp8 and fp4, operands are bf16.
  DType compute() const {
    return dtype_ == "fp32" ? DType::kF32 : dtype_ == "fp16" ? DType::kF16 : DType::kBF16;
  }
  bool fp8() const { return dtype_ == "fp8"; }
  bool fp4() const { return dtype_ == "fp4"; }

 private:
  std::string device_ = "auto", dtype_ = "fp32";
  std::int64_t threads_ = 0;
  bool batch_invariant_ = false;
};

}  // namespace primus::cli
