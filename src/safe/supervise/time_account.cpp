#include "safe/supervise/time_account.h"

#include <algorithm>

namespace primus::supervise {
namespace {

constexpr std::size_t kMarks = 1024;  // checkpoints whose useful time is known

}  // namespace

double TimeAccount::spend(double RunTimes::*part, double time, double seconds) {
  const double passed = std::max(0.0, time - at_), rest = std::clamp(seconds, 0.0, passed);
  times_.*part += passed - rest;
  at_ = std::max(at_, time);
  return rest;
}

double RunTimes::*TimeAccount::idle() const {
  if (state_ == State::kStarting) return &RunTimes::startup;
  if (state_ == State::kRestarting) return &RunTimes::restart;
  return in_phase_ ? &RunTimes::phases : saving_ ? &RunTimes::checkpoints : &RunTimes::other;
}

void TimeAccount::begin(std::int64_t step, double time) {
  spend(idle(), time);
  state_ = State::kSteps;
  saving_ = in_phase_ = false;
  // Steps after the loaded checkpoint are done again. A run that began with steps of an earlier supervisor
  // has no mark, and no useful time.
  while (!marks_.empty() && marks_.back().step > step) marks_.pop_back();
  const double kept = marks_.empty() ? 0 : marks_.back().useful;
  times_.repeated += times_.useful - kept;
  times_.useful = kept;
  if (marks_.empty()) marks_.push_back({step, 0});
}

void TimeAccount::step(std::int64_t, double seconds, double time) {
  times_.useful += spend(idle(), time, seconds);
  saving_ = false;
}

void TimeAccount::phase(std::string_view what, double time) {
  spend(idle(), time);
  in_phase_ = !what.empty();
}

void TimeAccount::saving(std::int64_t step, double time) {
  spend(idle(), time);
  saving_ = true;
  if (!marks_.empty() && marks_.back().step >= step) return;
  marks_.push_back({step, times_.useful});
  if (marks_.size() > kMarks) marks_.pop_front();
}

void TimeAccount::detected(double time) {
  const bool began = state_ == State::kSteps;
  spend(began ? &RunTimes::detection : idle(), time);
  state_ = State::kRestarting;
  saving_ = in_phase_ = false;
}

RunTimes TimeAccount::up_to(double time) const {
  RunTimes times = times_;
  times.*idle() += std::max(0.0, time - at_);
  times.wall = std::max(time, at_) - start_;
  return times;
}

}  // namespace primus::supervise
