#include "lm/train/objectives/keys/reward_model_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "config/trainer_config.h"
#include "lm/data/chat_template.h"
#include "lm/data/conversation_format.h"
#include "lm/generate/model_folder.h"
#include "lm/model/family.h"
#include "lm/model/weights.h"
#include "lm/reward/reward.h"
#include "lm/tokenizer/simple.h"
#include "lm/train/objectives/keys/second_model_mesh.h"
#include "lm/train/settings/training_settings.h"

namespace primus {
namespace {

// A function of the key `reward` that is a reward model.
struct NamedModel {
  std::int64_t function = 0;
  std::string given;  // FOLDER of model:FOLDER
};

std::vector<NamedModel> named_models(const config::Experiment& experiment) {
  std::vector<NamedModel> all;
  const std::vector<std::string>& functions = experiment.trainer->reward;
  for (std::size_t f = 0; f < functions.size(); ++f) {
    if (const std::optional<std::string> given = reward_model_of(functions[f]))
      all.push_back({.function = static_cast<std::int64_t>(f), .given = *given});
  }
  return all;
}

std::string name_of(const NamedModel& model) {
  return fmt::format("reward 'model:{}'", printable(model.given));
}

// Runs `work`. Its errors get the position of the key `reward`, and the name of the reward model.
template <class Work>
auto for_model(const config::Experiment& experiment, const NamedModel& model, Work&& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw experiment.error_for("reward", fmt::format("{}: {}", name_of(model), error.what()), error.hint());
  }
}

ModelConfig config_of(const ModelFolder& folder) {
  ModelConfig model = load_model_config(folder, builtin_families());
  if (!model.scores) {
    throw invalid("the model is a language model, which has no head for scores",
                  "train a reward model from it ('primus train reward'), and name the result");
  }
  if (model.lora) {
    throw unsupported("the model has LoRA adapters",
                      "merge them into the weights first (primus model export), and name the result");
  }
  return model;
}

std::unique_ptr<const Tokenizer> tokenizer_in(const ModelFolder& folder) {
  std::unique_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = load_own_tokenizer(folder);
  } catch (const Error& error) {
    throw invalid(error.what(), "copy the tokenizer.json with which the reward model was trained into it");
  }
  const std::int64_t vocab = config_of(folder).vocab;
  if (tokenizer->vocab_size() > vocab) {
    throw invalid(fmt::format("the tokenizer has {} tokens, but the model has {} (vocab_size of config.json)",
                              tokenizer->vocab_size(), vocab),
                  "give the model the tokenizer with which it was trained");
  }
  return tokenizer;
}

// Returns the number of tokens of a row. The tokens of a reward model may be more than those of the trained
// model for the same text, so a row has twice seq_length tokens if the model has so many positions.
std::int64_t row_of(const config::TrainerConfig& c, const ModelConfig& model) {
  const std::int64_t unit = 2 * c.context_parallel_size * c.tensor_model_parallel_size;
  const std::int64_t most = std::min(2 * c.seq_length, model.max_positions);
  return most / unit * unit;
}

// Writes answers as the tokens of a reward model.
class AnswerWriter {
 public:
  AnswerWriter(const DataRequest& request, std::shared_ptr<const data::Prompts> prompts,
               const NamedModel& model)
      : prompts_(std::move(prompts)), policy_(request.tokenizer) {
    const ModelFolder folder = find_model_folder(model.given);
    tokenizer_ = tokenizer_in(folder);
    same_ = make_same_ids(tokenizer_->fingerprint(), policy_.fingerprint());
    const std::optional<data::ConversationStyle> style = load_conversation_style(folder, *tokenizer_);
    if (prompts_->are_conversations()) {
      if (!style) {
        throw invalid("the model has no chat template, but the prompts of the run are conversations",
                      "add the model's chat template to its folder (chat_template.jinja), or write plain "
                      "prompts: sft_conversation_format=none");
      }
      writer_.emplace(*style, *tokenizer_);
    } else if (style && request.warn) {
      // The format must suit the trained model: chatml, for example, needs two special tokens.
      const data::ConversationFormat fits = data::choose_style("auto", policy_).style.format;
      request.warn(fmt::format(
          "{}: the prompts are plain texts, so the reward model reads prompts and answers without its chat "
          "template; sft_conversation_format={} makes the prompts conversations",
          name_of(model), fits == data::ConversationFormat::kTemplate ? "auto" : data::name_of(fits)));
    }
  }

  RewardTokens tokens(const Rollout& rollout, const ScoredAnswer& answer) const {
    if (!writer_) return {.ids = plain(rollout, answer)};
    try {
      return conversation(rollout, answer);
    } catch (const Error& error) {
      return {.ids = {}, .problem = error.what()};
    }
  }

