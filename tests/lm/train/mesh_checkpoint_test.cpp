// Checkpoints do not depend on the mesh. Ranks of any mesh load the checkpoints of any other mesh, and save
// the loaded weights and optimizer states byte for byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/local/thread_group.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/elements.h"
#include "lm/checkpoint/rank_threads.h"
#include "lm/model/weights.h"
#include "lm/train/step/fp8_state.h"
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

// Opens a session on each rank of a mesh, as threads. With `from`, loads the checkpoint of `from`. Without
// `from`, trains one step. Returns the files that the ranks then save together.
Files save_from(const ModelConfig& model, DType compute, const Way& way, FaultEnv* from, FaultEnv& env,
                const config::TrainerConfig& optimizer = {}, const engine::PrecisionRecipe& precision = {}) {
  SessionSettings settings = tiny_settings(compute, model);
  settings.step.precision = precision;
  settings.optimizer.rules = update_rules_of(optimizer);
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
      if (session->scales()) {
        EXPECT_EQ(load_scales(*point.reader, *session->scales(), rank).missing, 0);
      }
    } else {
      session->parallel().distribute_values();
      TrainingStep& step = session->step();
      step.begin(1);
      const TestBatch batch(settings.step.micro_batch * settings.step.sequence, model.vocab,
                            static_cast<std::uint64_t>(rank.mesh().data_rank()));
      step.microbatch(0, batch);
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
    if (session->scales()) {
      for (TensorSource& source : scale_sources(*session->scales(), rank, reader))
        snapshot.optimizer.push_back(std::move(source));
    }
    CheckpointRoot(kRoot, {.group = group}, env).save(snapshot);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  return files_in(kRoot / "iter_0000001", env);
}

