#include "safe/supervise/succession_world.h"

#include <algorithm>
#include <utility>

namespace primus::supervise {

using Role = Succession::Role;

World::World(int nodes, unsigned seed, Hardships hardships)
    : random(seed), nodes_(static_cast<std::size_t>(nodes)), hard_(hardships), size(nodes) {
  cut_.assign(static_cast<std::size_t>(nodes * nodes), false);
  for (int node = 0; node < nodes; ++node) start(node);
}

void World::start(int node) {
  Node& one = at(node);
  const std::uint64_t life = ++lives_ * 0x9e3779b97f4a7c15U;  // numbers that look random, and differ
  const std::uint16_t port = node == 0 ? 1 : static_cast<std::uint16_t>(1 + lives_);
  std::vector<Delegate> known;
  if (node != 0) known.push_back({.node = 0, .life = 0, .address = {}, .port = 1});
  one = Node{};
  one.life = life;
  one.port = port;
  one.alive = true;
  VoteMemory memory;
  if (node == 0) {
    memory.kept = votes;
    memory.keep = [this](const Votes& now) {
      if (std::exchange(fails_vote_, false) || chance(hard_.no_votes)) return false;
      votes = now;
      return true;
    };
  }
  one.code = std::make_unique<Succession>(
      size, Delegate{.node = node, .life = life, .address = "a", .port = port}, std::move(known), node == 0,
      clock(node), SuccessionLimits{}, std::move(memory));
}

void World::kill(int node, bool off) {
  at(node).alive = false;
  at(node).off = off;
  at(node).code.reset();
  for (Link& link : links_) {
    if (link.from == node) link.left = true;
    if (link.from == node && !link.open) link.dead = true;
    if (link.to == node && !link.open) {
      link.mute = true;
      link.refused = !off;
    } else if (link.from == node || link.to == node) {
      off ? void(link.mute = true) : end(link);
    }
  }
}

int World::leader() const {
  for (int node = 0; node < size; ++node)
    if (alive(node) && role(node) == Role::kLeading && code(node).agreement().leads()) return node;
  return -1;
}

bool World::all_follow(int leader) const {
  for (int node = 0; node < size; ++node) {
    if (!alive(node) || node == leader) continue;
    if (role(node) != Role::kFollowing || code(node).leader() != leader) return false;
  }
  return leader >= 0;
}

void World::pass(double seconds) {
  for (const double until = now + seconds; now < until; now += kTick) {
    deliver();
    for (int node = 0; node < size; ++node) {
      turn(node);
      watch(node);
    }
    if (now >= next_beat_) beat();
  }
}

bool World::could_lead() const {
  AgreedState newest;
  for (int node = 0; node < size; ++node) {
    if (alive(node) && is_newer(code(node).agreement().state(), newest))
      newest = code(node).agreement().state();
  }
  const auto lives = [this](const Delegate& one) { return alive(one.node) && at(one.node).life == one.life; };
  return AgreementOracle::is_quorum(newest.now, lives) &&
         (newest.before.members.empty() || AgreementOracle::is_quorum(newest.before, lives));
}

void World::watch(int node) {
  if (alive(node)) oracle_.watch(at(node).code->agreement());
}

// ---- Nodes --------------------------------------------------------------------------------------

void World::turn(int node) {
  Node& one = at(node);
  if (!one.alive || is_stopped(node)) return;
  const double time = clock(node);
  if (one.code->role() == Role::kSeeking && file.exists() && !one.blind) one.code->learn(file, time);
  watch(node);
  one.code->tick(time);
  if (one.code->may_found(time)) one.code->found(++lives_, "");
  if (one.code->role() == Role::kLost && one.lost_at < 0) one.lost_at = now + up_to(1);
  if (one.code->role() == Role::kLost && now >= one.lost_at) {
    one.lost_at = -1;
    one.led = false;
    one.code->seek(time);
  }
  act(node);
  if (!one.alive) return;
  if (one.code->role() == Role::kEnded || one.code->role() == Role::kRefused) return kill(node, false);
  watch(node);
  if (one.code->role() == Role::kLeading) lead(node);
}

// Writes the job's file. Returns false if it cannot be written now.
bool World::write(int node) {
  const AgreedState& state = code(node).agreement().state();
  if (chance(hard_.no_file) || (file.job == state.job && is_newer(file, state))) return false;
  file = state;
  return true;
}

void World::lead(int node) {
  Node& one = at(node);
  Agreement& agreement = one.code->agreement();
  if (!agreement.leads()) return;
  if (!one.led) {
    one.led = true;
    ++leaders;
    one.text = agreement.state().body;
    one.proposal = 0;
  }
  if (one.proposal != 0 && agreement.is_agreed(one.proposal) && write(node)) {
    one.proposal = 0;
    ++agreements;
    oracle_.agrees(agreement, one.text);
    one.next = now + up_to(3);
  }
  if (one.proposal == 0 && now >= one.next) {
    one.text += std::to_string(node) + "." + std::to_string(++words_) + " ";
    one.proposal = agreement.propose(one.text);
  }
  watch(node);
  one.code->tick(clock(node));
  act(node);
}

void World::call(int node, const Delegate& to) {
  links_.push_back({.from = node, .to = to.node, .opens = now + delay()});
  Link& made = links_.back();
  const Node& other = at(to.node);
  if (other.off || cut_of(node, to.node) || is_stopped(to.node)) {
    made.mute = true;
    made.opens = now + kConnectTime;
  } else if (!other.alive || other.port != to.port) {
    made.mute = made.refused = true;
  }
}

void World::act(int node) {
  if (!alive(node)) return;
  for (const Succession::Act& act : at(node).code->acts()) {
    using Kind = Succession::Act::Kind;
    Link* const link = act.kind == Kind::kCall                                   ? nullptr
                       : act.kind == Kind::kForget || act.kind == Kind::kUse     ? call_of(node, act.to.node)
                       : act.kind == Kind::kHangUp || act.kind == Kind::kSendOut ? out_of(node)
                                                                                 : in_of(node, act.to.node);
    if (act.kind == Kind::kCall) {
      call(node, act.to);
    } else if (act.kind == Kind::kUse) {
      if (link) {
        link->used = true;
      } else {
        at(node).code->disconnected(clock(node));
      }
    } else if (!link) {
      continue;
    } else if (act.kind == Kind::kSendOut || act.kind == Kind::kSendIn) {
      send(*link, act.kind == Kind::kSendOut, act.message);
    } else if (act.kind == Kind::kHangUp || act.kind == Kind::kForget) {
      link->left = link->mute = true;
      link->dead = !link->hello || !alive(link->to) || !cut_of(node, link->to);
      if (link->dead && link->hello && alive(link->to)) at(link->to).code->left(node, clock(link->to));
    } else {
      // The messages before the end arrive.
      link->hello = false;
      closing_.push_back(link);
    }
  }
}

// ---- The network --------------------------------------------------------------------------------

// Both sides see the end of the connection, if they live and the network is not cut.
void World::end(Link& link) {
  if (link.dead) return;
  if (cut_of(link.from, link.to)) {
    link.mute = true;  // the other side waits until it finds the silence too long
    return;
  }
  link.dead = true;
  if (link.used && !link.left && alive(link.from)) at(link.from).code->disconnected(clock(link.from));
  if (link.hello && alive(link.to)) at(link.to).code->left(link.from, clock(link.to));
  link.hello = false;
}

World::Link* World::out_of(int node) {
  for (Link& link : links_)
    if (link.from == node && link.used && !link.dead && !link.left) return &link;
  return nullptr;
}

World::Link* World::call_of(int node, int to) {
  for (Link& link : links_)
    if (link.from == node && link.to == to && !link.used && !link.dead && !link.left) return &link;
  return nullptr;
}

World::Link* World::in_of(int node, int from) {
  for (Link& link : links_)
    if (link.from == from && link.to == node && link.hello && !link.dead) return &link;
  return nullptr;
}

void World::send(Link& link, bool there, const LeadershipMessage& message) {
  if (chance(hard_.lost)) return;
  auto& queue = there ? link.there : link.back;
  double& newest = there ? link.newest_there : link.newest_back;
  double at = now + delay();
  if (chance(hard_.late)) at += up_to(15);
  // The first message opens the connection, and nothing overtakes it.
  if (message.kind == LeadershipMessage::Kind::kHello || !chance(hard_.overtakes)) at = std::max(at, newest);
  newest = std::max(at, newest);
  queue.emplace(at, message);
  if (message.kind != LeadershipMessage::Kind::kHello && chance(hard_.twice))
    queue.emplace(at + up_to(5), message);
}

// Lets a node that has taken a message crash, stop, or jump in time before it answers.
void World::suffer(int node) {
  if (!alive(node)) return;
  if (chance(hard_.crash)) return kill(node, chance(0.5));
  if (chance(hard_.stop)) at(node).stopped_until = now + up_to(20);
  if (chance(hard_.jump)) at(node).clock += up_to(20);
}

void World::arrive(Link& link, bool there, const LeadershipMessage& message) {
  const int node = there ? link.to : link.from;
  if (chance(hard_.reset)) return end(link);
  const bool hello = message.kind == LeadershipMessage::Kind::kHello;
  if (there && hello) {
    if (Link* const before = in_of(link.to, link.from)) {
      before->hello = false;
      before->dead = true;
      at(link.to).code->left(link.from, clock(link.to));
    }
    link.hello = true;
  }
  if (!there) {
    at(node).code->receive(message, clock(node));
  } else if (link.hello) {
    at(node).code->receive_in(link.from, message, clock(node));
  }
  watch(node);
  suffer(node);
  act(node);
}

void World::deliver() {
  for (Link& link : links_) {
    if (link.dead) continue;
    if (!link.open && now >= link.opens) {
      if (link.mute) {
        link.dead = true;
        if (alive(link.from) && !link.left)
          at(link.from).code->failed(link.to, clock(link.from), link.refused);
        continue;
      }
      link.open = true;
      link.heard_from = now;
      at(link.from).code->connected(link.to, clock(link.from));
    }
    for (const bool there : {true, false}) {
      auto& queue = there ? link.there : link.back;
      const int node = there ? link.to : link.from;
      while (link.open && !link.dead && !link.mute && !cut_of(link.from, link.to) && !queue.empty() &&
             queue.begin()->first <= now && alive(node) && !is_stopped(node)) {
        const LeadershipMessage message = queue.begin()->second;
        queue.erase(queue.begin());
        arrive(link, there, message);
      }
    }
    const bool closes = std::ranges::count(closing_, &link) > 0;
    if (closes && link.back.empty() && !link.dead && !link.mute) end(link);
  }
  std::erase_if(closing_, [](const Link* link) { return link->dead; });
  std::erase_if(links_, [](const Link& link) { return link.dead; });
}

void World::beat() {
  next_beat_ = now + kBeat;
  for (Link& link : links_) {
    if (!link.open || link.dead) continue;
    const bool quiet = link.mute || cut_of(link.from, link.to);
    if (!quiet && !is_stopped(link.from)) link.heard_from = now;
    if (!quiet && !is_stopped(link.to) && alive(link.from) && link.used && !link.left)
      at(link.from).code->heard(clock(link.from));
    if (link.hello && alive(link.to) && now - link.heard_from > kSilence) {
      link.hello = false;
      link.mute = true;  // the server has closed it
      link.dead = link.left;
      at(link.to).code->left(link.from, clock(link.to));
    }
  }
  for (int node = 0; node < size; ++node)
    if (!alive(node) && chance(hard_.restart)) start(node);
}

}  // namespace primus::supervise
