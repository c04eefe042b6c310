// Tests of the commands on small inputs, from their arguments to their output.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "cli/options/device.h"
#include "cli/program_names.h"
#include "cli/runs.h"

namespace primus {
namespace {

const std::string kGolden = PRIMUS_SOURCE_DIR "/tests/golden/models/";
const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

std::vector<std::string> verify(const std::string& model, const std::string& dtype) {
  const std::string folder = kGolden + model;
  return {"model",
          "verify",
          folder,
          "--inputs",
          folder + "/io.safetensors",
          "--grads",
          folder + "/grads.safetensors",
          "--trajectory",
          folder + "/golden.json",
          "--dtype",
          dtype};
}

TEST(ModelVerify, PassesOnTheGoldens) {
  for (const char* model : {"llama", "llama31_tied"}) {
    for (const char* dtype : {"fp32", "bf16"}) {
      const ProgramResult result = run_program(verify(model, dtype));
      EXPECT_EQ(result.exit_code, 0) << model << " " << dtype << "\n" << result.out << result.err;
      EXPECT_THAT(result.out, HasSubstr("\nverified\n"));
    }
  }
}

TEST(ModelVerify, ReportsAsJson) {
  auto words = verify("llama", "fp32");
  words.emplace_back("--json");
  const ProgramResult result = run_program(words);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  EXPECT_TRUE(report.at("passed").get<bool>());
  EXPECT_LT(report.at("logits").at("normalised_error").get<double>(), 2e-5);
  EXPECT_FALSE(report.at("gradients").empty());
  EXPECT_EQ(report.at("adamw_steps").size(), 10U);
}

TEST(ModelVerify, EndsWithCodeThreeBeyondTheTolerance) {
  auto words = verify("llama", "bf16");
  words.insert(words.end(), {"--tolerance", "1e-6", "--trajectory-tolerance", "1e-6"});
  const ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("FAILED"));
  EXPECT_THAT(result.out, HasSubstr("not verified"));
}

TEST(ModelVerify, RefusesLimitsThatVerifyNothing) {
  for (const char* option : {"--tolerance", "--trajectory-tolerance"}) {
    for (const char* value : {"nan", "-1", "inf", "-inf"}) {
      auto words = verify("llama", "fp32");
      words.insert(words.end(), {std::string(option) + "=" + value});
      const ProgramResult result = run_program(words);
      EXPECT_EQ(result.exit_code, 2) << option << value << result.out;
      EXPECT_THAT(result.err, HasSubstr(std::string(option) + " must be a number from 0 up"));
    }
  }
}

// A run's folder is accepted as a model and as a tokenizer. The learning rate of its only step is too small
// to change a weight, so the model's outputs still equal the reference.
TEST(FolderOfARun, ServesAsModelAndTokenizer) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "And the evening and the morning were the first day.\n";
  write_file(folder.path() / "text.txt", text);
  const std::string place = folder.path().string();
  const ProgramResult trained = run_program(
      {"train", "pretrain", "load=" + kGolden + "llama", "data_path=" + place + "/text.txt",
       "tokenizer_type=ByteTokenizer", "workspace=" + place, "work_group=w", "user_name=u", "exp_name=run",
       "train_iters=1", "lr=1e-12", "min_lr=0", "micro_batch_size=1", "global_batch_size=1", "seq_length=32",
       "bf16=false", "sample_interval=null", "num_threads=1"},
      {.folder = place});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string run = test::run_folder(folder.path()).string();
  const ProgramResult verified =
      run_program({"model", "verify", run, "--inputs", kGolden + "llama/io.safetensors"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("verified"));
  const ProgramResult ids = run_program({"data", "encode", "--tokenizer", run}, {.input = "Hi"});
  EXPECT_EQ(ids.out, "72 105\n") << ids.err;
  EXPECT_EQ(run_program({"data", "decode", "-t", run + "/checkpoints"}, {.input = "72 105"}).out, "Hi\n");
  const ProgramResult tokens =
      run_program({"data", "tokenize", "-i", "text.txt", "-o", "made", "-t", run}, {.folder = place});
  EXPECT_EQ(tokens.exit_code, 0) << tokens.err;
  // The checkpoint's tokenizer.json gives the ids of the byte tokenizer from which it was made.
  const ProgramResult bytes =
      run_program({"data", "tokenize", "-i", "text.txt", "-o", "bytes", "--tokenizer-type", "ByteTokenizer"},
                  {.folder = place});
  EXPECT_EQ(bytes.exit_code, 0) << bytes.err;
  const ProgramResult loss =
      run_program({"eval", "loss", run, "-d", "bytes_text_document"}, {.folder = place});
  EXPECT_EQ(loss.exit_code, 0) << loss.err;
  const ProgramResult neither = run_program({"data", "encode", "--tokenizer", place}, {.input = "Hi"});
  EXPECT_EQ(neither.exit_code, 2);
  EXPECT_THAT(neither.err, HasSubstr("contains no tokenizer.json, no tokenizer.model"));
}

// Checkpoints may be published, so passwords in the experiment's environment are not written into them. The
// run can be used without the password.
TEST(FolderOfARun, HasNoSecretsAndNeedsNone) {
  const TemporaryFolder folder;
  const std::string place = folder.path().string();
  const ProgramResult trained = run_program(
      {"train", "pretrain", "--config", kExperiment, "workspace=" + place, "work_group=w", "user_name=u",
       "exp_name=run", "train_iters=1", "micro_batch_size=1", "global_batch_size=1", "seq_length=32",
       "num_threads=1", "env.DB_URL=http://me:canary@host"},
      {.folder = place});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(read_file(entry.path()).find("canary"), std::string::npos) << entry.path();
  }
  const std::string run = test::run_folder(folder.path()).string();
  const ProgramResult written = run_program({"generate", run, "-p", "1 2", "-n", "2"});
  EXPECT_EQ(written.exit_code, 0) << written.err;
}

