// Rates and sizes of a hardware product: one small file each, presets/hardware/*.yaml. Preflight judges
// measured rates by it, and a plan for a device that is not here takes its memory and rates from it.
//
//   name: NVIDIA H100 SXM
//   match: [H100 80GB HBM3]            # the device's name holds one of these
//   device: cuda                       # the kind of device: cuda, hip, cpu
//   memory_gib: 79.1                   # as its driver reports it
//   peak_bf16_tflops: 989.4            # published, without sparsity
//   peak_fp8_tflops: 1978.9            # left out: no products in fp8
//   peak_fp32_tflops: 66.9             # left out where it is not published: plans take a sixteenth of bf16's
//   step_share: 0.5                    # of these peaks, what a whole training step reaches
//   fp8_step_share: 0.37               # the same of products in fp8; left out: three quarters of it
//   least_bf16_tflops: 500             # below it, something is wrong
//   peak_memory_gbs: 3350
//   least_memory_gbs: 2200
//   least_all_reduce_gbs: 200          # bus bandwidth between the GPUs of one machine; left out: not asked
//   link_gbs: 450                      # that a GPU sends to the others of its host
//   network_gbs: 50                    # that a GPU sends to other hosts: of usual machines
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
  std::string short_name;  // "h100": what --hardware calls it
  std::string name, source;
  std::string device = "cuda";  // the kind: cuda, hip or cpu
  std::vector<std::string> match;
  double memory_gib = 0;
  double peak_tflops = 0, least_tflops = 0;  // bf16, dense; of a CPU fp32 of one hardware thread
  double peak_fp8_tflops = 0, peak_fp32_tflops = 0;
  double step_share = 0.4;                   // of the peaks, what a whole training step reaches
  double fp8_step_share = 0;                 // the same of products in fp8; 0: three quarters of step_share
  double peak_memory = 0, least_memory = 0;  // GB/s, read and written
  double least_all_reduce = 0;               // GB/s; 0: nothing is asked
  double link = 0, network = 0;              // GB/s that one GPU sends, within its host and to others
  double gpus_per_host = 1;

  double fp8_share_of_step() const { return fp8_step_share > 0 ? fp8_step_share : 0.75 * step_share; }
  std::int64_t memory_bytes() const { return static_cast<std::int64_t>(memory_gib * 1024) << 20; }
  // Whether a plan can be made for it: memory and rates are known.
  bool can_be_planned() const { return memory_gib > 0 && peak_tflops > 0 && peak_memory > 0; }
};

// The files in hardware/ of these folders, the first folder's first. Throws Error(kInvalid) at file:line:col.
std::vector<Hardware> read_hardware(const std::vector<Path>& preset_folders);
// The one that is meant by a device's name: of several, the one whose match is longest.
std::optional<Hardware> find_hardware(const std::vector<Hardware>& table, std::string_view device_name);
// The one that a person names: "mi355x", "MI355X", "amd_mi355x" or another product of `match`; a YAML file is
// read. Throws Error(kInvalid) with the names that there are.
Hardware hardware_named(const std::vector<Hardware>& table, const std::string& name);
// The one whose short name or product is a folder of this path ("examples/.../MI355X/x.yaml").
std::optional<Hardware> hardware_of_path(const std::vector<Hardware>& table, const Path& path);

}  // namespace primus::config
