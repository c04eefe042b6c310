// Ends process groups whose starter was killed.
//
// PR_SET_PDEATHSIG ends a child with its parent, but not the children of the child. A guard is a small helper
// process that holds the other end of a socket. The socket closes when this process dies (SIGKILL, out of
// memory), and then the guard kills the groups that it was told of.
//
// Thread-safety: belongs to one thread.
#pragma once

#include <sys/types.h>

#include "comm/rendezvous/socket.h"

namespace primus::launch {

class GroupGuard {
 public:
  // Starts the guard. Throws Error where no process can be started.
  GroupGuard();
  // Ends the guard, which kills nothing then.
  ~GroupGuard();
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  // `group`: the id of a process group, which is that of its leader. At most kMostGroups at a time.
  void add(pid_t group) { tell(group); }
  // After its leader was waited for: the number may be another group's from then on.
  void remove(pid_t group) { tell(-group); }

  static constexpr int kMostGroups = 4096;

 private:
  void tell(pid_t word) const;

  comm::Socket to_guard_;
  pid_t pid_ = -1;
};

}  // namespace primus::launch
