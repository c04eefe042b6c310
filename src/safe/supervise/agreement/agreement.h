// The supervisors of a job on several machines agree on one state: the leader, the members, and the leader's
// decisions. The leader may be lost at any moment, but two supervisors must never lead at the same time.
//
// The method is that of Paxos for one value that changes (Lamport, "Paxos Made Simple", 2001), with the
// change of the members of Raft (Ongaro and Ousterhout, 2014, section 6):
//   - Each candidate has views (numbers) that no other node has: view % nodes == node. A node that has
//     promised a view takes no state of a lower view.
//   - A candidate asks for promises. It leads when a quorum has promised, and continues from the newest state
//     that these nodes have.
//   - A state is agreed when a quorum has acknowledged it. Nothing that a state decides is done earlier.
//   - A quorum is more than half of the members, or exactly half with the chair: the leader that proposed the
//     members. So if two members lose each other, only the leader continues.
//   - While the members change, a quorum of the members before and one of the members now are needed.
// Any two quorums share a node, so a candidate sees each agreed state, and a leader that others have replaced
// finds no quorum. docs/supervise.md has the argument for the whole protocol.
//
// A supervisor that was started again has forgotten its votes (promises and states). It therefore counts as a
// new member: each process has a random number, its life. Only node 0 keeps its votes in a file before they
// count. A later process of node 0 continues with them.
//
// Reads no clock, no file and no socket. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace primus::supervise {

// One supervisor: its node, the life of its process, and where it listens.
struct Delegate {
  int node = 0;
  std::uint64_t life = 0;
  std::string address = {};
  std::uint16_t port = 0;
};

struct Assembly {
  std::vector<Delegate> members = {};
  int chair = -1;  // node of the leader that proposed the members
};

struct AgreedState {
  std::uint64_t job = 0;  // random number of the job's first leader; 0: no state
  std::uint64_t view = 0, version = 0;
  Assembly now = {}, before = {};  // before: empty unless the members change
  std::string body = {};           // what the leader has decided; any bytes

  bool exists() const { return job != 0; }
};
// Whether `a` was proposed after `b`.
bool is_newer(const AgreedState& a, const AgreedState& b);
std::string to_text(const AgreedState& state);
// Returns nullopt if the text is no state of a job of `nodes` nodes.
std::optional<AgreedState> read_state(std::string_view text, int nodes);

// The votes of one node: its promise and its newest state.
struct Votes {
  std::set<std::uint64_t> lives = {};  // of these processes
  std::uint64_t promised = 0;
  AgreedState state = {};
};
std::string to_text(const Votes& votes);
std::optional<Votes> read_votes(std::string_view text, int nodes);

class Agreement {
 public:
  // Keeps votes for later processes of the node. Returns false if it cannot; then the vote does not count.
  using Keep = std::function<bool(const Votes&)>;
  enum class Answer : std::uint8_t {
    kTaken,
    kRefused,  // this node has promised a higher view, or has the state of another job
    kNotKept,  // the vote cannot be kept now
  };
  // Without `keep`, the votes end with the process.
  Agreement(int nodes, Delegate self, Keep keep = {});
  const Delegate& self() const { return self_; }
  const AgreedState& state() const { return state_; }
  std::uint64_t promised() const { return promised_; }
  bool is_member() const;

  // ---- A node that follows. -----------------------------------------------------------------------------
  Answer promise(std::uint64_t view);
  Answer accept(const AgreedState& state);
  // Takes a state that a leader has written to the job's file, whatever this node has promised: a candidate
  // of a higher view has a newer state.
  void recall(const AgreedState& state);

  // ---- A candidate and a leader, about the supervisors that are connected to it. --------------------------
  void hear(const Delegate& peer, std::uint64_t promised, const AgreedState& state);
  void gone(int node);
  std::vector<Delegate> peers() const;
  // The earlier processes of this node have ended, and this one continues with their votes.
  void remember(const Votes& votes);
  // Whether the connected supervisors and this one are a quorum.
  bool has_quorum() const;
  // Begins a view of this node, and returns it. Ask the peers for a promise.
  std::uint64_t stand();
  // Counts the votes again, because this node's vote may not have been kept before.
  void count();
  // A peer has promised `view`, and has this state.
  void hear_promise(int node, std::uint64_t view, const AgreedState& state);
  // Whether this node leads. Once it does, state() is the newest one, and waits for acknowledgements.
  bool leads() const { return leads_; }
  // Whether a proposal of this node will never be agreed, because another node has led since.
  bool lost_a_proposal() const { return lost_; }
  std::uint64_t view() const { return view_; }

  // ---- A leader. ------------------------------------------------------------------------------------------
  // The first leader of a job.
  void found(std::uint64_t job, std::string body);
  // Proposes a new body, with this node and its peers as members. Proposals that were not sent yet are
  // combined. Returns a number for is_agreed().
  std::uint64_t propose(std::string body);
  // Proposes the connected supervisors as members, with the same body.
  void renew();
  bool is_agreed(std::uint64_t proposal) const { return proposal <= agreed_; }
  // This node leads no more. Its proposals that are not agreed may be lost, or be agreed under another
  // leader.
  void resign();
  void hear_acknowledgement(int node, std::uint64_t view, std::uint64_t version);
  // Peers that must be sent state().
  std::vector<int> take_unsent();

 private:
  struct Peer {
    Delegate who = {};
    std::uint64_t promised = 0, promised_here = 0;  // here: the view of this node that it has promised
    std::uint64_t sent = 0, acknowledged = 0;       // versions
    AgreedState state = {};
  };
  template <class Has>
  bool is_quorum(const AgreedState& state, Has has) const;
  template <class Has>
  bool is_quorum(const Assembly& assembly, Has has) const;
  bool is_self(const Delegate& one) const;
  const AgreedState& newest(bool promised) const;
  void take(AgreedState state);
  void advance();
  void look_at_promises();
  bool keep(std::uint64_t promised, const AgreedState& state);
  void set_promised(std::uint64_t view);

  int nodes_;
  Delegate self_;
  Keep keep_;
  std::optional<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> kept_ =
      {};                               // promise, view, version
  std::set<std::uint64_t> lives_ = {};  // of this process, and of those whose votes it has
  AgreedState state_ = {};
  std::uint64_t promised_ = 0, view_ = 0;
  std::map<int, Peer> peers_ = {};
  bool leads_ = false, waits_ = false, lost_ = false;  // waits_: state_ is not agreed yet
  std::optional<std::string> wanted_ = {};
  std::uint64_t proposals_ = 0, in_state_ = 0, agreed_ = 0;
};

}  // namespace primus::supervise
