// The bookkeeping of a supervised job, wherever its processes run: what its events mean, whether it hangs,
// how an attempt ended, what follows, the records of the run, and the lines for the user. The supervisor of
// one machine (supervisor.cpp) and the leader of several machines (node_leader.cpp) use this class, so both
// decide by the same rules.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "safe/supervise/observation/hang_watch.h"
#include "safe/supervise/recovery/attempt.h"
#include "safe/supervise/recovery/event_clock.h"
#include "safe/supervise/recovery/recovery_policy.h"
#include "safe/supervise/recovery/time_account.h"
#include "safe/supervise/supervision_log.h"
#include "safe/supervise/supervisor.h"

namespace primus::supervise {

// A restart starts either the processes of lost ranks again ("rank restart"), or all processes of the job.
enum class Rung : std::uint8_t { kRank, kJob };

class Bookkeeping {
 public:
  // `wall`: what the wall clock shows, in seconds since 1970.
  explicit Bookkeeping(const SupervisedJob& job, double wall = unix_seconds());

  // Writes a line of RUN/events/supervisor.jsonl. `facts` is a JSON object.
  void record(std::string_view kind, std::string cause, nlohmann::ordered_json facts, bool times = true,
              std::optional<int> rank = {});

  // Records the times of a running attempt if the newest recorded ones are older than two seconds and one
  // hundredth of the time since the start. So the record has the times of a job that runs.
  void record_times();

  // A new attempt. continues(): the run has begun, so the attempt continues from its newest checkpoint.
  void begin();
  bool continues() const { return continues_; }
  double elapsed() const;  // seconds since the supervisor started

  // An event of a rank.
  void add(const EventLine& event, int rank);
  HangWatch& hang() { return *hang_; }

  // Judges the end of the attempt, and records a fault. `facts` are added to the record; facts_of(end) adds
  // more.
  JobEnd end(const ProcessEnd& process, const std::optional<HangFinding>& finding,
             std::optional<int> hang_rank, nlohmann::ordered_json facts,
             const std::optional<LostNode>& lost = {},
             const std::function<nlohmann::ordered_json(const JobEnd&)>& facts_of = {});
  // Decides and records what follows; announces a restart. `rung`: what it would start again.
  Action decide(const JobEnd& end, Rung rung = Rung::kJob);
  // Whether this attempt has completed a step. Another fault before that is one of the restart itself.
  bool has_progressed() const { return attempt_.began() && attempt_.step() > *attempt_.began(); }

  // No other attempt is possible. Records the reason, and returns the exit code.
  int give_up(const std::string& reason, const std::string& text, const std::string& hint);
  // The disk did not get the space that the restart needs. Records this, and returns the exit code.
  int give_up_without_space(const JobEnd& end, const Action& action);
  // A request to stop arrived between two attempts. Returns the exit code.
  int stopped_waiting(int signal);
  // The supervisor ends. Returns the exit code.
  int finish(const JobEnd& end, const Action& action);

  // The lines of the record, which the supervisors of several machines hold until they agree.
  SupervisionLog& log() { return log_; }
  // The account up to the begin of the attempt, or after its end, for another supervisor of the job.
  // restore() throws nlohmann::json::exception. Times are saved by the present wall clock, because clock() of
  // the other supervisor may differ. `recovering`: whether the first step after a fault is still to be
  // recorded.
  nlohmann::ordered_json save() const;
  bool recovering() const { return recovering_; }
  void restore(const nlohmann::ordered_json& saved);

 private:
  // Seconds since 1970, by the wall clock at the supervisor's start. A wall clock that is set later has no
  // effect.
  double clock() const;
  void recovered(const EventLine& event, double time);
  void keep_record_of_early_end(const JobEnd& end) const;
  void keep_checkpoint();
  void tell(const RunEvent& event);
  void announce(const JobEnd& end, const Action& action, Rung rung) const;

  const SupervisedJob& job_;
  RecoveryPolicy policy_;
  double to_unix_;  // from the steady clock to clock()
  TimeAccount account_;
  EventClock event_clock_ = {};
  SupervisionLog log_;
  std::optional<HangWatch> hang_ = {};
  Attempt attempt_ = {};
  double started_;
  int attempts_ = 0;
  std::int64_t rank_restarts_ = 0;
  bool recovering_ = false, continues_ = false;
  std::int64_t furthest_ = 0;              // last step of all attempts
  double began_at_ = 0, detected_at_ = 0;  // by clock()
  double times_at_ = 0;                    // elapsed() at the newest record of a running attempt's times
};

}  // namespace primus::supervise
