// Tests of settings on the command line.
#include "config/loading/overrides.h"

#include <gtest/gtest.h>

#include <string>

#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

using Arguments = std::vector<std::string>;

Experiment load(const Arguments& arguments) { return load_text(experiment_text(""), arguments); }
std::string error(const Arguments& arguments) { return error_of(experiment_text(""), arguments); }

TEST(Overrides, HaveAllForms) {
  for (const Arguments& arguments : {Arguments{"lr=1e-5"}, Arguments{"--lr=1e-5"}, Arguments{"--lr", "1e-5"},
                                     Arguments{"modules.pre_trainer.overrides.lr=1e-5"},
                                     Arguments{"--modules.pre_trainer.overrides.lr", "1e-5"}}) {
    const Experiment e = load(arguments);
    EXPECT_EQ(e.trainer->lr, 1e-5) << arguments[0];
    EXPECT_EQ(e.provenance_of("lr").layer, Layer::kCommandLine);
    EXPECT_EQ(e.provenance_of("lr").describe(), "command line");
  }
}

TEST(Overrides, AreTyped) {
  const Experiment e =
      load({"train_iters=1_000", "lr=1e-5", "--bf16", "false", "lr_decay_iters=null", "split=98,1,1",
            "recompute_modules=[core_attn, mlp]", "--data_path", "[0.3, a, 0.7, 'b c']", "mock_data=0",
            "save=\"7\"", "--adam-beta1", ".8", "lr_decay_style=wsd", "lr_wsd_decay_iters=1e2"});
  EXPECT_EQ(e.trainer->train_iters, 1000);
  EXPECT_EQ(e.trainer->lr, 1e-5);
  EXPECT_FALSE(e.trainer->bf16);
  EXPECT_EQ(e.trainer->lr_decay_iters, 1000);
  EXPECT_EQ(e.trainer->split, "98,1,1");
  EXPECT_EQ(e.trainer->recompute_modules, (Arguments{"core_attn", "mlp"}));
  EXPECT_EQ(e.trainer->data_path, (Arguments{"0.3", "a", "0.7", "b c"}));
  EXPECT_EQ(e.trainer->save, "7");
  EXPECT_EQ(e.trainer->adam_beta1, 0.8);
  EXPECT_EQ(e.trainer->lr_decay_style, "WSD");
  EXPECT_EQ(e.trainer->lr_wsd_decay_iters, 100);
}

// null restores the default. An empty value, as after an unset shell variable, is refused
// (tests/config/mistakes.h).
TEST(Overrides, NullIsTheDefault) {
  EXPECT_EQ(load({"exp_avg_dtype=bf16"}).trainer->exp_avg_dtype, "bf16");
  EXPECT_EQ(load({"exp_avg_dtype=bf16", "exp_avg_dtype=null"}).trainer->exp_avg_dtype, "fp32");
}

TEST(Overrides, NullUnsetsAList) {
  const std::string text = experiment_text("      data_path: [a, b]\n");
  EXPECT_EQ(load_text(text, {"mock_data=null"}).trainer->data_path, (Arguments{"a", "b"}));
  EXPECT_TRUE(load_text(text, {"data_path=null"}).trainer->data_path.empty());
}

TEST(Overrides, AnExistingPathWithSpacesIsOnePath) {
  const TemporaryFolder folder;
  const std::string in = folder.path().string() + "/";
  for (const char* name : {"my text.txt", "my", "two  blanks.idx"}) std::ofstream(in + name) << "x";
  EXPECT_EQ(load({"data_path=" + in + "my text.txt"}).trainer->data_path, Arguments{in + "my text.txt"});
  EXPECT_EQ(load({"data_path=0.3 " + in + "my text.txt 0.7 " + in + "two  blanks"}).trainer->data_path,
            (Arguments{"0.3", in + "my text.txt", "0.7", in + "two  blanks"}));
  EXPECT_EQ(load({"data_path= " + in + "my other.txt "}).trainer->data_path,
            (Arguments{in + "my", "other.txt"}));
  EXPECT_EQ(load({"profile_ranks=0 1", "profile=true"}).trainer->profile_ranks, (Arguments{"0", "1"}));
}

