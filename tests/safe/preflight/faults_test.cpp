// Tests a healthy node with one fault at a time. Only the check for this fault reports the fault, with place
// and fix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "fake_machine.h"
#include "safe/preflight/node.h"

namespace primus::preflight {
namespace {

using test::FakeMachine;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

NodeOptions options_of_job() {
  NodeOptions options;
  options.questions.folders = {{"checkpoints", "/data/checkpoints"}, {"temporary files", "/tmp"}};
  options.wanted.local_ranks = 8;
  options.wanted.nodes = 2;
  options.wanted.allowed_processes = {"dcgm-exporter"};
  return options;
}

std::string text_of(const NodeReport& report, Verdict minimum) {
  std::string text;
  for (const Finding& f : report.findings) {
    if (f.verdict >= minimum)
      text += std::string(name_of(f.verdict)) + " " + f.check + " " + f.where + ": " + f.measured + "\n";
  }
  return text;
}

struct Fault {
  const char* name;
  void (*make)(FakeMachine&);
  void (*make_fault)(FakeMachine&);
  const char* check;
  Verdict verdict;
  const char* measured;  // part of the finding's measured value
  const char* fix;       // part of the finding's fix
  void (*change)(NodeOptions&) = nullptr;
  std::vector<const char*> also = {};  // other checks that may report the fault, too
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

using test::make_amd_node;
using test::make_cpu_node;
using test::make_nvidia_node;
constexpr Verdict kWarn = Verdict::kWarn, kFail = Verdict::kFail;

const Fault kFaults[] = {
    // --- host
    {"AffinityToOneCore", make_nvidia_node,
     [](FakeMachine& m) { m.write("/proc/self/status", "Cpus_allowed_list:\t3\n"); }, "host.cpus", kFail,
     "1 of 32 hardware threads for 8 ranks", "--cpus-per-task"},
    {"QuotaOfTime", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/fs/cgroup/job/cpu.max", "400000 100000\n"); }, "host.cpus", kFail,
     "4 of 32 hardware threads", "--cpus-per-task"},
    {"SlowClock", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"); },
     "host.governor", kWarn, "powersave", "cpupower"},
    {"BusyMachine", make_nvidia_node,
     [](FakeMachine& m) { m.write("/proc/loadavg", "31.5 30 29 40/800 1\n"); }, "host.load", kWarn,
     "load is 31.5", "top"},
    {"MemoryLimitOfTheContainer",
     make_nvidia_node,
     [](FakeMachine& m) {
       m.write("/sys/fs/cgroup/job/memory.max", "4294967296\n");
       m.write("/sys/fs/cgroup/job/memory.current", "4000000000\n");
     },
     "host.memory",
     kFail,
     "limited by",
     "--mem",
     nullptr,
     {"host.memory-for-gpus"}},
    {"LittleMemoryLeft", make_cpu_node,
     [](FakeMachine& m) { m.replace("/proc/meminfo", "MemAvailable: 30198988", "MemAvailable: 900000"); },
     "host.memory", kFail, "879 MiB of 32.0 GiB", "ps aux"},
    {"LittleHostMemoryForTheGpus", make_nvidia_node,
     [](FakeMachine& m) { m.write("/proc/meminfo", "MemTotal: 268435456 kB\nMemAvailable: 260000000 kB\n"); },
     "host.memory-for-gpus", kWarn, "256 GiB of host memory", "async_save"},
    {"MemoryErrors", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/devices/system/edac/mc/mc0/ue_count", "1\n"); }, "host.memory-errors",
     kFail, "1 uncorrectable", "memory module"},
    {"MissingMemoryModule", make_nvidia_node,
     [](FakeMachine& m) {
       m.write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 536870912 kB\n");
     },
     "host.numa", kWarn, "512 GiB to", "module"},
    {"NumaBalancing", make_nvidia_node,
     [](FakeMachine& m) { m.write("/proc/sys/kernel/numa_balancing", "1\n"); }, "host.numa-balancing", kWarn,
     "numa_balancing = 1", "sysctl"},
    {"SwapInUse", make_cpu_node,
     [](FakeMachine& m) { m.replace("/proc/meminfo", "SwapTotal: 0 kB", "SwapTotal: 8388608 kB"); },
     "host.swap", kWarn, "8.00 GiB lie in swap", "swapoff"},
    {"ReservedHugePages", make_cpu_node,
     [](FakeMachine& m) { m.replace("/proc/meminfo", "HugePages_Total: 0", "HugePages_Total: 8192"); },
     "host.huge-pages", kWarn, "16.0 GiB are reserved", "nr_hugepages"},
    {"SmallSharedMemory", make_nvidia_node,
     [](FakeMachine& m) { m.set_space("/dev/shm", Space{.total = 64 * kMiB, .available = 64 * kMiB}); },
     "host.shared-memory", kFail, "/dev/shm holds 64.0 MiB", "--shm-size"},
    {"FullSharedMemory", make_nvidia_node,
     [](FakeMachine& m) { m.set_space("/dev/shm", Space{.total = 1024 * kGiB, .available = 1 * kGiB}); },
     "host.shared-memory", kFail, "1.00 GiB free", "ls -l /dev/shm"},
    {"FewOpenFiles", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/proc/self/limits", "65536                65536", "512                  65536");
     },
     "host.open-files", kFail, "open files: at most 512", "ulimit -n"},
    {"FewProcesses", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/proc/self/limits", "515506               515506", "256                  256   ");
     },
     "host.processes", kFail, "at most 256", "ulimit -u"},
    {"FewProcessesLeftByTheControlGroup", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/fs/cgroup/job/pids.max", "100\n"); }, "host.processes", kFail,
     "control groups leave 88", "--pids-limit"},
    {"SmallStack", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/proc/self/limits", "8388608 ", "524288  "); }, "host.stack", kFail,
     "524288", "ulimit -s"},
    {"LittleLockedMemory", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/proc/self/limits", "Max locked memory         unlimited",
                 "Max locked memory         8388608  ");
     },
     "host.locked-memory", kFail, "at most 8388608", "memlock"},
    {"ClockNotSynchronised", make_cpu_node,
     [](FakeMachine& m) { m.set_clock({.known = true, .synchronised = false, .source = "timedatectl"}); },
     "host.clock", kWarn, "not synchronised according to timedatectl", "chronyd"},
    {"FullDisk", make_nvidia_node,
     [](FakeMachine& m) { m.set_space("/data", Space{.total = 100 * kGiB, .available = 20 * kMiB}); },
     "host.disks", kFail, "/data (checkpoints) has 20.0 MiB", "remove old runs"},
    {"NoInodes", make_cpu_node,
     [](FakeMachine& m) {
       m.set_space(
           "/",
           Space{.total = 100 * kGiB, .available = 50 * kGiB, .inodes = 1'000'000, .inodes_available = 7});
     },
     "host.disks", kFail, "7 more files", "remove small files"},
    {"ReadOnlyDisk", make_nvidia_node,
     [](FakeMachine& m) {
       m.set_space("/data", Space{.total = 100 * kGiB, .available = 50 * kGiB, .read_only = true});
     },
     "host.disks", kFail, "is read-only", "remount"},
    {"DiskDoesNotAnswer", make_nvidia_node, [](FakeMachine& m) { m.set_space("/data", std::nullopt); },
     "host.disks", kFail, "does not answer", "mount"},
    {"Xid", make_nvidia_node,
     [](FakeMachine& m) {
       m.tool("dmesg", "echo '[89999.1] NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.'");
     },
     "host.kernel-log", kFail, "Xid (PCI:0000:10:00): 79", "reset the GPU"},
    {"KilledForMemory", make_cpu_node,
     [](FakeMachine& m) { m.tool("dmesg", "echo '[89999.1] Out of memory: Killed process 4711 (python)'"); },
     "host.kernel-log", kWarn, "Killed process 4711", "memory"},
    {"ToolNotInstalled", make_nvidia_node, [](FakeMachine&) {}, "host.tools", kFail, "ibstat is not in PATH",
     "install",
     [](NodeOptions& o) {
       o.wanted.required_tools = {"ibstat", "nvidia-smi"};
     }},
    // --- network
    {"NoRendezvous", make_nvidia_node, [](FakeMachine& m) { m.set("RANK", ""); }, "network.environment",
     kFail, "not set: RANK", "launcher"},
    {"InterfaceDown", make_nvidia_node,
     [](FakeMachine& m) {
       m.write("/sys/class/net/eth0/operstate", "down\n");
       m.write("/sys/class/net/eth0/carrier", "0\n");
     },
     "network.way", kFail, "eth0, which leads to rank 0, is down", "ip link set eth0 up"},
    {"UnknownMaster", make_nvidia_node, [](FakeMachine& m) { m.set("MASTER_ADDR", "node-77"); },
     "network.way", kFail, "address of MASTER_ADDR 'node-77'", "/etc/hosts"},
    {"MasterOnTheLoopback", make_nvidia_node,
     [](FakeMachine& m) { m.write("/etc/hosts", "127.0.1.1 node-0\n"); }, "network.way", kFail,
     "an address of the loopback", "127.0.1.1"},
    {"WrongInterface", make_nvidia_node, [](FakeMachine& m) { m.set("NCCL_SOCKET_IFNAME", "ens5"); },
     "network.interface-variables", kFail, "NCCL_SOCKET_IFNAME=ens5 names no interface", "ip -brief link"},
    {"SlowerLink", make_nvidia_node, [](FakeMachine& m) { m.write("/sys/class/net/eth0/speed", "10000\n"); },
     "network.speed", kWarn, "eth0: 10 Gbit/s", "cable"},
    {"SmallPackets", make_nvidia_node, [](FakeMachine& m) { m.write("/sys/class/net/eth0/mtu", "1500\n"); },
     "network.mtu", kWarn, "eth0: packets have at most 1500 bytes", "mtu 9000"},
    {"BadCable", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/class/net/eth0/statistics/rx_errors", "500000\n"); },
     "network.errors", kWarn, "500000 of 2000000000", "cable"},
    {"RdmaPortDown", make_nvidia_node,
     [](FakeMachine& m) {
       m.write("/sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
       m.write("/sys/class/infiniband/mlx5_3/ports/1/phys_state", "2: Polling\n");
     },
     "network.rdma-ports", kFail, "mlx5_3:1 is DOWN (Polling)", "cable"},
    {"RdmaPortSlow", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/class/infiniband/mlx5_5/ports/1/rate", "100 Gb/sec (4X EDR)\n"); },
     "network.rdma-ports", kFail, "mlx5_5:1 runs at 100 Gbit/s", "the link has degraded"},
    {"NoRoutableAddress", make_amd_node,
     [](FakeMachine& m) { m.remove("/sys/class/infiniband/mlx5_2/ports/1/gid_attrs/types/3"); },
     "network.rdma-ports", kFail, "mlx5_2:1 has no RoCE v2 address", "show_gids"},
    {"RdmaPortMissing", make_nvidia_node, [](FakeMachine& m) { m.remove("/sys/class/infiniband/mlx5_7"); },
     "network.rdma-count", kFail, "7 RDMA ports", "dmesg",
     [](NodeOptions& o) {
       o.wanted.rdma_ports = Wanted{8, "--expected-rdma-nics"};
     }},
    {"RdmaNotInTheContainer", make_nvidia_node, [](FakeMachine& m) { m.remove("/dev/infiniband"); },
     "network.rdma-nodes", kFail, "/dev/infiniband/uverbs* does not", "--device=/dev/infiniband"},
    {"RdmaFirmware", make_nvidia_node,
     [](FakeMachine& m) { m.write("/sys/class/infiniband/mlx5_6/fw_ver", "28.36.1010\n"); },
     "network.rdma-firmware", kWarn, "28.36.1010", "same firmware"},
    {"WrongRdmaDevice", make_nvidia_node, [](FakeMachine& m) { m.set("NCCL_IB_HCA", "=bnxt_re0"); },
     "network.rdma-variable", kFail, "NCCL_IB_HCA==bnxt_re0 names no RDMA device",
     "ls /sys/class/infiniband"},
    {"WrongAllowedPort", make_nvidia_node, [](FakeMachine&) {}, "network.rdma-variable", kFail,
     "this machine has no RDMA port mlx5_9, mlx5_1:2", "ls /sys/class/infiniband",
     [](NodeOptions& o) { o.rdma_ports = "mlx5_0,mlx5_9,mlx5_1:2"; }},
    {"AllPortsExcluded", make_nvidia_node, [](FakeMachine&) {}, "network.rdma-variable", kFail,
     "leaves no RDMA port for training", "ls /sys/class/infiniband",
     [](NodeOptions& o) { o.rdma_ports = "^mlx5"; }},
    {"NoGpuDirect", make_nvidia_node,
     [](FakeMachine& m) { m.write("/proc/modules", "nvidia 1 - - Live 0x0\n"); }, "network.gpu-direct", kWarn,
     "nvidia_peermem", "modprobe"},
    // --- NVIDIA
    {"GpuFellOffTheBus", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/base", "7, GPU-271281d6-7", "x"); }, "gpu.count", kFail,
     "8 GPUs are on the bus, but the drivers show 7", "dmesg", nullptr},
    {"GpuWithoutDriver", make_nvidia_node,
     [](FakeMachine& m) {
       m.remove("/sys/bus/pci/devices/0000:17:00.0/driver");
       m.replace("/smi/base", "7, GPU-271281d6-7", "x");
     },
     "gpu.count", kFail, "the drivers show 7", "0000:17:00.0"},
    {"FewerGpusThanExpected", make_cpu_node, [](FakeMachine&) {}, "gpu.count", kFail, "0 GPUs", "--gpus=all",
     [](NodeOptions& o) {
       o.wanted.gpus = Wanted{8, "--expected-gpus"};
       o.wanted.local_ranks = 1;
     }},
    {"ToolHangs",
     make_nvidia_node,
     [](FakeMachine& m) { m.tool("nvidia-smi", "sleep 100"); },
     "gpu.tools",
     kFail,
     "nvidia-smi: no answer within",
     "reset the GPUs",
     [](NodeOptions& o) { o.tool_timeout = 200ms; },
     {"gpu.count"}},
    {"DriverMismatch",
     make_nvidia_node,
     [](FakeMachine& m) {
       m.tool("nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18");
     },
     "gpu.tools",
     kFail,
     "Driver/library version mismatch",
     "reboot",
     nullptr,
     {"gpu.count"}},
    {"NoToolInTheContainer",
     make_nvidia_node,
     [](FakeMachine& m) { std::filesystem::remove(m.tools() / "nvidia-smi"); },
     "gpu.tools",
     kWarn,
     "nvidia-smi is not in PATH",
     "utility",
     nullptr,
     {"gpu.count"}},
    {"MissingDeviceNode", make_nvidia_node, [](FakeMachine& m) { m.remove("/dev/nvidia3"); },
     "gpu.device-nodes", kFail, "missing: /dev/nvidia3", "--gpus=all"},
    {"AnotherProduct", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/smi/base", "5, GPU-271281d6-5, NVIDIA H100 80GB HBM3",
                 "5, GPU-271281d6-5, NVIDIA H100 PCIe");
     },
     "gpu.sameness", kWarn, "NVIDIA H100 PCIe", "CUDA_VISIBLE_DEVICES"},
    {"LessMemory", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/base", "580.159.04, 81559", "580.159.04, 71559"); }, "gpu.sameness",
     kFail, "69.9 GiB to 79.6 GiB", "reset"},
    {"UncorrectedErrors", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/health", "2, Enabled, 0,", "2, Enabled, 4,"); },
     "gpu.memory-errors", kFail, "gpu 2 (NVIDIA H100 80GB HBM3", "replaced"},
    {"EccOff", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/health", "1, Enabled, 0, 0", "1, Disabled, [N/A], [N/A]"); },
     "gpu.memory-errors", kWarn, "ECC is off", "nvidia-smi -e 1"},
    {"RetirementPending", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/rows", "271281d6-6, No", "271281d6-6, Yes"); },
     "gpu.retired-memory", kFail, "gpu 6", "nvidia-smi -r"},
    {"NoSpareRows", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/rows", "271281d6-4, No, No", "271281d6-4, No, Yes"); },
     "gpu.retired-memory", kFail, "no spare rows", "replaced"},
    {"ThrottledClock", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/clocks", "3, Not Active, Not Active", "3, Active, Active"); },
     "gpu.throttling", kFail, "is throttled (345 of 1980 MHz) by thermal slowdown", "fans"},
    {"PowerLimit", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/smi/health", "0, Enabled, 0, 0, 37, 700.00", "0, Enabled, 0, 0, 37, 400.00");
     },
     "gpu.throttling", kWarn, "limited to 400 W", "-pl 700"},
    {"NarrowLink", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/clocks", "1980, 16, 16\n2", "1980, 8, 16\n2"); }, "gpu.link-width",
     kFail, "gpu 1", "reseat"},
    {"ForeignProcess", make_nvidia_node,
     [](FakeMachine& m) {
       m.write("/smi/apps",
               "GPU-271281d6-2, 4242, python3, 40000\nGPU-271281d6-3, 4243, /usr/bin/dcgm-exporter, 10\n");
       m.write("/proc/4242/comm", "left_behind\n");
     },
     "gpu.processes", kFail, "left_behind (process 4242", "kill"},
    {"MemoryHeldByNobody", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/base", "81559, 0", "81559, 61559"); }, "gpu.free-memory", kFail,
     "60.1 GiB of 79.6 GiB used", "reset the GPU"},
    {"BusyGpu", make_nvidia_node,
     [](FakeMachine& m) {
       m.replace("/smi/health", "700.00, 700.00, 0, Default", "700.00, 700.00, 97, Default");
     },
     "gpu.activity", kWarn, "97 % busy", "nvidia-smi"},
    {"Prohibited", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/health", "Default", "Prohibited"); }, "gpu.mode", kFail,
     "accepts no programs", "-c 0"},
    {"Divided", make_nvidia_node,
     [](FakeMachine& m) { m.replace("/smi/health", "Default, Disabled", "Default, Enabled"); }, "gpu.mode",
     kWarn, "MIG is on", "-mig 0"},
    {"NoGpuWhoseMemoryIsFree", make_cpu_node, [](FakeMachine&) {}, "gpu.free-memory", kFail,
     "no GPU was found, so no free memory can be checked", "primus doctor",
     [](NodeOptions& o) {
       o.wanted.free_gpu_memory_gib = Wanted{10, "PRIMUS_PREFLIGHT_MIN_FREE_MEM_GB"};
       o.wanted.local_ranks = 1;
     }},
    {"UsedMemoryNotTold", make_amd_node,
     [](FakeMachine& m) { m.remove("/sys/class/drm/card2/device/mem_info_vram_used"); }, "gpu.free-memory",
     kFail, "the driver does not report the used memory", "tools",
     [](NodeOptions& o) {
       o.wanted.busy_memory_gib = Wanted{1, "--hbm-busy-threshold-gib"};
     }},
    {"ActivityNotTold", make_amd_node,
     [](FakeMachine& m) { m.remove("/sys/class/drm/card2/device/gpu_busy_percent"); }, "gpu.activity", kWarn,
     "the driver does not report its utilisation", "tools",
     [](NodeOptions& o) {
       o.wanted.busy_percent = Wanted{5, "--gpu-activity-warn-pct"};
     }},
    {"MoreRanksThanGpus", make_nvidia_node, [](FakeMachine&) {}, "gpu.count", kFail,
     "16 ranks on this machine, but 8 GPUs", "--nproc_per_node",
     [](NodeOptions& o) { o.wanted.local_ranks = 16; }},
    // --- AMD
    {"NoKfd", make_amd_node, [](FakeMachine& m) { m.remove("/dev/kfd"); }, "gpu.device-nodes", kFail,
     "missing: /dev/kfd", "--device=/dev/kfd"},
    {"AmdUncorrectedErrors", make_amd_node,
     [](FakeMachine& m) { m.write("/sys/class/drm/card3/device/ras/umc_err_count", "ue: 2\nce: 9\n"); },
     "gpu.memory-errors", kFail, "gpu 3", "reset"},
    {"AmdRetiredPages", make_amd_node,
     [](FakeMachine& m) {
       std::string pages;
       for (int i = 0; i < 70; ++i) pages += "0x00000001 : 0x00001000 : R\n";
       m.write("/sys/class/drm/card1/device/ras/gpu_vram_bad_pages", pages);
     },
     "gpu.retired-memory", kWarn, "70 retired pages", "replaced"},
    {"AmdTooHot", make_amd_node,
     [](FakeMachine& m) { m.write("/sys/class/drm/card2/device/hwmon/hwmon4/temp2_input", "101000\n"); },
     "gpu.throttling", kFail, "critical temperature", "fans"},
    {"AmdNarrowLink", make_amd_node,
     [](FakeMachine& m) { m.write("/sys/class/drm/card5/device/current_link_width", "4\n"); },
     "gpu.link-width", kFail, "gpu 5", "reseat"},
    {"AmdForeignProcess", make_amd_node,
     [](FakeMachine& m) {
       m.write("/sys/class/kfd/kfd/proc/777/vram_51114", "1073741824\n");
       m.write("/proc/777/comm", "python\n");
     },
     "gpu.processes", kFail, "gpu 4", "kill"},
    {"AmdMemoryInUse", make_amd_node,
     [](FakeMachine& m) { m.write("/sys/class/drm/card0/device/mem_info_vram_used", "9000000000\n"); },
     "gpu.free-memory", kFail, "8.38 GiB of", "rocm-smi"},
    {"AmdToolHangs", make_amd_node, [](FakeMachine& m) { m.tool("rocm-smi", "sleep 100"); }, "gpu.tools",
     kFail, "rocm-smi: no answer", "reboot", [](NodeOptions& o) { o.tool_timeout = 200ms; }},
};

