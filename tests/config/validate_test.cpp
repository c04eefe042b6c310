// Tests of checks that involve several keys.
#include "config/validation/validate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

std::string error(const std::vector<std::string>& arguments) {
  return error_of(experiment_text(""), arguments);
}

// Expects an error that begins with `what` and points at the value of `key` on the command line.
void expect_error(const std::vector<std::string>& arguments, const std::string& key,
                  const std::string& what) {
  const std::string text = error(arguments);
  EXPECT_EQ(text.rfind("command line: error: " + what, 0), 0u) << text;
  EXPECT_NE(text.find("\n  | " + key + "="), std::string::npos) << text;
}

TEST(Validate, Batches) {
  EXPECT_EQ(error({"micro_batch_size=3"}),
            "command line: error: global_batch_size (16) is not a multiple of micro_batch_size (3)\n"
            "  | micro_batch_size=3\n"
            "  |                  ^\n"
            "  hint: set global_batch_size to 15 or 18");
  expect_error({"global_batch_size=5"}, "global_batch_size", "global_batch_size (5) is not a multiple");
  expect_error({"global_batch_size=1", "micro_batch_size=2"}, "global_batch_size",
               "global_batch_size (1) is not");
}

TEST(Validate, CountsFitIntoTheirTypes) {
  for (const char* key : {"log_interval", "keep_latest", "tensorboard_log_interval",
                          "log_avg_skip_iterations", "log_avg_reset_interval"}) {
    EXPECT_NE(error({std::string(key) + "=2147483648"}).find("and at most 2147483647"), std::string::npos)
        << key;
    EXPECT_EQ(error({std::string(key) + "=2147483647"}), "") << key;
  }
  EXPECT_NE(error({"eval_iters=4611686018427387904"}).find("at most 1000000000000000"), std::string::npos);
  expect_error({"eval_iters=1000000000000"}, "eval_iters", "evaluations * eval_iters * global_batch_size");
  expect_error({"eval_iters=1000000000", "eval_interval=1"}, "eval_iters", "evaluations * eval_iters");
  EXPECT_EQ(error({"eval_iters=1000000"}), "");
}

TEST(Validate, LongSequencesGiveAWarning) {
  const Experiment e =
      load_text(experiment_text("      max_position_embeddings: 512\n"), {"seq_length=1024"});
  EXPECT_EQ(e.warnings,
            std::vector<std::string>{"command line: seq_length (1024) is longer than max_position_embeddings "
                                     "(512), the context that the model was made for"});
}

TEST(Validate, GradientsInBf16NeedBf16Training) {
  EXPECT_EQ(load_text(experiment_text(""), {"main_grads_dtype=bf16"}).warnings, std::vector<std::string>{});
  const Experiment e = load_text(experiment_text(""), {"main_grads_dtype=bf16", "bf16=false"});
  ASSERT_EQ(e.warnings.size(), 1U);
  EXPECT_THAT(e.warnings[0], ::testing::HasSubstr("main_grads_dtype"));
}

TEST(Validate, ALayoutExcludesOtherNumbersOfBlocks) {
  const std::vector<std::string> layout{"pipeline_model_parallel_size=2",
                                        "pipeline_model_parallel_layout=Et*2|t*2L"};
  EXPECT_EQ(error(layout), "");
  for (const char* key :
       {"decoder_first_pipeline_num_layers=1", "decoder_last_pipeline_num_layers=1",
        "account_for_embedding_in_pipeline_split=true", "account_for_loss_in_pipeline_split=true"}) {
    std::vector<std::string> arguments = layout;
    arguments.emplace_back(key);
    EXPECT_THAT(
        error(arguments),
        ::testing::HasSubstr("and pipeline_model_parallel_layout both set the blocks of pipeline stages"))
        << key;
  }
}

TEST(Validate, ContradictionsBetweenShardingKeysAreReported) {
  expect_error({"use_torch_fsdp2=true", "data_parallel_sharding_strategy=no_shard"},
               "data_parallel_sharding_strategy", "use_torch_fsdp2 is true, which means");
  EXPECT_EQ(error({"use_torch_fsdp2=true", "data_parallel_sharding_strategy=optim_grads_params"}), "");
  EXPECT_EQ(error({"use_torch_fsdp2=false", "data_parallel_sharding_strategy=optim"}), "");
  const auto warnings = [](const std::string& overrides, const std::vector<std::string>& arguments) {
    return load_text(experiment_text(overrides), arguments).warnings;
  };
  const std::string strategy = "data_parallel_sharding_strategy=optim_grads_params";
  EXPECT_THAT(warnings("", {"use_distributed_optimizer=false", strategy}),
              ::testing::ElementsAre(::testing::HasSubstr("use_distributed_optimizer: false has no effect")));
  // The command line overrides the file.
  EXPECT_THAT(warnings("      use_distributed_optimizer: false\n", {strategy}), ::testing::IsEmpty());
}

TEST(Validate, RoundsOfExpertsNeedTokensAndNoCapacity) {
  expect_error({"moe_expert_rounds=9", "micro_batch_size=1", "seq_length=8"}, "moe_expert_rounds",
               "moe_expert_rounds is 9, but a rank has only 8 tokens of a microbatch");
  expect_error({"moe_expert_rounds=2", "moe_expert_capacity_factor=1"}, "moe_expert_rounds",
               "moe_expert_rounds saves no memory with moe_expert_capacity_factor");
}

