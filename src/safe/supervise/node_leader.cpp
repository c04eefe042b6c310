// The supervisor of node 0, which leads the others.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/sha256.h"
#include "base/terminal/terminal.h"
#include "launch/signals.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "safe/supervise/bookkeeping.h"
#include "safe/supervise/node_job.h"
#include "safe/supervise/node_link.h"
#include "safe/supervise/node_roster.h"
#include "safe/supervise/node_supervisor.h"
#include "safe/supervise/run_files.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kFreshSample = 3;  // seconds for which a node's sample is used
constexpr double kLookAtSpace = 2,
                 kWaitForSpace = 3600;  // looks at the free space, and the longest wait for it
constexpr double kNextLockWait = 10;    // longest wait for the run's lock
constexpr std::size_t kSalt = 16;

class Leader {
 public:
  Leader(const SupervisedJob& job, const SupervisedNodes& nodes)
      : job_(job),
        nodes_(nodes),
        part_(job, nodes, signals_.before()),
        books_(job),
        server_(comm::listen_on(nodes.address, nodes.port), nodes.token, nodes.nodes, shape_of(job, nodes)),
        roster_(nodes.nodes, nodes.places,
                {.first_wait = nodes.first_wait, .wait = job.recovery.node_wait, .silence = kNodeSilence},
                steady_seconds(), nodes.switches),
        samples_(static_cast<std::size_t>(nodes.nodes)),
        salt_(hex(random_bytes(kSalt))) {
    handler_.message = [this](int node, const NodeMessage& message) { hear(node, message); };
    handler_.lost = [this](int node, const std::string& why) { lost(node, why); };
  }

  int run() {
    books_.record("supervise_start", {},
                  {{"command", job_.command},
                   {"max_restarts", job_.recovery.max_restarts},
                   {"host", host_name()},
                   {"nodes", nodes_.places},
                   {"spares", nodes_.nodes - nodes_.places}},
                  false);
    roster_.joined(0, host_name(), steady_seconds());
    std::optional<int> code;
    while (!code) code = turn();
    server_.send_all({.kind = Kind::kQuit, .number = *code});
    server_.flush(comm::in(std::chrono::seconds(2)));
    return *code;
  }

 private:
  using Kind = NodeMessage::Kind;

  // One turn of the main loop. Returns the exit code at the end of the job.
  std::optional<int> turn() {
    std::array<pollfd, 3> polled{pollfd{signals_.fd(), POLLIN, 0}, pollfd{part_.ended_fd(), POLLIN, 0},
                                 pollfd{server_.fd(), POLLIN, 0}};
    poll(polled.data(), polled.size(), kNodeTickMs);
    while (const auto signal = signals_.next()) {
      if (part_.pass_on(*signal, steady_seconds())) asked(*signal, part_.asked_again());
    }
    read_events();
    // Before serve(): the handlers may wait for a file system, and later messages wait in the sockets.
    const double now = steady_seconds();
    server_.serve(handler_);
    const bool ended = part_.runs() && (polled[1].revents & POLLIN) != 0;
    if (ended || (part_.runs() && part_.must_end(now))) end_own(false);
    if (part_.must_end(now) && roster_.runs()) roster_.end_attempt();
    if (now >= next_beat_) beat(now);
    if (roster_.runs()) {
      look(now);
    } else if (stop_signal_) {
      return books_.stopped_waiting(*stop_signal_);
    }
    return follow_roster(now);
  }

  std::optional<int> follow_roster(double now) {
    const Roster::Step step = roster_.step(now);
    for (const int node : roster_.take_silent()) {
      server_.close(node);
      record_lost(node, fmt::format("no message for {:.0f} s", kNodeSilence));
    }
    switch (step) {
      case Roster::Step::kNothing:
        return std::nullopt;
      case Roster::Step::kStart:
        return start(now);
      case Roster::Step::kEnd:
        end_all();
        return std::nullopt;
      case Roster::Step::kOver:
        return over();
      case Roster::Step::kGiveUp:
        return books_.give_up(roster_.problem().reason, roster_.problem().text, roster_.problem().hint);
    }
    return std::nullopt;
  }

