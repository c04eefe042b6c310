// The messages between the supervisors of a job on several machines: one supervisor per machine (node); the
// supervisor of node 0 leads. A message is a frame of at most kMaxMessage bytes with texts of limited
// size, and only supervisors that have proved to belong to the job may send one, so that a hostile or broken
// peer cannot make the reader use memory. Messages belong to an attempt, by its number; receivers ignore
// those of other attempts.
//
// Free functions and plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "safe/supervise/observation/hang_watch.h"

namespace primus::supervise {

struct NodeMessage {
  enum class Kind : std::uint8_t {
    // From a node to the leader.
    kHello =
        1,   // first message: text: host; more: the job as the node sees it, which must equal the leader's
    kAlive,  // once a second: sample; signs
    kFault,  // a rank has recorded a fault; text: the line of its events; number: the rank
    kEnded,  // the processes of the attempt have ended: number: exit code; flag: killed by the kernel because
             // memory was exhausted; text: last error; more: file with stacks
    kAsked,  // the node was asked to stop by the signal `number`; flag: again, so at once
    kStuck,  // instead of kEnded: processes of the attempt cannot be ended; text: one sentence
    // From both sides.
    kBeat,  // once a second, by a thread that uses no file: the machine and its supervisor are alive
    // From a node, about leadership (succession.h): attempt: the view; record: its state.
    kPromise,
    kAcknowledge,  // signs: the version
    kListens,      // the node at place 0 has opened the ranks' rendezvous: port
    // From the leader to a node.
    kLead = 32,  // once a second: flag: samples are wanted
    kStart,  // start the ranks: number: place of the node in the job; port: of the ranks' rendezvous (0: open
             // it); more: its address; text: a salt of the attempt's secret; flag: continue the run; seconds:
             // since the job started
    kEnd,    // end the processes of the attempt; flag: write the stacks of all threads first; text: why
    kQuit,   // the job is over: number: exit code; text: a line for the user; flag: the receiver belongs to
             // another job
    // From a node that leads, or seeks a leader (succession.h).
    kElsewhere,  // record: who leads
    kPrepare,    // attempt: the view
    kState,      // record: the state
    kRefuse,
    kStop,  // pass the signal `number` on to the ranks
  } kind = Kind::kAlive;
  std::uint64_t attempt = 0;
  std::int64_t number = 0;
  bool flag = false;
  std::uint16_t port = 0;
  double seconds = 0;
  std::int64_t checkpoint = 0;  // kHello, kAlive, kEnded: step of the newest checkpoint that the node sees
  std::uint64_t signs = 0;      // kAlive: number of events of the node's ranks
  std::optional<JobSample> sample = {};  // kAlive; its time is the receiver's
  std::optional<int> stopped_rank = {};  // kAlive: the rank of sample->stopped
  std::string text = {}, more = {};
  std::string record = {};  // kHello and messages about leadership: JSON of leadership_wire.h
};

inline constexpr std::size_t kMaxNodeText = std::size_t{16} << 10;
// Room for 65,536 nodes with long names, as members before and after a change.
inline constexpr std::size_t kMaxRecord = std::size_t{32} << 20;
inline constexpr std::size_t kMaxMessage = kMaxRecord + 2 * kMaxNodeText + 256;

// Returns the frame: its length and the message. Texts are cut to kMaxNodeText.
std::string to_frame(const NodeMessage& message);
// Takes the first complete frame from the front of `bytes`. Returns kMore if it is incomplete, and kBroken if
// it is no valid frame; the connection must then be closed.
enum class FrameState : std::uint8_t { kMessage, kMore, kBroken };
FrameState take_frame(std::string& bytes, NodeMessage& message);

}  // namespace primus::supervise
