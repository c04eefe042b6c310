// Decides what follows when a supervised job has ended: a restart, after a delay or when the disk has space
// again, or the end. The class reads no clock, starts no process, and touches no file. A simulation in
// virtual time can therefore use it.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace primus::supervise {

// How a job ended.
enum class EndKind : std::uint8_t {
  kDone,        // the last step is done, or a limit or a request ended the run
  kStopped,     // it was asked to stop, and ended
  kRefused,     // arguments, settings or data are invalid, or a file or library is missing
  kFileLimit,   // a file exceeds the size limit of the process (ulimit -f)
  kDiskFull,    // no space on the disk
  kNan,         // a NaN or infinity in loss or gradients
  kCorruption,  // a check found silent corruption; the checkpoints since the last good check are moved aside
  kMemory,      // an allocation failed
  kMemoryKill,  // the kernel killed a process, because memory was exhausted
  kKilled,      // killed by a signal from outside
  kCrashed,     // killed by a signal that a fault caused, such as SIGSEGV
  kLostRank,    // a rank was lost, which another rank or the launcher reports
  kError,       // another error
  kHang,        // no step, and the supervisor ended the job
  kEarlyExit,   // exit code 0, although the run has recorded no end
  kLostNode,    // a machine of the job, or the supervisor on it, was lost
};
std::string_view name_of(EndKind kind);  // Returns the name for users and records: "lost rank".

// The end of one process of the job (an "attempt").
struct JobEnd {
  EndKind kind = EndKind::kDone;
  int exit_code = 0;  // of the job; 128 + N if signal N killed it
  std::optional<int> rank = {}, node = {};
  std::optional<std::int64_t> began =
      {};                       // step at which the attempt began; empty if it was not ready for a step
  std::int64_t step = 0;        // last completed step
  std::int64_t checkpoint = 0;  // newest checkpoint on the disk; 0: none
  std::int64_t snapshot = 0;    // newest snapshot in memory that all ranks completed; 0: none
  std::string text = {};        // the error in one sentence
  bool explained = true;        // the job has recorded or logged an error, or a signal ended it
  double time = 0;              // seconds of any clock that does not go backwards
  // For kDiskFull: free space, and the size of the newest checkpoint (0: unknown), in bytes.
  std::uint64_t free_bytes = 0, checkpoint_bytes = 0;
};

// Returns the default of RecoveryLimits::max_restarts for a job of this many nodes. The largest published
// run, on 2,048 nodes (Llama 3), had 7.8 unplanned interruptions a day, so one node with 20 a day is
// defective. The default for 2,048 nodes is 52, because the number per day varies: simulated jobs on 2,048
// nodes exceed 20 about once in 1,000 days.
int usual_max_restarts(std::int64_t nodes);

struct RecoveryLimits {
  int max_restarts = 20;  // within any `budget_seconds`
  double budget_seconds = 24 * 3600.0;
  // Ends of attempts in a row that make a crash loop: `loop` of one rank without a new checkpoint, or with
  // the same error in the same step; `mixed_loop` of several ranks without a new checkpoint, because a job on
  // many nodes has independent faults: on 5,000 nodes with 30 faults a day and a checkpoint every four
  // minutes, three in a row occur about every ten days. A NaN is a result of the arithmetic, which is
  // deterministic, so two are enough.
  int loop = 3, mixed_loop = 10, nan_loop = 2;
  // Delay of restarts: none after progress (a new checkpoint), then `first_delay`, doubled up to `max_delay`.
  double first_delay = 1, max_delay = 60;
  // Seconds for which a job waits for a lost node or for a spare, and for processes that cannot be ended.
  // Then it ends.
  double node_wait = 60;
};

struct Action {
  enum class Kind : std::uint8_t {
    kRestart,
    kFinish,  // the job ended as it should; its exit code is the supervisor's
    kGiveUp,  // a restart cannot cure the fault, or did not
  } kind = Kind::kFinish;
  double delay = 0;                              // kRestart: seconds
  std::optional<std::uint64_t> free_bytes = {};  // kRestart: wait until the disk has this much free space
  std::string reason = {};                       // in a few words: "crash loop"
  std::string text = {}, hint = {};  // kGiveUp: what happened, and the next step; one sentence each
};

class RecoveryPolicy {
 public:
  explicit RecoveryPolicy(RecoveryLimits limits) : limits_(limits) {}

  // Call this once for each end of an attempt, with times that do not decrease.
  Action decide(const JobEnd& end);

  // Returns the number of restarts that decide() asked for.
  std::int64_t restarts() const { return restarts_; }

  // The counts, for another supervisor of the job, whose clock differs: `to_unix` is added to times of
  // this clock to get seconds since 1970. restore() throws nlohmann::json::exception.
  nlohmann::ordered_json save(double to_unix) const;
  void restore(const nlohmann::ordered_json& saved, double to_unix);

 private:
  void count(const JobEnd& end);
  Action restart(const JobEnd& end);

  RecoveryLimits limits_;
  std::int64_t restarts_ = 0;
  std::deque<double> times_;    // restarts within the budget's window
  std::int64_t newest_ = -1;    // newest checkpoint or snapshot of all attempts
  int without_checkpoint_ = 0;  // ends in a row without a new checkpoint
  int same_rank_ = 0;           // of these, the newest ones that name the rank of last_, or like it none
  std::optional<JobEnd> last_ = {};
  int same_ = 0;  // ends in a row with the kind, step and text of last_
};

}  // namespace primus::supervise
