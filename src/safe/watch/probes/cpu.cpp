// Watches the causes of slow CPU work of a rank: limits of control groups, other programs on its cores,
// swapping, waiting for disks, and low clocks. These are symptoms, which the detector of slow ranks names as
// causes.
#include <fmt/format.h>

#include <map>
#include <string>

#include "base/system/control_groups.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

constexpr double kShare = 0.05;       // of the time: held up by a limit, or waiting for a core
constexpr double kSwapped = 256;      // pages per second that are read from swap
constexpr double kDiskPressure = 10;  // percent of the last 10 s in which programs waited for disks
constexpr double kLowClock = 0.5;     // share of the largest clock
constexpr int kMostCpus = 16;         // CPUs whose clocks are read

class Cpu final : public Probe {
 public:
  explicit Cpu(std::shared_ptr<const preflight::Machine> machine) : machine_(std::move(machine)) {}

  void look(double now, Findings& found) override {
    const double passed = now - last_;
    const bool first = std::exchange(last_, now) < 0 || passed <= 0;
    const double throttled = rise("throttled", throttled_seconds());
    double running = 0, waiting = 0;
    read_threads(running, waiting);
    running = rise("running", running);
    waiting = rise("waiting", waiting);
    const double swapped = rise("swapped", number_after("/proc/vmstat", "pswpin "));
    if (disk_pressure() > kDiskPressure) found.set(Symptom::kSlowDisk);
    if (clock_share() < kLowClock) found.set(Symptom::kSlowClock);
    if (first) return;
    if (throttled > kShare * passed) found.set(Symptom::kCpuLimit);
    if (waiting > kShare * running && running > kShare * passed) found.set(Symptom::kCpuBusy);
    if (swapped > kSwapped * passed) found.set(Symptom::kSwapping);
  }

 private:
  // Returns by how much a counter has grown since the last call for this name.
  double rise(const std::string& name, double value) {
    const double before = std::exchange(counters_[name], value);
    return value - before;
  }

  double number_after(const std::string& file, std::string_view key) const {
    for (const std::string& line : preflight::lines_of(machine_->text(file).value_or(""))) {
      if (line.starts_with(key))
        return preflight::leading_real(std::string_view(line).substr(key.size())).value_or(0);
    }
    return 0;
  }

  double throttled_seconds() const {
    double seconds = 0;
    const std::string prefix = machine_->prefix();
    for (const ControlGroup& group : control_groups("cpu", prefix)) {
      const std::string file = group.folder.substr(prefix.size()) + "/cpu.stat";
      seconds += group.v2 ? 1e-6 * number_after(file, "throttled_usec ")
                          : 1e-9 * number_after(file, "throttled_time ");
    }
    return seconds;
  }

  // Adds up the seconds that threads of this process ran, and waited for a core.
  void read_threads(double& running, double& waiting) const {
    for (const std::string& thread : machine_->list("/proc/self/task")) {
      const auto words =
          preflight::words_of(machine_->text("/proc/self/task/" + thread + "/schedstat").value_or(""));
      if (words.size() < 2) continue;
      running += 1e-9 * preflight::leading_real(words[0]).value_or(0);
      waiting += 1e-9 * preflight::leading_real(words[1]).value_or(0);
    }
  }

  double disk_pressure() const {
    for (const std::string& line : preflight::lines_of(machine_->text("/proc/pressure/io").value_or(""))) {
      constexpr std::string_view kKey = "some avg10=";
      if (line.starts_with(kKey))
        return preflight::leading_real(std::string_view(line).substr(kKey.size())).value_or(0);
    }
    return 0;
  }

  // Returns the mean clock as a share of the largest clock; 1 if clocks are unknown.
  double clock_share() const {
    double sum = 0;
    int count = 0;
    for (int cpu = 0; cpu < kMostCpus; ++cpu) {
      const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/cpufreq/", cpu);
      const auto now = machine_->number(folder + "scaling_cur_freq");
      const auto largest = machine_->number(folder + "cpuinfo_max_freq");
      if (!now || !largest || *largest <= 0) continue;
      sum += static_cast<double>(*now) / static_cast<double>(*largest);
      ++count;
    }
    return count == 0 ? 1 : sum / count;
  }

  std::shared_ptr<const preflight::Machine> machine_;
  std::map<std::string, double> counters_;
  double last_ = -1;
};

}  // namespace

extern const ProbeEntry kCpu{"cpu", true, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                               return std::make_unique<Cpu>(context.machine);
                             }};

}  // namespace primus::watch
