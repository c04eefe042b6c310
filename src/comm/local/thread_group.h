// Ranks as threads of one process: a job without a network, for tests and for one process with several
// devices.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "comm/host_communicator.h"

namespace primus::comm::local {

struct ThreadOptions {
  std::chrono::milliseconds timeout = RankState::kDefaultTimeout;
  // Copy through rings, as processes do, instead of reading each other's memory.
  bool rings = false;
};

// Links between threads of this process, `ranks` in all.
std::shared_ptr<LinkFactory> make_thread_link_factory(int ranks, bool rings);

// The communicators of the group "world" of `ranks`, one for each rank's thread; they may be used at once.
std::vector<std::unique_ptr<HostCommunicator>> make_thread_group(int ranks,
                                                                 const ThreadOptions& options = {});

}  // namespace primus::comm::local
