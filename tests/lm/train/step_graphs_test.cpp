// Tests steps that are recorded once and replayed. Their bits equal those of steps that run kernel by kernel,
// even if other work runs between the steps. The tests also check that replayed steps run from graphs. A
// device with recordable streams simulates a GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "config/trainer_config.h"
#include "device/counting_device.h"
#include "device/recording_device.h"
#include "lm/generate/generate.h"
#include "lm/model/golden_configs.h"
#include "lm/optimizer/update_rule.h"
#include "lm/train/rank_training.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

using Before = std::function<void(TrainingSession& session, const data::BatchView& batch)>;
using Counts = RecordingDevice::Counts;

// One step runs kernel by kernel, one is recorded, and three are replayed.
constexpr int kSteps = 5, kReplayed = 3;

std::unique_ptr<Device> recording(std::unique_ptr<Device> below, const std::shared_ptr<Counts>& counts) {
  return std::make_unique<RecordingDevice>(std::move(below), counts);
}

TrainedState train_plain(SessionSettings settings, const Before& before = {}) {
  settings.step.record_after = 0;
  return train(turbo::make_cpu_device(2), settings, kSteps, builtin_families(), before);
}

// Trains with graphs on `below`, and checks the numbers of graphs and kernels.
TrainedState train_recorded(SessionSettings settings, std::unique_ptr<Device> below,
                            const Before& before = {}) {
  settings.step.record_after = 1;
  const auto counts = std::make_shared<Counts>();
  std::vector<Counts> seen;  // before each step
  const auto look = [&](TrainingSession& session, const data::BatchView& batch) {
    if (before) before(session, batch);
    seen.push_back(*counts);
  };
  const TrainedState state =
      train(recording(std::move(below), counts), settings, kSteps, builtin_families(), look);
  const auto microbatches = static_cast<int>(settings.step.microbatches);
  const int parts = microbatches > 1 ? 4 : 3;
  EXPECT_EQ(counts->captures, parts);
  EXPECT_EQ(counts->replays, parts + kReplayed * (microbatches + 2));
  if (before) return state;
  // A replayed step has the kernels of the first step, all from graphs.
  const std::int64_t kernels = seen[1].kernels - seen[0].kernels;
  EXPECT_GT(kernels, 100);
  EXPECT_EQ(counts->kernels - seen[kSteps - 1].kernels, 0);
  EXPECT_EQ(counts->replayed_kernels - seen[kSteps - 1].replayed_kernels, kernels);
  return state;
}

class GraphsOfFamilies : public testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Goldens, GraphsOfFamilies, testing::ValuesIn(golden_configs()),
                         [](const auto& named) { return named.param.name; });

TEST_P(GraphsOfFamilies, ChangeNoBit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SessionSettings s = tiny_settings(compute, GetParam().config);
    s.step = {.micro_batch = 1, .sequence = 40, .microbatches = 2};  // longer than windows
    s.model.mtp.enabled = s.model.mtp.layers > 0;
    if (s.model.moe.experts > 0) {
      s.model.moe.training = {.balance_loss = 0.02, .z_loss = 0.01, .jitter = 0.05};
      if (s.model.moe.choice_bias) s.model.moe.training.bias_update_rate = 0x1p-7;
    }
    EXPECT_EQ(train_recorded(s, turbo::make_cpu_device(2)), train_plain(s));
  }
}

// Tests graphs on an asynchronous device on which an access to a stale address faults.
TEST(Graphs, ChangeNoBitOnAGuardDevice) {
  for (const ModelConfig& model : {tiny_llama(), tiny_mixture(), tiny_deepseek(), tiny_lora_dropout(),
                                   tiny_lora_dropout_after(), tiny_lora_mixture()}) {
    const SessionSettings s = tiny_settings(DType::kBF16, model);
    EXPECT_EQ(train_recorded(s, guard_device()), train_plain(s)) << model.family;
  }
}

TEST(Graphs, ChangeNoBitUnderAnyStepSetting) {
  std::vector<SessionSettings> all(9, tiny_settings(DType::kBF16));
  all[0].step.microbatches = 1;
  all[1].step.recompute = {.full_layers = 4, .layers_per_group = 2};
  all[2].step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
  all[2].step.recompute = {.classes = ~0U};
  all[3].step.packed_documents = true;
  all[4].gradients = DType::kBF16;
  all[4].optimizer.split_masters = true;
  all[5].optimizer.rules = update_rules_of({.optimizer = "muon"});
  all[6].optimizer.rules = update_rules_of({.optimizer = "lion"});
  all[7].optimizer.rules = update_rules_of({.exp_avg_dtype = "bf16", .exp_avg_sq_dtype = "bf16"});
  all[8].step.precision = {.fp8 = true, .gradients = DType::kF8E5M2, .delayed = {.steps = 3}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(train_recorded(all[i], turbo::make_cpu_device(2)), train_plain(all[i])) << i;
  }
}

