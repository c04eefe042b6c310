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
#include "launch/ranks/signals.h"
#include "lm/events/lost_rank.h"
#include "lm/events/run_event.h"
#include "safe/supervise/agreement/leader_state.h"
#include "safe/supervise/nodes/node_roles.h"
#include "safe/supervise/observation/event_facts.h"
#include "safe/supervise/observation/event_tail.h"
#include "safe/supervise/observation/run_files.h"
#include "safe/supervise/observation/wait_notice.h"
#include "safe/supervise/recovery/attempt.h"
#include "safe/supervise/recovery/bookkeeping.h"
#include "safe/supervise/supervision_log.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

// Records the end of a job that no supervisor leads any more, and returns the exit code. This node adds what
// has happened since the newest decision that it knows.
int record_end(const NodeParts& parts, const Action& action) {
  const SupervisedJob& job = parts.job;
  const LeaderState last =
      read_leader_state(parts.hub.succession().agreement().state().body, parts.nodes.nodes);
  Bookkeeping books(job);
  books.log().take(last.lines);
  books.log().release(last.lines.size(), true);
  try {
    if (!last.books.is_null()) books.restore(last.books);
  } catch (const Json::exception&) {
    // The state is damaged, so the record has no times.
  }
  if (last.runs && last.leader != parts.nodes.node) {
    EventTail::of_rank_zero(job.run, last.offset).read([&](const EventLine& event, int rank) {
      books.add(event, rank);
    });
    const auto number = static_cast<std::size_t>(last.leader);
    const std::string host = number < last.hosts.size() ? last.hosts[number] : "";
    const LostNode lost{.node = last.leader,
                        .text = fmt::format("node {} ({}), which led the job, was lost", last.leader, host)};
    const auto place = std::ranges::find(last.places, last.leader) - last.places.begin();
    const bool has_ranks = place < std::ssize(last.places);
    record_lost_rank(job.run, has_ranks ? static_cast<int>(place) * job.ranks : 0, lost.text);
    const JobEnd end = books.end({.exit_code = kLostNodeCode}, {}, {}, {}, lost, [&](const JobEnd&) {
      return Json{{"node", lost.node}, {"node_host", host}};
    });
    if (end.kind == EndKind::kDone) return books.finish(end, {.reason = "finished"});
  }
  return books.give_up(action.reason, action.text, action.hint);
}

class Follower {
 public:
  explicit Follower(const NodeParts& parts)
      : parts_(parts),
        job_(parts.job),
        nodes_(parts.nodes),
        signals_(parts.signals),
        part_(parts.part),
        hub_(parts.hub) {
    handlers_.from_leader = [this](const NodeMessage& message) { arrived_.push_back(message); };
  }

  std::optional<int> run() {
    for (;;) {
      switch (hub_.role()) {
        case Succession::Role::kLeading:
          parts_.unwritten.clear();
          return std::nullopt;
        case Succession::Role::kEnded:
          return no_leader();
        case Succession::Role::kRefused:
          job_.say(
              fmt::format("supervise: lost leader: node {} was started for an earlier start of the job\n"
                          "  hint: start the same command again on this machine",
                          nodes_.node));
          return kLostNodeCode;
        case Succession::Role::kLost:
          if (const auto code = lost_leader()) return code;
          break;
        case Succession::Role::kSeeking:
        case Succession::Role::kFollowing:
          if (const auto code = turn()) return code;
          tell_role();
      }
    }
  }

 private:
  using Kind = NodeMessage::Kind;

  // Says whom this node follows, or that it waits for a leader.
  void tell_role() {
    const double now = steady_seconds();
    if (hub_.role() == Succession::Role::kSeeking) {
      seeks_since_ = seeks_since_.value_or(now);
      const bool had = hub_.succession().had_leader();
      notice_.waits(had ? "another machine that may lead the job" : "the machine that leads the job", now,
                    *seeks_since_ + (had ? kLeaderWait : nodes_.first_wait));
    } else if (follows() && seeks_since_) {
      notice_.over();
      seeks_since_.reset();
      const Delegate& leader = hub_.succession().followed();
      job_.say(
          fmt::format("supervise: node {} follows node {} ({})", nodes_.node, leader.node, leader.address));
    }
  }

