#include "safe/supervise/agreement/succession.h"

#include <algorithm>
#include <utility>

namespace primus::supervise {

using MessageKind = LeadershipMessage::Kind;

Succession::Succession(int nodes, Delegate self, std::vector<Delegate> known, bool may_found, double now,
                       SuccessionLimits limits, VoteMemory memory)
    : nodes_(nodes),
      limits_(limits),
      agreement_(nodes, std::move(self), std::move(memory.keep)),
      kept_(std::move(memory.kept)),
      may_found_(may_found),
      search_({.began = now, .next = now}) {
  for (Delegate& one : known)
    if (one.node != agreement_.self().node) known_[one.node] = std::move(one);
}

std::vector<Succession::Act> Succession::acts() { return std::exchange(acts_, {}); }

LeadershipMessage Succession::own(MessageKind kind) const {
  LeadershipMessage message{.kind = kind, .view = agreement_.promised(), .version = 0};
  message.who = agreement_.self();
  if (kind == MessageKind::kHello || kind == MessageKind::kPromise) message.state = agreement_.state();
  return message;
}

void Succession::answer(int node, LeadershipMessage message) {
  act({.kind = Act::Kind::kSendIn, .to = {.node = node}, .message = std::move(message)});
}

// Where a node listens: as this supervisor was told, or as the members knew.
std::optional<Delegate> Succession::where(int node) const {
  const auto known = [&]() -> std::optional<Delegate> {
    if (const auto found = known_.find(node); found != known_.end()) return found->second;
    for (const Assembly* assembly : {&agreement_.state().now, &agreement_.state().before}) {
      for (const Delegate& one : assembly->members)
        if (one.node == node) return one;
    }
    return std::nullopt;
  }();
  const auto other = strangers_.find(node);
  const bool is_stranger = known && other != strangers_.end() && known->life == other->second.life &&
                           known->address == other->second.address && known->port == other->second.port;
  return is_stranger ? std::nullopt : known;
}

void Succession::learn(const AgreedState& state, double now) {
  const AgreedState& own = agreement_.state();
  const bool other = own.exists() && own.job != state.job;
  if (other || (written_.job == state.job && !is_newer(state, written_))) return;
  if (written_.exists()) search_.written_at = now;
  written_ = state;
  for (const Delegate& one : state.now.members)
    if (one.node != agreement_.self().node) known_[one.node] = one;
  if (own.exists()) agreement_.recall(state);
}

// ---- Without a leader ---------------------------------------------------------------------------

void Succession::seek(double now) {
  role_ = Role::kSeeking;
  forget_calls();
  next_call_ = now;
  search_.began = search_.next = now;
  search_.cursor = -1;
  search_.answered.clear();
  search_.round_done = false;
  no_quorum_.reset();
  standing_.reset();
  hint_.reset();
}

bool Succession::is_led_elsewhere(double now) const {
  constexpr double kSlack = 2;  // seconds between two looks at the file, and for a write
  return search_.written_at > 0 && now - search_.written_at < limits_.renew + kSlack;
}

bool Succession::may_found(double now) const {
  const bool stale =
      !search_.unreachable || now - std::max(search_.began, search_.written_at) > limits_.stale;
  return may_found_ && role_ == Role::kSeeking && search_.round_done && search_.answered.empty() &&
         !agreement_.state().exists() && stale;
}

void Succession::found(std::uint64_t job, std::string body) {
  agreement_.found(job, std::move(body));
  role_ = Role::kLeading;
  forget_calls();
  took_over_ = false;
  spread();
}

void Succession::lose() {
  if (out_.used) act({.kind = Act::Kind::kHangUp});
  out_.used = false;
  out_.node = -1;
  out_.joined = false;
  // The nodes that follow this node look for another leader.
  for (const Delegate& peer : agreement_.peers()) {
    act({.kind = Act::Kind::kDrop, .to = peer});
    agreement_.gone(peer.node);
  }
  agreement_.resign();
  role_ = Role::kLost;
}

void Succession::hang_up(double now, double pause) {
  if (out_.used) act({.kind = Act::Kind::kHangUp});
  out_.used = false;
  out_.node = -1;
  out_.joined = false;
  search_.next = now + pause;
}

// Returns whether a higher node has joined this one. A lower node that calls only asks for the leader; then
// this node joins the lower one.
bool Succession::has_joined(int node) const {
  return node > agreement_.self().node &&
         std::ranges::any_of(agreement_.peers(), [node](const Delegate& peer) { return peer.node == node; });
}

void Succession::call(const Delegate& to, double now) {
  Dial& dial = dials_[to.node];
  dial = {.to = to, .judged = dial.judged};
  next_call_ = now + limits_.stagger;
  act({.kind = Act::Kind::kCall, .to = to});
}

void Succession::forget_calls() {
  for (const auto& [node, dial] : dials_)
    if (dial.state != Dial::State::kFailed) act({.kind = Act::Kind::kForget, .to = dial.to});
  dials_.clear();
}

// Calls the next node whose turn may come: those after the node that was asked last, up to the first that
// answers. Nodes that have failed are called again.
void Succession::dial(double now) {
  using enum Dial::State;
  int opening = 0;
  for (auto& [node, dial] : dials_) {
    if (dial.state == kOpen && now >= dial.until) {
      act({.kind = Act::Kind::kForget, .to = dial.to});
      dial.state = kFailed;
      dial.until = now;
    }
    opening += dial.state == kOpening ? 1 : 0;
  }
  if (opening >= limits_.calls || now < next_call_) return;
  const int self = agreement_.self().node;
  const auto calls = [&](int node) {
    if (node == self || has_joined(node)) return false;
    const auto to = where(node);
    if (!to) return false;
    const auto found = dials_.find(node);
    const bool due = found == dials_.end() || (found->second.state == kFailed && now >= found->second.until);
    if (due) call(*to, now);
    return due;
  };
  const auto is_open = [&](int node) {
    const auto found = dials_.find(node);
    return found != dials_.end() && found->second.state == kOpen;
  };
  for (int node = search_.cursor + 1; node < nodes_ && !is_open(node); ++node)
    if (!dials_.contains(node) && calls(node)) return;
  for (int node = 0; node < nodes_; ++node)
    if (dials_.contains(node) && calls(node)) return;
}

// The next node that answers; nullopt: a call of it still waits, the next node is this one, or none is left.
std::optional<Delegate> Succession::next_to_ask(double now) {
  using enum Dial::State;
  // Whether the call of the node is over: it is open, or it has failed once.
  const auto is_over = [&](const Delegate& to) {
    const auto found = dials_.find(to.node);
    if (found == dials_.end()) return false;
    Dial& dial = found->second;
    if (dial.to.address == to.address && dial.to.port == to.port)
      return dial.state != kOpening || dial.judged;
    // The node was started again, and listens elsewhere.
    if (dial.state != kFailed) act({.kind = Act::Kind::kForget, .to = dial.to});
    dials_.erase(found);
    return false;
  };
  const auto is_open = [&](const Delegate& to) { return dials_.at(to.node).state == kOpen; };
  if (hint_) {
    const Delegate to = *hint_;
    if (!is_over(to)) {
      if (!dials_.contains(to.node)) call(to, now);
      return std::nullopt;
    }
    hint_.reset();
    if (is_open(to)) return to;
  }
  while (search_.cursor + 1 < nodes_) {
    const int node = search_.cursor + 1;
    if (node == agreement_.self().node) {
      ++search_.cursor;
      // Others that have lost the same leader join now.
      if (!agreement_.is_member()) continue;
      search_.next = now + limits_.stand;
      return std::nullopt;
    }
    const std::optional<Delegate> to = has_joined(node) ? std::nullopt : where(node);
    if (to && !is_over(*to)) return std::nullopt;
    ++search_.cursor;
    if (to && is_open(*to)) return to;
  }
  search_.cursor = -1;
  search_.round_done = true;
  search_.next = now + limits_.pause;
  return std::nullopt;
}

void Succession::ask_next(double now) {
  const std::optional<Delegate> to = next_to_ask(now);
  if (to) ask(*to, now);
}

void Succession::connected(int node, double now) {
  const auto found = dials_.find(node);
  if (found == dials_.end() || found->second.state != Dial::State::kOpening) return;
  found->second.state = Dial::State::kOpen;
  found->second.until = now + limits_.kept;
  search_.answered.insert(node);
}

void Succession::failed(int node, double now, bool refused) {
  if (!refused) search_.unreachable = true;
  const auto found = dials_.find(node);
  if (found == dials_.end()) return;
  found->second.state = Dial::State::kFailed;
  found->second.until = now + (refused ? limits_.pause : limits_.again);
  found->second.judged = true;
}

void Succession::ask(const Delegate& to, double now) {
  dials_.erase(to.node);
  act({.kind = Act::Kind::kUse, .to = to});
  out_.used = true;
  out_.node = to.node;
  out_.heard = now;
  out_.joined = to.node < agreement_.self().node;
  out_.prepare.reset();
  out_.until = now + (out_.joined ? limits_.stand : limits_.ask);
  act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kHello)});
  // The nodes that have joined this node join the lower one instead.
  if (!out_.joined) return;
  for (const Delegate& peer : agreement_.peers()) {
    answer(peer.node, {.kind = MessageKind::kElsewhere, .who = to});
    act({.kind = Act::Kind::kDrop, .to = peer});
    agreement_.gone(peer.node);
  }
}