  // ---- Messages ---------------------------------------------------------------------------------

  void hear(int node, const NodeMessage& message) {
    const double now = steady_seconds();
    if (message.kind == Kind::kHello) return greet(node, message, now);
    if (!roster_.is_here(node)) return;
    roster_.heard(node, now);
    const bool current = roster_.runs() && message.attempt == roster_.attempt();
    Seen& seen = samples_[static_cast<std::size_t>(node)];
    switch (message.kind) {
      case Kind::kAlive:
        if (!current) return roster_.sees_checkpoint(node, message.checkpoint);
        if (message.signs != std::exchange(seen.signs, message.signs)) books_.hang().sign(now);
        if (message.sample) seen.sample = message.sample;
        if (message.sample) seen.sample->time = now;
        seen.stopped_rank = message.stopped_rank;
        return;
      case Kind::kFault:
        if (current) add_fault(node, message);
        return;
      case Kind::kEnded:
        if (!message.more.empty()) stacks_.push_back(message.more);
        roster_.sees_checkpoint(node, message.checkpoint);
        return roster_.ended(node, message.attempt,
                             {.exit_code = static_cast<int>(std::clamp<std::int64_t>(message.number, 0, 255)),
                              .memory_kill = message.flag,
                              .error = message.text},
                             now);
      case Kind::kStuck:
        if (!current) return;
        server_.close(node);  // it returns when its processes have ended
        return lost(node, printable(message.text));
      case Kind::kAsked:
        return asked_by(node, static_cast<int>(std::clamp<std::int64_t>(message.number, 1, 64)),
                        message.flag);
      default:
        return;  // a leader's message from a node has no meaning
    }
  }

  void greet(int node, const NodeMessage& message, double now) {
    roster_.joined(node, printable(message.text), now);
    roster_.sees_checkpoint(node, message.checkpoint);
    const bool late = roster_.attempt() > 0;
    books_.record("supervise_node", "joined", {{"node", node}, {"host", roster_.host(node)}});
    if (late) job_.say(fmt::format("supervise: node {} ({}) has joined", node, roster_.host(node)));
  }

  // A fault of a rank of this node, as a line of the node's events.
  void add_fault(int node, const NodeMessage& message) {
    EventLine event;
    if (!read_event(message.text, event) || event.event != "fault") return;
    const std::optional<int> place = roster_.place_of(node);
    if (place && event.rank / job_.ranks == *place) books_.add(event, event.rank);
  }

  void lost(int node, const std::string& why) {
    if (!roster_.is_here(node)) return;
    roster_.lost(node, why, steady_seconds());
    record_lost(node, why);
  }

  void record_lost(int node, const std::string& why) {
    books_.record("supervise_node", "lost", {{"node", node}, {"host", roster_.host(node)}, {"text", why}});
    if (!roster_.lost_node())
      job_.say(fmt::format("supervise: node {} ({}) is lost: {}", node, roster_.host(node), why));
  }

  // The ranks of the node have the signal, and all ranks vote for the stop. A spare has no ranks.
  void asked_by(int node, int signal, bool again) {
    if (!roster_.place_of(node) && !stop_signal_ && (launch::asks_to_stop(signal) || signal == SIGUSR1))
      part_.pass_on(signal, steady_seconds());
    asked(signal, again);
  }

  void asked(int signal, bool again) {
    const bool stops = launch::asks_to_stop(signal) || signal == SIGUSR1;
    if (!stops) return;
    stop_signal_ = stop_signal_.value_or(signal);
    if (again && roster_.runs()) roster_.end_attempt();
  }