// Evaluation and generation use the arenas whose addresses graphs contain. Replayed steps must not change.
TEST(GraphsBesideOtherWork, EvaluationsAndTextsChangeNothing) {
  SessionSettings s = tiny_settings(DType::kBF16, tiny_deepseek());
  s.sample_capacity = 24;
  const TrainedState expected = train_plain(s);
  std::vector<double> losses;
  std::vector<std::vector<std::int32_t>> texts;
  const Before between = [&](TrainingSession& session, const data::BatchView& batch) {
    session.step().begin_evaluation();
    session.step().evaluate(batch);
    losses.push_back(session.step().evaluation_loss());
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    texts.push_back(generate(*session.make_decoder(), prompt, {.max_tokens = 20}).ids);
  };
  EXPECT_EQ(train_plain(s, between), expected);
  const auto plain_losses = std::exchange(losses, {});
  const auto plain_texts = std::exchange(texts, {});
  EXPECT_EQ(train_recorded(s, guard_device(), between), expected);
  EXPECT_EQ(losses, plain_losses);
  EXPECT_EQ(texts, plain_texts);
}

TestBatch batch_of(const SessionSettings& settings, int step, std::int64_t microbatch) {
  return {settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
          static_cast<std::uint64_t>(step * 100 + microbatch)};
}

// Runs the parts of a step separately, for tests that intervene between them.
class Training {
 public:
  Training(std::unique_ptr<Device> device, SessionSettings settings, std::int64_t record_after)
      : settings_(std::move(settings)), rank_(std::move(device)) {
    settings_.step.record_after = record_after;
    session_ = open_session(rank_, settings_, builtin_families());
    session_->store().initialize(rank_.context(), 7);
  }
  engine::Rank& rank() { return rank_; }
  TrainingSession& session() { return *session_; }
  TrainingStep& step() { return session_->step(); }

  // Computes the gradients of a step, without the update. `change` modifies each batch.
  void gradients(int number, const std::function<void(TestBatch&, std::int64_t)>& change = {}) {
    step().begin(number + 1);
    for (std::int64_t i = 0; i < settings_.step.microbatches; ++i) {
      TestBatch batch = batch_of(settings_, number, i);
      if (change) change(batch, i);
      step().microbatch(i, batch);
    }
    step().finish_gradients();
  }
  void update(int number) { step().update(number + 1, 1e-2, 0.1); }
  StepResult whole(int number) {
    gradients(number);
    const StepResult result = step().result();
    update(number);
    return result;
  }
  std::vector<std::vector<std::byte>> weights() {
    std::vector<std::vector<std::byte>> bits;
    for (const engine::ParameterUnit& unit : session_->store().units())
      bits.push_back(weight_bits(rank_, unit));
    return bits;
  }

 private:
  SessionSettings settings_;
  engine::Rank rank_;
  std::unique_ptr<TrainingSession> session_;
};

std::vector<std::vector<std::byte>> plain_weights(const SessionSettings& settings) {
  Training run(turbo::make_cpu_device(2), settings, 0);
  for (int s = 0; s < kSteps; ++s) run.whole(s);
  return run.weights();
}

// The host reads a step's result after it has started the next step, and waits for nothing else.
TEST(GraphsBesideOtherWork, TheHostWaitsOncePerStep) {
  const SessionSettings settings = tiny_settings(DType::kBF16, tiny_mixture());
  const auto waits = std::make_shared<CountingDevice::Waits>();
  const auto counts = std::make_shared<Counts>();
  Training run(recording(std::make_unique<CountingDevice>(guard_device(), waits), counts), settings, 1);
  const std::int64_t before = waits->streams + waits->events;
  for (int s = 0; s < kSteps; ++s) {
    run.gradients(s);
    if (s > 0) run.step().result();
    run.update(s);
  }
  run.step().result();
  EXPECT_EQ(waits->streams + waits->events - before, kSteps);
  EXPECT_EQ(run.step().graphs().replayed_steps(), kReplayed);
  EXPECT_EQ(run.weights(), plain_weights(settings));
}