void Succession::disconnected(double now) {
  const bool followed = role_ == Role::kFollowing;
  out_.used = false;
  if (followed) return lose();
  hang_up(now, 0);
}

void Succession::stranger(double now) {
  if (const auto other = where(out_.node)) strangers_[out_.node] = *other;
  search_.answered.erase(out_.node);
  hang_up(now, 0);
}

void Succession::tick(double now) {
  if (role_ == Role::kFollowing && now - out_.heard > limits_.follower_silence) {
    out_.silent = true;
    return lose();
  }
  promise_waiting(now);
  if (role_ == Role::kFollowing) return take_waiting();
  if (role_ == Role::kLeading) return look_at_quorum(now);
  if (role_ != Role::kSeeking) return;
  if (standing_ && now - *standing_ > limits_.stand) standing_.reset();
  if (standing_) {  // its peers have been asked, and no other node may be joined meanwhile
    agreement_.count();
    return spread();
  }
  if (!out_.joined && agreement_.has_quorum()) return stand(now);
  if (out_.used && now >= out_.until) hang_up(now, 0);
  // A node that may lead a new job waits for the nodes of an earlier start only as long as they do.
  const bool returns = agreement_.state().exists() || (may_found_ && !search_.answered.empty());
  if (now - search_.began > (returns ? limits_.wait : limits_.first_wait)) {
    role_ = Role::kEnded;
    return forget_calls();
  }
  if (out_.used) return;
  dial(now);
  if (now >= search_.next) ask_next(now);
}

