#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/terminal/terminal.h"
#include "safe/preflight/check.h"

namespace primus::preflight {
namespace {

constexpr double kGiB = 1 << 30;

std::string bytes(double value) { return human_bytes(value); }
std::string bytes(std::int64_t value) { return human_bytes(static_cast<double>(value)); }
std::string bytes(std::uint64_t value) { return human_bytes(static_cast<double>(value)); }

void judge_cpus(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (host.cpus == 0) {
    judge.fail({.measured = "the number of processors cannot be read", .fix = "mount /proc and /sys"});
    return;
  }
  const double usable =
      host.cpu_quota > 0 ? std::min<double>(host.cpu_quota, host.usable_cpus) : host.usable_cpus;
  const std::string measured = fmt::format("{:g} of {} hardware threads for {} rank{}", usable, host.cpus,
                                           in.wanted.local_ranks, in.wanted.local_ranks == 1 ? "" : "s");
  if (usable < in.wanted.local_ranks) {
    judge.fail(
        {.measured = measured,
         .wanted = fmt::format("at least {}", in.wanted.local_ranks),
         .source = "one per rank",
         .fix = "ask the scheduler for more: srun --cpus-per-task, the limits of the pod, or docker --cpus"});
  } else if (!in.found.gpu.gpus.empty() && usable < 2.0 * in.wanted.local_ranks) {
    judge.warn({.measured = measured,
                .wanted = fmt::format("at least {}", 2 * in.wanted.local_ranks),
                .source = "NCCL and RCCL add threads to those of each rank",
                .fix = "ask the scheduler for more: srun --cpus-per-task, or the limits of the pod"});
  } else {
    judge.pass(measured);
  }
}

void judge_governor(const CheckInput& in, Judge& judge) {
  const std::string& governor = in.found.host.governor;
  if (governor.empty()) {
    judge.skip("the machine does not report its clock governor (usual for virtual machines)");
  } else if (governor == "powersave" && !in.machine.exists("/sys/devices/system/cpu/intel_pstate")) {
    judge.warn({.measured = "the processor's clock is held low (governor powersave)",
                .wanted = "performance",
                .source = "the slowest core delays kernel launches and data reading",
                .fix = "run 'cpupower frequency-set -g performance'"});
  } else {
    judge.pass("governor " + governor);
  }
}

void judge_load(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (!host.load) {
    judge.fail({.measured = "/proc/loadavg cannot be read", .fix = "mount /proc"});
  } else if (*host.load > 0.5 * host.cpus) {
    judge.warn({.measured = fmt::format("load is {:.1f} on {} hardware threads", *host.load, host.cpus),
                .wanted = fmt::format("at most {:g}", 0.5 * host.cpus),
                .source = "half of the hardware threads, over a minute",
                .fix = "'top' shows what runs; end it or wait for it: measurements will be too low"});
  } else {
    judge.pass(fmt::format("load {:.2f}", *host.load));
  }
}

void judge_memory(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (host.memory <= 0) {
    judge.fail({.measured = "the memory cannot be read", .fix = "mount /proc"});
    return;
  }
  const std::string measured =
      fmt::format("{} of {} available{}", bytes(host.available), bytes(host.memory),
                  host.memory_limited_by.empty() ? "" : ", limited by " + host.memory_limited_by);
  const auto share = static_cast<double>(host.available) / static_cast<double>(host.memory);
  const double minimum = std::min(1.0 * kGiB * in.wanted.local_ranks, 0.5 * static_cast<double>(host.memory));
  if (static_cast<double>(host.available) < minimum) {
    judge.fail({.measured = measured,
                .wanted = bytes(minimum),
                .source = "1 GiB per rank",
                .fix = host.memory_limited_by.empty()
                           ? "end the processes that use the memory (ps aux --sort=-rss)"
                           : "ask for more: srun --mem, the pod's memory limit, or docker --memory"});
  } else if (share < 0.1) {
    judge.warn({.measured = measured,
                .wanted = "at least a tenth",
                .source = "AMD Primus's preflight warns there",
                .fix = "end the processes that use the memory (ps aux --sort=-rss)"});
  } else {
    judge.pass(measured);
  }
}

void judge_gpu_memory_ratio(const CheckInput& in, Judge& judge) {
  double device = 0;
  for (const Gpu& gpu : in.found.gpu.gpus) device += static_cast<double>(gpu.memory.value_or(0));
  if (device == 0) {
    judge.skip("no GPU");
    return;
  }
  const auto host = static_cast<double>(in.found.host.memory);
  const std::string measured = fmt::format("{} of host memory, {} of GPU memory", bytes(host), bytes(device));
  if (host < 0.5 * device) {
    judge.warn({.measured = measured,
                .wanted = "at least half as much",
                .source = "async_save keeps a copy of the checkpoint in host memory while it is written",
                .fix = "ask for more memory (srun --mem=0), or set async_save=false"});
  } else {
    judge.pass(measured);
  }
}

void judge_numa(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (host.numa.size() < 2) {
    judge.pass("one NUMA node");
    return;
  }
  // Skips NUMA nodes without CPUs, which contain the memory of a device.
  std::int64_t minimum = 0, maximum = 0;
  std::size_t counted = 0;
  for (const NumaNode& node : host.numa) {
    if (node.cpus == 0) continue;
    minimum = counted == 0 ? node.memory : std::min(minimum, node.memory);
    maximum = std::max(maximum, node.memory);
    ++counted;
  }
  const std::string measured =
      fmt::format("{} NUMA nodes with {} to {} each", counted, bytes(minimum), bytes(maximum));
  if (static_cast<double>(minimum) < 0.8 * static_cast<double>(maximum)) {
    judge.warn({.measured = measured,
                .wanted = "equal memory, within a fifth",
                .source = "ranks bound to a small node use the memory of another node",
                .fix = "check for a missing or disabled memory module (dmidecode -t memory)"});
  } else {
    judge.pass(measured);
  }
}

void judge_numa_balancing(const CheckInput& in, Judge& judge) {
  const auto state = in.machine.number("/proc/sys/kernel/numa_balancing");
  if (!state || in.found.host.numa.size() < 2) {
    judge.skip(state ? "one NUMA node" : "the kernel does not balance NUMA nodes");
  } else if (*state != 0 && !in.found.gpu.gpus.empty()) {
    judge.warn({.measured = "the kernel moves memory between NUMA nodes (numa_balancing = 1)",
                .wanted = "0",
                .source = "it stalls threads that feed GPUs (tuning guides of AMD and NVIDIA)",
                .fix = "run 'sysctl kernel.numa_balancing=0'"});
  } else {
    judge.pass(fmt::format("numa_balancing = {}", *state));
  }
}

void judge_memory_errors(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (host.uncorrected_memory_errors > 0) {
    judge.fail({.measured = fmt::format("{} uncorrectable errors of the host's memory",
                                        host.uncorrected_memory_errors),
                .wanted = "none",
                .source = "/sys/devices/system/edac",
                .fix = "drain the node and have the memory module replaced"});
  } else if (host.corrected_memory_errors > 1000) {
    judge.warn(
        {.measured = fmt::format("{} corrected errors of the host's memory", host.corrected_memory_errors),
         .wanted = "at most 1000",
         .source = "/sys/devices/system/edac; many corrected errors precede a failure",
         .fix = "have the memory module replaced at the next maintenance"});
  } else if (!in.machine.exists("/sys/devices/system/edac/mc/mc0")) {
    judge.skip("the kernel does not report memory errors here");
  } else {
    judge.pass(fmt::format("{} corrected errors", host.corrected_memory_errors));
  }
}

void judge_swap(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (static_cast<double>(host.swap_used) > 1.0 * kGiB) {
    judge.warn({.measured = bytes(host.swap_used) + " lie in swap",
                .wanted = "at most 1.00 GiB",
                .source = "a rank that waits for swapped memory delays all others",
                .fix = "end the processes that use the memory, then 'swapoff -a && swapon -a'"});
  } else {
    judge.pass(host.swap == 0 ? "no swap" : bytes(host.swap_used) + " used");
  }
}

void judge_huge_pages(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  const auto reserved = static_cast<double>(host.huge_pages) * static_cast<double>(host.huge_page_bytes);
  if (reserved > 0.25 * static_cast<double>(host.memory)) {
    judge.warn({.measured = fmt::format("{} are reserved as huge pages", bytes(reserved)),
                .wanted = "at most a quarter of the memory",
                .source = "ordinary programs such as Primus cannot use reserved pages",
                .fix = "run 'sysctl vm.nr_hugepages=0' if nothing else on the node needs them"});
  } else if (host.transparent_huge_pages == "never") {
    judge.warn({.measured = "transparent huge pages are switched off",
                .wanted = "madvise or always",
                .source = "large buffers cost more page faults without them",
                .fix = "run 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'"});
  } else {
    judge.pass("transparent huge pages: " +
               (host.transparent_huge_pages.empty() ? "not known" : host.transparent_huge_pages));
  }
}

void judge_shared_memory(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  const auto& asked = in.wanted.shared_memory_gib;
  if (asked && asked->value <= 0) {
    judge.skip("switched off by " + asked->source);
    return;
  }
  const std::string fix =
      "start the container with more: docker run --shm-size=16g (or --ipc=host); in Kubernetes, mount an "
      "emptyDir with medium: Memory at /dev/shm; elsewhere 'mount -o remount,size=16g /dev/shm'";
  if (!host.shared_memory) {
    judge.fail({.measured = "/dev/shm does not exist",
                .wanted = "shared memory",
                .source = "ranks of one host communicate through it",
                .fix = fix});
    return;
  }
  const auto total = static_cast<double>(host.shared_memory->total);
  const auto free = static_cast<double>(host.shared_memory->available);
  const bool gpus = !in.found.gpu.gpus.empty() || in.wanted.local_ranks > 1;
  // The default minimum suffices for the rings in shared memory through which the ranks of a host
  // communicate.
  const double minimum = asked ? asked->value * kGiB : gpus ? 8 * kGiB : 0.0625 * kGiB;
  const std::string source = asked  ? asked->source
                             : gpus ? "the default of node_smoke, for several ranks or GPUs"
                                    : "space for the message buffers of a rank";
  const std::string measured = fmt::format("/dev/shm holds {}, {} free", bytes(total), bytes(free));
  // On a small machine, shared memory of about half the main memory suffices, even if it is below the
  // minimum.
  const bool is_small_machine = !asked && total >= 0.4 * static_cast<double>(host.memory) && total > 0;
  if (total < minimum && !is_small_machine) {
    judge.fail({.measured = measured, .wanted = "at least " + bytes(minimum), .source = source, .fix = fix});
  } else if (free < 0.1 * total) {
    judge.fail({.measured = measured,
                .wanted = "at least a tenth free",
                .source = "communication between ranks of one host fails when it is full",
                .fix = "remove files that killed jobs left there: ls -l /dev/shm"});
  } else {
    judge.pass(measured, "at least " + bytes(minimum));
  }
}

// A rule for one limit of /proc/self/limits. `warn_below` and `fail_below` have the limit's unit.
struct LimitRule {
  const char *name, *what;
  double warn_below, fail_below;
  const char *source, *fix;
};

void judge_limit(const CheckInput& in, Judge& judge, const LimitRule& rule) {
  const auto limit = in.found.host.limits.find(rule.name);
  if (limit == in.found.host.limits.end()) {
    judge.fail({.measured = fmt::format("the limit of {} cannot be read", rule.what), .fix = "mount /proc"});
    return;
  }
  if (!limit->second.soft) {
    judge.pass(fmt::format("{}: unlimited", rule.what));
    return;
  }
  const auto value = static_cast<double>(*limit->second.soft);
  Finding finding{.measured = fmt::format("{}: at most {:.0f}", rule.what, value),
                  .wanted = fmt::format("at least {:.0f}", std::max(rule.warn_below, rule.fail_below)),
                  .source = rule.source,
                  .fix = rule.fix};
  if (value < rule.fail_below) {
    judge.fail(finding);
  } else if (value < rule.warn_below) {
    judge.warn(finding);
  } else {
    judge.pass(finding.measured);
  }
}

void judge_open_files(const CheckInput& in, Judge& judge) {
  judge_limit(
      in, judge,
      {.name = "Max open files",
       .what = "open files",
       .warn_below = 4096,
       .fail_below = 1024,
       .source = "each peer needs a connection, and data and checkpoints need files",
       .fix = "raise it: 'ulimit -n 65536', docker --ulimit nofile=65536, LimitNOFILE of the service"});
}

void judge_processes(const CheckInput& in, Judge& judge) {
  judge_limit(in, judge,
              {.name = "Max processes",
               .what = "processes and threads of the user",
               .warn_below = 16384,
               .fail_below = 1024,
               .source = "each rank has threads for compute, data and communication, on each of many cores",
               .fix = "raise it: 'ulimit -u 65536', or nproc in /etc/security/limits.conf"});
  const auto left = in.found.host.pids_left;
  if (left && *left < 1024) {
    judge.fail(
        {.measured = fmt::format("control groups leave {} processes and threads", *left),
         .wanted = "at least 1024",
         .source = "each rank has threads for compute, data and communication",
         .fix = "raise it: docker --pids-limit, podPidsLimit of the kubelet, TasksMax of the service"});
  }
}

void judge_stack(const CheckInput& in, Judge& judge) {
  judge_limit(in, judge,
              {.name = "Max stack size",
               .what = "bytes of stack per thread",
               .warn_below = 8 << 20,
               .fail_below = 1 << 20,
               .source = "the usual 8 MiB",
               .fix = "raise it: 'ulimit -s 8192'"});
}

void judge_locked_memory(const CheckInput& in, Judge& judge) {
  const auto& asked = in.wanted.locked_memory_gib;
  if (asked && asked->value <= 0) {
    judge.skip("switched off by " + asked->source);
    return;
  }
  const bool rdma = std::any_of(in.found.network.ports.begin(), in.found.network.ports.end(),
                                [](const RdmaPort& port) { return port.used; });
  if (!rdma && !asked) {
    judge.skip("no RDMA device needs locked memory");
    return;
  }
  const double gib = asked ? asked->value : 32;
  judge_limit(
      in, judge,
      {.name = "Max locked memory",
       .what = "bytes of locked memory",
       .warn_below = 0,
       .fail_below = gib * kGiB,
       .source = asked ? asked->source.c_str() : "the default of node_smoke: RDMA locks its send buffers",
       .fix =
           "raise it: 'ulimit -l unlimited', docker --ulimit memlock=-1, LimitMEMLOCK=infinity of slurmd"});
}

void judge_clock(const CheckInput& in, Judge& judge) {
  const ClockState& clock = in.found.host.clock;
  if (!clock.known) {
    judge.skip("clock synchronisation cannot be checked (no chronyc, no timedatectl)");
  } else if (!clock.synchronised) {
    judge.warn({.measured = fmt::format("the clock is not synchronised according to {}", clock.source),
                .wanted = "NTP",
                .source = "logs of several nodes are ordered by their clocks",
                .fix = "start a time service: 'systemctl enable --now chronyd'"});
  } else if (clock.error_seconds > 1) {
    judge.warn({.measured = fmt::format("the clock may be off by {:.1f} s according to {}",
                                        clock.error_seconds, clock.source),
                .wanted = "at most 1 s",
                .source = "logs of several nodes are ordered by their clocks",
                .fix = "run 'chronyc sources': the time servers may be unreachable"});
  } else {
    judge.pass("synchronised, says " + clock.source);
  }
}

void judge_disks(const CheckInput& in, Judge& judge) {
  if (in.found.host.file_systems.empty()) judge.skip("no folder was named");
  for (const FileSystem& disk : in.found.host.file_systems) {
    const std::string place = fmt::format("{} ({})", disk.path, disk.use);
    if (!disk.space) {
      judge.fail({.where = disk.path,
                  .measured = place + " does not answer",
                  .wanted = "a file system",
                  .source = "",
                  .fix = "mount it, or choose another folder"});
      continue;
    }
    const Space& space = *disk.space;
    const auto available = static_cast<double>(space.available);
    const std::string measured =
        fmt::format("{} has {} of {} free", place, bytes(available), bytes(space.total));
    if (space.read_only) {
      judge.fail({.where = disk.path,
                  .measured = place + " is read-only",
                  .wanted = "a writable folder",
                  .source = "",
                  .fix = "remount it for writing, or choose another folder; a disk with errors becomes "
                         "read-only: see dmesg"});
    } else if (available < 1.0 * kGiB && available < 0.05 * static_cast<double>(space.total)) {
      judge.fail({.where = disk.path,
                  .measured = measured,
                  .wanted = "at least 1.00 GiB",
                  .source = "space for logs and the smallest checkpoints",
                  .fix = "remove old runs and checkpoints, or choose another folder"});
    } else if (available < 0.05 * static_cast<double>(space.total)) {
      judge.warn({.where = disk.path,
                  .measured = measured,
                  .wanted = "at least a twentieth",
                  .source = "file systems get slow when they are full",
                  .fix = "remove old runs and checkpoints"});
    } else if (space.inodes > 0 && static_cast<double>(space.inodes_available) <
                                       std::min(10'000.0, 0.01 * static_cast<double>(space.inodes))) {
      judge.fail(
          {.where = disk.path,
           .measured = fmt::format("{} can hold {} more files", place, space.inodes_available),
           .wanted = "at least 10000, or a hundredth",
           .source = "checkpoints and logs consist of many files",
           .fix =
               "remove small files, for example of old runs; 'find DIR -xdev -type f | wc -l' counts them"});
    } else {
      judge.pass(measured, {}, disk.path);
    }
  }
}

void judge_kernel_log(const CheckInput& in, Judge& judge) {
  const HostFacts& host = in.found.host;
  if (!host.kernel_problems) {
    judge.skip("the kernel's log was not read: " + host.why_no_kernel_log);
    return;
  }
  if (host.kernel_problems->empty()) judge.pass("no errors in the kernel log");
  for (const KernelProblem& problem : *host.kernel_problems) {
    Finding finding{.measured = fmt::format("{}: \"{}\"", problem.kind, problem.line),
                    .wanted = "no such error",
                    .source = "the newest lines of dmesg",
                    .fix = problem.fix};
    problem.serious ? judge.fail(finding) : judge.warn(finding);
  }
}

void judge_tools(const CheckInput& in, Judge& judge) {
  if (in.wanted.required_tools.empty()) judge.skip("no tool is required");
  for (const std::string& tool : in.wanted.required_tools) {
    const std::string file = in.machine.program(tool);
    if (!file.empty()) {
      judge.pass(file, {}, tool);
    } else {
      judge.fail({.where = tool,
                  .measured = fmt::format("{} is not in PATH", tool),
                  .wanted = tool,
                  .source = "--require-tools",
                  .fix = "install it, or add its folder to PATH"});
    }
  }
}

}  // namespace

extern const Check kHostCpus{"host.cpus", "host",
                             "Do affinity and control groups allow enough hardware threads for the ranks?",
                             judge_cpus};
extern const Check kHostGovernor{"host.governor", "host", "Does the processor run at its full clock?",
                                 judge_governor};
extern const Check kHostLoad{"host.load", "host", "Do other processes load the machine?", judge_load};
extern const Check kHostMemory{"host.memory", "host",
                               "Is there enough memory for the ranks within the control group limits?",
                               judge_memory};
extern const Check kHostMemoryForGpus{"host.memory-for-gpus", "host",
                                      "Is host memory large enough relative to GPU memory?",
                                      judge_gpu_memory_ratio};
extern const Check kHostMemoryErrors{"host.memory-errors", "host", "Does host memory have errors?",
                                     judge_memory_errors};
extern const Check kHostNuma{"host.numa", "host", "Do all NUMA nodes have the same memory?", judge_numa};
extern const Check kHostNumaBalancing{"host.numa-balancing", "host",
                                      "Does the kernel keep memory on its NUMA node?", judge_numa_balancing};
extern const Check kHostSwap{"host.swap", "host", "Is memory swapped to disk?", judge_swap};
extern const Check kHostHugePages{"host.huge-pages", "host", "Are huge pages configured well?",
                                  judge_huge_pages};
extern const Check kHostSharedMemory{
    .name = "host.shared-memory",
    .category = "host",
    .question = "Is /dev/shm large enough, and free?",
    .judge = judge_shared_memory,
    .threshold = {"--shm-min-gb", "G", "minimum GiB of /dev/shm; 0: not checked (default: 8 with GPUs)",
                  &Requirements::shared_memory_gib, 2}};
extern const Check kHostOpenFiles{"host.open-files", "host", "Can a process open enough files?",
                                  judge_open_files};
extern const Check kHostProcesses{"host.processes", "host",
                                  "Can the user start enough processes and threads?", judge_processes};
extern const Check kHostStack{"host.stack", "host", "Is a thread's stack large enough?", judge_stack};
extern const Check kHostLockedMemory{
    .name = "host.locked-memory",
    .category = "host",
    .question = "Can RDMA lock memory?",
    .judge = judge_locked_memory,
    .threshold = {"--ulimit-l-min-gb", "G",
                  "minimum GiB that may be locked; 0: not checked (default: 32 with RDMA)",
                  &Requirements::locked_memory_gib, 1}};
extern const Check kHostClock{"host.clock", "host", "Is the clock synchronised?", judge_clock};
extern const Check kHostDisks{"host.disks", "host", "Do the file systems respond and have free space?",
                              judge_disks};
extern const Check kHostKernelLog{"host.kernel-log", "host", "Has the kernel reported errors recently?",
                                  judge_kernel_log};
extern const Check kHostTools{"host.tools", "host", "Are the required tools installed?", judge_tools,
                              [](const Requirements& wanted) { return !wanted.required_tools.empty(); }};

}  // namespace primus::preflight
