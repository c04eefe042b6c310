// Simulated healthy nodes: a CPU machine, and nodes with NVIDIA and AMD GPUs.
#include <fmt/format.h>

#include "fake_machine.h"

namespace primus::preflight::test {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;

void make_host(FakeMachine& fake, int sockets, int cores_per_socket, std::int64_t memory_gib) {
  fake.write("/etc/os-release", "NAME=\"Debian\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  fake.write("/etc/hostname", "node-0\n");
  fake.write("/etc/hosts", "127.0.0.1 localhost\n10.0.0.1 node-0 # rank 0\n");
  fake.write("/proc/sys/kernel/osrelease", "6.1.0-30-amd64\n");
  fake.write("/proc/sys/kernel/numa_balancing", "0\n");
  fake.write("/proc/uptime", "90000.50 180000.00\n");
  fake.write("/proc/loadavg", "0.10 0.20 0.30 1/800 4242\n");
  fake.write("/proc/self/status",
             fmt::format("Name:\tprimus\nCpus_allowed_list:\t0-{}\n", sockets * cores_per_socket - 1));
  fake.write("/proc/self/cgroup", "0::/job\n");
  fake.write("/sys/fs/cgroup/job/cpu.max", "max 100000\n");
  fake.write("/sys/fs/cgroup/job/pids.max", "max\n");
  fake.write("/sys/fs/cgroup/job/pids.current", "12\n");
  fake.write("/proc/self/mounts",
             "/dev/sda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nserver:/data /data nfs4 rw 0 0\n");
  const std::int64_t kib = memory_gib << 20;
  fake.write(
      "/proc/meminfo",
      fmt::format("MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
                  "HugePages_Total: 0\nHugepagesize: 2048 kB\n",
                  kib, kib * 9 / 10, kib * 9 / 10));
  fake.write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  fake.write("/sys/devices/system/edac/mc/mc0/ce_count", "3\n");
  fake.write("/sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  std::string info;
  for (int cpu = 0; cpu < sockets * cores_per_socket; ++cpu) {
    const std::string topology = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    fake.write(topology + "physical_package_id", fmt::format("{}\n", cpu / cores_per_socket));
    fake.write(topology + "core_id", fmt::format("{}\n", cpu % cores_per_socket));
    info += fmt::format("processor\t: {}\nmodel name\t: A Processor\n\n", cpu);
  }
  fake.write("/proc/cpuinfo", info);
  fake.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  for (int node = 0; node < sockets; ++node) {
    const std::string folder = fmt::format("/sys/devices/system/node/node{}/", node);
    fake.write(folder + "cpulist",
               fmt::format("{}-{}\n", node * cores_per_socket, (node + 1) * cores_per_socket - 1));
    fake.write(folder + "meminfo",
               fmt::format("Node {0} MemTotal: {1} kB\nNode {0} MemFree: {1} kB\n", node, kib / sockets));
  }
  fake.write("/proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max stack size            8388608              unlimited            bytes     \n"
             "Max processes             515506               515506               processes \n"
             "Max open files            65536                65536                files     \n"
             "Max locked memory         unlimited            unlimited            bytes     \n");
  fake.set_space("/", Space{.total = 800 * kGiB,
                            .available = 500 * kGiB,
                            .inodes = 50'000'000,
                            .inodes_available = 40'000'000});
  fake.set_space("/data", Space{.total = 9000 * kGiB, .available = 4000 * kGiB});
  fake.set_space("/dev/shm", Space{.total = static_cast<std::uint64_t>(memory_gib) * kGiB / 2,
                                   .available = static_cast<std::uint64_t>(memory_gib) * kGiB / 2});
  fake.write("/data/file", "");
  fake.tool("dmesg", "echo '[    1.000000] Linux version 6.1.0'\necho '[89990.000000] eth0: renamed'");

  fake.write("/sys/class/net/lo/type", "772\n");
  fake.write("/sys/class/net/lo/mtu", "65536\n");
  fake.write("/sys/class/net/lo/operstate", "unknown\n");
  fake.write("/sys/class/net/lo/carrier", "1\n");
  for (const char* name : {"eth0", "eth1"}) {
    const std::string folder = fmt::format("/sys/class/net/{}/", name);
    fake.write(folder + "type", "1\n");
    fake.write(folder + "mtu", "9000\n");
    fake.write(folder + "operstate", "up\n");
    fake.write(folder + "carrier", "1\n");
    fake.write(folder + "speed", "100000\n");
    fake.write(folder + "device/vendor", "0x15b3\n");
    fake.link(folder + "device/driver", "/drivers/mlx5_core");
    fake.write(folder + "statistics/rx_packets", "1000000000\n");
    fake.write(folder + "statistics/tx_packets", "1000000000\n");
    fake.write(folder + "statistics/rx_errors", "2\n");
    fake.write(folder + "statistics/tx_errors", "0\n");
  }
  fake.write("/sys/class/net/bonding_masters", "\n");
  fake.write("/proc/net/route",
             "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
             "eth1\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
             "eth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n");
  fake.set("MASTER_ADDR", "node-0");
  for (const char* name : {"RANK", "LOCAL_RANK"}) fake.set(name, "0");
  fake.set("WORLD_SIZE", "16");
  fake.set("LOCAL_WORLD_SIZE", "8");
  fake.set("MASTER_PORT", "29500");
}

void make_rdma(FakeMachine& fake, const std::string& layer) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = fmt::format("/sys/class/infiniband/mlx5_{}/", i);
    fake.write(folder + "fw_ver", "28.39.1002\n");
    fake.write(folder + "ports/1/link_layer", layer + "\n");
    fake.write(folder + "ports/1/state", "4: ACTIVE\n");
    fake.write(folder + "ports/1/phys_state", "5: LinkUp\n");
    fake.write(folder + "ports/1/rate", "400 Gb/sec (4X NDR)\n");
    fake.write(folder + "ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
    fake.write(folder + "ports/1/gid_attrs/types/3", "RoCE v2\n");
    fake.write(folder + "ports/1/counters/link_downed", "0\n");
    fake.write(folder + "ports/1/counters/symbol_error", "0\n");
    fake.write(fmt::format("/dev/infiniband/uverbs{}", i), "");
  }
  // A port that is disabled on purpose is not a fault.
  const std::string folder = "/sys/class/infiniband/mlx5_8/ports/1/";
  fake.write(folder + "state", "1: DOWN\n");
  fake.write(folder + "phys_state", "3: Disabled\n");
  fake.write(folder + "rate", "10 Gb/sec (4X SDR)\n");
}

}  // namespace

void make_cpu_node(FakeMachine& fake) { make_host(fake, 1, 4, 32); }

void make_nvidia_node(FakeMachine& fake) {
  make_host(fake, 2, 16, 2048);
  make_rdma(fake, "InfiniBand");
  fake.write("/proc/modules", "nvidia_peermem 16384 0 - Live 0x0\nnvidia 14299136 - - Live 0x0\n");
  fake.write("/proc/driver/nvidia/version",
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  "
             "\nGCC version: 15\n");
  fake.write("/dev/nvidiactl", "");
  fake.write("/dev/nvidia-uvm", "");
  std::string base, health, clocks, rows;
  for (int i = 0; i < 8; ++i) {
    const std::string bus = fmt::format("0000:{:02x}:00.0", 16 + i);
    fake.write(fmt::format("/sys/bus/pci/devices/{}/vendor", bus), "0x10de\n");
    fake.write(fmt::format("/sys/bus/pci/devices/{}/class", bus), "0x030200\n");
    fake.link(fmt::format("/sys/bus/pci/devices/{}/driver", bus), "../../../bus/pci/drivers/nvidia");
    fake.write(fmt::format("/proc/driver/nvidia/gpus/{}/information", bus),
               fmt::format("Model: \t\t H100\nDevice Minor: \t {}\n", i));
    fake.write(fmt::format("/dev/nvidia{}", i), "");
    // The output of nvidia-smi for an H100 with driver 580.
    base +=
        fmt::format("{}, GPU-271281d6-{}, NVIDIA H100 80GB HBM3, 0000{}, 580.159.04, 81559, 0\n", i, i, bus);
    health += fmt::format("{}, Enabled, 0, 0, 37, 700.00, 700.00, 0, Default, Disabled, [N/A]\n", i);
    clocks += fmt::format("{}, Not Active, Not Active, Not Active, Not Active, 345, 1980, 16, 16\n", i);
    rows += fmt::format("GPU-271281d6-{}, No, No\n", i);
  }
  fake.write("/smi/base", base);
  fake.write("/smi/health", health);
  fake.write("/smi/clocks", clocks);
  fake.write("/smi/rows", rows);
  fake.write("/smi/apps", "");
  fake.tool("nvidia-smi",
            "cd " + (fake.root() / "smi").string() +
                "\ncase \"$1\" in\n"
                "  --query-gpu=index,uuid*) cat base;;\n"
                "  --query-gpu=index,ecc*) cat health;;\n"
                "  --query-gpu=index,clocks*) cat clocks;;\n"
                "  --query-remapped-rows=*) cat rows;;\n"
                "  --query-compute-apps=*) cat apps;;\n"
                "  *) echo \"Field \\\"$1\\\" is not a valid field to query.\"; exit 2;;\nesac");
}

void make_amd_node(FakeMachine& fake) {
  make_host(fake, 2, 16, 2048);
  make_rdma(fake, "Ethernet");
  fake.write("/sys/module/amdgpu/version", "6.12.12\n");
  fake.write("/opt/rocm/.info/version", "7.0.0-38\n");
  fake.write("/dev/kfd", "");
  fake.tool("rocm-smi", "echo 'ROCM-SMI version: 4.0.0'");
  for (int i = 0; i < 8; ++i) {
    const std::string bus = fmt::format("0000:{:02x}:00.0", 16 + i);
    fake.write(fmt::format("/sys/bus/pci/devices/{}/vendor", bus), "0x1002\n");
    fake.write(fmt::format("/sys/bus/pci/devices/{}/class", bus), "0x120000\n");
    fake.link(fmt::format("/sys/bus/pci/devices/{}/driver", bus), "../../../bus/pci/drivers/amdgpu");
    const std::string device = fmt::format("/sys/class/drm/card{}/device/", i);
    fake.link(fmt::format("/sys/class/drm/card{}/device", i),
              fmt::format("../../../bus/pci/devices/{}", bus));
    fake.write(fmt::format("/sys/class/drm/card{}-DP-1/status", i), "disconnected\n");
    fake.write(device + "unique_id", fmt::format("a1b2c3d4e5f6000{}\n", i));
    fake.write(device + "product_name", "AMD Instinct MI300X OAM\n");
    fake.write(device + "mem_info_vram_total", "206141652992\n");
    fake.write(device + "mem_info_vram_used", "297025536\n");
    fake.write(device + "ras/umc_err_count", "ue: 0\nce: 2\n");
    fake.write(device + "ras/gpu_vram_bad_pages", "");
    fake.write(device + "pp_dpm_sclk", "0: 132Mhz *\n1: 2100Mhz\n");
    fake.write(device + "current_link_width", "16\n");
    fake.write(device + "max_link_width", "16\n");
    fake.write(device + "gpu_busy_percent", "0\n");
    fake.write(device + "current_compute_partition", "SPX\n");
    fake.write(device + "hwmon/hwmon4/temp1_input", "42000\n");
    fake.write(device + "hwmon/hwmon4/temp2_input", "45000\n");
    fake.write(device + "hwmon/hwmon4/temp2_crit", "100000\n");
    fake.write(device + "hwmon/hwmon4/power1_cap", "750000000\n");
    fake.write(device + "hwmon/hwmon4/power1_cap_default", "750000000\n");
    fake.write(device + fmt::format("drm/renderD{}/dev", 128 + i), "");
    fake.write(fmt::format("/dev/dri/renderD{}", 128 + i), "");
    const std::string node = fmt::format("/sys/class/kfd/kfd/topology/nodes/{}/", i + 2);
    fake.write(node + "gpu_id", fmt::format("{}\n", 51110 + i));
    fake.write(node + "properties",
               fmt::format("cpu_cores_count 0\nlocation_id {}\ndomain 0\n", (16 + i) << 8));
  }
  fake.write("/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
}

}  // namespace primus::preflight::test
