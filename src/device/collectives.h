// The device services that a vendor's collectives library (NCCL, RCCL) needs. A device plug-in fills this
// table. comm/nccl calls its functions, and so needs no vendor header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "device/device.h"

namespace primus {

// A handle by which other processes of the same host can map an allocation of device memory.
struct PeerHandle {
  std::array<std::byte, 64> bytes{};
  auto operator<=>(const PeerHandle&) const = default;
};

// Copies of rows whose number is known only on the device.
struct RowCopies {
  // Copies the first *rows rows from `from` to `to`. `rows` is device memory.
  struct Part {
    const void* from;
    void* to;
    const std::int32_t* rows;
    bool to_peer;  // `to` is memory of another device
  };
  std::span<const Part> parts;
  std::int64_t row_bytes, maximum;  // `maximum`: rows that a part has space for
  std::uint64_t* sent;  // host memory mapped by map_flags(); gets += bytes of the parts with to_peer
  int processors;       // multiprocessors to use
};

// Transfers and synchronisation between devices of one host. Only copy_rows() occupies multiprocessors.
// Stream::copy_on_device copies from memory of another process. A stream can also wait for flags in host
// memory that all processes have mapped. Every function throws Error on failure.
struct DevicePeers {
  // Returns a handle for the allocation of device `ordinal` that contains `address`. Sets `offset` to the
  // position of `address` in the allocation.
  PeerHandle (*share)(int ordinal, const void* address, std::int64_t& offset);
  // Maps an allocation of another process, and returns its address for copies of device `ordinal`. The other
  // process must not free the allocation before close().
  void* (*open)(int ordinal, const PeerHandle& handle);
  void (*close)(int ordinal, void* opened) noexcept;
  // Maps host memory for device `ordinal` until unmap_flags(). The memory must consist of complete pages.
  // Returns the device address.
  void* (*map_flags)(int ordinal, void* host, std::int64_t bytes);
  void (*unmap_flags)(int ordinal, void* host) noexcept;
  // Sets *flag = value after all earlier work of the stream is done and the results of this work are visible
  // to every device.
  void (*set_flag)(Stream& stream, void* flag, std::uint32_t value);
  // Makes later work of the stream wait until int32(*flag - value) >= 0.
  void (*wait_flag)(Stream& stream, void* flag, std::uint32_t value);
  // Enqueues the copies. Null: not supported.
  void (*copy_rows)(Stream& stream, const RowCopies& copies) = nullptr;
  // Whether copy engines are the default. True on devices where copy engines were tested and were faster.
  bool usual = false;
};

struct DeviceCollectives {
  const char* library;            // name of the library for messages: "NCCL"
  const char* const* file_names;  // names of the shared library to try, in this order; the last entry is null
  const char* installation;       // how to install the library; completes "install ..."

  // Returns the vendor's handle of a stream that one of the plug-in's devices created.
  void* (*stream_handle)(Stream& stream);
  // Returns true while the work of the stream is recorded in a graph. During this time, events of the stream
  // cannot be queried.
  bool (*recording)(Stream& stream);
  // Returns whether the work before the last record() of the event is done; does not wait. Any thread may
  // call it. Throws Error if the device is lost.
  bool (*reached)(Event& event);
  // Makes device `ordinal` current for the calling thread.
  void (*make_current)(int ordinal);
  // Returns a name of the device that is the same in all processes of a host: "0000:1B:00.0".
  std::string (*identity)(int ordinal);
  // Installs a check that runs whenever the host has waited for a stream or event of the device. The check
  // throws if the work was aborted, so that the caller does not use incomplete results. Replaces the previous
  // check.
  void (*guard)(Device& device, std::function<void()> check);
  // Transfers between devices of one host; null if the devices do not support them.
  const DevicePeers* peers = nullptr;
};

}  // namespace primus
