// Tests of `primus train pretrain`: a few steps of a tiny model, mostly on mock data.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/files/file.h"
#include "base/small_disk.h"
#include "cli/program_names.h"
#include "cli/runs.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {
namespace {

// Trains a smaller model than the preset's, because no test here depends on the size.
std::vector<std::string> train(const Path& workspace, std::vector<std::string> more) {
  more.insert(more.begin(), {"hidden_size=48", "ffn_hidden_size=96", "num_attention_heads=2"});
  return test::train(workspace, more);
}

TEST(Train, OtherCommandsCanUseTheRun) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(train(folder.path(), {"train_iters=4", "save_interval=2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("done after iteration 4"));
  EXPECT_THAT(result.err, HasSubstr("iteration        4/       4"));
  const Path run = test::run_folder(folder.path());
  EXPECT_EQ(test::losses(run).size(), 4U);
  EXPECT_TRUE(Env::posix().status(run / "checkpoints" / "iter_0000002" / "config.json"));
  const Path logs = run / "logs" / "pre_trainer" / "rank-0";
  EXPECT_TRUE(Env::posix().status(logs / "info.log"));
  for (const char* saved : {"iteration 2 is saved: ", "iteration 4 is saved: "})
    EXPECT_THAT(read_file(logs / "debug.log"), HasSubstr(saved));
  EXPECT_THAT(read_file(logs / "debug.log"), HasSubstr("of tensors bypassed the page cache"));

  const ProgramResult text = run_program({"generate", run.string(), "-p", "abc", "-n", "5", "--json"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(json::parse(text.out).at("prompt_tokens"), 3);
  const ProgramResult chat =
      run_program({"chat", run.string(), "-n", "4"}, {.input = "hello\n/clear\nagain\n"});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  const ProgramResult info = run_program({"model", "info", run.string(), "--json"});
  EXPECT_EQ(json::parse(info.out).at("layers"), 4);
}

TEST(Train, LossesAreMeasuredAtTheContextOfTheRun) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run_program(train(folder.path(), {"train_iters=2", "seq_length=16", "max_position_embeddings=64"}))
          .exit_code,
      0);
  std::string text;
  for (int i = 0; i < 60; ++i) text += std::to_string(i * i) + " ";
  write_file(folder.path() / "text.csv", text);
  const auto loss = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"eval",
                                      "loss",
                                      test::run_folder(folder.path()).string(),
                                      "-d",
                                      (folder.path() / "text.csv").string(),
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("text.csv' is read as plain text"));
    return json::parse(result.out).at("loss").get<double>();
  };
  EXPECT_EQ(loss({}), loss({"--seq-length", "16"}));
  EXPECT_NE(loss({}), loss({"--seq-length", "64"}));
  // A text that ends at the context's end is reported.
  const std::string run = test::run_folder(folder.path()).string();
  EXPECT_THAT(run_program({"generate", run, "-p", "abc", "-n", "100"}).err,
              HasSubstr("note: stopped after 62 tokens: the model's context (64) is full"));
  const std::string prompts = (folder.path() / "prompts").string();
  write_file(prompts, "\"abc\"\n{\"prompt\": \"abc\", \"max_tokens\": 3}\n");
  EXPECT_THAT(run_program({"generate", run, "-n", "100", "--prompts", prompts}).err,
              HasSubstr("note: 1 of 2 texts stopped because the model's context (64) is full"));
}

TEST(Train, ARunThatSavesElsewhereIsFoundByItsFolder) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  const auto words = train(folder.path(), {"train_iters=2", "save=elsewhere/weights"});
  ASSERT_EQ(run_program(words, {.folder = folder.path().string()}).exit_code, 0);
  EXPECT_FALSE(Env::posix().status(run / "checkpoints"));
  write_file(folder.path() / "text.txt", "abc abc abc");
  const std::vector<std::vector<std::string>> commands = {
      {"generate", run.string(), "-p", "abc", "-n", "2"},
      {"chat", run.string(), "-n", "1"},
      {"eval", "loss", run.string(), "-d", (folder.path() / "text.txt").string()},
      {"model", "info", run.string()},
      {"model", "export", run.string(), (folder.path() / "exported").string()}};
  for (const std::vector<std::string>& command : commands) {
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.exit_code, 0) << command[0] << result.err;
  }
  EXPECT_THAT(run_program(commands[3]).out, HasSubstr("elsewhere/weights/iter_0000002"));
  // The recorded experiment can be run again. No steps are left to train.
  const ProgramResult again =
      run_program({"train", "pretrain", "--config", (run / "experiment.yaml").string()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("nothing left to do"));
  // An unreadable record is named in the error.
  write_file(run / "experiment.yaml", "modules: [");
  const ProgramResult broken = run_program(commands[0]);
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_THAT(broken.err, HasSubstr("experiment.yaml:1:"));
}

TEST(Train, TheRecordedExperimentRunsWithoutThePresetsTokenizer) {
  const TemporaryFolder folder;
  auto words = train(folder.path(),
                     {"train_iters=4", "exit_interval=2", "vocab_size=300", "num_layers=1", "hidden_size=16",
                      "ffn_hidden_size=32", "num_attention_heads=2", "num_query_groups=1", "mock_data=true"});
  words[3] = PRIMUS_SOURCE_DIR "/examples/native/configs/any/llama3.1_8B-BF16-pretrain.yaml";
  const ProgramResult first = run_program(words);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("mock data is drawn from the 300 ids of vocab_size"));
  const Path record = test::run_folder(folder.path()) / "experiment.yaml";
  const ProgramResult again = run_program({"train", "pretrain", "--config", record.string()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("done after iteration 4"));
  EXPECT_THAT(again.err, Not(HasSubstr("from here on")));
}

