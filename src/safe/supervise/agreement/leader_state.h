// The state that the supervisors of a job on several machines agree on. Another leader needs nothing else to
// continue the job. It is the body of an AgreedState.
//
// Free functions and plain data.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace primus::supervise {

struct LeaderState {
  int leader = -1;  // node; -1: no leader has decided anything
  // Bookkeeping::save() at the begin of the attempt, or after its end. The events of rank 0 since then are in
  // its file, from the byte `offset` on.
  nlohmann::ordered_json books = {};
  std::int64_t offset = 0;
  std::uint64_t attempt = 0;  // number of the newest attempt
  bool runs = false;          // it was started, and its end is not known
  bool over = false;          // the job is over, with `exit_code`
  int exit_code = 0;
  std::vector<int> places = {};         // nodes of the newest attempt
  std::vector<std::string> hosts = {};  // of all nodes; empty: never joined
  std::string salt = {};                // of the attempts' secrets
  double next_at = 0;                   // seconds since 1970 when the next attempt may start
  std::uint64_t free_bytes = 0;         // that the disk needs before the next attempt
  int stop = 0;                         // the signal that asked the job to stop; 0: none
  std::vector<std::string> lines = {};  // of the record, that may not be written yet
};

std::string to_text(const LeaderState& state);
// Returns a state without leader if the text is no state of a job of `nodes` machines. `books` is not
// checked: Bookkeeping::restore() throws.
LeaderState read_leader_state(std::string_view text, int nodes);

}  // namespace primus::supervise
