// Compares training on several ranks with Megatron-LM (tests/golden/megatron/write_mesh_golden.py): with
// equal mesh, initial weights and tokens, the losses are equal.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "config/trainer_config.h"
#include "lm/checkpoint/safetensors.h"
#include "lm/model/weights.h"
#include "lm/train/megatron_golden.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

constexpr double kTolerance = 1e-5;  // Megatron-LM and Primus both compute ten steps in fp32

const nlohmann::json& golden() {
  static const nlohmann::json json =
      nlohmann::json::parse(read_file(kMegatronGoldens / "meshes" / "golden.json"));
  return json;
}

engine::MeshShape shape_of(const nlohmann::json& mesh) {
  const nlohmann::json& settings = mesh.at("settings");
  engine::MeshShape shape;
  shape.tensor = settings.value("tensor_model_parallel_size", 1);
  shape.context = settings.value("context_parallel_size", 1);
  shape.pipeline = settings.value("pipeline_model_parallel_size", 1);
  shape.expert = settings.value("expert_model_parallel_size", 1);
  shape.expert_tensor = settings.value("expert_tensor_parallel_size", 1);
  return shape;
}

class MegatronMesh : public testing::TestWithParam<std::string> {};

TEST_P(MegatronMesh, HasTheSameLosses) {
  const nlohmann::json& mesh = golden().at("meshes").at(GetParam());
  const std::string& model = mesh.at("model").get_ref<const std::string&>();
  const nlohmann::json &settings_json = golden().at("models").at(model), &tokens = golden().at("tokens"),
                       &optimizer = golden().at("optimizer");
  const int ranks = mesh.at("ranks");
  const engine::MeshShape shape = shape_of(mesh);
  const auto microbatches = static_cast<std::int64_t>(tokens.at(0).size());

  SessionSettings settings;
  nlohmann::json of_mesh = settings_json;
  if (mesh.at("settings").contains("moe_token_dispatcher_type"))
    of_mesh["moe_token_dispatcher_type"] = mesh.at("settings").at("moe_token_dispatcher_type");
  settings.model = golden_model(of_mesh);
  settings.step.micro_batch = settings_json.at("micro_batch_size");
  settings.step.sequence = settings_json.at("seq_length");
  settings.step.microbatches = microbatches / shape.data(ranks);
  settings.step.pipeline.blocks = even_parts(settings.model.layers, shape.pipeline).blocks;
  settings.optimizer.rules = update_rules_of({.adam_beta1 = optimizer.at("adam_beta1"),
                                              .adam_beta2 = optimizer.at("adam_beta2"),
                                              .adam_eps = optimizer.at("adam_eps")});
  settings.optimizer.clip_norm = optimizer.at("clip_grad");
  settings.optimizer.decay_all_parameters = true;

  std::vector<double> losses;
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    const auto session = open_session(rank, settings, builtin_families());
    load_weights(SafetensorsFolder::open(kMegatronGoldens / "meshes" / model), session->store(), rank);
    session->parallel().distribute_values();
    TrainingStep& step = session->step();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      const auto number = static_cast<std::int64_t>(s) + 1;
      step.begin(number);
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
        std::vector<std::int32_t> inputs, labels;
        for (const std::vector<std::int32_t> row :
             tokens.at(s).at(static_cast<std::size_t>(i * shape.data(ranks) + rank.mesh().data_rank()))) {
          inputs.insert(inputs.end(), row.begin(), row.end() - 1);
          labels.insert(labels.end(), row.begin() + 1, row.end());
        }
        const std::vector<float> mask(inputs.size(), 1.0F);
        step.microbatch(i, {.tokens = inputs, .labels = labels, .loss_mask = mask});
      }
      step.finish_gradients();
      const double loss = step.result().loss;
      step.update(number, optimizer.at("lr"), optimizer.at("weight_decay"));
      if (rank.mesh().rank() == 0) losses.push_back(loss);
    }
    rank.synchronize();
  });

  const nlohmann::json& expected = mesh.at("losses");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t s = 0; s < losses.size(); ++s) {
    const double golden_loss = expected.at(s);
    EXPECT_NEAR(losses[s], golden_loss, kTolerance * golden_loss) << "step " << s + 1;
  }
}

std::vector<std::string> all_meshes() {
  std::vector<std::string> names;
  for (const auto& mesh : golden().at("meshes").items()) names.push_back(mesh.key());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Meshes, MegatronMesh, testing::ValuesIn(all_meshes()),
                         [](const auto& mesh) { return mesh.param; });

}  // namespace
}  // namespace primus::test
