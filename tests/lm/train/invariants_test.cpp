// Tests options that must not change a single bit: a device whose memory the host cannot access, the number
// of threads, recomputation, and whether weight gradients are deferred. Measuring a step must predict its
// memory exactly.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "device/forwarding_device.h"
#include "lm/generate/generate.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

using engine::OperatorClass;
using engine::RecomputePolicy;
using Policy = engine::WeightGradientQueue::Policy;

struct Case {
  const char* model;
  ModelConfig (*config)();
  DType compute;
};
// Returns the model with four blocks, as the recomputation policies below need them.
ModelConfig four_blocks(ModelConfig c) {
  c.layers = 4;
  return c;
}
constexpr Case kCases[] = {{"llama", tiny_llama, DType::kF32},
                           {"llama", tiny_llama, DType::kBF16},
                           {"lora", tiny_lora, DType::kF32},
                           {"lora", tiny_lora, DType::kBF16},
                           {"lora_dropout", tiny_lora_dropout, DType::kF32},
                           {"lora_dropout", tiny_lora_dropout, DType::kBF16},
                           {"lora_dropout_after", tiny_lora_dropout_after, DType::kF32},
                           {"lora_mixture", tiny_lora_mixture, DType::kF32},
                           {"lora_mixture", tiny_lora_mixture, DType::kBF16},
                           {"mixture", tiny_mixture, DType::kF32},
                           {"mixture", tiny_mixture, DType::kBF16},
                           {"qwen3_next", tiny_qwen3_next, DType::kF32},
                           {"qwen3_next", tiny_qwen3_next, DType::kBF16},
                           {"deepseek", tiny_deepseek, DType::kF32},
                           {"deepseek", tiny_deepseek, DType::kBF16},
                           {"lfm2", [] { return four_blocks(tiny_lfm2()); }, DType::kF32},
                           {"lfm2_moe", [] { return four_blocks(tiny_lfm2_moe()); }, DType::kBF16}};

// Counts down the kernels of a device, and requests a stop at 0.
struct Countdown {
  std::atomic<bool> stop{false};
  int left = -1;
  int ended_early = 0;  // kernels that a stop interrupted
};

// The CPU device with a Countdown.
class CountdownDevice final : public ForwardingDevice {
 public:
  explicit CountdownDevice(Countdown& countdown)
      : ForwardingDevice(turbo::make_cpu_device(2)), countdown_(countdown) {}
  std::unique_ptr<Stream> create_stream(StreamKind kind) override {
    return std::make_unique<CountdownStream>(below().create_stream(kind), countdown_);
  }

 private:
  class CountdownStream final : public ForwardingStream {
   public:
    CountdownStream(std::unique_ptr<Stream> stream, Countdown& countdown)
        : ForwardingStream(std::move(stream)), countdown_(countdown) {}
    void launch(KernelFunction kernel, const void* arguments, std::size_t bytes) override {
      if (countdown_.left-- == 0) countdown_.stop = true;
      try {
        below().launch(kernel, arguments, bytes);
      } catch (const StopRequest&) {
        ++countdown_.ended_early;
        throw;
      }
    }

   private:
    Countdown& countdown_;
  };

  Countdown& countdown_;
};

// Stops each step some kernels later than the step before, until a step completes. Returns the number of
// steps.
int leave_halfway(TrainingStep& step, const data::BatchView& batch, Countdown& countdown) {
  constexpr int kStride = 23;
  step.set_stop(&countdown.stop);
  int left = 0;
  for (bool whole = false; !whole; ++left) {
    countdown.stop = false;
    countdown.left = left * kStride;
    step.begin(1);
    try {
      step.microbatch(0, batch);
      step.microbatch(1, batch);
      whole = true;
    } catch (const StopRequest&) {
      EXPECT_TRUE(countdown.stop);
    }
  }
  // After an immediate stop, not even the first operator runs.
  countdown.stop = true;
  EXPECT_THROW(step.evaluate(batch), StopRequest);
  EXPECT_THROW(step.microbatch(0, batch), StopRequest);
  countdown.stop = false;
  countdown.left = -1;
  step.set_stop(nullptr);
  return left - 1;
}

