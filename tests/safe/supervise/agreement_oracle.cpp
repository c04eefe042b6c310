#include "safe/supervise/agreement_oracle.h"

#include <algorithm>

namespace primus::supervise {

template <class Has>
bool AgreementOracle::is_quorum_of(const AgreedState& state, const Delegate& leader, Has has) const {
  const auto voted = [&](const Delegate& member) {
    // Node 0 has its port, so an earlier process of it has ended, and the leader there has that one's vote.
    if (member.node == 0 && leader.node == 0 && member.life != leader.life) return true;
    const auto found = processes_.find(member.life);
    return found != processes_.end() && has(found->second);
  };
  return is_quorum(state.now, voted) && (state.before.members.empty() || is_quorum(state.before, voted));
}

void AgreementOracle::watch(const Agreement& agreement) {
  const Delegate& self = agreement.self();
  Process& one = processes_[self.life];
  const AgreedState& state = agreement.state();
  const auto error = [&](const char* what) {
    wrong_.push_back("node " + std::to_string(self.node) + ", view " + std::to_string(state.view) + ": " +
                     what);
  };
  if (agreement.promised() < one.promised) error("it has broken a promise");
  if (one.state.exists() && state.job != one.state.job) error("it changed the job");
  if (is_newer(one.state, state)) error("it has an older state than before");
  one.promised = agreement.promised();
  one.promises.insert(one.promised);
  if (state.exists() && (!one.state.exists() || is_newer(state, one.state))) {
    one.state = state;
    one.accepted.insert({state.view, state.version});
    const AgreedState& known =
        states_.emplace(std::tuple(state.job, state.view, state.version), state).first->second;
    if (known.body != state.body) error("two leaders have proposed the same version of a view");
  }
  const bool leads = agreement.leads();
  if (leads && !one.leads) {
    const View view = agreement.view();
    const auto promised = [&](const Process& process) { return process.promises.contains(view); };
    if (!is_quorum_of(state, self, promised)) error("it leads without the promises of a quorum");
    if (leaders_.emplace(std::pair(state.job, view), self.life).first->second != self.life)
      error("two nodes lead in one view");
  }
  if (leads && agreement.promised() > agreement.view()) error("it leads in spite of a higher promise");
  one.leads = leads;
}

void AgreementOracle::agrees(const Agreement& leader, const std::string& text) {
  const AgreedState& now = leader.state();
  const bool agreed = std::ranges::any_of(states_, [&](const auto& entry) {
    const AgreedState& state = entry.second;
    if (state.job != now.job || state.view != leader.view() || !state.body.starts_with(text)) return false;
    return is_quorum_of(state, leader.self(), [&](const Process& process) {
      // A later version of the view holds the earlier ones.
      const auto later = process.accepted.lower_bound({state.view, state.version});
      return later != process.accepted.end() && later->first == state.view;
    });
  });
  if (!agreed) wrong_.push_back("'" + text + "' was agreed without a quorum");
  std::string& before = agreed_[now.job];
  // It may have been agreed earlier, and another leader may have continued from it.
  if (!text.starts_with(before) && !before.starts_with(text))
    wrong_.push_back("'" + text + "' lacks a part of '" + before + "'");
  if (text.size() > before.size()) before = text;
}

}  // namespace primus::supervise
