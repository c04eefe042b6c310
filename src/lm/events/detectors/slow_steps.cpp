// Detects steps that take twice as long as before. Possible causes are another process on the machine, a
// throttled device, or a slow disk.
#include <fmt/format.h>

#include <limits>

#include "base/terminal/terminal.h"
#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "slow_steps";
// Steps are grouped into blocks, and the medians of blocks are compared, so that short interruptions on a
// shared machine cause no warning.
constexpr std::size_t kSteps = 10;
constexpr double kSeconds = 10;
constexpr double kFactor = 2, kRecovered = 1.5;
constexpr std::size_t kMax = 100'000;  // max number of steps per block, however short the steps are

class SlowSteps final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    if (!std::exchange(began_, true))
      return std::nullopt;  // ignores the first step, which is slower because
                            // caches are empty
    const double seconds = record.throughput.now.seconds_per_iteration;
    block_.push_back(seconds);
    sum_ += seconds;
    wait_ += seconds * record.throughput.now.data_wait_share;
    if (block_.size() < kSteps || (sum_ < kSeconds && block_.size() < kMax)) return std::nullopt;
    const double now = median_of(std::exchange(block_, {}));
    const double waited = std::exchange(wait_, 0) / std::exchange(sum_, 0);
    const double limit = kFactor * best_;
    best_ = std::min(best_, now);
    if (now < kRecovered * best_) reported_ = false;
    if (now < limit || reported_) return std::nullopt;
    reported_ = true;
    return RunWarning{
        .iteration = record.iteration,
        .value = now,
        .usual = best_,
        .limit = limit,
        .text =
            fmt::format("a step takes {}; earlier steps took {}", human_duration(now), human_duration(best_)),
        .advice = waited > 0.3
                      ? fmt::format(
                            "{:.0f} % of the time is spent waiting for data: check for other processes on "
                            "this machine, which slow the threads that prepare batches, and for a slow disk",
                            100 * waited)
                      : std::string("check for other processes on this machine, a throttled device "
                                    "(temperature, power) and, with several ranks, a slow one ('primus "
                                    "preflight')")};
  }

 private:
  std::vector<double> block_;
  double sum_ = 0, wait_ = 0;  // sums over the current block, in seconds
  double best_ = std::numeric_limits<double>::infinity();
  bool began_ = false, reported_ = false;
};

}  // namespace

extern const DetectorEntry kSlowSteps{kName, [] { return std::unique_ptr<Detector>(new SlowSteps); }};

}  // namespace primus
