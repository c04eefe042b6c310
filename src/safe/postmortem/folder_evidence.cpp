#include "safe/postmortem/folder_evidence.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "base/terminal/terminal.h"
#include "lm/events/run_ending.h"
#include "safe/postmortem/text_evidence.h"

namespace primus::postmortem {
namespace {

// Returns N of "iter_N". A checkpoint that is being written has another name.
std::optional<std::int64_t> step_in(std::string_view name) {
  constexpr std::string_view kPrefix = "iter_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end && step >= 0 ? std::optional(step) : std::nullopt;
}

bool has_no_end(const CaseFile& file) { return file.state.empty() || file.state == "running"; }

// Returns when the file last changed, in seconds since 1970; 0: it does not exist.
double changed(const Path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

std::string state_name(RunEnding::State state) {
  switch (state) {
    case RunEnding::State::kFinished:
      return "finished";
    case RunEnding::State::kStopped:
      return "stopped";
    case RunEnding::State::kFailed:
      return "failed";
    case RunEnding::State::kRunning:
      break;
  }
  return "running";
}

}  // namespace

void find_checkpoint(const Path& run, CaseFile& into) {
  std::error_code error;
  for (std::filesystem::directory_iterator at(run / "checkpoints", error), end; !error && at != end;
       at.increment(error)) {
    const std::optional<std::int64_t> step = step_in(at->path().filename().string());
    std::error_code unreadable;
    if (step && *step <= into.step && std::filesystem::exists(at->path() / "manifest.json", unreadable))
      into.saved_step = std::max(into.saved_step, *step);
  }
}

void read_recorded_ending(const Path& run, CaseFile& into) {
  const std::optional<RunEnding> ending = read_ending(run);
  if (!ending || ending->state == RunEnding::State::kRunning) return;
  const bool has_events =
      std::ranges::any_of(into.ranks, [](const RankRecord& rank) { return rank.rank == 0; });
  if (has_events && !has_no_end(into)) return;
  into.state = state_name(ending->state);
  into.reason = printable(ending->reason);
  into.step = std::max(into.step, ending->iteration);
  if (ending->state != RunEnding::State::kFailed || ending->text.empty()) return;
  const std::string text = "fault " + into.reason + ": " + printable(ending->text);
  const Path file = run / kEndingFile;
  into.evidence.push_back({.source = Source::kEvent,
                           .file = file.string(),
                           .time = 0,  // a copy of the folder has other times
                           .rank = facts_of(text, 0).rank,
                           .text = text,
                           .cause = match(Source::kEvent, text)});
}

void read_stop_request(const Path& run, double began, CaseFile& into) {
  const Path file = run / ".stop";
  const double asked = changed(file);
  if (into.running || into.ranks.empty() || !has_no_end(into) || asked == 0 || asked < began) return;
  const std::string text =
      "stop without a record: 'primus stop' asked the run to end, and the run ended without a record, as "
      "'primus stop --now' ends it";
  into.evidence.push_back({.source = Source::kEvent,
                           .file = file.string(),
                           .time = asked,
                           .text = text,
                           .cause = match(Source::kEvent, text)});
}

}  // namespace primus::postmortem
