#include "cli/train/lost_rank_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "lm/events/lost_rank.h"
#include "lm/events/run_event.h"
#include "safe/supervise/job_processes.h"

namespace primus::cli {

LostRankRecord::LostRankRecord(Path run)
    : run_(std::move(run)), since_(unix_seconds()), kills_(supervise::memory_kills()) {}

std::string LostRankRecord::add(const launch::LaunchResult& result) const {
  std::string text = result.failure;
  constexpr int kKilled = 128 + SIGKILL;
  const std::optional<std::int64_t> kills = supervise::memory_kills();
  if (result.exit_code == kKilled && kills && kills_ && *kills > *kills_) {
    // The rank's last lines of output follow the first line.
    text.insert(std::min(text.find('\n'), text.size()),
                ": the kernel's out-of-memory killer ended it, or another process here");
  }
  record_lost_rank(run_, result.failed_rank, text, since_);
  return text;
}

}  // namespace primus::cli
