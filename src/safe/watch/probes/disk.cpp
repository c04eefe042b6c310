// Watches the file system of the run's folder, and warns before it is full.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/terminal/terminal.h"
#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

constexpr double kWindow = 1800;      // seconds over which the rate is measured
constexpr double kSoon = 3600;        // a disk that is full within this time is reported
constexpr double kLeast = 300;        // seconds of readings before the rate is used
constexpr double kNearlyFull = 0.01;  // share of free space that is reported at any rate
constexpr double kRecovered = 0.02;

class Disk final : public Probe {
 public:
  explicit Disk(const ProbeContext& context) : machine_(context.machine), folder_(context.place.folder) {}

  void look(double now, Findings& found) override {
    const auto space = machine_->space(folder_);
    if (!space || space->total == 0) return;
    const auto free = static_cast<double>(space->available), total = static_cast<double>(space->total);
    readings_.push_back({now, free});
    while (now - readings_.front().time > kWindow) readings_.pop_front();
    const double passed = now - readings_.front().time, used = readings_.front().free - free;
    const double left = passed >= kLeast && used > 0 ? free * passed / used : 10 * kSoon;
    const bool nearly = free < kNearlyFull * total;
    if (free > kRecovered * total && left > 2 * kSoon) reported_ = false;
    if ((left > kSoon && !nearly) || std::exchange(reported_, true)) return;
    std::string text = fmt::format("the disk of '{}' has {} left", folder_, human_bytes(free));
    if (left <= kSoon) text += fmt::format(" and is full in {} at the present rate", human_duration(left));
    found.warnings.push_back({.detector = "disk_filling",
                              .value = free,
                              .usual = readings_.front().free,
                              .limit = kNearlyFull * total,
                              .text = std::move(text),
                              .advice = "free space, or keep fewer checkpoints (keep_latest)"});
  }

 private:
  struct Reading {
    double time, free;
  };
  std::shared_ptr<const preflight::Machine> machine_;
  std::string folder_;
  std::deque<Reading> readings_;
  bool reported_ = false;
};

}  // namespace

extern const ProbeEntry kDisk{"disk", false, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                                if (context.place.folder.empty()) return nullptr;
                                return std::make_unique<Disk>(context);
                              }};

}  // namespace primus::watch
