#include "safe/supervise/nodes/node_message.h"

#include <gtest/gtest.h>

#include <random>

#include "safe/supervise/nodes/node_link.h"

namespace primus::supervise {
namespace {

NodeMessage full_message() {
  return {.kind = NodeMessage::Kind::kAlive,
          .attempt = 7,
          .number = -3,
          .flag = true,
          .port = 29500,
          .seconds = 1.5,
          .checkpoint = 40,
          .signs = 99,
          .sample = JobSample{.processor_seconds = 2.25, .bytes = 10, .waits_for_disk = true, .stopped = 17},
          .stopped_rank = 3,
          .text = "a text",
          .more = "another"};
}

TEST(NodeMessage, ArrivesAsItWasSent) {
  std::string bytes = to_frame(full_message()) + to_frame({.kind = NodeMessage::Kind::kQuit, .number = 3});
  NodeMessage got;
  ASSERT_EQ(take_frame(bytes, got), FrameState::kMessage);
  EXPECT_EQ(got.kind, NodeMessage::Kind::kAlive);
  EXPECT_EQ(got.attempt, 7U);
  EXPECT_EQ(got.number, -3);
  EXPECT_TRUE(got.flag);
  EXPECT_EQ(got.port, 29500);
  EXPECT_EQ(got.seconds, 1.5);
  EXPECT_EQ(got.checkpoint, 40);
  EXPECT_EQ(got.signs, 99U);
  ASSERT_TRUE(got.sample);
  EXPECT_EQ(got.sample->processor_seconds, 2.25);
  EXPECT_EQ(got.sample->bytes, 10U);
  EXPECT_TRUE(got.sample->waits_for_disk);
  EXPECT_FALSE(got.sample->waits_for_reader);
  EXPECT_EQ(got.sample->stopped, 17);
  EXPECT_EQ(got.stopped_rank, 3);
  EXPECT_EQ(got.text, "a text");
  EXPECT_EQ(got.more, "another");
  ASSERT_EQ(take_frame(bytes, got), FrameState::kMessage);
  EXPECT_EQ(got.kind, NodeMessage::Kind::kQuit);
  EXPECT_FALSE(got.sample);
  EXPECT_EQ(take_frame(bytes, got), FrameState::kMore);
}

TEST(NodeMessage, EveryPartialFrameIsIncomplete) {
  const std::string frame = to_frame(full_message());
  NodeMessage got;
  for (std::size_t size = 0; size < frame.size(); ++size) {
    std::string bytes = frame.substr(0, size);
    EXPECT_EQ(take_frame(bytes, got), FrameState::kMore);
    EXPECT_EQ(bytes.size(), size);
  }
}

TEST(NodeMessage, LongTextsAreCut) {
  std::string bytes = to_frame({.text = std::string(1 << 20, 'x'), .more = std::string(1 << 20, 'y')});
  EXPECT_LE(bytes.size(), kMaxMessage + 4);
  NodeMessage got;
  ASSERT_EQ(take_frame(bytes, got), FrameState::kMessage);
  EXPECT_EQ(got.text.size(), kMaxNodeText);
  EXPECT_EQ(got.more.size(), kMaxNodeText);
}

// Damaged frames are messages, incomplete or broken, and never a read outside of the frame (address
// sanitizer).
TEST(NodeMessage, DamagedFramesAreHarmless) {
  std::string zero(8, '\0'), huge(8, '\xff');
  NodeMessage got;
  EXPECT_EQ(take_frame(zero, got), FrameState::kBroken);
  EXPECT_EQ(take_frame(huge, got), FrameState::kBroken);
  std::mt19937 random(1);
  const std::string frame = to_frame(full_message());
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = frame;
    for (int changes = 0; changes < 3; ++changes)
      bytes[random() % bytes.size()] = static_cast<char>(random() & 0xff);
    if (take_frame(bytes, got) != FrameState::kMessage) continue;
    EXPECT_LE(got.text.size(), kMaxNodeText);
    EXPECT_GE(got.seconds, 0);
  }
}

// Every attempt has a secret of its own.
TEST(NodeMessage, SecretsDiffer) {
  EXPECT_EQ(secret_of_attempt("token", "salt", 1), secret_of_attempt("token", "salt", 1));
  EXPECT_NE(secret_of_attempt("token", "salt", 1), secret_of_attempt("token", "salt", 2));
  EXPECT_NE(secret_of_attempt("token", "salt", 1), secret_of_attempt("token", "other", 1));
  EXPECT_NE(secret_of_attempt("token", "salt", 1), secret_of_attempt("other", "salt", 1));
}

}  // namespace
}  // namespace primus::supervise
