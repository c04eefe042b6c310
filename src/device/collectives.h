// What a vendor's library of collectives (NCCL, RCCL) needs to know of the devices that it works on. A device
// plug-in fills this table; comm/nccl, which knows no vendor's header, calls through it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"

namespace primus {

// Names an allocation of device memory to the other processes of its host.
struct PeerHandle {
  std::array<std::byte, 64> bytes{};
  auto operator<=>(const PeerHandle&) const = default;
};

// How devices of one host reach each other's memory, and wait for each other, without their multiprocessors:
// copies on a stream (Stream::copy_on_device) from memory of another process, and flags in host memory that
// all of them map. Whatever cannot be done throws Error.
struct DevicePeers {
  // The allocation that `address`, memory of device `ordinal`, lies in, and how far in.
  PeerHandle (*share)(int ordinal, const void* address, std::int64_t& offset);
  // What another process shares, as copies of device `ordinal` name it. Its owner keeps it until close().
  void* (*open)(int ordinal, const PeerHandle& handle);
  void (*close)(int ordinal, void* opened) noexcept;
  // Memory of the host as device `ordinal` names it: whole pages, until unmap_flags().
  void* (*map_flags)(int ordinal, void* host, std::int64_t bytes);
  void (*unmap_flags)(int ordinal, void* host) noexcept;
  // *flag = value, once what is in front of it on the stream is over and every device sees it.
  void (*set_flag)(Stream& stream, void* flag, std::uint32_t value);
  // What comes behind it on the stream waits until int32(*flag - value) >= 0.
  void (*wait_flag)(Stream& stream, void* flag, std::uint32_t value);
  // Whether that is done without being asked for: it was seen to work, and to be faster.
  bool usual = false;
};

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
  // Null: these devices cannot.
  const DevicePeers* peers = nullptr;
};

}  // namespace primus