TEST(Validate, TokensInFp8NeedAnAllToAll) {
  expect_error({"moe_dispatch_fp8=true"}, "moe_dispatch_fp8",
               "moe_dispatch_fp8 needs moe_token_dispatcher_type: alltoall, but it is allgather");
  for (const char* dispatcher : {"alltoall", "alltoall_seq", "flex"})
    EXPECT_EQ(error({"moe_dispatch_fp8=true", std::string("moe_token_dispatcher_type=") + dispatcher}), "");
  expect_error({"moe_dispatch_fp8=true", "moe_token_dispatcher_type=alltoall", "moe_ranks_per_host=2"},
               "moe_ranks_per_host", "moe_dispatch_fp8 sends tokens in one hop");
}

TEST(Validate, KeysOfShardingNeedSharding) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    return load_text(experiment_text(""), arguments).warnings;
  };
  const char* const key = "torch_fsdp2_reshard_after_forward=false";
  EXPECT_THAT(warnings({key, "use_distributed_optimizer=false"}),
              ::testing::ElementsAre(::testing::HasSubstr("has an effect only with ")));
  EXPECT_THAT(warnings({key, "data_parallel_sharding_strategy=optim_grads_params"}), ::testing::IsEmpty());
}

TEST(Validate, Heads) {
  expect_error({"num_attention_heads=3"}, "num_attention_heads", "hidden_size (64) is not a multiple of");
  EXPECT_EQ(error({"num_attention_heads=3", "kv_channels=16"}), "");
  expect_error({"num_query_groups=3"}, "num_query_groups", "num_attention_heads (4) is not a multiple of");
  expect_error({"group_query_attention=true"}, "group_query_attention", "group_query_attention needs");
  expect_error({"num_query_groups=2", "group_query_attention=false"}, "group_query_attention",
               "num_query_groups is 2, but group_query_attention is false");
  EXPECT_EQ(error({"num_query_groups=2"}), "");
  EXPECT_EQ(error({"num_query_groups=4", "group_query_attention=false"}), "");
  expect_error({"kv_channels=15"}, "kv_channels",
               "the rotary embedding rotates pairs of channels, but 15 channels");
  expect_error({"rotary_percent=0.45"}, "rotary_percent",
               "the rotary embedding rotates pairs of channels, but 7 channels");
  EXPECT_EQ(error({"rotary_percent=0.5"}), "");
  expect_error({"num_attention_heads=16384", "kv_channels=16384"}, "kv_channels", "num_attention_heads x kv");
}

TEST(Validate, RopeScaling) {
  expect_error({"use_rope_scaling=true", "rope_scaling_type=yarn"}, "use_rope_scaling",
               "use_rope_scaling means");
  EXPECT_EQ(error({"use_rope_scaling=true", "rope_scaling_type=llama3"}), "");
  expect_error({"use_rope_scaling=true", "rope_low_freq_factor=5"}, "rope_low_freq_factor",
               "rope_low_freq_factor (5) must not be above rope_high_freq_factor (4)");
  // Equal limits are accepted, because Llama 4 is published with equal frequency factors and Kimi K2 with
  // equal betas.
  EXPECT_EQ(error({"use_rope_scaling=true", "rope_low_freq_factor=4"}), "");
  EXPECT_EQ(error({"rope_scaling_type=yarn", "beta_slow=32"}), "");
  expect_error({"rope_scaling_type=yarn", "beta_slow=40"}, "beta_slow",
               "beta_slow (40) must not be above beta_fast (32)");
  EXPECT_EQ(
      load_text(experiment_text(""), {"rope_scaling_type=linear", "rope_scaling_factor=4", "seq_length=4096"})
          .trainer->original_max_position_embeddings,
      1024);
}

// Keys that set the RoPE scaling under different names must agree. A contradiction is an error, so no setting
// is silently lost.
TEST(Validate, RopeScalingUnderOtherNames) {
  const std::string llama3 = "      use_rope_scaling: true\n      rope_scaling_type: llama3\n";
  const auto error = [&](const std::string& text, const std::vector<std::string>& arguments) {
    return error_of(experiment_text(text), arguments);
  };
  EXPECT_EQ(error(llama3, {"use_rope_scaling=false"}),
            "command line: error: use_rope_scaling is false, but rope_scaling_type is llama3\n"
            "  | use_rope_scaling=false\n"
            "  |                  ^^^^^\n"
            "  hint: set rope_scaling_type to the same value, or set only rope_scaling_type");
  EXPECT_THAT(error(llama3, {"rope_scaling_type=none"}),
              ::testing::HasSubstr("set use_rope_scaling: false, too"));
  EXPECT_EQ(error(llama3, {"rope_scaling_type=none", "use_rope_scaling=false"}), "");
  const std::string yarn = "      rope_scaling_type: yarn\n";
  EXPECT_THAT(error(yarn, {"rope_type=rope"}),
              ::testing::HasSubstr("rope_type is rope, but rope_scaling_type is yarn"));
  EXPECT_EQ(error(yarn, {"rope_type=yarn", "position_embedding_type=rope"}), "");
  EXPECT_THAT(error(llama3, {"position_embedding_type=yarn"}),
              ::testing::HasSubstr("position_embedding_type is yarn, but rope_scaling_type is llama3"));
  EXPECT_EQ(error("", {"rope_type=yarn"}), "");  // sets rope_scaling_type
}

