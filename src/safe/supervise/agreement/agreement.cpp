#include "safe/supervise/agreement/agreement.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

namespace primus::supervise {
namespace {

using StateJson = nlohmann::json;

constexpr std::size_t kFields = 4;
constexpr std::uint64_t kSpread = std::uint64_t{1} << 20;

StateJson json_of(const Assembly& assembly) {
  StateJson members = StateJson::array();
  for (const Delegate& one : assembly.members) members.push_back({one.node, one.life, one.address, one.port});
  return {{"members", std::move(members)}, {"chair", assembly.chair}};
}

// Throws a JSON error, or returns nullopt.
std::optional<Assembly> read_assembly(const StateJson& json, int nodes) {
  Assembly assembly{.members = {}, .chair = json.at("chair").get<int>()};
  if (assembly.chair < -1 || assembly.chair >= nodes) return std::nullopt;
  int before = -1;
  for (const StateJson& one : json.at("members")) {
    if (!one.is_array() || one.size() != kFields) return std::nullopt;
    const Delegate member{.node = one[0].get<int>(),
                          .life = one[1].get<std::uint64_t>(),
                          .address = one[2].get<std::string>(),
                          .port = one[3].get<std::uint16_t>()};
    if (member.node <= before || member.node >= nodes) return std::nullopt;
    before = member.node;
    assembly.members.push_back(member);
  }
  return assembly;
}

StateJson json_of(const AgreedState& state) {
  return {{"job", state.job},
          {"view", state.view},
          {"version", state.version},
          {"now", json_of(state.now)},
          {"before", json_of(state.before)},
          {"body", state.body}};
}

// Throws a JSON error, or returns nullopt.
std::optional<AgreedState> read_state_json(const StateJson& json, int nodes) {
  const auto now = read_assembly(json.at("now"), nodes), before = read_assembly(json.at("before"), nodes);
  if (!now || !before) return std::nullopt;
  return AgreedState{.job = json.at("job").get<std::uint64_t>(),
                     .view = json.at("view").get<std::uint64_t>(),
                     .version = json.at("version").get<std::uint64_t>(),
                     .now = *now,
                     .before = *before,
                     .body = json.at("body").get<std::string>()};
}

std::string text_of(const StateJson& json) {
  return json.dump(-1, ' ', false, StateJson::error_handler_t::replace);
}

bool are_same(const std::vector<Delegate>& a, const std::vector<Delegate>& b) {
  return std::ranges::equal(
      a, b, [](const Delegate& x, const Delegate& y) { return x.node == y.node && x.life == y.life; });
}

}  // namespace

bool is_newer(const AgreedState& a, const AgreedState& b) {
  return std::tie(a.view, a.version) > std::tie(b.view, b.version);
}

std::string to_text(const AgreedState& state) { return text_of(json_of(state)); }

std::optional<AgreedState> read_state(std::string_view text, int nodes) {
  try {
    return read_state_json(StateJson::parse(text), nodes);
  } catch (const StateJson::exception&) {
    return std::nullopt;
  }
}

std::string to_text(const Votes& votes) {
  return text_of({{"lives", votes.lives}, {"promised", votes.promised}, {"state", json_of(votes.state)}});
}

std::optional<Votes> read_votes(std::string_view text, int nodes) {
  try {
    const StateJson json = StateJson::parse(text);
    auto state = read_state_json(json.at("state"), nodes);
    if (!state) return std::nullopt;
    return Votes{.lives = json.at("lives").get<std::set<std::uint64_t>>(),
                 .promised = json.at("promised").get<std::uint64_t>(),
                 .state = std::move(*state)};
  } catch (const StateJson::exception&) {
    return std::nullopt;
  }
}

Agreement::Agreement(int nodes, Delegate self, Keep keep)
    : nodes_(nodes), self_(std::move(self)), keep_(std::move(keep)) {
  lives_.insert(self_.life);
}

bool Agreement::is_self(const Delegate& one) const {
  return one.node == self_.node && lives_.contains(one.life);
}

bool Agreement::is_member() const {
  return std::ranges::any_of(state_.now.members, [this](const Delegate& one) { return is_self(one); }) ||
         std::ranges::any_of(state_.before.members, [this](const Delegate& one) { return is_self(one); });
}

// ---- A node that follows ------------------------------------------------------------------------

Agreement::Answer Agreement::promise(std::uint64_t view) {
  if (view < promised_) return Answer::kRefused;
  if (!keep(view, state_)) return Answer::kNotKept;
  set_promised(view);
  return Answer::kTaken;
}

void Agreement::set_promised(std::uint64_t view) {
  promised_ = view;
  if (view != view_) leads_ = false;
}

Agreement::Answer Agreement::accept(const AgreedState& state) {
  if (state_.exists() && state.job != state_.job) return Answer::kRefused;
  if (state.view < promised_) return Answer::kRefused;
  const bool newer = is_newer(state, state_);
  if (!keep(state.view, newer ? state : state_)) return Answer::kNotKept;
  set_promised(state.view);
  if (newer) take(state);
  return Answer::kTaken;
}

// Returns whether this node's vote outlives its process, if it must.
bool Agreement::keep(std::uint64_t promised, const AgreedState& state) {
  if (!keep_) return true;
  const std::tuple vote{promised, state.view, state.version};
  if (kept_ == vote) return true;
  if (!keep_({.lives = lives_, .promised = promised, .state = state})) return false;
  kept_ = vote;
  return true;
}

void Agreement::remember(const Votes& votes) {
  lives_.insert(votes.lives.begin(), votes.lives.end());
  promised_ = std::max(promised_, votes.promised);
  kept_.reset();
  recall(votes.state);
}

// Another node's state does not hold what this node has proposed or wants to propose: it has led in between.
void Agreement::take(AgreedState state) {
  state_ = std::move(state);
  in_state_ = 0;
  wanted_.reset();
  lost_ = lost_ || proposals_ > agreed_;
}

void Agreement::recall(const AgreedState& state) {
  if ((!state_.exists() || state.job == state_.job) && is_newer(state, state_)) take(state);
}

// ---- A candidate --------------------------------------------------------------------------------

void Agreement::hear(const Delegate& peer, std::uint64_t promised, const AgreedState& state) {
  peers_[peer.node] = Peer{.who = peer, .promised = promised, .state = state};
}

void Agreement::gone(int node) {
  peers_.erase(node);
  if (leads_) advance();
}

std::vector<Delegate> Agreement::peers() const {
  std::vector<Delegate> found;
  for (const auto& [node, peer] : peers_) found.push_back(peer.who);
  return found;
}

template <class Has>
bool Agreement::is_quorum(const Assembly& assembly, Has has) const {
  std::size_t votes = 0;
  bool chair = false;
  for (const Delegate& one : assembly.members) {
    const auto peer = peers_.find(one.node);
    const bool votes_here =
        is_self(one) || (peer != peers_.end() && peer->second.who.life == one.life && has(peer->second));
    votes += votes_here ? 1 : 0;
    chair = chair || (votes_here && one.node == assembly.chair);
  }
  const std::size_t all = assembly.members.size();
  return 2 * votes > all || (2 * votes == all && chair);
}

template <class Has>
bool Agreement::is_quorum(const AgreedState& state, Has has) const {
  return state.exists() && is_quorum(state.now, has) &&
         (state.before.members.empty() || is_quorum(state.before, has));
}

// The newest state of this node and of its peers, or only of those that have promised its view.
const AgreedState& Agreement::newest(bool promised) const {
  const AgreedState* found = &state_;
  for (const auto& [node, peer] : peers_) {
    if (promised && peer.promised_here != view_) continue;
    const bool same_job = !found->exists() || peer.state.job == found->job;
    if (same_job && is_newer(peer.state, *found)) found = &peer.state;
  }
  return *found;
}

bool Agreement::has_quorum() const {
  return is_quorum(leads_ ? state_ : newest(false), [](const Peer&) { return true; });
}

std::uint64_t Agreement::stand() {
  std::uint64_t highest = std::max(promised_, newest(false).view);
  for (const auto& [node, peer] : peers_) highest = std::max(highest, peer.promised);
  const auto nodes = static_cast<std::uint64_t>(nodes_);
  // An earlier process of this node may have proposed states in a view that none of the peers knows. A part
  // of the number is therefore random.
  view_ = (highest / nodes + 1 + self_.life % kSpread) * nodes + static_cast<std::uint64_t>(self_.node);
  promised_ = view_;
  leads_ = false;
  for (auto& [node, peer] : peers_) peer.sent = peer.acknowledged = 0;
  look_at_promises();
  return view_;
}

void Agreement::count() {
  if (leads_) return advance();
  if (view_ != 0) look_at_promises();
}

void Agreement::hear_promise(int node, std::uint64_t view, const AgreedState& state) {
  const auto found = peers_.find(node);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.promised = std::max(peer.promised, view);
  if (is_newer(state, peer.state)) peer.state = state;
  if (view == view_) peer.promised_here = view;
  if (!leads_) look_at_promises();
}

void Agreement::look_at_promises() {
  if (promised_ != view_) return;
  const AgreedState& found = newest(true);
  if (!is_quorum(found, [this](const Peer& peer) { return peer.promised_here == view_; })) return;
  if (!keep(promised_, state_)) return;
  leads_ = waits_ = true;
  const bool own = &found == &state_;
  AgreedState next = found;
  next.view = view_;
  ++next.version;
  if (own) {
    state_ = std::move(next);
  } else {
    take(std::move(next));
  }
  advance();
}

// ---- A leader -----------------------------------------------------------------------------------

void Agreement::found(std::uint64_t job, std::string body) {
  view_ = promised_ = static_cast<std::uint64_t>(nodes_ + self_.node);
  state_ = {.job = job,
            .view = view_,
            .version = 1,
            .now = {.members = {self_}, .chair = self_.node},
            .before = {},
            .body = std::move(body)};
  leads_ = waits_ = true;
  advance();
}

std::uint64_t Agreement::propose(std::string body) {
  wanted_ = std::move(body);
  ++proposals_;
  if (leads_) advance();
  return proposals_;
}

void Agreement::renew() {
  if (!leads_) return;
  if (!wanted_) wanted_ = state_.body;
  advance();
}

void Agreement::resign() {
  leads_ = waits_ = lost_ = false;
  wanted_.reset();
  agreed_ = proposals_;
  in_state_ = 0;
}

void Agreement::hear_acknowledgement(int node, std::uint64_t view, std::uint64_t version) {
  const auto found = peers_.find(node);
  if (found == peers_.end() || view != view_ || !leads_) return;
  found->second.acknowledged = std::max(found->second.acknowledged, version);
  advance();
}

std::vector<int> Agreement::take_unsent() {
  std::vector<int> nodes;
  if (!leads_) return nodes;
  for (auto& [node, peer] : peers_) {
    if (peer.sent < state_.version) nodes.push_back(node);
    peer.sent = state_.version;
  }
  return nodes;
}

void Agreement::advance() {
  for (;;) {
    if (waits_) {
      const auto has = [this](const Peer& peer) { return peer.acknowledged == state_.version; };
      // One copy at least is elsewhere, if there is another supervisor: a chair alone may be lost.
      const bool copied =
          peers_.empty() || std::ranges::any_of(peers_, [&](const auto& one) { return has(one.second); });
      if (!copied || !is_quorum(state_, has) || !keep(promised_, state_)) return;
      waits_ = false;
      agreed_ = std::max(agreed_, in_state_);
    }
    // The votes of an earlier process end when this process is a member itself.
    if (!wanted_ && state_.before.members.empty()) return;
    if (wanted_) {
      std::vector<Delegate> members = peers();
      members.insert(
          std::ranges::find_if(members, [&](const Delegate& one) { return one.node > self_.node; }), self_);
      state_.before = {};
      if (!are_same(members, state_.now.members) || state_.now.chair != self_.node) {
        state_.before = std::exchange(state_.now, {.members = std::move(members), .chair = self_.node});
      }
      state_.body = *std::exchange(wanted_, std::nullopt);
      in_state_ = proposals_;
    } else {
      state_.before = {};
    }
    ++state_.version;
    waits_ = true;
  }
}

}  // namespace primus::supervise
