#include "safe/supervise/supervision_news.h"

#include <fmt/format.h>

#include "lm/events/supervision_alerts.h"

namespace primus::supervise {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::optional<RunEvent> fault_news(const JobEnd& end) {
  using enum EndKind;
  std::string_view cause;
  switch (end.kind) {
    case kMemoryKill:
    case kKilled:
    case kCrashed:
    case kLostRank:
      cause = kRankLostAlert;
      break;
    case kHang:
    case kEarlyExit:
      cause = name_of(end.kind);
      break;
    default:
      return std::nullopt;
  }
  return RunEvent{
      .step = end.step,
      .rank = end.rank.value_or(0),
      .time = unix_seconds(),
      .cause = std::string(cause),
      .facts = FaultFacts{.text = fmt::format("{}: {}", name_of(end.kind), first_line(end.text))}};
}

RunEvent lost_node_news(std::int64_t step, const std::string& text) {
  return {.step = step,
          .time = unix_seconds(),
          .cause = std::string(kNodeLostAlert),
          .facts = FaultFacts{.text = first_line(text)}};
}

RunEvent restart_news(std::int64_t first_step, double seconds, std::int64_t restarts) {
  return {.step = first_step,
          .time = unix_seconds(),
          .cause = std::string(kRestartedAlert),
          .facts = RunWarning{.iteration = first_step,
                              .detector = std::string(kRestartedAlert),
                              .text = fmt::format("the run continues with step {}, {:.1f} s after the fault "
                                                  "(restart {})",
                                                  first_step, seconds, restarts),
                              .advice = "'primus postmortem' names the faults of the run"}};
}

RunEvent give_up_news(std::int64_t step, const Action& action) {
  return {.step = step,
          .time = unix_seconds(),
          .cause = fmt::format("{}: {}", kGaveUpAlert, action.reason),
          .facts = RunEnding{.state = RunEnding::State::kFailed,
                             .reason = action.reason,
                             .text = fmt::format("{}; {}", first_line(action.text), action.hint),
                             .iteration = step}};
}

RunEvent ending_news(std::int64_t step, const RunEnding& ending) {
  return {.step = step, .time = unix_seconds(), .cause = ending.reason, .facts = ending};
}

}  // namespace primus::supervise
