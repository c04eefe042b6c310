// Detects divergence: the loss has grown tenfold, or exceeds the loss of the untrained model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

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
// A loss that exceeds that of the first steps by this amount is worse than before training. There are two
// limits, because the loss of the first step alone is noisy, but a run may already diverge within the first
// window.
constexpr double kAboveStart = 1, kAboveFirstStep = 2;  // nats per token
// The episode ends when the loss is at most this factor times its best value.
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
    if (recent_.size() > kWindow) recent_.pop_front();
    if (recent_.size() < kWindow) return std::nullopt;
    const double now = median_of({recent_.begin(), recent_.end()});
    if (!std::exchange(full_, true)) start_limit_ = std::min(start_limit_, now + kAboveStart);
    if (now < best_) {
      best_ = now;
      best_iteration_ = record.iteration;
    }
    const double limit = std::min(std::max(kFactor * best_, best_ + kMinRise), start_limit_);
    if (now < std::min(kRecovered * best_, limit)) reported_ = false;
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
