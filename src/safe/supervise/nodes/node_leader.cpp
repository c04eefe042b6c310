// The supervisor that leads the others.
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
#include "launch/ranks/signals.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "safe/supervise/agreement/leader_agreement.h"
#include "safe/supervise/nodes/node_roles.h"
#include "safe/supervise/nodes/node_roster.h"
#include "safe/supervise/observation/event_tail.h"
#include "safe/supervise/observation/run_files.h"
#include "safe/supervise/observation/wait_notice.h"
#include "safe/supervise/recovery/bookkeeping.h"

namespace primus::supervise {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kFreshSample = 3;  // seconds for which a node's sample is used
constexpr double kLookAtSpace = 2,
                 kWaitForSpace = 3600;  // looks at the free space, and the longest wait for it
constexpr double kNextLockWait = 10;    // longest wait for the run's lock
constexpr double kLastWords = 5;        // longest wait for the agreement on the end
constexpr double kOtherLeader = 15;     // seconds in which other nodes find a leader
// A leader that a cut network isolates notices after kNodeSilence, and ends its ranks 7 s later. The other
// nodes notice after 8 s, so a new leader waits this time before it starts ranks.
constexpr double kOldRanks = 10;
constexpr std::size_t kSalt = 16;

class Leader {
 public:
  explicit Leader(const NodeParts& parts)
      : parts_(parts),
        job_(parts.job),
        nodes_(parts.nodes),
        signals_(parts.signals),
        part_(parts.part),
        hub_(parts.hub),
        self_(parts.nodes.node),
        books_(parts.job),
        roster_(nodes_.nodes, nodes_.places,
                {.first_wait = nodes_.first_wait, .wait = job_.recovery.node_wait, .silence = kNodeSilence},
                steady_seconds(), nodes_.switches, self_),
        samples_(static_cast<std::size_t>(nodes_.nodes)) {
    books_.log().hold();
    handlers_.message = [this](int node, const NodeMessage& message) { hear(node, message); };
    handlers_.lost = [this](int node, const std::string& why) { lost(node, why); };
  }

  std::optional<int> run() {
    const double now = steady_seconds();
    std::optional<int> code;
    const LeaderState before = read_leader_state(hub_.succession().agreement().state().body, nodes_.nodes);
    if (before.leader < 0) {
      agreement_.state.salt = hex(random_bytes(kSalt));
      begin_job();
    }
    forget_given_up(job_.run);
    roster_.joined(self_, host_name(), now);
    roster_.sees_checkpoint(self_, newest_step(job_.checkpoints));
    for (const auto& [node, hello] : hub_.joined()) greet(node, hello, now);
    if (before.leader >= 0) code = take_over(before, now);
    if (!code && part_.asked()) asked(*part_.asked(), false);
    while (!code && leads()) code = turn();
    if (code) return finish(*code);
    part_.abandon();
    parts_.unwritten = books_.log().held();
    job_.say(
        fmt::format("supervise: node {} reaches too few of the job's machines, and leads no more", self_));
    return std::nullopt;
  }

 private:
  using Kind = NodeMessage::Kind;

  bool leads() { return hub_.role() == Succession::Role::kLeading; }

  void begin_job() {
    agreement_.state.books = books_.save();
    books_.record("supervise_start", {},
                  {{"command", job_.command},
                   {"max_restarts", job_.recovery.max_restarts},
                   {"host", host_name()},
                   {"nodes", nodes_.places},
                   {"spares", nodes_.nodes - nodes_.places}},
                  false);
  }

  // ---- What the supervisors agree on --------------------------------------------------------------

