#include "comm/flight_recorder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "comm/rank_state.h"

namespace primus::comm {
namespace {

constexpr Signature kSum = {Kind::kAllReduce, DType::kF32, Reduction::kSum, 0, 1024};

TEST(FlightRecorder, KeepsTheLastRecordsInFixedMemory) {
  FlightRecorder recorder;
  const int group = recorder.add_group("world", 8);
  for (std::uint64_t i = 1; i <= 5000; ++i) {
    const std::uint64_t id = recorder.enqueued(group, i, kSum);
    EXPECT_EQ(id, i);
    recorder.started(id);
    recorder.ended(id, false);
  }
  recorder.ended(1, true);  // ended long ago: changes nothing
  const auto records = recorder.records();
  ASSERT_EQ(records.size(), FlightRecorder::kRecords);
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].id, 3001 + i);
    EXPECT_EQ(records[i].state, FlightRecorder::State::kDone);
  }
  EXPECT_EQ(records.back().to_string(), "all_reduce #5000 (sum of 1024 fp32) of group 'world'");
}

// A rank that has reported a long activity is checked again after `timeout`, so that a dead rank is found
// soon. The limit for the activity itself, `activity_timeout`, is separate.
TEST(Excused, RanksAreCheckedAgainAfterTheTimeout) {
  RankState state;
  state.timeout = std::chrono::seconds(10);
  state.activity_timeout = std::chrono::hours(1);
  const std::vector<int> suspects = {1};
  std::vector<std::optional<RankStatus>> statuses(2);
  statuses[1] = RankStatus{.activity = "saving", .activity_seconds = 100};
  const auto before = std::chrono::steady_clock::now();
  ASSERT_TRUE(excused(state, suspects, statuses));
  const auto after = std::chrono::steady_clock::now();
  EXPECT_GE(state.excused_until.load(), before + std::chrono::seconds(10));
  EXPECT_LE(state.excused_until.load(), after + std::chrono::seconds(10));
  statuses[1]->activity_seconds = 3601;
  EXPECT_FALSE(excused(state, suspects, statuses));
}

TEST(FlightRecorder, WritesStatesAndTimesAsJson) {
  RankState state;
  FlightRecorder& recorder = state.recorder;
  const int world = recorder.add_group("world", 8), pair = recorder.add_group("tp \"0\"", 2);
  const auto done = recorder.enqueued(world, 1, kSum);
  recorder.started(done);
  recorder.ended(done, false);
  const auto running = recorder.enqueued(pair, 1, {Kind::kBroadcast, DType::kBF16, Reduction::kSum, 1, 7});
  recorder.started(running);
  recorder.waiting_for(running, 5);
  recorder.enqueued(world, 2, {Kind::kBarrier, DType::kU8, Reduction::kSum, 0, 0});
  const auto json = recorder.to_json()["records"];
  ASSERT_EQ(json.size(), 3U);
  EXPECT_EQ(json[0]["state"], "done");
  EXPECT_GE(json[0]["ended"], json[0]["started"]);
  EXPECT_GE(json[0]["started"], json[0]["enqueued"]);
  EXPECT_GT(json[0]["enqueued"], 1.7e9);
  EXPECT_EQ(json[1]["group"], "tp \"0\"");
  EXPECT_EQ(json[1]["kind"], "broadcast");
  EXPECT_EQ(json[1]["dtype"], "bf16");
  EXPECT_EQ(json[1]["root"], 1);
  EXPECT_EQ(json[1]["state"], "running");
  EXPECT_EQ(json[1]["waiting_for"], 5);
  EXPECT_EQ(json[1]["ended"], 0.0);
  EXPECT_EQ(json[2]["state"], "enqueued");

  const RankStatus status = status_of(state, "world");
  EXPECT_EQ(status.sequence, 1U);
  EXPECT_EQ(status.running, "broadcast #1 (7 bf16 from rank 1) of group 'tp \"0\"'");
  EXPECT_EQ(status.waiting_for, 5);
  const auto back = RankStatus::decode(status.encode());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->running, status.running);
  EXPECT_EQ(back->last, status.last);
  EXPECT_FALSE(RankStatus::decode("{\"sequence\": -"));
  EXPECT_FALSE(RankStatus::decode("{\"sequence\": \"x\"}"));
}

// A concurrent reader sees only whole records: each record's count matches its sequence number.
TEST(FlightRecorder, IsReadWhileItIsWritten) {
  FlightRecorder recorder;
  const int group = recorder.add_group("world", 2);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      const auto id = recorder.enqueued(
          group, i, {Kind::kAllGather, DType::kU8, Reduction::kSum, 0, static_cast<std::int64_t>(3 * i)});
      recorder.started(id);
      recorder.ended(id, false);
    }
  });
  for (int i = 0; i < 200; ++i) {
    for (const auto& record : recorder.records()) {
      ASSERT_EQ(record.sequence, record.id);
      ASSERT_EQ(record.signature.count, static_cast<std::int64_t>(3 * record.id));
    }
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace primus::comm
