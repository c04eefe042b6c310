// Tests work that overlaps the transfer of tokens to experts on other ranks. Checks the order of launches and
// events on guard devices, which have asynchronous streams. Results have equal bits with and without overlap.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/local/thread_group.h"
#include "device/forwarding_device.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

// The launches and events that the host enqueues on a rank's streams. Streams are numbered in order of
// creation.
struct Order {
  enum class What : std::uint8_t { kProduct, kOtherKernel, kRecord, kWait };
  struct Entry {
    std::size_t stream;
    What what;
    const Event* event;
  };
  std::vector<Entry> entries;
  std::vector<StreamKind> streams;

  // If a rank has several communication streams, the last one created transfers the tokens. The compute
  // stream waits for each transfer. For each wait, returns the number of products, or of all kernels,
  // enqueued since the start of the transfer.
  std::vector<int> overlapped(bool products) const {
    std::size_t compute = 0, in_flight = 0, for_collectives = 0;
    for (std::size_t s = 0; s < streams.size(); ++s) {
      if (streams[s] == StreamKind::kCompute) compute = s;
      if (streams[s] != StreamKind::kCommunication) continue;
      in_flight = s;
      ++for_collectives;
    }
    if (for_collectives == 1) return {};
    std::map<const Event*, std::size_t> recorded;
    std::vector<int> counts;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Entry& entry = entries[i];
      if (entry.stream == in_flight && entry.what == What::kRecord) recorded[entry.event] = i;
      const auto start = recorded.find(entry.event);
      if (entry.stream != compute || entry.what != What::kWait || start == recorded.end()) continue;
      int count = 0;
      for (std::size_t k = start->second; k < i; ++k)
        count += entries[k].stream == compute &&
                 (entries[k].what == What::kProduct || (!products && entries[k].what == What::kOtherKernel));
      counts.push_back(count);
    }
    return counts;
  }
};

class RecordingStream final : public ForwardingStream {
 public:
  RecordingStream(std::unique_ptr<Stream> below, Order& order, std::size_t number, KernelFunction product)
      : ForwardingStream(std::move(below)), order_(order), number_(number), product_(product) {}
  void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
    note(kernel == product_ ? Order::What::kProduct : Order::What::kOtherKernel);
    ForwardingStream::launch(kernel, arguments, bytes);
  }
  void record(Event& event) override {
    note(Order::What::kRecord, &event);
    ForwardingStream::record(event);
  }
  void wait(Event& event) override {
    note(Order::What::kWait, &event);
    ForwardingStream::wait(event);
  }

 private:
  void note(Order::What what, const Event* event = nullptr) {
    order_.entries.push_back({number_, what, event});
  }
  Order& order_;
  std::size_t number_;
  KernelFunction product_;
};

class RecordingDevice final : public ForwardingDevice {
 public:
  RecordingDevice(std::unique_ptr<Device> below, Order& order)
      : ForwardingDevice(std::move(below)), order_(order) {}
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    order_.streams.push_back(kind);
    return std::make_unique<RecordingStream>(below().create_stream(kind), order_, order_.streams.size() - 1,
                                             kernels()[turbo::KernelId::kGemm].run);
  }

 private:
  Order& order_;
};

struct Training {
  std::vector<double> losses;
  std::map<std::string, std::vector<std::byte>> weights;  // by rank and name
  // Overlapped products and kernels in the last step of rank 0.
  std::vector<int> overlap, kernels;
  std::string went_wrong;  // first non-finite operator of rank 0
  bool same(const Training& other) const { return losses == other.losses && weights == other.weights; }
};

// Throws at a product that is enqueued while tokens are in flight.
class FailingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<FailingStream>(below().create_stream(kind), *this);
  }
  // The context of the rank that fails; null: none fails.
  void fail_overlapped(const turbo::Context* context) { context_ = context; }

 private:
  class FailingStream final : public ForwardingStream {
   public:
    FailingStream(std::unique_ptr<Stream> below, const FailingDevice& device)
        : ForwardingStream(std::move(below)), device_(device) {}
    void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
      if (device_.context_ && device_.context_->spared > 0 &&
          kernel == device_.kernels()[turbo::KernelId::kGemm].run)
        throw Error(ErrorKind::kIo, "the product failed");
      ForwardingStream::launch(kernel, arguments, bytes);
    }

   private:
    const FailingDevice& device_;
  };

  const turbo::Context* context_ = nullptr;
};

using Options = engine::ExpertParallel::Options;
constexpr Options kApart = {.shared_experts = false}, kShared = {}, kAlternating = {.microbatches = true};

SessionSettings settings_of(const ModelConfig& model, const Options& overlap) {
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.step.microbatches = 1;
  settings.step.expert_overlap = overlap;
  settings.evaluation = false;
  return settings;
}

