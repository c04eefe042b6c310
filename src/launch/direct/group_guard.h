// Ends process groups whose starter was killed.
//
// PR_SET_PDEATHSIG ends a child with its parent, but not the child's children. A guard is a small helper
// process, connected to its starter by a socket. When the starter dies (SIGKILL, out of memory), the socket
// closes and the guard kills all registered groups.
//
// Thread-safety: use from one thread only.
#pragma once

#include <sys/types.h>

#include "comm/rendezvous/socket.h"

namespace primus::launch {

class GroupGuard {
 public:
  // Starts the guard. Throws Error if the process cannot be started.
  GroupGuard();
  // Ends the guard without killing any group.
  ~GroupGuard();
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  // `group`: the id of a process group, which is its leader's process id. At most kMaxGroups at a time.
  void add(pid_t group) { tell(group); }
  // Call remove() after waiting for the group's leader, because the id may then be reused.
  void remove(pid_t group) { tell(-group); }

  static constexpr int kMaxGroups = 4096;

 private:
  void tell(pid_t word) const;

  comm::Socket to_guard_;
  pid_t pid_ = -1;
};

}  // namespace primus::launch