TEST(Train, TheSameCommandResumes) {
  const TemporaryFolder folder;
  const std::vector<std::string> straight = {"train_iters=6", "save_interval=3", "exp_name=straight"};
  ASSERT_EQ(run_program(train(folder.path(), straight)).exit_code, 0);
  const std::vector<std::string> stopping = {"train_iters=6", "save_interval=3", "exp_name=stopping",
                                             "exit_interval=3"};
  ASSERT_EQ(run_program(train(folder.path(), stopping)).exit_code, 0);
  EXPECT_EQ(test::losses(test::run_folder(folder.path(), "stopping")).size(), 3U);
  const std::vector<std::string> going_on = {"train_iters=6", "save_interval=3", "exp_name=stopping"};
  const ProgramResult rest = run_program(train(folder.path(), going_on));
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(test::losses(test::run_folder(folder.path(), "stopping")),
            test::losses(test::run_folder(folder.path(), "straight")));
  EXPECT_EQ(test::final_weights(test::run_folder(folder.path(), "stopping"), 6),
            test::final_weights(test::run_folder(folder.path(), "straight"), 6));
  const ProgramResult nothing = run_program(train(folder.path(), going_on));
  EXPECT_EQ(nothing.exit_code, 0);
  EXPECT_THAT(nothing.out, HasSubstr("nothing left to do"));
}

// A run is killed while it reads its tokenizer. The files that this run left do not become part of the model.
TEST(Train, FilesOfAKilledRunAreNotSaved) {
  const TemporaryFolder folder;
  const Path run = test::run_folder(folder.path());
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1"})).exit_code, 0);
  make_folders(run / ".tokenizer");
  write_file(run / ".tokenizer" / "left.json", "{}");
  const ProgramResult next = run_program(train(folder.path(), {"train_iters=2"}));
  ASSERT_EQ(next.exit_code, 0) << next.err;
  EXPECT_EQ(Env::posix().list(run / "checkpoints" / "iter_0000002"),
            Env::posix().list(run / "checkpoints" / "iter_0000001"));
  EXPECT_FALSE(Env::posix().status(run / ".tokenizer"));
}

TEST(Train, ADryRunChangesNothing) {
  const TemporaryFolder folder;
  auto words = train(folder.path(), {});
  words.emplace_back("--dry-run");
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* what :
       {"parameters", "persistent", "stash", "scratch", "program", "checkpoint", "steps"}) {
    EXPECT_THAT(result.out, HasSubstr(what));
  }
  words.emplace_back("--json");
  const ProgramResult as_json = run_program(words);
  EXPECT_GT(json::parse(as_json.out).at("memory_bytes").at("total").get<double>(), 1e6);
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

// A dry run does not read the data.
TEST(Train, ADryRunNeedsNoData) {
  const TemporaryFolder folder;
  auto words = train(folder.path(), {"mock_data=false"});
  const ProgramResult run = run_program(words);
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("there is no training data"), HasSubstr("--dry-run plans without")));
  words.emplace_back("--dry-run");
  const ProgramResult plan = run_program(words);
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("the plan assumes mock_data: true"));
  EXPECT_TRUE(Env::posix().list(folder.path()).empty());
}

TEST(Train, APlanNamesTheLimitsThatEndARunEarly) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::vector<std::string>& more) {
    auto words = train(folder.path(), {"train_iters=6", "--dry-run"});
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words).out;
  };
  EXPECT_THAT(plan({"exit_interval=4"}),
              HasSubstr("an iteration that is a multiple of 4 (exit_interval); the command can be repeated"));
  EXPECT_THAT(plan({"exit_duration_in_mins=5"}), HasSubstr("5 minutes (exit_duration_in_mins)"));
  EXPECT_EQ(plan({"exit_interval=6"}).find("stops after"), std::string::npos);
}

TEST(Train, APlanWarnsAsTheRunWould) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::vector<std::string>& more) {
    auto words = train(folder.path(), {"train_iters=6", "--dry-run"});
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(plan({}), Not(HasSubstr("warning")));
  EXPECT_THAT(plan({"profile=true", "profile_ranks=[7]", "profile_step_start=0", "profile_step_end=1"}),
              HasSubstr("profile_ranks names rank 7, but the job has 1 rank"));
  EXPECT_THAT(plan({"save=/proc/x"}),
              HasSubstr("warning: files cannot be created in the folder '/proc/x': training will need it"));
  const std::string threads = fmt::format("num_threads={}", std::thread::hardware_concurrency() + 1);
  EXPECT_THAT(plan({threads}), HasSubstr("and slows them down; leave num_threads out"));
  EXPECT_THAT(run_program(train(folder.path(), {"train_iters=1", threads})).err,
              HasSubstr("and slows them down; leave num_threads out"));
}

TEST(Train, APlanGivesTheTimeOfTheStepsThatAreLeft) {
  const TemporaryFolder folder;
  const auto plan = [&](const std::vector<std::string>& more) {
    auto words = train(folder.path(), {"--dry-run"});
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words).out;
  };
  const auto steps_in_time = [&](const std::string& iterations) {
    const json forecast = json::parse(plan({"train_iters=" + iterations, "--json"}));
    return forecast.at("seconds").get<double>() / forecast.at("seconds_per_step").get<double>();
  };
  EXPECT_NEAR(steps_in_time("2"), 2, 1e-9);
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=2"})).exit_code, 0);
  EXPECT_NEAR(steps_in_time("5"), 3, 1e-9);
  EXPECT_NEAR(steps_in_time("2"), 0, 1e-9);
  EXPECT_THAT(plan({"train_iters=5"}), HasSubstr(" for the steps that are left, "));
}

TEST(Train, ExportsTheResolvedExperiment) {
  const TemporaryFolder folder;
  auto words = train(folder.path(), {"lr=0.00123", "--dry-run"});
  const std::string file = (folder.path() / "resolved.yaml").string();
  words.insert(words.end(), {"--export-config", file});
  ASSERT_EQ(run_program(words).exit_code, 0);
  const ProgramResult again = run_program({"config", "show", "--config", file});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("0.00123"));
}

