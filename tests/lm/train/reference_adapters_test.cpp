// Tests reference models with adapters of their own (reference_adapters), which share the frozen weights of
// the trained model.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/runtime/shared_parameters.h"
#include "lm/exchange/exchange.h"
#include "lm/generate/model_folder.h"
#include "lm/train/whole_runs.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::test {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

class ReferenceAdapters : public WholeRuns {
 protected:
  ReferenceAdapters()
      : WholeRuns({"mock_data=false", "num_query_groups=2", "seq_length=96", "max_position_embeddings=96",
                   "sft_conversation_format=squad", "lr=1e-2", "bf16=false", "dataloader_type=cyclic"}) {}

  void SetUp() override {
    base_ = run("base", {"stage=sft", file("s.jsonl", R"({"prompt": "q", "response": "ab"})")});
    adapters_ = folder_.path() / "adapters";
    const Path trained = run("adapted", dpo({lora_}));
    write_adapters(find_model_folder(trained), adapters_, base_.string(), families_);
  }

  std::string file(const std::string& name, const std::string& content) const {
    write_file(folder_.path() / name, content);
    return "sft_dataset_name=" + (folder_.path() / name).string();
  }
  // Returns the settings of a preference run that starts from the base model.
  std::vector<std::string> dpo(const std::vector<std::string>& more) const {
    std::string pairs;
    for (int i = 0; i < 4; ++i)
      pairs += fmt::format("{{\"prompt\": \"{}\", \"chosen\": \"a{}\", \"rejected\": \"b\"}}\n", i, i);
    std::vector<std::string> all{"stage=dpo", file("pairs.jsonl", pairs), load(base_), "finetune=true"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string continued() const {
    return fmt::format("lora={{enabled: true, adapters: {}}}", adapters_.string());
  }
  std::string reference() const { return "reference_adapters=" + adapters_.string(); }

  const std::string lora_ = "lora={enabled: true, dim: 4, alpha: 8}";
  Path base_, adapters_;
};

TEST_F(ReferenceAdapters, TheStartIsTheReferenceIfBothHaveTheSameAdapters) {
  run("other", dpo({continued()}));
  EXPECT_GT(std::abs(losses("other", "rewards/margins").front()), 1e-3);
  run("same", dpo({continued(), reference()}));
  EXPECT_NEAR(losses("same", "rewards/margins").front(), 0, 1e-6);
  EXPECT_NEAR(losses("same").front(), std::log(2.0), 1e-6);
  EXPECT_THAT(log_of("same"), HasSubstr("reference: " + adapters_.string()));
  EXPECT_GT(losses("same", "rewards/margins").back(), 1e-3);  // the reference does not learn
}

TEST_F(ReferenceAdapters, ModelAndReferenceCanChangePlaces) {
  run("forward", dpo({continued()}));          // the adapters, compared with the base model
  run("backward", dpo({lora_, reference()}));  // the base model, compared with the adapters
  const double margin = losses("forward", "rewards/margins").front();
  EXPECT_THAT(losses("backward", "rewards/margins").front(),
              DoubleNear(-margin, 1e-5 * std::abs(margin) + 1e-6));
}

TEST_F(ReferenceAdapters, RunsInTwoPartsHaveTheSameBits) {
  const Path whole = run("whole", dpo({lora_, reference()}));
  run("twice", dpo({lora_, reference(), "exit_interval=2"}));
  const Path twice = run("twice", dpo({lora_, reference()}));
  EXPECT_EQ(losses("twice"), losses("whole"));
  EXPECT_EQ(read_file(twice / "model.safetensors"), read_file(whole / "model.safetensors"));
}

TEST_F(ReferenceAdapters, PolicyGradientsStayCloseToTheReference) {
  const std::string prompts = file(
      "prompts.jsonl", "{\"prompt\": \"1\", \"answer\": \"a\"}\n{\"prompt\": \"2\", \"answer\": \"b\"}\n");
  for (const std::string stage : {"grpo", "ppo"}) {
    SCOPED_TRACE(stage);
    const std::vector<std::string> settings{"stage=" + stage,
                                            prompts,
                                            load(base_),
                                            "finetune=true",
                                            "reward=[exact:answer]",
                                            "num_generations=2",
                                            "max_completion_length=8",
                                            "global_batch_size=4",
                                            "beta=0.1",
                                            "train_iters=1",
                                            continued()};
    run(stage, settings);
    EXPECT_GT(std::abs(losses(stage, "kl").front()), 1e-5);
    std::vector<std::string> same = settings;
    same.push_back(reference());
    run(stage + "-same", same);
    EXPECT_NEAR(losses(stage + "-same", "kl").front(), 0, 1e-6);
  }
}

TEST_F(ReferenceAdapters, SettingsWithoutEffectAreRefused) {
  const auto refused = [&](const std::vector<std::string>& more) { return refusal("refused", dpo(more)); };
  EXPECT_THAT(refused({reference()}), HasSubstr("reference_adapters needs LoRA"));
  EXPECT_THAT(refused({reference(), "lora={enabled: true, dim: 4, base_weights: nf4}"}),
              HasSubstr("does not support base weights in 4 bits"));
  EXPECT_THAT(refused({reference(), lora_, "reference_free=true"}), HasSubstr("reference_free means"));
  EXPECT_THAT(refused({"reference_adapters=" + base_.string(), lora_}), HasSubstr("is no PEFT folder"));
  EXPECT_THAT(refusal("refused", {"stage=grpo", file("p.jsonl", "{\"prompt\": \"1\", \"answer\": \"a\"}\n"),
                                  load(base_), "finetune=true", "reward=[exact:answer]", "num_generations=2",
                                  "max_completion_length=8", lora_, reference()}),
              HasSubstr("beta 0 means that there is no reference model"));
}

// A module that is trained without adapters must not be shared: the reference would learn, too.
TEST(SharedParameters, OnlyFrozenParametersOfATrainedModelAreShared) {
  engine::Rank rank(turbo::make_cpu_device(1));
  engine::ParameterStore trained(&rank.mesh()), reference(&rank.mesh());
  const auto declare = [](engine::ParameterStore& store, bool trains_head) {
    store.begin_group("layer");
    store.add("body", {8, 8}, engine::Initializer::constant(1)).trainable = false;
    store.add("head", {8, 8}, engine::Initializer::constant(1)).trainable = trains_head;
  };
  const auto allocate = [&] {
    declare(trained, true);
    declare(reference, false);
    trained.allocate({}, rank.persistent());
    engine::allocate_beside(reference, trained, {.train = false}, rank.persistent(), engine::Shared::kFrozen);
  };
  allocate();
  EXPECT_TRUE(engine::is_shared(reference, reference.parameters()[0]));
  EXPECT_FALSE(engine::is_shared(reference, reference.parameters()[1]));
}

}  // namespace
}  // namespace primus::test
