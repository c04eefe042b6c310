#include "safe/supervise/observation/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace primus::supervise {
namespace {

constexpr std::size_t kSteps = 16;   // steps whose median is the usual step time
constexpr double kStoppedFor = 10;   // seconds
constexpr double kIdleFor = 3;       // seconds without work that make an idle job
constexpr double kBusyShare = 0.05;  // processor time per second of a job that works
constexpr double kLongestPause = 5;  // seconds between checks
constexpr double kAfterEnd = 30;     // seconds between the recorded end of a run and the end of its process

}  // namespace

void Traffic::add(int process, double now, std::uint64_t bytes) {
  constexpr double kAtWork = 256 << 10;  // bytes per second
  const auto before = seen_.find(process);
  if (before != seen_.end() && bytes > before->second.bytes) {
    const std::uint64_t moved = bytes - before->second.bytes;
    if (static_cast<double>(moved) > kAtWork * (now - before->second.time)) total_ += moved;
  }
  seen_[process] = {.time = now, .bytes = bytes};
}

void HangWatch::begin(double now) {
  sign(now);
  state_ = State::kSteps;
  steps_.clear();
}

void HangWatch::step(double seconds, double now) {
  sign(now);
  state_ = State::kSteps;
  phase_.clear();
  steps_.push_back(seconds);
  if (steps_.size() > kSteps) steps_.pop_front();
}

void HangWatch::phase(std::string_view what, double now) {
  sign(now);
  phase_ = what;
}

void HangWatch::saving(bool is, double now) {
  sign(now);
  saving_ = is;
}

void HangWatch::ended(double now) {
  sign(now);
  state_ = State::kEnded;
}

double HangWatch::usual_step() const {
  std::vector<double> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void HangWatch::look(const JobSample& sample) {
  if (sample.waits_for_disk) works_ = moves_ = sample.time;
  if (last_ && sample.time > last_->time) {
    if (sample.bytes != last_->bytes) moves_ = sample.time;
    const double share = (sample.processor_seconds - last_->processor_seconds) / (sample.time - last_->time);
    // A process that has ended lowers the sums, which is a change, too.
    if (share > kBusyShare || share < 0 || sample.bytes != last_->bytes) works_ = sample.time;
  }
  if (!sample.stopped) stopped_.reset();
  if (sample.stopped && !stopped_) stopped_ = sample.time;
  last_ = sample;
}

std::optional<HangFinding> HangWatch::check(double now, const std::optional<JobSample>& sample) {
  if (const double pause = now - checked_; pause > kLongestPause) {
    sign_ += pause;
    if (stopped_) *stopped_ += pause;
  }
  checked_ = now;
  if (last_ && last_->time < sign_) {
    last_.reset();
    works_.reset();
    moves_.reset();
    stopped_.reset();
  }
  if (sample) look(*sample);
  if (sample && sample->waits_for_reader) sign_ = now;
  const double quiet = now - sign_;
  if (!last_) return std::nullopt;
  const auto finding = [&](std::string text) {
    if (!last_->stopped) return HangFinding{.text = std::move(text)};
    return HangFinding{
        .text = fmt::format("no sign of the job for {:.0f} s, and a signal has stopped process {}", quiet,
                            *last_->stopped),
        .stopped = last_->stopped};
  };
  if (stopped_ && now - *stopped_ >= kStoppedFor - kLook && quiet >= kStoppedFor + limits_.for_ranks)
    return finding("");
  // The first sample after the newest sign only begins a comparison.
  const double idle = now - std::max(works_.value_or(sign_), sign_);
  if (state_ == State::kEnded) {
    if (idle < kAfterEnd) return std::nullopt;
    return finding(fmt::format("the run has ended, but its process remains for {:.0f} s", quiet));
  }
  if (saving_ && state_ == State::kSteps && phase_.empty()) {
    // A save moves data. A thread that only computes does not save.
    const double still = now - std::max(moves_.value_or(sign_), sign_);
    if (still < limits_.patience) return std::nullopt;
    return finding(fmt::format("no process of the job has {} for {:.0f} s, while saving a checkpoint",
                               idle < still ? "read or written data" : "worked", still));
  }
  if (state_ == State::kStarting || !phase_.empty() || steps_.empty()) {
    if (idle < limits_.patience) return std::nullopt;
    const std::string what = !phase_.empty()              ? phase_
                             : state_ == State::kStarting ? "starting"
                                                          : "computing the first step";
    return finding(fmt::format("no process of the job has worked for {:.0f} s, while {}", idle, what));
  }
  const double step = usual_step();
  const double limit =
      std::max({limits_.shortest, limits_.steps * step, limits_.for_services}) + limits_.for_ranks;
  if (quiet < limit) return std::nullopt;
  const bool works = idle < kIdleFor;
  if (works && quiet < limit + limits_.patience) return std::nullopt;
  return finding(fmt::format("no step for {:.0f} s, although steps take {:.3g} s, and {}", quiet, step,
                             works ? "its processes only wait in a loop" : "no process works"));
}

}  // namespace primus::supervise
