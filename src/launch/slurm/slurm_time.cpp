#include "launch/slurm/slurm_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/text/counted.h"
#include "launch/options/place_options.h"

namespace primus::launch {
namespace {

constexpr std::int64_t kUsualWarning = 120;  // seconds
constexpr std::int64_t kEarliness = 60;      // seconds by which Slurm may send a signal early (man sbatch)

std::int64_t number(std::string_view text, std::int64_t missing) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : missing;
}

// A value of --signal: "[R][B][:]SIGNAL[@SECONDS]".
struct Warning {
  bool of_script = false;  // B: Slurm signals the batch script; otherwise the processes that srun starts
  std::string signal;      // without "SIG"
  std::int64_t seconds = 60;
};

Warning warning_of(std::string_view text) {
  Warning warning;
  const std::size_t colon = text.find(':'), at = text.find('@');
  if (colon != std::string_view::npos) {
    warning.of_script = text.substr(0, colon).find('B') != std::string_view::npos;
    text.remove_prefix(colon + 1);
  }
  if (at != std::string_view::npos) {
    const std::size_t end = text.find('@');
    warning.seconds = number(text.substr(end + 1), warning.seconds);
    text = text.substr(0, end);
  }
  if (text.starts_with("SIG")) text.remove_prefix(3);
  warning.signal = text == "10" ? "USR1" : std::string(text);
  return warning;
}

std::optional<std::int64_t> limit_of(const std::vector<GivenOption>& options) {
  const GivenOption* const time = find_given(options, "time");
  return time && time->value ? seconds_of(*time->value) : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> seconds_of(std::string_view time) {
  std::int64_t days = 0;
  const std::size_t dash = time.find('-');
  if (dash != std::string_view::npos) {
    days = number(time.substr(0, dash), -1);
    time.remove_prefix(dash + 1);
  }
  std::vector<std::int64_t> parts;
  for (;;) {
    const std::size_t colon = time.find(':');
    parts.push_back(number(time.substr(0, colon), -1));
    if (colon == std::string_view::npos) break;
    time.remove_prefix(colon + 1);
  }
  constexpr std::int64_t kMax = 1 << 30;
  if (days < 0 || days > kMax || parts.size() > 3 || std::ranges::min(parts) < 0 ||
      std::ranges::max(parts) > kMax)
    return std::nullopt;
  // "MINUTES", "MINUTES:SECONDS" and "HOURS:MINUTES:SECONDS"; after days, the first part is hours.
  const bool from_hours = dash != std::string_view::npos || parts.size() == 3;
  if (!from_hours) parts.insert(parts.begin(), 0);
  parts.resize(3, 0);
  return ((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2];
}

std::string usual_warning(const std::vector<GivenOption>& options) {
  const std::optional<std::int64_t> limit = limit_of(options);
  // 0 is no limit.
  const std::int64_t seconds =
      limit && *limit > 0 ? std::clamp<std::int64_t>(*limit / 2, 1, kUsualWarning) : kUsualWarning;
  return fmt::format("B:USR1@{}", seconds);
}

std::vector<std::string> check_warning(const std::vector<GivenOption>& options) {
  std::vector<std::string> notes;
  const GivenOption* const signal = find_given(options, "signal");
  if (!signal || !signal->value) return notes;
  const Warning warning = warning_of(*signal->value);
  const bool requeued = find_given(options, "requeue") != nullptr;
  const std::string option = written(*signal);
  if (warning.of_script && warning.signal != "USR1") {
    notes.push_back(
        fmt::format("{}: the batch script does not pass {} on to the ranks, so they do not save before the "
                    "time limit; B:USR1@SECONDS makes them save",
                    option, warning.signal));
  }
  if (!warning.of_script && requeued) {
    notes.push_back(
        fmt::format("{} does not reach the batch script, so --requeue does not queue the job again at the "
                    "time limit; B:USR1@SECONDS makes the ranks save, and the job is queued again",
                    option));
  }
  const std::optional<std::int64_t> limit = limit_of(options);
  if (limit && *limit > 0 && *limit <= warning.seconds) {
    throw invalid(
        fmt::format("{} is not longer than the warning before it ({}, {}): the ranks would stop as "
                    "soon as they start{}",
                    written(*find_given(options, "time")), option, counted(warning.seconds, "second"),
                    requeued ? ", and --requeue would start them again without end" : ""),
        "set a longer --time, or a shorter warning: --signal=B:USR1@SECONDS");
  }
  if (limit && *limit > 0 && *limit <= warning.seconds + kEarliness) {
    notes.push_back(fmt::format(
        "Slurm may send the warning {} up to {} seconds early: with {}, the ranks may stop as soon as they "
        "start{}; set a longer --time",
        option, kEarliness, written(*find_given(options, "time")),
        requeued ? ", and --requeue would start them again without end" : ""));
  }
  constexpr std::string_view kSaving[] = {"USR1", "USR2", "TERM", "INT", "HUP", "QUIT",
                                          "10",   "12",   "15",   "2",   "1",   "3"};
  if (!warning.of_script && std::ranges::find(kSaving, warning.signal) == std::end(kSaving)) {
    notes.push_back(fmt::format("{}: the ranks do not save on the signal {}; USR1@SECONDS makes them save",
                                option, warning.signal));
  }
  return notes;
}

}  // namespace primus::launch
