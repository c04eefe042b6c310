// A TensorBoard event file, written natively: tfrecord framing with masked CRC32C around protobuf Event
// messages. The few fields that Primus uses are encoded by hand, without protobuf or TensorFlow (format:
// docs/formats/run-folder.md).
//
// Disk errors never throw: an event that cannot be written is dropped and counted. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/append_file.h"

namespace primus {

struct Scalar {
  std::string_view tag;
  double value = 0.0;  // stored in the file as float
};

class EventFile {
 public:
  // Creates a new file in `folder` with the first write: events.out.tfevents.<seconds>.<host>.<pid>.
  // TensorBoard reads all files of a folder as one run; the new file makes TensorBoard discard the events
  // that earlier processes of this run wrote from iteration `first_step` on. `wall_time`: seconds since 1970.
  EventFile(const Path& folder, std::int64_t first_step, double wall_time, Env& env = Env::posix());

  // Writes all scalars of one step as one event. Returns false if the event was dropped.
  bool write(std::int64_t step, std::span<const Scalar> scalars, double wall_time);

  const Path& path() const { return file_.path(); }
  std::uint64_t dropped() const { return dropped_; }
  const std::string& last_error() const { return file_.last_error(); }

 private:
  AppendFile file_;
  std::string header_;  // first events of the file, until they are written
  std::uint64_t dropped_ = 0;
};

// --- Encoding functions, for tests and for other writers of this format

// Returns the bytes of a record: length, masked CRC of the length, `data`, masked CRC of `data`.
std::string tfrecord(std::string_view data);
// Returns an Event protobuf that contains a Summary of simple values.
std::string scalar_event(std::int64_t step, std::span<const Scalar> scalars, double wall_time);

}  // namespace primus
