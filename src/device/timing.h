// How a device that works behind the host's back tells when its work ran. A device plug-in fills this table;
// the tracing device (turbo/devices/tracing_device.h) and training steps (lm/train/training_step.h) call
// through it.
#pragma once

#include <memory>

#include "device/device.h"

namespace primus {

struct DeviceTiming {
  // An event that keeps the time at which it is reached.
  std::unique_ptr<Event> (*create)(Device& device);
  // True when the work in front of its last record() is over; does not wait.
  bool (*reached)(Event& event);
  // From one such event of a device to another, both reached.
  double (*seconds)(Event& from, Event& to);
};

}  // namespace primus
