#include "launch/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace primus::launch {
namespace {

constexpr std::uint64_t kMaxSystemFile = 64 << 10;

std::vector<std::string> list(const Path& folder) {
  try {
    return Env::posix().status(folder) ? Env::posix().list(folder) : std::vector<std::string>();
  } catch (const FileError&) {
    return {};  // not permitted
  }
}

std::string content(const Path& file) {
  try {
    return read_file(file, kMaxSystemFile);
  } catch (const Error&) {
    return {};
  }
}

// The number behind `key` in lines of "key value" or "key: value".
std::uint64_t number_of(const std::string& text, std::string_view key) {
  std::size_t at = text.find(key);
  if (at == std::string::npos) return 0;
  at = text.find_first_of("0123456789", at + key.size());
  std::uint64_t value = 0;
  if (at != std::string::npos) std::from_chars(text.data() + at, text.data() + text.size(), value);
  return value;
}

int numa_node_of(const Path& root, const std::string& bus) {
  const std::string text = content(root / "sys/bus/pci/devices" / bus / "numa_node");
  int node = -1;
  std::from_chars(text.data(), text.data() + text.size(), node);
  return node;
}

// "MI300X" of "AMD Instinct MI300X OAM", "H100" of "NVIDIA H100 80GB HBM3".
std::string model_of(const std::string& product) {
  for (std::size_t begin = 0; begin < product.size();) {
    const std::size_t end = std::min(product.find_first_of(" \t\n-_", begin), product.size());
    const std::string word = product.substr(begin, end - begin);
    const std::size_t digit = word.find_first_of("0123456789");
    if (digit != std::string::npos && digit > 0 && word.size() >= 3 && word[0] >= 'A' && word[0] <= 'Z') {
      return word;
    }
    begin = end + 1;
  }
  return {};
}

// The driver makes one file for each GPU.
void find_nvidia(const Path& root, Accelerators& found) {
  for (const std::string& name : list(root / "dev")) {
    const std::string number = name.starts_with("nvidia") ? name.substr(6) : std::string();
    if (!number.empty() && number.find_first_not_of("0123456789") == std::string::npos) ++found.count;
  }
  if (!found.any()) return;
  found.vendor = Vendor::kNvidia;
  const Path gpus = root / "proc/driver/nvidia/gpus";
  for (const std::string& bus : list(gpus)) {
    found.numa_nodes.push_back(numa_node_of(root, bus));
    const std::string information = content(gpus / bus / "information");
    const std::size_t line = information.find("Model:");
    if (found.model.empty() && line != std::string::npos) {
      found.model = model_of(information.substr(line + 6, information.find('\n', line) - line - 6));
    }
  }
}

// KFD lists CPUs, too: GPUs are the nodes with SIMD units.
void find_amd(const Path& root, Accelerators& found) {
  if (!Env::posix().status(root / "dev/kfd")) return;
  const Path nodes = root / "sys/class/kfd/kfd/topology/nodes";
  std::vector<std::string> names = list(nodes);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  for (const std::string& name : names) {
    const std::string properties = content(nodes / name / "properties");
    if (number_of(properties, "simd_count") == 0) continue;
    ++found.count;
    const std::uint64_t location = number_of(properties, "location_id");
    const std::string bus = fmt::format("{:04x}:{:02x}:{:02x}.{:x}", number_of(properties, "domain"),
                                        location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    found.numa_nodes.push_back(numa_node_of(root, bus));
    if (found.model.empty()) {
      found.model = model_of(content(root / "sys/bus/pci/devices" / bus / "product_name"));
    }
  }
  if (found.any()) found.vendor = Vendor::kAmd;
}

// "0,2,5" keeps the GPUs of these numbers, in this order; "GPU-<uuid>" and the like are counted.
void keep_visible(const std::string& visible, Accelerators& gpus) {
  std::vector<int> numa_nodes;
  int count = 0;
  for (std::size_t begin = 0; begin <= visible.size();) {
    const std::size_t end = std::min(visible.find(',', begin), visible.size());
    int number = -1;
    const auto [rest, error] = std::from_chars(visible.data() + begin, visible.data() + end, number);
    const bool is_number = error == std::errc() && rest == visible.data() + end;
    if (end > begin && is_number && (number < 0 || number >= gpus.count)) break;  // as the drivers do
    if (end > begin) {
      ++count;
      const bool known = is_number && static_cast<std::size_t>(number) < gpus.numa_nodes.size();
      numa_nodes.push_back(known ? gpus.numa_nodes[static_cast<std::size_t>(number)] : -1);
    }
    begin = end + 1;
  }
  gpus.count = count;
  gpus.numa_nodes = std::move(numa_nodes);
}

struct Default {
  const char *name, *value;
};

// What Primus sets on nodes with AMD GPUs.
constexpr Default kAmd[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
    {"GPU_MAX_HW_QUEUES", "2"},
    {"HSA_ENABLE_SDMA", "1"},
    {"HSA_NO_SCRATCH_RECLAIM", "1"},
    {"NCCL_CHECKS_DISABLE", "1"},
    {"NCCL_CROSS_NIC", "0"},
    {"NCCL_IB_GID_INDEX", "3"},
    {"NCCL_P2P_NET_CHUNKSIZE", "524288"},
    {"NCCL_PXN_DISABLE", "1"},
    {"NVTE_CK_USES_BWD_V3", "1"},
    {"NVTE_ROCM_ENABLE_MXFP8", "1"},
    {"NVTE_USE_CAST_TRANSPOSE_TRITON", "1"},
    {"RCCL_MSCCLPP_ENABLE", "0"},
    {"RCCL_MSCCL_ENABLE", "0"},
    {"TORCH_NCCL_HIGH_PRIORITY", "1"},
};
constexpr Default kMi355x[] = {{"RCCL_WARP_SPEED_AUTO", "0"}};
constexpr Default kNvidia[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
    {"TORCH_NCCL_HIGH_PRIORITY", "1"},
};
// PRIMUS_DETERMINISTIC=1: what makes the vendors' libraries add in one order.
constexpr Default kDeterministic[] = {
    {"NCCL_ALGO", "Ring"},
    {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"},
    {"ROCBLAS_DEFAULT_ATOMICS_MODE", "0"},
    {"TORCH_COMPILE_DISABLE", "1"},
};

}  // namespace

std::string_view vendor_name(Vendor vendor) {
  return vendor == Vendor::kAmd ? "AMD" : vendor == Vendor::kNvidia ? "NVIDIA" : "none";
}

Accelerators find_accelerators(const Surroundings& surroundings) {
  Accelerators found;
  find_nvidia(surroundings.root, found);
  if (!found.any()) find_amd(surroundings.root, found);
  if (!found.any()) return found;
  const std::vector<std::string> masks =
      found.vendor == Vendor::kNvidia
          ? std::vector<std::string>{"CUDA_VISIBLE_DEVICES"}
          : std::vector<std::string>{"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"};
  for (const std::string& mask : masks) {
    if (const auto visible = surroundings.variable(mask)) {
      keep_visible(*visible, found);
      break;
    }
  }
  if (const auto model = surroundings.setting("PRIMUS_GPU_MODEL")) found.model = *model;
  return found;
}

std::map<std::string, std::string> environment_defaults(const Accelerators& gpus,
                                                        const Surroundings& surroundings) {
  std::map<std::string, std::string> defaults;
  const auto add = [&](const auto& table) {
    for (const Default& entry : table) {
      if (!surroundings.variable(entry.name)) defaults[entry.name] = entry.value;
    }
  };
  if (!gpus.any()) return defaults;
  if (gpus.vendor == Vendor::kAmd) add(kAmd);
  if (gpus.vendor == Vendor::kAmd && gpus.model == "MI355X") add(kMi355x);
  if (gpus.vendor == Vendor::kNvidia) add(kNvidia);
  if (surroundings.setting("PRIMUS_DETERMINISTIC") == "1") add(kDeterministic);
  return defaults;
}

}  // namespace primus::launch
