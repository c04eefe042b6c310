// Decides whether a job hangs, from its events and from samples of its processes. The class reads no clock
// and no file.
//
// A job that computes steps hangs if it shows no sign (event) for max(10 s, 3 times its usual step time), and
// none of its processes works. A process works if it uses processor time, transfers data, or waits for a
// disk. A job that works without a sign has `patience` more time: it may be merely slow. While the usual step
// time is unknown, and in phases such as loading, tokenizing and evaluating, a job hangs only if no process
// works for `patience`. While it saves, it hangs if it moves no data for `patience`, also if it uses
// processor time. Processes that a signal has stopped (SIGSTOP) for 10 s are a hang in all of these cases. A
// job whose output is not read (a pager, Ctrl-S on a terminal) waits for its user, and does not hang.
//
// Times are seconds of a clock that does not go backwards. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace primus::supervise {

struct HangLimits {
  double shortest = 10;   // seconds without a sign
  double steps = 3;       // usual step times without a sign
  double patience = 600;  // distributed_timeout_minutes
  // Ranks detect the hang of another rank themselves, after the same time, and know its last collective. The
  // supervisor gives them this much time for it.
  double for_ranks = 0;
  // Seconds without a sign in a step that may wait for other programs, such as reward servers; 0: no such
  // step.
  double for_services = 0;
};

// All processes of the job, at one time.
struct JobSample {
  double time = 0;
  double processor_seconds = 0;  // of all processes, since they started
  std::uint64_t bytes = 0;       // read and written by processes that were at work (Traffic)
  bool waits_for_disk = false;   // a thread is in uninterruptible sleep
  // A thread writes to standard output or error, and its reader does not read.
  bool waits_for_reader = false;
  std::optional<int> stopped = {};  // number of a process that a signal has stopped
};

// Adds up the bytes that processes read and write fast enough to be at work. Each rank's watch of its machine
// reads some files of the kernel every few seconds, also while the rank hangs.
class Traffic {
 public:
  // `bytes`: the number of bytes that the process has read and written since its start.
  void add(int process, double now, std::uint64_t bytes);
  std::uint64_t total() const { return total_; }

 private:
  struct Seen {
    double time = 0;
    std::uint64_t bytes = 0;
  };
  std::map<int, Seen> seen_ = {};
  std::uint64_t total_ = 0;
};

struct HangFinding {
  std::string text;                 // "no step for 12 s, although steps take 0.5 s, and no process works"
  std::optional<int> stopped = {};  // the process that a signal has stopped
};

class HangWatch {
 public:
  HangWatch(HangLimits limits, double now) : limits_(limits), sign_(now), checked_(now) {}

  void begin(double now);                         // ready for the first step
  void step(double seconds, double now);          // a step of rank 0 has ended
  void phase(std::string_view what, double now);  // rank 0; empty: steps continue
  void saving(bool is, double now);
  void ended(double now);                 // the run has recorded its end
  void sign(double now) { sign_ = now; }  // any other event of any rank

  // Returns whether check() needs a new sample.
  bool wants_sample(double now) const { return now - sign_ >= kLook; }
  // Returns the finding if the job hangs. Call this at least once a second; after a longer pause (the machine
  // slept, or the supervisor was stopped), the job gets that much more time.
  std::optional<HangFinding> check(double now, const std::optional<JobSample>& sample);

  static constexpr double kLook = 3;  // seconds without a sign after which samples are taken

 private:
  enum class State : std::uint8_t { kStarting, kSteps, kEnded };
  double usual_step() const;
  void look(const JobSample& sample);

  HangLimits limits_;
  State state_ = State::kStarting;
  std::string phase_ = {};
  bool saving_ = false;
  double sign_, checked_;
  std::deque<double> steps_ = {};       // durations of the newest steps
  std::optional<JobSample> last_ = {};  // newest sample since the newest sign
  std::optional<double> works_ = {};    // when a process was last seen to work, since the newest sign
  std::optional<double> moves_ = {};    // when a process was last seen to move data, since the newest sign
  std::optional<double> stopped_ = {};  // since when a process is stopped
};

}  // namespace primus::supervise