TEST(Validate, KeysWithoutEffectGiveAWarning) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    return load_text(experiment_text(""), arguments).warnings;
  };
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(
      warnings({"num_experts=4", "moe_aux_loss_coeff=0.1", "moe_router_load_balancing_type=none"}),
      Warnings{"command line: moe_aux_loss_coeff has an effect only with a moe_router_load_balancing_type"});
  EXPECT_EQ(warnings({"beta_fast=16", "rope_scaling_type=linear"}),
            Warnings{"command line: beta_fast has an effect only with rope_scaling_type: yarn"});
  EXPECT_EQ(warnings({"beta_fast=16", "rope_scaling_type=yarn"}), Warnings{});
  EXPECT_EQ(warnings({"beta_fast=16", "load=model"}),
            Warnings{});  // the loaded model's scaling is not known yet
  EXPECT_EQ(warnings({"finetune=true"}),
            Warnings{"command line: finetune starts from the weights of load, but load is not set: the model "
                     "starts with random weights"});
  EXPECT_EQ(warnings({"finetune=true", "load=model"}), Warnings{});
  EXPECT_EQ(warnings({"finetune=false"}),
            Warnings{"command line: finetune: false has no effect without load: it continues from the "
                     "optimizer states and the step of the checkpoint that load names; set load, or omit "
                     "finetune"});
  EXPECT_EQ(warnings({"finetune=false", "load=model"}), Warnings{});
  // Keys with their default or derived value give no warning.
  EXPECT_EQ(warnings({"kv_lora_rank=32", "beta_slow=1", "num_query_groups=4", "kv_channels=16",
                      "multi_latent_attention=true"}),
            Warnings{});
  const Experiment said = load_text(experiment_text(""), {"multi_latent_attention=true"});
  EXPECT_EQ(load_text(to_yaml(said), {}).warnings, Warnings{});
}

// AdamW changes a weight by about lr in a step. A usual rate in a short test gives no warning.
TEST(Validate, RatesThatHardlyChangeTheWeightsGiveAWarning) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    return load_text(experiment_text(""), arguments).warnings;
  };
  const auto about = [](const std::string& text) { return ::testing::Contains(::testing::HasSubstr(text)); };
  EXPECT_THAT(warnings({"lr=1e-9", "train_iters=100000"}), about("too small to change the weights"));
  EXPECT_THAT(warnings({"lr=1e-9", "train_epochs=3", "data_path=[a]", "mock_data=false"}),
              about("too small to change the weights"));
  EXPECT_THAT(warnings({"lr=5e-9", "train_iters=100"}),
              about("100 steps of this size change a weight by at most about 5.0e-07"));
  EXPECT_THAT(warnings({"lr=5e-9", "train_iters=100000"}), ::testing::Not(about("steps of this size")));
  EXPECT_THAT(warnings({"lr=1e-5", "train_iters=1"}), ::testing::Not(about("steps of this size")));
}

