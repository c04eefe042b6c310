#include "engine/parallel/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <stdexcept>
#include <tuple>

#include "base/error.h"

namespace primus::engine {
namespace {

using Kind = Work::Kind;
using Order = std::vector<Work>;  // one stage's work except transfers

Work forward(int chunk, std::int64_t microbatch) { return {.chunk = chunk, .microbatch = microbatch}; }
Work backward(int chunk, std::int64_t microbatch) {
  return {.kind = Kind::kBackward, .chunk = chunk, .microbatch = microbatch};
}

// --- order of forward and backward work on a stage

// Returns an order that runs all microbatches of one chunk, then all microbatches of the next chunk.
Order gpipe(const PipelineShape& shape, std::int64_t microbatches) {
  Order order;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (std::int64_t m = 0; m < microbatches; ++m) order.push_back(forward(chunk, m));
  }
  for (int chunk = shape.chunks - 1; chunk >= 0; --chunk) {
    for (std::int64_t m = 0; m < microbatches; ++m) order.push_back(backward(chunk, m));
  }
  return order;
}

// Returns an order of `first` forward passes, followed by backward and forward passes in turn.
Order alternate(const Order& forwards, const Order& backwards, std::size_t first) {
  Order order(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(first));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (first + i < forwards.size()) order.push_back(forwards[first + i]);
    order.push_back(backwards[i]);
  }
  return order;
}

// Microbatches go through the chunks in groups of `stages` microbatches. When a group has passed the current
// chunk of all stages, the first stage starts the next chunk of the group. With one chunk this is plain 1F1B.
Order one_forward_one_backward(const PipelineShape& shape, std::int64_t microbatches, int stage) {
  Order forwards, backwards;
  const std::int64_t group = shape.chunks == 1 ? 1 : shape.stages;
  for (std::int64_t begin = 0; begin < microbatches; begin += group) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (std::int64_t m = begin; m < begin + group; ++m) {
        forwards.push_back(forward(chunk, m));
        backwards.push_back(backward(shape.chunks - 1 - chunk, m));
      }
    }
  }
  const std::int64_t after = shape.stages - 1 - stage;  // number of later stages
  const std::int64_t first = shape.chunks == 1 ? after : 2 * after + (shape.chunks - 1) * group;
  return alternate(forwards, backwards,
                   static_cast<std::size_t>(std::min<std::int64_t>(first, std::ssize(forwards))));
}

// The building block of a V-shaped schedule (Qi et al. 2024, section 3): the start times of a stage's four
// pieces of work for one microbatch. A step is the delay between neighbouring stages. The forward pass of
// chunk 0 goes down the stages, and the forward pass of chunk 1 goes up. Then the backward pass of chunk 1
// goes down, and the backward pass of chunk 0 goes up. The block repeats every six units of time, because a
// stage has six pieces of work per microbatch (including two weight gradients). Activations are held from a
// forward pass to its backward pass. The smaller the sum of the steps, the shorter this time, and the less
// memory a stage needs.
struct BlockSteps {
  int forward_down, forward_up, backward_down, backward_up;
};
constexpr int kBlockPeriod = 6;

// Start times of F of chunk 0, F of chunk 1, B of chunk 1, B of chunk 0.
using BlockTimes = std::array<int, 4>;

// Returns the times of each stage's work; nullopt if two pieces of work of a stage would run at the same
// time.
std::optional<std::vector<BlockTimes>> block_times(int stages, const BlockSteps& steps,
                                                   const std::array<int, 3>& turns) {
  std::vector<BlockTimes> times;
  const int last = stages - 1;
  const int up = steps.forward_down * last + turns[0];       // start of F of chunk 1 on the last stage
  const int loss = up + steps.forward_up * last + turns[1];  // start of B of chunk 1 on the first stage
  const int back = loss + steps.backward_down * last + turns[2];
  for (int s = 0; s < stages; ++s) {
    const BlockTimes t{steps.forward_down * s, up + steps.forward_up * (last - s),
                       loss + steps.backward_down * s, back + steps.backward_up * (last - s)};
    std::set<int> places;
    for (const int time : t) places.insert(time % kBlockPeriod);
    if (places.size() < t.size()) return std::nullopt;
    times.push_back(t);
  }
  return times;
}

