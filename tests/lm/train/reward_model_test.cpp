// Tests reward models as reward functions (reward: [model:FOLDER]): their scores on every mesh, the texts
// that they read, whole runs, and refused models.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lm/data/conversation_format.h"
#include "lm/generate/model_folder.h"
#include "lm/model/weights.h"
#include "lm/tokenizer/tokenizer.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/rollouts/reward_models.h"
#include "lm/train/rank_training.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;

RewardModel model_in(const Path& folder, std::int64_t rows, std::int64_t sequence) {
  return {.name = "reward_model",
          .folder = folder,
          .model = load_model_config({folder, {}}, builtin_families()),
          .rows = rows,
          .sequence = sequence,
          .load = [folder](TrainingSession& session, ModelInstance& model) {
            load_weights(SafetensorsFolder::open(folder), model.store(), session.rank());
          }};
}

// A rule with a reward model, whose losses do not matter.
class OnlyScores final : public LossRule {
 public:
  explicit OnlyScores(const RewardModel& model) : models({model}) {}
  std::vector<FrozenModel> frozen_models(const ModelConfig&) const override { return models.frozen_models(); }
  void prepare(TrainingSession& session) override { models.prepare(session); }
  void load_weights(TrainingSession& session) override { models.load_weights(session); }
  void before_step(const BeforeStep& step) override {
    if (step.session.rank().measuring()) models.measure(step.session);
  }
  void weigh(const TokenLosses&) override {}

  RewardModels models;
};

struct MeshCase {
  const char* name;
  int ranks = 1;
  engine::MeshShape shape = {};
  engine::Sharding sharding = engine::Sharding::kNone;
};

// Returns the rewards of the texts. Data rank r has the texts from texts.size() * r / (r + 1) on, so that the
// ranks have different numbers of texts; the result is that of rank 0, and every rank compares its own.
std::vector<Reward> scores_of(const RewardModel& model, const std::vector<RewardTokens>& texts,
                              const MeshCase& mesh = {}) {
  ModelConfig policy = tiny_llama();
  SessionSettings settings = tiny_settings(DType::kF32, policy);
  settings.evaluation = false;
  settings.sharding = mesh.sharding;
  settings.reduce_each_microbatch = mesh.sharding == engine::Sharding::kParameters;
  settings.loss_rule = [model] { return std::make_unique<OnlyScores>(model); };
  std::vector<std::vector<Reward>> all(static_cast<std::size_t>(mesh.ranks));
  on_ranks(mesh.ranks, mesh.shape, [&](engine::Rank& rank) {
    const auto session = open_session(rank, settings, all_families());
    session->store().initialize(rank.context(), 7);
    session->parallel().distribute_values();
    session->rule()->load_weights(*session);
    const auto r = static_cast<std::size_t>(rank.mesh().data_rank());
    auto& models = dynamic_cast<OnlyScores&>(*session->rule()).models;
    std::vector<Reward> rewards =
        models.score(*session, 0, std::span(texts).subspan(texts.size() * r / (r + 1)));
    EXPECT_EQ(rewards.size(), texts.size() - texts.size() * r / (r + 1));
    all[static_cast<std::size_t>(rank.mesh().rank())] = std::move(rewards);
  });
  // Every rank has the scores of its texts, which are the last ones.
  for (const std::vector<Reward>& own : all) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      const Reward& same = all[0][texts.size() - own.size() + i];
      EXPECT_EQ(own[i].value.has_value(), same.value.has_value());
      EXPECT_NEAR(own[i].value.value_or(0), same.value.value_or(0), 1e-5) << i;
    }
  }
  return all[0];
}