TEST(Validate, KeysOfAnotherChoiceGiveAWarning) {
  using Warnings = std::vector<std::string>;
  const auto warnings = [](std::vector<std::string> arguments, const std::string& choice) {
    if (!choice.empty()) arguments.push_back(choice);
    return load_text(experiment_text(""), arguments).warnings;
  };
  struct Case {
    std::string setting, without, condition, with;  // `with`: a choice that gives `setting` an effect
  };
  const std::string decays = "with a lr_decay_style other than constant";
  const std::string constant = "lr_decay_style=constant", sgd = "optimizer=sgd";
  const std::vector<Case> cases = {
      {"lr_wsd_decay_iters=3", "", "with lr_decay_style: WSD", "lr_decay_style=WSD"},
      {"recompute_modules=[mlp]", "", "with recompute_granularity: selective",
       "recompute_granularity=selective"},
      {"recompute_num_layers=1", "", "with recompute_granularity: full", "recompute_granularity=full"},
      {"exp_avg_dtype=bf16", sgd, "with optimizer: adam", ""},
      {"exp_avg_sq_dtype=bf16", sgd, "with optimizer: adam", "optimizer=muon"},
      {"tensorboard_log_interval=5", "disable_tensorboard=true", "with disable_tensorboard: false", ""},
      {"min_lr=1e-7", constant, decays, ""},
      {"lr_decay_iters=500", constant, decays, ""},
      {"lr_warmup_init=1e-7", "lr_warmup_iters=0", "with lr_warmup_iters or lr_warmup_fraction", ""},
      {"weight_decay_incr_style=linear", "", "if start_weight_decay and end_weight_decay differ",
       "end_weight_decay=0.1"}};
  for (const auto& [setting, without, condition, with] : cases) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_EQ(warnings({setting}, without),
              Warnings{"command line: " + key + " has an effect only " + condition});
    EXPECT_EQ(warnings({setting}, with), Warnings{}) << setting;
  }
  const std::string stages = "with pipeline_model_parallel_size above 1";
  for (const auto& [setting, condition] :
       {std::pair<std::string, std::string>{"decoder_first_pipeline_num_layers=1", stages},
        {"decoder_last_pipeline_num_layers=1", stages},
        {"account_for_embedding_in_pipeline_split=true", stages},
        {"account_for_loss_in_pipeline_split=true", stages},
        {"patch_primus_pipeline=true", stages},
        {"tp_comm_overlap=false", "with tensor_model_parallel_size above 1"},
        {"cp_comm_type=a2a", "with context_parallel_size above 1"},
        {"store_param_remainders=false", "with bf16"}}) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_EQ(warnings({setting}, "bf16=false"),
              Warnings{"command line: " + key + " has an effect only " + condition});
  }
  EXPECT_EQ(warnings({"patch_primus_pipeline=true", "tp_comm_overlap=false", "cp_comm_type=a2a",
                      "tensor_model_parallel_size=2", "context_parallel_size=2"},
                     "pipeline_model_parallel_size=2"),
            Warnings{});
  EXPECT_EQ(warnings({"store_param_remainders=false"}, "bf16=true"), Warnings{});
  EXPECT_EQ(warnings({"pp_algorithm=gpipe"}, ""),
            Warnings{"command line: pp_algorithm has an effect only with patch_primus_pipeline: true"});
  EXPECT_EQ(warnings({"pp_algorithm=gpipe", "patch_primus_pipeline=true"}, "pipeline_model_parallel_size=2"),
            Warnings{});
  const std::string shape = "lr_wsd_decay_style=linear";
  EXPECT_EQ(warnings({shape}, ""),
            Warnings{"command line: lr_wsd_decay_style has an effect only with lr_decay_style: WSD"});
  EXPECT_EQ(warnings({shape, "lr_wsd_decay_iters=3"}, "lr_decay_style=WSD"), Warnings{});
  EXPECT_EQ(warnings({"lr_decay_iters=500", "lr_warmup_fraction=0.1"}, constant), Warnings{});
}

TEST(Validate, WarningsNameAllStagesInWhichAKeyHasAnEffect) {
  const auto warnings = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(),
                     {"sft_dataset_name=data.jsonl", "mock_data=false", "eval_iters=0", "hf_path=null"});
    return load_text(experiment_text(""), arguments).warnings;
  };
  using Warnings = std::vector<std::string>;
  EXPECT_EQ(warnings({"stage=reward", "beta=0.2"}),
            Warnings{"command line: beta has an effect only with stage: dpo, kto, orpo, cpo, grpo, rloo, ppo "
                     "or distill"});
  EXPECT_EQ(warnings({"stage=rloo", "reward=exact:answer", "loss_type=grpo"}),
            Warnings{"command line: loss_type has an effect only with stage: sft, dpo, kto, cpo or grpo"});
}

TEST(Validate, KeysOfRatiosHaveAnEffectInLossesThatUseThem) {
  const auto warnings = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"stage=grpo", "reward=exact:answer", "sft_dataset_name=data.jsonl",
                                       "mock_data=false", "eval_iters=0", "hf_path=null"});
    return load_text(experiment_text(""), arguments).warnings;
  };
  using Warnings = std::vector<std::string>;
  const std::string steps =
      " has an effect only with num_iterations above 1 or with max_staleness: with one step for each answer "
      "of the current weights, the ratio of new to old probability is 1";
  EXPECT_EQ(warnings({"loss_type=cispo", "epsilon_high=5"}), Warnings{});
  EXPECT_EQ(warnings({"epsilon_high=5"}), Warnings{"command line: epsilon_high" + steps});
  const std::string level = "importance_sampling_level=sequence";
  EXPECT_EQ(warnings({level}), Warnings{"command line: importance_sampling_level" + steps});
  EXPECT_EQ(warnings({level, "beta=0.1"}), Warnings{});
}

