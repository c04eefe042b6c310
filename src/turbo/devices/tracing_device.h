// A device that writes down what another one does: every kernel and copy, and what the layers above name
// (device/watched.h), with its stream, begin and end.
//
// Nothing waits for it. On devices with a DeviceTiming (GPUs) the times are those of events in front of and
// behind the work; on others (the CPU) the stream itself takes the clock. So streams overlap in the trace as
// they do in truth.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/timing.h"
#include "turbo/devices/trace_recorder.h"

namespace primus::turbo {

// Passes everything on to `device`, and records while `recorder` does. `timing`: timing_of(*device).
std::unique_ptr<Device> make_tracing_device(std::unique_ptr<Device> device, const DeviceTiming* timing,
                                            std::shared_ptr<TraceRecorder> recorder);

}  // namespace primus::turbo