TEST(RewardModels, ScoresEqualThoseOfTrlOnEveryMesh) {
  const Path golden = Path(PRIMUS_SOURCE_DIR) / "tests/golden/ppo";
  const nlohmann::json cases = nlohmann::json::parse(read_file(golden / "ppo.json"));
  const SafetensorsFile tensors = SafetensorsFile::open(golden / "ppo_tensors.safetensors");
  std::vector<float> scores(12);
  copy_elements(*tensors.find("ppo/scores"), 0, std::as_writable_bytes(std::span(scores)));
  std::vector<RewardTokens> texts;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    texts.push_back({.ids = cases.at("prompts").at(i).get<std::vector<std::int32_t>>()});
    const auto answer = cases.at("completions").at(i).get<std::vector<std::int32_t>>();
    texts.back().ids.insert(texts.back().ids.end(), answer.begin(), answer.end());
  }
  // Rows of 16 tokens need several passes.
  const RewardModel model = model_in(golden / "model/ppo_reward", 2, 16);
  const std::vector<MeshCase> meshes = {{"one device"},
                                        {"data", 2},
                                        {"tensor", 2, {.tensor = 2}},
                                        {"context", 2, {.context = 2}},
                                        {"experts", 2, {.expert = 2}},
                                        {"pipeline and data", 4, {.pipeline = 2}},
                                        {"shards", 2, {}, engine::Sharding::kParameters}};
  for (const MeshCase& mesh : meshes) {
    SCOPED_TRACE(mesh.name);
    const std::vector<Reward> rewards = scores_of(model, texts, mesh);
    ASSERT_EQ(rewards.size(), scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      ASSERT_TRUE(rewards[i].value);
      EXPECT_NEAR(*rewards[i].value, static_cast<double>(scores[i]),
                  1e-5 * std::max(1.0F, std::abs(scores[i])));
    }
  }
}

TEST(RewardModels, TextsThatDoNotFitHaveNoReward) {
  const RewardModel model = model_in(Path(PRIMUS_SOURCE_DIR) / "tests/golden/ppo/model/ppo_reward", 1, 8);
  const std::vector<Reward> rewards = scores_of(model, {{.ids = std::vector<std::int32_t>(8, 3)},
                                                        {.ids = std::vector<std::int32_t>(9, 3)},
                                                        {.ids = {}, .problem = "there is no text"},
                                                        {.ids = {3}}});
  EXPECT_TRUE(rewards[0].value);
  EXPECT_FALSE(rewards[1].value);
  EXPECT_THAT(rewards[1].problem, HasSubstr("have 9 tokens for the reward model, which reads up to 8"));
  EXPECT_FALSE(rewards[2].value);
  EXPECT_EQ(rewards[2].problem, "there is no text");
  EXPECT_TRUE(rewards[3].value);
}