TEST(Validate, KeysOfExpertsHaveNoEffectOnDenseModels) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    return load_text(experiment_text(""), arguments).warnings;
  };
  using Warnings = std::vector<std::string>;
  for (const std::string setting :
       {"moe_router_topk=4", "moe_input_jitter_eps=0.1", "moe_z_loss_coeff=0.1",
        "moe_expert_capacity_factor=2", "moe_token_drop_policy=position", "moe_router_score_function=sigmoid",
        "moe_router_force_load_balancing=true", "moe_router_bias_update_rate=0.01", "moe_ffn_hidden_size=64",
        "moe_shared_expert_intermediate_size=64", "moe_layer_freq=2", "moe_aux_loss_coeff=0.1"}) {
    const std::string key = setting.substr(0, setting.find('='));
    EXPECT_EQ(warnings({setting}), Warnings{"command line: " + key + " has an effect only with num_experts"});
    const Warnings with_experts = warnings({setting, "num_experts=4", "moe_expert_capacity_factor=2"});
    EXPECT_EQ(with_experts, Warnings{}) << setting;
    EXPECT_EQ(warnings({setting, "load=model"}), Warnings{});  // the loaded model may have experts
  }
  // Values that mean "no experts" give no warning.
  EXPECT_EQ(warnings({"moe_router_bias_update_rate=0", "moe_z_loss_coeff=0", "moe_input_jitter_eps=0",
                      "moe_router_enable_expert_bias=false", "moe_router_load_balancing_type=none"}),
            Warnings{});
  EXPECT_EQ(warnings({"mtp_loss_scaling_factor=0.3"}),
            Warnings{"command line: mtp_loss_scaling_factor has an effect only with mtp_num_layers"});
  EXPECT_EQ(warnings({"mtp_loss_scaling_factor=0.3", "mtp_num_layers=1"}), Warnings{});
  EXPECT_EQ(warnings({"eval_interval=50"}),
            Warnings{"command line: eval_interval has an effect only with eval_iters above 0: nothing is "
                     "evaluated"});
  EXPECT_EQ(warnings({"eval_interval=50", "eval_iters=0"}), Warnings{});
  EXPECT_EQ(warnings({"eval_interval=50", "eval_iters=4"}), Warnings{});
  EXPECT_EQ(warnings({"sample_prompt=Once"}),
            Warnings{"command line: sample_prompt has an effect only with sample_interval"});
  EXPECT_EQ(warnings({"profile_ranks=[1]"}),
            Warnings{"command line: profile_ranks has an effect only with profile: true"});
  EXPECT_EQ(warnings({"sample_prompt=Once", "sample_interval=5"}), Warnings{});
  EXPECT_EQ(
      warnings({"num_experts=4", "moe_token_drop_policy=position"}),
      Warnings{"command line: moe_token_drop_policy has an effect only with moe_expert_capacity_factor"});
  const std::string type = "moe_router_load_balancing_type";
  for (const char* kind : {"aux_loss", "seq_aux_loss", "global_aux_loss"}) {
    const std::string setting = type + "=" + kind;
    EXPECT_EQ(warnings({"num_experts=4", setting}),
              Warnings{"command line: " + type + " has an effect only with moe_aux_loss_coeff"});
    EXPECT_EQ(warnings({"num_experts=4", setting, "moe_aux_loss_coeff=0.1"}), Warnings{});
  }
  EXPECT_EQ(warnings({"num_experts=4", type + "=none"}), Warnings{});
  EXPECT_EQ(warnings({"num_experts=4", "moe_router_num_groups=2"}),
            Warnings{"command line: moe_router_num_groups has an effect only with moe_router_group_topk"});
  EXPECT_EQ(
      warnings({"num_experts=4", "moe_router_group_topk=1"}),
      Warnings{"command line: moe_router_group_topk has an effect only with moe_router_num_groups above 1"});
  EXPECT_EQ(warnings({"num_experts=4", "moe_router_num_groups=2", "moe_router_group_topk=1"}), Warnings{});
}

// As in Megatron-LM (arguments.py, MLATransformerConfig), latent attention uses YaRN unless rope_type is
// rope. The scaling factor is rotary_scaling_factor, by default 1, which scales nothing.
TEST(Validate, LatentAttentionRotatesAsInMegatron) {
  const auto loaded = [](std::vector<std::string> arguments) {
    arguments.emplace_back("multi_latent_attention=true");
    return load_text(experiment_text(""), arguments);
  };
  const Experiment plain = loaded({});
  EXPECT_EQ(plain.trainer->rope_scaling_type, "none");
  const Experiment stretched = loaded({"rotary_scaling_factor=40", "max_position_embeddings=163840"});
  EXPECT_EQ(stretched.warnings, std::vector<std::string>{});
  EXPECT_EQ(stretched.trainer->rope_scaling_type, "yarn");
  EXPECT_EQ(stretched.trainer->rotary_scaling_factor, 40);
  EXPECT_EQ(stretched.trainer->original_max_position_embeddings, 4096);
  EXPECT_EQ(loaded({"rotary_scaling_factor=8"}).trainer->rope_scaling_type, "yarn");
  EXPECT_EQ(loaded({"rotary_scaling_factor=1"}).trainer->rope_scaling_type, "none");
  EXPECT_EQ(loaded({"rope_type=yarn"}).trainer->rotary_scaling_factor, 1);
  const Experiment temperature = loaded({"rotary_scaling_factor=40", "mscale_all_dim=0.5"});
  EXPECT_EQ(temperature.trainer->mscale, 1);
  EXPECT_EQ(loaded({"rope_type=rope", "rotary_scaling_factor=40"}).warnings,
            std::vector<std::string>{
                "command line: rotary_scaling_factor has an effect only with a rope_scaling_type"});
  EXPECT_EQ(load_text(to_yaml(stretched)).trainer, stretched.trainer);
  EXPECT_EQ(load_text(experiment_text("")).trainer->rope_scaling_factor, 8);
}

