#include "launch/node/hardware.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <sstream>

#include "base/error.h"
#include "config/hardware.h"
#include "config/loading/inherit.h"

namespace primus::launch {
namespace {

constexpr std::uint64_t kMaxSystemFile = 64 << 10;

std::vector<std::string> list(const Path& folder) {
  try {
    return Env::posix().status(folder) ? Env::posix().list(folder) : std::vector<std::string>();
  } catch (const FileError&) {
    return {};  // reading the file is not permitted
  }
}

std::string content(const Path& file) {
  try {
    return read_file(file, kMaxSystemFile);
  } catch (const Error&) {
    return {};
  }
}

// Returns the number after `key` in lines "key value" or "key: value".
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

// Returns "MI300X" for "AMD Instinct MI300X OAM", and "H100" for "NVIDIA H100 80GB HBM3".
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

// Finds NVIDIA GPUs: the driver creates one file per GPU.
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

// Finds AMD GPUs: the nodes of KFD that have SIMD units. KFD also lists CPUs as nodes.
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

// A list of indices such as "0,2,5" keeps these GPUs, in this order. For a list of names such as
// "GPU-<uuid>", only its length is used.
void keep_visible(const std::string& visible, Accelerators& gpus) {
  std::vector<int> numa_nodes;
  int count = 0;
  for (std::size_t begin = 0; begin <= visible.size();) {
    const std::size_t end = std::min(visible.find(',', begin), visible.size());
    int number = -1;
    const auto [rest, error] = std::from_chars(visible.data() + begin, visible.data() + end, number);
    const bool is_number = error == std::errc() && rest == visible.data() + end;
    if (end > begin && is_number && (number < 0 || number >= gpus.count))
      break;  // drivers also ignore the
              // rest after an invalid
              // number
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

// AMD Primus's variables for nodes with AMD GPUs.
constexpr Default kAmd[] = {
    {"AITER_LOG_LEVEL", "ERROR"},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
    {"GPU_MAX_HW_QUEUES", "2"},
    {"HSA_ENABLE_SDMA", "1"},
    {"HSA_NO_SCRATCH_RECLAIM", "1"},
    {"MSCCLPP_DISABLE_CHANNEL_CACHE", "FALSE"},
    {"NCCL_CHECKS_DISABLE", "1"},
    {"NCCL_CROSS_NIC", "0"},
    {"NCCL_IB_GID_INDEX", "3"},
    {"NCCL_P2P_NET_CHUNKSIZE", "524288"},
    {"NCCL_PXN_DISABLE", "1"},
    {"NVTE_CK_USES_BWD_V3", "1"},
    {"NVTE_ROCM_ENABLE_MXFP8", "1"},
    {"NVTE_USE_CAST_TRANSPOSE_TRITON", "1"},
    {"NVTE_USE_OPTIMIZED_HIPIFIED_CAST_TRANSPOSE", "0"},
    {"PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32", "0"},
    {"PRIMUS_TURBO_DEEPEP_TIMEOUT", "600"},
    {"RCCL_MSCCLPP_ENABLE", "0"},
    {"RCCL_MSCCLPP_FORCE_ENABLE", "0"},
    {"RCCL_MSCCLPP_THRESHOLD", "1073741824"},
    {"RCCL_MSCCL_ENABLE", "0"},
    {"TORCH_NCCL_HIGH_PRIORITY", "1"},
    {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "0"},
};
constexpr Default kMi355x[] = {{"RCCL_WARP_SPEED_AUTO", "0"}};
constexpr Default kNvidia[] = {
    {"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
    {"TORCH_NCCL_HIGH_PRIORITY", "1"},
};
// Variables for AMD's Pensando network cards, which USING_AINIC=1 selects, as in AMD Primus.
constexpr Default kAinic[] = {
    {"NCCL_DMABUF_ENABLE", "0"},
    {"NCCL_GDR_FLUSH_DISABLE", "1"},
    {"NCCL_IB_FIFO_TC", "192"},
    {"NCCL_IB_GID_INDEX", "1"},
    {"NCCL_IB_QPS_PER_CONNECTION", "1"},
    {"NCCL_IB_ROCE_VERSION_NUM", "2"},
    {"NCCL_IB_SL", "0"},
    {"NCCL_IB_TC", "104"},
    {"NCCL_IB_USE_INLINE", "1"},
    {"NCCL_IGNORE_CPU_AFFINITY", "1"},
    {"NCCL_MAX_P2P_CHANNELS", "56"},
    {"NET_OPTIONAL_RECV_COMPLETION", "1"},
    {"RCCL_AINIC_ROCE", "1"},
    {"RCCL_GDR_FLUSH_GPU_MEM_NO_RELAXED_ORDERING", "0"},
};
// Variables that PRIMUS_DETERMINISTIC=1 sets. These variables make the vendors' libraries sum in a fixed
// order.
constexpr Default kDeterministic[] = {
    {"NCCL_ALGO", "Ring"},           {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"},
    {"PRIMUS_TURBO_AUTO_TUNE", "0"}, {"ROCBLAS_DEFAULT_ATOMICS_MODE", "0"},
    {"TORCH_COMPILE_DISABLE", "1"},
};

// Variables that only AMD Primus's scripts read, and their replacements in Primus.
constexpr Default kUnread[] = {
    {"PATCH_TE_FLASH_ATTN", "a --patch script can edit Transformer Engine in the image"},
    {"PRIMUS_HIPBLASLT_TUNING",
     "set TE_HIPBLASLT_TUNING_RUN_COUNT and HIPBLASLT_TUNING_OVERRIDE_FILE directly by --env"},
    {"REBUILD_BNXT", "build libbnxt_re into the image, or in a --patch script"},
    {"REBUILD_PRIMUS_TURBO", "build Primus-Turbo into the image, or in a --patch script"},
    {"REBUILD_UEP", "build uccl into the image, or in a --patch script"},
    {"SDMA_ALL_GATHER", "set NCCL_CTA_POLICY=2, NCCL_CUMEM_ENABLE=1 and NCCL_LOCAL_REGISTER=0 by --env"},
    {"USING_UEP", "set PRIMUS_TURBO_MOE_DISPATCH_COMBINE_BACKEND=DEEP_EP and UCCL_* by --env"},
};

// Returns "mlx5_0:1,mlx5_1:1": the first active port of each InfiniBand device. If no device has an active
// port, lists the first port of each device. Skips bonds and eth0, which belong to the machine's general
// network. Returns an empty text if there are no ports.
std::string rdma_devices(const Path& root) {
  const Path folder = root / "sys/class/infiniband";
  std::vector<std::string> devices = list(folder), active, all;
  std::sort(devices.begin(), devices.end());
  for (const std::string& device : devices) {
    if (device.find("bond") != std::string::npos || device.find("eth0") != std::string::npos) continue;
    std::vector<std::string> ports = list(folder / device / "ports");
    std::sort(ports.begin(), ports.end());
    if (ports.empty()) continue;
    all.push_back(device + ":" + ports[0]);
    for (const std::string& port : ports) {
      if (content(folder / device / "ports" / port / "state").find("ACTIVE") == std::string::npos) continue;
      active.push_back(device + ":" + port);
      break;
    }
  }
  return fmt::format("{}", fmt::join(active.empty() ? all : active, ","));
}

// Returns the IPv4 address of a name or address, in network order; nullopt if it cannot be resolved.
std::optional<std::uint32_t> ipv4_of(const std::string& host) {
  in_addr address{};
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return address.s_addr;
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || !found) return std::nullopt;
  const auto result = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  freeaddrinfo(found);
  return result;
}

bool is_local_only(const std::string& interface) {
  return interface == "lo" || interface == "docker0" || interface.starts_with("veth");
}

// Returns the interface of the route to `address`, or else of the default route; empty if there is no route.
// Lines of /proc/net/route contain the interface, the destination and, in column 8, the mask, in network
// order.
std::string interface_to(const Path& root, const std::optional<std::uint32_t>& address) {
  std::istringstream lines(content(root / "proc/net/route"));
  std::string line, best, fallback;
  int longest = 0;
  std::getline(lines, line);  // skips the header line
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string interface, gateway;
    std::uint32_t destination = 0, mask = 0;
    int flags = 0, references = 0, use = 0, metric = 0;
    words >> interface >> std::hex >> destination >> gateway >> flags >> std::dec >> references >> use >>
        metric >> std::hex >> mask;
    if (!words || is_local_only(interface)) continue;
    if (mask == 0) {
      if (fallback.empty()) fallback = interface;
    } else if (address && (*address & mask) == destination && std::popcount(mask) > longest) {
      best = interface;
      longest = std::popcount(mask);
    }
  }
  return best.empty() ? fallback : best;
}

// Returns the required LD_LIBRARY_PATH. The folder of ROCm's libraries is first. With USING_AINIC, the folder
// of the network cards' libraries is last. Empty if no change is needed.
std::string library_path(const Surroundings& surroundings, bool ainic) {
  const std::string before = surroundings.variable("LD_LIBRARY_PATH").value_or("");
  std::string path = before;
  const auto has = [&](const std::string& folder) {
    return (":" + path + ":").find(":" + folder + ":") != std::string::npos;
  };
  const auto is_there = [&](const std::string& folder) {
    return Env::posix().status(surroundings.root / folder.substr(1)).has_value();
  };
  const auto setting = [&](const char* name, const char* otherwise) {
    return surroundings.setting(name).value_or(otherwise);
  };
  const std::string rocm = setting("ROCM_HOME", "/opt/rocm") + "/lib";
  if (is_there(rocm) && !has(rocm)) path = rocm + (path.empty() ? "" : ":") + path;
  if (ainic) {
    for (const std::string& folder : {setting("RCCL_HOME_DIR", "/workspace/rccl") + "/build/release",
                                      setting("ANP_HOME_DIR", "/workspace/amd-anp") + "/build",
                                      setting("MPI_HOME_DIR", "/opt/ompi") + "/install/lib"}) {
      if (is_there(folder) && !has(folder)) path += (path.empty() ? "" : ":") + folder;
    }
  }
  return path == before ? "" : path;
}

// Returns the GPUs of a host with the model in PRIMUS_GPU_MODEL.
Accelerators assumed_gpus(const Surroundings& surroundings) {
  Accelerators gpus;
  const auto model = surroundings.setting("PRIMUS_GPU_MODEL");
  if (!model) return gpus;
  try {
    const config::Hardware hardware = config::hardware_named(
        config::read_hardware(config::default_preset_dirs(surroundings.variable)), *model);
    if (hardware.device == "cpu") return gpus;
    gpus.vendor = hardware.device == "hip" ? Vendor::kAmd : Vendor::kNvidia;
    gpus.count = static_cast<int>(hardware.gpus_per_host);
    gpus.numa_nodes.assign(static_cast<std::size_t>(gpus.count), -1);
    gpus.assumed = true;
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("PRIMUS_GPU_MODEL: {}", error.what()), error.hint());
  }
  return gpus;
}

}  // namespace

std::string_view vendor_name(Vendor vendor) {
  return vendor == Vendor::kAmd ? "AMD" : vendor == Vendor::kNvidia ? "NVIDIA" : "none";
}

Accelerators find_accelerators(const Surroundings& surroundings) {
  auto model = surroundings.setting("PRIMUS_GPU_MODEL");
  if (model)
    std::ranges::transform(*model, model->begin(),
                           [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  Accelerators found;
  find_nvidia(surroundings.root, found);
  if (!found.any()) find_amd(surroundings.root, found);
  if (!found.any() && surroundings.dry_run) found = assumed_gpus(surroundings);
  if (!found.any()) {
    // Takes the vendor from the given model, because a container's devices may not be visible yet.
    if (model) {
      found.vendor = model->starts_with("MI") ? Vendor::kAmd : Vendor::kNvidia;
      found.model = *model;
    }
    return found;
  }
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
  if (model) found.model = *model;
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
  if (!gpus.any() && !surroundings.setting("PRIMUS_GPU_MODEL")) return defaults;
  const bool ainic = surroundings.setting("USING_AINIC") == "1";
  if (gpus.vendor == Vendor::kAmd) {
    add(kAmd);
    if (ainic) {
      add(kAinic);  // also replaces NCCL_IB_GID_INDEX
      // RCCL uses either its own RoCE transport or the network cards' plug-in.
      const bool roce = surroundings.setting("RCCL_AINIC_ROCE").value_or("1") == "1";
      if (!surroundings.setting("NCCL_NET_PLUGIN"))
        defaults["NCCL_NET_PLUGIN"] = roce ? "none" : "librccl-anp.so";
    }
    if (gpus.model == "MI355X" || gpus.model == "MI350X") add(kMi355x);
    const auto found = [&](const char* name, const std::string& value) {
      if (!surroundings.setting(name) && !value.empty()) defaults[name] = value;
    };
    found("NCCL_IB_HCA", rdma_devices(surroundings.root));
    if (!surroundings.setting("NCCL_SOCKET_IFNAME") || !surroundings.setting("GLOO_SOCKET_IFNAME")) {
      const auto master = surroundings.setting("MASTER_ADDR");
      const std::string interface = interface_to(surroundings.root, master ? ipv4_of(*master) : std::nullopt);
      found("NCCL_SOCKET_IFNAME", interface);
      found("GLOO_SOCKET_IFNAME", interface);
    }
    if (const std::string path = library_path(surroundings, ainic); !path.empty())
      defaults["LD_LIBRARY_PATH"] = path;
  }
  if (gpus.vendor == Vendor::kNvidia) add(kNvidia);
  if (surroundings.setting("PRIMUS_DETERMINISTIC") == "1") {
    for (const Default& entry : kDeterministic) {
      if (surroundings.variable(entry.name) != entry.value) defaults[entry.name] = entry.value;
    }
  }
  return defaults;
}

std::vector<std::string> environment_notes(const std::map<std::string, std::string>& defaults,
                                           const Surroundings& surroundings) {
  std::vector<std::string> notes;
  std::string found;
  for (const char* name : {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
    if (const auto value = defaults.find(name); value != defaults.end())
      found += fmt::format("{}{}={}", found.empty() ? "" : " ", name, value->second);
  }
  if (!found.empty()) notes.push_back(fmt::format("found on this node: {}; --env overrides it", found));
  if (!defaults.empty() && surroundings.setting("USING_AINIC") == "1") {
    notes.emplace_back(
        "USING_AINIC=1: Primus sets the variables for AMD Pensando cards that are not set. It does not read "
        "NCCL_IB_TC and NCCL_IB_FIFO_TC from nicctl: set them if the switches use other values");
  }
  for (const Default& entry : kDeterministic) {
    const auto before = surroundings.variable(entry.name);
    if (before && defaults.contains(entry.name)) {
      notes.push_back(
          fmt::format("PRIMUS_DETERMINISTIC=1: {}={} instead of {}", entry.name, entry.value, *before));
    }
  }
  for (const Default& entry : kUnread) {
    const std::string value = surroundings.setting(entry.name).value_or("0");
    if (value != "0")
      notes.push_back(fmt::format("{}={} has no effect in Primus; {}", entry.name, value, entry.value));
  }
  return notes;
}

}  // namespace primus::launch
