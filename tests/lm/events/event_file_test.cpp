#include "lm/events/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "base/fault_env.h"

namespace primus {
namespace {

using namespace std::string_literals;
using ::testing::HasSubstr;

// --- an independent reader of the format ---

// Returns CRC32C by its definition: polynomial division, bit by bit.
std::uint32_t crc_by_definition(std::string_view data) {
  std::uint32_t crc = ~0U;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

std::uint32_t masked(std::string_view data) {
  const std::uint32_t crc = crc_by_definition(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <class T>
T take(std::string_view& data) {
  T value{};
  EXPECT_GE(data.size(), sizeof(T));
  std::memcpy(&value, data.data(), sizeof(T));
  data.remove_prefix(sizeof(T));
  return value;
}

std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> result;
  while (!file.empty()) {
    const std::string_view length_bytes = file.substr(0, 8);
    const auto length = take<std::uint64_t>(file);
    EXPECT_EQ(take<std::uint32_t>(file), masked(length_bytes));
    EXPECT_GE(file.size(), length + 4);
    const std::string_view data = file.substr(0, length);
    file.remove_prefix(length);
    EXPECT_EQ(take<std::uint32_t>(file), masked(data));
    result.emplace_back(data);
  }
  return result;
}

TEST(TfRecord, BytesAreCorrect) {
  // Layout: 8 bytes of length, its masked CRC, "abc", its masked CRC. The known CRC32C("123456789") =
  // e3069283 verifies the reference implementation.
  EXPECT_EQ(crc_by_definition("123456789"), 0xe3069283U);
  const std::string record = tfrecord("abc");
  ASSERT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), "\x03\0\0\0\0\0\0\0"s);
  EXPECT_EQ(record.substr(12, 3), "abc");
  EXPECT_EQ(records(record), std::vector<std::string>{"abc"});
}

TEST(ScalarEvent, BytesAreProtobuf) {
  const std::string event = scalar_event(300, std::vector<Scalar>{{"lm loss", 1.5}}, 2.0);
  EXPECT_EQ(event,
            "\x09\x00\x00\x00\x00\x00\x00\x00\x40"s  // 1: wall_time, double 2.0
            "\x10\xac\x02"s                          // 2: step, varint 300
            "\x2a\x10"s                              // 5: summary, 16 bytes
            "\x0a\x0e"s                              //   1: value, 14 bytes
            "\x0a\x07lm loss"s                       //     1: tag
            "\x15\x00\x00\xc0\x3f"s);                //     2: simple_value, float 1.5
}

TEST(EventFile, BeginsWithVersionAndRestart) {
  FaultEnv env;
  EventFile file("/run/tensorboard", 401, 1767225600.5, env);
  EXPECT_FALSE(env.status(file.path()).has_value());
  EXPECT_THAT(file.path().filename().string(), ::testing::StartsWith("events.out.tfevents.1767225600."));
  ASSERT_TRUE(file.write(401, std::vector<Scalar>{{"lm loss", 2.5}, {"grad-norm", 1.0}}, 1767225601.0));
  ASSERT_TRUE(file.write(402, std::vector<Scalar>{{"lm loss", 2.25}}, 1767225602.0));
  const std::vector<std::string> events = records(read_file(file.path(), 1 << 20, env));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_THAT(events[0], ::testing::EndsWith("\x1a\x0d"
                                             "brain.Event:2"));
  EXPECT_THAT(events[1],
              ::testing::EndsWith("\x10\x91\x03\x3a\x02\x08\x01"s));  // step 401, session_log {status: START}
  EXPECT_THAT(events[2], HasSubstr("grad-norm"));
  EXPECT_THAT(events[3], HasSubstr("lm loss"));
}

TEST(EventFile, AFullDiskLosesEventsButDoesNotDamageTheFile) {
  FaultEnv env;
  env.set_capacity(20);
  EventFile file("/run/tensorboard", 1, 1.0, env);
  const std::vector<Scalar> scalars = {{"lm loss", 2.5}};
  EXPECT_FALSE(file.write(1, scalars, 2.0));
  EXPECT_EQ(file.dropped(), 1U);
  env.set_capacity(1 << 20);
  EXPECT_TRUE(file.write(2, scalars, 3.0));
  EXPECT_EQ(records(read_file(file.path(), 1 << 20, env)).size(), 3U);
}

}  // namespace
}  // namespace primus