TEST(ModelInfo, ReportsAllThatAPresetLacks) {
  const ProgramResult result = run_program({"model", "info", "llama_base"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* key : {"num_layers", "hidden_size", "num_attention_heads"}) {
    EXPECT_THAT(result.err,
                HasSubstr(std::string("with only 'llama_base':6:3: error: ") + key + " is missing"));
  }
  const ProgramResult unknown = run_program({"model", "info", "nothing_like_it"});
  EXPECT_EQ(unknown.exit_code, 2);
  const std::string presets = PRIMUS_SOURCE_DIR "/presets/models";
  int named = 0;
  for (const char* const end : {",", "\n"}) {
    for (auto at = unknown.err.find(presets + end); at != std::string::npos;
         at = unknown.err.find(presets + end, at + 1))
      ++named;
  }
  EXPECT_EQ(named, 1) << unknown.err;  // each searched folder is listed once
}

TEST(ModelInfo, CountsWithAndWithoutMultiTokenPrediction) {
  const ProgramResult text = run_program({"model", "info", "deepseek_v3"});
  EXPECT_THAT(text.out, HasSubstr("parameters       671B (671026419200)"));
  EXPECT_THAT(text.out, HasSubstr("active           37.6B (37552297472)"));
  EXPECT_THAT(
      text.out,
      HasSubstr(
          "(multi-token prediction), with its own parameters: 11.6B (11610068224), active 688M (688100608)"));
  EXPECT_THAT(text.out, HasSubstr("tokens, with multi-token prediction:"));
  const json info = json::parse(run_program({"model", "info", "deepseek_v3", "--json"}).out);
  EXPECT_EQ(info.at("parameters"), 671026419200);
  EXPECT_EQ(info.at("mtp_parameters"), 11610068224);
  EXPECT_EQ(info.at("mtp_is_trained"), true);
}

TEST(ModelInfo, CountsParameters) {
  const ProgramResult text = run_program({"model", "info", kGolden + "llama"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("parameters"));
  const ProgramResult result =
      run_program({"model", "info", kGolden + "llama31_tied", "--json", "--tensors"});
  const json info = json::parse(result.out);
  EXPECT_TRUE(info.at("tied_embeddings").get<bool>());
  EXPECT_EQ(info.at("rope_scaling"), "llama3");
  EXPECT_EQ(info.at("tensor_list").size(), info.at("tensors").get<std::size_t>());
}

// Copies a golden model and applies `changes` to its config.json.
std::string changed_model(const TemporaryFolder& folder, const std::string& name, const json& changes) {
  const std::string model = (folder.path() / name).string();
  std::filesystem::remove_all(model);
  std::filesystem::copy(kGolden + name, model);
  json config = json::parse(read_file(model + "/config.json"));
  config.update(changes);
  write_file_atomic(model + "/config.json", config.dump());
  return model;
}

TEST(ModelInfo, ComparesTheWeightsWithConfigJson) {
  const TemporaryFolder folder;
  const std::tuple<const char*, json, const char*> wrong[] = {
      {"mixtral", {{"num_local_experts", 7}}, "has shape [4, 48], but the model needs [7, 48]"},
      {"llama", {{"hidden_size", 96}}, "'model.embed_tokens.weight' in '"},
      {"llama", {{"num_hidden_layers", 1}}, "is not part of this model"}};
  for (const auto& [name, changes, message] : wrong) {
    const std::string model = changed_model(folder, name, changes);
    const ProgramResult result = run_program({"model", "info", model});
    EXPECT_EQ(result.exit_code, 2) << changes;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr("tensor '"), HasSubstr(message), HasSubstr("config.json")));
    const ProgramResult as_json = run_program({"model", "info", model, "--json"});
    EXPECT_THAT(json::parse(as_json.out).at("error").get<std::string>(), HasSubstr(message));
  }
  for (const auto& golden : std::filesystem::directory_iterator(kGolden)) {
    const ProgramResult result = run_program({"model", "info", golden.path().string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST(ModelInfo, DescribesAFolderWithoutWeightsAndRefusesIncompleteWeights) {
  const TemporaryFolder folder;
  const std::string model = folder.path().string();
  std::filesystem::copy(kGolden + "llama/config.json", model + "/config.json");
  // Other .bin and .safetensors files do not count as weights.
  write_file(model + "/training_args.bin", "x");
  write_file(model + "/io.safetensors", "x");
  const ProgramResult single = run_program({"model", "info", model});
  EXPECT_EQ(single.exit_code, 0) << single.err;
  EXPECT_THAT(single.out, AllOf(HasSubstr("parameters"), HasSubstr("none; the folder has only config.json")));
  EXPECT_EQ(json::parse(run_program({"model", "info", model, "--json"}).out).at("tensors"), 0);
  EXPECT_EQ(run_program({"model", "info", model, "--tensors"}).exit_code, 2);

  write_file_atomic(model + "/model.safetensors.index.json",
                    R"({"weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}})");
  const ProgramResult half = run_program({"model", "info", model});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.err, AllOf(HasSubstr("model-00001-of-00001.safetensors' is missing"), HasSubstr("index")));
}

// A folder's weights for multi-token prediction are counted separately, because the model runs without them.
TEST(ModelInfo, CountsMultiTokenPredictionTensorsOfAFolder) {
  const TemporaryFolder folder;
  const auto info = [&](const std::string& name, const json& changes) {
    const std::string model = (folder.path() / name).string();
    std::filesystem::create_directory(model);
    json config = json::parse(read_file(kGolden + "deepseek_v3/config.json"));
    config.update(changes);
    write_file_atomic(model + "/config.json", config.dump());
    return json::parse(run_program({"model", "info", model, "--json"}).out);
  };
  const json without = info("without", {{"num_nextn_predict_layers", 0}});
  const json with = info("with", {{"num_nextn_predict_layers", 2}});
  EXPECT_FALSE(without.contains("mtp_parameters"));
  EXPECT_EQ(with.at("parameters"), without.at("parameters"));
  EXPECT_EQ(with.at("flops_per_token"), without.at("flops_per_token"));
  EXPECT_GT(with.at("mtp_parameters"), 0);
  EXPECT_EQ(with.at("mtp_is_trained"), false);
  EXPECT_THAT(run_program({"model", "info", (folder.path() / "with").string()}).out,
              HasSubstr("tokens, without multi-token prediction:"));
}

TEST(Models, UnknownKeysAreNoted) {
  const TemporaryFolder folder;
  const std::string model = (folder.path() / "model").string(), golden = kGolden + "llama";
  std::filesystem::copy(golden, model);
  json config = json::parse(read_file(golden + "/config.json"));
  config["logits_scalings"] = 8.0;
  write_file_atomic(model + "/config.json", config.dump());
  write_file(folder.path() / "text.txt", "1 2 3 4 5 6 7 8 9");
  const std::vector<std::string> tokenizer = {"--tokenizer-type", "NullTokenizer", "--tokenizer", "60"};
  std::vector<std::vector<std::string>> commands = {
      {"model", "info", model},
      {"model", "verify", model, "--inputs", golden + "/io.safetensors"},
      {"model", "import", model, (folder.path() / "imported").string()},
      {"generate", model, "-n", "1", "-p", "1"},
      {"chat", model, "-n", "1"},
      {"eval", "loss", model, "-d", (folder.path() / "text.txt").string()},
      {"train", "pretrain", "--dry-run", "--config", kExperiment, "load=" + model, "num_attention_heads=4"}};
  for (std::vector<std::string>& words : commands) {
    const std::string name = words[0];
    if (name == "generate" || name == "chat" || name == "eval")
      words.insert(words.end(), tokenizer.begin(), tokenizer.end());
    if (name == "train") {
      for (const char* setting :
           {"num_layers=2", "hidden_size=48", "ffn_hidden_size=112", "num_query_groups=2", "kv_channels=12",
            "tokenizer_type=NullTokenizer", "tokenizer_model=60", "mock_data=true", "seq_length=16",
            "untie_embeddings_and_output_weights=true"})
        words.emplace_back(setting);
    }
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 0) << name << result.err;
    EXPECT_THAT(result.err,
                HasSubstr("/config.json: key logits_scalings is unknown to Primus and was ignored\n"))
        << name;
    EXPECT_THAT(result.out, Not(HasSubstr("logits_scalings"))) << name;
  }
}

