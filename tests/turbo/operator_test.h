// Common code of operator tests: a device with stream, scratch arena and context; copies between tensors and
// host vectors of doubles; random inputs; error measures; gradients by finite differences.
//
//   for (const DeviceUnderTest& spec : devices_under_test()) {
//     OperatorBench bench(spec);
//     Tensor x = bench.upload(values, DType::kBF16, {rows, cols});
//     bench.run(Cast{.x = x, .out = y});
//     EXPECT_LE(normalised_error(bench.download(y), expected), tolerance);
//   }
//
// References compute in double from the values that the device stores, so pass inputs through rounded()
// first.
#pragma once

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/random/random.h"
#include "device/cpu/cpu_device.h"
#include "device/forwarding_device.h"
#include "device/guard_device.h"
#include "device/plugin.h"
#include "tensor/arena.h"
#include "tensor/bfloat16.h"
#include "tensor/float16.h"
#include "turbo/context.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/gpu/emulated.h"

namespace primus::turbo::test {

using Values = std::vector<double>;

// ---- Devices ------------------------------------------------------------------------------------

struct DeviceUnderTest {
  IsaLevel level = best_isa_level();
  int threads = 2;
  // True for the guard device: only kernels and copies can access the device's memory, and the device's
  // streams are asynchronous.
  bool guarded = false;
  int emulated_warp = 0;         // > 0: GPU kernels in the emulator, with warps of 32 or 64 lanes
  std::string plugin;            // the plug-in of a GPU; empty: not a GPU
  bool batch_invariant = false;  // as in DeviceSpec

  std::string emulated_name() const { return "emulated GPU, warps of " + std::to_string(emulated_warp); }
  std::string name() const {
    if (!plugin.empty()) return "GPU by " + plugin;
    const std::string kernels = emulated_warp > 0 ? emulated_name() : std::string(turbo::name_of(level));
    return kernels + ", " + std::to_string(threads) + " threads" + (guarded ? ", guarded" : "");
  }
};
// The emulator runs on a CPU device. The emulator has its own description, so that errors do not report a
// missing GPU kernel as missing on the CPU.
class EmulatedDevice final : public primus::test::ForwardingDevice {
 public:
  EmulatedDevice(std::unique_ptr<Device> cpu, std::string description)
      : ForwardingDevice(std::move(cpu)), description_(std::move(description)) {}
  std::string description() const override { return description_; }

 private:
  std::string description_;
};

inline void PrintTo(const DeviceUnderTest& device, std::ostream* out) { *out << device.name(); }

// Returns a CPU device for each instruction set of this machine, the guard device with the best instruction
// set, and emulated GPUs. With PRIMUS_TEST_GPU=FILE, returns only the first GPU of this plug-in
// (scripts/gpu_check.sh). PRIMUS_TEST_GPU_FAST=1 also allows kernels whose last bits vary, and
// PRIMUS_TEST_GPU_OWN=1 disables the vendor's library for attention.
inline std::vector<DeviceUnderTest> devices_under_test() {
  std::vector<DeviceUnderTest> devices;
  if (const char* plugin = std::getenv("PRIMUS_TEST_GPU")) {
    devices.push_back({.plugin = plugin});
    return devices;
  }
  for (const IsaLevel level : supported_isa_levels()) devices.push_back({level, 2, false});
  devices.push_back({best_isa_level(), 2, true});
  devices.push_back({.guarded = true, .emulated_warp = 32});
  devices.push_back({.emulated_warp = 64});
  return devices;
}

// Returns batch-invariant devices with the kernels of GPUs: the GPU under test, or an emulated GPU.
inline std::vector<DeviceUnderTest> batch_invariant_gpus() {
  std::vector<DeviceUnderTest> devices;
  for (DeviceUnderTest device : devices_under_test()) {
    device.batch_invariant = true;
    if (!device.plugin.empty() || device.emulated_warp == 32) devices.push_back(device);
  }
  return devices;
}

// ---- Values -------------------------------------------------------------------------------------

// Returns standard normal numbers times `scale`. Equal seeds give equal numbers.
inline Values random_values(std::int64_t n, std::uint64_t seed, double scale = 1.0) {
  std::vector<float> draws(static_cast<std::size_t>(n));
  fill_normal(RandomStream(seed, RandomPurpose::kTest), 0, draws);
  Values values(draws.begin(), draws.end());
  for (double& value : values) value *= scale;
  return values;
}

// Returns `value`, rounded to the type.
inline double rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return value;
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kBF16:
      return static_cast<float>(BFloat16(static_cast<float>(value)));
    case DType::kF16:
      return static_cast<float>(Float16(static_cast<float>(value)));
    default:
      return std::round(value);
  }
}
inline Values rounded(Values values, DType dtype) {
  for (double& value : values) value = rounded(value, dtype);
  return values;
}

