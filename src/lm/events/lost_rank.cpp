#include "lm/events/lost_rank.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "lm/events/event_log.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

constexpr std::string_view kKilledBySignal = "was killed by signal";

// Returns the last step in the events of `file`; `began`, the step at which the process started, if there is
// none.
std::int64_t last_step(const Path& file, std::int64_t began) {
  std::string text;
  EventLine step;
  if (!Env::posix().status(file) || !read_last_step(file, text, step)) return began;
  return std::max(step.step, began);
}

// Returns whether rank 0 has recorded after `since` that a rank was lost, but not how.
bool lacks_signal(const Path& run, const RunEnding& ending, double since) {
  if (ending.state != RunEnding::State::kFailed || ending.reason != kLostRank ||
      ending.text.find(kKilledBySignal) != ending.text.npos)
    return false;
  bool recent = false;
  read_rare_events(event_file(run, 0), [&](const EventLine& event) {
    recent = event.event == "end" && event.time >= since;
    return false;
  });
  return recent;
}

// Returns whether no start of the run has begun to train, and no end was recorded after `since`.
bool lacks_early_end(const Path& run, double since) {
  if (!read_ending(run)) return true;
  bool lacks = true;
  read_rare_events(event_file(run, 0), [&](const EventLine& event) {
    lacks = event.event != "begin" && !(event.event == "end" && event.time >= since);
    return lacks;
  });
  return lacks;
}

void write_end(const Path& run, int rank, const RunEnding& ending) {
  write_ending(run, ending);
  const Path file = event_file(run, 0);
  RunEvent event{.step = last_step(file, ending.iteration),
                 .rank = rank,
                 .time = unix_seconds(),
                 .cause = ending.reason};
  EventLog log(file);
  event.facts = FaultFacts{.text = ending.text.substr(0, ending.text.find('\n'))};
  log.write(event);
  event.rank = 0;
  event.facts = ending;
  log.write(event);
}

}  // namespace

void record_lost_rank(const Path& run, int rank, const std::string& text,
                      std::optional<double> since) noexcept {
  try {
    const std::optional<RunEnding> before = read_ending(run);
    if (!before || RunLock::held(run)) return;
    const bool adds = since && text.find(kKilledBySignal) != text.npos && lacks_signal(run, *before, *since);
    if (before->state != RunEnding::State::kRunning && !adds) return;
    write_end(run, rank,
              {.state = RunEnding::State::kFailed,
               .reason = std::string(kLostRank),
               .text = text,
               .iteration = before->iteration});
  } catch (const std::exception&) {
    // The folder was removed, or the disk is full.
  }
}

void record_early_end(const Path& run, int rank, std::string_view reason, const std::string& text,
                      double since) noexcept {
  try {
    if (!Env::posix().status(run / "logs") || RunLock::held(run) || !lacks_early_end(run, since)) return;
    make_folders(event_file(run, 0).parent_path());
    write_end(
        run, rank,
        {.state = RunEnding::State::kFailed, .reason = std::string(reason), .text = text, .iteration = 0});
  } catch (const std::exception&) {
    // The folder was removed, or the disk is full.
  }
}

}  // namespace primus