TEST(Train, AMissingFrameworkIsNamed) {
  const TemporaryFolder folder;
  const std::string none = (folder.path() / "none").string();
  auto words = train(folder.path(), {"framework=megatron"});
  words.insert(words.end(), {"--backend_path", none});
  const ProgramResult result = run_program(words);
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr(none));
  const ProgramResult unknown = run_program(train(folder.path(), {"framework=megatrn"}));
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("framework"));
}

TEST(Train, BadDataIsNamed) {
  const TemporaryFolder folder;
  write_file(folder.path() / "empty.txt", "");
  for (const auto& [path, said] :
       {std::pair{"empty.txt", "empty.txt"}, std::pair{"missing.txt", "missing.txt"}}) {
    const std::string data = (folder.path() / path).string();
    const ProgramResult result = run_program(train(folder.path(), {"mock_data=false", "data_path=" + data}));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(said));
  }
}

TEST(Train, AWorkspaceThatCannotBeWrittenIsAnError) {
  const ProgramResult result = run_program(train("/proc", {}));
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("/proc"));
}

TEST(Train, ResumesOnlyTheModelThatWasSaved) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1"})).exit_code, 0);
  // A model with equal shapes and another rotary_base is refused.
  const ProgramResult other = run_program(train(folder.path(), {"train_iters=2", "rotary_base=1000"}));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("was saved with rope_theta 10000.0, but the experiment has 1000.0"));
  EXPECT_THAT(other.err, HasSubstr("\n  | rotary_base=1000\n"));
  // A setting from a file is reported with its line.
  auto in_file = train(folder.path(), {"train_iters=2"});
  const Path file = folder.path() / "exp.yaml";
  write_file(file, read_file(in_file[3]) + "      rotary_base: 1000\n");
  const auto line = std::ranges::count(read_file(file), '\n');
  in_file[3] = file.string();
  const ProgramResult placed = run_program(in_file);
  EXPECT_EQ(placed.exit_code, 2);
  EXPECT_THAT(placed.err, HasSubstr(fmt::format("{}:{}:20: ", file.string(), line)));
  EXPECT_THAT(placed.err, HasSubstr("rope_theta 10000.0, but the experiment has 1000.0"));
  EXPECT_THAT(other.err, HasSubstr("exp_name"));
  const ProgramResult changed = run_program(train(folder.path(), {"train_iters=2", "seed=5", "lr=2e-3"}));
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_THAT(changed.err, HasSubstr("seed was 1234, and is 5 from here on: the data order changes"));
  EXPECT_THAT(changed.err, HasSubstr("lr was "));
}

TEST(Train, AnExportInFp32HasTheMasterWeights) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1", "bf16=true", "lr=1e-3"})).exit_code, 0);
  const Path saved = test::run_folder(folder.path()) / "checkpoints" / "iter_0000001",
             out = folder.path() / "out";
  const ProgramResult result =
      run_program({"model", "export", saved.string(), out.string(), "--dtype", "fp32"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const CheckpointReader checkpoint = CheckpointReader::open(saved);
  const SafetensorsFolder exported = SafetensorsFolder::open(out);
  ASSERT_GT(exported.size(), 0U);
  for (std::size_t i = 0; i < exported.size(); ++i) {
    const TensorView tensor = exported[i];
    const auto master =
        checkpoint.find(TensorPart::kOptimizer, optimizer_tensor_name("fp32_param", tensor.name));
    ASSERT_TRUE(master) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.data, master->data)) << tensor.name;
    EXPECT_EQ(checkpoint.find(TensorPart::kModel, tensor.name)->dtype, DType::kBF16) << tensor.name;
  }
}

TEST(Train, ACheckpointIsLoadedCompletelyOrNotAtAll) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1"})).exit_code, 0);
  const std::string load = "load=" + (test::run_folder(folder.path()) / "checkpoints").string();
  for (const char* change : {"num_layers=3", "num_attention_heads=3", "norm_epsilon=1e-3"}) {
    for (const char* finetune : {"finetune=true", "finetune=false"}) {
      const ProgramResult result =
          run_program(train(folder.path(), {"train_iters=2", load, change, finetune, "exp_name=other"}));
      EXPECT_EQ(result.exit_code, 2) << change << " " << finetune;
    }
  }
  // Loaded weights may be trained with another rotary_base, for a longer context.
  EXPECT_EQ(run_program(train(folder.path(), {"train_iters=1", load, "rotary_base=50000", "exp_name=longer"}))
                .exit_code,
            0);
}

TEST(Train, ContinuesWithoutOptimizerState) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1", "no_save_optim=true"})).exit_code, 0);
  const ProgramResult again = run_program(train(folder.path(), {"train_iters=2", "no_save_optim=true"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("has no optimizer state"));
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 2U);
}

TEST(Train, NothingLeftToDoChangesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::string> evaluated = {"train_iters=2", "eval_iters=1", "eval_interval=2"};
  const ProgramResult first = run_program(train(folder.path(), evaluated));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Path evaluations = test::run_folder(folder.path()) / "evaluations.jsonl";
  const std::string before = read_file(evaluations);
  std::vector<std::string> as_json = evaluated;
  as_json.push_back("--json");
  const ProgramResult again = run_program(train(folder.path(), as_json));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(read_file(evaluations), before);
  EXPECT_DOUBLE_EQ(json::parse(again.out).at("last_loss").get<double>(),
                   test::losses(test::run_folder(folder.path())).at(2).loss);

  const ProgramResult none = run_program(train(folder.path(), {"train_iters=0", "exp_name=none"}));
  EXPECT_EQ(none.exit_code, 0) << none.err;
}