class Invariants : public testing::TestWithParam<Case> {
 protected:
  static SessionSettings settings_of(const Case& c) { return tiny_settings(c.compute, c.config()); }
  // Returns the reference, which is trained once for all tests of a case.
  static const TrainedState& reference_of(const Case& c) {
    static std::map<std::pair<std::string, DType>, TrainedState> known;
    const auto [place, fresh] = known.try_emplace({c.model, c.compute});
    if (fresh) place->second = train(turbo::make_cpu_device(2), settings_of(c));
    return place->second;
  }

  SessionSettings settings_ = settings_of(GetParam());
  const TrainedState& reference_ = reference_of(GetParam());
};

TEST_P(Invariants, TrainingMovesTheLoss) {
  ASSERT_EQ(reference_.steps.size(), 2U);
  // A random model predicts uniformly, so the loss starts near ln(vocabulary).
  EXPECT_NEAR(reference_.steps[0].first, std::log(97.0), 0.5);
  EXPECT_GT(reference_.steps[0].second, 1e-3);
  EXPECT_NE(reference_.weights, train(turbo::make_cpu_device(2), settings_, 1).weights);
}

TEST_P(Invariants, TwoRunsAndAnyNumberOfThreadsAgree) {
  EXPECT_EQ(train(turbo::make_cpu_device(2), settings_), reference_);
  EXPECT_EQ(train(turbo::make_cpu_device(1), settings_), reference_);
  EXPECT_EQ(train(turbo::make_cpu_device(3), settings_), reference_);
}

// A whole step runs as on a GPU: the host cannot access the device memory, and streams run late.
TEST_P(Invariants, TrainingRunsOnAGuardDevice) { EXPECT_EQ(train(guard_device(), settings_), reference_); }

TEST_P(Invariants, RecomputationChangesNothing) {
  std::vector<RecomputePolicy> policies;
  for (OperatorClass c :
       {OperatorClass::kNorm, OperatorClass::kLinear, OperatorClass::kRope, OperatorClass::kAttention,
        OperatorClass::kActivation, OperatorClass::kRouting, OperatorClass::kExperts}) {
    policies.push_back({.classes = RecomputePolicy::bit(c)});
  }
  policies.push_back({.classes = ~0U});
  for (std::int64_t layers : {1, 3, 4}) policies.push_back({.full_layers = layers});
  for (std::int64_t group : {2, 3, 4}) policies.push_back({.full_layers = 4, .layers_per_group = group});
  for (const std::vector<std::int64_t>& layers : {std::vector<std::int64_t>{2}, {0, 3}, {1, 2}}) {
    policies.push_back({.layers = layers});
  }
  for (const RecomputePolicy& policy : policies) {
    settings_.step.recompute = policy;
    SCOPED_TRACE(testing::Message() << "classes " << policy.classes << ", full layers " << policy.full_layers
                                    << ", group " << policy.layers_per_group << ", chosen layers "
                                    << testing::PrintToString(policy.layers));
    EXPECT_EQ(train(turbo::make_cpu_device(1), settings_), reference_);
  }
}

TEST_P(Invariants, DeferringWeightGradientsChangesNothing) {
  settings_.step.weight_gradients = Policy::kDeferred;
  EXPECT_EQ(train(turbo::make_cpu_device(1), settings_), reference_);
  settings_.step.recompute = {.full_layers = 4, .layers_per_group = 2};
  EXPECT_EQ(train(turbo::make_cpu_device(1), settings_), reference_);
}

// A stopped step leaves no trace: repeated from the start, it gives equal bits.
TEST_P(Invariants, AnAbortedStepLeavesNoTrace) {
  for (const bool deferred : {false, true}) {
    settings_.step.weight_gradients = deferred ? Policy::kDeferred : Policy::kInline;
    int left = 0;
    Countdown countdown;
    const TrainedState state =
        train(std::make_unique<CountdownDevice>(countdown), settings_, 2, builtin_families(),
              [&](TrainingSession& session, const data::BatchView& batch) {
                left += leave_halfway(session.step(), batch, countdown);
              });
    EXPECT_GT(left, 6);
    EXPECT_GT(countdown.ended_early, left / 4);
    EXPECT_EQ(state, reference_);
  }
}

