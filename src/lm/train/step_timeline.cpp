#include "lm/train/step_timeline.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "device/watched.h"
#include "lm/events/run_folder.h"
#include "turbo/devices/devices.h"

namespace primus {
namespace {

constexpr std::int64_t kInterval = 100;
constexpr std::array<std::int64_t, 5> kEarly{2, 5, 10, 20, 50};

std::int64_t microseconds(double seconds) { return std::llround(1e6 * seconds); }

}  // namespace

StepTimeline::StepTimeline(const RunPlan& plan, engine::Rank& rank) : plan_(plan) {
  const engine::MeshShape& shape = rank.mesh().shape();
  if (shape.pipeline == 1) return;
  const engine::MeshPlace place = engine::place_of(shape, plan.ranks.size(), plan.ranks.rank());
  if (place.tensor != 0 || place.context != 0 || place.data != 0) return;
  const bool synchronous = rank.device().synchronous();
  const DeviceTiming* const timing = synchronous ? nullptr : turbo::timing_of(rank.device());
  if (!synchronous && !timing) return;
  stage_ = place.stage;
  clock_.emplace(innermost(rank.device()), rank.compute(), timing);
  file_.emplace(timeline_file(plan.folder.root(), stage_), Env::posix());
}

bool StepTimeline::is_recorded(std::int64_t step) {
  if (step % kInterval == 0) return step > 0;
  for (const std::int64_t early : kEarly)
    if (step == early) return true;
  return false;
}

void StepTimeline::begin(std::int64_t step) {
  if (!clock_ || failed_ || !is_recorded(step)) return;
  step_ = step;
  clock_->start();
}

StepTimeline::Sums::Sums(StepTimeline& timeline)
    : timed_(timeline.clock(), engine::ScheduleClock::Kind::kSums, engine::Work{}) {}

void StepTimeline::end() {
  if (clock_) clock_->finish();
}

void StepTimeline::write(std::int64_t step) {
  if (step_ == 0 || step != step_ || clock_->is_recording()) return;
  step_ = 0;
  const engine::ScheduleClock::Times times = clock_->read();
  std::string line = fmt::format(
      R"({{"step":{},"stage":{},"stages":{},"rank":{},"microseconds":{},"left_out":{},"spans":[)", step,
      stage_, plan_.shape.pipeline, plan_.ranks.rank(), microseconds(times.seconds), times.left_out);
  std::string_view separator;
  for (const engine::ScheduleClock::Span& span : times.spans) {
    const std::int64_t begin = microseconds(span.begin), end = microseconds(span.end);
    // Most waits are over before they begin.
    if (span.kind == engine::ScheduleClock::Kind::kWait && begin == end) continue;
    line += fmt::format(R"({}["{}",{},{},{},{}])", std::exchange(separator, ","),
                        static_cast<char>(span.kind), span.chunk, span.microbatch, begin, end - begin);
  }
  line += "]}\n";
  if (file_->append(std::as_bytes(std::span(line)))) return;
  failed_ = true;
  plan_.log.warning("the timeline of the stages is not recorded further: {}", file_->last_error());
}

}  // namespace primus
