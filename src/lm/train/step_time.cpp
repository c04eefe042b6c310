#include "lm/train/step_time.h"

#include <algorithm>
#include <vector>

#include "base/terminal/terminal.h"
#include "lm/train/random_batch.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double measure_step_time(const SessionSettings& settings, const FamilyRegistry& families,
                         const DeviceSpec& device, double seconds) {
  SessionSettings one = settings;
  one.step.microbatches = 1;
  one.evaluation = false;
  engine::Rank rank(turbo::open_device(device));
  const std::unique_ptr<TrainingSession> session = open_session(rank, one, families);
  session->store().initialize(rank.context(), one.step.seed);
  const RandomBatch batch(one.step.micro_batch * one.step.sequence, one.step.sequence, one.model.vocab, 0);
  TrainingStep& step = session->step();
  rank.compute().synchronize();

  std::vector<double> microbatches, updates;
  const double began = steady_seconds();
  // The first touches memory and warms caches: it counts only where there is no time for another.
  constexpr std::size_t kMost = 12;
  while (microbatches.size() < kMost) {
    const auto number = static_cast<std::int64_t>(microbatches.size()) + 1;
    const double start = steady_seconds();
    step.begin(number);
    step.microbatch(0, batch.host());
    rank.compute().synchronize();
    const double middle = steady_seconds();
    step.finish_gradients();
    step.result();
    step.update(number, 0, 0);
    rank.compute().synchronize();
    const double end = steady_seconds();
    microbatches.push_back(middle - start);
    updates.push_back(end - middle);
    if (end - began + (end - start) > seconds) break;
  }
  if (microbatches.size() > 1) {
    microbatches.erase(microbatches.begin());
    updates.erase(updates.begin());
  }
  return static_cast<double>(settings.step.microbatches) * median(microbatches) + median(updates);
}

}  // namespace primus
