// What a product of hardware should reach: a table of one small file for each, presets/hardware/*.yaml.
//
//   name: NVIDIA H100 SXM
//   match: [H100 80GB HBM3]            # the device's name holds one of these
//   peak_bf16_tflops: 989.4            # published
//   least_bf16_tflops: 500             # below it, something is wrong
//   peak_memory_gbs: 3350
//   least_memory_gbs: 2200
//   least_all_reduce_gbs: 200          # bus bandwidth between the GPUs of one machine; left out: not asked
//   memory_gib: 80
//   source: where the numbers come from
//
// Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file.h"

namespace primus::preflight {

struct Hardware {
  std::string file;  // "presets/hardware/nvidia_h100.yaml", for messages
  std::string name, source;
  std::vector<std::string> match;
  double memory_gib = 0;
  double peak_tflops = 0, least_tflops = 0;  // bf16, dense; of a CPU fp32 of one hardware thread
  double peak_memory = 0, least_memory = 0;  // GB/s, read and written
  double least_all_reduce = 0;               // GB/s; 0: nothing is asked
};

// The files in hardware/ of these folders, the first folder's first. Throws Error(kInvalid) at file:line:col.
std::vector<Hardware> read_hardware(const std::vector<Path>& preset_folders);
// The one that is meant by a device's name: of several, the one whose match is longest.
std::optional<Hardware> find_hardware(const std::vector<Hardware>& table, std::string_view device_name);

}  // namespace primus::preflight