TEST(Train, AForecastOfAHugeBatchNeedsNoMemory) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      train(folder.path(), {"global_batch_size=400000000", "train_iters=10", "--dry-run", "--json"}));
  // The exit code may be 1, because the host buffers of the batch may exceed the memory of this machine.
  ASSERT_LE(result.exit_code, 1) << result.err;
  const ProgramResult small =
      run_program(train(folder.path(), {"global_batch_size=4", "train_iters=10", "--dry-run", "--json"}));
  const json large_step = json::parse(result.out), small_step = json::parse(small.out);
  for (const char* arena : {"persistent", "stash", "scratch", "checkpoint_copy"}) {
    EXPECT_EQ(large_step.at("memory_bytes").at(arena), small_step.at("memory_bytes").at(arena)) << arena;
  }
  // Only the host buffers grow, because the host keeps the batches of a step.
  EXPECT_GT(large_step.at("memory_bytes").at("host_buffers"),
            small_step.at("memory_bytes").at("host_buffers"));
  // The work of all kernels grows with the batch, except that of the gradient norm and of the update.
  EXPECT_NEAR(large_step.at("kernel_flops_per_step").get<double>() /
                  small_step.at("kernel_flops_per_step").get<double>(),
              1e8, 1e6);  // 400000000 / 4
}

// Makes a data set of 6400 equal bytes and returns its prefix.
std::string data_of(char byte, const Path& folder) {
  write_file(folder / "text.txt", std::string(6400, byte));
  const ProgramResult made =
      run_program({"data", "tokenize", "--input", (folder / "text.txt").string(), "--output-prefix",
                   (folder / "data").string(), "--tokenizer-type", "ByteTokenizer"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return folder / "data_text_document";
}

TEST(Train, SavesItsProgressWhenDataIsDamaged) {
  const TemporaryFolder folder;
  const std::string prefix = data_of('a', folder.path());
  const Path bin = prefix + ".bin";
  std::string tokens = read_file(bin);
  tokens[tokens.size() / 2] = tokens[tokens.size() / 2 + 1] = '\xff';  // an id beyond the vocabulary
  write_file(bin, tokens);
  const ProgramResult broken =
      run_program(train(folder.path(), {"train_iters=50", "mock_data=false", "vocab_size=300",
                                        "split=100,0,0", "data_path=" + prefix}));
  EXPECT_EQ(broken.exit_code, 2);
  const Path run = test::run_folder(folder.path());
  const auto done = test::losses(run).size();
  ASSERT_GE(done, 1U) << broken.err;
  EXPECT_LT(done, 50U);
  EXPECT_TRUE(Env::posix().status(run / "checkpoints" / fmt::format("iter_{:07}", done) / "config.json"))
      << broken.err;
  // The error names the token, its place and the next step. `data inspect` reports the same place.
  EXPECT_THAT(broken.err, HasSubstr("data_text_document (train): document "));
  EXPECT_THAT(broken.err, HasSubstr(" has the token 65535 at position "));
  EXPECT_THAT(broken.err, HasSubstr("'primus data inspect " + prefix +
                                    " --tokenizer-type NullTokenizer --tokenizer 300' counts such tokens"));
  const ProgramResult inspected =
      run_program({"data", "inspect", prefix, "--tokenizer-type", "NullTokenizer", "--tokenizer", "300"});
  EXPECT_EQ(inspected.exit_code, 2);
  const std::size_t place = broken.err.find("document ", broken.err.find("(train): "));
  EXPECT_THAT(inspected.err, HasSubstr(broken.err.substr(place, broken.err.find(", outside") - place)));
}

// The trained weights are kept if the evaluation after training finds an error in the test data.
TEST(Train, SavesItsProgressWhenTestDataIsDamaged) {
  const TemporaryFolder folder;
  const std::string train_data = data_of('a', folder.path());
  make_folders(folder.path() / "test");
  const std::string test_data = data_of('b', folder.path() / "test");
  std::string tokens = read_file(test_data + ".bin");
  // Before training, a run reads one sample of each split. The evaluation at the end reads all samples here.
  const auto words = [&](const std::string& name) {
    return train(folder.path(),
                 {"train_iters=2", "mock_data=false", "vocab_size=300", "eval_iters=25", "eval_interval=10",
                  "save_interval=10", "exp_name=" + name, "train_data_path=" + train_data,
                  "valid_data_path=" + train_data, "test_data_path=" + test_data});
  };
  ASSERT_EQ(run_program(words("whole")).exit_code, 0);
  tokens[tokens.size() / 2] = tokens[tokens.size() / 2 + 1] = '\xff';
  write_file(test_data + ".bin", tokens);
  const ProgramResult broken = run_program(words("broken"));
  EXPECT_EQ(broken.exit_code, 2) << broken.err;
  EXPECT_THAT(broken.err, HasSubstr(" has the token 65535 at position "));
  EXPECT_TRUE(
      Env::posix().status(test::run_folder(folder.path(), "broken") / "checkpoints/iter_0000002/config.json"))
      << broken.err;
}

TEST(Train, ARunThatIsRefusedForItsDataLeavesNothing) {
  const TemporaryFolder folder;
  write_file(folder.path() / "few.jsonl", "{\"text\": \"a few tokens\"}\n");
  write_file(folder.path() / "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 5}\n");
  const std::string cache = "data_cache_path=" + (folder.path() / "cache").string();
  for (const char* data : {"none", "few.jsonl", "bad.jsonl"}) {
    const auto words = train(folder.path(), {"mock_data=false", "vocab_size=300", "split=100,0,0", cache,
                                             "data_path=" + (folder.path() / data).string()});
    const ProgramResult refused = run_program(words);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_FALSE(Env::posix().status(test::run_folder(folder.path()))) << data << ": " << refused.err;
  }
  // Tokens beyond the vocabulary are refused.
  const ProgramResult other = run_program(
      train(folder.path(), {"mock_data=false", "tokenizer_type=NullTokenizer", "tokenizer_model=100",
                            "vocab_size=100", "split=100,0,0", "data_path=" + data_of('x', folder.path())}));
  EXPECT_THAT(other.err,
              ::testing::ContainsRegex(
                  "document 0 has the token 120 at position [0-9]+, outside the vocabulary of 100"));
  EXPECT_FALSE(Env::posix().status(test::run_folder(folder.path())));
  EXPECT_EQ(run_program(train(folder.path(), {"tokenizer_type=WordTokenizer"})).exit_code, 2);
  EXPECT_FALSE(Env::posix().status(test::run_folder(folder.path())));
  // If the run's folder already exists, its log has the error.
  make_folders(test::run_folder(folder.path()));
  EXPECT_EQ(run_program(train(folder.path(), {"mock_data=false", "data_path=none"})).exit_code, 2);
  EXPECT_THAT(read_file(test::run_folder(folder.path()) / "logs" / "pre_trainer" / "rank-0" / "error.log"),
              HasSubstr("data 'none' does not exist"));
}

TEST(Train, RefusesMoreTokensThanCanBeCounted) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(train(folder.path(), {"train_iters=1000000000000", "global_batch_size=1000000"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("above the limit of"));
}

TEST(Train, ANaNLossNamesStepAndOperator) {
  const TemporaryFolder folder;
  const std::vector<std::string> diverging = {"train_iters=5",     "lr=1",        "min_lr=1",
                                              "lr_warmup_iters=0", "clip_grad=0", "weight_decay=1e38"};
  const ProgramResult result = run_program(train(folder.path(), diverging));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("(lm loss|gradient norm) is (nan|inf) at iteration [2-5]; "
                                                   "the first operator with such a result is"));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("-nan")));
  // The screen names the operator only once. The log names the operator, too.
  const std::size_t said = result.err.find("the first operator");
  EXPECT_EQ(result.err.find("the first operator", said + 1), std::string::npos) << result.err;
  const Path log = test::run_folder(folder.path()) / "logs" / "pre_trainer" / "rank-0" / "error.log";
  EXPECT_THAT(read_file(log), HasSubstr("the first operator"));
  // The update makes every decayed weight infinite. The embedding is the first operator that reads such a
  // weight.
  const ProgramResult infinite =
      run_program(train(folder.path(), {"train_iters=5", "lr=1000", "min_lr=1000", "lr_warmup_iters=0",
                                        "weight_decay=1e38", "exp_name=infinite"}));
  EXPECT_EQ(infinite.exit_code, 3) << infinite.err;
  EXPECT_THAT(
      infinite.err,
      HasSubstr("lm loss is nan at iteration 2; the first operator with such a result is embedding\n"));
}