// `config show --yaml` and `--export-config` write files that are accepted again, without the presets.
TEST(Config, WritesFilesThatItAccepts) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "written.yaml").string();
  const std::string model = kGolden + "qwen3";
  const std::vector<std::vector<std::string>> experiments = {
      {"--config", kExperiment, "train_iters=null", "train_epochs=2", "mock_data=false", "data_path=a.txt"},
      {"--config", kExperiment, "train_iters=null", "train_minutes=2"},
      {"--config", kExperiment, "model=mixtral_8x7B.yaml", "tokenizer_type=ByteTokenizer"},
      {"load=" + model, "data_path=a.txt"},
      {"load=" + kGolden + "llama", "data_path=a.txt", "tokenizer_type=ByteTokenizer"},
      {"--config", PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-sft.yaml", "load=" + model}};
  for (const std::vector<std::string>& experiment : experiments) {
    SCOPED_TRACE(experiment[1]);
    std::vector<std::string> words{"config", "show", "--yaml"};
    words.insert(words.end(), experiment.begin(), experiment.end());
    const ProgramResult shown = run_program(words);
    ASSERT_EQ(shown.exit_code, 0) << shown.err;
    write_file(file, shown.out);
    const ProgramResult valid = run_program({"config", "validate", "--config", file});
    EXPECT_EQ(valid.exit_code, 0) << valid.err;
    EXPECT_THAT(valid.err, Not(HasSubstr("warning")));
    EXPECT_EQ(run_program({"config", "show", "--yaml", "--config", file}).out, shown.out);
  }
}

// A single trainer runs under any name, but a name like "pretrainer" is probably a mistake.
TEST(Config, AnUnusualNameOfTheModuleIsNoted) {
  const test::TemporaryFolder folder;
  const std::string file = (folder.path() / "exp.yaml").string();
  std::string text = read_file(kExperiment);
  text.replace(text.find("pre_trainer:"), std::string("pre_trainer:").size(), "pretrainer:");
  write_file(file, text);
  const ProgramResult valid = run_program({"config", "validate", "--config", file});
  EXPECT_EQ(valid.exit_code, 0) << valid.err;
  EXPECT_THAT(valid.err, HasSubstr("note: the experiment's only trainer is the module 'pretrainer'"));
  EXPECT_THAT(run_program({"config", "validate", "--config", kExperiment}).err,
              Not(HasSubstr("only trainer")));
}

TEST(Config, ShowsValidatesAndDescribes) {
  const ProgramResult show = run_program({"config", "show", "--config", kExperiment, "--origin", "lr=2e-3"});
  EXPECT_EQ(show.exit_code, 0) << show.err;
  EXPECT_THAT(show.out, HasSubstr("command line"));
  const ProgramResult valid = run_program({"config", "validate", "--exp", kExperiment, "--json"});
  EXPECT_TRUE(json::parse(valid.out).at("valid").get<bool>());
  EXPECT_TRUE(json::parse(run_program({"config", "schema"}).out).is_object());
  EXPECT_THAT(run_program({"config", "validate", "--config", kExperiment, "wandb_project=p"}).err,
              HasSubstr("nothing is sent to Weights & Biases (wandb_project)"));
  EXPECT_THAT(run_program({"config", "validate", "--config", kExperiment, "disable_wandb=false"}).err,
              HasSubstr("Weights & Biases (disable_wandb): scripts/wandb_offline.py"));
  EXPECT_THAT(run_program({"config", "validate", "--config", kExperiment, "disable_mlflow=false"}).err,
              HasSubstr("nothing is sent to MLflow (disable_mlflow): 'primus report RUN --mlflow mlruns'"));
  EXPECT_THAT(run_program({"config", "validate", "--config", kExperiment, "disable_mlflow=true"}).err,
              Not(HasSubstr("nothing is sent")));
  EXPECT_THAT(run_program({"config", "reference"}).out, HasSubstr("micro_batch_size"));
}

TEST(Config, ValidateRefusesNamesOfDataThatTrainingRefuses) {
  const auto refusal = [](const std::vector<std::string>& settings) {
    std::vector<std::string> words{"config", "validate", "--config", kExperiment};
    words.insert(words.end(), settings.begin(), settings.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << settings.front();
    return result.err;
  };
  EXPECT_THAT(refusal({"data_path=[0.5,a,0.5]", "mock_data=false"}),
              HasSubstr("the path after the weight 0.5 is missing"));
  EXPECT_THAT(refusal({"train_epochs=2"}), HasSubstr("mock data never ends, so it has no epochs"));
}

TEST(EvalLoss, AFileWithoutItsOptionGetsAHint) {
  EXPECT_THAT(run_program({"eval", "loss", "run", kExperiment}).err,
              HasSubstr(std::string("did you mean '--data ") + kExperiment));
}

TEST(Report, WritesFilesOfMlflow) {
  const test::TemporaryFolder folder;
  const std::string run = (folder.path() / "run").string(), store = (folder.path() / "mlruns").string();
  make_folders(run);
  write_file(folder.path() / "run" / "metrics.jsonl", "{\"iteration\":1,\"lm_loss\":2.5}\n");
  const ProgramResult written = run_program({"report", run, "--mlflow", store});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("experiment 'primus_primus', run 'run', 1 step\n"));
  EXPECT_EQ(Env::posix().list(store).size(), 1U);
  EXPECT_EQ(run_program({"report", run, "--mlflow", store, "--json"}).exit_code, 2);
  EXPECT_EQ(run_program({"report", run, "--mlflow", ""}).exit_code, 2);
  EXPECT_EQ(run_program({"report", run, "--mlflow", store, "-o", "page.html"}).exit_code, 2);
}

TEST(Report, ExportsToMlflowPastRunsWithoutAStep) {
  const TemporaryFolder folder;
  const std::string store = (folder.path() / "mlruns").string(), runs = (folder.path() / "runs").string();
  for (const char* name : {"a", "b", "c"}) make_folders(Path(runs) / name);
  const auto experiment = [&](const char* name) {
    write_file(Path(runs) / name / "experiment.yaml", "work_group: w\nuser_name: u\nexp_name: b\n");
  };
  experiment("b");
  const ProgramResult none = run_program({"report", runs, "--mlflow", store});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("none of these runs has a step"));
  EXPECT_FALSE(Env::posix().status(store));
  for (const char* name : {"a", "c"})
    write_file(Path(runs) / name / "metrics.jsonl", "{\"iteration\":1,\"lm_loss\":2.5}\n");
  const ProgramResult written = run_program({"report", runs, "--mlflow", store});
  EXPECT_EQ(written.exit_code, 0) << written.err;
  EXPECT_THAT(written.out, AllOf(HasSubstr("run 'a', 1 step\n"), HasSubstr("run 'c', 1 step\n")));
  EXPECT_EQ(written.err,
            "note: '" + runs + "/b' is left out, because it has no step yet (no metrics.jsonl)\n");
}