// An lr on the command line, as in a sweep, scales min_lr if min_lr would exceed lr.
TEST(Validate, AnLrOfTheCommandLineLowersMinLr) {
  const std::string file = experiment_text("      lr: 1.0e-3\n      min_lr: 1.0e-4\n");
  const Experiment swept = load_text(file, {"lr=5e-5"});
  EXPECT_DOUBLE_EQ(swept.trainer->min_lr, 5e-6);
  ASSERT_EQ(swept.warnings.size(), 1U);
  EXPECT_THAT(swept.warnings[0], ::testing::HasSubstr("min_lr is 5e-06 instead of 0.0001 (exp.yaml:15:15)"));
  EXPECT_EQ(load_text(to_yaml(swept)).trainer->min_lr, swept.trainer->min_lr);
  // The result has no digits of binary arithmetic, in which 1e-4 * (3e-4 / 3e-3) is 9.999999999999999e-06.
  const Experiment tenth =
      load_text(experiment_text("      lr: 3.0e-3\n      min_lr: 3.0e-4\n"), {"lr=1e-4"});
  EXPECT_EQ(tenth.trainer->min_lr, 1e-5);
  EXPECT_THAT(tenth.warnings[0], ::testing::HasSubstr("min_lr is 1e-05 instead of 0.0003"));
  // min_lr changes only if it would exceed lr.
  EXPECT_EQ(load_text(file, {"lr=2e-4"}).trainer->min_lr, 1e-4);
  EXPECT_THAT(error_of(file, {"lr=5e-5", "min_lr=6e-5"}), ::testing::HasSubstr("is above lr"));
  EXPECT_THAT(error_of(experiment_text("      lr: 1.0e-5\n      min_lr: 1.0e-4\n"), {"lr=2e-5"}),
              ::testing::HasSubstr("is above lr"));
}

// With sft_fit_to_data, the rate of a preset is not the rate of the run, which is chosen from the data.
TEST(Validate, MinLrIsNotComparedWithARateThatIsReplaced) {
  const std::vector<std::string> settings = {"stage=sft", "mock_data=false", "sft_dataset_name=c.jsonl",
                                             "load=model"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    return more;
  };
  const double preset = load_text(experiment_text(""), with({})).trainer->lr;
  const std::string above = fmt::format("min_lr={}", 2 * preset);
  load_text(experiment_text(""), with({"sft_fit_to_data=true", above}));
  EXPECT_THAT(error_of(experiment_text(""), with({above})), ::testing::HasSubstr("is above lr"));
  EXPECT_THAT(
      error_of(experiment_text(""), with({"sft_fit_to_data=true", above, fmt::format("lr={}", preset)})),
      ::testing::HasSubstr("is above lr"));
}

TEST(Validate, Schedule) {
  expect_error({"min_lr=1"}, "min_lr", "min_lr (1) is above lr (2e-05)");
  expect_error({"lr_warmup_init=1"}, "lr_warmup_init", "lr_warmup_init (1) is above lr (2e-05)");
  expect_error({"lr_decay_style=WSD"}, "lr_decay_style", "lr_decay_style: WSD needs lr_wsd_decay_iters");
  expect_error({"lr_wsd_decay_iters=2000", "lr_decay_style=wsd"}, "lr_wsd_decay_iters",
               "lr_wsd_decay_iters (2000)");
  EXPECT_EQ(error({"lr_decay_style=WSD", "lr_wsd_decay_iters=100"}), "");
  expect_error({"end_weight_decay=0.2"}, "end_weight_decay",
               "start_weight_decay (0) and end_weight_decay (0.2) differ");
  const Experiment e = load_text(
      experiment_text(""), {"weight_decay=0.1", "start_weight_decay=0", "weight_decay_incr_style=linear"});
  EXPECT_EQ(e.trainer->start_weight_decay, 0.0);
  EXPECT_EQ(e.trainer->end_weight_decay, 0.1);
  EXPECT_EQ(load_text(experiment_text(""), {"train_iters=10"}).warnings,
            std::vector<std::string>{"command line: the warm-up (40 steps) takes the whole schedule (10 "
                                     "steps): the learning rate never decays"});
}

TEST(Validate, InitialWeightsThatCannotLearnAreNamed) {
  const std::vector<std::string> zero = load_text(experiment_text(""), {"init_method_std=0"}).warnings;
  ASSERT_EQ(zero.size(), 1U);
  EXPECT_EQ(zero[0].find("command line: init_method_std is 0:"), 0U) << zero[0];

  EXPECT_EQ(load_text(experiment_text(""), {"init_method_std=0.5"}).warnings, std::vector<std::string>{});
  const std::vector<std::string> warnings = load_text(experiment_text(""), {"init_method_std=100"}).warnings;
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_EQ(warnings[0].find("command line: init_method_std is 100:"), 0U) << warnings[0];
}

