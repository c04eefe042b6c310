// Functions by which an asynchronous device reports when its work ran. A device plug-in fills this table; the
// tracing device (turbo/devices/tracing_device.h) and training steps (lm/train/step/training_step.h) call
// through it.
#pragma once

#include <memory>

#include "device/device.h"

namespace primus {

struct DeviceTiming {
  // Creates an event that records the time at which a stream reaches the event.
  std::unique_ptr<Event> (*create)(Device& device);
  // Returns whether the work before the last record() of the event is done; does not wait.
  bool (*reached)(Event& event);
  // Returns the seconds between two events that create() created for the same device. Both events must have
  // been reached.
  double (*seconds)(Event& from, Event& to);
};

}  // namespace primus
