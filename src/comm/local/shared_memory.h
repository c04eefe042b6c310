// Memory shared by processes of one host. It has no name in any file system: the processes hand each other
// the descriptor, over a socket whose name vanishes with it. So nothing is left behind, whoever dies when.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "comm/rendezvous/socket.h"

namespace primus::comm::local {

// Equal for processes that can share memory this way: same running kernel, network namespace and user.
std::string host_identity();

// Zeroed memory and the descriptor to hand out. It cannot be shrunk under those who have mapped it.
struct SharedMemory {
  Socket descriptor;
  std::shared_ptr<std::byte> memory;
};
// Throws Error(kIo) when the system has none.
SharedMemory create_shared_memory(std::size_t bytes);

// Hands a descriptor to `receivers` processes of the same user that ask for it by name().
class DescriptorGiver {
 public:
  DescriptorGiver();
  const std::string& name() const { return name_; }
  // `check` is called while waiting, and may throw. Throws Error(kIo) after the deadline.
  void give(const Socket& descriptor, int receivers, Deadline deadline, const std::function<void()>& check);

 private:
  Socket listener_;
  std::string name_;
};

// Asks the giver of this name, and maps what it gives: `bytes`, or Error.
std::shared_ptr<std::byte> map_from_giver(const std::string& name, std::size_t bytes, Deadline deadline,
                                          const std::function<void()>& check);

}  // namespace primus::comm::local
