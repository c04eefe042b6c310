// Detects overfitting: the validation loss has increased three times in a row.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "worse_evaluations";
constexpr int kInARow = 3;

// Returns the difference that two evaluations of `tokens` tokens each can have by chance: three standard
// errors. The losses of single tokens have a standard deviation of about 2 nats.
double noise_of(std::int64_t tokens) {
  constexpr double kDeviation = 2, kErrors = 3;
  return tokens > 0 ? kErrors * kDeviation * std::sqrt(2 / static_cast<double>(tokens)) : 0;
}

class WorseEvaluations final : public Detector {
 public:
  std::optional<RunWarning> evaluation(const EvaluationRecord& record) override {
    if (record.data_set != "validation" || !std::isfinite(record.lm_loss)) return std::nullopt;
    worse_ = record.lm_loss > last_ ? worse_ + 1 : 0;
    last_ = record.lm_loss;
    if (record.lm_loss < best_) {
      best_ = record.lm_loss;
      best_iteration_ = record.iteration;
      reported_ = false;
    }
    const double limit = best_ + noise_of(record.tokens);
    if (worse_ < kInARow || record.lm_loss < limit || reported_) return std::nullopt;
    reported_ = true;
    return RunWarning{
        .iteration = record.iteration,
        .value = record.lm_loss,
        .usual = best_,
        .limit = limit,
        .text = fmt::format("the validation loss got worse {} times in a row: {:.4f} now, {:.4f} at "
                            "iteration {}",
                            kInARow, record.lm_loss, best_, best_iteration_),
        .advice = fmt::format("the model starts to overfit: stop and keep a checkpoint near iteration {}, or "
                              "use more data, fewer epochs or a lower lr",
                              best_iteration_)};
  }

 private:
  double last_ = std::numeric_limits<double>::infinity(), best_ = std::numeric_limits<double>::infinity();
  std::int64_t best_iteration_ = 0;
  int worse_ = 0;
  bool reported_ = false;
};

}  // namespace

extern const DetectorEntry kWorseEvaluations{kName,
                                             [] { return std::unique_ptr<Detector>(new WorseEvaluations); }};

}  // namespace primus
