// Sees all supervisors of a simulated job, and checks each promise, each state and each agreement against the
// definition of a quorum, without the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "safe/supervise/agreement/agreement.h"

namespace primus::supervise {

class AgreementOracle {
 public:
  // Sees what a supervisor has done since the last call: at most one message, or one turn.
  void watch(const Agreement& agreement);
  // The leader acts on `text`, which it believes to be agreed.
  void agrees(const Agreement& leader, const std::string& text);
  const std::vector<std::string>& wrong() const { return wrong_; }
  std::size_t jobs() const { return agreed_.size(); }

  template <class Voted>
  static bool is_quorum(const Assembly& assembly, Voted voted) {
    std::size_t count = 0;
    bool chair = false;
    for (const Delegate& one : assembly.members) {
      const bool has = voted(one);
      count += has ? 1 : 0;
      chair = chair || (has && one.node == assembly.chair);
    }
    return 2 * count > assembly.members.size() || (2 * count == assembly.members.size() && chair);
  }

 private:
  using View = std::uint64_t;
  struct Process {
    View promised = 0;
    AgreedState state = {};
    bool leads = false;
    std::set<View> promises = {};
    std::set<std::pair<View, View>> accepted = {};  // view and version
  };
  // Whether a process of the member has promised or accepted what `has` asks for.
  template <class Has>
  bool is_quorum_of(const AgreedState& state, const Delegate& leader, Has has) const;

  std::map<std::uint64_t, Process> processes_ = {};  // by life
  std::map<int, std::uint64_t> lives_ = {};          // of the newest process of a node
  std::map<std::tuple<std::uint64_t, View, View>, AgreedState> states_ = {};  // by job, view and version
  std::map<std::pair<std::uint64_t, View>, std::uint64_t> leaders_ = {};      // life, by job and view
  std::map<std::uint64_t, std::string> agreed_ = {};                          // the longest text of a job
  std::vector<std::string> wrong_ = {};
};

}  // namespace primus::supervise
