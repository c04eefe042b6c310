// A device that writes down what another one does: every kernel and copy, with its stream, begin and end. The
// trace is a Chrome trace (JSON), which chrome://tracing and ui.perfetto.dev show.
//
// On the CPU begin and end are taken on the stream itself, so streams overlap in the trace as they do in
// truth. On other devices the host waits for each call while it is recorded: kernels have their own times,
// and streams do not overlap.
//
// For a rank that is alone: the vendors' collectives do not know this device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"

namespace primus::turbo {

// Thread-safe.
class TraceRecorder {
 public:
  static constexpr int kHost = 0;  // the track of spans that no stream ran

  struct Span {
    std::string name;
    const char* category;       // "kernel", "copy", "host"
    int track = kHost;          // or the stream's
    double begin = 0, end = 0;  // seconds of the steady clock
  };

  void start() { recording_ = true; }
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }

  int add_track(const std::string& name);
  void add(Span span);
  static double now();

  std::vector<Span> spans() const;
  // `process`: what ran, as the viewer names it.
  std::string chrome_json(const std::string& process) const;

 private:
  std::atomic<bool> recording_ = false;
  mutable std::mutex mutex_;
  std::vector<std::string> tracks_{"host"};
  std::vector<Span> spans_;
};

// Passes everything on to `device`, and records while `recorder` does.
std::unique_ptr<Device> make_tracing_device(std::unique_ptr<Device> device,
                                            std::shared_ptr<TraceRecorder> recorder);

}  // namespace primus::turbo
