// Streams and devices that can record work. They are wrappers, which pass all calls to another stream or
// device.
//
// Callers label the work that they enqueue (WatchedWork), such as a collective or the forward pass of a
// microbatch. On streams without such a wrapper, labels have no effect.
#pragma once

#include <string>
#include <utility>

#include "device/device.h"

namespace primus {

// The label of some work.
struct WorkLabel {
  std::string name;      // "all_gather", "F3"
  const char* category;  // "communication", "schedule"
  // Further fields of a JSON object, without the braces of the object; may be empty.
  std::string arguments = {};
};

class WatchedStream : public Stream {
 public:
  // Returns whether work is being recorded now.
  virtual bool watching() const = 0;
  // begin() and end() enclose the work that has this label. Such regions may be nested.
  virtual void begin(WorkLabel label) = 0;
  virtual void end() = 0;
  // Returns the stream that does the work. Vendor libraries must use this stream.
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

// Gives one label to all work that is enqueued on `stream` during the lifetime of this object. `label`
// returns a WorkLabel. It is called only while the stream's work is recorded.
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
      // Ignores that the device is lost, because the next call reports the lost device, too.
    }
  }
  WatchedWork(const WatchedWork&) = delete;
  WatchedWork& operator=(const WatchedWork&) = delete;

 private:
  WatchedStream* stream_;
};

}  // namespace primus