// Returns the block that ends first, with the shortest waits at its turning points.
std::vector<BlockTimes> earliest_block(int stages, const BlockSteps& steps) {
  for (int sum = 3; sum <= 3 * kBlockPeriod; ++sum) {
    for (int a = 1; a <= kBlockPeriod; ++a) {
      for (int b = 1; b <= kBlockPeriod; ++b) {
        const int c = sum - a - b;
        if (c < 1 || c > kBlockPeriod) continue;
        if (auto times = block_times(stages, steps, {a, b, c})) return *times;
      }
    }
  }
  throw std::logic_error("unknown kind of pipeline step");
}

std::vector<Order> repeat_block(const std::vector<BlockTimes>& block, std::int64_t microbatches) {
  std::vector<Order> orders;
  for (const BlockTimes& times : block) {
    std::vector<std::pair<std::int64_t, Work>> timed;
    for (std::int64_t m = 0; m < microbatches; ++m) {
      const std::array<Work, 4> work{forward(0, m), forward(1, m), backward(1, m), backward(0, m)};
      for (std::size_t i = 0; i < work.size(); ++i) timed.emplace_back(times[i] + kBlockPeriod * m, work[i]);
    }
    std::sort(timed.begin(), timed.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
    Order& order = orders.emplace_back();
    for (const auto& [time, work] : timed) order.push_back(work);
  }
  return orders;
}

// --- times, weight gradients and transfers

// Assigns times to the stages' orders. Every piece of work takes one unit and starts as early as possible. If
// backward passes are split, weight gradients fill the times in which a stage would be idle. When a stage
// holds `limit` activations, it first runs the weight gradient that frees the oldest of them.
class Arrangement {
 public:
  Arrangement(const PipelineShape& shape, std::int64_t microbatches, const std::vector<Order>& orders,
              bool split, int limit)
      : shape_(shape), split_(split), limit_(limit) {
    for (auto& ends : ends_) {
      ends.assign(static_cast<std::size_t>(shape.parts()),
                  std::vector<double>(static_cast<std::size_t>(microbatches), kUnknown));
    }
    for (const Order& order : orders) stages_.push_back({.order = &order});
    while (step()) {
    }
    for (const Stage& stage : stages_) {
      if (stage.next < stage.order->size() || !stage.weights.empty())
        throw std::logic_error("pipeline schedule: a step waits for a result that is never produced");
    }
  }

  std::vector<std::vector<TimedWork>> take() {
    std::vector<std::vector<TimedWork>> all;
    for (Stage& stage : stages_) all.push_back(std::move(stage.done));
    return all;
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  struct Stage {
    const Order* order = nullptr;
    std::size_t next = 0;
    double free = 0;  // end of the stage's current work
    int held = 0;
    Order weights = {};  // weight gradients that can run at any time, oldest first
    std::vector<TimedWork> done = {};
  };

  double& end(bool of_backward, int part, std::int64_t microbatch) {
    return ends_[of_backward ? 1 : 0][static_cast<std::size_t>(part)][static_cast<std::size_t>(microbatch)];
  }

  // Returns the time when the inputs of the work are available.
  double ready(int stage, const Work& work) {
    const int part = shape_.part(stage, work.chunk);
    if (work.kind == Kind::kForward) return part == 0 ? 0 : end(false, part - 1, work.microbatch);
    return part + 1 == shape_.parts() ? end(false, part, work.microbatch)
                                      : end(true, part + 1, work.microbatch);
  }

  // Compares the next piece of work of every stage, and runs the piece that can start first. The start times
  // of successive calls are therefore ascending.
  bool step() {
    int chosen = -1;
    double earliest = kUnknown;
    bool weight = false;
    for (int s = 0; s < shape_.stages; ++s) {
      Stage& stage = stages_[static_cast<std::size_t>(s)];
      double next = kUnknown;
      if (stage.next < stage.order->size()) {
        const Work& work = (*stage.order)[stage.next];
        const bool full = split_ && work.kind == Kind::kForward && stage.held >= limit_;
        if (!full) next = std::max(stage.free, ready(s, work));
      }
      const bool fill = !stage.weights.empty() && stage.free < next;
      const double start = fill ? stage.free : next;
      if (start < earliest) {
        chosen = s;
        earliest = start;
        weight = fill;
      }
    }
    if (chosen < 0) return false;
    begin(chosen, earliest, weight);
    return true;
  }

  void begin(int s, double start, bool weight) {
    Stage& stage = stages_[static_cast<std::size_t>(s)];
    Work work;
    double duration = 1;
    if (weight) {
      work = stage.weights.front();
      stage.weights.erase(stage.weights.begin());
      --stage.held;
    } else {
      work = (*stage.order)[stage.next++];
      const bool backward = work.kind == Kind::kBackward;
      if (backward && !split_) duration = 2;
      end(backward, shape_.part(s, work.chunk), work.microbatch) = start + duration;
      if (!backward) ++stage.held;
      if (backward && split_) {
        stage.weights.push_back(work);
        stage.weights.back().kind = Kind::kWeight;
      }
    }
    stage.free = start + duration;
    stage.done.push_back({work, start, stage.free});
  }

  const PipelineShape shape_;
  const bool split_;
  const int limit_;
  std::array<std::vector<std::vector<double>>, 2> ends_;  // forward, backward: [part][microbatch]
  std::vector<Stage> stages_;
};

// Builds the stages' lists. Computing work is sorted by its start. A transfer is placed at the end of the
// work that produces the transfer's data, before work that starts at that time. All stages use the same order
// of transfers.
std::vector<std::vector<Work>> with_transfers(const PipelineShape& shape,
                                              const std::vector<std::vector<TimedWork>>& timed) {
  // The first four elements are the sort key: the time, 0 for transfers or 1 for computation, the microbatch,
  // and the number of the transfer.
  using Item = std::tuple<double, int, std::int64_t, int, Work>;
  std::vector<std::vector<Item>> items(timed.size());
  for (int s = 0; s < shape.stages; ++s) {
    std::vector<Item>& own = items[static_cast<std::size_t>(s)];
    for (const TimedWork& t : timed[static_cast<std::size_t>(s)]) {
      own.emplace_back(t.start, 1, 0, 0, t.work);
      if (t.work.kind == Kind::kWeight) continue;
      const bool gradient = t.work.kind == Kind::kBackward;
      const int part = shape.part(s, t.work.chunk), to = gradient ? part - 1 : part + 1;
      if (to < 0 || to == shape.parts() || shape.stage_of(to) == s) continue;
      const int peer = shape.stage_of(to);
      Work send{Kind::kSend, t.work.chunk, t.work.microbatch, gradient, peer};
      Work receive{Kind::kReceive, shape.chunk_of(to), t.work.microbatch, gradient, s};
      const int number = 2 * part + (gradient ? 1 : 0);
      own.emplace_back(t.end, 0, t.work.microbatch, number, send);
      items[static_cast<std::size_t>(peer)].emplace_back(t.end, 0, t.work.microbatch, number, receive);
    }
  }
  std::vector<std::vector<Work>> lists;
  for (std::vector<Item>& own : items) {
    std::stable_sort(own.begin(), own.end(), [](const Item& x, const Item& y) {
      const auto key = [](const Item& i) {
        return std::tuple(std::get<0>(i), std::get<1>(i), std::get<2>(i), std::get<3>(i));
      };
      return key(x) < key(y);
    });
    std::vector<Work>& list = lists.emplace_back();
    for (const Item& item : own) list.push_back(std::get<4>(item));
  }
  return lists;
}

}  // namespace

const std::vector<ScheduleTraits>& schedule_kinds() {
  static const std::vector<ScheduleTraits> kinds{
      {ScheduleKind::kGPipe, "gpipe", "GPipe", false, false},
      {ScheduleKind::kOneForwardOneBackward, "1f1b", "1F1B", false, false},
      {ScheduleKind::kInterleaved, "1f1b-interleaved", "interleaved 1F1B", false, false},
      {ScheduleKind::kZeroBubbleH1, "zero-bubble", "zero bubble H1", true, false},
      {ScheduleKind::kZeroBubbleV, "zbv-formatted", "zero bubble V", true, true},
      {ScheduleKind::kVHalf, "v-half", "V-Half", true, true},
      {ScheduleKind::kVMin, "v-min", "V-Min", true, true},
  };
  return kinds;
}

const ScheduleTraits& traits_of(ScheduleKind kind) {
  return schedule_kinds()[static_cast<std::size_t>(kind)];
}

std::optional<ScheduleKind> schedule_named(std::string_view name) {
  for (const ScheduleTraits& traits : schedule_kinds()) {
    if (traits.name == name) return traits.kind;
  }
  return std::nullopt;
}

char letter_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return 'F';
    case Kind::kBackward:
      return 'B';
    default:
      return 'W';
  }
}

