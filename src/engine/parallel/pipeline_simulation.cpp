#include <algorithm>
#include <limits>
#include <stdexcept>

#include "engine/parallel/pipeline_schedule.h"

namespace primus::engine {
namespace {

using Kind = Work::Kind;

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule), shape_(schedule.shape), costs_(costs) {
    const std::vector<double> unknown(static_cast<std::size_t>(schedule.microbatches), kUnknown);
    for (auto* times : {&made_[0], &made_[1], &arrived_[0], &arrived_[1]})
      times->assign(static_cast<std::size_t>(shape_.parts()), unknown);
    stages_.resize(schedule.stages.size());
  }

  PipelineTimeline run() {
    PipelineTimeline timeline;
    timeline.stages.resize(stages_.size());
    for (std::size_t s = 0; s < stages_.size(); ++s) timeline.stages[s].resize(schedule_.stages[s].size());
    for (bool progress = true; progress;) {
      progress = false;
      for (int s = 0; s < shape_.stages; ++s) {
        while (compute(s, timeline) || transfer(s, timeline)) progress = true;
      }
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (next(static_cast<int>(s), false) || next(static_cast<int>(s), true))
        throw std::logic_error("pipeline schedule: stages wait for each other");
    }
    summarize(timeline, traits_of(schedule_.kind).splits_backward);
    return timeline;
  }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  using Times = std::vector<std::vector<double>>;  // [part][microbatch]
  // A stage's computation and its transfers run concurrently: computation in list order, and transfers in
  // list order.
  struct Stage {
    std::size_t position[2] = {0, 0};
    double free[2] = {0, 0};
  };

  static double& at(Times& times, int part, std::int64_t m) {
    return times[static_cast<std::size_t>(part)][static_cast<std::size_t>(m)];
  }
  Stage& stage(int s) { return stages_[static_cast<std::size_t>(s)]; }

  // Returns the next transfer (if `transfer`) or the next computation of a stage; null: none.
  const Work* next(int s, bool transfer) {
    const std::vector<Work>& list = schedule_.stages[static_cast<std::size_t>(s)];
    std::size_t& position = stage(s).position[transfer];
    while (position < list.size() && list[position].transfer() != transfer) ++position;
    return position < list.size() ? &list[position] : nullptr;
  }

  void done(int s, const Work& work, double start, double end, PipelineTimeline& timeline) {
    std::size_t& position = stage(s).position[work.transfer()];
    timeline.stages[static_cast<std::size_t>(s)][position++] = {work, start, end};
    stage(s).free[work.transfer()] = end;
  }

  // Returns the neighbouring part from which a part receives or to which it sends; -1: none.
  int neighbour(int part, bool gradient) const {
    const int other = gradient ? part + 1 : part - 1;
    return other == shape_.parts() ? -1 : other;
  }

  bool compute(int s, PipelineTimeline& timeline) {
    const Work* work = next(s, false);
    if (!work) return false;
    const int part = shape_.part(s, work->chunk);
    const std::int64_t m = work->microbatch;
    const bool gradient = work->kind == Kind::kBackward;
    double ready = 0;
    if (work->kind == Kind::kWeight) {
      ready = at(made_[1], part, m);
    } else {
      if (gradient) ready = at(made_[0], part, m);
      if (const int from = neighbour(part, gradient); from >= 0) {
        const bool here = shape_.stage_of(from) == s;
        ready = std::max(ready, here ? at(made_[gradient], from, m) : at(arrived_[gradient], part, m));
      }
    }
    if (ready == kUnknown) return false;
    const double whole = costs_.backward + (traits_of(schedule_.kind).splits_backward ? 0 : costs_.weight);
    const double cost = work->kind == Kind::kForward ? costs_.forward : gradient ? whole : costs_.weight;
    const double start = std::max(ready, stage(s).free[0]), end = start + cost;
    if (work->kind != Kind::kWeight) at(made_[gradient], part, m) = end;
    done(s, *work, start, end, timeline);
    return true;
  }

  // A transfer runs when it is the next transfer of both its stages.
  bool transfer(int s, PipelineTimeline& timeline) {
    const Work* work = next(s, true);
    if (!work) return false;
    const Work* other = next(work->peer, true);
    if (!other || other->peer != s || other->kind == work->kind) return false;
    const bool sends = work->kind == Kind::kSend;
    const Work& send = sends ? *work : *other;
    const Work& receive = sends ? *other : *work;
    const int from = sends ? s : work->peer, to = sends ? work->peer : s;
    const int part = shape_.part(from, send.chunk), target = shape_.part(to, receive.chunk);
    if (send.microbatch != receive.microbatch || send.gradient != receive.gradient ||
        neighbour(target, send.gradient) != part) {
      throw std::logic_error("pipeline schedule: two transfers collide");
    }
    const double ready = at(made_[send.gradient], part, send.microbatch);
    if (ready == kUnknown) return false;
    const double start = std::max({ready, stage(from).free[1], stage(to).free[1]});
    const double end = start + costs_.transfer;
    at(arrived_[send.gradient], target, send.microbatch) = end;
    const Work sent = send, received = receive;
    done(from, sent, start, end, timeline);
    done(to, received, start, end, timeline);
    return true;
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  std::vector<Stage> stages_;
  // made_: the time when a part's output or its input's gradient was computed. arrived_: the time when a part
  // received its input.
  Times made_[2], arrived_[2];
};

}  // namespace

void summarize(PipelineTimeline& timeline, bool splits_backward) {
  const Kind frees = splits_backward ? Kind::kWeight : Kind::kBackward;
  double computed = 0;
  timeline.makespan = timeline.bubble = 0;
  timeline.peak_stash.clear();
  for (const auto& stage : timeline.stages) {
    int held = 0, peak = 0;
    for (const TimedWork& t : stage) {
      if (t.work.transfer()) continue;
      timeline.makespan = std::max(timeline.makespan, t.end);
      computed += t.end - t.start;
      if (t.work.kind == Kind::kForward) peak = std::max(peak, ++held);
      if (t.work.kind == frees) --held;
    }
    timeline.peak_stash.push_back(peak);
  }
  if (timeline.makespan > 0)
    timeline.bubble = 1 - computed / (timeline.makespan * static_cast<double>(timeline.stages.size()));
}

PipelineTimeline simulate(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  return Simulation(schedule, costs).run();
}

}  // namespace primus::engine