// A NaN in the first step cannot come from an update, so the weights of the loaded model are examined.
TEST(Train, ANaNInLoadedWeightsIsNotBlamedOnTheLearningRate) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=1", "max_position_embeddings=64"})).exit_code, 0);
  const std::string model = (folder.path() / "model").string();
  ASSERT_EQ(run_program({"model", "export", test::run_folder(folder.path()).string(), model}).exit_code, 0);

  const Path weights = Path(model) / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes.replace(bytes.size() - 4, 4, 4, '\xff');  // a NaN in fp32 and in bf16
  write_file(weights, bytes);
  const ProgramResult damaged = run_program(train(
      folder.path(), {"load=" + model, "train_iters=2", "max_position_embeddings=64", "exp_name=damaged"}));
  EXPECT_EQ(damaged.exit_code, 3);
  EXPECT_THAT(damaged.err, HasSubstr("lm loss is nan at iteration 1"));
  EXPECT_THAT(damaged.err, HasSubstr("the loaded weights are damaged ("));
  EXPECT_THAT(damaged.err, Not(HasSubstr("lower lr")));
}

TEST(Train, AFullDiskKeepsTheOldCheckpoint) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(train(folder.path(), {"train_iters=2"})).exit_code, 0);
  const Path checkpoints = test::run_folder(folder.path()) / "checkpoints";
  const std::string before = test::final_weights(test::run_folder(folder.path()), 2);
  auto full = train(folder.path(), {"train_iters=4"});
  full.emplace_back("--json");
  const ProgramResult result = run_program(full, {.file_size_limit = 1 << 16});
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot write"));
  EXPECT_THAT(result.err, HasSubstr("File too large"));
  EXPECT_THAT(json::parse(result.out).at("hint").get<std::string>(), HasSubstr("ulimit -f"));
  EXPECT_EQ(test::final_weights(test::run_folder(folder.path()), 2), before);
  for (const std::string& name : Env::posix().list(checkpoints)) {
    EXPECT_THAT(name, ::testing::Not(HasSubstr("0000004"))) << "the incomplete checkpoint was not removed";
  }
  const ProgramResult again = run_program(train(folder.path(), {"train_iters=4"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 4U);
}

TEST(Train, ADiskTooSmallForACheckpointIsReported) {
  const bool mounted = test::on_small_disk(1 << 20, [](const Path& folder) {
    const ProgramResult refused = run_program(train(folder, {"train_iters=2"}));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, AllOf(HasSubstr("a checkpoint needs"), HasSubstr("--force starts it")));
    EXPECT_TRUE(test::losses(test::run_folder(folder)).empty());
    auto forced = train(folder, {"train_iters=2"});
    forced.emplace_back("--force");
    const ProgramResult result = run_program(forced);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("cannot save checkpoint"));
    EXPECT_THAT(result.err, HasSubstr("No space left on device"));
    EXPECT_TRUE(Env::posix().list(test::run_folder(folder) / "checkpoints").empty());
  });
  if (!mounted) GTEST_SKIP() << "this system does not permit mounting a small disk";
}

TEST(Train, ARunMayHaveNoSteps) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(train(folder.path(), {"train_iters=0"}));
  EXPECT_EQ(result.exit_code, 0) << result.signal << result.err;
  EXPECT_TRUE(test::losses(test::run_folder(folder.path())).empty());
  EXPECT_THAT(result.out, HasSubstr("nothing to do: the run has no steps"));
  const ProgramResult evaluated =
      run_program(train(folder.path(), {"train_iters=0", "eval_iters=1", "exp_name=evaluated"}));
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.err, HasSubstr("tokenizer: "));
  EXPECT_THAT(evaluated.out, HasSubstr("evaluated: the run has no steps"));
}