// Generating text between steps does not change the training.
TEST_P(Invariants, WritingSamplesChangesNothing) {
  settings_.sample_capacity = 24;
  std::vector<std::vector<std::int32_t>> texts;
  const auto write = [&](TrainingSession& session, const data::BatchView&) {
    const std::vector<std::int32_t> prompt = {1, 2, 3};
    texts.push_back(generate(*session.make_decoder(), prompt, {.max_tokens = 20}).ids);
  };
  for (const bool hidden : {false, true}) {
    EXPECT_EQ(
        train(hidden ? guard_device() : turbo::make_cpu_device(1), settings_, 2, builtin_families(), write),
        reference_);
  }
  ASSERT_EQ(texts.size(), 4U);
  EXPECT_EQ(texts[0].size(), 20U);
  // Equal weights generate equal texts on every device.
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_EQ(texts[1], texts[3]);
}

TEST_P(Invariants, HoldForPackedDocuments) {
  settings_.step.packed_documents = true;
  const TrainedState packed = train(turbo::make_cpu_device(1), settings_);
  EXPECT_NE(packed, reference_);
  EXPECT_EQ(train(guard_device(), settings_), packed);
  settings_.step.recompute = {.full_layers = 4, .layers_per_group = 2};
  settings_.step.weight_gradients = Policy::kDeferred;
  EXPECT_EQ(train(turbo::make_cpu_device(1), settings_), packed);
}

// Two documents in one sequence give the results of two sequences.
TEST(PackedDocuments, DoNotSeeEachOther) {
  const auto step_of = [](std::int64_t batch, std::int64_t sequence, bool packed) {
    SessionSettings settings = tiny_settings();
    settings.step = {
        .micro_batch = batch, .sequence = sequence, .microbatches = 1, .packed_documents = packed};
    engine::Rank rank(turbo::make_cpu_device(2));
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
    TestBatch tokens(32, settings.model.vocab, 3);
    if (packed) tokens.pack({0, 16});
    session->step().begin();
    session->step().microbatch(0, tokens);
    session->step().finish_gradients();
    return session->step().result();
  };
  const StepResult packed = step_of(1, 32, true), apart = step_of(2, 16, false),
                   joined = step_of(1, 32, false);
  EXPECT_NEAR(packed.loss, apart.loss, 1e-6 * apart.loss);
  EXPECT_NEAR(packed.gradient_norm, apart.gradient_norm, 1e-5 * apart.gradient_norm);
  EXPECT_GT(std::abs(joined.loss - apart.loss), 1e-4 * apart.loss);
}

INSTANTIATE_TEST_SUITE_P(Models, Invariants, testing::ValuesIn(kCases), [](const auto& c) {
  return std::string(c.param.model) + "_" + std::string(name_of(c.param.compute));
});

TEST(Recompute, SavesMemory) {
  auto stash = [](const RecomputePolicy& policy) {
    SessionSettings settings = tiny_settings();
    settings.model.layers = 12;
    settings.step.recompute = policy;
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, settings, builtin_families()).memory.stash;
  };
  const std::int64_t none = stash({});
  EXPECT_LT(stash({.classes = RecomputePolicy::bit(OperatorClass::kActivation)}), none);
  // Recomputing norms needs only the sums of the residual stream, not the addends. A block keeps these sums
  // anyway. The stash is smaller by all 24 norm outputs except those in use at the peak.
  const SessionSettings tiny = tiny_settings();
  const std::int64_t of_one = tiny.step.micro_batch * tiny.step.sequence * tiny.model.hidden * 4;
  EXPECT_LT(stash({.classes = RecomputePolicy::bit(OperatorClass::kNorm)}), none - 20 * of_one);
  EXPECT_LT(stash({.full_layers = 6}), stash({.full_layers = 3}));
  // If all twelve layers are recomputed, the stash has the activations of one layer and twelve residual
  // streams, well below a third.
  EXPECT_LT(stash({.full_layers = 12}), none / 3);
}

// Logits are made in as few slices as 256 MiB allow, of similar size and in whole tiles of 64 rows.
TEST(Measure, SlicesOfLogitsAreEvenAndFit) {
  const auto cpu = turbo::make_cpu_device(1);
  const std::int64_t vocab = 262144;  // 256 rows per slice
  EXPECT_EQ(engine::lm_head_slice_tokens(*cpu, 100, vocab), 100);
  EXPECT_EQ(engine::lm_head_slice_tokens(*cpu, 256, vocab), 256);
  EXPECT_EQ(engine::lm_head_slice_tokens(*cpu, 700, vocab), 256);
  EXPECT_EQ(engine::lm_head_slice_tokens(*cpu, 1024, vocab), 256);
}

