// Training steps of an objective with a loss rule, on one device and on meshes.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lm/train/rank_training.h"

namespace primus::test {

// Losses, gradient norms and metrics of three steps.
struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::pair<std::string, double>>> metrics;
};

// Returns microbatch `number` of a step, counted over all data ranks.
using MakeBatch = std::function<data::Batch(std::int64_t number)>;

// Trains three steps of four microbatches.
inline Trained train(SessionSettings settings, const MakeBatch& make_batch, int ranks,
                     const engine::MeshShape& shape) {
  constexpr std::int64_t kMicrobatches = 4;
  settings.step.microbatches = kMicrobatches / shape.data(ranks);
  Trained out;
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    const std::unique_ptr<TrainingSession> session = open_session(rank, settings, all_families());
    session->store().initialize(rank.context(), 7);
    session->parallel().distribute_values();
    session->rule()->load_weights(*session);
    for (int s = 0; s < 3; ++s) {
      std::vector<data::Batch> batches;
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i)
        batches.push_back(make_batch(i * shape.data(ranks) + rank.mesh().data_rank()));
      session->before_step(s + 1, batches);
      session->step().begin(s + 1);
      for (std::size_t i = 0; i < batches.size(); ++i)
        session->step().microbatch(static_cast<std::int64_t>(i), batches[i]);
      session->step().finish_gradients();
      const StepResult result = session->step().result();
      session->step().update(s + 1, 3e-3, 0.1);
      if (rank.mesh().rank() != 0) continue;
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
      out.metrics.push_back(result.metrics);
    }
    rank.synchronize();
  });
  return out;
}

// Returns meshes with their number of ranks. Together, they have data, tensor, context and pipeline ranks.
inline std::vector<std::pair<int, engine::MeshShape>> every_mesh() {
  return {{2, {}},
          {2, {.tensor = 2}},
          {2, {.context = 2}},
          {2, {.pipeline = 2}},
          {4, {.tensor = 2, .pipeline = 2}},
          {4, {.context = 2}}};
}

// Compares training on each of the meshes with `one`, the training on one device.
inline void expect_meshes_equal(const Trained& one, const SessionSettings& settings,
                                const MakeBatch& make_batch, const std::string& name,
                                const std::vector<std::pair<int, engine::MeshShape>>& meshes) {
  for (const auto& [ranks, shape] : meshes) {
    SCOPED_TRACE(testing::Message() << name << ", " << ranks << " ranks, tensor " << shape.tensor
                                    << ", context " << shape.context << ", pipeline " << shape.pipeline);
    const Trained trained = train(settings, make_batch, ranks, shape);
    ASSERT_EQ(trained.losses.size(), one.losses.size());
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5 * std::max(1.0, std::abs(one.losses[s])));
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      ASSERT_EQ(trained.metrics[s].size(), one.metrics[s].size());
      for (std::size_t m = 0; m < one.metrics[s].size(); ++m) {
        const auto& [metric, value] = one.metrics[s][m];
        EXPECT_EQ(trained.metrics[s][m].first, metric);
        EXPECT_NEAR(trained.metrics[s][m].second, value, 1e-4 * std::max(1.0, std::abs(value))) << metric;
      }
    }
  }
}

}  // namespace primus::test
