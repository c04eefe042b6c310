// Holds a leader's decisions until the other supervisors know them. The record's lines are written, and an
// attempt starts, only when the supervisors agree (agreement.h).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "safe/supervise/agreement/leader_state.h"
#include "safe/supervise/nodes/node_hub.h"
#include "safe/supervise/nodes/node_roster.h"
#include "safe/supervise/recovery/bookkeeping.h"

namespace primus::supervise {

class LeaderAgreement {
 public:
  LeaderAgreement(NodeHub& hub, Bookkeeping& books) : hub_(hub), books_(books) {}

  LeaderState state = {};  // call changed() after a change

  void changed() { changed_ = true; }
  // An earlier leader may have written the lines that wait.
  void continues() { again_ = true; }
  // An attempt starts when its state is agreed.
  void start() { changed_ = wants_start_ = true; }
  void cancel_start() { wants_start_ = starting_ = false; }
  // Proposes what has changed, and writes the lines that are agreed. Returns whether an attempt may start
  // now.
  bool step(int self, const Roster& roster);
  // Whether all is agreed.
  bool is_settled() const { return !changed_ && !proposal_ && fresh_ == books_lines(); }

 private:
  std::size_t books_lines() const { return books_.log().held().size(); }

  NodeHub& hub_;
  Bookkeeping& books_;
  std::optional<std::uint64_t> proposal_ = {};
  bool changed_ = true, again_ = false, wants_start_ = false, starting_ = false;
  std::size_t fresh_ = 0;  // lines that are agreed or proposed, and not written
};

}  // namespace primus::supervise
