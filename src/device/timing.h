// Defines how an asynchronous device reports when its work ran. A device plug-in fills this table; the
// tracing device (turbo/devices/tracing_device.h) and training steps (lm/train/training_step.h) call through
// it.
#pragma once

#include <memory>

#include "device/device.h"

namespace primus {

struct DeviceTiming {
  // Creates an event that records the time at which it is reached.
  std::unique_ptr<Event> (*create)(Device& device);
  // True if the work before its last record() is done; does not wait.
  bool (*reached)(Event& event);
  // Seconds between two events that create() made for one device. Both events must have been reached.
  double (*seconds)(Event& from, Event& to);
};

}  // namespace primus
