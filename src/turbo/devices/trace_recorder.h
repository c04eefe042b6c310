// Records the times of all work on the streams of one rank, and writes these spans as a Chrome trace (JSON)
// for ui.perfetto.dev and chrome://tracing.
//
// Thread-safe, except where noted.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/watched.h"

namespace primus::turbo {

class TraceRecorder {
 public:
  static constexpr int kHost = 0;  // the track of spans that did not run on a stream
  // A trace with this number of spans needs a few hundred megabytes of memory. The trace file has about the
  // same size.
  static constexpr std::size_t kMaxSpans = 2'000'000;

  struct Span {
    std::string name;
    const char* category;        // "kernel", "copy", "communication", "schedule", "host"
    int track = kHost;           // kHost, or the track of a stream
    double begin = 0, end = 0;   // seconds of the steady clock; end 0: not finished
    std::string arguments = {};  // as in WorkLabel
  };

  explicit TraceRecorder(std::size_t max_spans = kMaxSpans) : max_(max_spans) {}

  // Work enqueued between start() and stop() is recorded. Wait for the streams before calling either
  // function.
  void start() { recording_ = true; }
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }
  // Returns whether the trace has its max. number of spans. If so, callers must not record further spans.
  bool full() const { return count_ >= max_; }
  bool watching() const { return recording() && !full(); }

  int add_track(const std::string& name);
  void add(Span span);
  // Adds a span; begin() and end() set its times later. The returned address is valid for the lifetime of the
  // recorder.
  Span* open(WorkLabel label, int track);
  void begin(Span* span);  // sets the begin to the current time
  void end(Span* span);
  void set_times(Span* span, double begin, double end);
  static double now();

  // Sets a function that is called before spans are read. Devices that report the times of their work later
  // use this function.
  void set_collector(std::function<void()> collect);

  // Returns the finished spans, ordered by the time when their work was enqueued.
  std::vector<Span> spans() const;

  // Identifies the process that wrote a trace, so that several traces can be shown together.
  struct Process {
    int rank = 0;
    std::string name = {};  // the name that the viewer shows
    double origin = 0;      // time 0 of the trace, in seconds of the steady clock; 0: begin of the first span
    std::string arguments = {};  // fields of the object "primus" in the file, as in WorkLabel
  };
  std::string chrome_json(const Process& process) const;

 private:
  void collect() const;

  const std::size_t max_;
  std::atomic<std::size_t> count_ = 0;  // number of spans in spans_
  std::atomic<bool> recording_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_{"host"};
  std::deque<Span> spans_;
  mutable std::mutex collector_mutex_;
  std::function<void()> collector_;
};

}  // namespace primus::turbo
