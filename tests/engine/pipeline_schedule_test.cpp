// Tests pipeline schedules of every kind and many sizes: work runs after its inputs exist, sends match
// receives, and no stage deadlocks. Idle time and memory are as the papers state.
#include "engine/parallel/pipeline_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"

namespace primus::engine {
namespace {

using Kind = Work::Kind;

std::vector<int> chunks_of(ScheduleKind kind) {
  if (traits_of(kind).v_shaped) return {2};
  if (kind == ScheduleKind::kInterleaved) return {2, 3, 4};
  if (kind == ScheduleKind::kGPipe) return {1, 2, 3, 4};
  return {1};
}

template <class Check>
void for_each_schedule(ScheduleKind kind, Check&& check) {
  for (int stages = 1; stages <= 16; ++stages) {
    for (const int chunks : chunks_of(kind)) {
      std::set<std::int64_t> counts{1, 2, 3, 5, 8, 13, 31, 64, stages, stages + 1, 2 * stages};
      for (const std::int64_t microbatches : counts) {
        if (kind == ScheduleKind::kInterleaved && microbatches % stages != 0) continue;
        SCOPED_TRACE(std::to_string(stages) + " stages, " + std::to_string(chunks) + " chunks, " +
                     std::to_string(microbatches) + " microbatches");
        check(make_schedule(kind, stages, chunks, microbatches));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Runs a schedule under strict rules: a stage runs its items one after another, and a transfer needs both
// sides at once. The inputs of an item must be present when the item starts.
class StrictMachine {
 public:
  explicit StrictMachine(const PipelineSchedule& schedule) : schedule_(schedule), shape_(schedule.shape) {}

  void run() {
    std::vector<std::size_t> position(schedule_.stages.size(), 0);
    const auto head = [&](int s) -> const Work* {
      const auto& list = schedule_.stages[static_cast<std::size_t>(s)];
      const std::size_t at = position[static_cast<std::size_t>(s)];
      return at < list.size() ? &list[at] : nullptr;
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < shape_.stages; ++s) {
        for (const Work* work = head(s); work; work = head(s)) {
          if (work->transfer()) {
            const Work* other = head(work->peer);
            if (!other || !other->transfer() || other->peer != s) break;
            meet(s, *work, *other);
            ++position[static_cast<std::size_t>(work->peer)];
          } else {
            compute(s, *work);
          }
          ++position[static_cast<std::size_t>(s)];
          progress = true;
        }
      }
    }
    for (int s = 0; s < shape_.stages; ++s) EXPECT_EQ(head(s), nullptr) << "stage " << s << " never finishes";
    const auto expected = static_cast<std::size_t>(shape_.parts() * schedule_.microbatches);
    EXPECT_EQ(forwards_.size(), expected);
    EXPECT_EQ(backwards_.size(), expected);
    EXPECT_EQ(weights_.size(), traits_of(schedule_.kind).splits_backward ? expected : 0);
  }

 private:
  using Item = std::pair<int, std::int64_t>;  // part, microbatch

  void compute(int s, const Work& work) {
    const int part = shape_.part(s, work.chunk);
    const Item item{part, work.microbatch};
    switch (work.kind) {
      case Kind::kForward:
        EXPECT_TRUE(part == 0 || activations_[s].count({part, work.microbatch})) << "forward without input";
        EXPECT_TRUE(forwards_.insert(item).second);
        hand_over(s, part + 1, false, work.microbatch);
        break;
      case Kind::kBackward:
        EXPECT_TRUE(forwards_.count(item)) << "backward before forward";
        EXPECT_TRUE(part + 1 == shape_.parts() || gradients_[s].count({part, work.microbatch}))
            << "backward without gradient";
        EXPECT_TRUE(backwards_.insert(item).second);
        // A chunk's microbatches run backward in order, because gradients are summed in this order.
        EXPECT_EQ(work.microbatch, next_backward_[part]++);
        hand_over(s, part - 1, true, work.microbatch);
        break;
      default:
        EXPECT_TRUE(backwards_.count(item)) << "weight gradient before backward";
        EXPECT_TRUE(weights_.insert(item).second);
    }
  }

  void hand_over(int s, int to, bool gradient, std::int64_t m) {
    if (to < 0 || to == shape_.parts() || shape_.stage_of(to) != s) return;
    (gradient ? gradients_ : activations_)[s].insert({to, m});
  }

  void meet(int s, const Work& work, const Work& other) {
    EXPECT_NE(work.kind, other.kind);
    EXPECT_EQ(work.microbatch, other.microbatch);
    EXPECT_EQ(work.gradient, other.gradient);
    const bool sends = work.kind == Kind::kSend;
    const int from = shape_.part(sends ? s : work.peer, (sends ? work : other).chunk);
    const int receiver = sends ? work.peer : s;
    const int to = shape_.part(receiver, (sends ? other : work).chunk);
    EXPECT_EQ(to, work.gradient ? from - 1 : from + 1);
    EXPECT_TRUE((work.gradient ? backwards_ : forwards_).count({from, work.microbatch})) << "sent too early";
    (work.gradient ? gradients_ : activations_)[receiver].insert({to, work.microbatch});
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  std::set<Item> forwards_, backwards_, weights_;
  std::map<int, std::set<Item>> activations_, gradients_;  // by receiving stage
  std::map<int, std::int64_t> next_backward_;
};

class EverySchedule : public testing::TestWithParam<ScheduleKind> {};

TEST_P(EverySchedule, MeetsDependenciesAndNeverDeadlocks) {
  for_each_schedule(GetParam(), [](const PipelineSchedule& schedule) { StrictMachine(schedule).run(); });
}

TEST_P(EverySchedule, PairsSendsAndReceivesInOrderOnEachLink) {
  for_each_schedule(GetParam(), [](const PipelineSchedule& schedule) {
    using Message = std::tuple<bool, std::int64_t, int>;  // gradient, microbatch, receiving part
    std::map<std::pair<int, int>, std::vector<Message>> sent, received;
    for (int s = 0; s < schedule.shape.stages; ++s) {
      for (const Work& w : schedule.stages[static_cast<std::size_t>(s)]) {
        const int part = schedule.shape.part(s, w.chunk), step = w.gradient ? -1 : 1;
        if (w.kind == Kind::kSend) sent[{s, w.peer}].emplace_back(w.gradient, w.microbatch, part + step);
        if (w.kind == Kind::kReceive) received[{w.peer, s}].emplace_back(w.gradient, w.microbatch, part);
      }
    }
    EXPECT_EQ(sent, received);
  });
}

// The forward, input gradient and weight gradient of a chunk each take one unit, so a stage works for 3 x
// chunks x microbatches units.
TEST_P(EverySchedule, HasThePublishedBubbleAndMemory) {
  for_each_schedule(GetParam(), [](const PipelineSchedule& schedule) {
    const PipelineTimeline timeline = simulate(schedule);
    const std::int64_t p = schedule.shape.stages, v = schedule.shape.chunks, m = schedule.microbatches;
    const double gaps = timeline.makespan - static_cast<double>(3 * v * m);
    EXPECT_NEAR(timeline.bubble, gaps / timeline.makespan, 1e-12);
    const auto all = static_cast<double>(p - 1);  // one unit on each of the other p - 1 stages
    for (int s = 0; s < p; ++s) {
      const std::int64_t peak = timeline.peak_stash[static_cast<std::size_t>(s)];
      EXPECT_LE(peak, m * v);
      switch (schedule.kind) {
        case ScheduleKind::kGPipe:  // Huang et al. 2018, 2.3: bubble (p - 1) / (m + p - 1), all m in memory
          EXPECT_EQ(peak, m * v);
          if (v == 1) {
            EXPECT_DOUBLE_EQ(gaps, 3 * all);
          }
          break;
        case ScheduleKind::kOneForwardOneBackward:  // Narayanan et al. 2021, 2.2.1: gaps of (p - 1) (F + B)
          EXPECT_EQ(peak, std::min(m, p - s));
          EXPECT_DOUBLE_EQ(gaps, 3 * all);
          break;
        case ScheduleKind::kInterleaved:  // section 2.2.2: the gaps of 1F1B with chunks of 1 / v of the work
          EXPECT_EQ(peak, std::min(m * v, 2 * (p - 1 - s) + (v - 1) * p + 1));
          EXPECT_DOUBLE_EQ(gaps, 3 * all);
          break;
        case ScheduleKind::kZeroBubbleH1:  // Qi et al. 2023: gaps of (p - 1) (F + B - W), memory of 1F1B
          EXPECT_LE(peak, p);
          if (m >= p) {
            EXPECT_DOUBLE_EQ(gaps, all);
          }
          break;
        case ScheduleKind::kZeroBubbleV:  // gaps only until the last stage begins; memory of 1F1B
          EXPECT_LE(peak, 2 * p);
          if (m >= p) {
            EXPECT_DOUBLE_EQ(gaps, all);
          }
          break;
        // Qi et al. 2024, table 2. Counted in these chunks, 1F1B has gaps of 6 (p - 1) and a memory of 2 p.
        case ScheduleKind::kVHalf:  // half the memory and half the gaps
          EXPECT_LE(peak, p + 2);
          EXPECT_LE(gaps, m < p ? 6 * all : 3 * all);
          break;
        case ScheduleKind::kVMin:  // a third of the memory, two thirds of the gaps
          EXPECT_LE(peak, (2 * p + 2) / 3 + 2);
          EXPECT_LE(gaps, m < p ? 6 * all : 4 * all + 1);
          break;
      }
    }
  });
}

// Transfers that take time never shorten a schedule. Such transfers lengthen the schedule of a single
// microbatch by at least a round trip.
TEST_P(EverySchedule, IsNeverShortenedByTransfersThatTakeTime) {
  for_each_schedule(GetParam(), [](const PipelineSchedule& schedule) {
    const PipelineTimeline quick = simulate(schedule);
    const PipelineTimeline slow = simulate(schedule, {.transfer = 0.25});
    const double way = 0.25 * 2 * (schedule.shape.stages - 1);
    EXPECT_GE(slow.makespan, schedule.microbatches == 1 ? quick.makespan + way : quick.makespan);
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, EverySchedule,
                         testing::Values(ScheduleKind::kGPipe, ScheduleKind::kOneForwardOneBackward,
                                         ScheduleKind::kInterleaved, ScheduleKind::kZeroBubbleH1,
                                         ScheduleKind::kZeroBubbleV, ScheduleKind::kVHalf,
                                         ScheduleKind::kVMin),
                         [](const auto& kind) {
                           std::string name(traits_of(kind.param).name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The lists of 1F1B with two stages and two microbatches equal lists written by hand.
TEST(PipelineSchedule, EqualsSchedulesWrittenByHand) {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 2);
  const Work f0{}, f1{.microbatch = 1}, b0{.kind = Kind::kBackward},
      b1{.kind = Kind::kBackward, .microbatch = 1};
  const auto transfer = [](Kind kind, std::int64_t m, bool gradient, int peer) {
    return Work{kind, 0, m, gradient, peer};
  };
  EXPECT_EQ(schedule.stages[0],
            (std::vector<Work>{f0, transfer(Kind::kSend, 0, false, 1), f1, transfer(Kind::kSend, 1, false, 1),
                               transfer(Kind::kReceive, 0, true, 1), b0, transfer(Kind::kReceive, 1, true, 1),
                               b1}));
  EXPECT_EQ(
      schedule.stages[1],
      (std::vector<Work>{transfer(Kind::kReceive, 0, false, 0), f0, transfer(Kind::kReceive, 1, false, 0), b0,
                         transfer(Kind::kSend, 0, true, 0), f1, b1, transfer(Kind::kSend, 1, true, 0)}));
}

// A single stage of 1F1B is gradient accumulation, which a single device runs.
TEST(PipelineSchedule, OneStageAccumulates) {
  const PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, 1, 1, 3);
  std::vector<Work> expected;
  for (std::int64_t m = 0; m < 3; ++m) {
    expected.push_back({.microbatch = m});
    expected.push_back({.kind = Kind::kBackward, .microbatch = m});
  }
  EXPECT_EQ(schedule.stages[0], expected);
  EXPECT_EQ(simulate(schedule).bubble, 0);
}

// Invalid sizes throw an Error whose hint names the setting to change.
TEST(PipelineSchedule, RefusesImpossibleNumbersAndNamesTheOneToChange) {
  const auto message = [](ScheduleKind kind, int stages, int chunks, std::int64_t microbatches) {
    try {
      make_schedule(kind, stages, chunks, microbatches);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("none");
  };
  EXPECT_EQ(
      message(ScheduleKind::kInterleaved, 4, 2, 6),
      "the schedule 1f1b-interleaved needs a multiple of its 4 stages as number of microbatches, not 6 | "
      "set the microbatches to 4 or 8");
  EXPECT_EQ(
      message(ScheduleKind::kInterleaved, 4, 2, 3),
      "the schedule 1f1b-interleaved needs a multiple of its 4 stages as number of microbatches, not 3 | "
      "set the microbatches to 4");
  EXPECT_EQ(message(ScheduleKind::kZeroBubbleV, 4, 1, 6),
            "the schedule zbv-formatted needs 2 chunks per stage, not 1 | set the chunks to 2");
  EXPECT_EQ(message(ScheduleKind::kOneForwardOneBackward, 4, 2, 6),
            "the schedule 1f1b needs 1 chunk per stage, not 2 | set the chunks to 1, or the schedule to "
            "1f1b-interleaved");
  EXPECT_EQ(message(ScheduleKind::kGPipe, 0, 1, 6),
            "a pipeline needs at least one stage, one chunk and one microbatch | ");
}

// simulate() throws for a list that deadlocks.
TEST(PipelineSchedule, SimulationRefusesListsThatDeadlock) {
  PipelineSchedule schedule = make_schedule(ScheduleKind::kOneForwardOneBackward, 2, 1, 2);
  std::swap(schedule.stages[1][0], schedule.stages[1][2]);
  EXPECT_THROW(simulate(schedule), std::logic_error);
}

}  // namespace
}  // namespace primus::engine
