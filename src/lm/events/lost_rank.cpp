#include "lm/events/lost_rank.h"

#include <optional>

#include "lm/events/event_log.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_folder.h"

namespace primus {

void record_lost_rank(const Path& run, int rank, const std::string& text) noexcept {
  try {
    const std::optional<RunEnding> before = read_ending(run);
    if (!before || before->state != RunEnding::State::kRunning || RunLock::held(run)) return;
    const RunEnding ending{.state = RunEnding::State::kFailed,
                           .reason = "a rank was lost",
                           .text = text,
                           .iteration = before->iteration};
    write_ending(run, ending);
    EventLog log(event_file(run, 0));
    RunEvent event{.step = ending.iteration, .rank = rank, .time = unix_seconds(), .cause = ending.reason};
    event.facts = FaultFacts{.text = text.substr(0, text.find('\n'))};
    log.write(event);
    event.rank = 0;
    event.facts = ending;
    log.write(event);
  } catch (const std::exception&) {
    // The folder is gone or full.
  }
}

}  // namespace primus