// The arenas have exactly the measured sizes: a step that needs one byte more throws.
TEST(Measure, PredictsWhatTheStepUsesOverConfigurations) {
  std::vector<SessionSettings> configurations(13, tiny_settings());
  configurations[1].compute = DType::kBF16;
  configurations[2].model.tied_embeddings = true;
  configurations[2].step.sequence = 40;
  configurations[3].step.recompute = {.full_layers = 2};
  configurations[3].model.layers = 5;
  configurations[4].step.weight_gradients = Policy::kDeferred;
  configurations[4].step.micro_batch = 5;
  configurations[5].model.vocab = 300007;  // this vocabulary needs several slices of logits
  configurations[5].model.hidden = 24;
  configurations[5].step.sequence = 64;
  configurations[5].step.micro_batch = 4;
  configurations[5].step.microbatches = 1;
  configurations[6].model = configurations[7].model = tiny_mixture();
  configurations[7].step.recompute = {.full_layers = 2};
  configurations[7].compute = DType::kBF16;
  for (std::size_t i : {8, 9, 10}) configurations[i].model = tiny_deepseek();
  configurations[9].step.recompute = {.full_layers = 4, .layers_per_group = 3};
  configurations[9].compute = DType::kBF16;
  configurations[10].step.weight_gradients = Policy::kDeferred;
  configurations[10].model.tied_embeddings = true;
  configurations[11].model = tiny_lfm2();
  configurations[11].step.recompute = {.full_layers = 2};
  configurations[12].model = tiny_lfm2_moe();
  configurations[12].compute = DType::kBF16;
  ASSERT_LT(engine::lm_head_slice_tokens(*turbo::make_cpu_device(1), 256, 300007), 256);
  for (SessionSettings& settings : configurations) {
    settings.evaluation = false;
    engine::Rank measuring(turbo::make_cpu_device(2));
    const engine::MemoryPlan plan = measure_session(measuring, settings, builtin_families()).memory;
    engine::Rank rank(turbo::make_cpu_device(2));
    rank.reserve(plan);
    TrainingSession session(rank, settings, builtin_families());
    session.store().initialize(rank.context(), 1);
    session.step().begin();
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      session.step().microbatch(
          i, TestBatch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab, 3));
    }
    session.step().finish_gradients();
    session.step().update(1, 1e-3, 0);
    EXPECT_TRUE(std::isfinite(session.step().result().loss));
    const engine::MemoryPlan used = rank.high_water();
    EXPECT_EQ(used.persistent, plan.persistent);
    EXPECT_EQ(used.stash, plan.stash);
    EXPECT_EQ(used.scratch, plan.scratch);
  }
}

// A device with separate memory, as on a GPU.
class DeviceApart final : public ForwardingDevice {
 public:
  DeviceApart() : ForwardingDevice(turbo::make_cpu_device(2)) {}
  DeviceProperties properties() const override {
    DeviceProperties properties = ForwardingDevice::properties();
    properties.host_memory = false;
    return properties;
  }
};

// On devices with separate memory, fp32 logits exist for only one part of a slice at a time.
TEST(LmHead, PartsOfASliceHaveTheBitsOfTheSlice) {
  SessionSettings settings = tiny_settings(DType::kBF16);
  settings.model.layers = 1;
  settings.step = {.micro_batch = 16, .sequence = 40, .microbatches = 2};
  EXPECT_EQ(train(std::make_unique<DeviceApart>(), settings), train(turbo::make_cpu_device(2), settings));
  const auto scratch = [&](std::unique_ptr<Device> device) {
    engine::Rank rank(std::move(device));
    return measure_session(rank, settings, builtin_families()).memory.scratch;
  };
  settings.model.vocab = 20000;
  const std::int64_t of_slice = settings.step.micro_batch * settings.step.sequence * settings.model.vocab;
  const std::int64_t whole = scratch(turbo::make_cpu_device(2)),
                     parts = scratch(std::make_unique<DeviceApart>());
  EXPECT_GE(whole, of_slice * (4 + 2));
  // The workspace of bf16 products depends on the instruction set; here it is below 1/64 of a slice.
  EXPECT_LT(parts, of_slice * (2 + 2) + of_slice / 64);
}

// Few tokens, as in text generation, are not divided into parts: a part has at least 128 tokens.
TEST(LmHead, FewTokensFormOnePart) {
  SessionSettings settings = tiny_settings(DType::kBF16);
  for (const std::int64_t tokens : {2, 3, 5}) {
    settings.step = {.micro_batch = 1, .sequence = tokens, .microbatches = 1};
    EXPECT_EQ(train(std::make_unique<DeviceApart>(), settings), train(turbo::make_cpu_device(2), settings));
  }
}