TEST(Validate, Recompute) {
  expect_error({"recompute_granularity=full", "recompute_method=block"}, "recompute_method",
               "recompute_method: block needs recompute_num_layers");
  expect_error({"recompute_granularity=full", "recompute_num_layers=3"}, "recompute_num_layers",
               "recompute_num_layers (3) is more than num_layers (2)");
  expect_error({"recompute_granularity=full", "recompute_num_layers=0"}, "recompute_num_layers",
               "recompute_method: uniform needs recompute_num_layers of at least 1");
  const Experiment e = load_text(experiment_text(""), {"recompute_granularity=full"});
  EXPECT_EQ(e.trainer->recompute_method, "uniform");
  EXPECT_EQ(e.trainer->recompute_num_layers, 1);
  EXPECT_EQ(load_text(experiment_text(""), {"recompute_method=block"}).warnings.size(), 1u);

  expect_error({"recompute_layer_ids=[0]"}, "recompute_layer_ids",
               "recompute_layer_ids needs recompute_granularity: full");
  expect_error({"recompute_granularity=full", "recompute_layer_ids=[0]", "recompute_method=uniform"},
               "recompute_method",
               "recompute_method and recompute_layer_ids both choose the blocks to recompute");
  const Experiment by_number =
      load_text(experiment_text(""), {"recompute_granularity=full", "recompute_layer_ids=0,1"});
  EXPECT_EQ(by_number.trainer->recompute_method, std::nullopt);
  EXPECT_EQ(by_number.trainer->recompute_num_layers, std::nullopt);
  EXPECT_TRUE(by_number.warnings.empty());
}

TEST(Validate, Data) {
  for (const char* split : {"", "a", "1,2,3,4", "0,0,0", "-1,2", "1,,2", "1;2"}) {
    EXPECT_NE(error({"split=\"" + std::string(split) + "\""}).find("it must be up to three shares"),
              std::string::npos)
        << split;
  }
  for (const char* split : {"100", "99,1", "969, 30, 1", "0.5,0.5,0"}) {
    EXPECT_EQ(error({"split=" + std::string(split)}), "") << split;
  }
  EXPECT_EQ(
      error({"mock_data=false"}),
      "error: there is no training data\n  hint: set data_path or train_data_path, or mock_data: true for "
      "random tokens; --dry-run plans without");
  EXPECT_THAT(error({"mock_data=false", "sft_dataset_name=chats.jsonl"}),
              testing::HasSubstr("hint: stage pretrain does not read sft_dataset_name: set stage: sft"));
  EXPECT_EQ(error({"mock_data=false", "data_path=0.3 a 0.7 b"}), "");
  EXPECT_EQ(error({"mock_data=false", "train_iters=0", "lr_warmup_iters=0", "lr_decay_iters=1"}), "");
  expect_error({"data_path=a", "valid_data_path=b"}, "data_path", "data_path and train_data_path");
  // mock_data overrides data paths, which are removed from the experiment.
  const Experiment mock = load_text(experiment_text(""), {"data_path=a", "mock_data=true"});
  EXPECT_EQ(mock.warnings.size(), 1u);
  EXPECT_TRUE(mock.trainer->data_path.empty());
  EXPECT_EQ(error({"vocab_size=null"}),
            "command line: error: the size of the vocabulary is unknown\n"
            "  | vocab_size=null\n"
            "  |            ^^^^\n"
            "  hint: set tokenizer_model, tokenizer_type: ByteTokenizer, or vocab_size");
  EXPECT_EQ(error({"vocab_size=null", "tokenizer_type=ByteTokenizer"}), "");
  EXPECT_EQ(error({"vocab_size=null", "vocab_file=vocab.json", "merge_file=merges.txt"}), "");
  expect_error({"vocab_file=vocab.json"}, "vocab_file", "there is no merge_file");
}