  // Continues the job of another leader, or of this node's earlier process. Returns an exit code if the job
  // is over.
  std::optional<int> take_over(const LeaderState& before, double now) {
    agreement_.state = before;
    if (before.stop == 0) agreement_.state.stop = part_.asked().value_or(0);
    agreement_.continues();
    books_.log().take(before.lines);
    try {
      if (!before.books.is_null()) books_.restore(before.books);
    } catch (const Json::exception& error) {
      throw invalid(
          fmt::format("the job's state, which another supervisor wrote, is damaged: {}", error.what()),
          "end the job on all machines, and start the same command again");
    }
    for (const auto& [node, hello] : hub_.joined()) roster_.sees_checkpoint(node, hello.checkpoint);
    // The lost leader's clock may be wrong.
    double wait = std::clamp(before.next_at - unix_seconds(), 0.0, job_.recovery.max_delay);
    const bool replaces = before.leader != self_;
    if (replaces && hub_.succession().leader_was_silent()) wait = std::max(wait, kOldRanks);
    if (before.attempt > 0) roster_.resume(before.attempt, before.places, before.hosts, now + wait, now);
    if (before.free_bytes > 0) {
      action_ = Action{.kind = Action::Kind::kRestart};
      action_->free_bytes = before.free_bytes;
    }
    at_.over = now;
    const std::string host = roster_.host(before.leader);
    if (replaces)
      books_.record("supervise_node", "lost",
                    {{"node", before.leader}, {"host", host}, {"text", "it led the job"}});
    books_.record("supervise_node", "leads", {{"node", self_}, {"host", roster_.host(self_)}});
    const std::string lost =
        !replaces ? " again" : fmt::format("; node {} ({}) was lost", before.leader, host);
    job_.say(fmt::format("supervise: node {} ({}) leads the job{}", self_, roster_.host(self_), lost));
    if (before.over) return before.exit_code;
    if (!before.runs) return std::nullopt;
    EventTail::of_rank_zero(job_.run, before.offset).read([this](const EventLine& event, int rank) {
      books_.add(event, rank);
    });
    lost_leader_ =
        LostNode{.node = before.leader,
                 .text = fmt::format("node {} ({}), which led the job, was lost", before.leader, host)};
    return over();
  }