TEST(Config, ReferenceSearchesForAWord) {
  EXPECT_THAT(run_program({"config", "reference", "learning_rate"}).out, HasSubstr("lr\n  meaning"));
  const ProgramResult as_json = run_program({"config", "reference", "lr", "--json"});
  EXPECT_EQ(json::parse(as_json.out).at(0).at("name"), "lr");
  EXPECT_GT(json::parse(run_program({"config", "reference", "--json"}).out).size(), 500u);
  const ProgramResult unknown = run_program({"config", "reference", "xyzzy"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no setting matches 'xyzzy'"));
}

// AMD Primus's presets set hundreds of keys that have no effect here. The note names only the user's own
// keys, and counts the keys of presets.
TEST(Config, OnlyTheUsersIgnoredKeysAreNamed) {
  const TemporaryFolder folder;
  const std::string presets = (folder.path() / "presets").string();
  make_folders(presets + "/models");
  write_file(presets + "/models/own.yaml",
             "num_layers: 1\nhidden_size: 16\nnum_attention_heads: 2\nvocab_size: 32\nlog_progress: false\n"
             "use_flash_attn: true\n");
  const std::string file = (folder.path() / "e.yaml").string();
  write_file(file,
             "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n"
             "    framework: native\n    model: own.yaml\n    overrides: {mock_data: true, seq_length: 8, "
             "log_throughput: true}\n");
  const test::ProgramOptions with_presets{.environment = {{"PRIMUS_PRESETS", presets}}};
  const std::vector<std::string> words = {"config", "validate", "--config", file};
  EXPECT_THAT(run_program(words, with_presets).err,
              HasSubstr("memory: log_throughput, and 2 keys of presets ('primus config show' lists them)\n"));
  write_file(presets + "/models/own.yaml",
             "num_layers: 1\nhidden_size: 16\nnum_attention_heads: 2\nvocab_size: 32\nlog_progress: false\n");
  EXPECT_THAT(run_program(words, with_presets).err, HasSubstr("log_throughput, and a key of presets"));
}

// A file may have modules for several commands: the module of the command runs, and a note names the other.
TEST(Config, RunsTheModuleOfTheCommandAndNotesTheOther) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "two.yaml").string();
  write_file(file,
             read_file(kExperiment) + "\n  post_trainer: {framework: megatron, config: sft_trainer.yaml}\n");
  const ProgramResult result = run_program({"config", "validate", "--config", file});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Primus runs pre_trainer, and not post_trainer"));
  const ProgramResult post = run_program({"train", "posttrain", "--config", file});
  EXPECT_EQ(post.exit_code, 2);
  EXPECT_THAT(post.err, HasSubstr("Primus runs post_trainer, and not pre_trainer"));
}

TEST(Config, ReportsTheLocationOfAMistake) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "bad.yaml").string();
  std::string text = read_file(kExperiment);
  text.replace(text.find("train_iters"), 11, "trian_iters");
  write_file(file, text);
  const ProgramResult result = run_program({"config", "validate", "--config", file});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("bad.yaml:[0-9]+:[0-9]+: error"));
  EXPECT_THAT(result.err, HasSubstr("^"));
  EXPECT_THAT(result.err, HasSubstr("did you mean 'train_iters'?"));
  const ProgramResult as_json = run_program({"config", "validate", "--config", file, "--json"});
  EXPECT_EQ(as_json.exit_code, 2);
  EXPECT_FALSE(json::parse(as_json.out).at("valid").get<bool>());
}