// Logits are made in slices, and all slices contribute to the gradients.
TEST(LmHead, SlicesOfLogitsEqualOneSlice) {
  SessionSettings settings = tiny_settings();
  settings.model.layers = 1;
  settings.model.hidden = 16;
  settings.model.heads = settings.model.kv_heads = 2;
  settings.model.head_dim = 8;
  settings.model.ffn = 16;
  settings.model.vocab = 300007;
  settings.evaluation = false;
  const std::int64_t tokens = 256;
  const std::unique_ptr<Device> cpu = turbo::make_cpu_device(1);
  ASSERT_LT(engine::lm_head_slice_tokens(*cpu, tokens, settings.model.vocab), tokens);
  ASSERT_EQ(engine::lm_head_slice_tokens(*cpu, tokens / 2, settings.model.vocab), tokens / 2);
  TestBatch batch(tokens, settings.model.vocab, 5);
  batch.loss_mask[1] = 1;  // both halves of the batch have equally many labels
  // Returns the gradients of all units, with the tokens split into `microbatches`.
  const auto gradients = [&](std::int64_t microbatches, Policy policy) {
    settings.step = {.micro_batch = tokens / microbatches / 16, .sequence = 16, .microbatches = microbatches};
    settings.step.weight_gradients = policy;
    engine::Rank rank(turbo::make_cpu_device(2));
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
    TrainingStep& step = session->step();
    step.begin(1);
    for (std::int64_t i = 0; i < microbatches; ++i) {
      const auto part = [&](const auto& values) {
        return std::span(values).subspan(static_cast<std::size_t>(i * tokens / microbatches),
                                         static_cast<std::size_t>(tokens / microbatches));
      };
      step.microbatch(i, {part(batch.tokens), part(batch.labels), part(batch.loss_mask), {}, {}});
    }
    step.finish_gradients();
    std::vector<std::vector<float>> result;
    for (const engine::ParameterUnit& unit : session->store().units()) {
      result.emplace_back(static_cast<std::size_t>(unit.gradient.elements()));
      rank.compute().copy_to_host(result.back().data(), unit.gradient.data, unit.gradient.bytes());
      rank.compute().synchronize();
    }
    return result;
  };
  const auto expected = gradients(2, Policy::kInline);  // each microbatch has one slice
  for (const Policy policy : {Policy::kInline, Policy::kDeferred}) {
    const auto sliced = gradients(1, policy);
    ASSERT_EQ(sliced.size(), expected.size());
    for (std::size_t unit = 0; unit < expected.size(); ++unit) {
      double error = 0, size = 0;
      for (std::size_t i = 0; i < expected[unit].size(); ++i) {
        const double value = expected[unit][i];
        error += (sliced[unit][i] - value) * (sliced[unit][i] - value);
        size += value * value;
      }
      // The tolerance covers sums of 256 terms in different orders.
      EXPECT_LT(std::sqrt(error / size), 1e-5) << unit;
    }
  }
}

// Sets the first element of a parameter to NaN. Returns the first operator with a non-finite result.
std::string first_to_go_wrong(const SessionSettings& settings, const std::string& poisoned) {
  engine::Rank rank(turbo::make_cpu_device(2));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  for (engine::Parameter& p : session->store().parameters()) {
    if (p.name != poisoned) continue;
    const float nan = NAN;
    rank.compute().copy_to_device(p.value.data, &nan, sizeof(nan));
  }
  TrainingStep& step = session->step();
  step.begin();
  for (std::int64_t i = 0; i < settings.step.microbatches; ++i) step.microbatch(i, TestBatch(32, 97, 5));
  step.finish_gradients();
  EXPECT_TRUE(std::isnan(step.result().loss));
  return step.find_non_finite();
}

TEST(TrainingStep, NamesTheFirstFaultyOperator) {
  EXPECT_EQ(first_to_go_wrong(tiny_settings(), "layers.2.ffn.down"), "layers.2.linear");
  // The operator is also found after routers, whose choices are integers.
  EXPECT_EQ(first_to_go_wrong(tiny_settings(DType::kF32, tiny_mixture()), "layers.2.moe.down"),
            "layers.2.linear_combine");
}

}  // namespace
}  // namespace primus::test
