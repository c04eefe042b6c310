#include "engine/parallel/schedule_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "base/check.h"
#include "device/watched.h"

namespace primus::engine {

using Kind = Work::Kind;

namespace {

// Returns a label for profilers, such as "F3" with the number of the stage.
auto label_for(const Work& work, int stage) {
  return [&work, stage] {
    const std::string kind = !work.transfer()           ? std::string(1, letter_of(work.kind))
                             : work.kind == Kind::kSend ? "send"
                                                        : "receive";
    std::string arguments = fmt::format(R"("work": "{}", "stage": {}, "chunk": {}, "microbatch": {})", kind,
                                        stage, work.chunk, work.microbatch);
    if (work.transfer())
      arguments += fmt::format(R"(, "gradient": {}, "peer": {})", work.gradient, work.peer);
    return WorkLabel{.name = label_of(work), .category = "schedule", .arguments = std::move(arguments)};
  };
}

}  // namespace

ScheduleRunner::ScheduleRunner(Rank& rank, DataParallel& parallel, ChunkedModel& model, Settings settings)
    : rank_(rank),
      parallel_(parallel),
      model_(model),
      settings_(std::move(settings)),
      evaluation_(rank, settings_.pipeline, settings_.schedule.shape),
      splits_backward_(traits_of(settings_.schedule.kind).splits_backward),
      queue_(splits_backward_ ? WeightGradientQueue::Policy::kDeferred : settings_.weight_gradients) {
  position_ = end_ = list().size();
  PRIMUS_CHECK("ScheduleRunner",
               !settings_.strands || (shape().parts() == 1 && !splits_backward_ && in_order()));
  if (!settings_.pipeline) return;
  computed_ = rank.device().create_event();
  connect();
}

// A library may connect two ranks at their first transfer, and block the host until both ranks reach this
// transfer. In the middle of a schedule, the ranks might wait for each other's kernels. So connections are
// made before the first step.
void ScheduleRunner::connect() {
  if (rank_.measuring()) return;
  std::set<int> peers;
  for (const Work& work : list()) {
    if (work.transfer()) peers.insert(work.peer);
  }
  const auto count = static_cast<std::int64_t>(peers.size());
  const Buffer buffer = rank_.stash().allocate(2 * count * size_of(DType::kF32));
  const Tensor all = buffer.view(DType::kF32, {2 * count});
  rank_.compute().fill_zero(all.data, all.bytes());
  std::vector<comm::Transfer> transfers;
  std::int64_t i = 0;
  for (const int peer : peers) {
    transfers.push_back(comm::Transfer::send(all.slice(i, i + 1), peer));
    transfers.push_back(comm::Transfer::receive(all.slice(i + 1, i + 2), peer));
    i += 2;
  }
  const std::unique_ptr<Event> done = rank_.device().create_event();
  exchange(transfers, *done);
  rank_.synchronize();
}

void ScheduleRunner::begin(std::int64_t microbatches) {
  if (!finished()) abandon();
  position_ = 0;
  end_ = list().size();
  if (microbatches < 0) return;
  const auto rest = std::ranges::find_if(list(), [=](const Work& w) { return w.microbatch >= microbatches; });
  end_ = static_cast<std::size_t>(rest - list().begin());
  PRIMUS_CHECK("ScheduleRunner::begin", microbatches > 0 && (end_ == list().size() || in_turn()));
}

void ScheduleRunner::run(std::int64_t microbatches) {
  if (stop_ && stop_->load(std::memory_order_relaxed)) throw StopRequest();
  while (position_ < end_) {
    const Work work = list()[position_];
    if (work.transfer()) {
      transfer(transfers_end(position_, false));
      continue;
    }
    const bool pair = alternates(work);
    if ((work.kind == Kind::kForward || pair) && work.microbatch + pair >= microbatches) return;
    ++position_;
    if (pair) {
      const Work& next = list()[position_++];
      settings_.strands->run([&] { backward(work); }, [&] { forward(next); });
      continue;
    }
    // Receives that follow this work overlap the work. So memory for the receives is allocated before the
    // kernels are enqueued.
    if (const std::size_t end = transfers_end(position_, true); end > position_) transfer(end);
    switch (work.kind) {
      case Kind::kForward:
        forward(work);
        break;
      case Kind::kBackward:
        backward(work);
        break;
      default:
        weight(work);
    }
  }
  retire_flights(0);  // ensures that every step begins with the same memory
}

bool ScheduleRunner::in_order() const {
  return shape().parts() == 1 && std::ranges::is_sorted(list(), {}, &Work::microbatch);
}

bool ScheduleRunner::in_turn() const { return !settings_.strands && in_order(); }

bool ScheduleRunner::alternates(const Work& work) const {
  return settings_.strands && work.kind == Kind::kBackward && position_ + 1 < end_;
}

// Labels of alternating passes would enclose each other's work, so these passes have none.
Stream* ScheduleRunner::labelled_stream() const {
  return settings_.strands && settings_.strands->running() ? nullptr : &rank_.compute();
}

void ScheduleRunner::forward(const Work& work) {
  Buffer input;
  if (part_of(work) > 0) input = take_arrival(work, false);
  const ScheduleClock::Timed timed(clock_, ScheduleClock::Kind::kForward, work);
  const WatchedWork watched(labelled_stream(), label_for(work, settings_.stage));
  if (idle_.empty()) idle_.push_back(&lanes_.emplace_back(rank_.context(), rank_.stash()));
  Lane& lane = *idle_.back();
  idle_.pop_back();
  alive_.emplace(Key{work.chunk, work.microbatch}, &lane);
  lane.tape.begin(
      {.train = true,
       .chunk = work.chunk,
       .microbatch = work.microbatch,
       .recompute = settings_.recompute.empty() ? RecomputePolicy() : settings_.recompute[work.chunk],
       .precision = settings_.precision,
       .weight_gradients = &queue_,
       .parallel = &parallel_,
       .stop = stop_});
  lane.tape.set_gradient_observer(gradient_observer_);
  if (input) lane.received = lane.tape.input(settings_.dtype, settings_.shape, true, std::move(input));
  ChunkedModel::Outputs outputs = model_.forward(lane.tape, work.chunk, work.microbatch, lane.received);
  lane.losses = std::move(outputs.losses);
  if (!outputs.next) return;
  lane.sent = outputs.next.slot();
  hand_on(work, part_of(work) + 1, false, lane.tape.share(outputs.next));
}

void ScheduleRunner::backward(const Work& work) {
  Lane& lane = *alive_.at({work.chunk, work.microbatch});
  const int part = part_of(work);
  if (part + 1 < shape().parts()) lane.tape.set_gradient(lane.sent, take_arrival(work, true));
  const ScheduleClock::Timed timed(clock_, ScheduleClock::Kind::kBackward, work);
  const WatchedWork watched(labelled_stream(), label_for(work, settings_.stage));
  lane.tape.backward();
  if (!splits_backward_) queue_.run(lane.tape);
  if (!lane.losses.empty()) model_.losses_ready(lane.losses);
  lane.losses.clear();
  if (part > 0) hand_on(work, part - 1, true, lane.tape.share_gradient(lane.received));
  lane.received = {};
  if (!splits_backward_) end_lane(lane);
}

void ScheduleRunner::weight(const Work& work) {
  Lane& lane = *alive_.at({work.chunk, work.microbatch});
  const ScheduleClock::Timed timed(clock_, ScheduleClock::Kind::kWeight, work);
  const WatchedWork watched(&rank_.compute(), label_for(work, settings_.stage));
  parallel_.begin_pass(DataParallel::Pass::kWeight, work.chunk);
  queue_.run(lane.tape);
  end_lane(lane);
}

void ScheduleRunner::end_lane(Lane& lane) {
  lane.done = true;
  release_lanes();
}

// Releases finished lanes. A finished lane may have to wait until the weight gradients of another lane have
// had their turn.
void ScheduleRunner::release_lanes() {
  std::erase_if(alive_, [&](const auto& entry) {
    Lane& lane = *entry.second;
    if (!lane.done || !lane.tape.settled()) return false;
    lane.tape.clear();
    lane.sent = -1;
    lane.done = false;
    idle_.push_back(&lane);
    return true;
  });
  if (alive_.empty()) parallel_.end_microbatch();
}

void ScheduleRunner::abandon() {
  for (auto& [key, lane] : alive_) {
    lane->received = {};
    lane->losses.clear();
    lane->tape.abandon();
    lane->done = false;
    idle_.push_back(lane);
  }
  alive_.clear();
  for (auto& arrivals : arrivals_) arrivals.clear();
  position_ = end_;
}

void ScheduleRunner::evaluate(Tape& tape, std::int64_t microbatch) {
  evaluation_.run(
      tape, settings_.dtype, settings_.shape,
      [&](int chunk) {
        tape.begin({.train = false,
                    .chunk = chunk,
                    .precision = settings_.precision,
                    .parallel = &parallel_,
                    .adapters = settings_.adapters,
                    .stop = stop_});
      },
      [&](int chunk, Value x) {
        ChunkedModel::Outputs outputs = model_.forward(tape, chunk, microbatch, std::move(x));
        if (!outputs.next) model_.losses_ready(outputs.losses);
        return std::move(outputs.next);
      });
  tape.clear();
  parallel_.end_microbatch();
}

// --- passing tensors between parts

void ScheduleRunner::hand_on(const Work& work, int to_part, bool gradient, Buffer buffer) {
  PRIMUS_CHECK("ScheduleRunner", buffer);
  if (shape().stage_of(to_part) == settings_.stage) {
    arrivals_[gradient][{shape().chunk_of(to_part), work.microbatch}] = {std::move(buffer), nullptr};
  } else {
    departures_[gradient][{work.chunk, work.microbatch}] = std::move(buffer);
  }
}

Buffer ScheduleRunner::take_arrival(const Work& work, bool gradient) {
  auto node = arrivals_[gradient].extract({work.chunk, work.microbatch});
  PRIMUS_CHECK("ScheduleRunner", !node.empty());
  if (node.mapped().flight) wait_for(*node.mapped().flight);
  return std::move(node.mapped().buffer);
}

std::size_t ScheduleRunner::transfers_end(std::size_t from, bool receives_only) const {
  while (from < list().size() &&
         (receives_only ? list()[from].kind == Kind::kReceive : list()[from].transfer())) {
    ++from;
  }
  return from;
}

void ScheduleRunner::transfer(std::size_t end) {
  constexpr std::size_t kFlightsWithSends = 2;
  auto flight = std::make_shared<Flight>();
  std::vector<comm::Transfer> batch;
  const std::span<const Work> works(list().data() + position_, end - position_);
  for (; position_ < end; ++position_) {
    const Work& work = list()[position_];
    const Key key{work.chunk, work.microbatch};
    if (work.kind == Kind::kSend) {
      auto node = departures_[work.gradient].extract(key);
      PRIMUS_CHECK("ScheduleRunner", !node.empty());
      batch.push_back(comm::Transfer::send(node.mapped().view(settings_.dtype, settings_.shape), work.peer));
      flight->sent.push_back(std::move(node.mapped()));
    } else {
      Buffer buffer = rank_.stash().allocate(settings_.shape.elements() * size_of(settings_.dtype));
      batch.push_back(comm::Transfer::receive(buffer.view(settings_.dtype, settings_.shape), work.peer));
      arrivals_[work.gradient][key] = {std::move(buffer), flight};
    }
  }
  if (events_.empty()) events_.push_back(rank_.device().create_event());
  flight->event = std::move(events_.back());
  events_.pop_back();
  {
    const ScheduleClock::Timed timed(clock_, ScheduleClock::Kind::kWait, works.front());
    exchange(batch, *flight->event, works);
  }
  if (flight->sent.empty()) return;
  flights_.push_back(std::move(flight));
  retire_flights(kFlightsWithSends);
}

void ScheduleRunner::exchange(std::span<const comm::Transfer> batch, Event& done,
                              std::span<const Work> works) {
  Stream& stream = rank_.communication();
  rank_.compute().record(*computed_);
  stream.wait(*computed_);
  {
    std::deque<WatchedWork> watched;
    for (const Work& work : works) watched.emplace_back(&stream, label_for(work, settings_.stage));
    settings_.pipeline->exchange(stream, batch);
  }
  stream.record(done);
}

void ScheduleRunner::retire_flights(std::size_t maximum) {
  while (flights_.size() > maximum) {
    wait_for(*flights_.front());
    flights_.pop_front();
  }
}

void ScheduleRunner::wait_for(Flight& flight) {
  if (!flight.event) return;
  {
    const ScheduleClock::Timed timed(clock_, ScheduleClock::Kind::kWait, Work{});
    rank_.compute().wait(*flight.event);
  }
  events_.push_back(std::move(flight.event));
  flight.sent.clear();
}

}  // namespace primus::engine