TEST(Overrides, ARewardWithSpacesIsOneReward) {
  const auto rewards = [](const std::string& lines, const std::vector<std::string>& arguments) {
    return load_text(experiment_text("      stage: grpo\n      sft_dataset_name: a.jsonl\n" + lines),
                     arguments)
        .trainer->reward;
  };
  using Rewards = std::vector<std::string>;
  EXPECT_EQ(rewards("", {"mock_data=false", "reward=program:python3 dump.py"}),
            Rewards{"program:python3 dump.py"});
  EXPECT_EQ(rewards("      reward: \"regex:a b\"\n", {"mock_data=false"}), Rewards{"regex:a b"});
  EXPECT_EQ(rewards("", {"mock_data=false", "reward=[regex:a b, exact:c]"}),
            (Rewards{"regex:a b", "exact:c"}));
}

TEST(Overrides, FlagsTakeNoOtherArgument) {
  const Experiment e =
      load({"--delay_wgrad_compute", "seed=3", "--eod-mask-loss", "--no_save_optim", "true"});
  EXPECT_TRUE(e.trainer->delay_wgrad_compute);
  EXPECT_EQ(e.trainer->seed, 3);
  EXPECT_TRUE(e.trainer->eod_mask_loss);
  EXPECT_TRUE(e.trainer->no_save_optim);
}

TEST(Overrides, LaterOverridesWin) {
  EXPECT_EQ(load({"seed=1", "--seed=2", "--seed", "3"}).trainer->seed, 3);
}

TEST(Overrides, RepeatedOverridesAreNamed) {
  const auto notes = [](const std::vector<std::string>& arguments) {
    return parse_overrides(arguments).notes;
  };
  EXPECT_EQ(notes({"lr=1", "--lr", "2"}),
            (std::vector<std::string>{"lr is given more than once: the value 2 is used, not 1"}));
  EXPECT_EQ(notes({"exp_name=a", "modules.pre_trainer.overrides.lr=1", "lr=2", "exp_name=b"}).size(), 2U);
  EXPECT_TRUE(notes({"lr=1", "lr=1", "env.A=1", "env.B=2", "lora.dim=8", "lora.alpha=16"}).empty());
  EXPECT_EQ(load({"seed=1", "seed=2"}).warnings.front(),
            "seed is given more than once: the value 2 is used, not 1");
}

