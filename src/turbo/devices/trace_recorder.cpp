#include "turbo/devices/trace_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text/json_text.h"

namespace primus::turbo {
namespace {

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text), -1); }

}  // namespace

double TraceRecorder::now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int TraceRecorder::add_track(const std::string& name) {
  const std::lock_guard lock(mutex_);
  tracks_.push_back(name);
  return static_cast<int>(tracks_.size()) - 1;
}

void TraceRecorder::add(Span span) {
  const std::lock_guard lock(mutex_);
  ++count_;
  spans_.push_back(std::move(span));
}

TraceRecorder::Span* TraceRecorder::open(WorkLabel label, int track) {
  const std::lock_guard lock(mutex_);
  ++count_;
  return &spans_.emplace_back(Span{.name = std::move(label.name),
                                   .category = label.category,
                                   .track = track,
                                   .arguments = std::move(label.arguments)});
}

void TraceRecorder::begin(Span* span) {
  const double time = now();
  const std::lock_guard lock(mutex_);
  span->begin = time;
}

void TraceRecorder::end(Span* span) {
  const double time = now();
  const std::lock_guard lock(mutex_);
  span->end = time;
}

void TraceRecorder::set_times(Span* span, double begin, double end) {
  const std::lock_guard lock(mutex_);
  span->begin = begin;
  span->end = std::max(begin, end);
}

void TraceRecorder::set_collector(std::function<void()> collect) {
  const std::lock_guard lock(collector_mutex_);
  collector_ = std::move(collect);
}

void TraceRecorder::collect() const {
  const std::lock_guard lock(collector_mutex_);
  if (collector_) collector_();
}

std::vector<TraceRecorder::Span> TraceRecorder::spans() const {
  collect();
  const std::lock_guard lock(mutex_);
  std::vector<Span> done;
  std::ranges::copy_if(spans_, std::back_inserter(done), [](const Span& span) { return span.end != 0; });
  return done;
}

std::string TraceRecorder::chrome_json(const Process& process) const {
  collect();
  const std::lock_guard lock(mutex_);
  std::string text = fmt::format("{{\"displayTimeUnit\": \"ms\", \"primus\": {{{}}}, \"traceEvents\": [\n",
                                 process.arguments);
  const auto metadata = [&](const char* name, int track, const std::string& value) {
    text += fmt::format(R"({{"ph": "M", "name": "{}", "pid": {}, "tid": {}, "args": {{{}}}}})", name,
                        process.rank, track, value);
  };
  metadata("process_name", 0, "\"name\": " + quoted(process.name));
  text += ",\n";
  metadata("process_sort_index", 0, fmt::format("\"sort_index\": {}", process.rank));
  std::vector<bool> used(tracks_.size());
  for (const Span& span : spans_) used[static_cast<std::size_t>(span.track)] = true;
  for (std::size_t track = 0; track < tracks_.size(); ++track) {
    if (!used[track]) continue;
    text += ",\n";
    metadata("thread_name", static_cast<int>(track), "\"name\": " + quoted(tracks_[track]));
    text += ",\n";
    metadata("thread_sort_index", static_cast<int>(track), fmt::format("\"sort_index\": {}", track));
  }
  double origin = process.origin;
  if (origin == 0) {
    for (const Span& span : spans_) {
      if (span.end != 0) origin = origin == 0 ? span.begin : std::min(origin, span.begin);
    }
  }
  std::map<std::string, std::string> names;
  // Times are in microseconds since the origin. Seconds since boot would lose nanoseconds when stored as a
  // double.
  for (const Span& span : spans_) {
    if (span.end == 0) continue;
    const auto [name, added] = names.try_emplace(span.name);
    if (added) name->second = quoted(span.name);
    text += fmt::format(
        ",\n{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, "
        "\"dur\": {:.3f}{}}}",
        name->second, span.category, process.rank, span.track, (span.begin - origin) * 1e6,
        (span.end - span.begin) * 1e6, span.arguments.empty() ? "" : ", \"args\": {" + span.arguments + "}");
  }
  return text + "\n]}\n";
}

}  // namespace primus::turbo
