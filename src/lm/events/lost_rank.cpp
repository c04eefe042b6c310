#include "lm/events/lost_rank.h"

#include <algorithm>
#include <optional>

#include "lm/events/event_log.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"

namespace primus {
namespace {

// Returns the last step in the events of `file`; `began`, the step at which the process started, if there is
// none.
std::int64_t last_step(const Path& file, std::int64_t began) {
  std::string text;
  EventLine step;
  if (!Env::posix().status(file) || !read_last_step(file, text, step)) return began;
  return std::max(step.step, began);
}

}  // namespace

void record_lost_rank(const Path& run, int rank, const std::string& text) noexcept {
  try {
    const std::optional<RunEnding> before = read_ending(run);
    if (!before || before->state != RunEnding::State::kRunning || RunLock::held(run)) return;
    const RunEnding ending{.state = RunEnding::State::kFailed,
                           .reason = std::string(kLostRank),
                           .text = text,
                           .iteration = before->iteration};
    write_ending(run, ending);
    const Path file = event_file(run, 0);
    RunEvent event{.step = last_step(file, ending.iteration),
                   .rank = rank,
                   .time = unix_seconds(),
                   .cause = ending.reason};
    EventLog log(file);
    event.facts = FaultFacts{.text = text.substr(0, text.find('\n'))};
    log.write(event);
    event.rank = 0;
    event.facts = ending;
    log.write(event);
  } catch (const std::exception&) {
    // The folder was removed, or the disk is full.
  }
}

}  // namespace primus