TestBatch batch_of(const SessionSettings& settings, int step, int rank) {
  return {settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
          static_cast<std::uint64_t>(10 * step + rank)};
}

enum class Way : std::uint8_t { kAllGather, kAllToAll, kFp8, kTwoHops };

// Two hops need two hosts of two ranks.
engine::MeshShape shape_of(Way way) {
  return way == Way::kTwoHops ? engine::MeshShape{.expert = 4, .host = 2} : engine::MeshShape{.expert = 2};
}

// Trains two steps on two or four guard devices that share the experts. The first element of the parameter
// `poisoned` is NaN.
Training train_on_guards(Way way, const ModelConfig& model, const Options& overlap, bool recompute = false,
                         const std::string& poisoned = {}, int microbatches = 1) {
  SessionSettings settings = settings_of(model, overlap);
  settings.step.microbatches = microbatches;
  settings.step.recompute.full_layers = recompute ? model.layers : 0;
  settings.step.recompute.layers_per_group = recompute ? model.layers : 1;
  const engine::MeshShape shape = shape_of(way);
  Training training;
  auto worlds = comm::local::make_thread_group(shape.expert, {.timeout = std::chrono::seconds(60)});
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int r = 0; r < shape.expert; ++r) {
    threads.emplace_back([&, r] {
      Order order;
      engine::Rank rank(std::make_unique<RecordingDevice>(guard_device(), order),
                        engine::Mesh(std::move(worlds[static_cast<std::size_t>(r)]), shape));
      const auto session = open_session(rank, settings, builtin_families());
      session->store().initialize(rank.context(), 7);
      for (engine::Parameter& p : session->store().parameters()) {
        if (p.name != poisoned) continue;
        const float nan = NAN;
        rank.compute().copy_to_device(p.value.data, &nan, sizeof(nan));
        rank.compute().synchronize();
      }
      session->parallel().distribute_values();
      TrainingStep& step = session->step();
      for (int s = 0; s < 2; ++s) {
        order.entries.clear();
        step.begin(s + 1);
        std::vector<TestBatch> batches;
        for (int m = 0; m < microbatches; ++m) batches.push_back(batch_of(settings, s + 5 * m, r));
        for (int m = 0; m < microbatches; ++m) step.microbatch(m, batches[static_cast<std::size_t>(m)]);
        step.finish_gradients();
        const double loss = step.result().loss;
        step.update(s + 1, 1e-2, 0.1);
        if (r == 0) training.losses.push_back(loss);
      }
      const std::string went_wrong = poisoned.empty() ? "" : step.find_non_finite();
      rank.synchronize();
      const std::lock_guard lock(mutex);
      for (const engine::Parameter& p : session->store().parameters()) {
        if (p.unit) training.weights[std::to_string(r) + " " + p.name] = weight_bits(rank, p);
      }
      if (r == 0) {
        training.overlap = order.overlapped(true);
        training.kernels = order.overlapped(false);
        training.went_wrong = went_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return training;
}

// Returns a model with a dense block, and a block with routed and shared experts.
ModelConfig model_of(Way way) {
  ModelConfig model = tiny_deepseek();
  model.mtp = {};
  model.moe.experts = 8;
  model.moe.router.groups = 4;
  model.moe.training.all_to_all = way != Way::kAllGather;
  model.moe.training.fp8_dispatch = way == Way::kFp8;
  return model;
}

class ExpertOverlap : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, ExpertOverlap,
                         ::testing::Values(Way::kAllGather, Way::kAllToAll, Way::kFp8, Way::kTwoHops),
                         [](const auto& way) {
                           return way.param == Way::kAllGather  ? "AllGather"
                                  : way.param == Way::kAllToAll ? "AllToAll"
                                  : way.param == Way::kFp8      ? "Fp8"
                                                                : "TwoHops";
                         });

// In the forward pass, the shared experts' wide product overlaps the dispatch, and the narrow one overlaps
// the return. In the backward pass, the two gradients of the narrow product overlap the first transfer, and
// the two gradients of the wide product overlap the last transfer. The transfer between them gathers tokens
// again for the gradients of expert weights, and overlaps nothing.
TEST_P(ExpertOverlap, ProductsOfSharedExpertsRunBetweenStartAndWait) {
  const Training overlap = train_on_guards(GetParam(), model_of(GetParam()), kShared);
  EXPECT_EQ(overlap.overlap, (std::vector<int>{1, 1, 2, 0, 2}));
}

TEST_P(ExpertOverlap, ChangesNoBit) {
  const ModelConfig model = model_of(GetParam());
  const Training apart = train_on_guards(GetParam(), model, kApart);
  EXPECT_EQ(apart.overlap, std::vector<int>());
  EXPECT_TRUE(train_on_guards(GetParam(), model, kShared).same(apart));
  EXPECT_TRUE(train_on_guards(GetParam(), model, kShared, true).same(apart)) << "recomputed";
}

// A group of recomputed blocks is replayed while gradients of its last block are in flight.
TEST_P(ExpertOverlap, RecomputationRunsWhileTransfersAreInFlight) {
  ModelConfig model = model_of(GetParam());
  model.layers = 3;
  const Training apart = train_on_guards(GetParam(), model, kApart, true);
  EXPECT_TRUE(train_on_guards(GetParam(), model, kShared, true).same(apart));
  EXPECT_TRUE(train_on_guards(GetParam(), model, kShared, false).same(apart)) << "not recomputed";
}

// A backward pass alternates with the forward pass of the next microbatch. Only the transfers of the first
// forward pass and the last transfers of the last backward pass overlap nothing.
TEST_P(ExpertOverlap, KernelsOfAnotherMicrobatchRunBetweenStartAndWait) {
  ModelConfig model = model_of(GetParam());
  model.moe.shared_ffn = 0;
  const std::vector<int> overlap = train_on_guards(GetParam(), model, kAlternating, false, {}, 2).kernels;
  ASSERT_EQ(overlap.size(), 10U);  // 2 transfers of each forward pass, and 3 of each backward pass
  EXPECT_EQ(std::ranges::count(overlap, 0), 2 + 3) << ::testing::PrintToString(overlap);
  for (std::size_t i = 2; i < 7; ++i) EXPECT_GT(overlap[i], 0) << ::testing::PrintToString(overlap);
}

TEST_P(ExpertOverlap, AlternatingMicrobatchesChangeNoBit) {
  ModelConfig model = model_of(GetParam());
  model.layers = 3;
  for (const std::int64_t shared : {model.moe.shared_ffn, std::int64_t{0}}) {
    model.moe.shared_ffn = shared;
    const Training apart = train_on_guards(GetParam(), model, kApart, false, {}, 3);
    EXPECT_TRUE(train_on_guards(GetParam(), model, kAlternating, false, {}, 3).same(apart)) << shared;
    EXPECT_TRUE(train_on_guards(GetParam(), model, kAlternating, true, {}, 3).same(apart))
        << shared << ", recomputed";
    const Training two = train_on_guards(GetParam(), model, kApart, false, {}, 2);
    EXPECT_FALSE(two.same(apart));
    EXPECT_TRUE(train_on_guards(GetParam(), model, kAlternating, false, {}, 2).same(two)) << shared;
  }
}

// Trains a step that fails, and then a step that does not.
void expect_recovery(Way way, const ModelConfig& model, const Options& overlap, int microbatches) {
  const double expected = train_on_guards(way, model, overlap, false, {}, microbatches).losses.front();
  SessionSettings settings = settings_of(model, overlap);
  settings.step.microbatches = microbatches;
  on_ranks(
      shape_of(way).expert, shape_of(way),
      [&](engine::Rank& rank) {
        const auto session = open_session(rank, settings, builtin_families());
        session->store().initialize(rank.context(), 7);
        session->parallel().distribute_values();
        std::vector<TestBatch> batches;
        for (int m = 0; m < microbatches; ++m)
          batches.push_back(batch_of(settings, 5 * m, rank.mesh().rank()));
        auto& device = static_cast<FailingDevice&>(rank.device());
        TrainingStep& step = session->step();
        step.begin(1);
        device.fail_overlapped(&rank.context());
        const auto run = [&] {
          for (int m = 0; m < microbatches; ++m) step.microbatch(m, batches[static_cast<std::size_t>(m)]);
        };
        EXPECT_THROW(run(), Error);
        device.fail_overlapped(nullptr);
        if (!overlap.microbatches) {
          EXPECT_EQ(rank.context().spared, 0) << "no transfer overlaps products after the error";
        }
        step.begin(1);
        EXPECT_TRUE(rank.stash().empty());
        run();
        step.finish_gradients();
        EXPECT_EQ(step.result().loss, expected);
        rank.synchronize();
      },
      false, [] { return std::make_unique<FailingDevice>(guard_device()); });
}

// After a failed step, the caller can begin another step.
TEST_P(ExpertOverlap, AFailedStepLeavesNoTransferInFlight) {
  expect_recovery(GetParam(), model_of(GetParam()), kShared, 1);
  expect_recovery(GetParam(), model_of(GetParam()), kAlternating, 2);
}

// The search for non-finite values reads operators' outputs, but not values that are still in flight.
TEST_P(ExpertOverlap, TheFirstFaultyOperatorIsNamed) {
  EXPECT_EQ(train_on_guards(GetParam(), model_of(GetParam()), kShared, false, "layers.1.moe.down").went_wrong,
            "layers.1.linear_combine");
}

}  // namespace
}  // namespace primus::test
