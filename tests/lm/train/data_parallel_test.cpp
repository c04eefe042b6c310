// Several ranks train as one: ranks are threads here, each with a device of its own, and every level of
// sharding is held against one device and against the others.
#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/thread_group.h"
#include "engine/mesh.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

using engine::Sharding;

constexpr int kSteps = 20, kGlobalMicrobatches = 8;

struct Way {
  Sharding sharding = Sharding::kNone;
  int shards = 0;  // 0: all ranks
  bool each_microbatch = false;
  bool overlap = true;
  bool reshard = true;
  DType reduce = DType::kF32;
};

struct Outcome {
  std::vector<double> losses, norms;
  // All parameters, whole, by name: values that operators read.
  std::map<std::string, std::vector<float>> weights;
  bool operator==(const Outcome&) const = default;
};

// What rank `rank` stores of every master weight, put into its place.
void collect(engine::Rank& rank, const engine::ParameterStore& store, Outcome& outcome) {
  for (const engine::Parameter& p : store.parameters()) {
    std::vector<float>& whole = outcome.weights[p.name];
    whole.resize(static_cast<std::size_t>(p.shape.elements()));
    const engine::FlatRange range = engine::stored_range(p);
    if (range.empty()) continue;
    const Tensor part = engine::stored_part(p.unit->trained ? p.unit->master : p.unit->stored_values, p);
    rank.compute().copy_to_host(whole.data() + range.begin, part.data, part.bytes());
    rank.compute().synchronize();
  }
}

Outcome train_on(SessionSettings settings, int ranks, const Way& way, std::int64_t* persistent = nullptr) {
  settings.step.microbatches = kGlobalMicrobatches / ranks;
  settings.sharding = way.sharding;
  settings.reduce_each_microbatch = way.each_microbatch;
  settings.parallel = {.overlap_reduction = way.overlap,
                       .overlap_gather = way.overlap,
                       .reshard_after_forward = way.reshard,
                       .reduce_dtype = way.reduce};
  Outcome outcome;
  auto worlds = comm::local::make_thread_group(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  const auto run = [&](int r) {
    engine::Mesh mesh = ranks == 1 ? engine::Mesh()
                                   : engine::Mesh(std::move(worlds[static_cast<std::size_t>(r)]),
                                                  way.shards == 0 ? ranks : way.shards);
    engine::Rank rank(turbo::make_cpu_device(1), std::move(mesh));
    const auto session = open_session(rank, settings, builtin_families());
    if (persistent && r == 0) *persistent = rank.high_water().persistent;
    session->store().initialize(rank.context(), 7);
    session->parallel().distribute_values();
    TrainingStep& step = session->step();
    for (int s = 0; s < kSteps; ++s) {
      step.begin(s + 1);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
        TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                        static_cast<std::uint64_t>(s * 100 + i * ranks + r));
        if (settings.step.packed_documents) batch.pack({0, 5, 6, 16, 27});
        step.microbatch(i, batch.host());
      }
      step.finish_gradients();
      const StepResult result = step.result();
      step.update(s + 1, 3e-3, 0.1);
      if (r != 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
    }
    rank.synchronize();
    const std::lock_guard lock(mutex);
    collect(rank, session->store(), outcome);
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        run(r);
      } catch (const std::exception& error) {
        failures[static_cast<std::size_t>(r)] = std::current_exception();
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcome;
}

// The largest difference over the size of what is compared.
double distance(const Outcome& x, const Outcome& y) {
  double worst = 0;
  for (std::size_t i = 0; i < x.losses.size(); ++i)
    worst = std::max(worst, std::abs(x.losses[i] - y.losses[i]) / y.losses[i]);
  return worst;
}

struct Case {
  const char* name;
  ModelConfig (*model)();
  DType compute;
  double tolerance;  // of losses
};

class DataParallelTraining : public testing::TestWithParam<Case> {};

TEST_P(DataParallelTraining, EqualsOneDeviceOnEveryMesh) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  settings.step.packed_documents = true;
  settings.step.recompute.full_layers = 1;
  const Outcome one = train_on(settings, 1, {});
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int ranks : {2, 4}) {
    for (const bool each : {false, true}) {
      const Outcome replicated = train_on(settings, ranks, {.each_microbatch = each});
      EXPECT_LE(distance(replicated, one), GetParam().tolerance) << ranks << " ranks";
      for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
        EXPECT_EQ(train_on(settings, ranks, {.sharding = sharding, .each_microbatch = each}), replicated)
            << ranks << " ranks, level " << static_cast<int>(sharding) << ", each " << each;
      }
    }
  }
}

// Without overlap, with gradients reduced in bf16, with hybrid shards, and keeping gathered values for the
// backward pass.
TEST_P(DataParallelTraining, OptionsChangeNoMoreThanTheySay) {
  SessionSettings settings = tiny_settings(GetParam().compute, GetParam().model());
  const Way sharded{.sharding = Sharding::kParameters};
  const Outcome expected = train_on(settings, 4, sharded);
  Way way = sharded;
  way.overlap = false;
  EXPECT_EQ(train_on(settings, 4, way), expected) << "without overlap";
  way = sharded;
  way.reshard = false;
  EXPECT_EQ(train_on(settings, 4, way), expected) << "without resharding after the forward pass";
  for (const Sharding sharding : {Sharding::kStates, Sharding::kGradients, Sharding::kParameters}) {
    way = {.sharding = sharding, .shards = 2};
    EXPECT_LE(distance(train_on(settings, 4, way), expected), GetParam().tolerance) << "hybrid";
    way = {.sharding = sharding, .reduce = DType::kBF16};
    EXPECT_LE(distance(train_on(settings, 4, way), expected), 1e-2) << "reduced in bf16";
  }
}

// What is sharded falls as one over the ranks; the rest (tables, scalars) stays.
TEST(DataParallelMemory, ShardedStatesFallAsOneOverTheRanks) {
  const SessionSettings settings = tiny_settings(DType::kBF16, tiny_llama());
  std::int64_t whole = 0, half = 0, quarter = 0;
  train_on(settings, 1, {}, &whole);
  train_on(settings, 2, {.sharding = Sharding::kParameters}, &half);
  train_on(settings, 4, {.sharding = Sharding::kParameters}, &quarter);
  const double rest = static_cast<double>(whole - 2 * (whole - half));
  EXPECT_NEAR(static_cast<double>(quarter) - rest, (static_cast<double>(whole) - rest) / 4,
              0.02 * static_cast<double>(whole));
  EXPECT_LT(rest, 0.05 * static_cast<double>(whole));
}

INSTANTIATE_TEST_SUITE_P(Models, DataParallelTraining,
                         testing::Values(Case{"llama", tiny_llama, DType::kF32, 1e-5},
                                         Case{"llama_bf16", tiny_llama, DType::kBF16, 2e-3},
                                         Case{"mixture", tiny_mixture, DType::kF32, 1e-5},
                                         Case{"mixture_bf16", tiny_mixture, DType::kBF16, 2e-3},
                                         Case{"deepseek", tiny_deepseek, DType::kF32, 1e-5},
                                         Case{"deepseek_bf16", tiny_deepseek, DType::kBF16, 2e-3}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace primus::test
