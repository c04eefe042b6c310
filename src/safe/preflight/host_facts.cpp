#include "safe/preflight/host_facts.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <set>
#include <span>

#include "base/system/control_groups.h"
#include "base/system/host_memory.h"
#include "base/terminal/terminal.h"

namespace primus::preflight {
namespace {

// Returns the value of `key` in a text with lines "key: value" or "key=value".
std::string value_of(const std::string& text, std::string_view key, char separator) {
  for (const std::string& line : lines_of(text)) {
    const std::size_t at = line.find(separator);
    if (at != std::string::npos && trimmed(line.substr(0, at)) == key) return trimmed(line.substr(at + 1));
  }
  return {};
}

std::int64_t bytes_of(const std::string& meminfo, std::string_view key) {
  return leading_number(value_of(meminfo, key, ':')).value_or(0) * 1024;
}

void collect_cpu(const Machine& machine, HostFacts& host) {
  const std::string info = machine.text("/proc/cpuinfo").value_or("");
  host.cpu_model = value_of(info, "model name", ':');
  std::set<std::string> packages, cores;
  for (const std::string& cpu : machine.list("/sys/devices/system/cpu")) {
    if (!cpu.starts_with("cpu") || cpu.size() < 4 || !std::isdigit(static_cast<unsigned char>(cpu[3])))
      continue;
    const std::string topology = "/sys/devices/system/cpu/" + cpu + "/topology/";
    const auto package = machine.text(topology + "physical_package_id");
    if (!package) continue;  // an offline CPU has no package
    packages.insert(*package);
    cores.insert(*package + ":" + machine.text(topology + "core_id").value_or(cpu));
    ++host.cpus;
  }
  if (host.cpus == 0) {
    for (const std::string& line : lines_of(info)) host.cpus += line.starts_with("processor");
  }
  host.sockets = static_cast<int>(packages.size());
  host.cores = cores.empty() ? host.cpus : static_cast<int>(cores.size());
  host.usable_cpus =
      count_of_list(value_of(machine.text("/proc/self/status").value_or(""), "Cpus_allowed_list", ':'));
  host.governor = machine.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").value_or("");
  for (const ControlGroup& group : control_groups("cpu", machine.prefix())) {
    const std::string folder = group.folder.substr(machine.prefix().size());
    double time = 0, period = 0;  // microseconds; "max" or negative: no limit
    if (group.v2) {
      const auto words = words_of(machine.text(folder + "/cpu.max").value_or(""));
      if (words.size() == 2) {
        time = leading_real(words[0]).value_or(0);
        period = leading_real(words[1]).value_or(0);
      }
    } else {
      time = static_cast<double>(machine.number(folder + "/cpu.cfs_quota_us").value_or(0));
      period = static_cast<double>(machine.number(folder + "/cpu.cfs_period_us").value_or(0));
    }
    if (time <= 0 || period <= 0) continue;
    host.cpu_quota = host.cpu_quota == 0 ? time / period : std::min(host.cpu_quota, time / period);
  }
}

void collect_memory(const Machine& machine, HostFacts& host) {
  const HostMemory memory = host_memory(machine.prefix());
  host.memory = memory.total;
  host.available = memory.available;
  host.memory_limited_by = memory.limited_by;
  const std::string info = machine.text("/proc/meminfo").value_or("");
  host.swap = bytes_of(info, "SwapTotal");
  host.swap_used = host.swap - bytes_of(info, "SwapFree");
  host.huge_pages = leading_number(value_of(info, "HugePages_Total", ':')).value_or(0);
  host.huge_page_bytes = bytes_of(info, "Hugepagesize");
  const std::string transparent =
      machine.text("/sys/kernel/mm/transparent_hugepage/enabled").value_or("");  // "always [madvise] never"
  const std::size_t begin = transparent.find('['), end = transparent.find(']');
  if (begin != std::string::npos && end != std::string::npos && end > begin)
    host.transparent_huge_pages = transparent.substr(begin + 1, end - begin - 1);
  for (const std::string& node : machine.list("/sys/devices/system/node")) {
    const auto number = node.starts_with("node") ? leading_number(node.substr(4)) : std::nullopt;
    if (!number) continue;
    const std::string folder = "/sys/devices/system/node/" + node;
    NumaNode numa{.number = static_cast<int>(*number),
                  .cpus = count_of_list(machine.text(folder + "/cpulist").value_or(""))};
    for (const std::string& line : lines_of(machine.text(folder + "/meminfo").value_or(""))) {
      const std::vector<std::string> words = words_of(line);  // "Node 0 MemTotal: 24684092 kB"
      if (words.size() < 4) continue;
      if (words[2] == "MemTotal:") numa.memory = leading_number(words[3]).value_or(0) * 1024;
      if (words[2] == "MemFree:") numa.free = leading_number(words[3]).value_or(0) * 1024;
    }
    host.numa.push_back(numa);
  }
  for (const std::string& controller : machine.list("/sys/devices/system/edac/mc")) {
    const std::string folder = "/sys/devices/system/edac/mc/" + controller;
    host.corrected_memory_errors += machine.number(folder + "/ce_count").value_or(0);
    host.uncorrected_memory_errors += machine.number(folder + "/ue_count").value_or(0);
  }
}

void collect_limits(const Machine& machine, HostFacts& host) {
  // "Max locked memory         8388608              8388608              bytes"
  for (const std::string& line : lines_of(machine.text("/proc/self/limits").value_or(""))) {
    if (!line.starts_with("Max ") || line.size() < 27) continue;
    const std::vector<std::string> words = words_of(std::string_view(line).substr(26));
    if (words.empty()) continue;
    host.limits[trimmed(line.substr(0, 26))] = {words[0] == "unlimited" ? std::nullopt
                                                                        : leading_number(words[0])};
  }
  for (const ControlGroup& group : control_groups("pids", machine.prefix())) {
    const std::string folder = group.folder.substr(machine.prefix().size());
    const auto maximum = machine.number(folder + "/pids.max");  // "max" is not a number
    const auto now = machine.number(folder + "/pids.current");
    if (!maximum || !now) continue;
    const std::int64_t left = std::max<std::int64_t>(0, *maximum - *now);
    if (!host.pids_left || left < *host.pids_left) host.pids_left = left;
  }
}

// Returns the type of the file system of `path`, from /proc/self/mounts.
std::string type_of_file_system(const Machine& machine, const std::string& path) {
  std::string best, type;
  for (const std::string& line : lines_of(machine.text("/proc/self/mounts").value_or(""))) {
    const std::vector<std::string> words = words_of(line);  // device, folder, type, options ...
    if (words.size() < 3) continue;
    const std::string& folder = words[1];
    const bool holds = path == folder || folder == "/" || path.starts_with(folder + "/");
    // if several file systems are mounted at one folder, the last of them is visible
    if (holds && folder.size() >= best.size()) {
      best = folder;
      type = words[2];
    }
  }
  return type;
}

// Returns the nearest existing folder at or above `path`.
std::string existing_part(const Machine& machine, const std::string& path) {
  Path place = std::filesystem::absolute(path).lexically_normal();
  while (place != "/" && !machine.exists(place.string())) place = place.parent_path();
  return place.string();
}

}  // namespace

HostFacts collect_host(const Machine& machine, const HostQuestions& questions) {
  HostFacts host;
  host.name = machine.host_name();
  host.system = value_of(machine.text("/etc/os-release").value_or(""), "PRETTY_NAME", '=');
  std::erase(host.system, '"');
  host.kernel = machine.text("/proc/sys/kernel/osrelease").value_or("");
  host.libc = gnu_get_libc_version();
  if (machine.exists("/.dockerenv")) host.container = "docker";
  if (machine.exists("/run/.containerenv")) host.container = "podman";
  if (machine.variable("APPTAINER_NAME") || machine.variable("SINGULARITY_NAME"))
    host.container = "apptainer";
  if (machine.variable("KUBERNETES_SERVICE_HOST")) host.container = "kubernetes";
  collect_cpu(machine, host);
  collect_memory(machine, host);
  collect_limits(machine, host);
  host.shared_memory = machine.space("/dev/shm");
  host.load = leading_real(machine.text("/proc/loadavg").value_or(""));
  host.clock = machine.clock();
  for (const auto& [use, path] : questions.folders) {
    FileSystem system{.use = use, .path = existing_part(machine, path)};
    system.type = type_of_file_system(machine, system.path);
    system.space = machine.space(system.path);
    host.file_systems.push_back(system);
  }
  if (!questions.read_kernel_log) {
    host.why_no_kernel_log = "--skip-dmesg";
    return host;
  }
  const SubprocessResult log = machine.command({"dmesg"});
  const auto uptime = leading_real(machine.text("/proc/uptime").value_or(""));
  if (log.ok() && uptime) {
    host.kernel_problems = kernel_problems(log.out, *uptime, 60.0 * questions.kernel_log_minutes);
  } else {
    host.why_no_kernel_log =
        !log.found ? "dmesg is not installed" : "dmesg lacks permission (kernel.dmesg_restrict)";
  }
  return host;
}

std::vector<KernelProblem> kernel_problems(std::string_view log, double uptime, double seconds) {
  struct Pattern {
    std::string_view text, also;  // a line matches if it contains both texts
    std::string_view kind, fix;
    bool serious;
  };
  static constexpr std::string_view kHardware = "the processor reported a hardware error";
  static constexpr std::string_view kReadErrors =
      "read them with 'ras-mc-ctl --errors', and have the part replaced if they repeat";
  static constexpr Pattern kPatterns[] = {
      {"NVRM: Xid", "", "the NVIDIA driver reported an error (Xid)",
       "look up the Xid in NVIDIA's list, reset the GPU or reboot, and drain the node if it comes back",
       true},
      {"amdgpu", "GPU reset begin", "an AMD GPU was reset",
       "look for the job that hung it, and drain the node if it repeats", true},
      {"amdgpu", "timeout", "an AMD GPU hung", "reset the GPU or reboot the node", true},
      {"amdgpu", "uncorrectable hardware errors", "an AMD GPU has uncorrectable errors",
       "reset the GPU, and have it replaced if the errors come back", true},
      {"[Hardware Error]", "Corrected error", "", "", false},  // not reported here: EDAC counts corrected
                                                               // errors
      {"[Hardware Error]", "", kHardware, kReadErrors, true},
      {"Machine check events logged", "", kHardware, kReadErrors, false},
      {"EDAC", " UE ", "the host's memory has an uncorrectable error", "have the memory module replaced",
       true},
      {"AER: Uncorrected", "", "a PCI Express link has uncorrected errors",
       "reseat or replace the card that the line names", true},
      {"EXT4-fs error", "", "a file system reported an error",
       "check it with fsck before more is written to it", true},
      {"XFS (", "orruption", "a file system reported an error",
       "check it with xfs_repair before more is written to it", true},
      {"I/O error", "dev ", "a disk reported an error", "replace the disk; 'smartctl -a' shows its state",
       true},
      {"nfs: server", "not responding", "a file server did not answer",
       "check the server and the network to it", true},
      {"Out of memory: Killed process", "", "the kernel killed a process for lack of memory",
       "find what uses the memory (ps aux --sort=-rss) before you start a run", false},
      {"soft lockup", "", "a processor was stuck in the kernel",
       "update kernel and drivers, and reboot the node", true},
      {"blocked for more than", "", "a process was blocked in the kernel for minutes",
       "check the file systems and drivers in the stack trace that follows in dmesg", false},
      {"Link is Down", "", "a network link went down", "check the cable and the switch port", false},
  };
  std::vector<KernelProblem> problems;
  for (const std::string& line : lines_of(log)) {
    double when = uptime;
    std::string_view text = line;
    if (text.starts_with('[')) {
      when = leading_real(text.substr(1)).value_or(uptime);
      const std::size_t end = text.find("] ");
      if (end != std::string_view::npos) text.remove_prefix(end + 2);
    }
    if (uptime - when > seconds) continue;
    for (const Pattern& pattern : kPatterns) {
      if (text.find(pattern.text) == std::string_view::npos) continue;
      if (text.find(pattern.also) == std::string_view::npos) continue;
      if (pattern.kind.empty()) break;
      const auto known = std::find_if(problems.begin(), problems.end(), [&](const KernelProblem& problem) {
        return problem.kind == pattern.kind;
      });
      if (known != problems.end()) {  // keeps only the newest line of each kind
        known->line = text;
        known->serious |= pattern.serious;
      } else {
        problems.push_back(
            {std::string(pattern.kind), std::string(text), std::string(pattern.fix), pattern.serious});
      }
      break;
    }
  }
  return problems;
}

void add_facts(const HostFacts& host, std::vector<Fact>& facts) {
  const auto add = [&](const char* name, const std::string& value, Verdict drift = Verdict::kPass) {
    facts.push_back({"host", name, value.empty() ? "-" : value, drift});
  };
  const auto bytes = [](std::int64_t value) { return human_bytes(static_cast<double>(value)); };
  add("system", host.system, Verdict::kWarn);
  add("kernel", host.kernel, Verdict::kWarn);
  add("C library", host.libc, Verdict::kWarn);
  add("container", host.container, Verdict::kWarn);
  add("processor", host.cpu_model, Verdict::kWarn);
  add("sockets, cores, threads", fmt::format("{}, {}, {}", host.sockets, host.cores, host.cpus),
      Verdict::kWarn);
  add("usable threads",
      host.cpu_quota > 0 ? fmt::format("{}, time of {:.1f}", host.usable_cpus, host.cpu_quota)
                         : fmt::format("{}", host.usable_cpus),
      Verdict::kWarn);
  add("frequency governor", host.governor, Verdict::kWarn);
  add("NUMA nodes", fmt::format("{}", host.numa.size()), Verdict::kWarn);
  // The size is rounded, because firmware reserves different amounts of memory on equal machines.
  add("memory", fmt::format("{:.0f} GiB", static_cast<double>(host.memory) / (1 << 30)), Verdict::kWarn);
  add("memory available", bytes(host.available));
  add("memory limited by", host.memory_limited_by);
  add("swap", fmt::format("{}, {} used", bytes(host.swap), bytes(host.swap_used)));
  add("huge pages",
      host.huge_pages == 0 ? "none" : fmt::format("{} of {}", host.huge_pages, bytes(host.huge_page_bytes)),
      Verdict::kWarn);
  add("transparent huge pages", host.transparent_huge_pages, Verdict::kWarn);
  if (host.shared_memory)
    add("/dev/shm", fmt::format("{}, {} free", human_bytes(static_cast<double>(host.shared_memory->total)),
                                human_bytes(static_cast<double>(host.shared_memory->available))));
  for (const char* name : {"Max locked memory", "Max open files", "Max processes", "Max stack size"}) {
    const auto limit = host.limits.find(name);
    if (limit == host.limits.end()) continue;
    add(("limit: " + std::string(name + 4)).c_str(),
        limit->second.soft ? fmt::format("{}", *limit->second.soft) : "unlimited", Verdict::kWarn);
  }
  if (host.load) add("load", fmt::format("{:.2f}", *host.load));
  for (const FileSystem& system : host.file_systems) {
    add(("disk for " + system.use).c_str(),
        fmt::format("{} ({}): {}", system.path, system.type.empty() ? "?" : system.type,
                    system.space ? human_bytes(static_cast<double>(system.space->available)) + " free"
                                 : "does not answer"));
  }
}

}  // namespace primus::preflight