TEST(Data, TrainsATokenizerAndTokenizes) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "And the evening and the morning were the first day. ";
  write_file(folder.path() / "text.txt", text);
  const ProgramResult learnt =
      run_program({"data", "train-tokenizer", "-i", "text.txt", "-o", "tok", "--vocab-size", "300"},
                  {.folder = folder.path().string()});
  ASSERT_EQ(learnt.exit_code, 0) << learnt.err;
  const ProgramResult few =
      run_program({"data", "train-tokenizer", "-i", "text.txt", "-o", "few", "--vocab-size", "100000"},
                  {.folder = folder.path().string()});
  EXPECT_EQ(few.exit_code, 0);
  EXPECT_THAT(few.err, ::testing::ContainsRegex(
                           "note: 100000 tokens were requested, but this text gives only [0-9]+:"));
  const ProgramResult done =
      run_program({"data", "tokenize", "-i", "text.txt", "-o", "out", "-t", "tok", "--append-eod", "--json"},
                  {.folder = folder.path().string()});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  const json report = json::parse(done.out);
  EXPECT_EQ(report.at("documents"), 1);
  EXPECT_LT(report.at("tokens").get<std::size_t>(), text.size() / 2);  // the tokenizer merged bytes
  EXPECT_TRUE(Env::posix().status(folder.path() / "out_text_document.bin"));
  EXPECT_EQ(
      run_program({"data", "tokenize", "-i", "text.txt", "-o", "out"}, {.folder = folder.path().string()})
          .exit_code,
      2);
}

// Runs `generate` with ids as the prompt, and checks that it succeeds.
ProgramResult generate_ids(const std::string& model, const std::vector<std::string>& more) {
  std::vector<std::string> words{"generate",
                                 model,
                                 "--tokenizer-type",
                                 "NullTokenizer",
                                 "--tokenizer",
                                 "60",
                                 "--prompt",
                                 "1 2 3",
                                 "-n",
                                 "8",
                                 "--json"};
  words.insert(words.end(), more.begin(), more.end());
  ProgramResult result = run_program(words);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result;
}

TEST(Generate, TheSeedDeterminesTheDraws) {
  const auto write = [](std::vector<std::string> more, const char* temperature = "1") {
    more.insert(more.begin(), {"-t", temperature});
    return json::parse(generate_ids(kGolden + "llama", more).out).at("ids").get<std::vector<int>>();
  };
  EXPECT_EQ(write({"--seed", "1"}), write({"--seed", "1"}));
  EXPECT_NE(write({"--seed", "1"}), write({"--seed", "2"}));
  EXPECT_EQ(write({}, "0"), write({"--seed", "2", "--threads", "1"}, "0"));
}

TEST(Generate, UsesTheModelsSamplingDefaultsUnlessAnOptionIsGiven) {
  const TemporaryFolder folder;
  const Path model = folder.path() / "model";
  std::filesystem::copy(kGolden + "llama", model);
  const auto write = [&](const std::vector<std::string>& more) {
    const ProgramResult result = generate_ids(model.string(), more);
    return std::pair(json::parse(result.out).at("ids"), result.err);
  };
  const auto greedy = write({"-t", "0"}).first, usual = write({}).first;
  EXPECT_EQ(write({"-t", "0.8"}).first, usual);
  write_file(model / "generation_config.json", R"({"do_sample": false, "repetition_penalty": 1.1})");
  const auto said = write({});
  EXPECT_EQ(said.first, greedy);
  EXPECT_THAT(said.second, HasSubstr("sampling follows generation_config.json: temperature 0\n"));
  EXPECT_THAT(said.second, HasSubstr("settings that have no effect here: repetition_penalty 1.1"));
  EXPECT_THAT(write({"--seed", "3", "--top-k", "5"}).second,
              HasSubstr("--top-k, --seed have no effect with temperature 0"));
  EXPECT_THAT(said.second, Not(HasSubstr("--seed")));
  const auto chosen = write({"-t", "0.8"});
  EXPECT_EQ(chosen.first, usual);
  EXPECT_THAT(chosen.second, Not(HasSubstr("sampling follows")));
  write_file(model / "generation_config.json", R"({"temperature": 1.5, "top_k": 5, "top_p": 0.5})");
  EXPECT_EQ(write({}).first, write({"-t", "1.5", "--top-k", "5", "--top-p", "0.5"}).first);
  EXPECT_THAT(write({"--top-k", "0"}).second,
              HasSubstr("generation_config.json: temperature 1.5, top_p 0.5\n"));
}