// Returns the arguments of a run that generates answers.
std::vector<std::string> with_answers(const std::vector<std::string>& more,
                                      const std::string& stage = "grpo") {
  std::vector<std::string> all = {"stage=" + stage, "mock_data=false", "sft_dataset_name=p.jsonl",
                                  "load=model", "reward=[exact:answer]"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// An error about a setting that is missing names the line of the user's file that chose the stage.
TEST(Validate, MissingDataRewardsAndTeachersNameTheLineOfTheStage) {
  const auto refused = [](const std::string& preset, const std::string& more) {
    const std::string text =
        "modules:\n  post_trainer:\n    framework: native\n    config: " + preset +
        "_trainer.yaml\n    model: llama_tiny.yaml\n    overrides:\n      load: model\n" + more;
    try {
      load_experiment_text(text, "f.yaml", {});
    } catch (const Error& e) {
      return e.render();
    }
    return std::string();
  };
  const std::string data = "      sft_dataset_name: p.jsonl\n", reward = "      reward: exact:a\n";
  EXPECT_THAT(refused("grpo", data), testing::HasSubstr("f.yaml:4:13: error: stage is grpo, but no reward"));
  EXPECT_THAT(refused("grpo", reward),
              testing::HasSubstr("f.yaml:4:13: error: stage is grpo, but there are no"));
  EXPECT_THAT(refused("distill", data),
              testing::HasSubstr("f.yaml:4:13: error: stage distill needs a teacher"));
}

TEST(Validate, GeneratedAnswersNeedARewardAndFitIntoASequence) {
  EXPECT_EQ(error(with_answers({})), "");
  EXPECT_EQ(error(with_answers({}, "rloo")), "");
  const std::string without = error(with_answers({"reward=[]"}));
  EXPECT_NE(without.find("no reward function scores the generated answers"), std::string::npos) << without;
  EXPECT_NE(without.find("reward=exact:answer"), std::string::npos) << without;
  expect_error(with_answers({"reward_weights=[1, 2]"}), "reward_weights", "reward_weights has 2 numbers");
  expect_error(with_answers({"global_batch_size=12"}), "global_batch_size",
               "global_batch_size (12 answers per step) is not a multiple of num_generations (8");
  expect_error(with_answers({"num_generations=1"}), "num_generations",
               "num_generations is 1, but stage grpo compares the answers to one prompt");
  EXPECT_EQ(error(with_answers({"num_generations=1"}, "ppo")), "");
  expect_error(with_answers({"max_completion_length=1024"}), "max_completion_length",
               "a prompt of one token and an answer of 1024 (max_completion_length) do not fit");
  expect_error(with_answers({"max_prompt_length=800"}), "max_prompt_length", "a prompt of 800 tokens");
  EXPECT_EQ(error(with_answers({"max_prompt_length=768"})), "");
  expect_error(with_answers({"loss_type=[dapo, grpo]"}), "loss_type", "stage grpo has one loss");
  expect_error(with_answers({"reward_clip_range=[1, 0]"}, "rloo"), "reward_clip_range",
               "reward_clip_range is [1, 0]; it must be a min and a larger max");
  expect_error({"stage=sft", "mock_data=false", "sft_dataset_name=p.jsonl", "sft_conversation_format=none"},
               "sft_conversation_format", "sft_conversation_format is none");
  EXPECT_EQ(error(with_answers({"sft_conversation_format=none"})), "");
}

TEST(Validate, DefaultsOfComparisonsDependOnTheStage) {
  const auto of = [](const std::string& stage, std::vector<std::string> more = {}) {
    const auto e = load_text(experiment_text(""), with_answers(more, stage));
    return std::pair(e.trainer->beta, e.trainer->loss_type);
  };
  using Losses = std::vector<std::string>;
  EXPECT_EQ(of("grpo"), std::pair(std::optional(0.0), Losses{"dapo"}));
  EXPECT_EQ(of("rloo"), std::pair(std::optional(0.05), Losses{}));
  EXPECT_EQ(of("dpo"), std::pair(std::optional(0.1), Losses{"sigmoid"}));
  EXPECT_EQ(of("kto"), std::pair(std::optional(0.1), Losses{"kto"}));
  EXPECT_EQ(of("orpo"), std::pair(std::optional(0.1), Losses{}));
  EXPECT_EQ(of("grpo", {"beta=0.04", "loss_type=[cispo]"}), std::pair(std::optional(0.04), Losses{"cispo"}));
  const Experiment text = load_text(experiment_text(""), {});
  EXPECT_EQ(text.trainer->beta, std::nullopt);
  EXPECT_NE(show(load_text(experiment_text(""), with_answers({})), true).find("loss_type: [dapo]"),
            std::string::npos);
}

TEST(Validate, KeysOfALossWithoutEffectGiveAWarning) {
  const auto warnings = [](const std::vector<std::string>& more, const std::string& stage = "grpo") {
    std::string all;
    for (const std::string& warning : load_text(experiment_text(""), with_answers(more, stage)).warnings)
      all += warning + "\n";
    return all;
  };
  EXPECT_EQ(warnings({}), "");
  struct Case {
    std::string setting, condition, with;  // `with`: a choice that gives `setting` an effect
  };
  const std::vector<Case> cases = {
      {"use_bias_correction_kl=false", "with beta above 0", "beta=0.1"},
      {"sapo_temperature_pos=2", "with loss_type: sapo", "loss_type=[sapo]"},
      {"vespo_k_pos=1", "with loss_type: vespo", "loss_type=[vespo]"},
      {"sampler_clip_max=2", "with sampler_correction: token_truncate", "sampler_correction=sequence_mask"}};
  for (const auto& [setting, condition, with] : cases) {
    EXPECT_NE(warnings({setting}).find(condition), std::string::npos)
        << setting << ": " << warnings({setting});
    EXPECT_EQ(warnings({setting, with}), "") << setting;
  }
  EXPECT_NE(warnings({"multi_objective_aggregation=normalize_then_sum"}).find("with several rewards"),
            std::string::npos);
  EXPECT_NE(warnings({"epsilon=0.3"}).find("with num_iterations above 1"), std::string::npos);
  EXPECT_NE(warnings({"scale_rewards=none"}, "rloo").find("with stage: grpo"), std::string::npos);
  EXPECT_NE(warnings({"split=90,10"}).find("evaluates nothing"), std::string::npos);
  EXPECT_NE(load_text(experiment_text(""), {"num_generations=4"}).warnings.size(), 0u);
}

TEST(Derive, AcceptsAHandmadeConfig) {
  TrainerConfig c;
  c.num_layers = 1;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.lr_warmup_fraction = 0.1;
  derive(c);
  EXPECT_EQ(c.kv_channels, 16);
  EXPECT_EQ(c.ffn_hidden_size, 128);  // 170 rounded down to a multiple of 64
  EXPECT_EQ(c.lr_warmup_iters, 100);
  EXPECT_EQ(c.rope_scaling_type, "none");
  const TrainerConfig once = c;
  derive(c);
  EXPECT_EQ(c, once);
  TrainerConfig empty;
  derive(empty);
  EXPECT_EQ(empty.hidden_size, 0);
}

}  // namespace
}  // namespace primus::config