class Faults : public ::testing::TestWithParam<Fault> {};

TEST_P(Faults, EachIsFoundAndNamed) {
  const Fault& fault = GetParam();
  FakeMachine fake;
  fault.make(fake);
  NodeOptions options = options_of_job();
  if (fault.make == make_cpu_node) options.wanted.local_ranks = 2;
  if (fault.change) fault.change(options);
  fault.make_fault(fake);
  const NodeReport report = inspect_node(fake.machine(), options);
  bool found = false;
  for (const Finding& f : report.findings) {
    if (f.verdict < Verdict::kWarn) continue;
    const bool expected =
        f.check == fault.check ||
        std::any_of(fault.also.begin(), fault.also.end(), [&](const char* name) { return f.check == name; });
    EXPECT_TRUE(expected) << "unexpected findings: " << text_of(report, Verdict::kWarn);
    EXPECT_FALSE(f.fix.empty()) << f.check;
    EXPECT_FALSE(f.measured.empty()) << f.check;
    found |= f.check == fault.check && f.verdict == fault.verdict &&
             f.measured.find(fault.measured) != std::string::npos &&
             f.fix.find(fault.fix) != std::string::npos;
  }
  EXPECT_TRUE(found) << text_of(report, Verdict::kWarn);
}

INSTANTIATE_TEST_SUITE_P(Seeded, Faults, ::testing::ValuesIn(kFaults),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(Faults, HealthyMachinesHaveNone) {
  for (const auto make : {make_nvidia_node, make_amd_node, make_cpu_node}) {
    FakeMachine fake;
    make(fake);
    NodeOptions options = options_of_job();
    if (make == make_cpu_node) options.wanted.local_ranks = 2;
    const NodeReport report = inspect_node(fake.machine(), options);
    EXPECT_EQ(text_of(report, Verdict::kWarn), "");
    EXPECT_EQ(verdict_of(report.findings), Verdict::kPass);
    std::set<std::string> checks;
    for (const Finding& f : report.findings) checks.insert(f.check);
    EXPECT_EQ(checks.size(), host_checks().size() + network_checks().size() + gpu_checks().size());
  }
}

// Demands of the caller are checked even if their sections do not run. A section that does not run reports
// nothing else.
TEST(Faults, DemandsAreCheckedInEverySection) {
  FakeMachine fake;
  make_nvidia_node(fake);
  NodeOptions options = options_of_job();
  options.host = options.gpu = options.network = false;
  EXPECT_TRUE(inspect_node(fake.machine(), options).findings.empty());
  options.wanted.gpus = Wanted{16, "--expected-gpus"};
  options.wanted.rdma_ports = Wanted{16, "--expected-rdma-nics"};
  options.wanted.required_tools = {"no-such-tool"};
  options.wanted.shared_memory_gib = Wanted{1e6, "--shm-min-gb"};
  options.wanted.locked_memory_gib = Wanted{1, "--ulimit-l-min-gb"};
  options.wanted.free_gpu_memory_gib = Wanted{1000, "PRIMUS_PREFLIGHT_MIN_FREE_MEM_GB"};
  std::map<std::string, Verdict> verdicts;
  for (const Finding& f : inspect_node(fake.machine(), options).findings) verdicts[f.check] = f.verdict;
  const std::map<std::string, Verdict> wanted{
      {"gpu.count", kFail},          {"network.rdma-count", kFail}, {"host.tools", kFail},
      {"host.shared-memory", kFail}, {"gpu.free-memory", kFail},    {"host.locked-memory", Verdict::kPass}};
  EXPECT_EQ(verdicts, wanted);
}

// In a Slurm job, a node has the name that Slurm's lists use.
TEST(Faults, NodesHaveSlurmsNames) {
  FakeMachine fake;
  make_cpu_node(fake);
  const std::string host = fake.machine()->host_name();
  fake.set("SLURMD_NODENAME", "of-no-job");
  EXPECT_EQ(fake.machine()->node_name(), host);
  fake.set("SLURM_JOB_ID", "1");
  fake.set("SLURMD_NODENAME", "gpu-07");
  EXPECT_EQ(inspect_node(fake.machine(), options_of_job()).host, "gpu-07");
  fake.set("SLURMD_NODENAME", "");
  fake.set("SLURM_JOB_NODELIST", "gpu-[07-12]");
  EXPECT_EQ(fake.machine()->node_name(), host);  // a shell without a task of the job
  fake.set("SLURM_NODEID", "1");
  EXPECT_EQ(fake.machine()->node_name(), "gpu-08");
  fake.set("SLURM_STEP_NODELIST", "gpu-[10,12]");
  EXPECT_EQ(fake.machine()->node_name(), "gpu-12");
}

// Each rank needs 1 GiB. If the machine has little memory, half of the memory suffices for all ranks.
TEST(Faults, EachRankNeedsAGibibyteOrTheRanksHalfTheMemory) {
  const auto verdict = [](int ranks, int gib, double available) {
    FakeMachine fake;
    make_cpu_node(fake);
    fake.write("/proc/meminfo",
               fmt::format("MemTotal: {} kB\nMemAvailable: {:.0f} kB\n", gib << 20, available * (1 << 20)));
    NodeOptions options = options_of_job();
    options.wanted.local_ranks = ranks;
    for (const Finding& f : inspect_node(fake.machine(), options).findings)
      if (f.check == "host.memory") return f.verdict;
    throw std::runtime_error("no finding");
  };
  EXPECT_EQ(verdict(8, 8, 5), Verdict::kPass) << "8 ranks need half of 8 GiB";
  EXPECT_EQ(verdict(8, 8, 3.9), kFail);
  EXPECT_EQ(verdict(8, 64, 8.1), Verdict::kPass);
  EXPECT_EQ(verdict(8, 64, 7.9), kFail);
}

// Empty tool output and empty files do not count as facts, and do not end the program.
TEST(Faults, EmptyTextsAreNoFacts) {
  for (const char* text : {"", "\n", " \n\n", ",", "\n,\n"}) {
    for (const auto make : {make_nvidia_node, make_amd_node, make_cpu_node}) {
      FakeMachine fake;
      make(fake);
      for (const auto& entry : std::filesystem::recursive_directory_iterator(fake.root()))
        if (entry.is_regular_file() && !entry.is_symlink()) std::ofstream(entry.path()) << text;
      for (const auto& entry : std::filesystem::directory_iterator(fake.tools()))
        std::ofstream(entry.path()) << "#!/bin/sh\nprintf '" << text << "'\n";
      EXPECT_EQ(verdict_of(inspect_node(fake.machine(), options_of_job()).findings), kFail);
    }
  }
}

TEST(Faults, ASilentClockToolIsSkipped) {
  FakeMachine fake;
  fake.tool("chronyc", "exit 0");
  fake.tool("timedatectl", "echo yes");
  const Machine machine({.environment = [&](const std::string& name) {
    return name == "PATH" ? std::optional(fake.tools().string()) : std::nullopt;
  }});
  EXPECT_EQ(machine.clock().source, "timedatectl");
  fake.tool("timedatectl", "");
  EXPECT_EQ(machine.clock().source, "the kernel");
}

TEST(Faults, ASectionThatDoesNotAnswerFails) {
  FakeMachine fake;
  make_nvidia_node(fake);
  fake.tool("nvidia-smi", "sleep 1");
  NodeOptions options = options_of_job();
  options.timeout = std::chrono::milliseconds(100);
  const NodeReport report = inspect_node(fake.machine(), options);
  const auto found = std::ranges::find(report.findings, "gpu.inventory", &Finding::check);
  ASSERT_NE(found, report.findings.end());
  EXPECT_EQ(found->category, "gpu");
  EXPECT_EQ(found->verdict, kFail);
  EXPECT_THAT(found->measured, HasSubstr("could not be examined"));
  EXPECT_TRUE(report.has_stuck_threads);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // sanitizers report a thread that outlives main()
}

TEST(Faults, AnEmptyMachineFails) {
  // Nothing can be read, and checks without data fail.
  FakeMachine fake;
  const NodeReport report = inspect_node(fake.machine(), options_of_job());
  EXPECT_EQ(verdict_of(report.findings), Verdict::kFail);
  EXPECT_THAT(text_of(report, Verdict::kFail), HasSubstr("host.memory"));
  EXPECT_THAT(text_of(report, Verdict::kFail), HasSubstr("host.open-files"));
}

}  // namespace
}  // namespace primus::preflight