// A dry run refuses too many samples or too short a text, as the run would.
TEST(Train, AForecastChecksTheLimitsOfSamples) {
  const TemporaryFolder folder;
  const std::string text = (folder.path() / "short.txt").string();
  write_file(text, std::string(100, 'a'));
  const auto error_of = [&](std::vector<std::string> words) {
    words.emplace_back("--dry-run");
    const ProgramResult result = run_program(train(folder.path(), words));
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error_of({"data_path=" + text, "seq_length=200"}),
              HasSubstr("seq_length is 200, but '" + text + "' holds at most 116 tokens"));
  EXPECT_THAT(error_of({"train_iters=5000000", "global_batch_size=1000"}), HasSubstr("the limit is 2^32"));
  EXPECT_THAT(error_of({"train_iters=4", "eval_iters=5000000", "global_batch_size=1000"}),
              HasSubstr("the evaluations (eval_iters * global_batch_size each) are"));
  EXPECT_THAT(error_of({"train_minutes=1000000", "global_batch_size=4000000"}),
              HasSubstr("the limit is 2^32"));
}

TEST(Train, MockDataNeedsNoPaths) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(train(folder.path(), {"train_iters=1", "mock_data=true", "data_path=/nowhere/x"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("ignores the data paths"));
}

// Mock data needs no tokenizer if the preset names a vocabulary size.
TEST(Train, MockDataNeedsNoTokenizerIfTheVocabularyIsGiven) {
  const TemporaryFolder folder;
  const std::vector<std::string> words = {"train",
                                          "pretrain",
                                          "--config",
                                          PRIMUS_SOURCE_DIR
                                          "/examples/native/configs/any/llama3.1_8B-BF16-pretrain.yaml",
                                          "workspace=" + folder.path().string(),
                                          "work_group=w",
                                          "user_name=u",
                                          "exp_name=run",
                                          "num_layers=1",
                                          "hidden_size=32",
                                          "ffn_hidden_size=64",
                                          "num_attention_heads=2",
                                          "num_query_groups=1",
                                          "kv_channels=16",
                                          "micro_batch_size=1",
                                          "global_batch_size=1",
                                          "seq_length=32",
                                          "train_iters=1",
                                          "lr_warmup_iters=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run_program(more);
  };
  const ProgramResult forecast = with({"--dry-run"});
  EXPECT_EQ(forecast.exit_code, 0) << forecast.err;
  EXPECT_EQ(forecast.err.find("tokenizer_model"), std::string::npos) << forecast.err;
  const ProgramResult result = with({});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("'meta-llama/Llama-3.1-8B' does not exist: mock data is drawn from"));
  EXPECT_EQ(test::losses(test::run_folder(folder.path())).size(), 1U);
  // A tokenizer that the user names has to exist.
  EXPECT_THAT(with({"tokenizer_model=not/there", "exp_name=named"}).err,
              HasSubstr("'not/there' does not exist"));
  // A run needs a tokenizer to read text, or to derive a missing vocab_size. An existing tokenizer is always
  // read.
  const ProgramResult text = with({"mock_data=false", "data_path=/nowhere/data", "exp_name=text"});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.err, HasSubstr("'meta-llama/Llama-3.1-8B' does not exist"));
  const ProgramResult unknown = with({"vocab_size=null", "exp_name=unknown"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("'meta-llama/Llama-3.1-8B' does not exist"));
  const ProgramResult broken = with({"tokenizer_model=" + test::run_folder(folder.path()).string()});
  EXPECT_EQ(broken.exit_code, 2) << broken.err;
  EXPECT_THAT(broken.err, HasSubstr("holds neither a model (config.json) nor a complete checkpoint"));
}

// The tokens of NullTokenizer are numbers, so NullTokenizer needs no file. The run records the vocabulary
// size.
TEST(Train, ARunWithANullTokenizerIsUsedByItsFolder) {
  const TemporaryFolder folder;
  write_file(folder.path() / "text.txt", "1 2 3 4 5 6 7 8 9");
  for (const std::string type : {"NullTokenizer", "null"}) {
    const ProgramResult trained = run_program(
        train(folder.path(), {"train_iters=1", "mock_data=true", "vocab_size=100", "exp_name=of_" + type,
                              "tokenizer_type=" + type, "tokenizer_model=null"}));
    ASSERT_EQ(trained.exit_code, 0) << trained.err;
    const std::string run = test::run_folder(folder.path(), "of_" + type).string();
    const ProgramResult text = run_program({"generate", run, "-p", "1 2 3", "-n", "2", "-t", "0"});
    EXPECT_EQ(text.exit_code, 0) << text.err;
    EXPECT_THAT(text.out, ::testing::MatchesRegex("1 2 3 [0-9]+ [0-9]+\n"));
    const ProgramResult loss =
        run_program({"eval", "loss", run, "-d", (folder.path() / "text.txt").string(), "--seq-length", "12"});
    EXPECT_EQ(loss.exit_code, 0) << loss.err;
    EXPECT_THAT(loss.out, HasSubstr("\ncontext        12 tokens\n"));
  }
}

