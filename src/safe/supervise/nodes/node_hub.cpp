#include "safe/supervise/nodes/node_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/files/sha256.h"
#include "base/terminal/terminal.h"
#include "lm/events/run_event.h"
#include "safe/supervise/agreement/leadership_wire.h"
#include "safe/supervise/nodes/own_address.h"
#include "safe/supervise/observation/run_files.h"

namespace primus::supervise {
namespace {

using HubKind = NodeMessage::Kind;

constexpr double kReadEvery = 1;  // seconds between looks at the job's file

std::uint64_t random_number() {
  std::uint64_t number = 0;
  const std::string bytes = random_bytes(sizeof(number));
  std::memcpy(&number, bytes.data(), sizeof(number));
  return std::max<std::uint64_t>(number, 1);
}

}  // namespace

NodeHub::NodeHub(const SupervisedJob& job, const SupervisedNodes& nodes)
    : job_(job),
      nodes_(nodes),
      files_(job.run, nodes.nodes),
      dialer_(nodes.token, nodes.node, nodes.nodes),
      notice_(job.say) {
  std::string address = nodes.address;
  if (nodes.node != 0) {
    const std::string own = address_towards(nodes.address, nodes.port);
    if (!own.empty()) address = own;
  }
  comm::Socket listener = comm::listen_on(address, nodes.node == 0 ? nodes.port : 0);
  const Delegate self{
      .node = nodes.node, .life = random_number(), .address = address, .port = comm::port_of(listener)};
  server_.emplace(std::move(listener), nodes.token, nodes.node, nodes.nodes, shape_of(job, nodes));
  std::vector<Delegate> known;
  if (nodes.node != 0) known.push_back({.node = 0, .life = 0, .address = nodes.address, .port = nodes.port});
  VoteMemory memory;
  if (nodes.node == 0) {
    // Earlier processes of node 0 used the same port, so they have ended and cannot vote.
    memory.kept = files_.votes();
    memory.keep = [this](const Votes& votes) { return files_.keep(votes); };
  }
  succession_.emplace(
      nodes.nodes, self, std::move(known), nodes.node == 0, steady_seconds(),
      SuccessionLimits{
          .first_wait = nodes.first_wait, .wait = kLeaderWait, .follower_silence = kLeaderSilence},
      std::move(memory));
}

void NodeHub::turn(const Handlers& handlers) {
  const double now = steady_seconds();
  if (role() == Succession::Role::kSeeking) read_file(now);
  serve(handlers);
  hear_calls();
  receive(handlers);
  succession_->tick(now);
  if (succession_->may_found(now)) {
    wait_for_lock(job_.run);
    succession_->found(random_number(), "");
  }
  act();
  tell_wait(now);
}

void NodeHub::read_file(double now) {
  if (now < next_read_) return;
  next_read_ = now + kReadEvery;
  if (const auto state = files_.state()) succession_->learn(*state, now);
}

void NodeHub::serve(const Handlers& handlers) {
  NodeServer::Handler handler;
  handler.message = [&](int node, const NodeMessage& message) {
    if (const auto leadership = leadership_in(message, nodes_.nodes)) {
      const bool joins = message.kind == HubKind::kHello;
      if (joins && leadership->who.node != node) return;
      if (joins) joined_[node] = message;
      succession_->receive_in(node, *leadership, steady_seconds());
      act();
      // The node may have been sent elsewhere.
      if (!joins || !joined_.contains(node)) return;
    }
    if (handlers.message) handlers.message(node, message);
  };
  handler.lost = [&](int node, const std::string& why) {
    joined_.erase(node);
    succession_->left(node, steady_seconds());
    if (handlers.lost) handlers.lost(node, why);
    act();
  };
  server_->serve(handler);
}

void NodeHub::receive(const Handlers& handlers) {
  if (!client_) return;
  std::vector<NodeMessage> messages;
  client_->receive(messages);
  const double now = steady_seconds();
  if (!messages.empty()) succession_->heard(now);
  for (const NodeMessage& message : messages) {
    if (const auto leadership = leadership_in(message, nodes_.nodes)) {
      succession_->receive(*leadership, now);
      act();
    } else if (message.kind == HubKind::kQuit && message.flag && !is_first_call()) {
      succession_->stranger(now);
      act();
    } else if (handlers.from_leader) {
      handlers.from_leader(message);
    }
    if (!client_) return;
  }
  if (client_->open()) return;
  client_.reset();
  succession_->disconnected(now);
}

// If this node has never joined the job, and calls the address that its user has set, the user must know
// that it belongs to another job. Addresses of other supervisors may be outdated.
bool NodeHub::is_first_call() const { return !succession_->had_leader() && succession_->leader() == 0; }

void NodeHub::act() {
  // Some of the calls lead to further acts.
  for (auto acts = succession_->acts(); !acts.empty(); acts = succession_->acts())
    for (const Succession::Act& one : acts) act(one);
}

void NodeHub::act(const Succession::Act& one) {
  switch (one.kind) {
    case Succession::Act::Kind::kCall:
      return dialer_.call(one.to);
    case Succession::Act::Kind::kForget:
      return dialer_.forget(one.to.node);
    case Succession::Act::Kind::kUse:
      client_ = dialer_.take(one.to.node);
      if (!client_) succession_->disconnected(steady_seconds());
      return;
    case Succession::Act::Kind::kHangUp:
      return client_.reset();
    case Succession::Act::Kind::kSendOut:
      return send_to_leader(to_node_message(one.message));
    case Succession::Act::Kind::kSendIn:
      return server_->send(one.to.node, to_node_message(one.message));
    case Succession::Act::Kind::kDrop:
      joined_.erase(one.to.node);
      return server_->dismiss(one.to.node);
  }
}

void NodeHub::hear_calls() {
  const double now = steady_seconds();
  for (const NodeDialer::Answer& answer : dialer_.answers()) {
    // If this node has never joined the job, the user must know the reason.
    if (answer.error && answer.node == 0 && !succession_->had_leader()) std::rethrow_exception(answer.error);
    if (answer.open) {
      succession_->connected(answer.node, now);
    } else {
      succession_->failed(answer.node, now, answer.refused);
    }
  }
}

void NodeHub::send_to_leader(const NodeMessage& message) {
  if (!client_) return;
  if (message.kind != HubKind::kHello) return client_->send(message);
  NodeMessage hello = message;
  hello.checkpoint = newest_step(job_.checkpoints);
  hello.text = host_name();
  hello.more = shape_of(job_, nodes_);
  client_->send(hello);
}

void NodeHub::close(int node) {
  joined_.erase(node);
  server_->close(node);
  succession_->left(node, steady_seconds());
}

void NodeHub::leave() {
  client_.reset();
  succession_->disconnected(steady_seconds());
}

std::string NodeHub::joined_address(int node) const {
  for (const Delegate& one : succession_->agreement().peers())
    if (one.node == node) return one.address;
  return "";
}

bool NodeHub::write_file() { return files_.write(succession_->agreement().state()); }

// Only the leader writes the state, and tries again; another node's error would be outdated.
void NodeHub::tell_wait(double now) {
  const bool of_votes = !files_.votes_error().empty();
  const std::string& error =
      of_votes || role() != Succession::Role::kLeading ? files_.votes_error() : files_.state_error();
  if (error.empty()) return notice_.over();
  notice_.waits(fmt::format("the files of the supervisors, which cannot be written: {}", error), now);
}

bool NodeHub::is_replaced() {
  const auto other = files_.state();
  const AgreedState& own = succession_->agreement().state();
  return other && (other->job != own.job || other->view > own.view);
}

}  // namespace primus::supervise
