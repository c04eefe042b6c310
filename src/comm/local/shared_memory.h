// Memory shared by processes of one host. It has no name in any file system: processes pass the descriptor
// over a socket. The socket's name disappears with the socket, so a crash leaves no file.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "comm/rendezvous/socket.h"

namespace primus::comm::local {

// Returns a text that is equal for processes that can share memory this way: same boot, network namespace and
// user.
std::string host_identity();

// Zeroed memory and its descriptor for other processes. A seal prevents shrinking: a smaller file would crash
// processes that map the memory.
struct SharedMemory {
  Socket descriptor;
  std::shared_ptr<std::byte> memory;
};
// Throws Error(kIo) if the system cannot provide the memory.
SharedMemory create_shared_memory(std::size_t bytes);

// Sends a descriptor to `receivers` processes of the same user that connect to name().
class DescriptorGiver {
 public:
  DescriptorGiver();
  const std::string& name() const { return name_; }
  // Calls `check` while waiting; `check` may throw. Throws Error(kIo) after the deadline.
  void give(const Socket& descriptor, int receivers, Deadline deadline, const std::function<void()>& check);

 private:
  Socket listener_;
  std::string name_;
};

// Connects to the DescriptorGiver of this name and maps the `bytes` of its descriptor. Calls `check` while
// waiting. Throws Error(kIo) if the deadline has passed, the other process has ended or belongs to another
// user, or the size differs.
std::shared_ptr<std::byte> map_from_giver(const std::string& name, std::size_t bytes, Deadline deadline,
                                          const std::function<void()>& check);

}  // namespace primus::comm::local