TEST(Generate, ReadsAPromptFromAPipeOrAFile) {
  const TemporaryFolder folder;
  write_file(folder.path() / "prompt", "1 2 3");
  const auto written = [](const std::vector<std::string>& more, const test::ProgramOptions& options) {
    std::vector<std::string> words{
        "generate", kGolden + "llama", "--tokenizer-type", "ByteTokenizer", "-n", "4", "--seed",
        "1",        "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = run_program(words, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(json::parse(result.out), result.err);
  };
  const auto ids = [](const auto& result) { return result.first.at("ids"); };
  const auto named = written({"--prompt", "1 2 3"}, {.input = "4"});
  EXPECT_EQ(named.first.at("prompt"), "1 2 3");
  const auto piped = written({}, {.input = "1 2 3"});
  EXPECT_EQ(piped.first.at("prompt"), "1 2 3");
  EXPECT_EQ(ids(piped), ids(named));
  EXPECT_EQ(piped.second, "");
  const auto from_file = written({}, {.input_file = (folder.path() / "prompt").string()});
  EXPECT_EQ(from_file.first.at("prompt"), "1 2 3");
  const auto nothing = written({}, {.input_file = "/dev/null"});
  EXPECT_EQ(nothing.first.at("prompt"), "");
  EXPECT_EQ(ids(nothing), ids(written({"--prompt", ""}, {.input = "1 2 3"})));
}

TEST(Generate, ManyPromptsGiveTheirSeparateTextsInOrder) {
  const TemporaryFolder folder;
  const std::vector<std::string> base{"generate",      kGolden + "llama", "--tokenizer-type",
                                      "NullTokenizer", "--tokenizer",     "60"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return run_program(more, {.folder = folder.path().string()});
  };
  write_file(
      folder.path() / "prompts.jsonl",
      "\"1 2 3\"\n\n{\"prompt\": \"4\", \"id\": [\"a\", 1], \"seed\": 77, \"max_tokens\": 2}\n\"5 6 7 8 9\"\n"
      "{\"prompt\": \"10 11\"}");
  for (const char* batch : {"1", "2", "16"}) {
    const ProgramResult result =
        run({"--prompts", "prompts.jsonl", "--batch", batch, "-n", "9", "--seed", "5"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::vector<json> lines;
    std::istringstream text(result.out);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    ASSERT_EQ(lines.size(), 4U);
    EXPECT_EQ(lines[1].at("id"), json::parse("[\"a\", 1]"));
    EXPECT_FALSE(lines[0].contains("id"));
    const std::uint64_t seeds[] = {5, 77, 7, 8};
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i].at("index"), i);
      EXPECT_EQ(lines[i].at("seed"), seeds[i]);
      const ProgramResult single = run({"--prompt", lines[i].at("prompt"), "--seed", std::to_string(seeds[i]),
                                        "--json", "-n", i == 1 ? "2" : "9"});
      const json expected = json::parse(single.out);
      for (const char* key : {"text", "ids", "prompt_tokens", "stop_reason"})
        EXPECT_EQ(lines[i].at(key), expected.at(key)) << key;
    }
  }
  const std::pair<const char*, const char*> wrong[] = {
      {"\"1\"\n{\"prompt\": 7}\n", "prompts.jsonl:2:"},
      {"{\"prompt\": \"1\", \"prompt\": \"2\"}", "twice"},
      {"{\"seed\": 1}", "the record has no prompt"},
      {"{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": "
       "\"1\"}]}",
       "--template auto"},
      {"\"1\" x", "prompts.jsonl:1:"},
      {"\n\n", "no prompt"},
      {"{\"prompt\": \"1\", \"max_tokens\": 3000000000}", "max_tokens is above"}};
  for (const auto& [text, message] : wrong) {
    write_file(folder.path() / "prompts.jsonl", text);
    const ProgramResult result = run({"--prompts", "prompts.jsonl"});
    EXPECT_EQ(result.exit_code, 2) << text;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(message));
  }
  EXPECT_EQ(run({"--prompts", "prompts.jsonl", "--prompt", "1"}).exit_code, 2);
  EXPECT_EQ(run({"--prompt", "1", "--batch", "2"}).exit_code, 2);
  EXPECT_EQ(run({"--prompts", "prompts.jsonl", "--batch", "0"}).exit_code, 2);
}

TEST(Generate, AMisspeltKeyOfAPromptIsRefused) {
  const TemporaryFolder folder;
  const auto error_of = [&](const std::string& key) {
    write_file(folder.path() / "prompts.jsonl",
               "{\"prompt\": \"1\"}\n{\"prompt\": \"1\", \"" + key + "\": 3}\n");
    const ProgramResult result =
        run_program({"generate", kGolden + "llama", "--tokenizer-type", "NullTokenizer", "--tokenizer", "60",
                     "--prompts", "prompts.jsonl", "-n", "3"},
                    {.folder = folder.path().string()});
    EXPECT_EQ(result.exit_code, key == "need" ? 0 : 2) << key << ": " << result.err;
    return result.err;
  };
  EXPECT_THAT(error_of("max_tokns"),
              AllOf(HasSubstr("prompts.jsonl:2:"), HasSubstr("unknown key 'max_tokns'"),
                    HasSubstr("'max_tokns' may mean 'max_tokens'")));
  EXPECT_THAT(error_of("max_new_tokens"), HasSubstr("may mean 'max_tokens'"));
  EXPECT_THAT(error_of("adaptor"), HasSubstr("may mean 'adapter'"));
  EXPECT_THAT(error_of("need"), HasSubstr("the results repeat the columns need"));
}

// The prompts of training are prompts of generate, and reward functions score the results.
TEST(Generate, RecordsOfTrainingKeepTheirColumnsForRewardFunctions) {
  const TemporaryFolder folder;
  write_file(
      folder.path() / "prompts.jsonl",
      "{\"prompt\": \"1 2\", \"answer\": \"7\"}\n{\"question\": \"3\", \"answer\": \"8\", \"text\": \"t\"}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"4\"}], \"answer\": \"9\"}\n");
  const ProgramResult result =
      run_program({"generate", kGolden + "llama", "--tokenizer-type", "NullTokenizer", "--tokenizer", "60",
                   "--prompts", "prompts.jsonl", "-n", "3"},
                  {.folder = folder.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("the results repeat the columns answer, messages, question"),
                                HasSubstr("lack the prompts' columns text")));
  const json second = json::parse(
      result.out.substr(result.out.find('\n') + 1, result.out.rfind("\n{") - result.out.find('\n')));
  EXPECT_EQ(second.at("question"), "3");
  EXPECT_EQ(second.at("answer"), "8");
  EXPECT_NE(second.at("text"), "t");
  write_file(folder.path() / "answers.jsonl", result.out);
  const ProgramResult scored = run_program({"data", "score", (folder.path() / "answers.jsonl").string(),
                                            "--reward", "number:answer", "exact:answer"});
  EXPECT_EQ(scored.exit_code, 0) << scored.err;
  EXPECT_THAT(scored.out, AllOf(HasSubstr("number: mean"), HasSubstr("3 answers")));
}

TEST(Threads, ComeFromOpenMpsVariable) {
  const auto threads = [](const char* variable) {
    setenv("OMP_NUM_THREADS", variable, 1);
    const std::string description = cli::DeviceOptions().make(cli::Console())->description();
    unsetenv("OMP_NUM_THREADS");
    return description;
  };
  EXPECT_THAT(threads("1"), AllOf(HasSubstr("cpu: 1 thread"), Not(HasSubstr("threads"))));
  EXPECT_THAT(threads("3,2"), HasSubstr("cpu: 3 threads"));
  EXPECT_THAT(threads(""), HasSubstr("thread"));
  const std::vector<std::string> words = {"generate",
                                          kGolden + "llama",
                                          "--tokenizer-type",
                                          "NullTokenizer",
                                          "--tokenizer",
                                          "60",
                                          "-p",
                                          "1",
                                          "-n",
                                          "1"};
  const test::ProgramOptions many{.environment = {{"OMP_NUM_THREADS", "many"}}};
  EXPECT_THAT(
      run_program(words, many).err,
      HasSubstr(
          "warning: environment: OMP_NUM_THREADS is ignored, because 'many' is not a number of threads"));
  std::vector<std::string> chosen = words;
  chosen.insert(chosen.end(), {"--threads", "1"});
  EXPECT_EQ(run_program(chosen, many).err, "");
}

