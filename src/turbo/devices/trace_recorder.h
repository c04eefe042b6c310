// What ran when, on the streams of one rank: spans of time, and a Chrome trace (JSON) of them, which
// ui.perfetto.dev and chrome://tracing show.
//
// Thread-safe, but for what it says otherwise.
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
  static constexpr int kHost = 0;  // the track of spans that no stream ran
  // Some hundred megabytes, in memory and as a file.
  static constexpr std::size_t kMostSpans = 2'000'000;

  struct Span {
    std::string name;
    const char* category;        // "kernel", "copy", "communication", "schedule", "host"
    int track = kHost;           // or the stream's
    double begin = 0, end = 0;   // seconds of the steady clock; end 0: it is not over
    std::string arguments = {};  // as WorkLabel's
  };

  explicit TraceRecorder(std::size_t most_spans = kMostSpans) : most_(most_spans) {}

  // What is enqueued between the two is recorded, so wait for the streams before each of them.
  void start() { recording_ = true; }
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }
  // There are as many spans as a trace may have. What begins from here on is to be left out.
  bool full() const { return count_ >= most_; }
  bool watching() const { return recording() && !full(); }

  int add_track(const std::string& name);
  void add(Span span);
  // A span whose times come later. It stays where it is as long as the recorder lives.
  Span* open(WorkLabel label, int track);
  void begin(Span* span);  // now
  void end(Span* span);
  void set_times(Span* span, double begin, double end);
  static double now();

  // Called before spans are read: for devices that know later when their work ran.
  void set_collector(std::function<void()> collect);

  // Those that are over, in the order in which their work was enqueued.
  std::vector<Span> spans() const;

  // Who wrote a trace, so that several can be shown together.
  struct Process {
    int rank = 0;
    std::string name = {};  // as the viewer names it
    double origin = 0;      // time 0 of the trace, in seconds of the steady clock; 0: the first span's begin
    std::string arguments = {};  // fields of the object "primus" of the file, as WorkLabel's
  };
  std::string chrome_json(const Process& process) const;

 private:
  void collect() const;

  const std::size_t most_;
  std::atomic<std::size_t> count_ = 0;  // of spans_
  std::atomic<bool> recording_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_{"host"};
  std::deque<Span> spans_;
  mutable std::mutex collector_mutex_;
  std::function<void()> collector_;
};

}  // namespace primus::turbo