  bool follows() const { return hub_.role() == Succession::Role::kFollowing; }

  // One turn of the main loop. Returns the exit code at the end of the job.
  std::optional<int> turn() {
    std::array<pollfd, 5> polled{pollfd{signals_.fd(), POLLIN, 0}, pollfd{part_.ended_fd(), POLLIN, 0},
                                 pollfd{hub_.server_fd(), POLLIN, 0}, pollfd{hub_.leader_fd(), POLLIN, 0},
                                 pollfd{hub_.calls_fd(), POLLIN, 0}};
    poll(polled.data(), polled.size(), kNodeTickMs);
    if (!hub_.succession().had_leader()) {
      throw_if_stopped(signals_);
    } else {
      while (const auto signal = signals_.next()) pass_on(*signal);
      if (follows()) read_events();
    }
    hub_.turn(handlers_);
    // The calls below may wait for a file system. Messages that arrive meanwhile wait in the socket.
    const double now = steady_seconds();
    for (const NodeMessage& message : std::exchange(arrived_, {})) {
      if (message.kind == Kind::kQuit) return quit(message);
      if (follows()) obey(message);
    }
    if (!follows()) return std::nullopt;
    // Repeats the request, because only a leader that is lost may have received it.
    if (part_.asked() && !std::exchange(told_, true))
      hub_.send_to_leader({.kind = Kind::kAsked, .number = *part_.asked()});
    const bool ended = part_.runs() && (polled[1].revents & POLLIN) != 0;
    if (ended || (part_.runs() && part_.must_end(now))) end(false, "");
    // The leader has been told that processes of this node do not end. The node returns without them.
    if (!part_.runs() && !part_.left().empty()) hub_.leave();
    if (now >= next_beat_ && follows()) beat(now);
    return std::nullopt;
  }

  // Without a leader, the request waits for the next one. A second request ends this supervisor.
  void pass_on(int signal) {
    if (!part_.pass_on(signal, steady_seconds())) return;
    if (!follows() && part_.asked_again()) throw StoppedWaiting{signal};
    if (!follows()) return;
    told_ = true;
    hub_.send_to_leader({.kind = Kind::kAsked, .number = signal, .flag = part_.asked_again()});
  }

  void obey(const NodeMessage& message) {
    if (message.kind == Kind::kLead) {
      wants_sample_ = message.flag;
    } else if (message.kind == Kind::kStart) {
      start(message);
    } else if (message.kind == Kind::kStop) {
      part_.pass_on(static_cast<int>(std::clamp<std::int64_t>(message.number, 1, 64)), steady_seconds());
    } else if (message.kind == Kind::kEnd && part_.attempt() == message.attempt) {
      end(message.flag, message.text);
    } else if (message.kind == Kind::kEnd && !part_.runs()) {
      // The attempt ended before this node was told to start it.
      hub_.send_to_leader({.kind = Kind::kEnded, .attempt = message.attempt});
    }
  }

  void start(NodeMessage message) {
    if (part_.runs()) end(false, "");
    signs_ = 0;
    try {
      const bool opens = message.number == 0 && message.port == 0;
      if (message.number < 0 || message.number >= nodes_.places || (message.port == 0 && !opens))
        throw invalid(fmt::format("the leader gave this node the place {}", message.number));
      comm::Socket listener;
      if (opens) {
        listener = comm::listen_on(hub_.self().address, 0);
        message.more = hub_.self().address;
        message.port = comm::port_of(listener);
        hub_.send_to_leader({.kind = Kind::kListens, .attempt = message.attempt, .port = message.port});
      }
      part_.start(message, listener);
    } catch (const Error& error) {
      hub_.send_to_leader(
          {.kind = Kind::kEnded, .attempt = message.attempt, .number = kLostNodeCode, .text = error.what()});
    }
  }

