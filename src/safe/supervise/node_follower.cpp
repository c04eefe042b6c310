// The supervisor of a node that does not lead.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "launch/signals.h"
#include "lm/events/run_event.h"
#include "safe/supervise/attempt.h"
#include "safe/supervise/event_facts.h"
#include "safe/supervise/node_job.h"
#include "safe/supervise/node_link.h"
#include "safe/supervise/node_supervisor.h"
#include "safe/supervise/run_files.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

// A request to stop, while this node waits for its leader.
struct Stopped {
  int signal;
};

class Follower {
 public:
  Follower(const SupervisedJob& job, const SupervisedNodes& nodes)
      : job_(job), nodes_(nodes), part_(job, nodes, signals_.before()) {}

  int run() {
    try {
      if (const auto code = connect(nodes_.first_wait)) return *code;
      for (;;) {
        if (const auto code = turn()) return *code;
      }
    } catch (const Stopped& stopped) {
      return 128 + stopped.signal;
    }
  }

 private:
  using Kind = NodeMessage::Kind;

  // Returns an exit code if there is no leader.
  std::optional<int> connect(double seconds) {
    const auto check = [&] {
      while (const auto signal = signals_.next()) {
        if (launch::asks_to_stop(*signal) || *signal == SIGUSR1) throw Stopped{*signal};
      }
    };
    // Before the connection, which waits only a moment for the first message: the file system may block.
    const std::int64_t newest = newest_step(job_.checkpoints);
    try {
      leader_.emplace(nodes_.address, nodes_.port, nodes_.token, nodes_.node, nodes_.nodes,
                      comm::in(std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * seconds))), check);
    } catch (const Error& error) {
      if (!had_leader_ || error.kind() != ErrorKind::kIo) throw;
      job_.say(
          fmt::format("supervise: lost leader: the supervisor of node 0 ({}) did not return within {:.0f} "
                      "s\n  hint: the same "
                      "command on all machines continues from the newest checkpoint; see the log of node 0 "
                      "for the reason",
                      nodes_.address, seconds));
      return kLostNodeCode;
    }
    had_leader_ = true;
    heard_ = steady_seconds();
    next_beat_ = heard_ + kNodeBeat;
    leader_->send(
        {.kind = Kind::kHello, .checkpoint = newest, .text = host_name(), .more = shape_of(job_, nodes_)});
    return std::nullopt;
  }

  // One turn of the main loop. Returns the exit code at the end of the job.
  std::optional<int> turn() {
    std::array<pollfd, 3> polled{pollfd{signals_.fd(), POLLIN, 0}, pollfd{part_.ended_fd(), POLLIN, 0},
                                 pollfd{leader_->fd(), POLLIN, 0}};
    poll(polled.data(), polled.size(), kNodeTickMs);
    while (const auto signal = signals_.next()) pass_on(*signal);
    read_events();
    std::vector<NodeMessage> messages;
    leader_->receive(messages);
    // The calls below may wait for a file system. Messages that arrive meanwhile wait in the socket.
    const double now = steady_seconds();
    if (!messages.empty()) heard_ = now;
    for (const NodeMessage& message : messages) {
      if (message.kind == Kind::kQuit) return quit(message);
      follow(message);
    }
    const bool ended = part_.runs() && (polled[1].revents & POLLIN) != 0;
    if (ended || (part_.runs() && part_.must_end(now))) end(false, "");
    if (!part_.runs() && !part_.left().empty()) return stuck();
    if (!leader_->open() || now - heard_ > kLeaderSilence) return lost_leader();
    if (now >= next_beat_) beat(now);
    return std::nullopt;
  }

  void pass_on(int signal) {
    if (!part_.pass_on(signal, steady_seconds())) return;
    leader_->send({.kind = Kind::kAsked, .number = signal, .flag = part_.asked_again()});
  }

  void follow(const NodeMessage& message) {
    if (message.kind == Kind::kLead) {
      wants_sample_ = message.flag;
    } else if (message.kind == Kind::kStart) {
      start(message);
    } else if (message.kind == Kind::kEnd && part_.attempt() == message.attempt) {
      end(message.flag, message.text);
    }
  }

  void start(const NodeMessage& message) {
    if (part_.runs()) end(false, "");
    signs_ = 0;
    try {
      if (message.number < 1 || message.number >= nodes_.places || message.port == 0)
        throw invalid(fmt::format("the leader gave this node the place {}", message.number));
      part_.start(message, {});
    } catch (const Error& error) {
      leader_->send(
          {.kind = Kind::kEnded, .attempt = message.attempt, .number = kLostNodeCode, .text = error.what()});
    }
  }

  void end(bool stacks, const std::string& why) {
    leader_->send(part_.end(stacks, why, [this](const EventLine& event, int rank) { add(event, rank); }));
  }

  void read_events() {
    part_.read_events([this](const EventLine& event, int rank) { add(event, rank); });
  }

  // The leader cannot see at once what this node's ranks write: it counts their events, and gets their
  // faults.
  void add(const EventLine& event, int rank) {
    ++signs_;
    if (event.event != "fault") return;
    Json facts{{"text", text_in(event.facts).substr(0, kMaxNodeText / 4)}};
    const Json line{{"event", "fault"},   {"step", event.step},   {"rank", rank},
                    {"time", event.time}, {"cause", event.cause}, {"facts", std::move(facts)}};
    leader_->send({.kind = Kind::kFault,
                   .attempt = part_.attempt().value_or(0),
                   .number = rank,
                   .text = line.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }

  void beat(double now) {
    // A waiting node looks for the newest checkpoint more often, so that the next attempt starts soon.
    next_beat_ = now + (part_.runs() ? kNodeBeat : kIdleNodeBeat);
    NodeMessage alive{.kind = Kind::kAlive, .attempt = part_.attempt().value_or(0), .signs = signs_};
    if (part_.runs()) {
      part_.reap();
      if (wants_sample_) alive.sample = part_.sample(now);
      if (alive.sample && alive.sample->stopped)
        alive.stopped_rank = JobProcesses::rank_of(*alive.sample->stopped);
    } else {
      alive.checkpoint = newest_step(job_.checkpoints);
    }
    leader_->send(alive);
  }

  std::optional<int> lost_leader() {
    leader_.reset();  // the leader then knows at once
    if (part_.runs()) part_.end(false, "", [](const EventLine&, int) {});
    job_.say(fmt::format("supervise: the supervisor of node 0 ({}) is lost; node {} has ended its ranks",
                         nodes_.address, nodes_.node));
    if (const auto code = wait_for_remaining()) return code;
    return connect(kLeaderWait);
  }

  // The leader has been told that processes of this node do not end. The node returns without them.
  std::optional<int> stuck() {
    leader_->send({.kind = Kind::kBeat});  // fails if the leader has gone
    leader_.reset();
    if (const auto code = wait_for_remaining()) return code;
    return connect(kLeaderWait);
  }

  // Waits until no process of an earlier attempt remains. Returns an exit code if they do not end.
  std::optional<int> wait_for_remaining() {
    const double began = steady_seconds();
    for (std::string left = part_.left(); !left.empty(); left = part_.left()) {
      pollfd polled{signals_.fd(), POLLIN, 0};
      poll(&polled, 1, kNodeTickMs);
      while (const auto signal = signals_.next()) {
        if (launch::asks_to_stop(*signal) || *signal == SIGUSR1) throw Stopped{*signal};
      }
      if (steady_seconds() - began < job_.hang.patience) continue;
      job_.say(fmt::format("supervise: processes remain: node {}: {}\n  hint: {}", nodes_.node, left,
                           kHintForRemaining));
      return kLostNodeCode;
    }
    return std::nullopt;
  }

  int quit(const NodeMessage& message) {
    if (part_.runs()) part_.end(false, "", [](const EventLine&, int) {});
    if (!message.text.empty()) job_.say("supervise: " + message.text);
    return static_cast<int>(std::clamp<std::int64_t>(message.number, 0, 255));
  }

  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  launch::Signals signals_;
  NodeJob part_;
  std::optional<NodeClient> leader_ = {};
  bool had_leader_ = false, wants_sample_ = false;
  double heard_ = 0, next_beat_ = 0;
  std::uint64_t signs_ = 0;
};

}  // namespace

int follow_leader(const SupervisedJob& job, const SupervisedNodes& nodes) {
  return Follower(job, nodes).run();
}

}  // namespace primus::supervise