class RewardModelRuns : public WholeRuns {
 protected:
  RewardModelRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "seq_length=32", "lr=1e-2",
                   "lr_decay_style=constant", "weight_decay=0", "global_batch_size=16",
                   "micro_batch_size=4"}) {}

  // Trains a reward model of another size than the policy: answers of letters are better than digits.
  Path reward_model(const std::string& name = "scores", const std::vector<std::string>& more = {}) {
    std::string lines;
    for (int i = 0; i < 8; ++i) {
      lines += fmt::format("{{\"prompt\": \"{}+\", \"chosen\": \"{}\", \"rejected\": \"{}\"}}\n", i,
                           std::string(1, static_cast<char>('a' + i)), 9 - i);
    }
    write_file(folder_.path() / "pairs.jsonl", lines);
    std::vector<std::string> settings = {"stage=reward",
                                         "sft_dataset_name=" + (folder_.path() / "pairs.jsonl").string(),
                                         "sft_conversation_format=squad",
                                         "seq_length=128",
                                         "max_position_embeddings=128",
                                         "hidden_size=48",
                                         "num_layers=3",
                                         "global_batch_size=8",
                                         "train_iters=8",
                                         "save_interval=8"};
    settings.insert(settings.end(), more.begin(), more.end());
    return run(name, settings);
  }
  static std::string reward(const Path& folder) { return "reward=[model:" + folder.string() + "]"; }

  // Returns the settings of a run with rewards.
  std::vector<std::string> learning(const std::string& stage, const std::vector<std::string>& more) const {
    std::string lines;
    for (int i = 0; i < 12; ++i) lines += fmt::format("{{\"prompt\": \"{}+\"}}\n", i);
    write_file(folder_.path() / "prompts.jsonl", lines);
    std::vector<std::string> all = {"stage=" + stage,
                                    "sft_dataset_name=" + (folder_.path() / "prompts.jsonl").string(),
                                    stage == "ppo" ? "num_generations=1" : "num_generations=8",
                                    "max_completion_length=6",
                                    "log_completions=true",
                                    "log_interval=1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name)) all.push_back(step.at(key));
    return all;
  }
  // Returns the answers in samples.jsonl.
  std::vector<nlohmann::json> samples(const std::string& name) const {
    std::istringstream lines(read_file(folder_.path() / "w/u" / name / "samples.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }
  // Returns a folder with the weights, the tokenizer and the config.json of a checkpoint.
  Path copy_of(const Path& checkpoint, const std::string& name) const {
    Path folder = folder_.path() / name;
    std::filesystem::create_directories(folder);
    for (const char* file : {"model.safetensors", "tokenizer.json", "config.json"})
      std::filesystem::copy(checkpoint / file, folder / file);
    return folder;
  }
  // Compares the rewards in samples.jsonl with the reward model's scores of the tokens that `tokens` returns
  // for each sample.
  void expect_scores(const std::string& name, const Path& folder,
                     const std::function<std::vector<std::int32_t>(const nlohmann::json&)>& tokens) const {
    const std::vector<nlohmann::json> all = samples(name);
    ASSERT_GE(all.size(), 8U);
    std::vector<RewardTokens> texts;
    for (const nlohmann::json& sample : all) texts.push_back({.ids = tokens(sample)});
    const std::vector<Reward> scores = scores_of(model_in(folder, 2, 64), texts);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(all[i].at("rewards").at("model").get<double>(), scores[i].value.value(), 1e-5)
          << all[i].dump();
    }
  }
};

TEST_F(RewardModelRuns, ScoresRise) {
  const Path scores = reward_model("scores", {"train_iters=20", "save_interval=20"});
  for (const char* stage : {"grpo", "ppo"}) {
    SCOPED_TRACE(stage);
    run(stage, learning(stage, {reward(scores), "sft_conversation_format=squad", "seq_length=64",
                                "max_completion_length=2", "train_iters=60", "save_interval=60"}));
    const std::vector<double> means = values(stage, "rewards/model/mean");
    EXPECT_EQ(means, values(stage, "reward"));
    const auto mean = [](auto begin) { return std::accumulate(begin, begin + 5, 0.0) / 5; };
    EXPECT_GT(mean(means.end() - 5), mean(means.begin()) + 0.5) << fmt::format("{}", fmt::join(means, " "));
    EXPECT_THAT(values(stage, "rewards/model/without"), Each(0.0));
    EXPECT_THAT(log_of(stage), HasSubstr("reward_model: " + scores.string()));
  }
}

TEST_F(RewardModelRuns, ConversationsAreWrittenInTheFormatOfTheRewardModel) {
  const Path scores = reward_model();
  // The trained model has another tokenizer than the reward model.
  const Path qwen = Path(PRIMUS_SOURCE_DIR) / "tests/golden/tokenizers/qwen2.tokenizer.json";
  const auto settings = [&](const Path& folder) {
    return learning("grpo", {reward(folder), "sft_conversation_format=squad", "train_iters=2",
                             "tokenizer_type=HuggingFaceTokenizer", "tokenizer_model=" + qwen.string()});
  };
  const auto question_of = [](const nlohmann::json& sample) {
    const std::string prompt = sample.at("prompt");
    const std::size_t begin = prompt.find("Question: ") + 10;
    return prompt.substr(begin, prompt.find(" Answer:") - begin);
  };
  run("chat", settings(scores));
  const std::unique_ptr<const Tokenizer> bytes = load_tokenizer("ByteTokenizer", "");
  const data::ConversationWriter writer(data::ConversationFormat::kSquad, *bytes);
  expect_scores("chat", scores, [&](const nlohmann::json& sample) {
    data::LearnedTokens written;
    writer.write({.messages = {{"user", question_of(sample), {}}, {"assistant", sample.at("text"), {}}}},
                 written);
    return written.ids;
  });
  // A folder with a chat template of its own.
  const Path folder = copy_of(scores, "own-template");
  write_file(folder / "chat_template.jinja",
             "{% for m in messages %}{{ m.role[0] + ':' + m.content + ';' }}{% endfor %}");
  run("own", settings(folder));
  const auto tokenizer = load_tokenizer("HuggingFaceTokenizer", folder.string());
  expect_scores("own", folder, [&](const nlohmann::json& sample) {
    return tokenizer->encode("u:" + question_of(sample) + ";a:" + sample.at("text").get<std::string>() + ";",
                             false);
  });
}

TEST_F(RewardModelRuns, PlainPromptsAreReadWithTheTokensOfTheRun) {
  const Path scores = reward_model();
  run("plain", learning("grpo", {reward(scores), "train_iters=2", "max_completion_length=2"}));
  EXPECT_THAT(log_of("plain"), HasSubstr("without its chat template"));
  const std::unique_ptr<const Tokenizer> bytes = load_tokenizer("ByteTokenizer", "");
  const auto text_of = [&](const nlohmann::json& sample) {
    std::vector<std::int32_t> ids = bytes->frame().before;
    bytes->encode(sample.at("prompt").get<std::string>() + sample.at("text").get<std::string>(), false, ids);
    if (sample.at("finished") == true) ids.push_back(data::end_of_text(*bytes).value());
    return ids;
  };
  // Bytes of an answer that are not UTF-8 are not in samples.jsonl. Many answers of two bytes are UTF-8.
  std::vector<nlohmann::json> all = samples("plain");
  std::erase_if(all, [](const nlohmann::json& s) {
    return s.at("text").get<std::string>().size() + (s.at("finished") == true ? 1 : 0) != s.at("tokens");
  });
  ASSERT_FALSE(all.empty());
  std::vector<RewardTokens> texts;
  for (const nlohmann::json& sample : all) texts.push_back({.ids = text_of(sample)});
  const std::vector<Reward> rewards = scores_of(model_in(scores, 2, 64), texts);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_NEAR(all[i].at("rewards").at("model").get<double>(), rewards[i].value.value(), 1e-5)
        << all[i].dump();
  // With another tokenizer, the text of prompt and answer is encoded.
  run("other",
      learning("grpo",
               {reward(scores), "train_iters=2", "tokenizer_type=HuggingFaceTokenizer",
                "tokenizer_model=" +
                    (Path(PRIMUS_SOURCE_DIR) / "tests/golden/tokenizers/gpt2.tokenizer.json").string()}));
  expect_scores("other", scores, text_of);
}

TEST_F(RewardModelRuns, GoOnBitForBit) {
  const Path scores = reward_model();
  for (const std::vector<std::string>& settings :
       {learning("grpo", {"num_iterations=3", "bf16=true", "reward_weights=[0.5, 1]",
                          "reward=[regex:^a, model:" + scores.string() + "]"}),
        learning("ppo", {"num_iterations=2", reward(scores), "value_load=" + scores.string()})}) {
    SCOPED_TRACE(settings.front());
    const std::string name = settings.front().substr(6);
    const Path whole = run(name, settings);
    std::vector<std::string> all = settings;
    all.emplace_back("exit_interval=2");
    run(name + "-twice", all);
    const Path twice = run(name + "-twice", settings);
    for (const char* key : {"lm_loss", "grad_norm", "reward", "rewards/model/mean"})
      EXPECT_EQ(values(name + "-twice", key), values(name, key)) << key;
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  }
}

TEST_F(RewardModelRuns, AResumedRunWarnsOfChangedWeights) {
  const Path scores = reward_model(), others = reward_model("others", {"seed=7"});
  const std::vector<std::string> settings = learning("grpo", {reward(scores)});
  std::vector<std::string> first = settings, second = settings;
  first.emplace_back("exit_interval=2");
  run("changed", first);
  run("same", first);
  run("same", settings);
  EXPECT_THAT(log_of("same"), Not(HasSubstr("continues with other scores")));
  second.push_back(reward(others));
  run("changed", second);
  EXPECT_THAT(log_of("changed"), HasSubstr("the weights of the reward model '" + others.string() +
                                           "' are not those with which "));
}

TEST_F(RewardModelRuns, TextsBeyondTheContextOfTheRewardModelHaveNoReward) {
  const Path scores = reward_model("short");
  const Path folder = copy_of(scores, "short-model");
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "config.json"));
  config["max_position_embeddings"] = 4;
  write_file(folder / "config.json", config.dump());
  run("both", learning("grpo", {"reward=[regex:^, model:" + folder.string() + "]", "train_iters=1"}));
  EXPECT_THAT(values("both", "rewards/model/without"), Contains(testing::Gt(0)));
  EXPECT_THAT(values("both", "completions/without_reward"), Each(0.0));
  EXPECT_THAT(log_of("both"),
              AllOf(HasSubstr("the reward function model gave no reward to"),
                    HasSubstr("which reads up to 4 (max_position_embeddings of its config.json)")));
}

