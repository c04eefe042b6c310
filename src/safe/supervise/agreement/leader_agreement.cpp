#include "safe/supervise/agreement/leader_agreement.h"

#include <utility>

namespace primus::supervise {

bool LeaderAgreement::step(int self, const Roster& roster) {
  Agreement& agreement = hub_.succession().agreement();
  bool starts = false;
  const bool written = hub_.write_file();
  if (proposal_ && agreement.is_agreed(*proposal_) && written) {
    proposal_.reset();
    starts = std::exchange(starting_, false);
  }
  // The job makes the folder of the record when it starts.
  if (!proposal_ && fresh_ > 0 && books_.log().release(fresh_, again_)) {
    fresh_ = 0;
    again_ = false;
  }
  if (proposal_ || (!changed_ && fresh_ == books_lines())) return starts;
  changed_ = false;
  state.leader = self;
  state.lines = books_.log().held();
  fresh_ = state.lines.size();
  if (!state.runs) state.books = books_.save();
  if (!state.books.is_null()) state.books["recovering"] = books_.recovering();
  state.hosts.clear();
  for (int node = 0; node < roster.nodes(); ++node) state.hosts.push_back(roster.host(node));
  starting_ = std::exchange(wants_start_, false);
  proposal_ = agreement.propose(to_text(state));
  return starts;
}

}  // namespace primus::supervise
