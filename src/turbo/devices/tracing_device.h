// A device that wraps another device and records its work: every kernel and copy, and the regions that upper
// layers name (device/watched.h), with stream, begin and end.
//
// Tracing does not synchronize. On devices with a DeviceTiming (GPUs), times come from events before and
// after the work. On other devices (the CPU), the stream reads the clock. Therefore streams overlap in a
// trace in the same way as without tracing.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/timing.h"
#include "turbo/devices/trace_recorder.h"

namespace primus::turbo {

// Passes all calls on to `device`, and records them while `recorder` is recording. `timing`:
// timing_of(*device).
std::unique_ptr<Device> make_tracing_device(std::unique_ptr<Device> device, const DeviceTiming* timing,
                                            std::shared_ptr<TraceRecorder> recorder);

}  // namespace primus::turbo
