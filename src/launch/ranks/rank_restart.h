// The state of a rank restart in a launcher (rank_channel.h): from the loss of a rank until all ranks connect
// again, or until the restart is cancelled. The class starts no process and reads no clock.
//
// A rank is in one of these states: it leaves the lost start, it has been replaced by a new process, or it is
// ready, replaced or not. Ranks are counted from 0 on this host. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "launch/ranks/rank_channel.h"

namespace primus::launch {

class RankRestart {
 public:
  // `leave_by`: when the ranks that live must be ready.
  RankRestart(int ranks, comm::Deadline leave_by)
      : ranks_(static_cast<std::size_t>(ranks)), leave_by_(leave_by) {}

  // `start_by`: when the new process must be ready.
  void replaced(int local, comm::Deadline start_by) {
    at(local) = {.replaced = true, .ready = false, .start_by = start_by};
  }
  bool is_replaced(int local) const { return ranks_[static_cast<std::size_t>(local)].replaced; }
  // `port`: on which rank 0 listens; 0 from other ranks.
  void ready(int local, std::uint16_t port) {
    at(local).ready = true;
    if (port != 0) port_ = port;
  }

  // Returns whether the rank lives since the start of the job, and has not left the lost start in time.
  bool is_late(int local) const {
    const State& state = ranks_[static_cast<std::size_t>(local)];
    return !state.replaced && !state.ready && comm::milliseconds_until(leave_by_) == 0;
  }
  // Returns whether a replacing process did not start in time.
  bool is_stuck() const {
    return std::ranges::any_of(ranks_, [](const State& one) {
      return one.replaced && !one.ready && comm::milliseconds_until(one.start_by) == 0;
    });
  }
  // Returns the next time at which one of these may change; nullopt: all ranks are ready, and wait for the
  // supervisor without a time limit.
  std::optional<comm::Deadline> next_look() const {
    std::optional<comm::Deadline> next;
    for (const State& one : ranks_) {
      if (one.ready) continue;
      const comm::Deadline own = one.replaced ? one.start_by : leave_by_;
      next = std::min(next.value_or(own), own);
    }
    return next;
  }

  // Returns whether each rank is ready or replaced, so the supervisor can be asked.
  bool settled() const {
    return std::ranges::all_of(ranks_, [](const State& one) { return one.replaced || one.ready; });
  }
  bool all_ready() const {
    return std::ranges::all_of(ranks_, [](const State& one) { return one.ready; });
  }
  std::uint16_t port() const { return port_; }  // 0: rank 0 is not ready

  bool reported = false;                // the supervisor has been asked
  std::optional<JoinOrder> order = {};  // its answer

 private:
  struct State {
    bool replaced = false, ready = false;
    comm::Deadline start_by = {};
  };
  State& at(int local) { return ranks_[static_cast<std::size_t>(local)]; }

  std::vector<State> ranks_;
  comm::Deadline leave_by_;
  std::uint16_t port_ = 0;
};

}  // namespace primus::launch