// Returns the largest relative error of rounding to this type: half a unit in the last place.
inline double rounding_error(DType dtype) {
  return dtype == DType::kBF16 ? 0x1p-8 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-24;
}

// Returns max |actual - expected| / max |expected|. The error is relative to the largest element, because
// elements that cancel to nearly zero are only as accurate as the terms of their sum. The result is infinite
// if sizes differ, or if an element is NaN or infinite and does not equal the expected element. If all
// elements of `expected` are zero, the error is absolute.
inline double normalised_error(const Values& actual, const Values& expected) {
  if (actual.size() != expected.size()) return INFINITY;
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isfinite(actual[i]) && std::isfinite(expected[i])) {
      error = std::max(error, std::abs(actual[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    } else if (std::isnan(actual[i]) != std::isnan(expected[i]) ||
               (!std::isnan(actual[i]) && actual[i] != expected[i])) {
      return INFINITY;
    }
  }
  return largest > 0 ? error / largest : error;
}

// Computes d loss / d inputs by central differences of a reference in double. With steps of 1e-5, the result
// has about ten correct digits if the function is smooth and its values are about 1.
inline Values numeric_gradient(const std::function<double(const Values&)>& loss, Values inputs) {
  Values gradient(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const double centre = inputs[i], step = 1e-5 * std::max(1.0, std::abs(centre));
    inputs[i] = centre + step;
    const double above = loss(inputs);
    inputs[i] = centre - step;
    const double below = loss(inputs);
    inputs[i] = centre;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

// Returns the sum of a[i] * b[i]. With a random b, the sum is a scalar loss whose gradient with respect to a
// is b.
inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// ---- The bench ----------------------------------------------------------------------------------

class OperatorBench {
 public:
  static constexpr std::int64_t kScratchBytes = std::int64_t{64} << 20;

  explicit OperatorBench(const DeviceUnderTest& spec = {})
      : device_(make_device(spec)),
        stream_(device_->create_stream(StreamKind::kCompute)),
        scratch_("scratch", device_->allocate(kScratchBytes), kScratchBytes),
        context_{*device_, *stream_, scratch_, meter_} {}

  static std::unique_ptr<Device> make_device(const DeviceUnderTest& spec) {
    if (!spec.plugin.empty()) return make_gpu(spec.plugin, spec.batch_invariant);
    if (spec.emulated_warp > 0)
      return std::make_unique<EmulatedDevice>(make_cpu(spec, emulated_kernel_table(spec.emulated_warp)),
                                              spec.emulated_name());
    return make_cpu(spec, cpu_kernel_table(spec.level));
  }

  Device& device() { return *device_; }
  Context& context() { return context_; }
  Meter& meter() { return meter_; }

  // Returns a new tensor, filled with bytes that are NaN in every floating-point type. So a test detects
  // elements that a kernel does not write.
  Tensor empty(DType dtype, Shape shape) {
    Tensor tensor = zeros(dtype, shape);
    const std::vector<unsigned char> poison(static_cast<std::size_t>(tensor.bytes()), 0xFF);
    stream_->copy_to_device(tensor.data, poison.data(), tensor.bytes());
    stream_->synchronize();
    return tensor;
  }

  Tensor zeros(DType dtype, Shape shape) {
    Tensor tensor(nullptr, dtype, shape);
    tensor.data = device_->allocate(std::max<std::int64_t>(tensor.bytes(), 1));
    return tensor;
  }

  Tensor upload(const Values& values, DType dtype, Shape shape) {
    Tensor tensor = zeros(dtype, shape);
    write(tensor, values);
    return tensor;
  }

  void write(const Tensor& tensor, const Values& values) {
    ASSERT_EQ(static_cast<std::int64_t>(values.size()), tensor.elements());
    switch (tensor.dtype) {
      case DType::kF32:
        return write_as<float>(tensor, values);
      case DType::kBF16:
        return write_as<BFloat16>(tensor, values);
      case DType::kF16:
        return write_as<Float16>(tensor, values);
      case DType::kF64:
        return write_as<double>(tensor, values);
      case DType::kI32:
        return write_as<std::int32_t>(tensor, values);
      default:
        FAIL() << "type not supported by the test bench";
    }
  }

  Values download(const Tensor& tensor) {
    switch (tensor.dtype) {
      case DType::kF32:
        return read_as<float>(tensor);
      case DType::kBF16:
        return read_as<BFloat16>(tensor);
      case DType::kF16:
        return read_as<Float16>(tensor);
      case DType::kF64:
        return read_as<double>(tensor);
      case DType::kI32:
        return read_as<std::int32_t>(tensor);
      default:
        ADD_FAILURE() << "type not supported by the test bench";
        return {};
    }
  }

  // Writes raw bytes.
  void write_bytes(const Tensor& tensor, const void* bytes) {
    stream_->copy_to_device(tensor.data, bytes, tensor.bytes());
    stream_->synchronize();
  }
  // Returns the raw bytes, for tests of bit-identity.
  std::vector<unsigned char> bytes(const Tensor& tensor) {
    std::vector<unsigned char> raw(static_cast<std::size_t>(tensor.bytes()));
    stream_->copy_to_host(raw.data(), tensor.data, tensor.bytes());
    stream_->synchronize();
    return raw;
  }

  // Runs the operator and waits for it.
  template <class Arguments>
  void run(const Arguments& arguments) {
    launch(context_, arguments);
    stream_->synchronize();
  }

 private:
  static std::unique_ptr<Device> make_gpu(const std::string& plugin, bool batch_invariant) {
    void* library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<DevicePluginEntry>(dlsym(library, kDevicePluginEntry));
    if (!entry) throw std::runtime_error(plugin + " is not a device plug-in");
    return entry()->open({.kind = entry()->kind,
                          .deterministic = std::getenv("PRIMUS_TEST_GPU_FAST") == nullptr,
                          .batch_invariant = batch_invariant,
                          .attention_library = std::getenv("PRIMUS_TEST_GPU_OWN") == nullptr});
  }

  static std::unique_ptr<Device> make_cpu(const DeviceUnderTest& spec, const KernelTable& kernels) {
    if (spec.guarded && !spec.batch_invariant)
      return std::make_unique<primus::test::GuardDevice>(spec.threads, kernels);
    return std::make_unique<cpu::CpuDevice>(spec.threads, kernels, spec.batch_invariant);
  }

  template <class T>
  void write_as(const Tensor& tensor, const Values& values) {
    std::vector<T> host(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
        host[i] = T(static_cast<float>(values[i]));
      } else {
        host[i] = static_cast<T>(values[i]);
      }
    }
    stream_->copy_to_device(tensor.data, host.data(), tensor.bytes());
    stream_->synchronize();
  }

  template <class T>
  Values read_as(const Tensor& tensor) {
    std::vector<T> host(static_cast<std::size_t>(tensor.elements()));
    stream_->copy_to_host(host.data(), tensor.data, tensor.bytes());
    stream_->synchronize();
    Values values(host.size());
    for (std::size_t i = 0; i < host.size(); ++i) {
      if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
        values[i] = static_cast<float>(host[i]);
      } else {
        values[i] = static_cast<double>(host[i]);
      }
    }
    return values;
  }

  std::unique_ptr<Device> device_;  // owns all allocated memory
  std::unique_ptr<Stream> stream_;
  Arena scratch_;
  Meter meter_;
  Context context_;
};

}  // namespace primus::turbo::test
