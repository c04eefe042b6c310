#include "safe/supervise/recovery/time_account.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<double RunTimes::*, 8> kParts = {
    &RunTimes::useful,  &RunTimes::repeated,    &RunTimes::detection, &RunTimes::restart,
    &RunTimes::startup, &RunTimes::checkpoints, &RunTimes::phases,    &RunTimes::other};
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
  kept_.reset();
  // Steps after the loaded checkpoint are done again.
  while (!marks_.empty() && marks_.back().step > step) marks_.pop_back();
  const double kept = useful_at(step);
  times_.repeated += times_.useful - kept;
  times_.useful = kept;
  if (marks_.empty()) marks_.push_back({.step = step, .useful = 0, .in_memory = false});
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
  mark(step, false);
}

void TimeAccount::copying(std::int64_t step, double time) {
  spend(idle(), time);
  // Only two snapshots exist at a time. The marks of checkpoints are needed longer.
  const auto newest =
      std::find_if(marks_.rbegin(), marks_.rend(), [](const Mark& one) { return one.in_memory; });
  const std::int64_t kept = newest == marks_.rend() ? step : newest->step;
  std::erase_if(marks_, [&](const Mark& one) { return one.in_memory && one.step < kept; });
  mark(step, true);
}

void TimeAccount::mark(std::int64_t step, bool in_memory) {
  if (!marks_.empty() && marks_.back().step >= step) {
    // A checkpoint of the same step outlives the snapshot.
    if (marks_.back().step == step && !in_memory) marks_.back().in_memory = false;
    return;
  }
  marks_.push_back({.step = step, .useful = times_.useful, .in_memory = in_memory});
  if (marks_.size() > kMarks) marks_.pop_front();
}

// A run that began with steps of an earlier supervisor has no mark, and no useful time.
double TimeAccount::useful_at(std::int64_t step) const {
  const auto newest =
      std::find_if(marks_.rbegin(), marks_.rend(), [&](const Mark& one) { return one.step <= step; });
  return newest == marks_.rend() ? 0 : newest->useful;
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
  if (kept_) {
    const double kept = useful_at(*kept_);
    times.repeated += times.useful - kept;
    times.useful = kept;
  }
  return times;
}

Json TimeAccount::save(double to_wall) const {
  Json parts = Json::array(), marks = Json::array();
  for (const auto part : kParts) parts.push_back(times_.*part);
  for (const Mark& one : marks_) marks.push_back({one.step, one.useful, one.in_memory});
  return {{"start", start_ + to_wall}, {"at", at_ + to_wall},      {"state", static_cast<int>(state_)},
          {"saving", saving_},         {"in_phase", in_phase_},    {"kept", kept_ ? Json(*kept_) : Json()},
          {"parts", std::move(parts)}, {"marks", std::move(marks)}};
}

void TimeAccount::restore(const Json& saved, double to_wall, double now) {
  const double start = saved.at("start").get<double>() - to_wall, at = saved.at("at").get<double>() - to_wall;
  // All times move together, so that the parts still add up to the time since the start.
  const double ahead = std::max(0.0, at - now);
  TimeAccount made(start - ahead);
  made.at_ = at - ahead;
  made.state_ = static_cast<State>(std::clamp(saved.at("state").get<int>(), 0, 2));
  made.saving_ = saved.at("saving").get<bool>();
  made.in_phase_ = saved.at("in_phase").get<bool>();
  // An older version records no such step.
  if (const Json kept = saved.value("kept", Json()); kept.is_number_integer())
    made.kept_ = kept.get<std::int64_t>();
  for (std::size_t i = 0; i < kParts.size(); ++i)
    made.times_.*kParts[i] = saved.at("parts").at(i).get<double>();
  for (const Json& one : saved.at("marks")) {
    made.marks_.push_back({.step = one.at(0).get<std::int64_t>(),
                           .useful = one.at(1).get<double>(),
                           .in_memory = one.size() > 2 && one.at(2).get<bool>()});
  }
  *this = std::move(made);
}

}  // namespace primus::supervise