  // The job is over: the others hear it, and the last lines are written when it is agreed.
  std::optional<int> finish(int code) {
    agreement_.state.over = true;
    agreement_.state.exit_code = code;
    agreement_.state.runs = false;
    agreement_.changed();
    agreement_.cancel_start();
    const double until = steady_seconds() + kLastWords;
    while (leads() && steady_seconds() < until && !agreement_.is_settled()) {
      agreement_.step(self_, roster_);
      hub_.turn(handlers_);
      if (!agreement_.is_settled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const bool settled = leads() && agreement_.is_settled();
    if (settled) agreement_.step(self_, roster_);
    hub_.send_all({.kind = Kind::kQuit, .number = code});
    hub_.flush(comm::in(std::chrono::seconds(2)));
    if (settled) {
      hub_.remove_files();
      return code;
    }
    // Too few nodes are left to agree. If others are a quorum, one of them leads soon, and writes the file.
    job_.say(
        "supervise: too few machines are left to agree on the end of the job; looking for another leader");
    for (const double end = steady_seconds() + kOtherLeader; steady_seconds() < end && !hub_.is_replaced();)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (!hub_.is_replaced()) books_.log().release(books_.log().held().size(), true);
    return code;
  }

  // ---- The main loop ------------------------------------------------------------------------------

  // One turn. Returns the exit code at the end of the job.
  std::optional<int> turn() {
    std::array<pollfd, 3> polled{pollfd{signals_.fd(), POLLIN, 0}, pollfd{part_.ended_fd(), POLLIN, 0},
                                 pollfd{hub_.server_fd(), POLLIN, 0}};
    poll(polled.data(), polled.size(), kNodeTickMs);
    while (const auto signal = signals_.next()) {
      if (!part_.pass_on(*signal, steady_seconds())) continue;
      stop_elsewhere(*signal);
      asked(*signal, part_.asked_again());
    }
    read_events();
    // Before the hub's turn: the handlers may wait for a file system, and later messages wait in the sockets.
    const double now = steady_seconds();
    hub_.turn(handlers_);
    if (!leads()) return std::nullopt;
    const bool ended = part_.runs() && (polled[1].revents & POLLIN) != 0;
    if (ended || (part_.runs() && part_.must_end(now))) end_own(false);
    if (part_.must_end(now) && roster_.runs()) roster_.end_attempt();
    if (now >= at_.next_beat) beat(now);
    if (roster_.runs()) {
      look(now);
      books_.record_times();
    } else if (agreement_.state.stop != 0) {
      return books_.stopped_waiting(agreement_.state.stop);
    }
    const std::optional<int> code = follow_roster(now);
    if (!code && agreement_.step(self_, roster_)) launch();
    return code;
  }

  std::optional<int> follow_roster(double now) {
    const Roster::Step step = roster_.step(now);
    for (const int node : roster_.take_silent()) {
      hub_.close(node);
      record_lost(node, fmt::format("no message for {:.0f} s", kNodeSilence));
    }
    switch (step) {
      case Roster::Step::kNothing:
        tell_wait(now);
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
      case Kind::kListens:
        if (current && std::exchange(waits_for_port_, false)) spread(message.port, hub_.joined_address(node));
        return;
      case Kind::kEnded:
        if (!message.more.empty()) hang_.stacks.push_back(message.more);
        roster_.sees_checkpoint(node, message.checkpoint);
        return roster_.ended(node, message.attempt,
                             {.exit_code = static_cast<int>(std::clamp<std::int64_t>(message.number, 0, 255)),
                              .memory_kill = message.flag,
                              .error = message.text},
                             now);
      case Kind::kStuck:
        if (!current) return;
        hub_.close(node);  // it returns when its processes have ended
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
    if (!place || event.rank / job_.ranks != *place) return;
    // The events of rank 0 are read from its file.
    if (event.rank != 0) books_.add(event, event.rank);
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
    if (!roster_.place_of(node) && agreement_.state.stop == 0 &&
        (launch::asks_to_stop(signal) || signal == SIGUSR1)) {
      part_.pass_on(signal, steady_seconds());
      stop_elsewhere(signal);
    }
    asked(signal, again);
  }

  // If this node has no ranks, those of the first place get the signal.
  void stop_elsewhere(int signal) {
    if (part_.runs() || !roster_.runs()) return;
    hub_.send(roster_.places()[0], {.kind = Kind::kStop, .number = signal});
  }

  void asked(int signal, bool again) {
    const bool stops = launch::asks_to_stop(signal) || signal == SIGUSR1;
    if (!stops) return;
    if (std::exchange(agreement_.state.stop, agreement_.state.stop == 0 ? signal : agreement_.state.stop) ==
        0)
      agreement_.changed();
    if (again && roster_.runs()) roster_.end_attempt();
  }

  void beat(double now) {
    at_.next_beat = now + kNodeBeat;
    roster_.heard(self_, now);
    if (part_.runs()) {
      part_.reap();
    } else {
      roster_.sees_checkpoint(self_, newest_step(job_.checkpoints));
    }
    const bool wants = roster_.runs() && books_.hang().wants_sample(now);
    hub_.send_all({.kind = Kind::kLead, .flag = wants});
    if (wants && part_.runs()) {
      Seen& own = samples_[static_cast<std::size_t>(self_)];
      own.sample = part_.sample(now);
      own.stopped_rank = own.sample->stopped ? JobProcesses::rank_of(*own.sample->stopped) : std::nullopt;
    }
    hang_.sampled = wants;
  }

  // ---- An attempt -------------------------------------------------------------------------------

  void tell_wait(double now) {
    if (const auto wait = roster_.awaited(now)) notice_.waits(wait->what, now, wait->until);
  }

  std::optional<int> start(double now) {
    if (action_ && action_->free_bytes) {
      notice_.waits(free_space_text(*action_->free_bytes), now, at_.over + kWaitForSpace);
      if (now < at_.next_space) return std::nullopt;
      at_.next_space = now + kLookAtSpace;
      if (free_bytes(job_.run) < *action_->free_bytes) {
        if (now - at_.over < kWaitForSpace) return std::nullopt;
        return books_.give_up_without_space(end_, *action_);
      }
    }
    if (const std::string left = part_.left(); !left.empty()) {
      notice_.waits("the end of processes of this machine", now, at_.over + job_.recovery.node_wait);
      if (now - at_.over < job_.recovery.node_wait) return std::nullopt;
      return books_.give_up("processes remain",
                            fmt::format("node {} ({}): {}", self_, roster_.host(self_), left),
                            kHintForRemaining);
    }
    if (now - at_.over < kNextLockWait && RunLock::held(job_.run)) return std::nullopt;
    notice_.over();
    books_.begin();
    const std::uint64_t attempt = roster_.start(now);
    hang_.finding.reset();
    hang_.stacks.clear();
    for (Seen& seen : samples_) seen = {};
    for (const auto& [node, place] : roster_.take_replacements()) {
      books_.record("supervise_node", "takes a place",
                    {{"node", node}, {"host", roster_.host(node)}, {"place", place}});
      job_.say(
          fmt::format("supervise: node {} ({}) takes place {} of the job", node, roster_.host(node), place));
    }
    agreement_.state.attempt = attempt;
    agreement_.state.places = roster_.places();
    agreement_.state.runs = true;
    agreement_.state.offset = size_of_events();
    agreement_.state.books = books_.save();
    agreement_.state.free_bytes = 0;
    agreement_.start();
    waits_for_port_ = false;
    return std::nullopt;
  }

  std::int64_t size_of_events() const {
    std::error_code none;
    const auto size = std::filesystem::file_size(event_file(job_.run, 0), none);
    return none ? 0 : static_cast<std::int64_t>(size);
  }

  NodeMessage start_message(std::size_t place, std::uint16_t port, const std::string& address) const {
    return {.kind = Kind::kStart,
            .attempt = roster_.attempt(),
            .number = static_cast<std::int64_t>(place),
            .flag = books_.continues(),
            .port = port,
            .seconds = books_.elapsed(),
            .text = agreement_.state.salt,
            .more = address};
  }

  // The attempt is agreed: the node of the first place opens the ranks' rendezvous.
  void launch() {
    if (!roster_.runs()) return;
    const int first = roster_.places()[0];
    rank_zero_.reset();
    if (first == self_) {
      const std::string& address = hub_.self().address;
      const comm::Socket listener = comm::listen_on(address, 0);
      spread(comm::port_of(listener), address);
      part_.start(start_message(0, comm::port_of(listener), address), listener);
      return;
    }
    rank_zero_.emplace(EventTail::of_rank_zero(job_.run, agreement_.state.offset));
    waits_for_port_ = true;
    hub_.send(first, start_message(0, 0, ""));
  }

  // All other nodes start.
  void spread(std::uint16_t port, const std::string& address) {
    const std::vector<int>& places = roster_.places();
    for (std::size_t place = 1; place < places.size(); ++place) {
      const NodeMessage message = start_message(place, port, address);
      if (places[place] == self_) {
        part_.start(message, {});
      } else {
        hub_.send(places[place], message);
      }
    }
  }

  void read_events() {
    const auto add = [this](const EventLine& event, int rank) { books_.add(event, rank); };
    part_.read_events(add);
    if (rank_zero_) rank_zero_->read(add);
  }

  // Looks for a hang of the whole job.
  void look(double now) {
    if (hang_.finding) return;
    std::optional<JobSample> sample;
    if (std::exchange(hang_.sampled, false)) sample = sample_of_all(now);
    hang_.finding = books_.hang().check(now, sample);
    if (!hang_.finding) return;
    job_.say(fmt::format("supervise: {}; writing the stacks of all threads to '{}'", hang_.finding->text,
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
        hang_.stopped_rank = seen.stopped_rank;
      }
    }
    return sum;
  }

  void end_own(bool stacks) {
    const NodeMessage ended =
        part_.end(stacks, hang_.finding ? hang_.finding->text : "",
                  [this](const EventLine& event, int rank) { books_.add(event, rank); });
    if (!ended.more.empty()) hang_.stacks.push_back(ended.more);
    const double now = steady_seconds();
    roster_.sees_checkpoint(self_, ended.checkpoint);
    roster_.ended(
        self_, ended.attempt,
        {.exit_code = static_cast<int>(ended.number), .memory_kill = ended.flag, .error = ended.text}, now);
  }

  void end_all() {
    for (const int node : roster_.places()) {
      hub_.send(node, {.kind = Kind::kEnd,
                       .attempt = roster_.attempt(),
                       .flag = hang_.finding.has_value(),
                       .text = hang_.finding ? hang_.finding->text : ""});
    }
    agreement_.cancel_start();
    waits_for_port_ = false;
    if (part_.runs()) return end_own(hang_.finding.has_value());
    roster_.ended(self_, roster_.attempt(), {}, steady_seconds());
  }

  // The attempt is over. Returns an exit code if no other one follows.
  std::optional<int> over() {
    const std::optional<LostNode> lost = lost_leader_ ? lost_leader_ : roster_.lost_node();
    NodeEnd cause = roster_.cause();
    if (lost_leader_) cause.exit_code = kLostNodeCode;
    read_events();
    rank_zero_.reset();
    const ProcessEnd process{.exit_code = cause.exit_code,
                             .asked_to_stop = agreement_.state.stop != 0,
                             .memory_kill = cause.memory_kill,
                             .last_error = cause.error};
    Json facts;
    if (!hang_.stacks.empty()) facts["stacks"] = hang_.stacks;
    const bool stopped = hang_.finding && hang_.finding->stopped;
    end_ = books_.end(process, hang_.finding, stopped ? hang_.stopped_rank : std::nullopt, std::move(facts),
                      lost, [this](const JobEnd& end) { return place_facts(end); });
    if (lost_leader_ && end_.kind == EndKind::kStopped) {
      // The ranks may have saved before they lost their leader.
      const bool saved = end_.checkpoint >= end_.step;
      if (saved) end_.exit_code = 0;
      job_.say(fmt::format("supervise: the job was asked to stop, and is not started again; {}",
                           saved ? "its last step is saved"
                                 : "the steps after its newest checkpoint are lost with its leader"));
    }
    action_ = books_.decide(end_);
    lost_leader_.reset();
    agreement_.state.runs = false;
    agreement_.changed();
    if (action_->kind != Action::Kind::kRestart) return books_.finish(end_, *action_);
    at_.over = steady_seconds();
    agreement_.state.next_at = unix_seconds() + action_->delay;
    agreement_.state.free_bytes = action_->free_bytes.value_or(0);
    roster_.next(at_.over + action_->delay, at_.over);
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

  const NodeParts& parts_;
  const SupervisedJob& job_;
  const SupervisedNodes& nodes_;
  launch::Signals& signals_;
  NodeJob& part_;
  NodeHub& hub_;
  const int self_;
  Bookkeeping books_;
  NodeHub::Handlers handlers_ = {};
  Roster roster_;
  std::vector<Seen> samples_;
  struct {
    double next_beat = 0, over = 0, next_space = 0;
  } at_;
  struct {
    bool sampled = false;
    std::optional<HangFinding> finding = {};
    std::optional<int> stopped_rank = {};
    std::vector<std::string> stacks = {};
  } hang_;
  JobEnd end_ = {};
  std::optional<Action> action_ = {};
  LeaderAgreement agreement_{hub_, books_};
  WaitNotice notice_{job_.say};
  bool waits_for_port_ = false;  // of the node at the first place
  std::optional<LostNode> lost_leader_ = {};
  std::optional<EventTail> rank_zero_ = {};  // if another node has rank 0
};

}  // namespace

std::optional<int> lead(const NodeParts& parts) { return Leader(parts).run(); }

}  // namespace primus::supervise
