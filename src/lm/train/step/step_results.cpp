#include "lm/train/step/step_results.h"

#include "device/watched.h"

namespace primus {

void StepResults::add(const Tensor& from, Read read) {
  if (!from.absent()) values_.push_back({from, std::move(read)});
}

void StepResults::reserve() {
  std::int64_t bytes = 0;
  for (const Value& value : values_) bytes += value.from.bytes();
  for (Side& side : sides_) {
    side.values = PinnedBuffer(rank_.device(), bytes);
    side.finished = rank_.device().create_event();
  }
}

void StepResults::set_timing(const DeviceTiming* timing) {
  timing_ = timing;
  if (!timing) return;
  // A device wrapper forwards events to the device that created them, so events are created on the innermost
  // device.
  Device& device = innermost(rank_.device());
  for (Side& side : sides_) side.begun = timing->create(device);
  for (std::unique_ptr<Event>& end : ends_) end = timing->create(device);
}

void StepResults::begin_clock() {
  if (!timing_) return;
  Side& next = sides_[1 - turn_];
  next.follows = sides_[turn_].unread;
  // If no previous step is running, the time counts from here: a pause before this step, such as an
  // evaluation or a checkpoint, belongs to no step.
  if (!next.follows) rank_.compute().record(*next.begun);
}

void StepResults::take_turn() {
  turn_ = 1 - turn_;
  if (std::exchange(sides_[turn_].unread, false)) sides_[turn_].finished->synchronize();
}

void StepResults::enqueue() {
  Side& side = sides_[turn_];
  std::byte* to = side.values.data();
  for (const Value& value : values_) {
    rank_.compute().copy_to_host(to, value.from.data, value.from.bytes());
    to += value.from.bytes();
  }
  if (timing_) {
    side.end = last_end_ = (last_end_ + 1) % ends_.size();
    rank_.compute().record(*ends_[side.end]);
  }
  rank_.compute().record(*side.finished);
  side.unread = true;
}

StepResult StepResults::result() {
  const std::size_t other = 1 - turn_;
  last_read_ = sides_[other].unread ? other : turn_;
  Side& side = sides_[last_read_];
  // Does not wait for a result that was already read.
  StepResult result;
  if (std::exchange(side.unread, false)) {
    side.finished->synchronize();
    result.seconds = seconds_of(side);
  }
  const std::byte* at = side.values.data();
  for (const Value& value : values_) value.read(std::exchange(at, at + value.from.bytes()), result);
  return result;
}

void StepResults::wait_for_last() const {
  if (sides_[1 - turn_].unread) sides_[1 - turn_].finished->synchronize();
}

std::optional<double> StepResults::seconds_of(const Side& side) const {
  if (!timing_) return std::nullopt;
  Event& from = side.follows ? *ends_[(side.end + ends_.size() - 1) % ends_.size()] : *side.begun;
  return timing_->seconds(from, *ends_[side.end]);
}

}  // namespace primus
