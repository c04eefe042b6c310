#include "safe/supervise/succession.h"

#include <algorithm>
#include <utility>

namespace primus::supervise {

using MessageKind = LeadershipMessage::Kind;

Succession::Succession(int nodes, Delegate self, std::vector<Delegate> known, bool may_found, double now,
                       SuccessionLimits limits)
    : nodes_(nodes),
      limits_(limits),
      agreement_(nodes, std::move(self)),
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
  if (const auto found = known_.find(node); found != known_.end()) return found->second;
  for (const Assembly* assembly : {&agreement_.state().now, &agreement_.state().before}) {
    for (const Delegate& one : assembly->members)
      if (one.node == node) return one;
  }
  return std::nullopt;
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
  search_.began = search_.next = now;
  search_.cursor = -1;
  search_.answered = search_.round_done = false;
  no_quorum_.reset();
  standing_.reset();
  hint_.reset();
}

bool Succession::may_found(double now) const {
  const bool stale =
      !search_.unreachable || now - std::max(search_.began, search_.written_at) > limits_.stale;
  return may_found_ && role_ == Role::kSeeking && search_.round_done && !search_.answered &&
         !agreement_.state().exists() && stale;
}

void Succession::found(std::uint64_t job, std::string body) {
  agreement_.found(job, std::move(body));
  role_ = Role::kLeading;
  took_over_ = false;
  spread();
}

void Succession::lose() {
  if (out_.state != Out::kNone) act({.kind = Act::Kind::kHangUp});
  out_.state = Out::kNone;
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
  if (out_.state != Out::kNone) act({.kind = Act::Kind::kHangUp});
  out_.state = Out::kNone;
  out_.node = -1;
  out_.joined = false;
  search_.next = now + pause;
}

void Succession::ask_next(double now) {
  const int self = agreement_.self().node;
  std::optional<Delegate> to = std::exchange(hint_, std::nullopt);
  while (!to && ++search_.cursor < nodes_) {
    if (search_.cursor == self) {
      // Others that have lost the same leader join now.
      if (!agreement_.is_member()) continue;
      search_.next = now + limits_.stand;
      return;
    }
    const bool joined_here = std::ranges::any_of(
        agreement_.peers(), [this](const Delegate& peer) { return peer.node == search_.cursor; });
    if (!joined_here) to = where(search_.cursor);
  }
  if (!to) {
    search_.cursor = -1;
    search_.round_done = true;
    search_.next = now + limits_.pause;
    return;
  }
  out_.state = Out::kConnecting;
  out_.node = to->node;
  act({.kind = Act::Kind::kConnect, .to = *to});
}

void Succession::connected(double now) {
  if (out_.state != Out::kConnecting) return;
  out_.state = Out::kAsked;
  search_.answered = true;
  heard_ = now;
  out_.joined = out_.node < agreement_.self().node;
  out_.until = now + (out_.joined ? limits_.stand : limits_.ask);
  act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kHello)});
  // The nodes that have joined this node join the lower one instead.
  if (!out_.joined) return;
  const std::optional<Delegate> lower = where(out_.node);
  for (const Delegate& peer : agreement_.peers()) {
    if (lower) answer(peer.node, {.kind = MessageKind::kElsewhere, .who = *lower});
    act({.kind = Act::Kind::kDrop, .to = peer});
    agreement_.gone(peer.node);
  }
}

void Succession::disconnected(double now, bool refused) {
  if (out_.state == Out::kConnecting && !refused) search_.unreachable = true;
  const bool followed = role_ == Role::kFollowing;
  out_.state = Out::kNone;
  if (followed) return lose();
  hang_up(now, 0);
}

void Succession::tick(double now) {
  if (role_ == Role::kFollowing && now - heard_ > limits_.follower_silence) {
    out_.silent = true;
    return lose();
  }
  if (role_ == Role::kLeading) return look_at_quorum(now);
  if (role_ != Role::kSeeking) return;
  if (standing_ && now - *standing_ > limits_.stand) standing_.reset();
  if (standing_) return;  // its peers have been asked, and no other node may be joined meanwhile
  if (!out_.joined && agreement_.has_quorum()) return stand(now);
  if (out_.state != Out::kNone && now >= out_.until && out_.state == Out::kAsked) hang_up(now, 0);
  // A node that may lead a new job waits for the nodes of an earlier start only as long as they do.
  const bool returns = agreement_.state().exists() || (may_found_ && search_.answered);
  if (now - search_.began > (returns ? limits_.wait : limits_.first_wait)) {
    role_ = Role::kEnded;
    return;
  }
  if (out_.state == Out::kNone && now >= search_.next) ask_next(now);
}

// ---- A candidate and a leader -------------------------------------------------------------------

void Succession::stand(double now) {
  if (out_.state != Out::kNone) hang_up(now, 0);
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
  search_.answered = search_.answered || message.state.exists();
  known_[node] = message.who;
  if (leads && message.view > agreement_.view()) {
    // The node has promised this view to a candidate, and cannot take a state of a lower one.
    standing_ = now;
    const std::uint64_t view = agreement_.stand();
    for (const Delegate& peer : agreement_.peers())
      answer(peer.node, {.kind = MessageKind::kPrepare, .view = view});
  }
  // A new process on the node of the chair holds the port of the earlier one, which has thus ended.
  const AgreedState& state = message.state;
  if (!leads && may_found_ && !agreement_.state().exists() && state.now.chair == agreement_.self().node) {
    // The file may hold the only copy of the chair's last decisions.
    const bool written = written_.job == state.job && is_newer(written_, state) &&
                         written_.now.chair == agreement_.self().node;
    if (written) agreement_.recall(written_);
    for (const Delegate& one : (written ? written_ : state).now.members)
      if (one.node == agreement_.self().node) agreement_.inherit(one.life);
  }
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

void Succession::receive(const LeadershipMessage& message, double now) {
  if (out_.state != Out::kAsked) return;
  heard_ = now;
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
      if (agreement_.promise(message.view)) out_.until = now + limits_.stand;
      return act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kPromise)});
    case MessageKind::kState:
      if (!agreement_.accept(message.state)) {
        if (role_ == Role::kFollowing) return lose();
        return act({.kind = Act::Kind::kSendOut, .message = own(MessageKind::kPromise)});
      }
      if (role_ == Role::kSeeking) {
        role_ = Role::kFollowing;
        out_.joined = out_.silent = false;
        followed_ = where(out_.node).value_or(Delegate{.node = out_.node});
        for (const Delegate& peer : agreement_.peers()) {
          answer(peer.node, {.kind = MessageKind::kElsewhere, .who = followed_});
          act({.kind = Act::Kind::kDrop, .to = peer});
          agreement_.gone(peer.node);
        }
      }
      return act({.kind = Act::Kind::kSendOut,
                  .message = {.kind = MessageKind::kAcknowledge,
                              .view = message.state.view,
                              .version = message.state.version}});
    case MessageKind::kRefuse:
      if (role_ == Role::kSeeking) role_ = Role::kRefused;
      return;
    default:
      return;
  }
}

}  // namespace primus::supervise
