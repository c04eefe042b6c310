#include "lm/events/throughput.h"

#include <algorithm>

namespace primus {

Speed ThroughputMeter::speed(const IterationWork& work, double iterations) const {
  // Keeps rates finite if the clock is too coarse to measure an iteration.
  const double seconds = std::max(work.seconds, 1e-9);
  const double devices = std::max(options_.world_size, 1);
  Speed result;
  result.seconds_per_iteration = seconds / iterations;
  result.tokens_per_second = work.tokens / seconds / devices;
  result.flops_per_second = work.model_flops / seconds / devices;
  if (options_.peak_flops_per_device > 0)
    result.mfu = std::min(result.flops_per_second / options_.peak_flops_per_device, 1.0);
  result.data_wait_share = std::clamp(work.data_wait_seconds / seconds, 0.0, 1.0);
  return result;
}

Throughput ThroughputMeter::update(std::int64_t iteration, const IterationWork& work, double now) {
  if (seen_ == 0) {
    started_ = now;
  }
  ++seen_;
  const double achieved = speed(work, 1.0).flops_per_second;
  const bool believable = achieved <= kBelievable * measured_peak_;
  if (work.exact && options_.peak_flops_per_device > 0 && believable) {
    options_.peak_flops_per_device = std::max(options_.peak_flops_per_device, achieved);
  }
  // The first iteration is slower than the others. Therefore the clock of the ETA starts at the end of the
  // first iteration.
  eta_.update(static_cast<std::uint64_t>(iteration), now);

  if (seen_ > options_.avg_skip_iterations) {
    if (in_window_ >= std::max(options_.avg_reset_interval, 1)) {
      window_ = {};
      in_window_ = 0;
    }
    window_.seconds += work.seconds;
    window_.data_wait_seconds += work.data_wait_seconds;
    window_.tokens += work.tokens;
    window_.model_flops += work.model_flops;
    ++in_window_;
  }

  Throughput result;
  result.now = speed(work, 1.0);
  if (work.exact && !believable) result.now.mfu.reset();
  if (in_window_ > 0) result.average = speed(window_, in_window_);
  if (options_.train_iters > 0) result.eta = eta_.remaining(static_cast<std::uint64_t>(options_.train_iters));
  result.elapsed_seconds = now - started_;
  return result;
}

}  // namespace primus
