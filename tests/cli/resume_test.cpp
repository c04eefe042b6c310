// Tests of resumed and restarted runs: they keep tokenizer and data, and use nothing of an older run.
#include <filesystem>
#include <fstream>

#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

using ::testing::ElementsAre;

std::string text_about(const std::string& thing) {
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += "The " + thing + " number " + std::to_string(i) + " is a " + thing + ".\n\n";
  return text;
}

// Returns step and data set of each line of evaluations.jsonl, such as "4 validation".
std::vector<std::string> evaluations(const Path& run) {
  std::vector<std::string> lines;
  std::ifstream file(run / "evaluations.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    lines.push_back(std::to_string(json.at("iteration").get<int>()) + " " +
                    json.at("data_set").get<std::string>());
  }
  return lines;
}

class OwnText : public ::testing::Test {
 protected:
  OwnText() { write("corpus.txt", text_about("whale")); }

  Path at(const std::string& name) const { return folder_.path() / name; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(at(name), std::ios::binary) << content;
  }
  void learn_tokenizer(const std::string& from, const std::string& name) const {
    const ProgramResult result = run_program({"data", "train-tokenizer", "-i", at(from).string(), "-o",
                                              at(name).string(), "--vocab-size", "300", "--overwrite"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  // Trains on corpus.txt with the preset's byte tokenizer.
  ProgramResult train(std::vector<std::string> more) const {
    std::vector<std::string> words = {"mock_data=false", "data_path=" + at("corpus.txt").string(),
                                      "train_iters=2", "split=100,0,0", "seq_length=32"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(test::train(at("out"), words));
  }
  ProgramResult train_with(const std::string& tokenizer, std::vector<std::string> more) const {
    more.insert(more.end(), {"tokenizer_type=HuggingFaceTokenizer",
                             "tokenizer_model=" + at(tokenizer).string(), "vocab_size=null"});
    return train(std::move(more));
  }
  Path run(const std::string& name = "run") const { return test::run_folder(at("out"), name); }

  const TemporaryFolder folder_;
};

// During a long evaluation, the log shows its progress.
TEST(LongEvaluation, ReportsProgress) {
  const TemporaryFolder folder;
  test::Program program(
      test::train(folder.path(), {"train_iters=1", "eval_interval=1", "eval_iters=1000000"}));
  constexpr int kSeconds = 60;
  EXPECT_TRUE(program.wait_for_error("evaluating on validation data: ", kSeconds));
  EXPECT_TRUE(program.wait_for_error("microbatches (eval_iters), about ", kSeconds));
}

TEST(PlanOfARun, ReportsTheStepsThatAreLeftAndTheErrorsOfTheRun) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = test::train(folder.path(), {"train_iters=2", "--dry-run"});
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  };
  EXPECT_EQ(plan({}).err.find("note: "), std::string::npos);
  ASSERT_EQ(run_program(test::train(folder.path(), {"train_iters=2"})).exit_code, 0);
  EXPECT_THAT(plan({}).err, HasSubstr("note: nothing is left to do: the run has reached iteration 2"));
  EXPECT_THAT(plan({"train_iters=5"}).err,
              HasSubstr("note: the run continues from iteration 2: 3 of its 5 steps are left"));
  for (const auto& [setting, text] : {std::pair("hidden_size=128", "hidden_size"),
                                      std::pair("global_batch_size=16", "was saved with global_batch_size"),
                                      std::pair("optimizer=sgd", "has the states of another optimizer")}) {
    const ProgramResult refused = plan({setting});
    EXPECT_EQ(refused.exit_code, 2) << setting;
    EXPECT_THAT(refused.err, HasSubstr(text));
  }
}

TEST_F(OwnText, ALoadedModelBringsItsTokenizer) {
  learn_tokenizer("corpus.txt", "own");
  ASSERT_EQ(train_with("own", {}).exit_code, 0);
  const std::string load = "load=" + (run() / "checkpoints").string();
  const std::string own = read_file(at("own") / "tokenizer.json");

  const ProgramResult tuned = train({load, "exp_name=tuned"});
  ASSERT_EQ(tuned.exit_code, 0) << tuned.err;
  EXPECT_THAT(tuned.err, HasSubstr("the tokenizer that came with the weights"));
  EXPECT_EQ(read_file(run("tuned") / "checkpoints/iter_0000002/tokenizer.json"), own);
  // The repeated command and the recorded experiment resume with the tokenizer of the loaded weights.
  EXPECT_EQ(train({load, "exp_name=tuned", "train_iters=3"}).exit_code, 0);
  const ProgramResult recorded = run_program(
      {"train", "pretrain", "--config", (run("tuned") / "experiment.yaml").string(), "train_iters=4"});
  EXPECT_EQ(recorded.exit_code, 0) << recorded.err;
  EXPECT_EQ(read_file(run("tuned") / "checkpoints/iter_0000004/tokenizer.json"), own);

  // Another tokenizer is refused, and the error names both, unless allow_tokenizer_change is set.
  const ProgramResult other = train({load, "exp_name=other", "tokenizer_type=ByteTokenizer"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("ByteTokenizer"), HasSubstr((run() / "checkpoints").string()),
                               HasSubstr("allow_tokenizer_change=true")));
  EXPECT_FALSE(Env::posix().status(run("other") / "checkpoints"));
  const ProgramResult wanted =
      train({load, "exp_name=other", "tokenizer_type=ByteTokenizer", "allow_tokenizer_change=true"});
  EXPECT_EQ(wanted.exit_code, 0) << wanted.err;
  // The saved model ends texts with the end token of its new tokenizer.
  const auto config = [&](const Path& of) {
    return nlohmann::json::parse(read_file(of / "checkpoints/iter_0000002/config.json"));
  };
  EXPECT_THAT(wanted.err, HasSubstr("the model gets the end tokens of ByteTokenizer"));
  EXPECT_NE(config(run("other"))["eos_token_id"], config(run())["eos_token_id"]);
  // A copy of the tokenizer under another name counts as the same tokenizer.
  std::filesystem::copy(at("own"), at("copy"));
  EXPECT_EQ(train_with("copy", {load, "exp_name=copied"}).exit_code, 0);
}

// A byte-level model keeps the byte tokenizer when it resumes, although its checkpoint has no tokenizer file.
TEST_F(OwnText, AByteModelStaysAByteModel) {
  ASSERT_EQ(train({}).exit_code, 0);
  const std::string load = "load=" + (run() / "checkpoints").string();
  learn_tokenizer("corpus.txt", "own");
  const ProgramResult other = train_with("own", {load, "exp_name=other"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr(at("own").string()), HasSubstr("ByteTokenizer")));
  const ProgramResult same = train({load, "exp_name=same"});
  EXPECT_EQ(same.exit_code, 0);
  EXPECT_EQ(same.err.find("is used, not a preset's ByteTokenizer"), std::string::npos) << same.err;
}

TEST_F(OwnText, ResumingNeedsTheSameTokenizer) {
  write("other.txt", text_about("ship"));
  learn_tokenizer("corpus.txt", "own");
  ASSERT_EQ(train_with("own", {}).exit_code, 0);
  const std::string weights = test::final_weights(run(), 2);
  std::filesystem::copy(at("own"), at("copy"));
  learn_tokenizer("other.txt", "own");  // new content under the same name
  const ProgramResult refused = train_with("own", {"train_iters=4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("another tokenizer"), HasSubstr("content has changed"),
                                 HasSubstr("allow_tokenizer_change=true"), HasSubstr("exp_name")));
  EXPECT_EQ(test::final_weights(run(), 2), weights);
  EXPECT_EQ(test::losses(run()).size(), 2U);
  // Tokenizers are compared by content, not by name.
  EXPECT_EQ(train_with("copy", {"train_iters=3"}).exit_code, 0);
  // A new tokenizer also changes the tokenized data, so both changes have to be permitted.
  const ProgramResult half = train_with("own", {"train_iters=4", "allow_tokenizer_change=true"});
  EXPECT_EQ(half.exit_code, 2);
  // The text has not changed, only its tokens.
  EXPECT_THAT(half.err, AllOf(HasSubstr("was trained with other tokens of '" + at("corpus.txt").string() +
                                        "', because the tokenizer has changed"),
                              HasSubstr("allow_data_change=true"), Not(HasSubstr("another training text"))));
  const ProgramResult wanted =
      train_with("own", {"train_iters=4", "allow_tokenizer_change=true", "allow_data_change=true"});
  EXPECT_EQ(wanted.exit_code, 0) << wanted.err;
  EXPECT_EQ(test::losses(run()).size(), 4U);
}

TEST_F(OwnText, AnotherTokenizerIsNamedByItsFolder) {
  write("other.txt", text_about("ship"));
  learn_tokenizer("corpus.txt", "own");
  learn_tokenizer("other.txt", "other");
  ASSERT_EQ(train_with("own", {}).exit_code, 0);
  const ProgramResult refused = train_with("other", {"train_iters=4"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("was trained with another tokenizer: '" + at("own").string() +
                                           "'; now it is '" + at("other").string() + "'"),
                                 Not(HasSubstr("content has changed"))));
}

// A run whose tokenizer was deleted resumes with the copy in its checkpoint. A run's folder can be given as a
// tokenizer.
TEST_F(OwnText, ADeletedTokenizerIsReadFromTheCheckpoint) {
  learn_tokenizer("corpus.txt", "own");
  ASSERT_EQ(train_with("own", {}).exit_code, 0);
  const ProgramResult of_run = train_with("out/w/u/run", {"exp_name=second"});
  EXPECT_EQ(of_run.exit_code, 0) << of_run.err;
  remove_tree(at("own"));
  const ProgramResult planned = train_with("own", {"train_iters=3", "--dry-run"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.err, Not(HasSubstr("training will need it")));
  const ProgramResult resumed = train_with("own", {"train_iters=3"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err,
              AllOf(HasSubstr("the tokenizer '" + at("own").string() + "' does not exist"),
                    HasSubstr("its copy in the run's checkpoint '"), Not(HasSubstr("tokenizer_model was"))));
  EXPECT_TRUE(Env::posix().status(run() / "checkpoints/iter_0000003/tokenizer.json"));
  const ProgramResult other =
      train_with("own", {"exp_name=other", "load=" + (run() / "checkpoints").string()});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("omit tokenizer_model to use the tokenizer that came with the weights"));
}

TEST_F(OwnText, ResumingNeedsTheSameText) {
  ASSERT_EQ(train({}).exit_code, 0);
  std::filesystem::copy(at("corpus.txt"), at("moved.txt"));
  write("corpus.txt", text_about("ship"));
  const ProgramResult refused = train({"train_iters=3"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(at("corpus.txt").string()), HasSubstr("content has changed"),
                                 HasSubstr("allow_data_change=true")));
  const ProgramResult moved = train({"train_iters=3", "data_path=" + at("moved.txt").string()});
  EXPECT_EQ(moved.exit_code, 0) << moved.err;
  EXPECT_THAT(moved.err, Not(HasSubstr("data_path was " + at("corpus.txt").string() + ", and is " +
                                       at("moved.txt").string() + " from here on: the data order changes")));
  const ProgramResult mock = train({"train_iters=4", "mock_data=true", "data_path=null"});
  EXPECT_EQ(mock.exit_code, 2);
  EXPECT_THAT(mock.err, HasSubstr("now it is 'mock data'"));
  // A permitted change is logged, and a part of the text is held out for validation.
  const ProgramResult permitted =
      train({"train_iters=4", "allow_data_change=true", "split=90,10,0", "eval_iters=1"});
  EXPECT_EQ(permitted.exit_code, 0);
  EXPECT_THAT(
      permitted.err,
      HasSubstr("was trained with another training text: '" + at("moved.txt").string() + "'; now it is '" +
                at("corpus.txt").string() + "'; allow_data_change permits the change"));
  EXPECT_THAT(permitted.err, HasSubstr("the validation data is a part of the changed data"));
  // From then on, the run has to keep the new text.
  const ProgramResult kept = train({"train_iters=5", "split=90,10,0"});
  EXPECT_EQ(kept.exit_code, 0);
  EXPECT_THAT(kept.err, Not(HasSubstr("content has changed")));
  // A finished run has only one line about changed settings.
  const ProgramResult finished = train({"train_iters=3", "split=90,10,0", "lr=0.5", "seed=7"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(
      finished.out,
      AllOf(HasSubstr("lr was "), HasSubstr("and is 0.5"), HasSubstr("seed was 1234, and is 7"),
            HasSubstr("train_iters was 5, and is 3"), HasSubstr("which does not change a finished run")));
  EXPECT_THAT(finished.err, AllOf(Not(HasSubstr("from here on")), Not(HasSubstr("data order changes"))));
}

// The data order depends on the number of epochs.
TEST_F(OwnText, ALongerRunSaysWhetherTheDataOrderChanges) {
  const std::string changes = "the data order changes";
  const auto text = [](int lines) {
    std::string all;
    for (int i = 0; i < lines; ++i) all += "line " + std::to_string(i * i) + " of the text\n\n";
    return all;
  };
  for (const auto& [lines, change] : {std::pair(2000, false), std::pair(20, true)}) {
    write("corpus.txt", text(lines));
    const std::string name = "exp_name=of_" + std::to_string(lines);
    ASSERT_EQ(train({name, "save_interval=1"}).exit_code, 0);
    const ProgramResult longer = train({name, "train_iters=20", "data_sharding=false"});
    ASSERT_EQ(longer.exit_code, 0) << longer.err;
    EXPECT_THAT(longer.err, HasSubstr("train_iters was 2, and is 20 from here on"));
    EXPECT_EQ(longer.err.find(changes) != std::string::npos, change) << longer.err;
    // No message says that a setting without effect changes the data order.
    EXPECT_THAT(longer.err, HasSubstr("data_sharding was true, and is false, which has no effect"));
  }
  // No message says that a setting has no effect if it had an effect in the run up to now.
  ASSERT_EQ(train({"exp_name=wsd", "lr_decay_style=WSD", "lr_wsd_decay_iters=1"}).exit_code, 0);
  EXPECT_THAT(train({"exp_name=wsd", "train_iters=3"}).err,
              HasSubstr("lr_wsd_decay_iters was 1, and is unset from here on"));
}

TEST_F(OwnText, ValidationNeedsNoTestData) {
  const std::vector<std::string> evaluate = {"eval_iters=2", "eval_interval=2", "train_iters=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), evaluate.begin(), evaluate.end());
    return more;
  };
  const ProgramResult split = train(with({"split=90,10,0"}));
  ASSERT_EQ(split.exit_code, 0) << split.err;
  EXPECT_THAT(evaluations(run()), ElementsAre("2 validation", "4 validation"));
  EXPECT_THAT(train({"eval_iters=2", "train_iters=5", "split=80,20,0"}).err,
              HasSubstr("held out before may now be trained on"));
  write("held.txt", text_about("ship"));
  const ProgramResult paths = train(
      with({"exp_name=paths", "data_path=null", "split=null", "train_data_path=" + at("corpus.txt").string(),
            "valid_data_path=" + at("held.txt").string()}));
  ASSERT_EQ(paths.exit_code, 0) << paths.err;
  EXPECT_THAT(evaluations(run("paths")), ElementsAre("2 validation", "4 validation"));
  const std::string on_training_data = "the validation loss is measured on training data";
  EXPECT_THAT(paths.err, Not(HasSubstr(on_training_data)));
  const ProgramResult same = train(with(
      {"exp_name=same", "data_path=null", "split=null", "train_data_path=" + at("corpus.txt").string(),
       "valid_data_path=" + at("../" + at("").parent_path().filename().string() + "/corpus.txt").string()}));
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.err, HasSubstr(on_training_data));
  const ProgramResult none = train(with({"exp_name=none"}));
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.err, HasSubstr("no validation data is given"));
}

TEST_F(OwnText, ASkippedEvaluationIsMadeByTheNextStart) {
  const std::vector<std::string> settings = {"train_iters=4", "save_interval=1", "split=80,10,10",
                                             "eval_iters=2", "eval_interval=3"};
  ASSERT_EQ(train(settings).exit_code, 0);
  const std::vector<std::string> all = {"3 validation", "4 validation", "4 test"};
  ASSERT_EQ(evaluations(run()), all);
  const std::string whole = read_file(run() / "evaluations.jsonl");
  const auto loss_of = [](const std::string& line) {
    return nlohmann::json::parse(line).at("lm_loss").get<double>();
  };
  const auto line_of = [](const std::string& text, std::size_t i) {
    std::istringstream lines(text);
    std::string line;
    for (std::size_t k = 0; k <= i; ++k) std::getline(lines, line);
    return line;
  };

  // The run was killed after its last checkpoint, before, between or after the last two evaluations.
  for (std::size_t kept = 1; kept <= 3; ++kept) {
    std::string text;
    for (std::size_t i = 0; i < kept; ++i) text += line_of(whole, i) + "\n";
    write_file(run() / "evaluations.jsonl", text);
    const ProgramResult again = train(settings);
    ASSERT_EQ(again.exit_code, 0) << again.err;
    EXPECT_THAT(again.out, HasSubstr(kept < 3 ? "evaluated: " : "nothing left to do")) << kept;
    EXPECT_EQ(evaluations(run()), all) << kept;
    const std::string now = read_file(run() / "evaluations.jsonl");
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(loss_of(line_of(now, i)), loss_of(line_of(whole, i)));
  }

  // If the run is not finished, the missing evaluation of step 3 runs before step 4.
  write_file(run() / "evaluations.jsonl", "");
  remove_tree(run() / "checkpoints/iter_0000004");
  ASSERT_EQ(train(settings).exit_code, 0);
  EXPECT_EQ(evaluations(run()), all);
}

TEST_F(OwnText, ANewStartMovesAllEarlierFiles) {
  ASSERT_EQ(train({"train_iters=3", "save_interval=1"}).exit_code, 0);
  const std::string first = test::final_weights(run(), 3);
  const std::string metrics = read_file(run() / "metrics.jsonl");
  const ProgramResult anew = train({"train_iters=2", "auto_continue_train=false", "seed=7"});
  ASSERT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_THAT(anew.err, HasSubstr((run() / "checkpoints/previous-1").string()));
  // The older run's files are kept.
  const auto moved = Env::posix().list(run() / "checkpoints/previous-1");
  EXPECT_THAT(moved, ElementsAre("iter_0000001", "iter_0000002", "iter_0000003", "latest"));
  EXPECT_EQ(read_file(run() / "metrics.previous.jsonl"), metrics);
  // If the new checkpoints are damaged, the older run's checkpoints are not used instead.
  EXPECT_THAT(Env::posix().list(run() / "checkpoints"), ElementsAre("iter_0000002", "latest", "previous-1"));
  std::filesystem::resize_file(run() / "checkpoints/iter_0000002/model.safetensors", 100);
  const ProgramResult damaged = train({"train_iters=5"});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_THAT(damaged.err, HasSubstr("can be used"));
  // A third start keeps the files of both earlier runs.
  ASSERT_EQ(train({"auto_continue_train=false"}).exit_code, 0);
  EXPECT_THAT(Env::posix().list(run() / "checkpoints"),
              ElementsAre("iter_0000002", "latest", "previous-1", "previous-2"));
  EXPECT_EQ(read_file(run() / "metrics.previous.jsonl"), metrics);
  EXPECT_TRUE(Env::posix().status(run() / "metrics.previous-2.jsonl"));
  EXPECT_EQ(test::losses(run()).size(), 2U);
}

// No command that writes a named file replaces an existing one without --overwrite.
TEST_F(OwnText, ResultsAreReplacedOnlyOnRequest) {
  const std::string corpus = at("corpus.txt").string(), data = at("data").string();
  const std::string prefix = data + "_text_document";
  const std::string experiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";
  const std::string model = PRIMUS_SOURCE_DIR "/tests/golden/models/llama";
  const std::vector<std::pair<std::vector<std::string>, Path>> commands = {
      {{"data", "train-tokenizer", "-i", corpus, "-o", at("tok").string(), "--vocab-size", "280"},
       at("tok/tokenizer.json")},
      {{"data", "tokenize", "-i", corpus, "-o", data, "--tokenizer-type", "ByteTokenizer"}, prefix + ".bin"},
      {{"data", "split", prefix, "-o", at("part").string(), "--split", "1,0,0"}, at("part_train.bin")},
      {{"data", "merge", prefix, "-o", at("merged").string()}, at("merged.bin")},
      {{"train", "pretrain", "--config", experiment, "--dry-run", "--export-config", at("exp.yaml").string()},
       at("exp.yaml")},
      {{"model", "export", model, at("exported").string()}, at("exported/config.json")},
      {{"model", "import", model, at("imported").string()}, at("imported/config.json")}};
  for (auto [words, file] : commands) {
    const std::string name = words[0] + " " + words[1];
    ASSERT_EQ(run_program(words).exit_code, 0) << name;
    const std::string before = read_file(file);
    const ProgramResult again = run_program(words);
    EXPECT_EQ(again.exit_code, 2) << name;
    EXPECT_THAT(again.err, AllOf(HasSubstr("already exists"), HasSubstr("--overwrite"))) << name;
    EXPECT_EQ(read_file(file), before) << name;
    words.emplace_back("--overwrite");
    const ProgramResult wanted = run_program(words);
    EXPECT_EQ(wanted.exit_code, 0) << name << wanted.err;
  }
}

// Weights are compared with config.json before memory is allocated for a huge declared model.
TEST_F(OwnText, ShapesAreComparedBeforeMemoryIsAllocated) {
  std::filesystem::copy(PRIMUS_SOURCE_DIR "/tests/golden/models/llama", at("model"));
  auto config = nlohmann::json::parse(read_file(at("model/config.json")));
  config["vocab_size"] = 1 << 30;
  write("model/config.json", config.dump());
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"generate", at("model").string(), "-p", "abc", "--tokenizer-type", "ByteTokenizer"},
           {"eval", "loss", at("model").string(), "--data", at("corpus.txt").string(), "--tokenizer-type",
            "ByteTokenizer"}}) {
    const ProgramResult result = run_program(words, {.memory_limit = 1U << 30});
    EXPECT_EQ(result.exit_code, 2) << words[0] << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("embed_tokens"), HasSubstr("1073741824"))) << words[0];
  }
}