// A replayed step with a non-finite result changes nothing. Running its batch kernel by kernel finds the
// operator, and later steps are replayed again.
TEST(GraphsBesideOtherWork, ABadStepIsReportedAndSkipped) {
  const SessionSettings settings = tiny_settings();
  constexpr std::int32_t kBad = 1, kGood = 2;
  const auto train_with = [&](std::unique_ptr<Device> device, std::int64_t record_after) {
    Training run(std::move(device), settings, record_after);
    for (engine::Parameter& p : run.session().store().parameters()) {
      if (p.name != "embedding") continue;
      const float nan = NAN;
      run.rank().compute().copy_to_device(static_cast<char*>(p.value.data) + kBad * settings.model.hidden * 4,
                                          &nan, sizeof(nan));
      run.rank().compute().synchronize();
    }
    std::vector<double> losses;
    for (int s = 0; s < kSteps + 1; ++s) {
      run.gradients(s, [&](TestBatch& batch, std::int64_t microbatch) {
        for (std::int32_t& token : batch.tokens) token = token == kBad ? kGood : token;
        if (s == 3 && microbatch == 1) batch.tokens[5] = kBad;
      });
      const StepResult result = run.step().result();
      EXPECT_EQ(std::isnan(result.loss), s == 3);
      if (s == 3) {
        EXPECT_EQ(run.step().find_non_finite(), "embedding");
      } else {
        losses.push_back(result.loss);
      }
      run.update(s);
    }
    EXPECT_EQ(run.step().graphs().replayed_steps(), record_after == 0 ? 0 : kReplayed + 1);
    return losses;
  };
  EXPECT_EQ(train_with(recording(guard_device(), std::make_shared<Counts>()), 1),
            train_with(turbo::make_cpu_device(2), 0));
}

// Forwards to a recording device, and calls `on_kernel` for each kernel that is enqueued, recorded or not.
// Reports the number of kernels in the way in which a GPU reports its choices of kernels.
class HookedDevice final : public ForwardingDevice {
 public:
  HookedDevice(std::unique_ptr<Device> below, std::function<void()> on_kernel)
      : ForwardingDevice(std::move(below)), on_kernel_(std::move(on_kernel)) {}
  DeviceProperties properties() const override { return with_graphs(ForwardingDevice::properties()); }
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<HookedStream>(below().create_stream(kind), *this);
  }
  std::unique_ptr<Graph> capture(Stream& stream, const std::function<void()>& work) override {
    auto graph = below().capture(static_cast<HookedStream&>(stream).below(), work);
    return std::make_unique<HookedGraph>(std::move(graph));
  }
  std::vector<KernelChoice> choices() const override {
    if (kernels_ == 0) return {};
    return {{"kernels", kernels_}};
  }

 private:
  class HookedStream final : public ForwardingStream {
   public:
    HookedStream(std::unique_ptr<Stream> below, HookedDevice& device)
        : ForwardingStream(std::move(below)), device_(device) {}
    void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
      ++device_.kernels_;
      device_.on_kernel_();
      below().launch(kernel, arguments, bytes);
    }

   private:
    HookedDevice& device_;
  };
  class HookedGraph final : public Graph {
   public:
    explicit HookedGraph(std::unique_ptr<Graph> below) : below_(std::move(below)) {}
    void launch(Stream& stream) override { below_->launch(static_cast<HookedStream&>(stream).below()); }

   private:
    std::unique_ptr<Graph> below_;
  };

  std::function<void()> on_kernel_;
  std::int64_t kernels_ = 0;
};

// A stopped step leaves no trace, whether it runs kernel by kernel, is recorded, or is replayed.
TEST(GraphsBesideOtherWork, AbortedStepsLeaveNoTrace) {
  for (const ModelConfig& model : {tiny_llama(), tiny_deepseek()}) {
    const SessionSettings settings = tiny_settings(DType::kBF16, model);
    std::atomic<bool> stop = false;
    int left = -1;  // kernels until a stop is requested
    const auto count_down = [&] {
      if (left-- == 0) stop = true;
    };
    const auto counts = std::make_shared<Counts>();
    Training run(std::make_unique<HookedDevice>(recording(turbo::make_cpu_device(2), counts), count_down),
                 settings, 1);
    run.step().set_stop(&stop);
    for (int s = 0; s < kSteps; ++s) {
      // A replayed step enqueues few kernels, and checks for a stop before each microbatch.
      for (const int kernels : {0, 40, 150}) {
        if (s > 1 && kernels > 0) continue;
        left = kernels;
        stop = s > 1;
        EXPECT_THROW(run.gradients(s), StopRequest) << s << ", " << kernels;
        left = -1;
        stop = false;
      }
      run.whole(s);
    }
    EXPECT_EQ(run.step().graphs().replayed_steps(), kReplayed);
    EXPECT_EQ(run.weights(), plain_weights(settings)) << model.family;
  }
}

