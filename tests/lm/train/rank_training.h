// Training on several ranks, for tests. Ranks are threads with a device each.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/copy_engines.h"
#include "comm/local/thread_group.h"
#include "engine/parallel/mesh.h"
#include "lm/checkpoint/elements.h"
#include "lm/generate/generate.h"
#include "lm/model/outside_families.h"
#include "lm/train/tiny_model.h"

namespace primus::test {

// Runs `body` for each rank of a mesh. Each rank has its own thread and a device from `make_device`. An
// exception fails the test.
inline void on_ranks(
    int ranks, const engine::MeshShape& shape, const std::function<void(engine::Rank& rank)>& body,
    bool copy_engines = false,
    const std::function<std::unique_ptr<Device>()>& make_device = [] { return turbo::make_cpu_device(1); }) {
  auto worlds = comm::local::make_thread_group(ranks, {.timeout = std::chrono::seconds(60)});
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        std::unique_ptr<comm::Communicator> world = std::move(worlds[static_cast<std::size_t>(r)]);
        if (copy_engines) world = std::make_unique<comm::test::CopyEngines>(std::move(world));
        engine::Rank rank(make_device(), ranks == 1 ? engine::Mesh() : engine::Mesh(std::move(world), shape));
        body(rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns whether a loss is above that of uniform predictions, so that training can reduce it.
inline bool has_something_to_learn(double loss, const ModelConfig& model) {
  return loss > 1.02 * std::log(static_cast<double>(model.vocab));
}

// With tied embeddings, a model starts with high confidence in its input token, so its loss can be reduced.
inline ModelConfig with_tied_embeddings(ModelConfig model) {
  model.tied_embeddings = true;
  return model;
}

struct Outcome {
  std::vector<double> losses, mtp_losses, norms;
  // All complete master weights by name. Parts of tensor and expert ranks are listed by name and position.
  std::map<std::string, std::vector<float>> weights;
  // The text that each rank generated before the first step and after each step, if enabled by settings.
  std::vector<std::vector<std::vector<std::int32_t>>> texts;
  double evaluation_loss = 0;              // loss of one batch after the last step, if evaluation is enabled
  std::vector<std::vector<float>> scales;  // scale_state() of each rank
  std::vector<engine::MemoryPlan> memory, used;  // per rank: as measured, and after training
  bool operator==(const Outcome& other) const {
    return losses == other.losses && norms == other.norms && weights == other.weights;
  }
};

// Returns the delayed fp8 scales of a rank, if any: for each layer its histories, then its scales.
inline std::vector<float> scale_state(engine::Rank& rank, TrainingSession& session) {
  std::vector<float> state;
  if (!session.scales()) return state;
  for (const engine::DelayedScales::Layer& layer : session.scales()->layers()) {
    for (const Tensor& tensor : {layer.history, layer.scales}) {
      const std::vector<std::byte> bits = bits_of(rank, tensor);
      const std::size_t before = state.size();
      state.resize(before + bits.size() / sizeof(float));
      std::memcpy(state.data() + before, bits.data(), bits.size());
    }
  }
  return state;
}

// Returns the name in Outcome::weights of a parameter, or of a rank's part of it.
inline std::string weights_name(const engine::Parameter& p) {
  if (p.placement.is_whole()) return p.name;
  return p.name + "[" + std::to_string(p.placement.rows.empty() ? 0 : p.placement.rows.front().whole) + ", " +
         std::to_string(p.placement.column) + "]";
}

// For each master weight, copies this rank's part into `outcome.weights`, which holds complete tensors.
inline void collect(engine::Rank& rank, const engine::ParameterStore& store, Outcome& outcome) {
  for (const engine::Parameter& p : store.parameters()) {
    if (!p.unit || p.four_bit) continue;  // frozen, and stored in bytes
    std::vector<float>& whole = outcome.weights[weights_name(p)];
    whole.resize(static_cast<std::size_t>(p.shape.elements()));
    const engine::FlatRange range = engine::stored_range(p);
    if (range.empty()) continue;
    const std::vector<std::byte> bits = weight_bits(rank, p);
    // Frozen weights in bf16 have no masters, so their values are copied.
    const bool narrow = p.unit->stored.master.absent() && !p.unit->split() && p.unit->dtype == DType::kBF16;
    to_float(narrow ? DType::kBF16 : DType::kF32, bits,
             std::span(whole).subspan(static_cast<std::size_t>(range.begin),
                                      static_cast<std::size_t>(range.size())));
  }
}

// Trains `steps` steps with `microbatches` microbatches in total, from fixed initial weights. The batches do
// not depend on the mesh.
inline Outcome train_on_ranks(SessionSettings settings, int ranks, const engine::MeshShape& shape, int steps,
                              std::int64_t microbatches) {
  const int data_ranks = shape.data(ranks);
  settings.step.microbatches = microbatches / data_ranks;
  const std::int64_t tokens = settings.step.micro_batch * settings.step.sequence;
  const auto batch_of = [&](std::uint64_t seed) {
    TestBatch batch(tokens, settings.model.vocab, seed);
    if (settings.step.packed_documents) batch.pack({0, 5, 6, 16, 27});
    return batch;
  };
  Outcome outcome;
  outcome.memory.resize(static_cast<std::size_t>(ranks));
  outcome.used.resize(static_cast<std::size_t>(ranks));
  outcome.texts.resize(static_cast<std::size_t>(ranks));
  outcome.scales.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    const int r = rank.mesh().rank();
    const std::unique_ptr<TrainingSession> session = [&] {
      const engine::MemoryPlan plan = measure_session(rank, settings, all_families()).memory;
      outcome.memory[static_cast<std::size_t>(r)] = plan;
      rank.reserve(plan);
      return std::make_unique<TrainingSession>(rank, settings, all_families());
    }();
    session->store().initialize(rank.context(), 7);
    session->parallel().distribute_values();
    TrainingStep& step = session->step();
    const auto write = [&] {
      if (!session->decoding()) return;
      if (!session->decoding()->parallel) session->parallel().wait_for_all_values();
      const std::vector<std::int32_t> prompt = {1, 2, 3};
      outcome.texts[static_cast<std::size_t>(r)].push_back(
          generate(*session->make_decoder(), prompt, {.max_tokens = 12}).ids);
    };
    write();
    for (int s = 0; s < steps; ++s) {
      step.begin(s + 1);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
        const std::int64_t number = i * data_ranks + rank.mesh().data_rank();
        step.microbatch(i, batch_of(static_cast<std::uint64_t>(s * 100 + number)));
      }
      step.finish_gradients();
      const StepResult result = step.result();
      step.update(s + 1, 3e-3, 0.1);
      write();
      if (r != 0) continue;
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.gradient_norm);
      if (result.mtp_loss) outcome.mtp_losses.push_back(*result.mtp_loss);
    }
    if (settings.evaluation) {
      step.begin_evaluation();
      for (const std::uint64_t seed : {7000U, 7001U}) step.evaluate(batch_of(seed));
      const double loss = step.evaluation_loss();
      if (r == 0) outcome.evaluation_loss = loss;
    }
    rank.synchronize();
    const std::lock_guard lock(mutex);
    outcome.used[static_cast<std::size_t>(r)] = rank.high_water();
    outcome.scales[static_cast<std::size_t>(r)] = scale_state(rank, *session);
    collect(rank, session->store(), outcome);
  });
  return outcome;
}

// Expects that the arenas of every rank had exactly the measured sizes.
inline void expect_measured(const Outcome& outcome) {
  ASSERT_EQ(outcome.used.size(), outcome.memory.size());
  for (std::size_t r = 0; r < outcome.used.size(); ++r) {
    EXPECT_EQ(outcome.used[r].persistent, outcome.memory[r].persistent);
    EXPECT_EQ(outcome.used[r].stash, outcome.memory[r].stash);
    EXPECT_EQ(outcome.used[r].scratch, outcome.memory[r].scratch);
  }
}

// Returns the largest relative difference of losses.
inline double distance(const Outcome& x, const Outcome& y) {
  if (x.losses.size() != y.losses.size() || x.losses.empty()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < x.losses.size(); ++i)
    worst = std::max(worst, std::abs(x.losses[i] - y.losses[i]) / y.losses[i]);
  return worst;
}

}  // namespace primus::test