TEST(Overrides, ReachEveryPartOfTheExperiment) {
  const Experiment e = load({"exp_name=mine", "--workspace", "/tmp/w", "env.OMP_NUM_THREADS=2", "--framework",
                             "megatron", "torch_compile.enable=true"});
  EXPECT_EQ(e.exp_name, "mine");
  EXPECT_EQ(e.workspace, "/tmp/w");
  EXPECT_EQ(e.env.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(e.framework, "megatron");
  EXPECT_TRUE(e.settings.find("torch_compile")->find("enable")->boolean);
}

TEST(Overrides, UnknownKeysAreRefused) {
  EXPECT_EQ(error({"--micro_batchsize", "4"}),
            "command line: error: unknown key 'micro_batchsize'\n"
            "  | --micro_batchsize 4\n"
            "  |   ^^^^^^^^^^^^^^^\n"
            "  hint: did you mean 'micro_batch_size'?");
  EXPECT_NE(error({"lrr=1"}).find("did you mean 'lr'?"), std::string::npos);
  EXPECT_NE(error({"--unheard_of"}).find("unknown key 'unheard_of'"), std::string::npos);
}

TEST(Overrides, WrongTypesAreShown) {
  EXPECT_EQ(error({"--train_iters", "ten"}),
            "command line: error: train_iters expects an integer, not 'ten'\n"
            "  | --train_iters ten\n"
            "  |               ^^^\n"
            "  hint: 'primus config reference train_iters' explains it");
  EXPECT_EQ(error({"lr=\"1e-5\""}),
            "command line: error: lr expects a number, not '1e-5'\n"
            "  | lr=\"1e-5\"\n"
            "  |    ^^^^^^\n"
            "  hint: remove the quotes");
}

TEST(Overrides, StrayArgumentsAreRefused) {
  EXPECT_EQ(error({"fast"}),
            "command line: error: 'fast' is not a setting\n"
            "  | fast\n"
            "  | ^^^^\n"
            "  hint: settings are key=value, --key value or --flag");
  EXPECT_NE(error({PRIMUS_SOURCE_DIR "/README.md"}).find("README.md names a text, and sft_dataset_name="),
            std::string::npos);
  EXPECT_EQ(error({"--seed"}),
            "command line: error: seed needs a value\n"
            "  | --seed\n"
            "  |   ^^^^\n"
            "  hint: write --seed VALUE");
  EXPECT_NE(error({"--seed", "--bf16"}).find("seed needs a value"), std::string::npos);
  EXPECT_NE(error({"=3"}).find("'' is not a key"), std::string::npos);
  EXPECT_NE(error({"a..b=3"}).find("'a..b' is not a key"), std::string::npos);
  EXPECT_NE(error({"--"}), "");
  EXPECT_NE(error({""}), "");
  EXPECT_NE(error({"data_path=[a"})
                .find("command line: error: data_path expects a list of text, but '[a' is not "
                      "closed"),
            std::string::npos);
  EXPECT_NE(error({"modules.post_trainer.overrides=1"}).find("there is no module 'post_trainer'"),
            std::string::npos);
  EXPECT_NE(error({"modules.post_trainer.overrides.lr=1"}).find("there is no module 'post_trainer'"),
            std::string::npos);
}

// Values that AMD Primus reads as Python literals are accepted.
TEST(Overrides, AcceptPythonsLiterals) {
  const Experiment e = load({"--profile_ranks", "(0, 4)", "wandb_project=None", "load=None",
                             "window_size=(128, 0)", "wandb_exp_name=[0,", "mlflow_run_name={not_a_dict}",
                             "moe_layer_freq=([0]*1+[1]*1)", "backend_path=/opt/megatron"});
  ASSERT_EQ(e.settings.find("profile_ranks")->items.size(), 2u);
  EXPECT_EQ(e.settings.find("profile_ranks")->items[1].integer, 4);
  EXPECT_TRUE(e.settings.find("wandb_project")->is_null());
  EXPECT_FALSE(e.trainer->load);
  EXPECT_EQ(e.trainer->window_size, (Arguments{"128", "0"}));
  EXPECT_EQ(e.settings.find("wandb_exp_name")->text, "[0,");
  EXPECT_EQ(e.settings.find("moe_layer_freq")->text, "([0]*1+[1]*1)");
  EXPECT_EQ(load({"wandb_project='None'"}).settings.find("wandb_project")->text, "None");
}

// Dashes in a flag's name become underscores. Dashes in a variable's name are kept, and refused.
TEST(Overrides, NamesOfVariablesKeepTheirDashes) {
  EXPECT_NE(error({"env.A-B=1"}).find("'A-B' is not a valid name for a variable"), std::string::npos);
  EXPECT_EQ(load({"env.A_B=1"}).env.at("A_B"), "1");
}

TEST(Overrides, AreText) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"exp_name=a\x85"}, {"--exp-name", "a\x85"}, {"a\x85=1"}}) {
    EXPECT_NE(
        error(arguments).find("command line: error: this argument is not UTF-8 text, as settings must be"),
        std::string::npos);
  }
}

TEST(Overrides, TheCaretPointsToTheFaultyPartOfADottedKey) {
  EXPECT_EQ(error_of(experiment_text(""), {"modules.pre_trainer.overrides.lrr=1"}),
            "command line: error: unknown key 'lrr'\n"
            "  | modules.pre_trainer.overrides.lrr=1\n"
            "  |                               ^^^\n"
            "  hint: did you mean 'lr'?");
}

TEST(Overrides, AModelThatIsGivenTwiceUnderTwoNamesIsReported) {
  const std::vector<std::string> arguments = {"modules.pre_trainer.model=a.yaml", "model=b.yaml"};
  const std::vector<std::string> notes = parse_overrides(arguments).notes;
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_EQ(notes[0], "model is given more than once: the value b.yaml is used, not a.yaml");
}

}  // namespace
}  // namespace primus::config
