// Tests several live tapes with two halves of a model (a zero-bubble V on one device). Every legal order of
// the forward, input-gradient and weight-gradient work of all microbatches gives the same gradient bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "engine/parallel/schedule_runner.h"
#include "lm/train/tiny_model.h"

namespace primus::engine {
namespace {

using test::bits_of;
using test::TestBatch;
using Kind = Work::Kind;

constexpr std::int64_t kMicrobatches = 4, kBatch = 2, kSequence = 16;

// Returns a schedule with two chunks on a single stage.
PipelineSchedule schedule_of(std::vector<Work> list, bool weights) {
  const ScheduleKind kind = weights ? ScheduleKind::kZeroBubbleV : ScheduleKind::kGPipe;
  return {.kind = kind,
          .shape = {1, 2, traits_of(kind).v_shaped},
          .microbatches = kMicrobatches,
          .stages = {std::move(list)}};
}

// Returns a random order of all work that respects the dependencies: chunks forward in order, then backward
// from the last chunk, and each weight gradient after the backward pass of its chunk.
PipelineSchedule random_schedule(unsigned seed, bool weights) {
  std::mt19937 random(seed);
  struct Progress {
    int forwards = 0, backwards = 0;
    bool weight[2] = {false, false};
  };
  std::vector<Progress> progress(kMicrobatches);
  std::vector<Work> list;
  for (;;) {
    std::vector<Work> ready;
    for (std::int64_t m = 0; m < kMicrobatches; ++m) {
      const Progress& p = progress[m];
      if (p.forwards < 2) ready.push_back({Kind::kForward, p.forwards, m});
      if (p.forwards == 2 && p.backwards < 2) ready.push_back({Kind::kBackward, 1 - p.backwards, m});
      for (int chunk = 0; chunk < 2 && weights; ++chunk) {
        if (p.backwards > 1 - chunk && !p.weight[chunk]) ready.push_back({Kind::kWeight, chunk, m});
      }
    }
    if (ready.empty()) return schedule_of(std::move(list), weights);
    const Work work = ready[random() % ready.size()];
    Progress& p = progress[work.microbatch];
    if (work.kind == Kind::kForward) ++p.forwards;
    if (work.kind == Kind::kBackward) ++p.backwards;
    if (work.kind == Kind::kWeight) p.weight[work.chunk] = true;
    list.push_back(work);
  }
}

// Returns the schedule of gradient accumulation, with one microbatch at a time.
PipelineSchedule sequential_schedule() {
  std::vector<Work> list;
  for (std::int64_t m = 0; m < kMicrobatches; ++m) {
    for (int chunk : {0, 1}) list.push_back({Kind::kForward, chunk, m});
    for (int chunk : {1, 0}) list.push_back({Kind::kBackward, chunk, m});
  }
  return schedule_of(std::move(list), false);
}

// A model in two chunks, on a measuring or a real rank.
class Executor : private ChunkedModel {
 public:
  Executor(Rank& rank, const ModelConfig& config, const RecomputePolicy& recompute)
      : rank_(rank),
        model_(config, builtin_families(), store_, even_parts(config.layers, 2)),
        recompute_(recompute) {
    store_.allocate({.compute = DType::kF32, .train = true}, rank.persistent());
    model_.allocate_tables(rank, kSequence);
    parallel_ = std::make_unique<DataParallel>(rank, store_, DataParallelSettings{});
    store_.initialize(rank.context(), 11);
    for (std::int64_t m = 0; m < kMicrobatches; ++m)
      batches_.emplace_back(kBatch * kSequence, config.vocab, static_cast<std::uint64_t>(m));
    for (std::int64_t t = 0; t < kBatch * kSequence; ++t)
      positions_.push_back(static_cast<std::int32_t>(t % kSequence));
    weights_.assign(kBatch * kSequence, 1.0F / (kBatch * kSequence));
  }

  void run(const PipelineSchedule& schedule) {
    ScheduleRunner runner(rank_, *parallel_, *this,
                          {.schedule = schedule,
                           .dtype = DType::kF32,
                           .shape = {kBatch * kSequence, model_.config().hidden},
                           .recompute = {recompute_, recompute_}});
    parallel_->begin_step(kMicrobatches);
    runner.begin();
    runner.run(kMicrobatches);
    EXPECT_TRUE(runner.finished());
    EXPECT_EQ(losses_, kMicrobatches);
    parallel_->finish_gradients();
    rank_.synchronize();
  }