  void beat(double now) {
    next_beat_ = now + kNodeBeat;
    roster_.heard(0, now);
    if (part_.runs()) {
      part_.reap();
    } else {
      roster_.sees_checkpoint(0, newest_step(job_.checkpoints));
    }
    const bool wants = roster_.runs() && books_.hang().wants_sample(now);
    server_.send_all({.kind = Kind::kLead, .flag = wants});
    if (wants && part_.runs()) {
      Seen& own = samples_[0];
      own.sample = part_.sample(now);
      own.stopped_rank = own.sample->stopped ? JobProcesses::rank_of(*own.sample->stopped) : std::nullopt;
    }
    sampled_ = wants;
  }

  // ---- An attempt -------------------------------------------------------------------------------

  std::optional<int> start(double now) {
    if (action_ && action_->free_bytes) {
      if (now < next_space_) return std::nullopt;
      next_space_ = now + kLookAtSpace;
      if (free_bytes(job_.run) < *action_->free_bytes) {
        if (now - over_at_ < kWaitForSpace) return std::nullopt;
        return books_.finish(end_, Bookkeeping::without_space(*action_));
      }
    }
    if (const std::string left = part_.left(); !left.empty()) {
      if (now - over_at_ < job_.recovery.node_wait) return std::nullopt;
      return books_.give_up("processes remain", fmt::format("node 0 ({}): {}", roster_.host(0), left),
                            kHintForRemaining);
    }
    if (now - over_at_ < kNextLockWait && RunLock::held(job_.run)) return std::nullopt;
    books_.begin();
    const std::uint64_t attempt = roster_.start(now);
    finding_.reset();
    stacks_.clear();
    for (Seen& seen : samples_) seen = {};
    for (const auto& [node, place] : roster_.take_replacements()) {
      books_.record("supervise_node", "takes a place",
                    {{"node", node}, {"host", roster_.host(node)}, {"place", place}});
      job_.say(
          fmt::format("supervise: node {} ({}) takes place {} of the job", node, roster_.host(node), place));
    }
    const comm::Socket listener = comm::listen_on(nodes_.address, 0);
    NodeMessage message{.kind = Kind::kStart,
                        .attempt = attempt,
                        .flag = books_.continues(),
                        .port = comm::port_of(listener),
                        .seconds = books_.elapsed(),
                        .text = salt_};
    const std::vector<int>& places = roster_.places();
    for (std::size_t place = 1; place < places.size(); ++place) {
      message.number = static_cast<std::int64_t>(place);
      server_.send(places[place], message);
    }
    message.number = 0;
    part_.start(message, listener);
    return std::nullopt;
  }

  void read_events() {
    part_.read_events([this](const EventLine& event, int rank) { books_.add(event, rank); });
  }

  // Looks for a hang of the whole job.
  void look(double now) {
    if (finding_) return;
    std::optional<JobSample> sample;
    if (std::exchange(sampled_, false)) sample = sample_of_all(now);
    finding_ = books_.hang().check(now, sample);
    if (!finding_) return;
    job_.say(fmt::format("supervise: {}; writing the stacks of all threads to '{}'", finding_->text,
                         (job_.run / "logs" / "hang-*.txt").string()));
    roster_.end_attempt();
  }

  // The sum over all nodes; nullopt if a node has sent none lately.
  std::optional<JobSample> sample_of_all(double now) {
    JobSample sum{.time = now};
    for (const int node : roster_.places()) {
      const Seen& seen = samples_[static_cast<std::size_t>(node)];
      if (!roster_.works(node)) continue;
      if (!seen.sample || now - seen.sample->time > kFreshSample) return std::nullopt;
      sum.processor_seconds += seen.sample->processor_seconds;
      sum.bytes += seen.sample->bytes;
      sum.waits_for_disk = sum.waits_for_disk || seen.sample->waits_for_disk;
      sum.waits_for_reader = sum.waits_for_reader || seen.sample->waits_for_reader;
      if (seen.sample->stopped) {
        sum.stopped = seen.sample->stopped;
        stopped_rank_ = seen.stopped_rank;
      }
    }
    return sum;
  }