std::string label_of(const Work& work) {
  const char* const what = !work.transfer() ? "" : work.kind == Kind::kSend ? "send " : "receive ";
  const Kind made = work.gradient ? Kind::kBackward : work.transfer() ? Kind::kForward : work.kind;
  return fmt::format("{}{}{}{}", what, letter_of(made), work.microbatch,
                     std::string(static_cast<std::size_t>(work.chunk), '\''));
}

void check_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches) {
  const ScheduleTraits& traits = traits_of(kind);
  if (stages < 1 || chunks < 1 || microbatches < 1)
    throw invalid("a pipeline needs at least one stage, one chunk and one microbatch");
  if (traits.v_shaped && chunks != 2) {
    throw invalid(fmt::format("the schedule {} needs 2 chunks per stage, not {}", traits.name, chunks),
                  "set the chunks to 2");
  }
  if ((kind == ScheduleKind::kOneForwardOneBackward || kind == ScheduleKind::kZeroBubbleH1) && chunks != 1) {
    throw invalid(fmt::format("the schedule {} needs 1 chunk per stage, not {}", traits.name, chunks),
                  "set the chunks to 1, or the schedule to 1f1b-interleaved");
  }
  if (kind != ScheduleKind::kInterleaved) return;
  if (chunks < 2) {
    throw invalid("the schedule 1f1b-interleaved needs at least 2 chunks per stage",
                  "set the chunks to 2 or more, or the schedule to 1f1b");
  }
  if (const std::int64_t rest = microbatches % stages; rest != 0) {
    const std::int64_t less = microbatches - rest, more = less + stages;
    throw invalid(fmt::format("the schedule 1f1b-interleaved needs a multiple of its {} stages as number of "
                              "microbatches, not {}",
                              stages, microbatches),
                  less == 0 ? fmt::format("set the microbatches to {}", more)
                            : fmt::format("set the microbatches to {} or {}", less, more));
  }
}

