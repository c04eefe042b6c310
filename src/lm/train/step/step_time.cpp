#include "lm/train/step/step_time.h"

#include <algorithm>
#include <vector>

#include "base/terminal/terminal.h"
#include "lm/train/step/random_batch.h"

namespace primus {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double measure_step_time(engine::Rank& rank, const SessionSettings& settings, const FamilyRegistry& families,
                         double seconds, const std::function<bool(bool)>& from_first) {
  SessionSettings part = settings;
  const bool whole = rank.mesh().shape().pipeline > 1;
  if (!whole) part.step.microbatches = 1;
  part.evaluation = false;
  const std::unique_ptr<TrainingSession> session = open_session(rank, part, families);
  session->store().initialize(rank.context(), part.step.seed);
  const data::Batch batch =
      random_batch(part.step.micro_batch * part.step.sequence, part.step.sequence, part.model.vocab, 0);
  TrainingStep& step = session->step();
  rank.synchronize();

  std::vector<double> microbatches, updates;
  const double began = steady_seconds();
  // The first run touches memory and warms caches. This run counts only if there is no time for a second run.
  constexpr std::size_t kMax = 12;
  while (microbatches.size() < kMax) {
    const auto number = static_cast<std::int64_t>(microbatches.size()) + 1;
    const double start = steady_seconds();
    step.begin(number);
    for (std::int64_t i = 0; i < part.step.microbatches; ++i) step.microbatch(i, batch);
    rank.synchronize();
    const double middle = steady_seconds();
    step.finish_gradients();
    step.result();
    step.update(number, 0, 0);
    rank.synchronize();
    const double end = steady_seconds();
    microbatches.push_back(middle - start);
    updates.push_back(end - middle);
    if (!from_first(end - began + (end - start) <= seconds)) break;
  }
  if (microbatches.size() > 1) {
    microbatches.erase(microbatches.begin());
    updates.erase(updates.begin());
  }
  std::int64_t parts = settings.step.microbatches / part.step.microbatches;
  if (step.may_skip()) parts = std::min(settings.filled_microbatches.value_or(parts), parts);
  return static_cast<double>(parts) * median(microbatches) + median(updates);
}

}  // namespace primus
