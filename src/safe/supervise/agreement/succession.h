// Determines which supervisor of a job on several machines leads, and which leader the others follow. One
// object belongs to one supervisor. The object decides to which supervisors its own supervisor connects, and
// answers messages about leadership. agreement.h has the agreement, and docs/supervise.md the protocol.
//
// A supervisor without a leader seeks one: it asks the nodes in the order of their numbers, its own included.
// It joins a lower node that has lost its leader, too, and asks a higher node only for its leader. So all
// join the lowest node that they reach. When the nodes that have joined a supervisor are a quorum with it, it
// asks them for their promises, and leads.
//
// A machine that is off does not answer, so each node is called (`dial`) before its turn, and several calls
// wait for their answers at the same time: the next node is called after a moment, until one answers. A node
// that has not answered is passed over, and called again in the background.
//
// The caller owns the connections: the calls, the one call that is used (`out`), and any number from others
// (`in`). It executes acts(), and reports what happened. The class reads no clock, no file and no socket, so
// a simulation runs many of them in virtual time. Times are seconds of a clock that does not go backwards.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "safe/supervise/agreement/agreement.h"

namespace primus::supervise {

struct SuccessionLimits {
  double first_wait = 600;      // a supervisor that never had a leader seeks one for this time
  double wait = 30;             // the same for later ones
  double follower_silence = 8;  // a leader is lost after this time without a message
  double leader_silence = 7;    // a leader without a quorum leads for this time
  double stand = 3;             // a node waits for others to join it, and for a lower node to lead
  double ask = 1;               // for the answer of a higher node
  double pause = 0.2;           // after all nodes were asked
  double renew = 20;            // a leader proposes its state again, so that the job's file changes
  double stale = 60;            // the leader that wrote the file is lost if the file does not change
  double stagger = 0.05;        // between the begins of two calls
  double again = 1;             // a node that has not answered is called again
  double kept = 4;              // an open call is used within this time
  int calls = 32;               // at the same time
};

// A message about leadership.
struct LeadershipMessage {
  enum class Kind : std::uint8_t {
    kHello,        // out: first message; who, promised and state of the sender
    kElsewhere,    // in: `who` leads, or has a better claim
    kPrepare,      // to the node: promise `view`
    kPromise,      // from the node: it has promised `view`, and has `state`
    kState,        // to the node: take `state`
    kAcknowledge,  // from the node: it has `version` of `view`
    kRefuse,       // to the node: it belongs to another job
  } kind = Kind::kHello;
  std::uint64_t view = 0, version = 0;
  Delegate who = {};
  AgreedState state = {};
};

// Keeps the votes of the processes of a node.
struct VoteMemory {
  Agreement::Keep keep = {};
  std::optional<Votes> kept = {};  // of earlier processes of the node, which have ended
};

class Succession {
 public:
  enum class Role : std::uint8_t {
    kSeeking,
    kFollowing,
    kLeading,
    kLost,     // it has lost its leader or its quorum: end the ranks, then call seek()
    kEnded,    // no leader was found in time
    kRefused,  // the leader leads another job
  };
  // `known`: where other supervisors of the job may listen. `may_found`: this node leads a new job if none of
  // them answers.
  Succession(int nodes, Delegate self, std::vector<Delegate> known, bool may_found, double now,
             SuccessionLimits limits = {}, VoteMemory memory = {});

  Role role() const { return role_; }
  Agreement& agreement() { return agreement_; }
  const Agreement& agreement() const { return agreement_; }
  // Whether a leader has written the job's file so lately that it still leads. Only a node that seeks a
  // leader reads the file.
  bool is_led_elsewhere(double now) const;
  // Returns whether the last leader was lost by its silence. Its process may still run.
  bool leader_was_silent() const { return out_.silent; }
  int leader() const { return out_.node; }  // kFollowing: its node
  bool had_leader() const { return agreement_.state().exists(); }
  // Whether this node leads a job that was led by another process before.
  bool took_over() const { return took_over_; }
  // kFollowing and kLost: the leader that is or was followed.
  const Delegate& followed() const { return followed_; }

