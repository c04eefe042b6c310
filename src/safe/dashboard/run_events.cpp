#include "safe/dashboard/run_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "lm/events/event_log.h"
#include "lm/events/line_file.h"
#include "lm/events/supervision.h"

namespace primus::dashboard {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kUsualLine = 4096, kGrowth = 16;  // bytes of a line, and factor for longer ones
constexpr std::size_t kMaxText = 400;
constexpr int kTries = 16;  // lines to read from the end until one is an event

// The facts that describe an event, in the order in which they are shown.
constexpr const char* kShown[] = {"state",  "data_set", "lm_loss",        "text",     "hint",
                                  "action", "delay",    "operator",       "mesh",     "host",
                                  "device", "version",  "exit_code",      "restarts", "first_step",
                                  "ranks",  "seconds",  "first_iteration"};

std::string text_of(const EventLine& event) {
  std::string text;
  const Json facts = Json::parse(event.facts, nullptr, false);
  if (!facts.is_object()) return text;
  for (const char* const key : kShown) {
    const auto found = facts.find(key);
    if (found == facts.end() || found->is_structured() || found->is_null()) continue;
    const std::string value = found->is_string()         ? found->get<std::string>()
                              : found->is_number_float() ? fmt::format("{:.6g}", found->get<double>())
                                                         : found->dump();
    if (value.empty()) continue;
    const std::string_view name = key;
    const bool plain =
        name == "text" || name == "state" || name == "data_set" || name == "action" || name == "hint";
    text += (text.empty() ? "" : ", ") + (plain ? value : fmt::format("{} {}", name, value));
    if (text.size() > kMaxText) break;
  }
  // The limit must not cut a character in two.
  std::size_t end = std::min(text.size(), kMaxText);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return end < text.size() ? text.substr(0, end) + "..." : text;
}

Json event_json(const EventLine& event, bool invalid) {
  return {{"time", event.time},   {"step", event.step},     {"kind", event.event},
          {"cause", event.cause}, {"text", text_of(event)}, {"void", invalid}};
}

// Reads the line at `offset`. Returns false if it is not an event.
bool read_event_at(File& file, std::uint64_t offset, std::string& text, EventLine& event) {
  std::size_t end = std::string::npos;
  for (std::uint64_t size = kUsualLine; end == std::string::npos && size <= kMaxLine; size *= kGrowth) {
    text = read_range(file, offset, offset + size);
    end = text.find('\n');
    if (text.size() < size) break;
  }
  return end != std::string::npos && read_event(std::string_view(text).substr(0, end), event);
}

// Follows the offsets in the events. read_rare_events() leaves out void events, but a fault before a restart
// is such an event.
void add_events_of_rank_0(const Path& run, std::size_t count, std::vector<Json>& events) {
  const Path path = event_file(run, 0);
  if (!Env::posix().status(path)) return;
  const auto file = Env::posix().open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  EventLine event;
  // The last line may be damaged.
  bool found = false;
  for (int tries = 0; !found && tries < kTries && lines.previous(line, offset); ++tries)
    found = read_event(line, event);
  std::int64_t repeated_from = std::numeric_limits<std::int64_t>::max();
  std::string text;
  while (found && count > 0) {
    if (event.is_rare() && event.event != "evaluation_start" && event.event != "sample") {
      events.push_back(event_json(event, event.step > repeated_from));
      --count;
    }
    if (event.event == "begin") repeated_from = std::min(repeated_from, event.step);
    if (!event.before || *event.before >= offset) return;
    offset = *event.before;
    found = read_event_at(*file, offset, text, event);
  }
}

void add_events_of_supervisor(const Path& run, std::size_t count, std::vector<Json>& events) {
  const Path path = supervision_file(run);
  if (!Env::posix().status(path)) return;
  const auto file = Env::posix().open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  EventLine event;
  const std::size_t most = events.size() + count;
  while (events.size() < most && lines.previous(line, offset)) {
    if (!read_event(line, event) || event.event == "supervise_times") continue;
    events.push_back(event_json(event, false));
  }
}

}  // namespace

Json events_json(const Path& run, std::size_t count) {
  std::vector<Json> events;
  for (const auto& add : {add_events_of_rank_0, add_events_of_supervisor}) {
    try {
      add(run, count, events);
    } catch (const Error&) {
    }
  }
  std::ranges::stable_sort(events, std::greater<>(),
                           [](const Json& event) { return event["time"].get<double>(); });
  return events;
}

std::string newest_event(const Path& run) {
  std::string text;
  try {
    const Path file = event_file(run, 0);
    if (!Env::posix().status(file)) return text;
    read_rare_events(file, [&](const EventLine& event) {
      text = fmt::format("{}{}{}{}", event.event, event.cause.empty() ? "" : " ", event.cause,
                         event.step > 0 ? fmt::format(", step {}", event.step) : "");
      return false;
    });
  } catch (const Error&) {
  }
  return text;
}

}  // namespace primus::dashboard
