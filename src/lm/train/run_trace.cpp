#include "lm/train/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/text/counted.h"
#include "config/trainer_config.h"
#include "turbo/devices/devices.h"
#include "turbo/devices/tracing_device.h"

namespace primus {

using turbo::TraceRecorder;

bool RunTrace::wanted(const config::TrainerConfig& config, int rank) {
  if (!config.profile) return false;
  return std::ranges::any_of(config.profile_ranks, [&](const std::string& word) {
    int named = -1;  // the name "00" means rank 0
    std::from_chars(word.data(), word.data() + word.size(), named);
    return word == "all" || named == rank;
  });
}

std::vector<std::string> RunTrace::absent_ranks(const config::TrainerConfig& config, int world) {
  std::vector<std::string> warnings;
  if (!config.profile) return warnings;
  for (const std::string& named : config.profile_ranks) {
    if (named == "all" || std::stoll(named) < world) continue;
    warnings.push_back(
        fmt::format("profile_ranks names rank {}, but the job has {}", named, counted(world, "rank")));
  }
  return warnings;
}

RunTrace::RunTrace(const config::TrainerConfig& config, Options options, Logger& log)
    : start_(config.profile_step_start),
      end_(config.profile_step_end),
      options_(std::move(options)),
      log_(log) {
  // Returns the system clock's time at the origin. Reads the clocks several times, and uses the reading that
  // took the shortest time.
  double minimum = 1e9;
  for (int i = 0; i < 16; ++i) {
    const double before = TraceRecorder::now();
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    const double after = TraceRecorder::now();
    if (after - before >= minimum) continue;
    minimum = after - before;
    const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(
        wall - std::chrono::microseconds(options_.origin_us));
    origin_ = (before + after) / 2 - 1e-9 * static_cast<double>(since.count());
  }
}

RunTrace::~RunTrace() {
  if (recorder_->recording()) finish(last_);
}

std::unique_ptr<Device> RunTrace::watch(std::unique_ptr<Device> device) {
  device_ = device->description();
  const DeviceTiming* const timing = turbo::timing_of(*device);
  return turbo::make_tracing_device(std::move(device), timing, recorder_);
}

bool RunTrace::turns(std::int64_t steps) const {
  return recorder_->recording() ? steps >= end_ : first_ == 0 && steps >= start_ && steps < end_;
}

void RunTrace::turn(std::int64_t steps) {
  if (recorder_->recording()) return finish(steps);
  first_ = steps + 1;
  last_ = steps;
  // This is a new file, because a run that resumes within the window keeps the earlier trace.
  file_ =
      options_.folder / fmt::format("steps-{}-{}", first_, end_) / fmt::format("rank-{}.json", options_.rank);
  log_.info("tracing steps {} to {} into {}", first_, end_, file_.string());
  // Creates the file at the start, in case the first step never ends.
  write(false);
  recorder_->start();
}

void RunTrace::step_done(std::int64_t steps) {
  if (!recorder_->recording() || steps < first_) return;
  last_ = steps;
  if (recorder_->full() && !std::exchange(full_, true)) {
    log_.warning("the trace is full after {} spans, in step {}: later spans are dropped; trace fewer steps",
                 TraceRecorder::kMaxSpans, steps);
    write(false);
  }
  // Writes only after some steps, because each write rewrites the complete file.
  if (steps < end_ && !full_ && std::has_single_bit(static_cast<std::uint64_t>(steps - first_ + 1)))
    write(false);
}

void RunTrace::finish(std::int64_t steps) {
  if (!recorder_->recording()) return;
  recorder_->stop();
  last_ = steps;
  write(steps >= end_ && !recorder_->full());
  if (!failed_) log_.info("the trace is in {}: open it in ui.perfetto.dev", file_.string());
}

void RunTrace::write(bool complete) {
  try {
    make_folders(file_.parent_path());
    write_file_atomic(file_,
                      recorder_->chrome_json(
                          {.rank = options_.rank,
                           .name = fmt::format("rank {} of {}: {}", options_.rank, options_.world, device_),
                           .origin = origin_,
                           .arguments = fmt::format(
                               R"("rank": {}, "world": {}, "job": {}, "first_step": {}, "last_step": {}, )"
                               R"("complete": {}{}{})",
                               options_.rank, options_.world, options_.origin_us, first_, last_, complete,
                               options_.facts.empty() ? "" : ", ", options_.facts)}));
  } catch (const Error& error) {
    if (!std::exchange(failed_, true)) log_.error("the trace cannot be written: {}", error.what());
  }
}

RunTrace::HostWork::HostWork(RunTrace* trace, std::string_view what, std::int64_t number) {
  if (!trace || !trace->recorder_->watching()) return;
  recorder_ = trace->recorder_.get();
  span_ = recorder_->open(
      {.name = number < 0 ? std::string(what) : fmt::format("{} {}", what, number), .category = "host"},
      TraceRecorder::kHost);
  recorder_->begin(span_);
}

RunTrace::HostWork::~HostWork() {
  if (span_) recorder_->end(span_);
}

}  // namespace primus