  void end(bool stacks, const std::string& why) {
    hub_.send_to_leader(
        part_.end(stacks, why, [this](const EventLine& event, int rank) { add(event, rank); }));
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
    hub_.send_to_leader({.kind = Kind::kFault,
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
    hub_.send_to_leader(alive);
  }

  std::optional<int> lost_leader() {
    const Delegate& leader = hub_.succession().followed();
    part_.abandon();
    if (leader.port != 0) {
      job_.say(fmt::format("supervise: the supervisor of node {} ({}) is lost; node {} has ended its ranks",
                           leader.node, leader.address, nodes_.node));
    }
    if (const auto code = wait_for_remaining()) return code;
    hub_.succession().seek(steady_seconds());
    next_beat_ = 0;
    told_ = false;
    return std::nullopt;
  }

  int no_leader() {
    write_last_lines(parts_);
    const char* const why =
        hub_.succession().had_leader()
            ? "more than half of the job's last machines, or half of them with their leader"
            : "the machine that leads the job";
    const Action action{
        .kind = Action::Kind::kGiveUp,
        .reason = "lost leader",
        .text = fmt::format("node {} did not reach {} within {:.0f} s", nodes_.node, why,
                            hub_.succession().had_leader() ? kLeaderWait : nodes_.first_wait),
        .hint =
            "the same command on all machines continues from the newest checkpoint; see the logs of the "
            "other nodes for the reason"};
    // If a leader continues elsewhere, it writes the job's file, and the job is not given up.
    const bool is_over = hub_.succession().had_leader() && !hub_.is_replaced() &&
                         !hub_.succession().is_led_elsewhere(steady_seconds());
    if (is_over && is_first_to_give_up(job_.run, hub_.succession().agreement().state().job))
      return record_end(parts_, action);
    job_.say(fmt::format("supervise: {}: {}\n  hint: {}", action.reason, action.text, action.hint));
    return kLostNodeCode;
  }

  // Waits until no process of an earlier attempt remains. Returns an exit code if they do not end.
  std::optional<int> wait_for_remaining() {
    const double began = steady_seconds();
    for (std::string left = part_.left(); !left.empty(); left = part_.left()) {
      pollfd polled{signals_.fd(), POLLIN, 0};
      poll(&polled, 1, kNodeTickMs);
      while (const auto signal = signals_.next()) pass_on(*signal);
      if (steady_seconds() - began < job_.hang.patience) continue;
      job_.say(fmt::format("supervise: processes remain: node {}: {}\n  hint: {}", nodes_.node, left,
                           kHintForRemaining));
      return kLostNodeCode;
    }
    return std::nullopt;
  }

  int quit(const NodeMessage& message) {
    part_.abandon();
    if (!message.text.empty()) job_.say("supervise: " + message.text);
    return static_cast<int>(std::clamp<std::int64_t>(message.number, 0, 255));
  }

  const NodeParts& parts_;
  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  launch::Signals& signals_;
  NodeJob& part_;
  NodeHub& hub_;
  NodeHub::Handlers handlers_ = {};
  std::vector<NodeMessage> arrived_ = {};
  bool wants_sample_ = false;
  bool told_ = false;  // the leader knows that this node was asked to stop
  double next_beat_ = 0;
  std::uint64_t signs_ = 0;
  WaitNotice notice_{job_.say};
  std::optional<double> seeks_since_ = {};
};

}  // namespace

void write_last_lines(const NodeParts& parts) {
  if (parts.unwritten.empty() || parts.hub.is_replaced()) return;
  SupervisionLog log(parts.job.run);
  const std::size_t lines = parts.unwritten.size();
  log.take(std::exchange(parts.unwritten, {}));
  log.release(lines, true);
}

void throw_if_stopped(launch::Signals& signals) {
  while (const auto signal = signals.next()) {
    if (launch::asks_to_stop(*signal) || *signal == SIGUSR1) throw StoppedWaiting{*signal};
  }
}

std::optional<int> follow(const NodeParts& parts) { return Follower(parts).run(); }

}  // namespace primus::supervise