// With auto_continue_train=false, only the first start of a job trains from the beginning. Slurm's batch
// script numbers the starts.
TEST(Restart, AJobContinuesTheRunThatItBegan) {
  const TemporaryFolder folder;
  const auto start = [&](const std::string& number) {
    return run_program(
        test::train(folder.path(), {"train_iters=9", "exit_interval=2", "auto_continue_train=false"}),
        {.environment = {{"PRIMUS_JOB_START", number}}});
  };
  ASSERT_EQ(start("").exit_code, 0);  // an earlier run, from which the job does not continue
  const ProgramResult first = start("7.1");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, AllOf(HasSubstr("stopped after iteration 2"),
                               HasSubstr("run the same command again with auto_continue_train=true")));
  EXPECT_THAT(start("7.2").out, HasSubstr("stopped after iteration 4"));
  const ProgramResult third = start("7.3");
  EXPECT_THAT(third.out, HasSubstr("stopped after iteration 6"));
  EXPECT_THAT(third.err, HasSubstr("note: this job continues the run that it began"));
  EXPECT_THAT(start("8.1").out, HasSubstr("stopped after iteration 2"));
  EXPECT_TRUE(std::filesystem::exists(test::run_folder(folder.path()) / "checkpoints/previous-2"));
}

}  // namespace
}  // namespace primus
