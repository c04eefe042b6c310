// Detects a gradient norm that is ten times the norm of recent steps. Causes are a bad batch or the start of
// divergence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "gradient_spike";
constexpr std::size_t kWindow = 64, kFewest = 20;  // window, and min number of steps in it
constexpr double kFactor = 10;
constexpr double kMin = 1e-3;  // smaller norms mean that the model has hardly anything to learn, so they are
                               // ignored
// After data have been memorized, norms are tiny, and an ordinary batch exceeds them a thousandfold. A spike
// must also be kAboveLargest times the largest median of the run so far. Medians are computed after kEarly
// steps.
constexpr double kAboveLargest = 2;
constexpr std::size_t kEarly = 5;

class GradientSpike final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    if (!record.grad_norm || !std::isfinite(*record.grad_norm)) return std::nullopt;
    const double now = *record.grad_norm;
    const bool known = recent_.size() >= kFewest;
    const double usual = recent_.size() >= kEarly ? median_of({recent_.begin(), recent_.end()}) : 0;
    largest_ = std::max(largest_, usual);
    const double limit = std::max({kFactor * usual, kAboveLargest * largest_, kMin});
    recent_.push_back(now);
    if (recent_.size() > kWindow) recent_.pop_front();
    quiet_ = std::min(quiet_ + 1, kWindow);
    if (!known || now < limit) return std::nullopt;
    const bool fresh = quiet_ >= kWindow;
    quiet_ = 0;
    if (!fresh) return std::nullopt;
    return RunWarning{
        .iteration = record.iteration,
        .value = now,
        .usual = usual,
        .limit = limit,
        .text = fmt::format("the gradient norm is {:.4g}, against a usual {:.4g} in the last {} steps", now,
                            usual, recent_.size() - 1),
        .advice =
            "one spike with clip_grad set does no harm; look at the data of this iteration, and lower "
            "lr if spikes come again"};
  }

 private:
  std::deque<double> recent_;
  double largest_ = 0;           // largest median so far
  std::size_t quiet_ = kWindow;  // number of steps since the last spike
};

}  // namespace

extern const DetectorEntry kGradientSpike{kName, [] { return std::unique_ptr<Detector>(new GradientSpike); }};

}  // namespace primus