// ---- A candidate and a leader -------------------------------------------------------------------

void Succession::stand(double now) {
  if (out_.used) hang_up(now, 0);
  standing_ = now;
  const std::uint64_t view = agreement_.stand();
  for (const Delegate& peer : agreement_.peers())
    answer(peer.node, {.kind = MessageKind::kPrepare, .view = view});
  if (agreement_.leads()) spread();
}

void Succession::spread() {
  if (!agreement_.leads()) return;
  if (role_ == Role::kSeeking) {
    role_ = Role::kLeading;
    forget_calls();
    took_over_ = true;
    standing_.reset();
    no_quorum_.reset();
    agreement_.renew();
  }
  for (const int node : agreement_.take_unsent())
    answer(node, {.kind = MessageKind::kState, .state = agreement_.state()});
}

void Succession::look_at_quorum(double now) {
  // A promise to another node, or a decision that another leader has replaced: this node leads no more.
  if (agreement_.lost_a_proposal() || (!agreement_.leads() && !standing_)) return lose();
  if (now - renewed_ > limits_.renew) {
    renewed_ = now;
    agreement_.renew();
  }
  agreement_.count();
  spread();
  if (agreement_.has_quorum() && (agreement_.leads() || standing_)) {
    no_quorum_.reset();
    if (agreement_.leads()) standing_.reset();
  } else {
    no_quorum_ = no_quorum_.value_or(now);
  }
  const bool slow = standing_ && now - *standing_ > limits_.leader_silence;
  if (slow || (no_quorum_ && now - *no_quorum_ > limits_.leader_silence)) lose();
}

void Succession::left(int node, double now) {
  agreement_.gone(node);
  if (role_ != Role::kLeading) return;
  agreement_.renew();
  look_at_quorum(now);
}