TEST_F(RewardModelRuns, ModelsThatDoNotFitAreRefused) {
  const auto refused = [&](const std::string& text, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = learning("grpo", more);
    all.push_back("reward=['" + text + "']");
    return refusal("refused", all);
  };
  EXPECT_THAT(refused("model:"), HasSubstr("write model:FOLDER"));
  EXPECT_THAT(refused("model:" + (folder_.path() / "nowhere").string()),
              AllOf(HasSubstr("reward 'model:"), HasSubstr("nowhere' does not exist")));
  const Path scores = reward_model();
  EXPECT_THAT(refused(scores.string()), HasSubstr("write reward=model:" + scores.string()));
  EXPECT_THAT(refused("model:" + scores.string(), {"environment=/bin/cat"}),
              HasSubstr("do not score conversations with an environment"));
  const Path language = run("language", {"mock_data=true", "train_iters=1"});
  EXPECT_THAT(refused("model:" + language.string()),
              AllOf(HasSubstr("has no head for scores"), HasSubstr("primus train reward")));
  const Path folder = copy_of(scores, "copy");
  std::filesystem::remove(folder / "tokenizer.json");
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "config.json"));
  EXPECT_THAT(refused("model:" + folder.string()),
              AllOf(HasSubstr("has no tokenizer.json"), HasSubstr("copy the tokenizer.json")));
  std::filesystem::copy(scores / "tokenizer.json", folder / "tokenizer.json");
  EXPECT_THAT(refused("model:" + folder.string(), {"sft_conversation_format=squad", "seq_length=64"}),
              AllOf(HasSubstr("has no chat template"), HasSubstr("sft_conversation_format=none")));
  config["id2label"] = {{"0", "bad"}, {"1", "good"}};
  write_file(folder / "config.json", config.dump());
  EXPECT_THAT(refused("model:" + folder.string()), HasSubstr("a head with 2 labels is not supported"));
}

TEST_F(RewardModelRuns, AMeshThatCannotDivideTheRewardModelIsRefused) {
  const std::vector<std::string> settings = learning(
      "grpo", {reward(reward_model()), "pipeline_model_parallel_size=4", "num_layers=4", "hidden_size=32",
               "num_attention_heads=4", "tokenizer_type=ByteTokenizer", "micro_batch_size=1",
               "global_batch_size=16", "seq_length=32", "mock_data=false", "eval_iters=0"});
  const config::Experiment experiment = config::load_experiment_text(
      "exp_name: mesh\nmodules:\n  pre_trainer:\n    framework: native\n    overrides: {}\n",
      "experiment.yaml", settings);
  SessionSettings session = tiny_settings();
  try {
    make_objective(experiment.trainer)->prepare_session(experiment, 4, session);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), AllOf(HasSubstr("has 3 layers, fewer than the 4 pipeline parts"),
                                      HasSubstr("pipeline_model_parallel_size")));
  }
}

}  // namespace
}  // namespace primus::test
