#include "safe/supervise/nodes/node_message.h"

#include <bit>
#include <cmath>
#include <limits>

#include "comm/rendezvous/wire.h"

namespace primus::supervise {
namespace {

namespace wire = comm::wire;

bool is_kind(std::uint8_t byte) {
  using Kind = NodeMessage::Kind;
  const auto kind = static_cast<Kind>(byte);
  return (kind >= Kind::kHello && kind <= Kind::kListens) || (kind >= Kind::kLead && kind <= Kind::kStop);
}

// The bits of the word of flags.
constexpr std::uint64_t kFlagBit = 1, kSampleBit = 2, kDiskBit = 4, kReaderBit = 8, kStoppedBit = 16,
                        kRankBit = 32, kAllBits = 63;

std::uint64_t bit(bool set, std::uint64_t value) { return set ? value : 0; }

// A time from a peer: finite, and not negative.
bool read_seconds(wire::Reader& reader, double& out) {
  out = std::bit_cast<double>(reader.number());
  return std::isfinite(out) && out >= 0;
}

bool read_int(wire::Reader& reader, bool given, std::optional<int>& out) {
  const std::uint64_t value = reader.number();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) return false;
  if (given) out = static_cast<int>(value);
  return true;
}

}  // namespace

std::string to_frame(const NodeMessage& message) {
  const JobSample sample = message.sample.value_or(JobSample{});
  const std::uint64_t bits = bit(message.flag, kFlagBit) | bit(message.sample.has_value(), kSampleBit) |
                             bit(sample.waits_for_disk, kDiskBit) | bit(sample.waits_for_reader, kReaderBit) |
                             bit(sample.stopped.has_value(), kStoppedBit) |
                             bit(message.stopped_rank.has_value(), kRankBit);
  wire::Writer writer(static_cast<wire::Type>(message.kind), message.attempt);
  writer.number(static_cast<std::uint64_t>(message.number)).number(bits).number(message.port);
  writer.number(std::bit_cast<std::uint64_t>(message.seconds));
  writer.number(static_cast<std::uint64_t>(message.checkpoint)).number(message.signs);
  writer.number(std::bit_cast<std::uint64_t>(sample.processor_seconds)).number(sample.bytes);
  writer.number(static_cast<std::uint64_t>(sample.stopped.value_or(0)));
  writer.number(static_cast<std::uint64_t>(message.stopped_rank.value_or(0)));
  writer.string(std::string_view(message.text).substr(0, kMaxNodeText));
  writer.string(std::string_view(message.more).substr(0, kMaxNodeText));
  writer.string(message.record);
  return writer.frame();
}

FrameState take_frame(std::string& bytes, NodeMessage& message) {
  constexpr std::size_t kLength = 4;
  if (bytes.size() < kLength) return FrameState::kMore;
  const std::size_t size = wire::u32_at(bytes, 0);
  if (size == 0 || size > kMaxMessage) return FrameState::kBroken;
  if (bytes.size() < kLength + size) return FrameState::kMore;
  const std::string body = bytes.substr(kLength, size);
  bytes.erase(0, kLength + size);
  wire::Reader reader(body);
  const auto kind = static_cast<std::uint8_t>(reader.type());
  message = NodeMessage{.kind = static_cast<NodeMessage::Kind>(kind), .attempt = reader.number()};
  message.number = static_cast<std::int64_t>(reader.number());
  const std::uint64_t bits = reader.number(), port = reader.number();
  message.flag = (bits & kFlagBit) != 0;
  message.port = static_cast<std::uint16_t>(port);
  bool ok = is_kind(kind) && (bits & ~kAllBits) == 0 && port <= 0xffff;
  ok = read_seconds(reader, message.seconds) && ok;
  message.checkpoint = static_cast<std::int64_t>(reader.number());
  message.signs = reader.number();
  JobSample sample{.waits_for_disk = (bits & kDiskBit) != 0, .waits_for_reader = (bits & kReaderBit) != 0};
  ok = read_seconds(reader, sample.processor_seconds) && ok;
  sample.bytes = reader.number();
  ok = read_int(reader, (bits & kStoppedBit) != 0, sample.stopped) && ok;
  ok = read_int(reader, (bits & kRankBit) != 0, message.stopped_rank) && ok;
  if ((bits & kSampleBit) != 0) message.sample = sample;
  message.text = reader.string(kMaxNodeText);
  message.more = reader.string(kMaxNodeText);
  message.record = reader.string(kMaxRecord);
  return ok && reader.ok() ? FrameState::kMessage : FrameState::kBroken;
}

}  // namespace primus::supervise