 private:
  std::vector<std::int32_t> plain(const Rollout& rollout, const ScoredAnswer& answer) const {
    std::vector<std::int32_t> all = rollout.prompt;
    all.insert(all.end(), rollout.answer.begin(), rollout.answer.end());
    if (same_) return all;
    // The answer is decoded behind the prompt, because some tokenizers omit a space at the beginning.
    const std::string before = policy_.decode(rollout.prompt), whole = policy_.decode(all);
    const std::string text = prompts_->plain_text(rollout.record) +
                             (whole.starts_with(before) ? whole.substr(before.size()) : answer.completion);
    std::vector<std::int32_t> ids = tokenizer_->frame().before;
    tokenizer_->encode(text, false, ids);
    const std::optional<std::int32_t> end = data::end_of_text(*tokenizer_);
    if (rollout.finished && end) ids.push_back(*end);
    return ids;
  }

  RewardTokens conversation(const Rollout& rollout, const ScoredAnswer& answer) const {
    data::Conversation all = prompts_->conversation(rollout.record);
    if (writer_->members() != data::Members::kAll && has_members(all)) {
      return {.ids = {},
              .problem =
                  "the prompt has tools or tool calls, which the conversation format of the reward "
                  "model does not write"};
    }
    all.messages.push_back({.role = std::string(data::kAssistant), .text = answer.completion, .context = {}});
    RewardTokens tokens{.ids = writer_->training_text(all)};
    if (tokens.ids.empty()) tokens.problem = "the chat template of the reward model writes an empty text";
    return tokens;
  }

  static bool has_members(const data::Conversation& all) {
    return !all.tools.empty() || !all.documents.empty() ||
           std::ranges::any_of(all.messages, [](const data::Message& m) { return !m.members.empty(); });
  }

  const std::shared_ptr<const data::Prompts> prompts_;
  const Tokenizer& policy_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::optional<data::ConversationWriter> writer_;  // only if the prompts are conversations
  bool same_ = false;                               // whether both tokenizers have the same ids
};

}  // namespace

std::vector<RewardModel> reward_models_of(const config::Experiment& experiment) {
  const config::TrainerConfig& c = experiment.trainer;
  std::vector<RewardModel> all;
  for (const NamedModel& model : named_models(experiment)) {
    if (c.environment) {
      throw experiment.error_for(
          "reward",
          fmt::format("{}: reward models do not score conversations with an environment", name_of(model)),
          "let the environment's program return the score, or remove environment");
    }
    const ModelFolder folder = for_model(experiment, model, [&] { return find_model_folder(model.given); });
    const ModelConfig config = for_model(experiment, model, [&] { return config_of(folder); });
    const std::int64_t row = row_of(c, config);
    if (row < 2) {
      throw experiment.error_for(
          "reward",
          fmt::format("{} reads texts of up to {} tokens (max_position_embeddings), which {} context ranks "
                      "and {} tensor ranks cannot divide",
                      name_of(model), config.max_positions, c.context_parallel_size,
                      c.tensor_model_parallel_size),
          "use fewer of these ranks");
    }
    all.push_back({.function = model.function,
                   .name = all.empty() ? "reward_model" : fmt::format("reward_model-{}", all.size() + 1),
                   .folder = folder.path,
                   .model = config,
                   .rows = std::max<std::int64_t>(1, c.micro_batch_size * c.seq_length / row),
                   .sequence = row,
                   .load = [folder](TrainingSession& session, ModelInstance& instance) {
                     load_weights(open_weights(folder), instance.store(), session.rank());
                   }});
  }
  return all;
}

void check_reward_models(const config::Experiment& experiment) {
  reward_models_of(experiment);
  for (const NamedModel& model : named_models(experiment))
    for_model(experiment, model, [&] { tokenizer_in(find_model_folder(model.given)); });
}

void check_reward_meshes(const config::Experiment& experiment, int world, const SessionSettings& settings) {
  for (const RewardModel& model : reward_models_of(experiment)) {
    check_mesh_of_second_model(experiment, world, settings,
                               fmt::format("reward model '{}'", model.folder.string()), model.model,
                               model.rows, model.sequence);
  }
}

std::vector<std::function<RewardTokens(const Rollout& rollout, const ScoredAnswer& answer)>> reward_tokens_of(
    const DataRequest& request, const std::shared_ptr<const data::Prompts>& prompts) {
  std::vector<std::function<RewardTokens(const Rollout&, const ScoredAnswer&)>> all;
  for (const NamedModel& model : named_models(request.experiment)) {
    const auto writer = for_model(request.experiment, model, [&] {
      return std::make_shared<const AnswerWriter>(request, prompts, model);
    });
    all.emplace_back([writer](const Rollout& rollout, const ScoredAnswer& answer) {
      return writer->tokens(rollout, answer);
    });
  }
  return all;
}

}  // namespace primus
