// Streams and devices that somebody watches: they pass everything on to another one, which does the work.
//
// The layers above name what they enqueue (WatchedWork): a collective, the forward pass of a microbatch. On a
// stream that nobody watches this does nothing.
#pragma once

#include <string>
#include <utility>

#include "device/device.h"

namespace primus {

// What a piece of work is called.
struct WorkLabel {
  std::string name;      // "all_gather", "F3"
  const char* category;  // "communication", "schedule"
  // More about it: the fields of a JSON object without its braces, or nothing.
  std::string arguments = {};
};

class WatchedStream : public Stream {
 public:
  // Whether anything is written down now.
  virtual bool watching() const = 0;
  // What is enqueued between the two is one piece of work. Pieces nest.
  virtual void begin(WorkLabel label) = 0;
  virtual void end() = 0;
  // The stream that does the work. Vendors' libraries know only this one.
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

// What is enqueued on `stream` while this lives is one piece of work. `label` is called only when somebody
// watches; it returns a WorkLabel.
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
      // The device is lost, which the next call says too.
    }
  }
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

 private:
  WatchedStream* stream_;
};

}  // namespace primus
