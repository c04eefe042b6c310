// Watches the memory of this process. Training allocates its memory at the start, so memory that grows all
// the time ends in the kernel's out-of-memory killer.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/terminal/terminal.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

// The memory must grow in each part of the window, and in total by a share of the machine's memory.
constexpr double kWindow = 600, kWarmUp = 300;  // seconds
constexpr std::size_t kParts = 6;
constexpr double kShare = 0.01;

class ProcessMemory final : public Probe {
 public:
  explicit ProcessMemory(std::shared_ptr<const preflight::Machine> machine) : machine_(std::move(machine)) {}

  void look(double now, Findings& found) override {
    const auto status = machine_->text("/proc/self/status");
    const auto available = memory("/proc/meminfo", "MemAvailable:"),
               total = memory("/proc/meminfo", "MemTotal:");
    const auto own = memory("/proc/self/status", "RssAnon:");
    if (!status || !available || !total || !own) return;
    if (began_ < 0) began_ = now;
    if (now - began_ < kWarmUp) return;
    if (readings_.empty() || now - readings_.back().time >= kWindow / kParts)
      readings_.push_back({now, *own});
    if (readings_.size() > kParts + 1) readings_.pop_front();
    if (readings_.size() <= kParts || reported_) return;
    const bool grows = std::ranges::adjacent_find(readings_, [](const Reading& a, const Reading& b) {
                         return b.bytes <= a.bytes;
                       }) == readings_.end();
    const double growth = readings_.back().bytes - readings_.front().bytes;
    if (!grows || growth < kShare * *total) return;
    reported_ = true;
    const double rate = growth / (readings_.back().time - readings_.front().time);
    found.warnings.push_back(
        {.detector = "memory_growth",
         .value = readings_.back().bytes,
         .usual = readings_.front().bytes,
         .limit = readings_.front().bytes + kShare * *total,
         .text = fmt::format("the memory of a rank's process grows: {} in {}; at this rate, the machine's "
                             "memory is full in {}",
                             human_bytes(growth), human_duration(growth / rate),
                             human_duration(*available / rate)),
         .advice =
             "save often (save_interval), and report what the run uses: reward programs, data, plug-ins"});
  }

 private:
  struct Reading {
    double time, bytes;
  };
  // Returns the number of bytes in a line such as "RssAnon:   12 kB".
  std::optional<double> memory(const char* file, std::string_view key) const {
    for (const std::string& line : preflight::lines_of(machine_->text(file).value_or(""))) {
      if (!line.starts_with(key)) continue;
      const auto kib = preflight::leading_number(std::string_view(line).substr(key.size()));
      return kib ? std::optional(1024.0 * static_cast<double>(*kib)) : std::nullopt;
    }
    return std::nullopt;
  }

  std::shared_ptr<const preflight::Machine> machine_;
  std::deque<Reading> readings_;
  double began_ = -1;
  bool reported_ = false;
};

}  // namespace

extern const ProbeEntry kProcessMemory{"process_memory", true,
                                       [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                                         return std::make_unique<ProcessMemory>(context.machine);
                                       }};

}  // namespace primus::watch
