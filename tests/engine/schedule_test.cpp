// Several tapes live at once: any legal order of forward, input-gradient and weight-gradient work over
// microbatches and two halves of a model (a zero-bubble V on one device) gives bit-identical gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "lm/train/tiny_model.h"

namespace primus::engine {
namespace {

using test::bits_of;
using test::TestBatch;

constexpr std::int64_t kMicrobatches = 4, kBatch = 2, kSequence = 16;

struct Work {
  enum Kind { kForward, kBackward, kWeight } kind;
  int chunk;
  std::int64_t microbatch;
};

using Schedule = std::vector<Work>;

// A random order of all work that respects: forward(1) after forward(0), backward after forward and from the
// last chunk down, weight gradients after backward.
Schedule random_schedule(unsigned seed, bool weights) {
  std::mt19937 random(seed);
  struct Progress {
    int forwards = 0, backwards = 0;
    bool weight[2] = {false, false};
  };
  std::vector<Progress> progress(kMicrobatches);
  Schedule schedule;
  for (;;) {
    std::vector<Work> ready;
    for (std::int64_t m = 0; m < kMicrobatches; ++m) {
      const Progress& p = progress[m];
      if (p.forwards < 2) ready.push_back({Work::kForward, p.forwards, m});
      if (p.forwards == 2 && p.backwards < 2) ready.push_back({Work::kBackward, 1 - p.backwards, m});
      for (int chunk = 0; chunk < 2 && weights; ++chunk) {
        if (p.backwards > 1 - chunk && !p.weight[chunk]) ready.push_back({Work::kWeight, chunk, m});
      }
    }
    if (ready.empty()) return schedule;
    const Work work = ready[random() % ready.size()];
    Progress& p = progress[work.microbatch];
    if (work.kind == Work::kForward) ++p.forwards;
    if (work.kind == Work::kBackward) ++p.backwards;
    if (work.kind == Work::kWeight) p.weight[work.chunk] = true;
    schedule.push_back(work);
  }
}

// Plain gradient accumulation: one microbatch after the other.
Schedule sequential_schedule() {
  Schedule schedule;
  for (std::int64_t m = 0; m < kMicrobatches; ++m) {
    for (int chunk : {0, 1}) schedule.push_back({Work::kForward, chunk, m});
    for (int chunk : {1, 0}) schedule.push_back({Work::kBackward, chunk, m});
  }
  return schedule;
}

// Executes a schedule on whatever rank it is given, measuring or real.
class Executor {
 public:
  Executor(Rank& rank, const ModelConfig& config, WeightGradientQueue::Policy policy,
           const RecomputePolicy& recompute)
      : rank_(rank), model_(config, builtin_families(), store_, 2), queue_(policy), recompute_(recompute) {
    store_.allocate({.compute = DType::kF32, .train = true}, rank.persistent());
    model_.allocate_tables(rank, kSequence);
    parallel_ = std::make_unique<DataParallel>(rank, store_, DataParallelSettings{});
    store_.initialize(rank.context(), 11);
    for (std::int64_t m = 0; m < kMicrobatches; ++m) {
      batches_.emplace_back(kBatch * kSequence, config.vocab, static_cast<std::uint64_t>(m));
      for (int chunk : {0, 1}) lanes_[chunk].emplace_back(rank);
    }
    for (std::int64_t t = 0; t < kBatch * kSequence; ++t)
      positions_.push_back(static_cast<std::int32_t>(t % kSequence));
    weights_.assign(kBatch * kSequence, 1.0F / (kBatch * kSequence));
  }

  void run(const Schedule& schedule) {
    parallel_->begin_step(kMicrobatches);
    for (const Work& work : schedule) {
      switch (work.kind) {
        case Work::kForward:
          forward(work.chunk, work.microbatch);
          break;
        case Work::kBackward:
          backward(work.chunk, work.microbatch);
          break;
        case Work::kWeight:
          queue_.run(lanes_[work.chunk][work.microbatch].tape);
          break;
      }
    }
    EXPECT_EQ(queue_.pending(), 0U);
    parallel_->finish_gradients();
    for (auto& lanes : lanes_) {
      for (Lane& lane : lanes) lane.clear();
    }
  }

  std::vector<std::vector<std::byte>> gradients() {
    std::vector<std::vector<std::byte>> bits;
    for (const ParameterUnit& unit : store_.units()) bits.push_back(bits_of(rank_, unit.gradient));
    return bits;
  }

 private:
  // One chunk of one microbatch.
  struct Lane {
    explicit Lane(Rank& rank) : tape(rank.context(), rank.stash()) {}
    Tape tape;
    ModelInputs inputs;
    Value received, sent;
    void clear() {
      inputs = {};
      received = sent = {};
      tape.clear();
    }
  };

  Value upload(Tape& tape, DType dtype, const void* host) {
    Value value = tape.input(dtype, {kBatch * kSequence}, false);
    if (!rank_.measuring()) rank_.compute().copy_to_device(value.tensor().data, host, value.tensor().bytes());
    return value;
  }