void expect_any_to_any(const ModelConfig& model, DType compute, const std::vector<Way>& ways,
                       const config::TrainerConfig& optimizer = {},
                       const engine::PrecisionRecipe& precision = {}) {
  for (const Way& writer : ways) {
    SCOPED_TRACE(std::string("saved by ") + writer.name);
    FaultEnv saved;
    const Files files = save_from(model, compute, writer, nullptr, saved, optimizer, precision);
    ASSERT_FALSE(files.empty());
    for (const Way& reader : ways) {
      SCOPED_TRACE(std::string("loaded by ") + reader.name);
      FaultEnv again;
      ASSERT_EQ(save_from(model, compute, reader, &saved, again, optimizer, precision), files);
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

TEST(MeshCheckpoint, AnyMeshLoadsCheckpointsOfAnyOther) {
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

// Any mesh loads bf16 checkpoints with separate master weights, a tied embedding, and experts whose axes have
// another order in published folders.
TEST(MeshCheckpoint, LoadsBf16TensorsInAnotherOrder) {
  ModelConfig c = with_experts();
  c.family = "gpt_oss";
  c.tied_embeddings = true;
  c.attention.window = 5;
  c.at(0).local = true;
  c.moe.biases = true;
  c.moe.swiglu_limit = 7;
  expect_any_to_any(c, DType::kBF16,
                    {{"one rank", 1},
                     {"tp2 zero1", 2, {.tensor = 2}, Sharding::kStates},
                     {"ep2 zero3", 4, {.expert = 2}, Sharding::kParameters},
                     {"tp2 ep4", 4, {.tensor = 2, .expert = 4}}});
}

// Any mesh loads checkpoints with latent projections and multi-token prediction.
TEST(MeshCheckpoint, ContainsLatentAttentionAndMultiTokenPrediction) {
  ModelConfig c = tiny_deepseek();
  c.moe.experts = 8;
  c.moe.router.groups = 4;
  expect_any_to_any(c, DType::kF32,
                    {{"one rank", 1},
                     {"tp4", 4, {.tensor = 4}},
                     {"tp2 ep4 zero2", 4, {.tensor = 2, .expert = 4}, Sharding::kGradients}});
}

const config::TrainerConfig kInEightBits{.exp_avg_dtype = "fp8", .exp_avg_sq_dtype = "fp8"};

// Blocks of 128 elements are counted from the start of a parameter, so blocks are equal for any number of
// data-parallel ranks. Published tensors may start within a block.
TEST(MeshCheckpoint, ContainsMomentsInEightBits) {
  for (const ModelConfig& model : {with_experts(), tiny_deepseek()}) {
    expect_any_to_any(model, DType::kBF16,
                      {{"one rank", 1},
                       {"dp2 zero1", 2, {}, Sharding::kStates},
                       {"dp3 zero2", 3, {}, Sharding::kGradients},
                       {"dp4 zero3", 4, {}, Sharding::kParameters}},
                      kInEightBits);
  }
}

// Blocks are also equal for any number of tensor ranks, if a rank's part of a row is a multiple of a block.
TEST(MeshCheckpoint, LoadsMomentsInEightBitsOnTensorRanks) {
  ModelConfig c = tiny_llama();
  c.layers = 1;
  c.hidden = c.ffn = 256;
  c.head_dim = 64;
  expect_any_to_any(c, DType::kF32,
                    {{"one rank", 1},
                     {"tp2", 2, {.tensor = 2}},
                     {"tp2 dp2 zero3", 4, {.tensor = 2}, Sharding::kParameters}},
                    kInEightBits);
}

constexpr engine::PrecisionRecipe kDelayed{.fp8 = true, .gradients = DType::kF8E5M2, .delayed = {.steps = 5}};

// Every rank has the scales of all layers.
TEST(MeshCheckpoint, ContainsDelayedScales) {
  ModelConfig c = tiny_llama();
  c.layers = 2;
  c.hidden = 64, c.head_dim = 16, c.ffn = 96, c.vocab = 96;
  expect_any_to_any(c, DType::kBF16,
                    {{"one rank", 1},
                     {"tp2", 2, {.tensor = 2}},
                     {"pp2", 2, {.pipeline = 2}},
                     {"tp2 dp2 zero3", 4, {.tensor = 2}, Sharding::kParameters}},
                    {}, kDelayed);
}

// If the rule for scales changes, the magnitudes of the last steps are kept, and the new rule computes the
// scales from them.
TEST(MeshCheckpoint, LoadsDelayedScalesUnderAnotherRule) {
  ModelConfig c = tiny_llama();
  c.layers = 1;
  FaultEnv saved;
  save_from(c, DType::kBF16, {"one rank", 1}, nullptr, saved, {}, kDelayed);
  for (const auto& [steps, gradients, top] :
       {std::tuple(std::int64_t{2}, DType::kF8E5M2, 57344.0F), {std::int64_t{9}, DType::kF8E4M3, 448.0F}}) {
    engine::Rank rank(turbo::make_cpu_device(1));
    SessionSettings settings = tiny_settings(DType::kBF16, c);
    settings.step.precision = kDelayed;
    settings.step.precision.gradients = gradients;
    settings.step.precision.delayed.steps = steps;
    const auto session = open_session(rank, settings, builtin_families());
    const ResumePoint point = find_resume_point(kRoot, Validation::kFull, saved);
    ASSERT_TRUE(point.reader);
    const LoadedScales count = load_scales(*point.reader, *session->scales(), rank);
    EXPECT_EQ(count.loaded, 4);
    EXPECT_EQ(count.missing, 0);
    bool any = false;
    for (const engine::DelayedScales::Layer& layer : session->scales()->layers()) {
      const auto floats = [&](const Tensor& tensor) {
        const std::vector<std::byte> bits = bits_of(rank, tensor);
        std::vector<float> values(bits.size() / sizeof(float));
        std::memcpy(values.data(), bits.data(), bits.size());
        return values;
      };
      const std::vector<float> history = floats(layer.history), scales = floats(layer.scales);
      for (std::size_t t = 0; t < 3; ++t) {
        const float newest = history[t * static_cast<std::size_t>(steps)];
        EXPECT_EQ(history[t * static_cast<std::size_t>(steps) + 1], 0);  // only one step was trained
        const float scale = newest > 0 ? (t == 2 ? top : 448.0F) / newest : 1.0F;
        EXPECT_EQ(scales[4 * t + 1], scale);
        any = any || newest > 0;
      }
    }
    EXPECT_TRUE(any);
  }
}

TEST(MeshCheckpoint, MissingDelayedScalesAreCounted) {
  ModelConfig c = tiny_llama();
  c.layers = 1;
  FaultEnv saved;
  save_from(c, DType::kBF16, {"one rank", 1}, nullptr, saved);
  engine::Rank rank(turbo::make_cpu_device(1));
  SessionSettings settings = tiny_settings(DType::kBF16, c);
  settings.step.precision = kDelayed;
  const auto session = open_session(rank, settings, builtin_families());
  const ResumePoint point = find_resume_point(kRoot, Validation::kFull, saved);
  const LoadedScales count = load_scales(*point.reader, *session->scales(), rank);
  EXPECT_EQ(count.loaded, 0);
  EXPECT_EQ(count.missing, 4);
  const std::vector<std::byte> ones = bits_of(rank, session->scales()->layers()[0].scales);
  for (std::size_t i = 0; i < ones.size(); i += sizeof(float)) {
    float scale = 0;
    std::memcpy(&scale, ones.data() + i, sizeof(scale));
    EXPECT_EQ(scale, 1);
  }
}

// Returns the optimizer tensors of a checkpoint by name.
std::map<std::string, std::vector<float>> states_in(const Files& files) {
  std::map<std::string, std::vector<float>> states;
  const std::string& bytes = files.at("optimizer.safetensors");
  const SafetensorsFile file =
      SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "optimizer.safetensors");
  for (std::size_t i = 0; i < file.size(); ++i) {
    const TensorView tensor = file[i];
    EXPECT_EQ(tensor.dtype, DType::kBF16) << tensor.name << " must be stored in bf16";
    std::vector<float>& values = states[std::string(tensor.name)];
    values.resize(tensor.data.size() / sizeof(BFloat16));
    to_float(tensor.dtype, tensor.data, values);
  }
  return states;
}

// If the blocks change, a value is rounded to the precision of its new block. It changes by less than 2^-17
// of the tensor's largest first moment, or 2^-32 of its largest second moment.
TEST(MeshCheckpoint, LoadsMomentsInEightBitsInOtherBlocks) {
  FaultEnv saved, again;
  const auto before =
      states_in(save_from(tiny_llama(), DType::kF32, {"one rank", 1}, nullptr, saved, kInEightBits));
  const auto after =
      states_in(save_from(tiny_llama(), DType::kF32, {"tp2", 2, {.tensor = 2}}, &saved, again, kInEightBits));
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, values] : before) {
    const std::vector<float>& now = after.at(name);
    ASSERT_EQ(now.size(), values.size());
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    EXPECT_GT(largest, 0) << name;
    const float maximum = largest * (name.starts_with("exp_avg_sq.") ? 0x1p-32F : 0x1p-17F);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_LE(std::abs(now[i] - values[i]), maximum) << name;
  }
}

}  // namespace
}  // namespace primus::test
