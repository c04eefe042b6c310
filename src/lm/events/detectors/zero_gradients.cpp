// Detects a model that cannot learn, because no weight has a gradient although the loss is not 0. The usual
// cause is weights that are all 0, for example of a damaged checkpoint.
//
// A step whose loss is 0 is ignored: in reinforcement learning, equal rewards give a loss and gradients of 0.
#include <fmt/format.h>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "zero_gradients";
constexpr int kInARow = 2;

class ZeroGradients final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    if (!record.grad_norm) return std::nullopt;
    const bool is_zero = *record.grad_norm == 0 && record.lm_loss != 0;
    steps_ = is_zero ? steps_ + 1 : 0;
    if (steps_ != kInARow) return std::nullopt;
    return RunWarning{
        .iteration = record.iteration,
        .value = 0,
        .usual = 0,
        .limit = 0,
        .text = fmt::format(
            "the gradient norm was exactly 0 in {} steps in a row, so the model learns nothing", kInARow),
        .advice =
            "the weights are probably all 0, as in a damaged or empty checkpoint: stop the run, and "
            "start from other weights (load), or from random ones (no load, init_method_std above 0)"};
  }

 private:
  int steps_ = 0;  // number of consecutive steps without gradients
};

}  // namespace

extern const DetectorEntry kZeroGradients{kName, [] { return std::unique_ptr<Detector>(new ZeroGradients); }};

}  // namespace primus
