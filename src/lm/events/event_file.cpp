#include "lm/events/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/files/crc32c.h"
#include "lm/events/run_event.h"

namespace primus {
namespace {

static_assert(std::endian::native == std::endian::little, "fixed-width fields are written in memory order");

// Protobuf field numbers from tensorflow/core/util/event.proto and framework/summary.proto.
enum EventField { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField { kValue = 1 };
enum ValueField { kTag = 1, kSimpleValue = 2 };
enum SessionLogField { kStatus = 1 };
constexpr std::uint64_t kStatusStart = 1;

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

template <class T>
void put_fixed(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, int field, WireType type) {
  put_varint(out, static_cast<std::uint64_t>(field) << 3 | type);
}

void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, kLengthDelimited);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_head(std::int64_t step, double wall_time) {
  std::string event;
  put_key(event, kWallTime, kFixed64);
  put_fixed(event, wall_time);
  put_key(event, kStep, kVarint);
  put_varint(event, static_cast<std::uint64_t>(step));
  return event;
}

// A CRC over data that contains CRCs is weak. The format therefore rotates stored CRCs and adds a constant.
std::uint32_t masked_crc(std::string_view data) {
  return std::rotr(crc32c(0, as_bytes(data)), 15) + 0xa282ead8U;
}

std::string first_events(std::int64_t first_step, double wall_time) {
  std::string version = event_head(0, wall_time);
  put_bytes(version, kFileVersion, "brain.Event:2");
  // A SessionLog event START at a step invalidates what earlier files contain for this step and later ones.
  std::string log;
  put_key(log, kStatus, kVarint);
  put_varint(log, kStatusStart);
  std::string start = event_head(first_step, wall_time);
  put_bytes(start, kSessionLog, log);
  return tfrecord(version) + tfrecord(start);
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string length;
  put_fixed(length, static_cast<std::uint64_t>(data.size()));
  std::string record = length;
  put_fixed(record, masked_crc(length));
  record += data;
  put_fixed(record, masked_crc(data));
  return record;
}

std::string scalar_event(std::int64_t step, std::span<const Scalar> scalars, double wall_time) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, kTag, scalar.tag);
    put_key(value, kSimpleValue, kFixed32);
    put_fixed(value, static_cast<float>(scalar.value));
    put_bytes(summary, kValue, value);
  }
  std::string event = event_head(step, wall_time);
  put_bytes(event, kSummary, summary);
  return event;
}

EventFile::EventFile(const Path& folder, std::int64_t first_step, double wall_time, Env& env)
    // The time has ten digits, because TensorBoard reads the files of a folder in alphabetical order.
    : file_(folder / fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(wall_time),
                                 host_name(), getpid()),
            env),
      header_(first_events(first_step, wall_time)) {}

bool EventFile::write(std::int64_t step, std::span<const Scalar> scalars, double wall_time) {
  const std::string record = header_ + tfrecord(scalar_event(step, scalars, wall_time));
  if (!file_.append(as_bytes(record))) {
    ++dropped_;
    return false;
  }
  header_.clear();
  return true;
}

}  // namespace primus
