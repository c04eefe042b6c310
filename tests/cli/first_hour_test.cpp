// Tests of a new user's first commands: a model folder and a text as only inputs, a length in epochs, tokens
// or minutes, a run that does not fit into memory, and the terminal display.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "base/files/file.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using test::train;

std::string some_text(int paragraphs) {
  std::string text;
  for (int i = 0; i < paragraphs; ++i) {
    text += fmt::format("Paragraph {} says what it says, and the next one says it again.\n\n", i);
  }
  return text;
}

class FirstHour : public testing::Test {
 protected:
  FirstHour() { write_file(path("corpus.txt"), some_text(1000)); }
  Path path(const std::string& name) const { return folder_.path() / name; }
  // Runs a command in the test's folder, which then has ./output.
  ProgramResult run(const std::vector<std::string>& words, bool terminal = false) const {
    return run_program(
        words,
        {.folder = folder_.path().string(),
         .environment = {{"XDG_CACHE_HOME", path("cache").string()}, {"TERM", "xterm"}, {"NO_COLOR", "1"}},
         .error_terminal = terminal});
  }
  ProgramResult trained(const std::vector<std::string>& more, bool terminal = false) const {
    return run(train(folder_.path(), more), terminal);
  }
  std::vector<std::string> on_text(std::vector<std::string> more) const {
    more.insert(more.begin(), {"mock_data=false", "data_path=" + path("corpus.txt").string()});
    return more;
  }
  TemporaryFolder folder_;
};

TEST_F(FirstHour, AModelFolderAndATextAreEnoughToTrain) {
  // The model is a mixture of experts, and later commands do not repeat its settings.
  ASSERT_EQ(trained({"train_iters=2", "model_type=mixtral", "num_experts=4", "ffn_hidden_size=64"}).exit_code,
            0);
  const Path first = test::run_folder(folder_.path());
  const ProgramResult exported = run({"model", "export", first.string(), path("hf").string()});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const std::vector<std::string> common = {"data_path=" + path("corpus.txt").string(),
                                           "global_batch_size=2",
                                           "seq_length=64",
                                           "train_iters=3",
                                           "num_threads=1",
                                           "eval_iters=1"};
  // `config show` prints the settings of the run, which can be kept as a file.
  std::vector<std::string> words = {"config", "show", "--yaml", "load=" + path("hf").string()};
  words.insert(words.end(), common.begin(), common.end());
  const ProgramResult shown = run(words);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  write_file(path("kept.yaml"), shown.out);
  const ProgramResult kept = run({"config", "validate", "--config", path("kept.yaml").string()});
  EXPECT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("hf-corpus"));
  // A dry run shows the settings that `config show` shows.
  const auto trainer_of = [&](std::vector<std::string> command) {
    command.insert(command.end(), {"load=" + path("hf").string(), common.front(), "train_iters=2", "--json"});
    auto printed = nlohmann::json::parse(run(command).out);
    return printed.contains("experiment") ? printed["experiment"]["trainer"] : printed["trainer"];
  };
  EXPECT_EQ(trainer_of({"train", "pretrain", "--dry-run"}), trainer_of({"config", "show"}));
  words = {"train", "pretrain", "load=" + path("hf").string()};
  words.insert(words.end(), common.begin(), common.end());
  const ProgramResult from_folder = run(words);
  ASSERT_EQ(from_folder.exit_code, 0) << from_folder.err;
  EXPECT_THAT(from_folder.out, AllOf(HasSubstr("done after iteration 3"), HasSubstr("validation loss"),
                                     HasSubstr("hf-corpus")));
  // The folder of a run can be loaded: its newest checkpoint and its tokenizer are used.
  words = {"train", "pretrain", "load=" + first.string(), "exp_name=second"};
  words.insert(words.end(), common.begin(), common.end());
  const ProgramResult from_run = run(words);
  ASSERT_EQ(from_run.exit_code, 0) << from_run.err;
  EXPECT_THAT(from_run.err,
              HasSubstr("weights loaded from " + (first / "checkpoints" / "iter_0000002").string()));
  const std::string saved = json::parse(run({"model", "info", (first).string(), "--json"}).out).dump();
  Path second;
  for (const std::string& user : Env::posix().list(path("output/primus")))
    second = path("output/primus") / user / "second";
  EXPECT_EQ(json::parse(run({"model", "info", second.string(), "--json"}).out).at("layers"), 4);
  // The recorded experiment.yaml runs unchanged, and has no steps left.
  const ProgramResult again = run({"train", "pretrain", "--config", (second / "experiment.yaml").string()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing left to do"));
  // The run resumes from its own checkpoint after the folder it started from is removed.
  remove_tree(first);
  words.back() = "eval_iters=1";
  words.emplace_back("train_iters=4");
  words.erase(std::find(words.begin(), words.end(), "train_iters=3"));
  words.emplace_back("tokenizer_type=ByteTokenizer");
  const ProgramResult later = run(words);
  EXPECT_EQ(later.exit_code, 0) << later.err;
  EXPECT_THAT(later.out, HasSubstr("done after iteration 4"));
}

TEST_F(FirstHour, WithoutAnExperimentAModelIsNeeded) {
  const ProgramResult none = run({"train", "pretrain", "data_path=corpus.txt"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("--config FILE"), HasSubstr("load=FOLDER data_path=FILE")));
  const ProgramResult missing = run({"train", "pretrain", "load=nowhere", "data_path=corpus.txt"});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("the model folder 'nowhere' does not exist"));
  const ProgramResult file = run({"train", "pretrain", "load=corpus.txt", "data_path=corpus.txt"});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_THAT(file.err,
              AllOf(HasSubstr("'corpus.txt' is not a folder"), HasSubstr("that holds config.json")));
  EXPECT_FALSE(Env::posix().status(path("output")));
}

