// The device services that a vendor's collectives library (NCCL, RCCL) needs. A device plug-in fills this
// table, and comm/nccl, which includes no vendor header, calls through it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "device/device.h"

namespace primus {

// Identifies an allocation of device memory to the other processes of its host.
struct PeerHandle {
  std::array<std::byte, 64> bytes{};
  auto operator<=>(const PeerHandle&) const = default;
};

// Transfers and synchronisation between devices of one host that use no multiprocessors: a stream copies from
// another process's memory (Stream::copy_on_device), and waits for flags in host memory that all processes
// map. Every function throws Error on failure.
struct DevicePeers {
  // Returns a handle for the allocation that contains `address`, memory of device `ordinal`; `offset` is the
  // position of `address` in it.
  PeerHandle (*share)(int ordinal, const void* address, std::int64_t& offset);
  // Maps another process's allocation, and returns its address for copies of device `ordinal`. The owner must
  // not free it before close().
  void* (*open)(int ordinal, const PeerHandle& handle);
  void (*close)(int ordinal, void* opened) noexcept;
  // Maps host memory for device `ordinal`, in complete pages, until unmap_flags(). Returns the device
  // address.
  void* (*map_flags)(int ordinal, void* host, std::int64_t bytes);
  void (*unmap_flags)(int ordinal, void* host) noexcept;
  // *flag = value, after all earlier work of the stream is done and visible to every device.
  void (*set_flag)(Stream& stream, void* flag, std::uint32_t value);
  // Makes later work of the stream wait until int32(*flag - value) >= 0.
  void (*wait_flag)(Stream& stream, void* flag, std::uint32_t value);
  // Whether copy engines are used by default: true for devices on which they were tested and were faster.
  bool usual = false;
};

struct DeviceCollectives {
  const char* library;            // name of the library for messages: "NCCL"
  const char* const* file_names;  // shared libraries to try, best first; ends with null
  const char* installation;       // how to install the library; completes "install ..."

  // Returns the vendor's handle of a stream that one of the plug-in's devices created.
  void* (*stream_handle)(Stream& stream);
  // True while the stream's work is recorded in a graph: its events cannot be queried then.
  bool (*recording)(Stream& stream);
  // True if the work before the event's last record() is done; does not wait. Any thread may call it. Throws
  // Error if the device is lost.
  bool (*reached)(Event& event);
  // Makes device `ordinal` current for the calling thread.
  void (*make_current)(int ordinal);
  // Identifies the device on its host, independently of a process's ordinals: "0000:1B:00.0".
  std::string (*identity)(int ordinal);
  // Installs a check that runs whenever the host has waited for a stream or event of the device. It throws if
  // the work was aborted, so the caller does not use incomplete results. Replaces the previous check.
  void (*guard)(Device& device, std::function<void()> check);
  // Null: the devices do not support this.
  const DevicePeers* peers = nullptr;
};

}  // namespace primus
