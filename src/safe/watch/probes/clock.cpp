// Watches the system's clock for jumps. Times of events and time limits depend on it.
#include <fmt/format.h>

#include <cmath>

#include "safe/watch/probe.h"

namespace primus::watch {
namespace {

constexpr double kJump = 1;  // seconds; corrections by NTP are much slower

class Clock final : public Probe {
 public:
  explicit Clock(std::shared_ptr<const preflight::Machine> machine) : machine_(std::move(machine)) {}

  void look(double now, Findings& found) override {
    const double offset = machine_->wall_clock() - now;
    const double jump = known_ ? offset - offset_ : 0;
    known_ = true;
    offset_ = offset;
    if (std::abs(jump) < kJump) return;
    found.warnings.push_back(
        {.detector = "clock_jump",
         .value = jump,
         .limit = kJump,
         .text = fmt::format("the clock of the machine has jumped by {:+.1f} s", jump),
         .advice = "times of events before and after differ by this; check the node's time service"});
  }

 private:
  std::shared_ptr<const preflight::Machine> machine_;
  double offset_ = 0;
  bool known_ = false;
};

}  // namespace

extern const ProbeEntry kClock{"clock", false, [](const ProbeContext& context) -> std::unique_ptr<Probe> {
                                 return std::make_unique<Clock>(context.machine);
                               }};

}  // namespace primus::watch