// A dry run warns of too small a disk; the run itself would refuse to start.
TEST_F(FirstHour, ADryRunReportsASmallDisk) {
  const std::vector<std::string> large{"--dry-run", "hidden_size=65536", "num_attention_heads=512",
                                       "num_layers=256"};
  const auto warned = HasSubstr("warning: a checkpoint needs ");
  EXPECT_THAT(trained(large).err, AllOf(warned, HasSubstr(" free: training will need it")));
  std::vector<std::string> never = large;
  never.insert(never.end(), {"disable_last_saving=true", "save_interval=1000000"});
  EXPECT_THAT(trained(never).err, Not(warned));
  EXPECT_THAT(trained({"--dry-run"}).err, Not(warned));
  EXPECT_FALSE(Env::posix().status(path("output"))) << "a dry run wrote files";
}

// An experiment file without eval_iters evaluates nothing. If text is held out nevertheless, a note says so.
TEST_F(FirstHour, TextThatIsHeldOutWithoutUseIsReported) {
  const auto held_out = HasSubstr("held out for validation, but no evaluation runs: set eval_iters");
  const ProgramResult silent = trained(on_text({"train_iters=1", "exp_name=silent"}));
  ASSERT_EQ(silent.exit_code, 0) << silent.err;
  EXPECT_THAT(silent.err, held_out);
  for (const char* chosen : {"eval_iters=0", "eval_iters=1", "split=100,0,0"}) {
    const ProgramResult result = trained(on_text({"train_iters=1", "exp_name=chosen", chosen}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, Not(held_out)) << chosen;
    remove_tree(test::run_folder(folder_.path(), "chosen"));
  }
}

// An error that concerns all ranks is reported once, by the launcher. Ranks would repeat it, or end before
// all have printed it.
TEST_F(FirstHour, ErrorsOfAllRanksAreReportedOnceBeforeTheStart) {
  const ProgramResult result = trained(on_text(
      {"train_iters=1", "global_batch_size=2", "micro_batch_size=2", "--nproc", "2", "exp_name=ranks"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("global_batch_size (2) is not a multiple of micro_batch_size (2) times 2"));
  EXPECT_THAT(result.err, HasSubstr("hint: set it to a multiple of 4, or micro_batch_size to 1"));
  EXPECT_THAT(result.err, Not(HasSubstr("rank ")));
}

TEST_F(FirstHour, RanksThatAreStartedHereWarnOnce) {
  const ProgramResult result = trained(on_text({"train_iters=1", "lr_warmup_iters=40", "micro_batch_size=1",
                                                "global_batch_size=2", "--nproc", "2", "exp_name=warned"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  constexpr std::string_view kWarning = "takes the whole schedule";
  const std::size_t first = result.err.find(kWarning);
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(kWarning, first + 1), std::string::npos) << result.err;
  // srun and torchrun show the output of every rank, so only rank 0 prints the warning.
  const Path other =
      test::run_folder(folder_.path(), "warned") / "logs" / "pre_trainer" / "rank-1" / "output.log";
  EXPECT_THAT(read_file(other), AllOf(Not(HasSubstr(kWarning)), Not(HasSubstr("WARNING"))));
}

TEST_F(FirstHour, EpochsTokensAndMinutesBecomeSteps) {
  // One percent of 1000 paragraphs of about 70 bytes is held out. A sample has 64 tokens, and a step has 4
  // samples.
  const ProgramResult epoch =
      trained(on_text({"--epochs", "0.25", "exp_name=epochs", "eval_iters=1", "save_interval=20"}));
  ASSERT_EQ(epoch.exit_code, 0) << epoch.err;
  const auto epochs = test::losses(test::run_folder(folder_.path(), "epochs"));
  const auto bytes = static_cast<double>(some_text(1000).size());
  EXPECT_GT(static_cast<double>(epochs.size()), 0.25 * 0.9 * bytes / (64 * 4));
  EXPECT_LT(static_cast<double>(epochs.size()), 0.25 * bytes / (64 * 4) + 1);
  EXPECT_THAT(epoch.err, HasSubstr("validation loss at iteration"));
  const std::size_t said = epoch.err.find("epochs of the training data are ");
  ASSERT_NE(said, std::string::npos) << epoch.err;
  long samples = 0, steps = 0;
  ASSERT_EQ(std::sscanf(epoch.err.c_str() + said, "epochs of the training data are %ld samples: %ld steps",
                        &samples, &steps),
            2);
  EXPECT_EQ(steps, (samples + 3) / 4) << "the last, incomplete step counts as a step";
  EXPECT_EQ(static_cast<long>(epochs.size()), steps);

  ASSERT_EQ(trained({"--tokens", "1000", "exp_name=tokens"}).exit_code, 0);
  EXPECT_EQ(test::losses(test::run_folder(folder_.path(), "tokens")).size(), 4U);

  const auto began = std::chrono::steady_clock::now();
  const ProgramResult minutes = trained({"--minutes", "0.05", "exp_name=minutes", "exit_interval=2"});
  ASSERT_EQ(minutes.exit_code, 0) << minutes.err;
  EXPECT_THAT(minutes.err, HasSubstr("for 0.05 minutes; the clock ends the run"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
  // The resumed run keeps the planned number of steps and the schedule.
  const ProgramResult more = trained({"--minutes", "0.05", "exp_name=minutes", "exit_interval=2"});
  EXPECT_THAT(more.err, HasSubstr("iteration        3/"));
  EXPECT_THAT(more.err, Not(HasSubstr("the clock ends the run")));

  const ProgramResult both = trained({"--epochs", "1", "--tokens", "5"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("epochs and tokens exclude each other"));
  const ProgramResult endless = trained({"--epochs", "1", "exp_name=endless"});
  EXPECT_EQ(endless.exit_code, 2);
  EXPECT_THAT(endless.err, HasSubstr("mock data never ends"));
}

// A dry run counts the epochs of a small text, and leaves no token files.
TEST_F(FirstHour, ADryRunCountsTheStepsOfEpochs) {
  write_file(path("corpus.txt"), some_text(100));  // shorter, because the run trains on all of it twice
  const ProgramResult planned =
      trained(on_text({"train_epochs=2", "train_iters=null", "--dry-run", "--json"}));
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_FALSE(Env::posix().status(path(".primus-cache")));
  const ProgramResult done = trained(on_text({"train_epochs=2", "train_iters=null", "--json"}));
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(json::parse(planned.out).at("steps"), json::parse(done.out).at("last_step"));
}

// A run that has already trained more steps than the requested length ends at once.
TEST_F(FirstHour, AShorterLengthThanTheRunHasReachedEndsAtOnce) {
  const std::vector<std::string> often = on_text({"eval_iters=2", "eval_interval=1"});
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), often.begin(), often.end());
    return trained(more);
  };
  ASSERT_EQ(with({"train_iters=100", "exit_interval=7"}).exit_code, 0);
  const ProgramResult shorter = with({"train_iters=2"});
  EXPECT_EQ(shorter.exit_code, 0) << shorter.err;
  EXPECT_THAT(shorter.out, HasSubstr("nothing left to do: the run had reached iteration 7"));
  // Without its checkpoints, the run starts again and says so.
  remove_tree(test::run_folder(folder_.path()) / "checkpoints");
  EXPECT_THAT(with({"train_iters=2"}).err, HasSubstr("has no checkpoint: it starts from the beginning"));
}

TEST_F(FirstHour, SettingsThatChangeNothingAreNamed) {
  ASSERT_EQ(trained(on_text({"train_iters=1"})).exit_code, 0);
  const ProgramResult exported =
      run({"model", "export", test::run_folder(folder_.path()).string(), path("hf").string()});
  ASSERT_EQ(exported.exit_code, 0) << exported.err;
  const ProgramResult result =
      run({"train", "pretrain", "load=" + path("hf").string(), "data_path=" + path("corpus.txt").string(),
           "train_iters=1", "seq_length=64", "global_batch_size=1", "num_threads=1", "finetune=false",
           "kv_lora_rank=33", "moe_router_topk=3", "beta_fast=64", "apply_wd_to_qk_layernorm=true",
           "data_parallel_sharding_strategy=optim"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("finetune: false has no effect"),
            HasSubstr("kv_lora_rank has an effect only with multi_latent_attention"),
            HasSubstr("moe_router_topk has an effect only with num_experts"),
            HasSubstr("beta_fast has an effect only with rope_scaling_type: yarn"),
            HasSubstr("apply_wd_to_qk_layernorm has an effect only with QK norm"),
            HasSubstr("with one rank, these settings have no effect: data_parallel_sharding_strategy")));
}

TEST_F(FirstHour, AnInterruptedEpochEndsAsAnUnbrokenOne) {
  const std::vector<std::string> common = {"--epochs", "0.05", "eval_iters=1", "eval_interval=5"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), common.begin(), common.end());
    return on_text(more);
  };
  ASSERT_EQ(trained(with({"exp_name=whole"})).exit_code, 0);
  ASSERT_EQ(trained(with({"exp_name=parts", "exit_interval=3"})).exit_code, 0);
  ASSERT_EQ(trained(with({"exp_name=parts"})).exit_code, 0);
  const Path whole = test::run_folder(folder_.path(), "whole"),
             parts = test::run_folder(folder_.path(), "parts");
  EXPECT_EQ(test::losses(parts), test::losses(whole));
  const int last = static_cast<int>(test::losses(whole).size());
  EXPECT_EQ(test::final_weights(parts, last), test::final_weights(whole, last));
}

TEST_F(FirstHour, SamplesAreWrittenAndChangeNothing) {
  ASSERT_EQ(trained(on_text({"train_iters=4", "exp_name=silent"})).exit_code, 0);
  const ProgramResult writing = trained(on_text(
      {"train_iters=4", "exp_name=writing", "sample_interval=2", "sample_tokens=10", "sample_prompt=Para"}));
  ASSERT_EQ(writing.exit_code, 0) << writing.err;
  const Path silent = test::run_folder(folder_.path(), "silent"),
             folder = test::run_folder(folder_.path(), "writing");
  EXPECT_EQ(test::losses(folder), test::losses(silent));
  EXPECT_EQ(test::final_weights(folder, 4), test::final_weights(silent, 4));
  EXPECT_FALSE(Env::posix().status(silent / "samples.jsonl"));
  const std::string text = read_file(folder / "samples.jsonl");
  const json first = json::parse(text.substr(0, text.find('\n')));
  EXPECT_EQ(first.at("iteration"), 2);
  EXPECT_EQ(first.at("prompt"), "Para");
  EXPECT_EQ(first.at("tokens"), 10);
  EXPECT_GT(first.at("seconds"), 0);
  EXPECT_LT(first.at("seconds"), 60);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(writing.err, HasSubstr("sample at iteration 4: Para"));
  // Without sample_prompt, the prompt comes from the training text.
  ASSERT_EQ(
      trained(on_text({"train_iters=2", "exp_name=own", "sample_interval=2", "sample_tokens=5"})).exit_code,
      0);
  const json own = json::parse(read_file(test::run_folder(folder_.path(), "own") / "samples.jsonl"));
  EXPECT_THAT(some_text(1000), HasSubstr(own.at("prompt").get<std::string>()));
}

TEST_F(FirstHour, ARunThatDoesNotFitIsRefusedWithChangesThatHelp) {
  const std::vector<std::string> large = {
      "num_layers=16",          "hidden_size=4096", "num_attention_heads=32",
      "ffn_hidden_size=16384",  "seq_length=512",   "micro_batch_size=1024",
      "global_batch_size=1024", "train_iters=1",    "max_position_embeddings=512"};
  const ProgramResult refused = trained(large);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("the run needs"), HasSubstr("are free"),
                                 HasSubstr("--force starts it anyway")));
  auto words = large;
  words.insert(words.end(), {"--dry-run", "micro_batch_size=65536", "global_batch_size=65536", "num_layers=4",
                             "hidden_size=256", "num_attention_heads=4", "ffn_hidden_size=512"});
  const ProgramResult dry = trained(words);
  ASSERT_EQ(dry.exit_code, 1) << dry.err;
  EXPECT_THAT(dry.out,
              AllOf(HasSubstr("DOES NOT FIT"), HasSubstr("micro_batch_size="), HasSubstr("time, about")));
  words.emplace_back("--json");
  const json forecast = json::parse(trained(words).out);
  EXPECT_EQ(forecast.at("memory_bytes").at("fits"), false);
  ASSERT_FALSE(forecast.at("memory_changes").empty());
  // The first suggested change makes the run fit.
  words.pop_back();
  for (const auto& setting : forecast.at("memory_changes")[0].at("settings")) words.push_back(setting);
  EXPECT_THAT(trained(words).out, Not(HasSubstr("DOES NOT FIT")));
}

// The first screen appears within one second of CPU time, and ten seconds by the clock. CPU time
// does not count other work on the machine.
TEST_F(FirstHour, TheFirstScreenComesWithinASecond) {
  test::Program live(train(folder_.path(), on_text({"train_iters=3", "exp_name=first"})),
                     {.folder = folder_.path().string(),
                      .environment = {{"XDG_CACHE_HOME", path("cache").string()}, {"TERM", "xterm"}},
                      .error_terminal = true});
  const auto began = std::chrono::steady_clock::now();
  ASSERT_TRUE(live.wait_for_error("prepare", 10));
  const double processor = live.processor_seconds();
  EXPECT_LT(processor, 1.0);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  EXPECT_EQ(live.wait().exit_code, 0);
}

TEST_F(FirstHour, ATerminalShowsTheRunOnOneScreen) {
  const ProgramResult live = trained(
      on_text({"train_iters=6", "exp_name=live", "eval_iters=1", "eval_interval=2", "sample_interval=3"}),
      true);
  ASSERT_EQ(live.exit_code, 0) << live.err;
  for (const char* what :
       {"loss", "validation", "tokens/s", "memory", "sample", "step 6/6", "saved       at step 6"}) {
    EXPECT_THAT(live.err, HasSubstr(what));
  }
  EXPECT_THAT(live.err, Not(HasSubstr("[INFO]"))) << "log lines belong into files here";
  EXPECT_THAT(read_file(test::run_folder(folder_.path(), "live") / "logs/pre_trainer/rank-0/info.log"),
              HasSubstr("lm loss"));
  EXPECT_THAT(live.out, HasSubstr("done after iteration 6"));
  // --quiet prints one line, --plain prints log lines. Both keep warnings.
  const ProgramResult quiet = trained(on_text({"train_iters=2", "exp_name=quiet", "--quiet"}), true);
  EXPECT_THAT(quiet.err,
              AllOf(HasSubstr("training  100%"), Not(HasSubstr("[INFO]")), Not(HasSubstr("data wait"))));
  const ProgramResult plain = trained(on_text({"train_iters=2", "exp_name=plain", "--plain"}), true);
  EXPECT_THAT(plain.err, AllOf(HasSubstr("[INFO]"), HasSubstr("lm loss")));
  // A change after the end of a run is an error, also in the live view.
  const ProgramResult changed = trained(on_text({"train_iters=2", "exp_name=quiet", "seed=77"}), true);
  EXPECT_EQ(changed.exit_code, 2) << changed.err;
  EXPECT_THAT(changed.err, HasSubstr("exp_name=..."));
  // If the output is a pipe, the run writes log lines.
  const ProgramResult piped = trained(on_text({"train_iters=2", "exp_name=piped"}));
  EXPECT_THAT(piped.err,
              AllOf(HasSubstr("[INFO]"), HasSubstr("iteration        2/       2"), Not(HasSubstr("\x1b["))));
}

}  // namespace
}  // namespace primus