  // ---- What the caller does, in this order. ---------------------------------------------------------------
  struct Act {
    enum class Kind : std::uint8_t {
      kCall,    // open a connection to `to`
      kForget,  // end the call of the node
      kUse,     // the open call of the node becomes the connection `out`
      kHangUp,  // end the connection `out`
      kSendOut,
      kSendIn,  // to the node
      kDrop,    // end the connection of the node
    } kind = Kind::kCall;
    Delegate to = {};
    LeadershipMessage message = {};
  };
  std::vector<Act> acts();

  // ---- What happened. -------------------------------------------------------------------------------------
  void tick(double now);
  void connected(int node, double now);  // the call of the node is open
  // It did not open. `refused`: its machine answered that no process listens.
  void failed(int node, double now, bool refused);
  void disconnected(double now);  // the connection `out` has ended
  // The connection `out` leads to a supervisor of another job: it has the port of one that has ended.
  void stranger(double now);
  void heard(double now) { out_.heard = now; }                 // any message of the connection to the leader
  void receive(const LeadershipMessage& message, double now);  // from the connection `out`
  void receive_in(int node, const LeadershipMessage& message, double now);
  void left(int node, double now);  // a connection from a node has ended
  void seek(double now);
  // Takes the newest state that a leader has written to the job's file, with the addresses of its
  // supervisors.
  void learn(const AgreedState& state, double now);
  // Whether no supervisor of an earlier start lives: the caller may call found(). All known addresses have
  // refused a connection, or did not answer while the job's file did not change.
  bool may_found(double now) const;
  void found(std::uint64_t job, std::string body);

 private:
  // A call of a node that may lead.
  struct Dial {
    enum class State : std::uint8_t { kOpening, kOpen, kFailed } state = State::kOpening;
    Delegate to = {};
    double until = 0;     // kOpen: the server waits no longer; kFailed: the next call
    bool judged = false;  // an earlier call failed; no decision waits for this one
  };
  LeadershipMessage own(LeadershipMessage::Kind kind) const;
  void act(Act act) { acts_.push_back(std::move(act)); }
  void answer(int node, LeadershipMessage message);
  void dial(double now);
  void call(const Delegate& to, double now);
  void forget_calls();
  bool has_joined(int node) const;
  std::optional<Delegate> next_to_ask(double now);
  void ask(const Delegate& to, double now);
  void ask_next(double now);
  void hang_up(double now, double pause);
  void lose();
  void stand(double now);
  void spread();
  void look_at_quorum(double now);
  std::optional<Delegate> where(int node) const;
  void greet(const LeadershipMessage& message, double now);
  void take(const AgreedState& state);
  void take_waiting();
  void promise_waiting(double now);

  int nodes_;
  SuccessionLimits limits_;
  Agreement agreement_;
  std::map<int, Delegate> known_ = {}, strangers_ = {};  // where supervisors, and where other jobs, listen
  AgreedState written_ = {};                             // of the job's file
  std::optional<Votes> kept_;                            // of earlier processes of this node
  bool may_found_;
  Role role_ = Role::kSeeking;
  std::map<int, Dial> dials_ = {};
  double next_call_ = 0;
  struct {
    bool used = false;
    int node = -1;
    bool joined = false;  // a lower node, which may have no leader itself
    double until = 0;     // the end of the wait for its answer
    double heard = 0;     // when its last message came
    bool silent = false;  // the last leader was silent, but its connection was open
    // kFollowing: the newest state of the leader, if the vote could not be kept. tick() tries again.
    std::optional<AgreedState> waiting = {};
    // The view that the other supervisor asked for, if the promise could not be kept. tick() tries again.
    std::optional<std::uint64_t> prepare = {};
  } out_;  // the connection to another supervisor
  struct Search {
    double began = 0, next = 0;
    int cursor = -1;           // the node that was asked last
    std::set<int> answered;    // nodes whose supervisor has answered
    bool round_done = false;   // all known nodes were asked
    bool unreachable = false;  // an address has not answered
    double written_at = 0;     // when the job's file changed
  } search_;
  bool took_over_ = false;
  double renewed_ = 0;
  std::optional<double> no_quorum_ = {}, standing_ = {};
  std::optional<Delegate> hint_ = {};
  Delegate followed_ = {};
  std::vector<Act> acts_ = {};
};

}  // namespace primus::supervise