TEST(Train, TheVocabularyMustHoldTheTokenizer) {
  const TemporaryFolder folder;
  // vocab_size must be at least the number of tokens, here 257. Padding 200 to 256 rows does not help.
  const ProgramResult result = run_program(train(folder.path(), {"train_iters=1", "vocab_size=200"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("vocab_size is 200, but the tokenizer has 257 tokens"));
  EXPECT_THAT(result.err, HasSubstr("vocab_size=200\n"));
  EXPECT_TRUE(test::losses(test::run_folder(folder.path())).empty());
}

TEST(Train, AModelOfAnotherShapeThanTheLoadedOneIsReported) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(train(
      folder.path(), {"load=" PRIMUS_SOURCE_DIR "/tests/golden/models/llama", "num_attention_heads=3"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("the experiment's model has another shape than"),
                    HasSubstr("hint: the architecture comes from the weights: remove the model")));
}

// Trains from the golden model's weights. The settings match the shapes of these weights.
std::vector<std::string> with_loaded(const Path& workspace, const std::vector<std::string>& more) {
  auto words = train(
      workspace, {"load=" PRIMUS_SOURCE_DIR "/tests/golden/models/llama", "num_layers=2", "hidden_size=48",
                  "ffn_hidden_size=112", "num_attention_heads=4", "num_query_groups=2", "kv_channels=12",
                  "train_iters=1", "untie_embeddings_and_output_weights=true"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Train, SettingsThatContradictLoadAreRefused) {
  const TemporaryFolder folder;
  const std::pair<const char*, const char*> contradictions[] = {
      {"norm_epsilon=0.5", "norm_epsilon is 0.5, but"},
      {"untie_embeddings_and_output_weights=false", "untie_embeddings_and_output_weights is false, but"},
      {"vocab_size=1000", "vocab_size is 1000, but"},
      {"num_layers=3", "num_layers is 3, but"}};
  for (const auto& [setting, said] : contradictions) {
    const ProgramResult result = run_program(with_loaded(folder.path(), {setting}));
    EXPECT_EQ(result.exit_code, 2) << setting << result.err;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_THAT(result.err, HasSubstr("config.json has"));
    EXPECT_THAT(result.err, HasSubstr("\n  | " + std::string(setting) + "\n"));
  }
}

TEST(Train, TheContextOfALoadedModelMayBeStretched) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(
      with_loaded(folder.path(), {"rotary_base=50000", "rope_scaling_type=yarn", "rope_scaling_factor=4",
                                  "max_position_embeddings=512", "save_interval=1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rotary_base is 50000, but"));
  EXPECT_THAT(result.err, HasSubstr("the experiment's value is used"));
  const Path saved = test::run_folder(folder.path()) / "checkpoints" / "iter_0000001";
  const json config = json::parse(read_file(saved / "config.json"));
  EXPECT_EQ(config.at("rope_theta"), 50000.0);
  EXPECT_EQ(config.at("max_position_embeddings"), 512);
  EXPECT_EQ(config.at("rope_scaling").at("original_max_position_embeddings"), 128);
  // The loaded model's generation_config.json is saved, too.
  EXPECT_TRUE(Env::posix().status(saved / "generation_config.json"));
  // Without overrides, rotary_base and context length come from the weights, not from the preset. A note says
  // so.
  const ProgramResult plain = run_program(with_loaded(folder.path(), {"exp_name=plain"}));
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.err,
              ::testing::ContainsRegex("max_position_embeddings is 512, but .*config.json has 128, "
                                       "which is used .*llama_tiny.yaml"));
}

// Generation and packed sequences are not implemented for DeepSeek-V4. Only runs that use them are refused.
TEST(Train, UnsupportedFeaturesAreRefusedOnlyOnRequest) {
  const std::string load = "load=" PRIMUS_SOURCE_DIR "/tests/golden/models/deepseek_v4";
  const auto run = [&](const char* command, std::vector<std::string> more) {
    more.insert(more.begin(), {"train", command, "--dry-run", load, "train_iters=1"});
    return run_program(more);
  };
  const std::vector<std::string> text = {"mock_data=true", "tokenizer_type=NullTokenizer", "vocab_size=319",
                                         "seq_length=32"};
  EXPECT_EQ(run("pretrain", text).exit_code, 0) << run("pretrain", text).err;
  auto words = text;
  words.emplace_back("sample_interval=10");
  const ProgramResult samples = run("pretrain", words);
  EXPECT_EQ(samples.exit_code, 2);
  EXPECT_THAT(samples.err,
              AllOf(HasSubstr("command line: error: models of type deepseek_v4 cannot generate text"),
                    HasSubstr("set sample_interval to null")));

  words = {"sft_dataset_name=" PRIMUS_SOURCE_DIR "/examples/native/data/answers.jsonl",
           "tokenizer_type=ByteTokenizer", "seq_length=256"};
  EXPECT_EQ(run("posttrain", words).exit_code, 0) << run("posttrain", words).err;
  words.emplace_back("enable_packed_sequences=true");
  const ProgramResult packed = run("posttrain", words);
  EXPECT_EQ(packed.exit_code, 2);
  EXPECT_THAT(packed.err, AllOf(HasSubstr("command line: error: blocks of pooled tokens"),
                                HasSubstr("set enable_packed_sequences to false")));
}

TEST(Train, ADryRunNeedsNoFilesButNamesThem) {
  const TemporaryFolder folder;
  const ProgramResult big =
      run_program({"train", "pretrain", "--config",
                   PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
                   "workspace=" + folder.path().string(), "model=llama3.2_1B.yaml", "seq_length=64",
                   "micro_batch_size=1", "global_batch_size=1", "mock_data=false", "data_path=/nowhere/data",
                   "load=/nowhere/model", "--dry-run", "--json"});
  const json forecast = json::parse(big.out);
  EXPECT_EQ(big.exit_code, forecast.at("memory_bytes").at("fits").get<bool>() ? 0 : 1) << big.err;
  EXPECT_GT(forecast.at("parameters").get<double>(), 1.2e9);
  EXPECT_EQ(forecast.at("experiment").at("trainer").at("num_layers"), 16);
  std::vector<std::string> missing;
  for (const json& input : forecast.at("missing")) missing.push_back(input.at("key"));
  EXPECT_THAT(missing, ::testing::ElementsAre("load", "tokenizer_model", "data_path"));
  EXPECT_THAT(big.err, HasSubstr("load is '/nowhere/model' (command line), which does not exist"));
}

// On one machine, a dry run plans a job of many ranks: the memory and the communication per rank.
TEST(Train, ADryRunPlansManyRanks) {
  const TemporaryFolder folder;
  const auto forecast = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command{"train",
                                     "pretrain",
                                     "--config",
                                     PRIMUS_SOURCE_DIR
                                     "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
                                     "workspace=" + folder.path().string(),
                                     "mock_data=true",
                                     "micro_batch_size=1",
                                     "global_batch_size=1024",
                                     "--dry-run",
                                     "--json"};
    command.insert(command.end(), more.begin(), more.end());
    const ProgramResult result = run_program(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  };
  const json one = forecast({});
  EXPECT_FALSE(one.contains("mesh"));
  const json many =
      forecast({"--world", "1024", "tensor_model_parallel_size=2", "use_distributed_optimizer=true"});
  const json& mesh = many.at("mesh");
  EXPECT_EQ(mesh.at("ranks"), 1024);
  EXPECT_EQ(mesh.at("tensor"), 2);
  EXPECT_EQ(mesh.at("data"), 512);
  const auto persistent = [](const json& f) { return f.at("memory_bytes").at("persistent").get<double>(); };
  EXPECT_LT(persistent(many), 0.5 * persistent(one));
  std::vector<std::string> groups;
  for (const json& line : mesh.at("stages").at(0).at("communication")) groups.push_back(line.at("group"));
  EXPECT_THAT(groups, ::testing::IsSupersetOf({"world", "tensor", "data", "tokens"}));
  EXPECT_EQ(forecast({"--nproc", "2", "tensor_model_parallel_size=2"}).at("mesh").at("ranks"), 2);
  // All data-parallel ranks together do the work that one rank would do. Pipeline stages divide this work.
  const auto executed = [](const json& f) { return f.at("kernel_flops_per_step").get<double>(); };
  const json two = forecast({"--world", "2"});
  EXPECT_DOUBLE_EQ(executed(two), executed(one));
  EXPECT_EQ(two.at("model_flops_per_step"), one.at("model_flops_per_step"));
  const json staged = forecast({"--world", "4", "pipeline_model_parallel_size=2", "global_batch_size=8"});
  double of_stages = 0;
  for (const json& stage : staged.at("mesh").at("stages"))
    of_stages += 2 * stage.at("kernel_flops_per_step").get<double>();
  EXPECT_DOUBLE_EQ(executed(staged), of_stages);
  EXPECT_DOUBLE_EQ(executed(staged), executed(forecast({"global_batch_size=8"})));
  // The estimated time is positive and covers only computation.
  EXPECT_GT(two.at("seconds_per_step").get<double>(), 0);
  EXPECT_FALSE(two.at("timed").get<bool>());
  EXPECT_FALSE(two.at("with_communication").get<bool>());
  EXPECT_TRUE(one.at("with_communication").get<bool>());
  EXPECT_THAT(run_program(train(folder.path(), {"--world", "2", "--dry-run"})).out,
              AllOf(HasSubstr("by the kernels of all ranks"), HasSubstr("computation only")));
  const ProgramResult wrong = run_program(train(folder.path(), {"--world", "2"}));
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--world needs --dry-run"));
  // A dry run also checks the transport.
  const auto by = [&](const std::string& transport, std::vector<std::string> more) {
    more.emplace_back("--dry-run");
    return run_program(train(folder.path(), std::move(more)),
                       {.environment = {{"PRIMUS_TRANSPORT", transport}}});
  };
  const ProgramResult unknown = by("smoke", {"--world", "2"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("PRIMUS_TRANSPORT 'smoke' is not a known transport"));
  const ProgramResult mpi = by("mpi", {"--nproc", "2", "device=cpu"});
  EXPECT_EQ(mpi.exit_code, 2);
  EXPECT_THAT(mpi.err, HasSubstr("the ranks were not started by an MPI launcher"));
  EXPECT_EQ(by("tcp", {"--nproc", "2"}).exit_code, 0);
}

// The note appears before the first step, and also in a dry run. Recording would start after three steps.
TEST(Train, GraphsThatCannotBeRecordedAreReportedAtOnce) {
  const TemporaryFolder folder;
  const std::string said = "enable_cuda_graph: steps are not recorded: ";
  const ProgramResult run =
      run_program(train(folder.path(), {"train_iters=1", "device=cpu", "enable_cuda_graph=true"}));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::size_t place = run.err.find(said + "cpu does not support recorded graphs");
  EXPECT_LT(place, run.err.find("iteration        1/       1")) << run.err;
  EXPECT_EQ(run.err.find(said, place + 1), std::string::npos) << "the note is repeated: " << run.err;
  const auto planned = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"device=cpu", "--dry-run"});
    return run_program(train(folder.path(), more)).err;
  };
  EXPECT_THAT(planned({"enable_cuda_graph=true"}), HasSubstr(said + "cpu does not support recorded graphs"));
  EXPECT_THAT(planned({"enable_cuda_graph=true", "--world", "2"}),
              HasSubstr(said + "the run has several ranks"));
  EXPECT_THAT(planned({}), Not(HasSubstr(said)));
}

TEST(Train, ThreadsComeFromTheExperimentsEnvironment) {
  const TemporaryFolder folder;
  const ProgramResult result =
      run_program(train(folder.path(), {"train_iters=1", "num_threads=0", "env.OMP_NUM_THREADS=1"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1 thread"));
}

TEST(Train, TheExportFollowsLinksAndWritesToPipes) {
  const TemporaryFolder folder;
  write_file(folder.path() / "real.yaml", "old");
  std::filesystem::create_symlink("real.yaml", folder.path() / "link.yaml");
  auto words = train(folder.path() / "runs", {"--dry-run", "--overwrite", "--export-config"});
  words.push_back((folder.path() / "link.yaml").string());
  ASSERT_EQ(run_program(words).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link.yaml"));
  EXPECT_THAT(read_file(folder.path() / "real.yaml"), HasSubstr("work_group: w"));
  words.back() = "/dev/stdout";
  EXPECT_THAT(run_program(words).out, HasSubstr("work_group: w"));
  words.back() = "/dev/stderr";
  EXPECT_THAT(run_program(words).err, HasSubstr("work_group: w"));
}

}  // namespace
}  // namespace primus
