// Rates and sizes of a hardware product, one file each in presets/hardware/*.yaml. Preflight compares
// measured rates with the rates of the product. A plan for an absent device uses the memory and rates of the
// product.
//
//   name: NVIDIA H100 SXM
//   match: [H100 80GB HBM3]            # the device's name contains one of these
//   device: cuda                       # the kind of device: cuda, hip, cpu
//   memory_gib: 79.1                   # as its driver reports it
//   peak_bf16_tflops: 989.4            # published, without sparsity
//   peak_fp8_tflops: 1978.9            # left out: no fp8 matrix products
//   peak_fp32_tflops: 66.9             # left out: unpublished; plans use a sixteenth of bf16's
//   step_share: 0.5                    # fraction of these peaks that a training step reaches
//   fp8_step_share: 0.37               # same with fp8 matrix products; left out: 3/4 of step_share
//   min_bf16_tflops: 500             # lower measured rates indicate a fault
//   peak_memory_gbs: 3350
//   min_memory_gbs: 2200
//   min_all_reduce_gbs: 200          # bus bandwidth between the GPUs of one host; left out: not checked
//   link_gbs: 450                      # rate at which a GPU sends to others on its host
//   network_gbs: 50                    # rate at which a GPU sends to other hosts, on typical machines
//   gpus_per_host: 8
//   source: where the numbers come from
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus::config {

struct Hardware {
  std::string file;        // "presets/hardware/nvidia_h100.yaml", for messages
  std::string short_name;  // the product's name for --hardware: "h100"
  std::string name, source;
  std::string device = "cuda";  // the kind of device: cuda, hip or cpu
  std::vector<std::string> match;
  double memory_gib = 0;
  double peak_tflops = 0, min_tflops = 0;  // rates of dense bf16; CPUs: rates of fp32 per hardware thread
  double peak_fp8_tflops = 0, peak_fp32_tflops = 0;
  double step_share = 0.4;    // fraction of the peaks that a training step reaches
  double fp8_step_share = 0;  // fraction with fp8 matrix products; 0: three quarters of step_share
  double peak_memory = 0, min_memory = 0;  // GB/s, reads plus writes
  double min_all_reduce = 0;               // GB/s; 0: not checked
  double link = 0, network = 0;            // GB/s that one GPU sends within its host and to other hosts
  double gpus_per_host = 1;

  double fp8_share_of_step() const { return fp8_step_share > 0 ? fp8_step_share : 0.75 * step_share; }
  std::int64_t memory_bytes() const { return static_cast<std::int64_t>(memory_gib * 1024) << 20; }
  // Returns whether memory and rates are known, so that a plan is possible.
  bool can_be_planned() const { return memory_gib > 0 && peak_tflops > 0 && peak_memory > 0; }
};

// Reads the files in hardware/ of these folders, in the folders' order. Throws Error(kInvalid) at
// file:line:col.
std::vector<Hardware> read_hardware(const std::vector<Path>& preset_folders);
// Finds the entry that matches a device's name. The longest match counts.
std::optional<Hardware> find_hardware(const std::vector<Hardware>& table, std::string_view device_name);
// Finds the entry that a user names ("mi355x", "MI355X", "amd_mi355x" or another product in `match`), or
// reads a YAML file. For an unknown name, throws Error(kInvalid) that lists the known names.
Hardware hardware_named(const std::vector<Hardware>& table, const std::string& name);
// Finds the entry whose short name or product is a folder of this path ("examples/.../MI355X/x.yaml").
std::optional<Hardware> hardware_of_path(const std::vector<Hardware>& table, const Path& path);

}  // namespace primus::config
