#include "cli/train/lost_rank_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>

#include "lm/events/lost_rank.h"
#include "lm/events/run_event.h"
#include "safe/supervise/nodes/job_processes.h"

namespace primus::cli {

namespace {

// Returns the error that the rank has shown, with the rank; otherwise how it ended.
std::string reason_in(const std::string& text) {
  constexpr std::string_view kError = "\n  error: ";
  const std::string how = text.substr(0, text.find('\n'));
  const std::size_t at = text.rfind(kError);
  if (at == text.npos) return how;
  const std::size_t begin = at + kError.size();
  return fmt::format("{}: {}", how, text.substr(begin, text.find('\n', begin) - begin));
}

}  // namespace

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
  const bool refused = result.exit_code == 1 || result.exit_code == 2;
  record_early_end(run_, result.failed_rank, refused ? kRefused : kLostRank, reason_in(text), since_);
  return text;
}

}  // namespace primus::cli
