// Times of a stage's work in one step: when each forward pass, backward pass and weight gradient ran, and
// when the stage waited for another one. A device with a DeviceTiming records events on the compute stream,
// and the host reads them after the step. A synchronous device has done its work when a call returns, so the
// host's clock is read.
//
// Without start(), the clock does nothing. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "device/timing.h"
#include "engine/parallel/pipeline_schedule.h"

namespace primus::engine {

class ScheduleClock {
 public:
  static constexpr std::size_t kMaxSpans = 4096;  // further spans are only counted

  enum class Kind : char { kForward = 'F', kBackward = 'B', kWeight = 'W', kWait = 'P', kSums = 'S' };
  struct Span {
    Kind kind = Kind::kForward;
    int chunk = 0;
    std::int64_t microbatch = 0;
    double begin = 0, end = 0;  // seconds since start()
  };
  struct Times {
    double seconds = 0;  // from start() to finish()
    std::int64_t left_out = 0;
    std::vector<Span> spans;
  };

  // `device`: the device of `compute`, both without wrappers. `timing`: null for a synchronous device. All
  // must outlive this object.
  ScheduleClock(Device& device, Stream& compute, const DeviceTiming* timing)
      : device_(device), compute_(compute), timing_(timing) {}

  // Begins to record. Call it before the step's work is enqueued.
  void start();
  bool is_recording() const { return recording_; }
  // Ends the record. Call it after the step's gradients are enqueued.
  void finish();
  // Returns the times of the last record. Waits for its end.
  Times read();

  // Records one span. `clock` may be null.
  class Timed {
   public:
    Timed(ScheduleClock* clock, Kind kind, const Work& work);
    ~Timed();
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    ScheduleClock* clock_;
    std::size_t span_ = 0;  // index in spans_
  };

 private:
  struct Mark {
    double host = 0;        // without `timing_`
    std::size_t event = 0;  // index in events_
  };
  struct Marked {
    Span span;
    Mark begin, end;
  };
  Mark mark();
  double seconds_until(const Mark& mark);

  Device& device_;
  Stream& compute_;
  const DeviceTiming* timing_;
  bool recording_ = false;
  Mark began_, ended_;
  std::vector<Marked> spans_;
  std::int64_t left_out_ = 0;
  std::vector<std::unique_ptr<Event>> events_;  // reused in each record
  std::size_t used_ = 0;
};

}  // namespace primus::engine
