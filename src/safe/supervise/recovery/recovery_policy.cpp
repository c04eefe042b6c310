#include "safe/supervise/recovery/recovery_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lm/events/supervision.h"

namespace primus::supervise {
namespace {

// Returns the free space with which the next save may succeed: the size of a checkpoint and a reserve for
// logs and events.
std::uint64_t needed_bytes(const JobEnd& end) {
  constexpr std::uint64_t kUnknown = std::uint64_t{64} << 20, kLogs = std::uint64_t{1} << 20;
  const std::uint64_t checkpoint =
      end.checkpoint_bytes > 0 ? end.checkpoint_bytes + end.checkpoint_bytes / 8 + kLogs : kUnknown;
  return std::max(2 * end.free_bytes, checkpoint);
}

Action give_up(const char* reason, std::string text, std::string hint) {
  return {.kind = Action::Kind::kGiveUp, .reason = reason, .text = std::move(text), .hint = std::move(hint)};
}

// Returns where and why the job ended: "rank 1, step 7: <error>".
std::string place_of(const JobEnd& end) {
  std::string text = end.rank ? fmt::format("rank {}, ", *end.rank) : "";
  text += end.began ? fmt::format("step {}", end.step) : "before its first step";
  return text + ": " + (end.text.empty() ? std::string(name_of(end.kind)) : end.text);
}

bool is_same(const JobEnd& a, const JobEnd& b) {
  return a.kind == b.kind && a.step == b.step && a.began.has_value() == b.began.has_value() &&
         a.text == b.text;
}

std::string hint_for(EndKind kind) {
  switch (kind) {
    case EndKind::kNan:
      return "the message above names the first operator with a NaN; lower lr, or resume with other data";
    case EndKind::kCorruption:
      return "test the memory and the GPU of the rank's machine ('primus preflight'), or leave the machine "
             "out "
             "(Slurm: --exclude)";
    case EndKind::kMemory:
    case EndKind::kMemoryKill:
      return "reduce micro_batch_size or seq_length, or use recomputation; --dry-run shows the memory that a "
             "run needs";
    case EndKind::kHang:
      return "the file with the stacks shows what each thread waits for";
    case EndKind::kLostNode:
      return "check the machine with 'primus preflight', or leave it out (Slurm: --exclude); the same "
             "command "
             "then continues from the newest checkpoint";
    default:
      return "the log of the rank shows what came before; after a repair, the same command continues from "
             "the "
             "newest checkpoint";
  }
}

}  // namespace

std::string_view name_of(EndKind kind) {
  switch (kind) {
    case EndKind::kDone:
      return "done";
    case EndKind::kStopped:
      return "stopped";
    case EndKind::kRefused:
      return "refused";
    case EndKind::kFileLimit:
      return "file size limit";
    case EndKind::kDiskFull:
      return "disk full";
    case EndKind::kNan:
      return "NaN";
    case EndKind::kCorruption:
      return "silent corruption";
    case EndKind::kMemory:
      return "out of memory";
    case EndKind::kMemoryKill:
      return "out-of-memory kill";
    case EndKind::kKilled:
      return "killed";
    case EndKind::kCrashed:
      return "crashed";
    case EndKind::kLostRank:
      return "lost rank";
    case EndKind::kError:
      return "error";
    case EndKind::kHang:
      return "hang";
    case EndKind::kEarlyExit:
      return "early exit";
    case EndKind::kLostNode:
      return kLostNodeFault;
  }
  return "unknown";
}

int usual_max_restarts(std::int64_t nodes) {
  return 20 + static_cast<int>(std::min(nodes, std::int64_t{1} << 30) / 64);
}

void RecoveryPolicy::count(const JobEnd& end) {
  // The attempt before this one may have completed a checkpoint just before its end, without recording it.
  if (last_ && end.began && *end.began > newest_) without_checkpoint_ = same_rank_ = 0;
  const std::int64_t saved = std::max(end.checkpoint, end.snapshot);
  const bool progress = end.began && saved > std::max(*end.began, newest_);
  // After silent corruption, the states since the last good check do not count any more.
  newest_ = end.kind == EndKind::kCorruption ? end.checkpoint : std::max(newest_, saved);
  without_checkpoint_ = progress ? 0 : without_checkpoint_ + 1;
  same_rank_ = progress                                                      ? 0
               : last_ && last_->rank == end.rank && last_->node == end.node ? same_rank_ + 1
                                                                             : 1;
  same_ = last_ && is_same(*last_, end) ? same_ + 1 : 1;
  last_ = end;
}

Action RecoveryPolicy::decide(const JobEnd& end) {
  using enum EndKind;
  if (end.kind == kDone) return {.reason = "finished"};
  if (end.kind == kStopped) return {.reason = "stopped"};
  if (end.kind == kRefused) {
    return give_up("refused", "the job was refused, and would be refused again: " + place_of(end),
                   "correct what the message names, and run the same command again");
  }
  if (end.kind == kFileLimit) {
    return give_up("file size limit", "files may not become as large as the run needs: " + place_of(end),
                   "raise the limit: 'ulimit -f unlimited'; then the same command continues from the newest "
                   "checkpoint");
  }
  count(end);
  if (end.kind == kNan && same_ >= limits_.nan_loop) {
    return give_up(
        "deterministic NaN",
        fmt::format("the same step had a NaN {} times, so it is deterministic: {}", same_, place_of(end)),
        hint_for(end.kind));
  }
  if (same_ >= limits_.loop) {
    return give_up("crash loop",
                   fmt::format("the same fault ({}) ended the job {} times in a row: {}", name_of(end.kind),
                               same_, place_of(end)),
                   hint_for(end.kind));
  }
  if (same_rank_ >= limits_.loop || without_checkpoint_ >= limits_.mixed_loop) {
    return give_up(
        "crash loop",
        fmt::format("the job ended {} times in a row without a new checkpoint; the last end was {}, {}",
                    without_checkpoint_, name_of(end.kind), place_of(end)),
        end.began ? "a smaller save_interval keeps progress between faults; " + hint_for(end.kind)
                  : hint_for(end.kind));
  }
  return restart(end);
}

Action RecoveryPolicy::restart(const JobEnd& end) {
  while (!times_.empty() && times_.front() <= end.time - limits_.budget_seconds) times_.pop_front();
  if (static_cast<int>(times_.size()) >= limits_.max_restarts) {
    return give_up(
        "too many restarts",
        fmt::format("the job was restarted {} times within {:.0f} hours (--max-restarts); the last "
                    "end was {}, {}",
                    times_.size(), limits_.budget_seconds / 3600, name_of(end.kind), place_of(end)),
        "check the machine with 'primus preflight'; the same command continues from the newest "
        "checkpoint");
  }
  times_.push_back(end.time);
  ++restarts_;
  Action action{.kind = Action::Kind::kRestart, .reason = std::string(name_of(end.kind))};
  if (without_checkpoint_ > 0) {
    action.delay = std::min(limits_.max_delay, std::ldexp(limits_.first_delay, without_checkpoint_ - 1));
  }
  if (end.kind == EndKind::kDiskFull) action.free_bytes = needed_bytes(end);
  return action;
}

}  // namespace primus::supervise
