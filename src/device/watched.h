// Streams and devices with an observer. They are wrappers: all calls go to a stream or device below, which
// does the work.
//
// The layers above label the work that they enqueue (WatchedWork): a collective, the forward pass of a
// microbatch. On other streams a label does nothing.
#pragma once

#include <string>
#include <utility>

#include "device/device.h"

namespace primus {

// The label of a piece of work.
struct WorkLabel {
  std::string name;      // "all_gather", "F3"
  const char* category;  // "communication", "schedule"
  // Further fields of a JSON object, without its braces; may be empty.
  std::string arguments = {};
};

class WatchedStream : public Stream {
 public:
  // Returns whether work is being recorded now.
  virtual bool watching() const = 0;
  // Work enqueued between begin() and end() is one piece of work. Pieces may be nested.
  virtual void begin(WorkLabel label) = 0;
  virtual void end() = 0;
  // The stream that does the work. Vendor libraries must use this stream.
  virtual Stream& below() = 0;
};

class WatchedDevice : public Device {
 public:
  virtual Device& below() = 0;
};

inline Stream& innermost(Stream& stream) {
  auto* const watched = dynamic_cast<WatchedStream*>(&stream);
  return watched ? watched->below() : stream;
}
inline Device& innermost(Device& device) {
  auto* const watched = dynamic_cast<WatchedDevice*>(&device);
  return watched ? watched->below() : device;
}

// Labels all work enqueued on `stream` while this object lives as one piece. `label` returns a WorkLabel and
// is called only if the stream is being recorded.
class WatchedWork {
 public:
  template <class Label>
  WatchedWork(Stream* stream, Label label) : stream_(dynamic_cast<WatchedStream*>(stream)) {
    if (stream_ && !stream_->watching()) stream_ = nullptr;
    if (stream_) stream_->begin(label());
  }
  ~WatchedWork() {
    if (!stream_) return;
    try {
      stream_->end();
    } catch (...) {
      // The device is lost; the next call reports it, too.
    }
  }
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

 private:
  WatchedStream* stream_;
};

}  // namespace primus