TEST(GraphsBesideOtherWork, ReplaysCountExpertChoices) {
  const SessionSettings settings = tiny_settings();
  const auto count = [&](std::int64_t record_after) {
    Training run(std::make_unique<HookedDevice>(
                     recording(turbo::make_cpu_device(2), std::make_shared<Counts>()), [] {}),
                 settings, record_after);
    for (int s = 0; s < kSteps; ++s) run.whole(s);
    return run.step().graphs().choices();
  };
  const std::vector<KernelChoice> plain = count(0);
  ASSERT_EQ(plain.size(), 1U);
  EXPECT_EQ(count(1), plain);
}

// --- cases without recording

TEST(GraphsElsewhere, ADeviceWithoutGraphsTrainsWithoutGraphs) {
  const SessionSettings settings = tiny_settings();
  Training run(turbo::make_cpu_device(2), settings, 1);
  for (int s = 0; s < kSteps; ++s) run.whole(s);
  EXPECT_EQ(run.step().why_not_recorded(), "cpu does not support recorded graphs");
  EXPECT_FALSE(run.step().graphs().recorded());
  EXPECT_EQ(run.step().graphs().replayed_steps(), 0);
  EXPECT_EQ(run.weights(), plain_weights(settings));
}

TEST(GraphsElsewhere, AFailedRecordingReportsTheNextStep) {
  class FailingDevice final : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    DeviceProperties properties() const override { return with_graphs(ForwardingDevice::properties()); }
    std::unique_ptr<Graph> capture(Stream&, const std::function<void()>&) override {
      throw Error(ErrorKind::kIo, "the driver says no");
    }
  };
  Training run(std::make_unique<FailingDevice>(turbo::make_cpu_device(2)), tiny_settings(), 1);
  run.whole(0);
  try {
    run.whole(1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string(error.what()).find("the driver says no"), std::string::npos);
    EXPECT_NE(error.hint().find("enable_cuda_graph=false"), std::string::npos);
  }
}

// Steps of GPipe are not recorded: all microbatches are in flight together, so the stash is not empty between
// two microbatches.
TEST(GraphsElsewhere, ASchedulesMicrobatchesMustEndOneByOne) {
  SessionSettings settings = tiny_settings();
  const auto counts = std::make_shared<Counts>();
  const auto why = [&](engine::ScheduleKind schedule) {
    settings.step.pipeline.schedule = schedule;
    Training run(recording(turbo::make_cpu_device(2), counts), settings, 1);
    for (int s = 0; s < 3; ++s) run.whole(s);
    EXPECT_EQ(run.step().graphs().recorded(), run.step().why_not_recorded().empty());
    return run.step().why_not_recorded();
  };
  EXPECT_NE(why(engine::ScheduleKind::kGPipe), "");
  EXPECT_EQ(counts->captures, 0);
  EXPECT_EQ(why(engine::ScheduleKind::kOneForwardOneBackward), "");
  EXPECT_EQ(counts->captures, 4);
}

TEST(GraphsElsewhere, StepsOfSeveralRanksAreNotRecorded) {
  SessionSettings settings = tiny_settings();
  const Outcome expected = train_on_ranks(settings, 2, {}, 3, 4);
  settings.step.record_after = 1;
  EXPECT_EQ(train_on_ranks(settings, 2, {}, 3, 4), expected);
  on_ranks(2, {}, [&](engine::Rank& rank) {
    const auto session = open_session(rank, settings, builtin_families());
    EXPECT_NE(session->step().why_not_recorded(), "");
  });
}

// A step whose routing is traced, as in verification, runs kernel by kernel between replayed steps.
TEST(GraphsElsewhere, ATracedRoutingIsNotReplayed) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.step.microbatches = 1;
  Training run(recording(turbo::make_cpu_device(2), std::make_shared<Counts>()), settings, 1);
  const std::int64_t choices =
      settings.step.micro_batch * settings.step.sequence * settings.model.moe.router.top_k;
  void* const memory = run.rank().device().allocate(settings.model.layers * choices * 4);
  const RoutingTrace trace{.use = RoutingTrace::Use::kRecord,
                           .experts = Tensor(memory, DType::kI32, {settings.model.layers, choices})};
  for (int s = 0; s < kSteps; ++s) {
    run.step().set_routing_trace(s == 3 ? &trace : nullptr);
    run.whole(s);
  }
  EXPECT_EQ(run.step().graphs().replayed_steps(), kReplayed - 1);
  EXPECT_EQ(run.weights(), plain_weights(settings));
  run.rank().device().release(memory);
}

}  // namespace
}  // namespace primus::test