  void end_own(bool stacks) {
    const NodeMessage ended =
        part_.end(stacks, finding_ ? finding_->text : "",
                  [this](const EventLine& event, int rank) { books_.add(event, rank); });
    if (!ended.more.empty()) stacks_.push_back(ended.more);
    const double now = steady_seconds();
    roster_.sees_checkpoint(0, ended.checkpoint);
    roster_.ended(
        0, ended.attempt,
        {.exit_code = static_cast<int>(ended.number), .memory_kill = ended.flag, .error = ended.text}, now);
  }

  void end_all() {
    for (const int node : roster_.places()) {
      server_.send(node, {.kind = Kind::kEnd,
                          .attempt = roster_.attempt(),
                          .flag = finding_.has_value(),
                          .text = finding_ ? finding_->text : ""});
    }
    if (part_.runs()) end_own(finding_.has_value());
  }

  // The attempt is over. Returns an exit code if no other one follows.
  std::optional<int> over() {
    const NodeEnd& cause = roster_.cause();
    const ProcessEnd process{.exit_code = cause.exit_code,
                             .asked_to_stop = stop_signal_.has_value(),
                             .memory_kill = cause.memory_kill,
                             .last_error = cause.error};
    Json facts;
    if (!stacks_.empty()) facts["stacks"] = stacks_;
    const bool stopped = finding_ && finding_->stopped;
    end_ = books_.end(process, finding_, stopped ? stopped_rank_ : std::nullopt, std::move(facts),
                      roster_.lost_node(), [this](const JobEnd& end) { return place_facts(end); });
    action_ = books_.decide(end_);
    if (action_->kind != Action::Kind::kRestart) return books_.finish(end_, *action_);
    over_at_ = steady_seconds();
    roster_.next(over_at_ + action_->delay, over_at_);
    return std::nullopt;
  }

  // The node of a fault.
  Json place_facts(const JobEnd& end) const {
    int node = end.node.value_or(roster_.cause_node());
    if (!end.node && end.rank) {
      const auto place = static_cast<std::size_t>(*end.rank / job_.ranks);
      if (place < roster_.places().size() && roster_.places()[place] >= 0) node = roster_.places()[place];
    }
    return {{"node", node}, {"node_host", roster_.host(node)}};
  }

  struct Seen {
    std::uint64_t signs = 0;
    std::optional<JobSample> sample = {};
    std::optional<int> stopped_rank = {};
  };

  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  launch::Signals signals_;
  NodeJob part_;
  Bookkeeping books_;
  NodeServer server_;
  NodeServer::Handler handler_ = {};
  Roster roster_;
  std::vector<Seen> samples_;
  std::string salt_;
  double next_beat_ = 0, over_at_ = 0, next_space_ = 0;
  bool sampled_ = false;
  std::optional<HangFinding> finding_ = {};
  std::optional<int> stopped_rank_ = {}, stop_signal_ = {};
  std::vector<std::string> stacks_ = {};
  JobEnd end_ = {};
  std::optional<Action> action_ = {};
};

}  // namespace

int lead_nodes(const SupervisedJob& job, const SupervisedNodes& nodes) { return Leader(job, nodes).run(); }

std::string shape_of(const SupervisedJob& job, const SupervisedNodes& nodes) {
  return fmt::format("{} machines of {}, {} ranks each, run '{}'", nodes.places, nodes.nodes, job.ranks,
                     job.run.string());
}

int supervise_nodes(const SupervisedJob& job, const SupervisedNodes& nodes) {
  if (nodes.token.empty() && !comm::is_loopback(nodes.address)) {
    throw invalid(
        "a supervised job on several machines needs a secret that they share, but PRIMUS_JOB_TOKEN is not "
        "set",
        "export PRIMUS_JOB_TOKEN with the same random text on all machines, or PRIMUS_JOB_TOKEN_FILE");
  }
  // The supervisor continues if the program that reads its lines has ended ('primus ... | head').
  std::signal(SIGPIPE, SIG_IGN);
  if (nodes.node != 0) return follow_leader(job, nodes);
  wait_for_lock(job.run);
  return lead_nodes(job, nodes);
}

}  // namespace primus::supervise