PipelineSchedule make_schedule(ScheduleKind kind, int stages, int chunks, std::int64_t microbatches) {
  check_schedule(kind, stages, chunks, microbatches);
  const ScheduleTraits& traits = traits_of(kind);
  PipelineSchedule schedule{
      .kind = kind, .shape = {stages, chunks, traits.v_shaped}, .microbatches = microbatches, .stages = {}};
  const PipelineShape& shape = schedule.shape;
  std::vector<Order> orders;
  const auto each_stage = [&](auto&& make) {
    for (int s = 0; s < stages; ++s) orders.push_back(make(s));
  };
  // Maximum activations per stage, if weight gradients can be deferred.
  int limit = 0;
  switch (kind) {
    case ScheduleKind::kGPipe:
      each_stage([&](int) { return gpipe(shape, microbatches); });
      break;
    case ScheduleKind::kOneForwardOneBackward:
    case ScheduleKind::kInterleaved:
      each_stage([&](int s) { return one_forward_one_backward(shape, microbatches, s); });
      break;
    case ScheduleKind::kZeroBubbleH1:
      each_stage([&](int s) { return one_forward_one_backward(shape, microbatches, s); });
      limit = stages;  // as on the first stage of 1F1B
      break;
    case ScheduleKind::kZeroBubbleV:
      orders = repeat_block(earliest_block(stages, {4, 2, 4, 2}), microbatches);
      limit = 2 * stages;  // as in 1F1B: two chunks have the size of one 1F1B stage
      break;
    case ScheduleKind::kVHalf:
      orders = repeat_block(earliest_block(stages, {2, 1, 2, 1}), microbatches);
      limit = stages + 2;
      break;
    case ScheduleKind::kVMin:
      orders = repeat_block(earliest_block(stages, {1, 1, 1, 1}), microbatches);
      limit = (2 * stages + 2) / 3 + 2;
      break;
  }
  schedule.stages =
      with_transfers(shape, Arrangement(shape, microbatches, orders, traits.splits_backward, limit).take());
  return schedule;
}

}  // namespace primus::engine
