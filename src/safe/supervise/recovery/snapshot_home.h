// A supervisor's part in snapshots in memory (snapshot_interval). It owns their folder on this machine, and
// names it to the ranks. With several machines, it copies the snapshots of its ranks to the next machine that
// it can reach, spares included (lm/checkpoint/snapshot_link.h).
//
// The folder is below /dev/shm, has mode 0700 and a random name, and is removed with this object. If the
// supervisor is killed, its guard removes the folder. If the guard was killed, too, the folder is removed by
// the next supervisor with snapshots of any run of this user on this machine. A supervisor holds a lock in
// its folder, so other supervisors do not remove it.
//
// Uses threads that block all signals. Thread-safety: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "lm/checkpoint/snapshot_link.h"
#include "safe/supervise/folder_guard.h"
#include "safe/supervise/nodes/node_supervisor.h"

namespace primus::supervise {

class SnapshotHome {
 public:
  struct Options {
    Path run = {};                // folder of the run
    int ranks = 1;                // on each machine
    double bytes_per_second = 0;  // at which snapshots are copied; 0: unlimited
    Path memory = "/dev/shm";     // a file system in memory
  };
  // Makes the folder, and sets kSnapshotVariable. `nodes`: absent on a single machine. Throws Error and
  // FileError. Call it before other threads exist.
  SnapshotHome(const Options& options, const std::optional<SupervisedNodes>& nodes);
  ~SnapshotHome();
  SnapshotHome(const SnapshotHome&) = delete;
  SnapshotHome& operator=(const SnapshotHome&) = delete;

  const SnapshotFolder& folder() const { return folder_; }

 private:
  void open_link(const SupervisedNodes& nodes);
  void copy();
  bool copy_to_partner(int rank, const SnapshotId& id, SendRate& rate);

  Options options_;
  SnapshotFolder folder_;
  comm::Socket lock_ = {};  // of the folder
  std::unique_ptr<FolderGuard> guard_ = {};
  std::optional<SnapshotLink> link_ = {};
  std::uint16_t port_ = 0;           // of the link
  std::optional<int> partner_ = {};  // the node that took the last copy; used by copier_ only
  std::unique_ptr<SnapshotServer> server_ = {};
  std::atomic<bool> stop_{false};
  std::thread copier_ = {};
};

}  // namespace primus::supervise
