#include "engine/parallel/schedule_clock.h"

#include <chrono>

namespace primus::engine {

void ScheduleClock::start() {
  spans_.clear();
  left_out_ = 0;
  used_ = 0;
  recording_ = true;
  began_ = mark();
}

void ScheduleClock::finish() {
  if (!recording_) return;
  ended_ = mark();
  recording_ = false;
}

ScheduleClock::Times ScheduleClock::read() {
  if (timing_) events_[ended_.event]->synchronize();
  Times times{.seconds = seconds_until(ended_), .left_out = left_out_, .spans = {}};
  for (Marked& marked : spans_) {
    marked.span.begin = seconds_until(marked.begin);
    marked.span.end = seconds_until(marked.end);
    times.spans.push_back(marked.span);
  }
  return times;
}

ScheduleClock::Mark ScheduleClock::mark() {
  if (!timing_) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return {.host = std::chrono::duration<double>(now).count()};
  }
  if (used_ == events_.size()) events_.push_back(timing_->create(device_));
  compute_.record(*events_[used_]);
  return {.event = used_++};
}

double ScheduleClock::seconds_until(const Mark& mark) {
  return timing_ ? timing_->seconds(*events_[began_.event], *events_[mark.event]) : mark.host - began_.host;
}

ScheduleClock::Timed::Timed(ScheduleClock* clock, Kind kind, const Work& work)
    : clock_(clock && clock->recording_ ? clock : nullptr) {
  if (!clock_) return;
  if (clock_->spans_.size() == kMaxSpans) {
    ++clock_->left_out_;
    clock_ = nullptr;
    return;
  }
  span_ = clock_->spans_.size();
  clock_->spans_.push_back({.span = {.kind = kind, .chunk = work.chunk, .microbatch = work.microbatch},
                            .begin = clock_->mark(),
                            .end = {}});
}

ScheduleClock::Timed::~Timed() {
  if (!clock_) return;
  try {
    clock_->spans_[span_].end = clock_->mark();
  } catch (...) {
    // The device is lost, which the next call reports.
    clock_->recording_ = false;
  }
}

}  // namespace primus::engine
