// Detects divergence: the loss has grown tenfold, or exceeds the loss of the untrained model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "loss_growth";
// Number of steps over which the median is taken, so that a single bad batch does not count as divergence.
constexpr std::size_t kWindow = 5;
// Allowed ratio of the median to the lowest median so far. The loss must also have risen by kMinRise, because
// a loss near zero (memorized answers) easily grows tenfold.
constexpr double kFactor = 10;
constexpr double kMinRise = 1;  // minimum rise, in nats per token
// A loss that exceeds the first losses by this amount is worse than before training. kAboveStart is relative
// to the median of the first window. kAboveFirstStep is relative to the first step: a run may diverge within
// the first window. This limit is larger, because the loss of a single step is noisy.
constexpr double kAboveStart = 1, kAboveFirstStep = 2;  // nats per token
// Batches of few sequences have unlike losses, which alternate by large amounts without any divergence. The
// limit is therefore raised by this multiple of the usual swing. The swing of a step is its loss minus the
// larger of two numbers: the lowest loss of the kNear steps before it, and of those after it. Steady growth
// has no swing, because the losses after a step are higher.
constexpr double kSwingFactor = 1.5, kSwingQuantile = 0.9;
constexpr std::size_t kNear = 3, kSteps = 64;  // kSteps: number of recent steps whose losses are kept
// A diverging loss may swing, too. It is reported when even the lowest loss of kLongWindow steps exceeds the
// limit without the swing.
constexpr std::size_t kLongWindow = 32;
// The episode ends when the loss is less than kRecovered times the lowest loss.
constexpr double kRecovered = 2;

class LossGrowth final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    if (!std::isfinite(record.lm_loss)) return not_finite(record);
    if (recent_.empty()) {
      start_limit_ = record.lm_loss + kAboveFirstStep;
      best_ = record.lm_loss;
      best_iteration_ = record.iteration;
    }
    recent_.push_back(record.lm_loss);
    if (recent_.size() > kSteps) recent_.pop_front();
    if (recent_.size() < kWindow) return std::nullopt;
    const double now = median_of({recent_.end() - kWindow, recent_.end()});
    if (!std::exchange(full_, true)) start_limit_ = std::min(start_limit_, now + kAboveStart);
    if (now < best_) {
      best_ = now;
      best_iteration_ = record.iteration;
    }
    const double even = std::min(std::max(kFactor * best_, best_ + kMinRise), start_limit_);
    if (now < std::min(kRecovered * best_, even)) reported_ = false;
    const bool all_above = recent_.size() >= kLongWindow &&
                           *std::min_element(recent_.end() - kLongWindow, recent_.end()) >= even;
    const double limit = all_above ? even : even + kSwingFactor * usual_swing();
    if (now < limit || reported_) return std::nullopt;
    reported_ = true;
    return RunWarning{
        .iteration = record.iteration,
        .value = now,
        .usual = best_,
        .limit = limit,
        .text = fmt::format("the loss has grown from {:.4g} (best, near iteration {}) to {:.4g}: the run "
                            "diverges",
                            best_, best_iteration_, now),
        .advice =
            "stop it and lower lr, lengthen lr_warmup_iters or set clip_grad; an earlier checkpoint "
            "has better weights"};
  }

 private:
  // Requires at least three recent steps.
  double usual_swing() const {
    std::vector<double> swings;
    for (auto step = recent_.begin() + 1; step != recent_.end() - 1; ++step) {
      const auto before = step - std::min<std::ptrdiff_t>(kNear, step - recent_.begin());
      const auto after = step + 1 + std::min<std::ptrdiff_t>(kNear, recent_.end() - step - 1);
      swings.push_back(std::max(
          0.0, *step - std::max(*std::min_element(before, step), *std::min_element(step + 1, after))));
    }
    std::ranges::sort(swings);
    return swings[static_cast<std::size_t>(kSwingQuantile * static_cast<double>(swings.size()))];
  }

  std::optional<RunWarning> not_finite(const IterationRecord& record) {
    if (std::exchange(reported_, true)) return std::nullopt;
    return RunWarning{.iteration = record.iteration,
                      .value = record.lm_loss,
                      .usual = std::isfinite(best_) ? best_ : 0,
                      .limit = std::isfinite(best_) ? std::max(kFactor * best_, best_ + kMinRise)
                                                    : std::numeric_limits<double>::infinity(),
                      .text = fmt::format("the loss is {}", std::isnan(record.lm_loss) ? "NaN" : "infinite"),
                      .advice =
                          "stop it and lower lr; check_for_nan_in_loss_and_grad=true stops such a run "
                          "automatically and names the operator"};
  }

  std::deque<double> recent_;
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t best_iteration_ = 0;
  double start_limit_ = 0;
  bool full_ = false, reported_ = false;
};

}  // namespace

extern const DetectorEntry kLossGrowth{kName, [] { return std::unique_ptr<Detector>(new LossGrowth); }};

}  // namespace primus
