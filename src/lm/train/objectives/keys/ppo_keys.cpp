#include "lm/train/objectives/keys/ppo_keys.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "config/trainer_config.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "lm/train/objectives/conversation_objective.h"
#include "lm/train/objectives/keys/second_model_mesh.h"
#include "lm/train/settings/start_weights.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// Returns the architecture of the value model of value_load.
ModelConfig loaded_value_model(const config::Experiment& experiment, const ModelConfig& policy) {
  const std::string& load = *experiment.trainer->value_load;
  const Path folder = loaded_folder(load);
  if (!Env::posix().status(folder / "config.json")) {
    throw experiment.error_for("value_load", fmt::format("'{}' has no model", load),
                               "give a Hugging Face folder, a checkpoint, or the folder of a run");
  }
  ModelConfig model = load_model_config({folder, {}}, builtin_families());
  if (model.lora) {
    throw experiment.error_for("value_load", fmt::format("'{}' has LoRA adapters", load),
                               "merge them into the weights first (primus model export)");
  }
  if (model.vocab != policy.vocab) {
    throw experiment.error_for(
        "value_load",
        fmt::format("'{}' has {} token ids, but the trained model has {}", load, model.vocab, policy.vocab),
        "the value model reads the same tokens: give a model with the same tokenizer");
  }
  check_ppo_model(experiment, model);
  return model;
}

}  // namespace

PpoSettings ppo_settings_of(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  return {.kl_coef = c.beta.value(),
          .kl_estimator = c.kl_estimator,
          .gamma = c.gamma,
          .lam = c.lam,
          .whiten_rewards = c.whiten_rewards,
          .cliprange = c.epsilon,
          .cliprange_value = c.cliprange_value,
          .vf_coef = c.vf_coef,
          .reports_entropy = c.log_entropy,
          .max_completion_length = c.max_completion_length};
}

void check_ppo_run(const config::Experiment& experiment, int world) {
  const config::TrainerConfig& c = experiment.trainer;
  if (c.environment) {
    throw experiment.error_for("environment", "stage ppo does not support environments",
                               "remove environment, or use stage grpo");
  }
  const engine::MeshShape shape = mesh_shape_of(experiment, world);
  for (const auto& [key, used] : {std::pair("fp8", c.fp8.has_value()), std::pair("fp4", c.fp4.has_value())}) {
    if (used)
      throw experiment.error_for(key, fmt::format("stage ppo does not support {}", key),
                                 fmt::format("remove {}", key));
  }
  const std::int64_t ways = c.num_mini_batches * shape.data(world) * c.micro_batch_size;
  if (c.num_mini_batches > 1 && c.global_batch_size % ways != 0) {
    throw experiment.error_for(
        "num_mini_batches",
        fmt::format("{} answers (global_batch_size) cannot be divided into {} parts of whole microbatches "
                    "on {} data rank{}",
                    c.global_batch_size, c.num_mini_batches, shape.data(world),
                    shape.data(world) == 1 ? "" : "s"),
        fmt::format("make global_batch_size a multiple of {}", ways));
  }
}

void check_ppo_model(const config::Experiment& experiment, const ModelConfig& policy) {
  if (policy.mtp.modules() > 0) {
    throw experiment.error_for("stage", "stage ppo does not support multi-token prediction",
                               "use stage grpo, which does");
  }
}

void check_ppo_mesh(const config::Experiment& experiment, int world, const SessionSettings& settings) {
  if (!experiment.trainer->value_load) return;  // otherwise the value model has the shape of the policy
  check_mesh_of_second_model(experiment, world, settings,
                             fmt::format("value model '{}'", *experiment.trainer->value_load),
                             value_model_of(loaded_value_model(experiment, settings.model)),
                             settings.step.micro_batch, settings.step.sequence);
}

MakeLossRule ppo_rule_of(const config::Experiment& experiment) {
  ValueModel value{
      .config =
          [experiment](const ModelConfig& policy) {
            return value_model_of(experiment.trainer->value_load ? loaded_value_model(experiment, policy)
                                                                 : policy);
          },
      .load =
          [experiment](TrainingSession& session, ModelInstance& model) {
            const config::TrainerConfig& c = experiment.trainer;
            // A language model has no head for values, so the head stays new.
            model.store().initialize_new(session.rank().context(), static_cast<std::uint64_t>(c.seed));
            if (c.value_load) {
              load_model_weights(loaded_folder(*c.value_load), session.rank(), model);
            } else {
              load_start_weights(experiment, session.rank(), model);
            }
          }};
  return ppo_rule(ppo_settings_of(experiment), reference_weights_of(experiment), std::move(value));
}

}  // namespace primus
