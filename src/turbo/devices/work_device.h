// Measures how long a device works on the steps of a rank, without the time in which it waits for other
// ranks.
//
// A device that computes in its own queue (a GPU) waits for other ranks where the compute stream waits
// for an event of another stream, and in collectives on the compute stream. The meter records the device's
// clock before and after each of these places, and at the ends of a step. It reads these times later, when
// the device has passed them, so nothing waits for the measurement. Idle time for other reasons counts as
// work: a host that launches kernels too slowly makes the rank slow, too.
//
// Each place costs two events (about 3 us together). If the events of a step would take more than 0.25 % of
// its time, only some of the steps are measured.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "device/timing.h"

namespace primus::turbo {

// Belongs to the thread that enqueues the rank's work.
class WorkMeter {
 public:
  // `device` creates the events, and must outlive this object.
  WorkMeter(Device& device, const DeviceTiming& timing) : device_(device), timing_(timing) {}

  // The device's work in a step, in seconds.
  struct Work {
    double passes = 0;  // forward and backward passes and the reduction of gradients
    double update = 0;
    double data = 0;  // the argument of end_passes()
  };

  // Mark the parts of a step on the compute stream, in this order. `data`: a number that belongs to the step.
  void begin_step(Stream& compute);
  void end_passes(Stream& compute, double data);
  void end_update(Stream& compute);
  // Mark a place where the compute stream waits for other ranks. Places may be nested; the outermost counts.
  void begin_wait(Stream& compute);
  void end_wait(Stream& compute);
  bool measuring() const { return measuring_; }

  // Returns the work of the newest step that the device has completed; the same again if no further step was
  // completed or measured. nullopt: there is none yet.
  std::optional<Work> newest();

 private:
  using Mark = std::unique_ptr<Event>;
  struct Step {
    Mark begin, passes, update;
    std::vector<std::pair<Mark, Mark>> waits;
    std::size_t waits_in_passes = 0;
    double data = 0;
  };
  Mark mark(Stream& stream);
  void give_back(Step& step);
  Work read(const Step& step) const;

  Device& device_;
  const DeviceTiming& timing_;
  std::vector<Mark> free_;
  std::deque<Step> steps_;  // measured steps that were not read; the last one may be incomplete
  bool measuring_ = false;
  int depth_ = 0;
  std::int64_t skip_ = 0, pause_ = 0;  // steps until the next measured one; steps to leave out after each
  std::optional<Work> newest_;
};

// Passes all calls on to `device`. Calls `meter` where its compute streams wait. The meter must outlive the
// device's streams.
std::unique_ptr<Device> make_work_device(std::unique_ptr<Device> device, std::shared_ptr<WorkMeter> meter);

}  // namespace primus::turbo
