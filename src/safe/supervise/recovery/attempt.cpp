#include "safe/supervise/recovery/attempt.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "lm/events/corruption_error.h"
#include "lm/events/lost_rank.h"
#include "safe/supervise/observation/event_facts.h"

namespace primus::supervise {
namespace {

constexpr int kSignalBase = 128, kNotExecutable = 126, kNotFound = 127;

bool is_own_fault(int number) {
  return number == SIGSEGV || number == SIGBUS || number == SIGABRT || number == SIGILL || number == SIGFPE ||
         number == SIGSYS || number == SIGTRAP;
}

bool is_request(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT || number == SIGUSR1;
}

EndKind kind_of_reason(std::string_view reason) {
  if (reason == "NaN") return EndKind::kNan;
  if (reason == "disk full") return EndKind::kDiskFull;
  if (reason == "out of memory") return EndKind::kMemory;
  if (reason == kCorruptionReason) return EndKind::kCorruption;
  if (reason == kLostRank) return EndKind::kLostRank;
  return EndKind::kError;
}

EndKind kind_of_signal(int number, bool memory_kill) {
  if (number == SIGKILL && memory_kill) return EndKind::kMemoryKill;
  if (is_request(number)) return EndKind::kStopped;
  return is_own_fault(number) ? EndKind::kCrashed : EndKind::kKilled;
}

// Signals whose number is above 64 do not exist.
int signal_in(int exit_code) {
  constexpr int kSignals = 64;
  return exit_code > kSignalBase && exit_code <= kSignalBase + kSignals ? exit_code - kSignalBase : 0;
}

}  // namespace

namespace {

// Returns the rank that comm::diagnose() finds at the end of the first chain of ranks that wait for each
// other: "all_reduce did not complete within 10.0 s; rank 1 is in ... and waits for rank 2; rank 2 has not
// called it".
std::optional<int> rank_at_fault(std::string_view text) {
  constexpr std::string_view kDiagnosis = " did not complete within ", kRank = "rank ";
  const std::size_t found = text.find(kDiagnosis);
  if (found == text.npos) return std::nullopt;
  for (std::size_t at = text.find("; ", found); at != text.npos; at = text.find("; ", at)) {
    at += 2;
    const std::string_view clause = text.substr(at, text.find("; ", at) - at);
    int rank = 0;
    if (!clause.starts_with(kRank) || clause.find(" and waits for rank ") != clause.npos) continue;
    if (std::from_chars(clause.data() + kRank.size(), clause.data() + clause.size(), rank).ec == std::errc())
      return rank;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> rank_in(std::string_view text) {
  if (const auto rank = rank_at_fault(text)) return rank;
  constexpr std::string_view kRank = "rank ";
  for (std::size_t at = text.find(kRank); at != text.npos; at = text.find(kRank, at + 1)) {
    int rank = 0;
    const char* const begin = text.data() + at + kRank.size();
    const auto number = std::from_chars(begin, text.data() + text.size(), rank);
    if (number.ec != std::errc()) continue;
    const std::string_view rest = text.substr(static_cast<std::size_t>(number.ptr - text.data()));
    if (rest.starts_with(" was ") || rest.starts_with(" is missing") || rest.starts_with(" has exited"))
      return rank;
  }
  return std::nullopt;
}

void Attempt::add(const EventLine& event, int rank) {
  if (event.event == "fault") {
    // The first fault of the attempt is the cause of the others, except that a rank which waited in vain
    // knows more about a lost rank than the launcher.
    std::string text = text_in(event.facts);
    const bool explains = fault_ == primus::kLostRank && rank_in(text) && !rank_in(fault_text_);
    if (!fault_.empty() && event.rank != 0 && !explains) return;
    fault_ = event.cause;
    fault_text_ = std::move(text);
    fault_rank_ = event.rank;
  }
  if (rank != 0) return;
  if (event.event == "begin") {
    began_ = event.step;
    step_ = event.step;
    from_ = state_from_in(event.facts);
    std::int64_t& saved = from_ == "memory" || from_ == "partner" ? snapshot_ : checkpoint_;
    saved = std::max(saved, event.step);
    ending_.reset();
  }
  if (event.event == "step") step_ = event.step;
  if (event.event == "checkpoint" && event.facts.find("durable") != std::string_view::npos)
    checkpoint_ = std::max(checkpoint_, event.step);
  if (event.event == "checkpoint" && state_in(event.facts) == "in memory")
    snapshot_ = std::max(snapshot_, event.step);
  if (event.event == "end") ending_ = ending_from_json(event.facts);
}

namespace {

// Returns whether a launcher wrote the text, which tells only how a rank ended: "rank 0 ended with exit code
// 2".
bool is_bare(std::string_view text) {
  return text.starts_with("rank ") && text.find(" ended with exit code ") != text.npos &&
         text.find(": ") == text.npos;
}

// Returns whether a start was refused because the disk has too little space (lack_of_disk() in
// lm/train/settings). A first start is refused for good, but a run that has begun waits for space.
bool lacks_space(std::string_view text) { return text.find("a checkpoint needs ") != text.npos; }

}  // namespace

void blame_full_disk(JobEnd& end, bool begun) {
  using enum EndKind;
  constexpr std::uint64_t kLogs = std::uint64_t{64} << 10;
  // The next checkpoint may be larger than the newest one.
  if (begun && end.kind == kRefused && lacks_space(end.text)) {
    end.kind = kDiskFull;
    return;
  }
  if (!begun || end.free_bytes >= std::max(end.checkpoint_bytes, kLogs)) return;
  const bool unknown = end.kind == kRefused || end.kind == kError || end.kind == kLostRank;
  if (!(unknown && !end.explained) && end.kind != kEarlyExit) return;
  end.kind = kDiskFull;
  end.text =
      fmt::format("no space was left to record the reason: the disk has {} bytes free", end.free_bytes);
}

JobEnd Attempt::judge(const ProcessEnd& process, const std::optional<HangFinding>& hang,
                      std::optional<int> hang_rank) const {
  using enum EndKind;
  using State = RunEnding::State;
  const bool complete = ending_ && (ending_->state == State::kFinished || ending_->state == State::kStopped);
  JobEnd end{.exit_code = process.exit_code,
             .began = began_,
             .step = step_,
             .checkpoint = checkpoint_,
             .snapshot = snapshot_};
  const int number = signal_in(process.exit_code);
  if (hang) {
    end.kind = complete ? kDone : process.asked_to_stop ? kStopped : kHang;
    end.exit_code = complete ? 0 : 3;
    end.rank = hang_rank;
    end.text = hang->text;
    return end;
  }
  end.text = ending_ && !ending_->text.empty() ? ending_->text : fault_text_;
  if (end.text.empty()) end.text = process.last_error;
  const std::string reason = ending_ && ending_->state == State::kFailed ? ending_->reason : fault_;
  end.rank = rank_in(end.text);
  // The launcher names the rank that ended first, but a rank that waited in vain knows for whom it waited.
  if (!end.rank && reason == primus::kLostRank && rank_in(fault_text_)) {
    end.rank = rank_in(fault_text_);
    end.text = fault_text_;
  }
  // Rank 0 records silent corruption. If no rank is named, rank 0 is no more suspect than others.
  if (!end.rank && !fault_.empty() && reason != kCorruptionReason) end.rank = fault_rank_;
  const bool file_limit = end.text.find(std::strerror(EFBIG)) != std::string::npos;
  constexpr int kRunTimeError = 3;
  if (process.asked_to_stop) {
    end.kind = kStopped;
  } else if (complete && (number != 0 || process.exit_code == kRunTimeError)) {
    // All is saved and shown. Another start would do nothing, or train beyond a limit such as exit_interval.
    end.kind = kDone;
    end.exit_code = 0;
    end.text = number == 0 ? fmt::format("a rank ended with exit code {}", process.exit_code)
                           : fmt::format("a rank was killed by signal {} ({})", number, ::strsignal(number));
  } else if (process.exit_code == 0) {
    end.kind = began_ && !ending_ ? kEarlyExit : kDone;
    if (end.kind == kEarlyExit) {
      end.exit_code = 3;
      end.text = "the process ended with exit code 0, but the run has recorded no end";
    }
  } else if (number != 0) {
    end.kind = kind_of_signal(number, process.memory_kill);
    if (end.text.empty()) end.text = fmt::format("killed by signal {} ({})", number, ::strsignal(number));
  } else if (file_limit) {
    end.kind = kFileLimit;
  } else if (reason == "disk full" || end.text.find(std::strerror(ENOSPC)) != std::string::npos) {
    end.kind = kDiskFull;
  } else if ((process.exit_code <= 2 && (reason == kCorruptionReason || !(began_ && step_ > *began_))) ||
             process.exit_code == kNotFound || process.exit_code == kNotExecutable) {
    // A run that has completed steps was accepted at its start. Its error may be one of the moment: the
    // system allowed no thread or no file. But silent corruption has this exit code only if no state from
    // before the damage is left (CorruptionError), so a restart would train on damaged weights.
    end.kind = kRefused;
  } else {
    end.kind = process.memory_kill ? kMemoryKill : kind_of_reason(reason);
    if (end.kind == kError && rank_in(end.text)) end.kind = kLostRank;
  }
  end.explained = !end.text.empty() && !is_bare(end.text);
  if (end.text.empty())
    end.text = fmt::format("it ended with exit code {}; its message is above", end.exit_code);
  return end;
}

}  // namespace primus::supervise