  std::vector<std::vector<std::byte>> gradients() {
    std::vector<std::vector<std::byte>> bits;
    for (const ParameterUnit& unit : store_.units()) bits.push_back(bits_of(rank_, unit.gradient));
    return bits;
  }

 private:
  Value upload(Tape& tape, DType dtype, const void* host) {
    Value value = tape.input(dtype, {kBatch * kSequence}, false);
    if (!rank_.measuring()) rank_.compute().copy_to_device(value.tensor().data, host, value.tensor().bytes());
    return value;
  }

  Outputs forward(Tape& tape, int chunk, std::int64_t m, Value x) override {
    ModelInputs inputs{.blocks = {.batch = kBatch, .sequence = kSequence}};
    inputs.blocks.positions = upload(tape, DType::kI32, positions_.data());
    if (chunk == 0) {
      inputs.tokens = upload(tape, DType::kI32, batches_[m].tokens.data());
      return {.next = model_.forward(0, inputs), .losses = {}};
    }
    inputs.labels = upload(tape, DType::kI32, batches_[m].labels.data());
    inputs.loss_weights = upload(tape, DType::kF32, weights_.data());
    return {.next = {}, .losses = {model_.loss(model_.forward(1, inputs, std::move(x)), inputs)}};
  }

  void losses_ready(const std::vector<Value>& losses) override { losses_ += std::ssize(losses); }

  Rank& rank_;
  ParameterStore store_;
  LanguageModel model_;
  std::unique_ptr<DataParallel> parallel_;
  RecomputePolicy recompute_;
  std::vector<TestBatch> batches_;
  std::vector<std::int32_t> positions_;
  std::vector<float> weights_;
  std::int64_t losses_ = 0;
};

std::vector<std::vector<std::byte>> gradients_of(const PipelineSchedule& schedule,
                                                 const RecomputePolicy& recompute, bool tied,
                                                 std::unique_ptr<Device> device) {
  ModelConfig config = test::tiny_llama();
  config.tied_embeddings = tied;
  Rank rank(std::move(device));
  { Executor(rank, config, recompute).run(schedule); }
  rank.reserve(rank.high_water());
  Executor executor(rank, config, recompute);
  executor.run(schedule);
  return executor.gradients();
}

class AnyLegalSchedule : public testing::TestWithParam<bool> {};

TEST_P(AnyLegalSchedule, GivesTheSameBits) {
  const bool tied = GetParam();
  const auto reference = gradients_of(sequential_schedule(), {}, tied, turbo::make_cpu_device(2));
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const RecomputePolicy recompute{
        .classes = 0, .full_layers = seed % 3 == 0 ? 4 : 0, .layers_per_group = 2};
    EXPECT_EQ(gradients_of(random_schedule(seed, true), recompute, tied, turbo::make_cpu_device(2)),
              reference);
    EXPECT_EQ(gradients_of(random_schedule(seed, false), recompute, tied, turbo::make_cpu_device(2)),
              reference);
  }
  EXPECT_EQ(gradients_of(random_schedule(99, true), {}, tied, test::guard_device()), reference);
}

INSTANTIATE_TEST_SUITE_P(Embeddings, AnyLegalSchedule, testing::Bool(),
                         [](const auto& tied) { return tied.param ? "Tied" : "Untied"; });

// Weight gradients of microbatches in order are not parked. Weight gradients in reversed order are parked,
// which takes more stash.
TEST(WeightGradientQueue, StoresOnlyGradientsThatAreOutOfOrder) {
  Rank rank(turbo::make_cpu_device(1));
  Executor executor(rank, test::tiny_llama(), {});
  std::vector<Work> reversed;
  for (std::int64_t m = kMicrobatches - 1; m >= 0; --m) {
    for (int chunk : {0, 1}) reversed.push_back({Kind::kForward, chunk, m});
    for (int chunk : {1, 0}) reversed.push_back({Kind::kBackward, chunk, m});
  }
  executor.run(schedule_of(reversed, false));
  const std::int64_t parked = rank.high_water().stash;
  Rank other(turbo::make_cpu_device(1));
  Executor in_order(other, test::tiny_llama(), {});
  in_order.run(sequential_schedule());
  EXPECT_GT(parked, other.high_water().stash);
}

}  // namespace
}  // namespace primus::engine
