// Ranks as threads of one process: a job without a network, for tests and for one process that drives several
// devices.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/host_communicator.h"

namespace primus::comm::local {

struct ThreadOptions {
  std::chrono::milliseconds timeout = RankState::kDefaultTimeout;
  // Whether ranks copy through rings, as processes do. If false, a rank reads other ranks' memory directly.
  bool rings = false;
};

// Returns a factory of links between `ranks` threads of this process.
std::shared_ptr<LinkFactory> make_thread_link_factory(int ranks, bool rings);

// Returns the communicators of the group "world" of `ranks`, one per rank's thread. They may be used
// immediately.
std::vector<std::unique_ptr<HostCommunicator>> make_thread_group(int ranks,
                                                                 const ThreadOptions& options = {});

}  // namespace primus::comm::local