TEST(EvalLoss, EvaluatesATextFile) {
  const TemporaryFolder folder;
  write_file(folder.path() / "text.txt", "1 2 3 4 5 6 7 8 9");
  const ProgramResult result =
      run_program({"eval", "loss", kGolden + "llama", "--tokenizer-type", "NullTokenizer", "--tokenizer",
                   "60", "-d", (folder.path() / "text.txt").string(), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(json::parse(result.out).at("loss").get<double>(), 1.0);
  const ProgramResult empty = run_program(
      {"eval", "loss", kGolden + "llama", "--tokenizer-type", "ByteTokenizer", "-d", "/dev/null"});
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err,
              AllOf(HasSubstr("'/dev/null' is empty, so it has nothing to evaluate"), HasSubstr("hint:")));
}

TEST(EvalLoss, RefusesOptionsWithoutEffect) {
  const std::string model = kGolden + "llama";
  const auto error_of = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"eval", "loss", model});
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error_of({"-d", "x.txt", "--template", "auto"}),
              HasSubstr("--template is for --conversations"));
  EXPECT_THAT(error_of({"-d", "x.txt", "--skip-bad"}), HasSubstr("--skip-bad is for --conversations"));
  EXPECT_THAT(error_of({"--conversations", "x.jsonl", "--json-key", "text"}),
              HasSubstr("--json-key is for --data"));
  EXPECT_THAT(error_of({"-d", "x.txt", "--tokenizer-type", "ByteTokenizer", "--tokenizer", "nowhere"}),
              HasSubstr("ByteTokenizer reads no file, but 'nowhere' is given"));
}

