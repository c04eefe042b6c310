#include "lm/events/event_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/json_reader.h"
#include "lm/events/line_file.h"

namespace primus {
namespace {

constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// Returns whether the line is a step or a phase. A search for rare events need not parse such lines.
bool looks_frequent(std::string_view line) {
  return line.starts_with(R"({"event":"step")") || line.starts_with(R"({"event":"phase")");
}

// Reads the event that begins at `offset`; returns false if there is none.
bool read_event_at(File& file, std::uint64_t offset, std::string& text, EventLine& event) {
  constexpr std::size_t kFirst = 1 << 10;
  // The byte before `offset` must be a newline.
  const std::uint64_t from = offset == 0 ? 0 : offset - 1;
  for (std::size_t bytes = kFirst; bytes <= 2 * kMaxLine; bytes *= 8) {
    text.resize(bytes);
    text.resize(file.read_at(std::as_writable_bytes(std::span(text)), from));
    if (offset > 0 && !text.starts_with('\n')) return false;
    const std::size_t begin = offset == 0 ? 0 : 1, end = text.find('\n', begin);
    if (end != std::string::npos) {
      text = text.substr(begin, end - begin);
      return read_event(text, event);
    }
    if (text.size() < bytes) return false;
  }
  return false;
}

// Returns the offsets of lines with rare events, the newest first; empty if a line contains a wrong offset.
std::optional<std::vector<std::uint64_t>> follow_offsets(File& file) {
  LinesBackward lines(file);
  std::string_view line;
  std::uint64_t offset = 0;
  EventLine event;
  // Number of lines at the end that may be damaged, such as an incomplete line after which the next process
  // wrote a newline.
  constexpr int kTried = 16;
  bool found = false;
  for (int i = 0; i < kTried && !found && lines.previous(line, offset); ++i) found = read_event(line, event);
  if (!found) return std::nullopt;
  std::vector<std::uint64_t> offsets;
  if (event.is_rare()) offsets.push_back(offset);
  std::string text;
  while (event.before) {
    if (*event.before >= offset) return std::nullopt;
    offset = *event.before;
    if (!read_event_at(file, offset, text, event) || !event.is_rare()) return std::nullopt;
    offsets.push_back(offset);
  }
  // The chain must end at the first event of the file, which is the only rare event without a preceding one.
  if (offset != 0) return std::nullopt;
  return offsets;
}

std::vector<std::uint64_t> find_offsets(const Path& path, Env& env) {
  std::vector<std::uint64_t> offsets;
  EventLine event;
  read_lines(
      path,
      [&](std::string_view line, std::uint64_t offset) {
        if (!looks_frequent(line) && read_event(line, event) && event.is_rare()) offsets.push_back(offset);
      },
      env);
  std::reverse(offsets.begin(), offsets.end());
  return offsets;
}

// Pairs of an offset and a step, by ascending offset. An event before the offset is valid only if the event's
// step is not after the step of the pair.
using Limits = std::vector<std::pair<std::uint64_t, std::int64_t>>;

// Calls use(event, offset) for the rare events, from last to first, until use() returns false.
void read_rare_backward(const Path& path, Env& env,
                        const std::function<bool(const EventLine&, std::uint64_t)>& use) {
  const auto file = env.open(path, OpenMode::kRead);
  std::string text;
  EventLine event;
  const auto followed = follow_offsets(*file);
  for (const std::uint64_t offset : followed ? *followed : find_offsets(path, env)) {
    if (read_event_at(*file, offset, text, event) && !use(event, offset)) return;
  }
}

Limits limits_of(const Path& path, Env& env) {
  Limits limits;
  std::int64_t last = kAll;
  read_rare_backward(path, env, [&](const EventLine& event, std::uint64_t offset) {
    if (event.event == "begin" && event.step < last) {
      last = event.step;
      limits.emplace_back(offset, last);
    }
    return true;
  });
  std::reverse(limits.begin(), limits.end());
  return limits;
}

}  // namespace

Path event_file(const Path& run_folder, int rank) {
  return run_folder / kEventsFolder / fmt::format("rank-{:05}.jsonl", rank);
}

EventLog::EventLog(Path file, Env& env) : env_(env), file_(std::move(file), env) {}

EventLog::~EventLog() {
  try {
    flush();
  } catch (const std::exception&) {
    // The last lines of this rank are lost, because of a full disk or another error of the file.
  }
}

void EventLog::write(const RunEvent& event) {
  const EventKind kind = event.kind();
  if (const PhaseFacts* phase = event.as<PhaseFacts>()) {
    if (phase->what == phase_) return;
    phase_ = phase->what;
  }
  Line line{.head = fmt::format(R"({{"event":"{}","step":{},"rank":{},"time":{:.6f})", name_of(kind),
                                event.step, event.rank, event.time),
            .tail = {},
            .rare = kind != EventKind::kStep && kind != EventKind::kPhase};
  if (!event.cause.empty()) {
    line.head += ",\"cause\":" +
                 nlohmann::json(event.cause).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  line.tail = ",\"facts\":" + facts_json(event) + "}\n";
  const std::size_t bytes = line.head.size() + line.tail.size();
  // Rare events may fill the buffer up to twice kMaxPending bytes.
  const std::size_t room = (line.rare ? 2 : 1) * kMaxPending;
  if (waiting_bytes_ + bytes > room && failure_.empty()) {
    // Lines arrive faster than they are written, but no write has failed.
    try {
      flush();
    } catch (const Error&) {
      ++dropped_;
      throw;
    }
  }
  if (waiting_bytes_ + bytes > room) {
    ++dropped_;
    if (steady_seconds() - flushed_ >= kRetryPause) return flush();
    throw Error(ErrorKind::kIo, failure_);
  }
  // While writes fail, steps cause a retry only once a second, because many lines are waiting.
  const bool now = line.rare || steady_seconds() - flushed_ >= (failure_.empty() ? kStepPause : kRetryPause);
  waiting_bytes_ += bytes;
  waiting_.push_back(std::move(line));
  if (now) return flush();
  if (!failure_.empty()) throw Error(ErrorKind::kIo, failure_);
}

// Finds the end of the lines of earlier processes.
void EventLog::open() {
  torn_ = false;
  newest_.reset();
  end_ = 0;
  const auto status = env_.status(file_.path());
  if (status && status->type != FileStatus::Type::kFile) {
    throw invalid(fmt::format("'{}' is not a file", file_.path().string()), "remove it, or move it away");
  }
  if (status && status->size > 0) {
    const auto file = env_.open(file_.path(), OpenMode::kRead);
    end_ = file->size();
    char last = '\n';
    file->read_at(std::as_writable_bytes(std::span(&last, 1)), end_ - 1);
    torn_ = last != '\n';
    const auto followed = follow_offsets(*file);
    const auto offsets = followed ? *followed : find_offsets(file_.path(), env_);
    if (!offsets.empty()) newest_ = offsets.front();
  }
  opened_ = true;
}

void EventLog::flush() {
  try {
    append();
    failure_.clear();
  } catch (const Error& error) {
    failure_ = error.what();
    flushed_ = steady_seconds();
    throw;
  }
}

void EventLog::append() {
  if (waiting_.empty()) return;
  if (!opened_) open();
  // A process that was killed may have left an incomplete last line. The newline ends this line, which
  // readers skip because it is damaged.
  std::string text = torn_ ? "\n" : "";
  std::optional<std::uint64_t> newest = newest_;
  for (const Line& line : waiting_) {
    const std::uint64_t offset = end_ + text.size();
    text += line.head;
    if (newest) text += fmt::format(",\"before\":{}", *newest);
    text += line.tail;
    if (line.rare) newest = offset;
  }
  if (!file_.append(as_bytes(text))) {
    opened_ = false;  // the file may be replaced before the next attempt
    throw Error(ErrorKind::kIo, file_.last_error());
  }
  waiting_.clear();
  waiting_bytes_ = 0;
  torn_ = false;
  newest_ = newest;
  end_ = file_.size();
  flushed_ = steady_seconds();
}

void EventLog::sync() {
  flush();
  if (!file_.sync()) throw Error(ErrorKind::kIo, file_.last_error());
}

bool read_event(std::string_view line, EventLine& out) {
  bool has_event = false, has_step = false;
  out.cause.clear();
  out.before.reset();
  out.facts = {};
  out.rank = 0;
  out.time = 0;
  try {
    JsonReader json(line, "event");
    json.object([&](std::string_view key) {
      const JsonReader::Kind kind = json.peek();
      const bool number = kind == JsonReader::Kind::kNumber, text = kind == JsonReader::Kind::kString;
      if (key == "event" && text) {
        json.read_string(out.event);
        has_event = true;
      } else if (key == "step" && number) {
        out.step = json.read_size();
        has_step = true;
      } else if (key == "rank" && number) {
        out.rank =
            static_cast<int>(std::min<std::int64_t>(json.read_size(), std::numeric_limits<int>::max()));
      } else if (key == "time" && number) {
        out.time = json.read_double();
      } else if (key == "cause" && text) {
        json.read_string(out.cause);
      } else if (key == "before" && number) {
        out.before = static_cast<std::uint64_t>(json.read_size());
      } else if (key == "facts" && kind == JsonReader::Kind::kObject) {
        out.facts = json.skip();
      } else {
        json.skip();
      }
    });
    json.finish();
  } catch (const Error&) {
    return false;
  }
  return has_event && has_step && !out.facts.empty();
}

std::int64_t read_events(const Path& path, const std::function<void(const EventLine&)>& use, Env& env) {
  const Limits limits = limits_of(path, env);
  auto limit = limits.begin();
  std::int64_t damaged = 0;
  EventLine event;
  read_lines(
      path,
      [&](std::string_view line, std::uint64_t offset) {
        while (limit != limits.end() && limit->first <= offset) ++limit;
        if (!read_event(line, event)) {
          ++damaged;
        } else if (limit == limits.end() || event.step <= limit->second) {
          use(event);
        }
      },
      env);
  return damaged;
}

void read_rare_events(const Path& path, const std::function<bool(const EventLine&)>& use, Env& env) {
  std::int64_t last = kAll;
  read_rare_backward(path, env, [&](const EventLine& event, std::uint64_t) {
    if (event.step <= last && !use(event)) return false;
    if (event.event == "begin") last = std::min(last, event.step);
    return true;
  });
}

bool read_last_step(const Path& path, std::string& text, EventLine& step, Env& env) {
  const auto file = env.open(path, OpenMode::kRead);
  LinesBackward lines(*file);
  std::string_view line;
  std::uint64_t offset = 0;
  std::int64_t last = kAll;
  while (lines.previous(line, offset)) {
    if (!read_event(line, step)) continue;
    if (step.event == "begin") last = std::min(last, step.step);
    if (last == 0) return false;
    if (step.event != "step" || step.step > last) continue;
    text = line;
    return read_event(text, step);
  }
  return false;
}

}  // namespace primus
