// Checkpoints do not know meshes: what the ranks of any mesh saved, those of any other load, and save again
// byte for byte, weights and optimizer states.
#include <gtest/gtest.h>

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/thread_group.h"
#include "lm/checkpoint/rank_threads.h"
#include "lm/model/weights.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

using engine::MeshShape;
using engine::Sharding;

const Path kRoot = "/run/checkpoints";

struct Way {
  const char* name;
  int ranks;
  MeshShape shape = {};
  Sharding sharding = Sharding::kNone;
};

using Files = std::map<std::string, std::string>;

Files files_in(const Path& folder, Env& env) {
  Files files;
  for (const std::string& name : env.list(folder)) files[name] = read_file(folder / name, 1U << 30, env);
  return files;
}

// A session on each rank of a mesh, as threads. With `from`: what is there is loaded. Else one step is
// trained. What the ranks then save together.
Files save_from(const ModelConfig& model, DType compute, const Way& way, FaultEnv* from, FaultEnv& env) {
  SessionSettings settings = tiny_settings(compute, model);
  settings.step.microbatches = 1;
  settings.evaluation = false;
  settings.sharding = way.sharding;
  auto worlds = comm::local::make_thread_group(way.ranks);
  const auto errors = run_ranks(way.ranks, [&](const std::shared_ptr<CheckpointGroup>& group) {
    engine::Mesh mesh =
        way.ranks == 1 ? engine::Mesh()
                       : engine::Mesh(std::move(worlds[static_cast<std::size_t>(group->rank())]), way.shape);
    engine::Rank rank(turbo::make_cpu_device(1), std::move(mesh));
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), from ? 1 : 7);
    if (from) {
      const ResumePoint point = find_resume_point(kRoot, Validation::kFull, *from, group.get());
      ASSERT_TRUE(point.reader);
      load_checkpoint(*point.reader, session->store(), rank, true);
    } else {
      session->parallel().distribute_values();
      TrainingStep& step = session->step();
      step.begin(1);
      const TestBatch batch(settings.step.micro_batch * settings.step.sequence, model.vocab,
                            static_cast<std::uint64_t>(rank.mesh().data_rank()));
      step.microbatch(0, batch.host());
      step.finish_gradients();
      step.result();
      step.update(1, 1e-2, 0.1);
    }
    rank.synchronize();
    DeviceReader reader(rank);
    Snapshot snapshot;
    snapshot.iteration = 1;
    snapshot.model = model_sources(session->store(), reader);
    snapshot.optimizer = optimizer_sources(session->store(), reader);
    CheckpointRoot(kRoot, {.group = group}, env).save(snapshot);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  return files_in(kRoot / "iter_0000001", env);
}

void expect_any_to_any(const ModelConfig& model, DType compute, const std::vector<Way>& ways) {
  for (const Way& writer : ways) {
    SCOPED_TRACE(std::string("saved by ") + writer.name);
    FaultEnv saved;
    const Files files = save_from(model, compute, writer, nullptr, saved);
    ASSERT_FALSE(files.empty());
    for (const Way& reader : ways) {
      SCOPED_TRACE(std::string("loaded by ") + reader.name);
      FaultEnv again;
      ASSERT_EQ(save_from(model, compute, reader, &saved, again), files);
    }
  }
}

ModelConfig with_experts() {
  ModelConfig c = tiny_mixture();
  c.layers = 2;
  c.kv_heads = 4;
  c.moe.experts = 4;
  c.moe.training = {};
  return c;
}

TEST(MeshCheckpoint, AnyMeshLoadsWhatAnyOtherSaved) {
  expect_any_to_any(with_experts(), DType::kF32,
                    {{"one rank", 1},
                     {"dp2 zero1", 2, {}, Sharding::kStates},
                     {"tp2", 2, {.tensor = 2}},
                     {"tp4", 4, {.tensor = 4}},
                     {"ep4", 4, {.expert = 4}},
                     {"cp2", 2, {.context = 2}},
                     {"tp2 ep2 etp2", 4, {.tensor = 2, .expert = 2, .expert_tensor = 2}},
                     {"tp2 dp2 zero3", 4, {.tensor = 2}, Sharding::kParameters}});
}

// Masters of their own, a tied embedding, and experts that published folders have in another order.
TEST(MeshCheckpoint, InBf16WithTensorsInAnotherOrder) {
  ModelConfig c = with_experts();
  c.family = "gpt_oss";
  c.tied_embeddings = true;
  c.attention.window = 5;
  c.attention.local_layers = {0};
  c.moe.biases = true;
  c.moe.swiglu_limit = 7;
  expect_any_to_any(c, DType::kBF16,
                    {{"one rank", 1},
                     {"tp2 zero1", 2, {.tensor = 2}, Sharding::kStates},
                     {"ep2 zero3", 4, {.expert = 2}, Sharding::kParameters},
                     {"tp2 ep4", 4, {.tensor = 2, .expert = 4}}});
}

// Latent projections and multi-token prediction.
TEST(MeshCheckpoint, OfLatentAttentionAndFurtherTokens) {
  ModelConfig c = tiny_deepseek();
  c.moe.experts = 8;
  c.moe.router.groups = 4;
  expect_any_to_any(c, DType::kF32,
                    {{"one rank", 1},
                     {"tp4", 4, {.tensor = 4}},
                     {"tp2 ep4 zero2", 4, {.tensor = 2, .expert = 4}, Sharding::kGradients}});
}

}  // namespace
}  // namespace primus::test
