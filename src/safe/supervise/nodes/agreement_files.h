// The files of the supervisors in the folder of a run: RUN/.supervisors has the newest agreed state, with the
// addresses of the supervisors, and RUN/.supervisors-votes the votes of node 0. Before the run has a folder,
// nothing can be written, and the votes end with their process: a later process finds none, and is a new
// member. Once this process has seen the folder, a vote or a state counts only when its file has it.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/files/file.h"
#include "safe/supervise/agreement/agreement.h"

namespace primus::supervise {

// Returns RUN/.supervisors.
Path supervisors_file(const Path& run);

class AgreementFiles {
 public:
  AgreementFiles(Path run, int nodes, Env& env = Env::posix())
      : run_(std::move(run)), nodes_(nodes), env_(env) {}

  // nullopt: there is none, or it cannot be read.
  std::optional<AgreedState> state();
  std::optional<Votes> votes();
  // Returns whether the file has the votes, or the run has no folder yet.
  bool keep(const Votes& votes);
  // Writes the state of a leader, unless it has not changed. Returns whether the file has it, or the run has
  // no folder yet. If another leader has written a newer one, returns false.
  bool write(const AgreedState& state);
  void remove() const;

  // Why the last call of keep() or of write() has failed; empty: it has not.
  const std::string& votes_error() const { return votes_error_; }
  const std::string& state_error() const { return state_error_; }

 private:
  Path votes_file() const;
  bool has_folder();

  Path run_;
  int nodes_;
  Env& env_;
  bool seen_ = false;  // the folder
  std::uint64_t written_view_ = 0, written_version_ = 0;
  std::string votes_error_ = {}, state_error_ = {};
};

}  // namespace primus::supervise