  void forward(int chunk, std::int64_t m) {
    Lane& lane = lanes_[chunk][m];
    lane.tape.begin({.train = true,
                     .chunk = chunk,
                     .microbatch = m,
                     .recompute = recompute_,
                     .weight_gradients = &queue_,
                     .parallel = parallel_.get()});
    lane.inputs = {.batch = kBatch, .sequence = kSequence};
    lane.inputs.positions = upload(lane.tape, DType::kI32, positions_.data());
    if (chunk == 0) {
      lane.inputs.tokens = upload(lane.tape, DType::kI32, batches_[m].tokens.data());
      lane.sent = model_.forward(0, lane.inputs);
      return;
    }
    lane.inputs.labels = upload(lane.tape, DType::kI32, batches_[m].labels.data());
    lane.inputs.weights = upload(lane.tape, DType::kF32, weights_.data());
    // "Receive": what another stage would have sent.
    const Value& sent = lanes_[0][m].sent;
    lane.received = lane.tape.input(DType::kF32, sent.shape(), true);
    if (!rank_.measuring()) {
      rank_.compute().copy_on_device(lane.received.tensor().data, sent.tensor().data, sent.tensor().bytes());
    }
    lane.sent = model_.loss(model_.forward(1, lane.inputs, lane.received), lane.inputs);
  }

  void backward(int chunk, std::int64_t m) {
    Lane& lane = lanes_[chunk][m];
    if (chunk == 0) lane.tape.set_gradient(lane.sent, lanes_[1][m].tape.gradient(lanes_[1][m].received));
    lane.tape.backward();
  }

  Rank& rank_;
  ParameterStore store_;
  LanguageModel model_;
  std::unique_ptr<DataParallel> parallel_;
  WeightGradientQueue queue_;
  RecomputePolicy recompute_;
  std::vector<TestBatch> batches_;
  std::vector<std::int32_t> positions_;
  std::vector<float> weights_;
  std::deque<Lane> lanes_[2];
};

std::vector<std::vector<std::byte>> gradients_of(const Schedule& schedule, WeightGradientQueue::Policy policy,
                                                 const RecomputePolicy& recompute, bool tied,
                                                 std::unique_ptr<Device> device) {
  ModelConfig config = test::tiny_llama();
  config.tied_embeddings = tied;
  Rank rank(std::move(device));
  { Executor(rank, config, policy, recompute).run(schedule); }
  rank.reserve(rank.high_water());
  Executor executor(rank, config, policy, recompute);
  executor.run(schedule);
  return executor.gradients();
}

class AnyLegalSchedule : public testing::TestWithParam<bool> {};

TEST_P(AnyLegalSchedule, GivesTheSameBits) {
  using Policy = WeightGradientQueue::Policy;
  const bool tied = GetParam();
  const auto reference =
      gradients_of(sequential_schedule(), Policy::kInline, {}, tied, turbo::make_cpu_device(2));
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const RecomputePolicy recompute{
        .classes = 0, .full_layers = seed % 3 == 0 ? 4 : 0, .layers_per_group = 2};
    EXPECT_EQ(gradients_of(random_schedule(seed, true), Policy::kDeferred, recompute, tied,
                           turbo::make_cpu_device(2)),
              reference);
    EXPECT_EQ(gradients_of(random_schedule(seed, false), Policy::kInline, recompute, tied,
                           turbo::make_cpu_device(2)),
              reference);
  }
  EXPECT_EQ(gradients_of(random_schedule(99, true), Policy::kDeferred, {}, tied, test::guard_device()),
            reference);
}

INSTANTIATE_TEST_SUITE_P(Embeddings, AnyLegalSchedule, testing::Bool(),
                         [](const auto& tied) { return tied.param ? "Tied" : "Untied"; });

// Zero-bubble V with its usual order keeps microbatches in turn, so nothing is ever parked; a hostile order
// parks.
TEST(WeightGradientQueue, ParksOnlyWhatIsOutOfTurn) {
  Rank rank(turbo::make_cpu_device(1));
  Executor executor(rank, test::tiny_llama(), WeightGradientQueue::Policy::kInline, {});
  Schedule reversed;
  for (std::int64_t m = kMicrobatches - 1; m >= 0; --m) {
    for (int chunk : {0, 1}) reversed.push_back({Work::kForward, chunk, m});
    for (int chunk : {1, 0}) reversed.push_back({Work::kBackward, chunk, m});
  }
  executor.run(reversed);
  const std::int64_t parked = rank.high_water().stash;
  Rank other(turbo::make_cpu_device(1));
  Executor in_order(other, test::tiny_llama(), WeightGradientQueue::Policy::kInline, {});
  in_order.run(sequential_schedule());
  EXPECT_GT(parked, other.high_water().stash);
}

}  // namespace
}  // namespace primus::engine