TEST(Options, ThatNeedOtherOptionsAreRefusedWithoutThem) {
  const auto error_of = [](const std::vector<std::string>& words) {
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  EXPECT_THAT(error_of({"train", "pretrain", "--config", kExperiment, "--dry-run", "--overwrite"}),
              HasSubstr("--overwrite needs --export-config"));
  const std::string model = kGolden + "llama";
  EXPECT_THAT(error_of({"model", "verify", model, "--inputs", model + "/io.safetensors", "--all"}),
              HasSubstr("--all needs --grads"));
  EXPECT_THAT(error_of({"model", "verify", model, "--inputs", model + "/io.safetensors",
                        "--trajectory-tolerance", "1"}),
              HasSubstr("--trajectory-tolerance needs --trajectory"));
  EXPECT_THAT(error_of({"report", model, "--json", "-o", "page.html"}),
              HasSubstr("--json writes no file, so --output and --overwrite have no effect"));
  EXPECT_THAT(error_of({"report", kExperiment}), HasSubstr("is not a folder"));
}

TEST(Config, ShowsAsJson) {
  const ProgramResult result =
      run_program({"config", "show", "--config", kExperiment, "--json", "--origin", "lr=2e-3"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json shown = json::parse(result.out);
  EXPECT_EQ(shown.at("trainer").at("lr"), 2e-3);
  EXPECT_EQ(shown.at("origins").at("lr"), "command line");
  EXPECT_EQ(shown.at("framework"), "native");
  const ProgramResult wrong = run_program({"config", "show", "--config", kExperiment, "--json", "lrr=1"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_EQ(json::parse(wrong.out).at("exit_code"), 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean 'lr'?"));
}

TEST(Config, ConversationsWithoutAFileMeanFineTuning) {
  const ProgramResult result =
      run_program({"config", "show", "--json", "load=" + kGolden + "llama", "sft_dataset_name=chats.jsonl"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out).at("trainer").at("stage"), "sft");
}

TEST(Numbers, OutOfRangeAreRefused) {
  const std::string model = kGolden + "llama";
  const std::vector<std::string> ids = {"--tokenizer-type", "NullTokenizer", "--tokenizer", "60"};
  const std::vector<std::string> refused[] = {
      {"generate", model, "-p", "1", "-n", "9223372036854775807"},
      {"generate", model, "-p", "1", "-n", "-1"},
      {"chat", model, "-n", "9223372036854775807"},
      {"chat", model, "--context", "-1"},
      {"chat", model, "--seed", "-1"},
      {"generate", model, "-p", "1", "--seed", "-1"},
      {"eval", "loss", model, "-d", kExperiment, "--batch", "9000000000000000000"},
      {"eval", "loss", model, "-d", kExperiment, "--batch", "0"},
      {"eval", "loss", model, "-d", kExperiment, "-n", "-4"},
  };
  for (std::vector<std::string> words : refused) {
    words.insert(words.end(), ids.begin(), ids.end());
    const ProgramResult result = run_program(words);
    EXPECT_EQ(result.exit_code, 2) << words[0] << " " << words.back() << result.err;
    EXPECT_THAT(result.err, ::testing::AnyOf(HasSubstr(" must be "), HasSubstr("is not from 1 to")));
  }
  EXPECT_EQ(run_program({"benchmark", "train", "--config", kExperiment, "--steps", "9223372036854775807"})
                .exit_code,
            2);
}

TEST(Mistakes, AMissingFileIsBadInput) {
  const std::string model = kGolden + "llama";
  EXPECT_EQ(run_program({"model", "verify", model, "--inputs", "/nowhere/io.safetensors"}).exit_code, 2);
  EXPECT_EQ(run_program({"generate", model, "--prompt-file", "/nowhere/prompt"}).exit_code, 2);
  EXPECT_EQ(run_program({"config", "show", "--config", "/nowhere/exp.yaml"}).exit_code, 2);
}

class QuickstartTest : public ::testing::Test {
 protected:
  QuickstartTest() {
    std::string text;
    for (int i = 0; i < 3000; ++i)
      text += "And the evening and the morning were day " + std::to_string(i) + ". ";
    write_file(folder_.path() / "my text.txt", text);
  }
  ProgramResult quickstart(const std::vector<std::string>& more) const {
    std::vector<std::string> words{"quickstart", "--workspace", "out put"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, {.folder = folder_.path().string()});
  }
  TemporaryFolder folder_;
};

TEST_F(QuickstartTest, RefusesInvalidStepsAndFilesThatAreNoText) {
  for (const auto& [option, value] :
       {std::pair{"--seconds", "nan"}, std::pair{"--seconds", "0"}, std::pair{"--seconds", "inf"},
        std::pair{"--steps", "0"}, std::pair{"--steps", "-5"}, std::pair{"--text", "."},
        std::pair{"--text", "nowhere.txt"}}) {
    const ProgramResult result = quickstart({option, value});
    EXPECT_EQ(result.exit_code, 2) << option << value << result.err;
    EXPECT_THAT(result.err, ::testing::Not(HasSubstr("filesystem error")));
  }
  EXPECT_FALSE(Env::posix().status(folder_.path() / "out put"));
}

// A quickstart whose text is too short trains no step, so the next quickstart may use another text.
TEST_F(QuickstartTest, TrainsOnAFewKilobytes) {
  std::string text;
  for (int i = 0; i < 140; ++i)
    text += "And the evening and the morning were day " + std::to_string(i) + ". ";
  write_file(folder_.path() / "small.txt", text);
  write_file(folder_.path() / "tiny.txt", "tiny");
  EXPECT_EQ(quickstart({"--text", "tiny.txt", "--steps", "2"}).exit_code, 2);
  const ProgramResult small = quickstart({"--text", "small.txt", "--steps", "2"});
  ASSERT_EQ(small.exit_code, 0) << small.err;
  EXPECT_THAT(small.out, HasSubstr("on held-out text"));
  EXPECT_THAT(small.out, HasSubstr("/quickstart/checkpoints/iter_0000002 directly"));
}

// The experiment file has absolute paths, which quickstart corrects after the folder was moved.
TEST_F(QuickstartTest, ContinuesInAMovedFolder) {
  const std::filesystem::path root = folder_.path().string();
  std::filesystem::create_directory(root / "old");
  std::filesystem::copy(root / "my text.txt", root / "old/text.txt");
  const auto start = [&](const char* in, std::vector<std::string> more) {
    more.insert(more.begin(), {"quickstart", "--workspace", "out", "--json"});
    return run_program(more, {.folder = (root / in).string()});
  };
  const ProgramResult first = start("old", {"--text", "text.txt", "--steps", "2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  std::filesystem::rename(root / "old", root / "new");
  const ProgramResult lost = start("new", {});
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_THAT(lost.err,
              AllOf(HasSubstr("old/text.txt"), HasSubstr("does not exist"), HasSubstr("--text FILE")));
  const ProgramResult moved = start("new", {"--text", "text.txt"});
  ASSERT_EQ(moved.exit_code, 0) << moved.err;
  const json report = json::parse(moved.out);
  EXPECT_EQ(report.at("last_step"), 2);
  const std::string experiment = read_file(root / "new" / report.at("config").get<std::string>());
  EXPECT_THAT(experiment, ::testing::Not(HasSubstr((root / "old").string())));
  EXPECT_FALSE(std::filesystem::exists(root / "old"));
  EXPECT_EQ(start("new", {}).exit_code, 0);
}

TEST_F(QuickstartTest, OptionsWithoutEffectAreRefused) {
  const ProgramResult first = quickstart({"--text", "my text.txt", "--steps", "3", "--json"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const json report = json::parse(first.out);
  EXPECT_EQ(report.at("last_step"), 3);
  EXPECT_THAT(report.at("sample").get<std::string>(), ::testing::StartsWith("And the evening and"));
  const ProgramResult again = quickstart({"--steps", "4"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, AllOf(HasSubstr("began with another --steps"), HasSubstr("add --again")));
  // Repeating the first command continues the run. Another text is refused.
  const ProgramResult repeated = quickstart({"--text", "my text.txt", "--steps", "3"});
  EXPECT_EQ(repeated.exit_code, 0) << repeated.err;
  const ProgramResult timed = quickstart({"--text", "my text.txt", "--seconds", "60"});
  EXPECT_EQ(timed.exit_code, 0) << timed.err;
  EXPECT_THAT(timed.out, HasSubstr("up to its 3 steps; --seconds applies only to a new run"));
  write_file(folder_.path() / "other.txt", "Another text. ");
  const ProgramResult other = quickstart({"--text", "other.txt"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("began with another --text"));
  const ProgramResult same = quickstart({});
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("'out put/primus/"));  // quoted for a shell
  // A finished run reports its recorded losses.
  const json finished = json::parse(quickstart({"--json"}).out);
  for (const char* loss : {"last_loss", "validation_loss"}) {
    ASSERT_TRUE(finished.contains(loss)) << loss;
    EXPECT_NEAR(finished.at(loss), report.at(loss).get<double>(), 1e-5) << loss;
  }
  const ProgramResult anew = quickstart({"--text", "my text.txt", "--steps", "2", "--again", "--json"});
  ASSERT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_EQ(json::parse(anew.out).at("last_step"), 2);

  // A text that is too short is refused only after the earlier run was moved. The files of the earlier run
  // must still exist.
  write_file(folder_.path() / "tiny.txt", "tiny");
  EXPECT_EQ(quickstart({"--text", "tiny.txt", "--steps", "2", "--again"}).exit_code, 2);
  std::vector<std::string> kept;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path() / "out put")) {
    const std::string path = entry.path().string();
    const std::size_t run = path.find("quickstart.previous-");
    if (run != std::string::npos && entry.path().filename() == "latest")
      kept.push_back(path.substr(run, path.find('/', run) - run));
  }
  EXPECT_THAT(kept, ::testing::UnorderedElementsAre("quickstart.previous-1", "quickstart.previous-2"));
}

}  // namespace
}  // namespace primus