void Succession::greet(const LeadershipMessage& message, double now) {
  const int node = message.who.node;
  const bool leads = role_ == Role::kLeading;
  const bool other_job =
      message.state.exists() && agreement_.state().exists() && message.state.job != agreement_.state().job;
  if (other_job && role_ != Role::kFollowing) {
    answer(node, {.kind = MessageKind::kRefuse});
    return act({.kind = Act::Kind::kDrop, .to = message.who});
  }
  if (role_ == Role::kFollowing || out_.joined) {
    const std::optional<Delegate> leader =
        role_ == Role::kFollowing ? std::optional(followed_) : where(out_.node);
    if (leader) answer(node, {.kind = MessageKind::kElsewhere, .who = *leader});
    return act({.kind = Act::Kind::kDrop, .to = message.who});
  }
  agreement_.hear(message.who, message.view, message.state);
  if (message.state.exists()) search_.answered.insert(node);
  known_[node] = message.who;
  if (leads && message.view > agreement_.view()) {
    // The node has promised this view to a candidate, and cannot take a state of a lower one.
    standing_ = now;
    const std::uint64_t view = agreement_.stand();
    for (const Delegate& peer : agreement_.peers())
      answer(peer.node, {.kind = MessageKind::kPrepare, .view = view});
  }
  // The votes are of this job, and this process has taken no state of it yet.
  if (!leads && kept_ && message.state.exists() && kept_->state.job == message.state.job &&
      !agreement_.state().exists())
    agreement_.remember(*kept_);
  if (!leads) return;
  agreement_.renew();
  spread();
}

void Succession::receive_in(int node, const LeadershipMessage& message, double now) {
  switch (message.kind) {
    case MessageKind::kHello:
      return greet(message, now);
    case MessageKind::kPromise:
      agreement_.hear_promise(node, message.view, message.state);
      if (message.view > agreement_.view() && standing_) standing_.reset();
      return spread();
    case MessageKind::kAcknowledge:
      agreement_.hear_acknowledgement(node, message.view, message.version);
      return spread();
    default:
      return;  // messages of a leader have no meaning here
  }
}

// ---- A node that follows ------------------------------------------------------------------------

void Succession::take(const AgreedState& state) {
  const Agreement::Answer answered = agreement_.accept(state);
  if (answered == Agreement::Answer::kRefused) {
    if (role_ == Role::kFollowing) return lose();
    return act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kPromise)});
  }
  if (answered == Agreement::Answer::kNotKept) {
    // The leader sends no other state before this one is agreed. A node that seeks asks it again.
    if (role_ == Role::kFollowing && (!out_.waiting || is_newer(state, *out_.waiting))) out_.waiting = state;
    return;
  }
  if (out_.waiting && !is_newer(*out_.waiting, state)) out_.waiting.reset();
  if (role_ == Role::kSeeking) {
    role_ = Role::kFollowing;
    out_.waiting.reset();
    forget_calls();
    out_.joined = out_.silent = false;
    followed_ = where(out_.node).value_or(Delegate{.node = out_.node});
    for (const Delegate& peer : agreement_.peers()) {
      answer(peer.node, {.kind = MessageKind::kElsewhere, .who = followed_});
      act({.kind = Act::Kind::kDrop, .to = peer});
      agreement_.gone(peer.node);
    }
  }
  act({.kind = Act::Kind::kSendOut,
       .message = {.kind = MessageKind::kAcknowledge, .view = state.view, .version = state.version}});
}

void Succession::take_waiting() {
  if (!out_.waiting) return;
  const AgreedState state = *out_.waiting;
  // After a promise of a higher view, the leader sends a state of that view.
  if (state.view < agreement_.promised()) return out_.waiting.reset();
  take(state);
}

// The candidate asks only once for a promise of its view.
void Succession::promise_waiting(double now) {
  if (!out_.used || !out_.prepare) return;
  const Agreement::Answer answered = agreement_.promise(*out_.prepare);
  if (answered == Agreement::Answer::kNotKept) return;
  if (answered == Agreement::Answer::kTaken) out_.until = now + limits_.stand;
  out_.prepare.reset();
  // After a refusal, the message names the higher view.
  act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kPromise)});
}

void Succession::receive(const LeadershipMessage& message, double now) {
  if (!out_.used) return;
  out_.heard = now;
  switch (message.kind) {
    case MessageKind::kElsewhere:
      if (role_ != Role::kSeeking) return;
      hang_up(now, 0);
      known_[message.who.node] = message.who;
      // Two nodes may name each other for a moment: the pause avoids a busy loop.
      if (message.who.node != agreement_.self().node) hint_ = message.who;
      search_.next = now + limits_.pause;
      return;
    case MessageKind::kPrepare:
      out_.prepare = message.view;
      return promise_waiting(now);
    case MessageKind::kState:
      return take(message.state);
    case MessageKind::kRefuse:
      if (role_ == Role::kSeeking) role_ = Role::kRefused;
      return;
    default:
      return;
  }
}

}  // namespace primus::supervise
