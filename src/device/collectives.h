// What a vendor's library of collectives (NCCL, RCCL) needs to know of the devices that it works on. A device
// plug-in fills this table; comm/nccl, which knows no vendor's header, calls through it.
#pragma once

#include <functional>
#include <string>

#include "device/device.h"

namespace primus {

struct DeviceCollectives {
  const char* library;            // what the library is called, for messages: "NCCL"
  const char* const* file_names;  // shared libraries to try, the best first; ends with null
  const char* installation;       // where it comes from, completes "install ..."

  // The vendor's own handle of a stream that one of the plug-in's devices created.
  void* (*stream_handle)(Stream& stream);
  // True while the stream's work is recorded in a graph: its events cannot be asked then.
  bool (*recording)(Stream& stream);
  // True when the work in front of the event's last record() is over; does not wait. Any thread may call it.
  // Throws Error when the device is lost.
  bool (*reached)(Event& event);
  // Makes device `ordinal` the current one of the calling thread.
  void (*make_current)(int ordinal);
  // Names the device on its host, whatever ordinal a process knows it by: "0000:1B:00.0".
  std::string (*identity)(int ordinal);
  // From now on `check` runs whenever the host has waited for a stream or event of the device. It throws when
  // the work was cut short, so that nobody takes what is in memory then for results. Replaces the last one.
  void (*guard)(Device& device, std::function<void()> check);
};

}  // namespace primus
